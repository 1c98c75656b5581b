"""Who does the jobs of captures and studies: this process, several of this machine, or a cluster."""

from typing import TYPE_CHECKING

from multidraft.errors.missing import optional

if TYPE_CHECKING:
    from multidraft_research.studies.running.jobs import Crew

WORKERS = "Processes that share the work, with the same results. Default: one; with --ray HOST:PORT, all of it."
RAY = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."


def crew_of(workers: int | None, ray: str | None) -> "Crew":
    """What --workers and --ray ask for; raises where Ray is missing, or nothing answers at its address."""
    from multidraft_research.studies.running.jobs import Processes, alone

    if ray is None:
        return alone if workers in (None, 1) else Processes(workers)
    optional("ray", "Ray", "ray")
    from multidraft_research.studies.running.on_ray import LOCAL, Cluster, check_address

    check_address(ray)
    return Cluster(ray, (workers or 1) if ray == LOCAL else workers)
