"""Many jobs whose records go into a journal, done by this process, by several of this machine, or by a Ray cluster.

What comes out does not depend on who does them.
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

from multidraft.errors import AdviceError, optional
from multidraft.io.journal import Journal, Record

WORKERS = "Processes that share the work, with the same results. Default: one; with --ray HOST:PORT, all of it."
RAY = "HOST:PORT of a Ray cluster that shares the work, or `local`: Ray with --workers processes here."
Work = Callable[[int], Record]  # from the number of a job; it can be pickled
Crew = Callable[[Work, Sequence[int]], Iterator[Record]]  # who does jobs: records in their order
PATIENCE = 3  # times that workers may die without one job done between
LOCAL = "local"
STORE = 100_000_000  # bytes of shared memory, where what is sent is small
SECONDS = 5.0  # for a cluster to answer
alone: Crew = map  # one job after another, in this process
kept: list[Work] = []  # of a worker process, the one that it does
opened = lru_cache(maxsize=1)(pickle.loads)  # once for all jobs of a process, so that it loads its models once
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would report to its makers
    "RAY_worker_niceness": "0",  # jobs have the priority that processes would have
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # jobs see the devices that processes would
}


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


def crew_of(workers: int | None, ray: str | None) -> Crew:
    """The crew that --workers and --ray ask for; raises where Ray is missing, or nothing answers at its address."""
    if ray is None:
        return alone if workers in (None, 1) else Processes(workers)
    optional("ray", "Ray", "ray")
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


@dataclass(frozen=True)
class Cluster:
    """So many workers, or all that there is room for, on a Ray cluster at `address` or on a Ray of our own here."""

    address: str
    workers: int | None

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
        """Records in the order of the jobs; Ray does a job again whose worker was killed."""
        import torch

        ray = join(self.address, num_cpus=self.workers, object_store_memory=STORE, include_dashboard=False)
        needs = {"num_cpus": 1, "num_gpus": one_gpu(ray)}
        task = ray.remote(**needs, max_calls=0, max_retries=PATIENCE - 1)(one)  # a worker loads its models once
        sent, left, waiting = ray.put(pickle.dumps(work)), iter(jobs), {}

        def send(count: int) -> None:
            for job in islice(left, count):
                waiting[job] = task.remote(sent, job, torch.get_num_threads())

        died = ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError
        send(self.workers or len(jobs))
        try:
            for job in jobs:
                record = ray.get(waiting.pop(job))
                send(1)
                yield record
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None  # a job's own errors are raised as they are
        except died:
            raise given_up(job) from None
        finally:
            for unfinished in waiting.values():
                ray.cancel(unfinished, force=True)


def given_up(job: int) -> AdviceError:
    """The error for a job that no worker survives."""
    return AdviceError(
        f"worker processes died {PATIENCE} times at job {job}, perhaps for want of memory; take fewer --workers"
    )


def begin(work: Work) -> None:
    """Keep the work for all jobs of this process; Ctrl-C is for the process that began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kept.append(work)


def do(job: int) -> Record:
    """One job, in a process of this machine."""
    return kept[0](job)


def one(pickled: bytes, job: int, threads: int) -> Record:
    """One job, in a process of Ray's; the number of threads decides the last bits."""
    import torch

    torch.set_num_threads(threads)
    return opened(pickled)(job)


def join(address: str, heard: bool = False, **local: object) -> ModuleType:
    """Ray, of which this process is a part from now on; `local` is for one of our own, and what is `heard` is shown."""
    ray = optional("ray", "Ray", "ray")
    if not ray.is_initialized():
        os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
        polite = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, log_to_driver=heard, logging_level="error", **local if address == LOCAL else {})
        except Exception as error:  # of no kind of its own where a busy machine takes too long
            reason = str(error).strip().splitlines()[0]
            advice = "try again when less is running here" if address == LOCAL else "check that its versions are ours"
            raise AdviceError(f"cannot join Ray at {address!r} ({reason}); {advice}") from None
        signal.signal(signal.SIGTERM, polite)  # which Ray has taken
    return ray


def one_gpu(ray: ModuleType) -> int:
    """The GPUs of a worker: one where the cluster has some."""
    return int(ray.cluster_resources().get("GPU", 0) > 0)


def check_address(address: str) -> None:
    """Raise unless Ray is to be our own, or something answers there; here, because Ray itself waits for minutes."""
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise AdviceError(
            f"no Ray cluster answers at {address!r} ({error}); give HOST:PORT of `ray start --head`, or --ray local"
        ) from None
