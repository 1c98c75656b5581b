"""Two replicas on two machines, as Ray's own test cluster has them: they answer as one server does, and one may die."""

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil
import pytest
import test_api
import yaml
from serving import MAX_WAIT_SECONDS
from serving import toy as toy_service

from multidraft.cli.serving import Serving
from multidraft.errors import AdviceError
from multidraft.server import Limits
from multidraft.server.process import bind_socket
from multidraft.server.service import Service

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
START = 600  # seconds that a new process of Ray's, which imports torch, may take on a busy machine

for name, test in vars(test_api).items():  # the same tests, against the client below
    if name.startswith("test_") and "toy" in inspect.signature(test).parameters:
        globals()[name] = test
del test  # which would be taken for one more


@dataclass(frozen=True)
class Toy(Serving):
    """The pair of tables of the API's tests."""

    def service(self) -> Service:
        return toy_service(rows=self.limits.rows, queue=self.limits.queue)


@pytest.fixture(scope="module")
def toy() -> Iterator[httpx2.Client]:
    """A client of two replicas, which only fit on two machines."""
    from ray import serve
    from ray.cluster_utils import Cluster

    from multidraft.cli.replicas import APP_NAME, deployment

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="ERROR")
        with bind_socket("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(
            deployment(Toy(names=("toy",), limits=Limits(rows=2, queue=4)), 2, 2, 0), name=APP_NAME, route_prefix="/"
        )
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=MAX_WAIT_SECONDS) as client:
            yield client
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_the_file_for_serve_deploy_names_what_there_is():
    from multidraft.cli.replicas import application

    (settings,) = yaml.safe_load((ROOT / "examples" / "serve.yaml").read_text())["applications"]
    assert settings["import_path"] == f"{application.__module__}:application"
    assert application(settings["args"])
    for wrong in ({"magic": 1}, {"limits": {"magic": 1}}, {"scheme": "magic"}):
        with pytest.raises(AdviceError):
            application(wrong)


def replicas() -> list[psutil.Process]:
    """The processes of the engines, of this test's own cluster."""
    actors = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # which has ended meanwhile
            actors += [process] if "ray::ServeReplica" in " ".join(process.cmdline()) else []
    return actors


def ask(client: httpx2.Client, **body) -> httpx2.Response:
    return client.post("/v1/completions", json={"model": "toy", "prompt": "ab", "seed": 1} | body)


def together(count: int, call: Callable[[], object]) -> list[threading.Thread]:
    """So many threads that make the same call."""
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_there_are_two_of_them_and_more_than_fits_is_told_to_come_again(toy):
    assert len({process.ppid() for process in replicas()}) == len(replicas()) == 2
    statuses: list[int] = []
    for thread in together(60, lambda: statuses.append(ask(toy, max_tokens=100).status_code)):
        thread.join()
    assert set(statuses) == {200, 429}


def test_the_numbers_of_all_replicas_are_in_rays_own_exporter(toy):
    """Every replica under its own name, a few seconds later."""
    known, end = set[str](), time.monotonic() + START
    while len(known) < 2:
        assert time.monotonic() < end
        assert ask(toy).status_code == 200
        places = [f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics" for node in ray.nodes()]
        lines = "".join(httpx2.get(place, timeout=MAX_WAIT_SECONDS).text for place in places).splitlines()
        lines = [line for line in lines if line.startswith("ray_vllm_generation_tokens_total{")]
        known = {part for line in lines for part in line.split(",") if part.lstrip().startswith("replica=")}
        time.sleep(1)


def test_a_killed_replica_costs_what_it_was_doing_and_no_more(toy):
    """Clients see a whole answer or an error that says so; those who ask again get the answer."""
    expected, outcomes = ask(toy, max_tokens=60).json()["choices"], list[str]()

    def outcome() -> str:
        try:
            response = ask(toy, max_tokens=60)
        except httpx2.HTTPError:
            return "cut"
        if response.status_code != 200:
            return str(response.status_code)
        return "whole" if response.json()["choices"] == expected else "wrong"

    threads = together(4, lambda: [outcomes.append(outcome()) for _ in range(10)])
    while len(outcomes) < 4:
        time.sleep(0.05)
    replicas()[0].send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert "wrong" not in outcomes
    assert outcomes.count("whole") > 20
    assert {"cut", "429", "500", "503"} >= set(outcomes) - {"whole"}
    end = time.monotonic() + START
    while len(replicas()) < 2:
        assert time.monotonic() < end
        time.sleep(0.2)
    assert [outcome() for _ in range(5)] == ["whole"] * 5
