"""Many jobs on a Ray cluster, or on this machine with Ray: the records that one process would give, in their order."""

import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch

from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.studies.journal import Record
from multidraft.studies.running.jobs import PATIENCE, Work, given_up

LOCAL = "local"
STORE = 100_000_000  # bytes of shared memory, where what is sent is small
SECONDS = 5.0  # for a cluster to answer; Ray itself waits for minutes
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would report to its makers
    "RAY_worker_niceness": "0",  # jobs have the priority that processes would have
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # jobs see the devices that processes would
}


@dataclass(frozen=True)
class Cluster:
    """Workers on a cluster at `address`, or so many of our own where that is `local`."""

    address: str
    workers: int

    def __call__(self, work: Work, jobs: Sequence[int]) -> Iterator[Record]:
        """Records in the order of the jobs; Ray does a job again whose worker was killed."""
        ray = self.joined()
        task = ray.remote(num_cpus=1, max_retries=PATIENCE - 1)(one)
        sent = ray.put(pickle.dumps(work))
        waiting = {job: task.remote(sent, job, torch.get_num_threads()) for job in jobs}
        try:
            for job in jobs:
                yield result(ray, waiting[job], job)
                del waiting[job]
        finally:
            for left in waiting.values():
                ray.cancel(left, force=True)

    def joined(self) -> ModuleType:
        """Ray, of which this process is a part from now on."""
        ray = optional("ray", "Ray", "ray")
        if not ray.is_initialized():
            os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
            local = {"num_cpus": self.workers, "object_store_memory": STORE, "include_dashboard": False}
            more = local if self.address == LOCAL else {}
            try:
                ray.init(self.address, log_to_driver=False, logging_level="error", **more)
            except Exception as error:  # of no kind of its own where a busy machine takes too long
                reason = str(error).splitlines()[0]
                raise AdviceError(f"Ray did not start ({reason}); try again when less is running here") from None
        return ray


def check_address(address: str) -> None:
    """Raise unless something answers there."""
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
