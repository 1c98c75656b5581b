"""Prompts decoded by several workers: the texts are those of one, in shards, and what is there is not done again."""

import importlib
import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import ends_with_advice, results, run, written
from plans import made_up

from multidraft.autotune import plans
from multidraft.cli import decode, executors

pytestmark = pytest.mark.usefixtures("unchecked")
COUNT = 5
SETTINGS = ["--max-new-tokens", 6, "--tree", "2x1", "--seed", 3]
HEAD = {"num_cpus": 1, "include_dashboard": False}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    """Some prompts in a file."""
    file = tmp_path_factory.mktemp("workers") / "prompts.jsonl"
    return written(file, "It was", "A dark", "The old", "She had", "In the")


def generate(prompts: Path, *arguments: object):
    """The result of `multidraft generate` with the embedded pair."""
    return run("generate", "--prompts", prompts, *SETTINGS, *arguments)


@pytest.fixture(scope="module")
def alone(prompts, tmp_path_factory) -> list[dict]:
    """What one worker writes."""
    file = tmp_path_factory.mktemp("alone") / "one.jsonl"
    assert generate(prompts, "--jsonl", file, "--json").exit_code == 0
    return results(file)


@pytest.fixture
def small(monkeypatch) -> list[int]:
    """Shards of two prompts, decoded in this process; returns those that are."""
    done: list[int] = []

    def in_process(executor, work, left):
        for shard in left:
            done.append(shard)
            yield work(shard)

    monkeypatch.setattr(decode, "MIN_SHARD_PROMPTS", 2)
    monkeypatch.setattr(executors.Processes, "__call__", in_process)
    return done


def test_the_texts_are_those_of_one_worker_and_what_is_there_is_not_done_again(prompts, alone, small, tmp_path):
    """One shard is lost, and of another one the last line is torn."""
    folder = tmp_path / "shards"
    result = generate(prompts, "--jsonl", folder, "--workers", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"folder": str(folder), "shards": 3, "prompts": COUNT}
    first, second, third = sorted(folder.iterdir())
    assert [len(results(file)) for file in (first, second, third)] == [2, 2, 1]
    assert results(first, second, third) == alone
    second.unlink()
    first.write_bytes(first.read_bytes()[:-3])
    small.clear()
    assert generate(prompts, "--jsonl", folder, "--workers", 7).exit_code == 0
    assert small == [0, 1]
    assert results(first, second, third) == alone
    ends_with_advice(generate(prompts, "--jsonl", folder, "--workers", 2, "--seed", 4), "seed 3 instead of 4")


def test_trees_are_chosen_by_one_plan(prompts, small, monkeypatch, tmp_path):
    """Workers that know nothing of each other: each would measure the pair for itself, and choose other trees."""
    measured, plainly = [], executors.Processes.__call__

    def forgetful(executor, work, left):
        for job in left:
            plans.LOADED_PROFILES.clear()
            vars(getattr(work, "args", [work])[0]).pop("models", None)
            yield from plainly(executor, work, [job])

    def fresh(profile):
        measured.append(profile)
        return made_up(profile)

    monkeypatch.setattr(executors.Processes, "__call__", forgetful)
    monkeypatch.setattr(plans, "load_kept", lambda file, identity: None)
    monkeypatch.setattr(plans, "fresh", fresh)
    options = ["--jsonl", tmp_path, "--workers", 2, "--tree", "auto"]
    assert generate(prompts, *options).exit_code == 0
    (tmp_path / "000001.jsonl").unlink()
    assert generate(prompts, *options).exit_code == 0
    assert small == [0, 0, 1, 2, 1]  # the first is that of the plan
    assert len(measured) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("who", ["processes", "machines"])
def test_several_decode_the_same(prompts, alone, monkeypatch, tmp_path, who):
    """Machines are two raylets of one processor each, as Ray's own test cluster has them; a worker needs one."""
    monkeypatch.setattr(decode, "MIN_SHARD_PROMPTS", 2)
    options = ["--jsonl", tmp_path, "--workers", 2]
    with ExitStack() as ends:
        if who == "machines":
            ray = pytest.importorskip("ray")
            cluster = importlib.import_module("ray.cluster_utils").Cluster(True, head_node_args=HEAD)
            ends.callback(cluster.shutdown)
            ends.callback(ray.shutdown)
            cluster.add_node(num_cpus=1)
            options += ["--ray", cluster.address]
        result = generate(prompts, *options)
        assert who == "processes" or ray.get_runtime_context().gcs_address == cluster.address
    assert result.exit_code == 0, result.output
    assert results(*sorted(tmp_path.iterdir())) == alone
