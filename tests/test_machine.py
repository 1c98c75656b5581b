"""Memory that can be had: the host's, or less where a container or a group within it says so, in made-up folders."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from multidraft import machine

HOST, MIB = 8000, 2**20
NOTHING_SAID = 2**63 - 4096  # what version 1 says in place of a limit
Group = dict[str, object]


def second(limit: object, used: int, unused: int = 0) -> Group:
    """A group's files in version 2, in MiB."""
    limit = limit * MIB if isinstance(limit, int) else limit
    return {"memory.max": limit, "memory.current": used * MIB, "memory.stat": f"anon 1\ninactive_file {unused * MIB}"}


def first(limit: int, used: int, unused: int = 0) -> Group:
    """The same in version 1, whose numbers are those of the groups within it, too, where they are called total."""
    stat = f"inactive_file 7\ntotal_inactive_file {unused * MIB}"
    limit = limit if limit == NOTHING_SAID else limit * MIB
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used * MIB, "memory.stat": stat}


@pytest.mark.parametrize(
    ("membership", "groups", "left"),
    [
        ("", {}, HOST),  # no groups on this system
        ("0::/\n", {"": second(2000, 500)}, 1500),  # in a container
        ("0::/\n", {"": second(2000, 500, 300)}, 1800),  # pages of files that nobody has used lately can go
        ("0::/\n", {"": second("max", 500)}, HOST),
        ("0::/\n", {"": second(2000, 2100)}, 0),
        ("0::/\n", {"": second(20_000, 500)}, HOST),  # the host has less
        ("0::/\n", {"": {"memory.max": "2000"}}, HOST),  # not all files are there, or what they say is no number
        ("0::/\n", {"": second(2000, 500) | {"memory.current": "?"}}, HOST),
        ("0::/a/b\n", {"a": second(1000, 300), "a/b": second("max", 200)}, 700),  # the one around it is the narrower
        ("0::/a/b\n", {"a": second(1000, 300), "a/b": second(500, 100)}, 400),
        ("0::/a/b\n", {"a": second(1000, 900), "a/b": second(500, 100)}, 100),  # others have taken the rest
        ("0::/docker/77\n", {"": second(2000, 500)}, 1500),  # the path is that of the host, which cannot be seen
        ("0::/../77\n", {"": second(2000, 500)}, 1500),
        ("5:cpu,memory:/a\n", {"memory": first(NOTHING_SAID, 1), "memory/a": first(900, 100, 50)}, 850),
        ("5:memory:/docker/77\n0::/\n", {"memory": first(900, 100)}, 800),
        ("5:memory:/\n", {"memory": first(NOTHING_SAID, 100)}, HOST),
        ("5:cpu:/a\n0::/b\n", {"a": second(100, 1), "unified/b": second(600, 100)}, 500),  # both versions
        ("nonsense\n", {"": second(2000, 500)}, HOST),
    ],
)
def test_memory_is_what_the_host_and_all_groups_leave(membership, groups, left, tmp_path: Path, monkeypatch) -> None:
    """A container of 2 GB on a large host was thought to have the host's memory, and was killed."""
    for name, group in groups.items():
        folder = tmp_path / "groups" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in group.items():
            (folder / file).write_text(f"{content}\n")
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(machine, "CGROUP_ROOT", tmp_path / "groups")
    monkeypatch.setattr(machine, "CGROUPS_OF_PROCESS", tmp_path / "membership")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=HOST * MIB))
    assert machine.available(torch.device("cpu")) == left * MIB


def test_a_system_without_such_files(tmp_path: Path, monkeypatch) -> None:
    for name in ("CGROUP_ROOT", "CGROUPS_OF_PROCESS"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    assert (machine.available(torch.device("cpu")) or 0) > MIB


@pytest.mark.parametrize(
    ("before", "count"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_idle_threads_spin_briefly_unless_somebody_says_otherwise(before: dict[str, str], count: str | None) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | before
    program = "import multidraft, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert output.split() == [str(count), "False"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "before", "warned"),
    [("torch", {}, True), ("multidraft", {}, False), ("torch", {"GOMP_SPINCOUNT": "3000"}, False)],
)
def test_who_imports_torch_first_is_told_on_a_busy_machine(first: str, before: dict[str, str], warned: bool) -> None:
    """Once: libgomp reads how long to spin when it is loaded, and nothing can be set after."""
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | before
    program = f"""
import {first}, warnings, torch
import multidraft as md
from multidraft import machine
from multidraft.generation import generate
from multidraft.models.prefix_models import TableModel, random_table
torch.set_num_threads(2)
generate.is_busy = lambda: True
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        md.generate(*(TableModel(random_table(5, 3, seed), 5) for seed in range(2)), [[1]], max_new_tokens=2)
print(sum("import multidraft first" in str(warning.message) for warning in caught))
"""
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert output.split()[-1] == str(int(warned))
