"""Many jobs whose records go into a journal: what comes out does not depend on who does them."""

from collections.abc import Callable, Iterator, Sequence

from multidraft.errors import AdviceError
from multidraft.io.journal import Journal, Record

Work = Callable[[int], Record]  # from the number of a job; it can be pickled
Crew = Callable[[Work, Sequence[int]], Iterator[Record]]  # who does jobs: records in their order
PATIENCE = 3  # times that workers may die without one job done between


def run(work: Work, jobs: int, journal: Journal, crew: Crew, doing: str) -> None:
    """Let the journal have the records of all jobs, in their order; what it has already is not done again."""
    from tqdm import tqdm

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


def given_up(job: int) -> AdviceError:
    """The error for a job that no worker survives."""
    return AdviceError(
        f"worker processes died {PATIENCE} times at job {job}, perhaps for want of memory; take fewer --workers"
    )
