"""Who does the jobs of captures and studies: this process, several of this machine, or a cluster."""

from typing import TYPE_CHECKING

from multidraft.errors import AdviceError
from multidraft.errors.missing import optional

if TYPE_CHECKING:
    from multidraft.studies.running.jobs import Crew

WORKERS = "Processes that share the work; the results are the same."
RAY = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."


def crew_of(workers: int, ray: str | None) -> "Crew":
    """What --workers and --ray ask for; raises where Ray is missing or both ask for something else."""
    from multidraft.studies.running.jobs import Processes, alone

    if ray is None:
        return alone if workers == 1 else Processes(workers)
    optional("ray", "Ray", "ray")
    from multidraft.studies.running.on_ray import LOCAL, Cluster, check_address

    if ray != LOCAL:
        if workers != 1:
            raise AdviceError("a Ray cluster has workers of its own; leave out --workers, or give --ray local")
        check_address(ray)
    return Cluster(ray, workers)
