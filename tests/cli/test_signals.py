"""Ctrl-C and a polite kill: one line and 130 at any moment, also while modules are loaded."""

import os
import signal
import subprocess
import sys
from time import sleep

import pytest

COMMAND = [sys.executable, "-m", "multidraft", "generate", "--target", "embedded", "--prompt", "It was", "--json"]
COMMAND += ["--max-new-tokens", "900", "--tree", "1"]
SLOW = """
import importlib.abc, importlib.util, signal, sys
from multidraft import machine
class Heard(importlib.abc.Loader):
    def create_module(self, spec): return None
    def exec_module(self, module):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as modules of others do, which then fail in their own way
            pass
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        return importlib.util.spec_from_loader(name, Heard()) if name == "loaded" else None
sys.meta_path.insert(0, Finder())
machine.hear_signals()
import loaded
print("swallowed")
"""


def test_ctrl_c_while_a_module_is_loaded_is_not_swallowed():
    ended = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "multidraft: stopped\n")


@pytest.mark.skipif(os.name == "nt", reason="signals differ")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "delay", [0.0, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_signal_ends_with_one_line(number, delay):
    """From the moment on in which our own first module is there; Python itself is loaded before."""
    command = [COMMAND[0], *([] if delay else ["-v"]), *COMMAND[1:]]
    with subprocess.Popen(command, stderr=-1, stdout=-1, text=True, preexec_fn=heed) as shown:
        assert shown.stderr is not None
        while not delay and "multidraft.cli" not in shown.stderr.readline():
            pass
        sleep(delay)
        shown.send_signal(number)
        _, error = shown.communicate(timeout=60)
    assert shown.returncode == 130, error[-2000:]
    assert "Traceback" not in error
    assert error.count("multidraft: stopped") == 1


def heed() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and their children inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
