"""Run many jobs whose records go into a journal: in this process, in several local processes, or on a Ray cluster.

The records do not depend on the executor.
"""

import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import ModuleType

from multidraft.cli.imports import with_imports
from multidraft.errors import AdviceError, optional
from multidraft.io.journal import Journal, Record

WORKERS_HELP = "Processes that share the work, with the same results. Default: one; with --ray HOST:PORT, all that fit."
RAY_HELP = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."
Work = Callable[[int], Record]  # maps a job's number to its record; must be picklable
Executor = Callable[[Work, Sequence[int]], Iterator[Record]]  # yields the jobs' records in order
MAX_WORKER_DEATHS = 3  # in a row, without a finished job in between
LOCAL = "local"
OBJECT_STORE = 100_000_000  # of shared memory; the messages are small
CONNECT_SECONDS = 5.0  # to wait for a cluster's answer
serial: Executor = map  # one job after another, in this process
work_of_process: list[Work] = []  # in a worker process: its one entry
unpickle_work = lru_cache(maxsize=1)(pickle.loads)  # cached, so that a process loads its models once
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_worker_niceness": "0",  # the same priority as local processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the same devices as local processes
}


def run(work: Work, jobs: int, journal: Journal, executor: Executor, description: str) -> None:
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

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
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

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
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


def worker_error(job: int) -> AdviceError:
    """The error for a job that no worker survives."""
    return AdviceError(
        f"worker processes died {MAX_WORKER_DEATHS} times at job {job}, perhaps for want of memory; use fewer --workers"
    )


def start_worker(work: Work) -> None:
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


def connect(address: str, show_logs: bool = False, **local: object) -> ModuleType:
    """Connect to Ray, and return its module; `local` holds the settings of a local Ray."""
    ray = optional("ray", "Ray", "ray")
    if not ray.is_initialized():
        os.environ.update({name: value for name, value in RAY_ENVIRONMENT.items() if name not in os.environ})
        sigterm_handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, log_to_driver=show_logs, logging_level="error", **local if address == LOCAL else {})
        except Exception as error:  # Ray raises plain Exception if a busy machine starts it too slowly
            reason = str(error).strip().splitlines()[0]
            advice = "try again when less is running here" if address == LOCAL else "check that versions are the same"
            raise AdviceError(f"cannot join Ray at {address!r} ({reason}); {advice}") from None
        signal.signal(signal.SIGTERM, sigterm_handler)  # Ray replaces it
    return ray


def gpus_per_worker(ray: ModuleType) -> int:
    """1 if the cluster has GPUs, else 0."""
    return int(ray.cluster_resources().get("GPU", 0) > 0)


def check_address(address: str) -> None:
    """Raise if nothing answers at a cluster's address; Ray itself would wait for minutes."""
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise AdviceError(
            f"no Ray cluster answers at {address!r} ({error}); give HOST:PORT of `ray start --head`, or --ray local"
        ) from None
