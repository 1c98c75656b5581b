"""Many jobs, one after another or over processes: what comes out does not depend on who does them."""

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from tqdm import tqdm

from multidraft.errors import AdviceError
from multidraft.io.journal import Journal, Record

Work = Callable[[int], Record]  # from the number of a job; it can be pickled
Crew = Callable[[Work, Sequence[int]], Iterator[Record]]  # who does jobs: records in their order
PATIENCE = 3  # times that workers may die without one job done between

_work: Work | None = None  # of a worker process


def run(work: Work, jobs: int, journal: Journal, crew: Crew, doing: str) -> None:
    """Let the journal have the records of all jobs, in their order; what it has already is not done again."""
    left = range(len(journal.records), jobs)
    if not left:
        return
    with tqdm(total=jobs, initial=jobs - len(left), desc=doing, unit="job", mininterval=0.5) as bar:
        for record in crew(work, left):
            journal.append(record)
            bar.update()


def alone(work: Work, jobs: Sequence[int]) -> Iterator[Record]:
    """One job after another, in this process."""
    return map(work, jobs)


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine."""

    workers: int

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
        """Records in the order of the jobs; where a worker was killed, others take its place."""
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


def given_up(job: int) -> AdviceError:
    """What is said of a job that no worker survives."""
    return AdviceError(
        f"worker processes died {PATIENCE} times at job {job}, perhaps for want of memory; take fewer --workers"
    )


def begin(work: Work) -> None:
    """Keep the work for all jobs of this process; Ctrl-C is for the process that began it."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _work = work


def do(job: int) -> Record:
    """One job, in a worker process."""
    assert _work is not None  # `begin` came first
    return _work(job)
