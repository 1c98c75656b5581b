"""Run many jobs whose records go into a journal: in this process, in several local processes, or on a Ray cluster.

The records do not depend on the executor.
"""

import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

from multidraft.cli.imports import IMPORTED_MODULES, import_modules
from multidraft.cli.replicas import LOCAL, check_address, connect, gpus_per_worker
from multidraft.errors import AdviceError, optional
from multidraft.io.journal import Journal, Record

WORKERS_HELP = "Processes that share the work, with the same results. Default: one; with --ray HOST:PORT, all that fit."
RAY_HELP = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."
JobFunction = Callable[[int], Record]  # maps a job's number to its record; must be picklable
Executor = Callable[[JobFunction, Sequence[int]], Iterator[Record]]  # yields the jobs' records in order
MAX_WORKER_DEATHS = 3  # in a row, without a finished job in between
OBJECT_STORE = 100_000_000  # of shared memory; the messages are small
serial: Executor = map  # one job after another, in this process
work_of_process: list[JobFunction] = []  # in a worker process: its one entry
unpickle_work, unpickle_imported = (lru_cache(maxsize=1)(pickle.loads) for _ in range(2))  # so models are loaded once


def run(work: JobFunction, jobs: int, journal: Journal, executor: Executor, description: str) -> None:
    """Append the records of all jobs to the journal, in order; jobs that it already has are skipped."""
    from tqdm import tqdm

    jobs_left = range(len(journal.records), jobs)
    if not jobs_left:
        return
    with tqdm(total=jobs, initial=jobs - len(jobs_left), desc=description, unit="job", mininterval=0.5) as bar:
        for record in executor(work, jobs_left):
            journal.append(record)
            bar.update()


def executor_of(workers: int | None, ray: str | None) -> Executor:
    """The executor for --workers and --ray; raises if Ray is not installed, or no cluster answers."""
    if ray is None:
        return serial if workers in (None, 1) else Processes(workers)
    optional("ray", "Ray", "ray")
    check_address(ray)
    return Cluster(ray, (workers or 1) if ray == LOCAL else workers)


@dataclass(frozen=True)
class Processes:
    """Runs jobs in local processes."""

    workers: int

    def __call__(self, work: JobFunction, jobs: Sequence[int]) -> Iterator[Record]:
        """Yield records in the order of the jobs; replaces workers that are killed."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import get_context

        deaths, initargs = 0, (with_imports(work),)
        while jobs:
            pool = ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=start_worker, initargs=initargs)
            try:
                for record in pool.map(run_job, jobs):
                    yield record
                    jobs, deaths = jobs[1:], 0
            except BrokenProcessPool:
                deaths += 1
                if deaths == MAX_WORKER_DEATHS:
                    raise worker_error(jobs[0]) from None
            finally:
                pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Cluster:
    """Runs jobs on a Ray cluster, or on a local Ray; `workers` at once, or as many as fit."""

    address: str
    workers: int | None

    def __call__(self, work: JobFunction, jobs: Sequence[int]) -> Iterator[Record]:
        """Yield records in the order of the jobs; Ray retries a job whose worker was killed."""
        import torch

        ray = connect(self.address, num_cpus=self.workers, object_store_memory=OBJECT_STORE, include_dashboard=False)
        resources = {"num_cpus": 1, "num_gpus": gpus_per_worker(ray)}
        settings = resources | {"max_calls": 0, "max_retries": MAX_WORKER_DEATHS - 1}  # a worker loads its models once
        task = ray.remote(**settings)(run_pickled_job)
        pickled_work, jobs_left, pending = ray.put(pickle.dumps(with_imports(work))), iter(jobs), {}

        def submit(count: int) -> None:
            for job in islice(jobs_left, count):
                pending[job] = task.remote(pickled_work, job, torch.get_num_threads())

        death_errors = ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError
        submit(self.workers or len(jobs))
        try:
            for job in jobs:
                record = ray.get(pending.pop(job))
                submit(1)
                yield record
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None  # a job's own errors are raised as they are
        except death_errors:
            raise worker_error(job) from None
        finally:
            for unfinished in pending.values():
                ray.cancel(unfinished, force=True)


def with_imports(work: JobFunction) -> JobFunction:
    """The work of a worker process, which imports first what this process has been asked to import."""
    return partial(run_after_imports, tuple(IMPORTED_MODULES), pickle.dumps(work)) if IMPORTED_MODULES else work


def run_after_imports(modules: tuple[str, ...], pickled: bytes, job: int) -> Record:
    """Run a job in a worker process that needs modules."""
    import_modules(modules)
    return unpickle_imported(pickled)(job)


def worker_error(job: int) -> AdviceError:
    """The error for a job that no worker survives."""
    return AdviceError(
        f"worker processes died {MAX_WORKER_DEATHS} times at job {job}, perhaps for want of memory; use fewer --workers"
    )


def start_worker(work: JobFunction) -> None:
    """Keep the work for all jobs of this worker process, and ignore Ctrl-C, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work_of_process.append(work)


def run_job(job: int) -> Record:
    """Run a job in a local worker process."""
    return work_of_process[0](job)


def run_pickled_job(pickled: bytes, job: int, threads: int) -> Record:
    """Run a job in a Ray worker, with the parent's number of threads, which affects rounding."""
    import torch

    torch.set_num_threads(threads)
    return unpickle_work(pickled)(job)
