"""Who does jobs: this process, several of this machine, or a Ray cluster."""

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multidraft.cli.jobs import PATIENCE, Crew, Work, alone, given_up
from multidraft.errors.missing import optional
from multidraft.io.journal import Record

WORKERS = "Processes that share the work, with the same results. Default: one; with --ray HOST:PORT, all of it."
RAY = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."

_work: Work | None = None  # of a worker process


def crew_of(workers: int | None, ray: str | None) -> Crew:
    """The crew that --workers and --ray ask for; raises where Ray is missing, or nothing answers at its address."""
    if ray is None:
        return alone if workers in (None, 1) else Processes(workers)
    optional("ray", "Ray", "ray")
    from multidraft.cli.on_ray import LOCAL, Cluster, check_address

    check_address(ray)
    return Cluster(ray, (workers or 1) if ray == LOCAL else workers)


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine."""

    workers: int

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
        """Records in the order of the jobs; where a worker was killed, others take its place."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        deaths = 0
        while jobs:
            pool = ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=begin, initargs=(work,))
            try:
                for record in pool.map(do, jobs):
                    yield record
                    jobs, deaths = jobs[1:], 0
            except BrokenProcessPool:
                deaths += 1
                if deaths == PATIENCE:
                    raise given_up(jobs[0]) from None
            finally:
                pool.shutdown(cancel_futures=True)


def begin(work: Work) -> None:
    """Keep the work for all jobs of this process; Ctrl-C is for the process that began it."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work


def do(job: int) -> Record:
    """One job, in a worker process."""
    assert _work is not None  # `begin` came first
    return _work(job)
