"""A Ray cluster, or Ray on this machine: how to join it, and many jobs on it, with the records of one process."""

import os
import pickle
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import ModuleType

import torch

from multidraft.cli.jobs import PATIENCE, Work, given_up
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.io.journal import Record

LOCAL = "local"
STORE = 100_000_000  # bytes of shared memory, where what is sent is small
SECONDS = 5.0  # for a cluster to answer
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would report to its makers
    "RAY_worker_niceness": "0",  # jobs have the priority that processes would have
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # jobs see the devices that processes would
}


@dataclass(frozen=True)
class Cluster:
    """So many workers, or all that there is room for, on a cluster at `address` or on a Ray of our own here."""

    address: str
    workers: int | None

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
        """Records in the order of the jobs; Ray does a job again whose worker was killed."""
        ray = join(self.address, num_cpus=self.workers, object_store_memory=STORE, include_dashboard=False)
        needs = {"num_cpus": 1, "num_gpus": one_gpu(ray)}
        task = ray.remote(**needs, max_calls=0, max_retries=PATIENCE - 1)(one)  # a worker loads its models once
        sent, left, waiting = ray.put(pickle.dumps(work)), iter(jobs), {}

        def send(count: int) -> None:
            for job in islice(left, count):
                waiting[job] = task.remote(sent, job, torch.get_num_threads())

        send(self.workers or len(jobs))
        try:
            for job in jobs:
                record = result(ray, waiting.pop(job), job)
                send(1)
                yield record
        finally:
            for unfinished in waiting.values():
                ray.cancel(unfinished, force=True)


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


def result(ray: ModuleType, waiting: object, job: int) -> Record:
    """The record of a job; its own errors are raised as they are."""
    try:
        return ray.get(waiting)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError):
        raise given_up(job) from None


def one(pickled: bytes, job: int, threads: int) -> Record:
    """One job, in a worker process; the number of threads decides the last bits."""
    torch.set_num_threads(threads)
    return opened(pickled)(job)


@lru_cache(maxsize=1)
def opened(pickled: bytes) -> Work:
    """The work, once for all jobs of a process, so that it loads its models once."""
    return pickle.loads(pickled)
