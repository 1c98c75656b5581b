"""Captures and studies on Ray: the same bytes as from one process, also where a worker is killed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from captures import keep
from commands import ends_with_advice
from commands import run as command
from deadly import Deadly
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.on_captures.by_task import measure
from multidraft_research.studies.running.work import OverCapture

from multidraft.cli.crews import alone, run
from multidraft.errors import AdviceError
from multidraft.io.journal import Journal


@pytest.fixture(scope="module")
def cluster() -> Iterator:
    """Two workers of this machine, once for all tests."""
    ray = pytest.importorskip("ray")
    from multidraft.cli.crews import Cluster

    yield Cluster("local", 2)
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_journal_is_that_of_one_process(tmp_path, cluster) -> None:
    folder = keep(tmp_path / "capture", *(random_pairs(2, 40, seed) for seed in range(4)))
    work = OverCapture(measure, folder, 7)
    for name, crew in {"alone": alone, "ray": cluster}.items():
        run(work, 4, Journal(tmp_path / name, {}), crew, "measuring")
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "alone").read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_is_killed_is_survived(tmp_path, cluster) -> None:
    journal = Journal(tmp_path / "journal", {})
    run(Deadly(tmp_path, 2, 1), 4, journal, cluster, "squaring")
    assert journal.records == [{"square": i**2} for i in range(4)]
    assert (tmp_path / "died-0").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_goes_wrong_in_a_worker_is_said_as_it_is(tmp_path, cluster) -> None:
    with pytest.raises(AdviceError, match=r"^there is no capture"):
        list(cluster(OverCapture(measure, tmp_path / "none", 0), range(1)))
    with pytest.raises(AdviceError, match="at job 0"):
        list(cluster(Deadly(tmp_path, 0, 99), range(1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("limit", [[], ["--workers", 1]], ids=["all of the cluster", "one worker"])
def test_a_cluster_at_an_address_gives_the_same_files(tmp_path, limit) -> None:
    """Two raylets of one processor each, as Ray's own test cluster has them; a capture, and a study of it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()
    asked = ["--limit", 3, "--new-tokens", 3]
    assert study(tmp_path / "alone", *asked).exit_code == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        result = study(tmp_path / "ray", *asked, "--ray", cluster.address, *limit)
        assert ray.get_runtime_context().gcs_address == cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert result.exit_code == 0, result.output
    for file in ("capture/manifest.jsonl", "top-k.json", "top-k.jsonl"):
        assert (tmp_path / "ray" / file).read_bytes() == (tmp_path / "alone" / file).read_bytes()


def study(*arguments: object):
    return command("study", "top-k", "--out", *arguments)


def capture(*arguments: object):
    return command("capture", "--out", *arguments)


def test_without_ray_the_line_to_type_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ends_with_advice(capture(tmp_path, "--ray", "local"), 'pip install "multidraft[ray]"')


@pytest.mark.parametrize(("address", "advice"), [("127.0.0.1:1", "no Ray cluster answers"), ("x", "give HOST:PORT")])
def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path, monkeypatch, address, advice) -> None:
    monkeypatch.setattr("multidraft.cli.crews.optional", lambda *_: None)
    ends_with_advice(capture(tmp_path, "--ray", address), advice)
    assert list(Path(tmp_path).iterdir()) == []
