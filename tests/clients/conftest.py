"""A server for the clients: the one at MULTIDRAFT_URL, or one of our own with the embedded pair.

Its model ends by itself at a full stop, as a chat model would after a while: some clients wait for that. It computes in
float32 and with a fixed tree, so that an answer does not depend on what is computed beside it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).parents[2]
ZOO = ROOT / "multidraft" / "zoo"
PROGRAM = Path(os.environ.get("MULTIDRAFT", ROOT / ".venv" / "bin" / "multidraft"))
NAME = "embedded"
MESSAGES = [{"role": "user", "content": "It was a dark and stormy night"}]


@pytest.fixture(scope="session")
def url(tmp_path_factory) -> Iterator[str]:
    """The server's address."""
    if url_given := os.environ.get("MULTIDRAFT_URL"):
        yield url_given
        return
    target = ending_at_a_full_stop(tmp_path_factory.mktemp("pair") / "target")
    with served(PROGRAM, "--target", target, "--tree", "2x1x1x1") as address:
        yield address


@contextmanager
def served(*command: object) -> Iterator[str]:
    """The address at which a program serves with these options, beside the embedded drafter and a name."""
    program, *options = command
    words = [*(program if isinstance(program, list) else [program]), "serve", "--port", "0", "--name", NAME, *options]
    words += ["--draft", ZOO / "draft"]
    with subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        yield next(address[0] for line in process.stderr if (address := re.search(r"http://[\d.:]+", line)))
        process.terminate()


def ending_at_a_full_stop(folder: Path) -> Path:
    """A copy of the embedded target that takes a full stop for the end of text."""
    shutil.copytree(ZOO / "target", folder)
    stop = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["."]
    for name, change in ("generation_config.json", {"eos_token_id": [0, stop]}), ("config.json", {"dtype": "float32"}):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(settings | change))
    return folder


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """The client that OpenAI publishes."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        client.models.retrieve(NAME)
        yield client


@pytest.fixture
def run(tmp_path, url):
    """Runs a program of this environment in an empty folder, and returns what it prints."""

    def call(program: str, *arguments: str, code: int = 0, **environment: str) -> str:
        home = {"HOME": str(tmp_path), "LLM_USER_PATH": str(tmp_path), "HF_HOME": str(tmp_path / "hf")}
        variables = {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1"} | home | environment
        command = [str(Path(sys.executable).parent / program), *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    return call
