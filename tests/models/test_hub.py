"""GGUF models by their names on the hub: what a name means, and what is downloaded from a hub on this machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pretended_hub import PretendedHub

from multidraft.errors import AdviceError
from multidraft.models.gguf.hub import look_up, model_of, models_in, name_of

CODER = [f"qwen2.5-coder-{kind}.gguf" for kind in ("q2_k", "q4_0", "q4_k_m", "q8_0")]
SPLIT = [f"Q8_0/big-Q8_0-{part:05d}-of-00003.gguf" for part in (1, 2, 3)]
WHOLE = b"GGUF" + bytes(range(256)) * 90_000  # the client counts what it has by pieces of 10 MB
TRIES = """
import json, sys
from multidraft.errors import AdviceError
from multidraft.models.gguf.hub import look_up
def tried(name, revision=None):
    try:
        found = look_up(name, revision)
        return found and str(found.fetch())
    except AdviceError as error:
        return f"error: {error}"
print(json.dumps([tried(*name) for name in json.loads(sys.argv[1])]))
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Org/Name-GGUF", ("Org/Name-GGUF", None)),
        (" hf.co/Org/Name :q8_0 ", ("Org/Name", "q8_0")),
        ("Org/Name:folder/file.gguf", ("Org/Name", "folder/file.gguf")),
        *((path, None) for path in ("folder/file.gguf", "C:\\models\\a.gguf", "C:/models/a", "./a/b", "/a/b:Q4_0")),
        *((text, None) for text in ("gpt2", "a/b/c", "a/b:Q4_0:Q8_0", "", "a/b c", "ngram:3", "~/models")),
    ],
)
def test_a_name_of_the_hub_is_told_from_a_path(text, name):
    assert name_of(text) == name


def test_a_path_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("Org/Name", "Org/Name:Q4_0"):
        Path(folder).mkdir(parents=True)
        assert name_of(folder) is None
    Path("Org/Name/a-Q8_0.gguf").touch()
    assert look_up("Org/Name:q8_0").fetch() == Path("Org/Name/a-Q8_0.gguf")


@pytest.mark.parametrize(
    ("files", "kind", "file"),
    [
        (CODER, "LATEST", CODER[2]),
        ([*CODER, *SPLIT], "big-Q8_0-00002-of-00003.gguf", "Q8_0/big-Q8_0.gguf"),
        (CODER[:2], "latest", CODER[0]),
        (["a-Q4_K.gguf", "a-Q4_K_M.gguf"], "Q4_K", "a-Q4_K.gguf"),
        (["a-UD-Q4_K_XL.gguf", "a-Q4_K_M.gguf"], " q4_k_xl", "a-UD-Q4_K_XL.gguf"),
        (["a-UD-Q4_K_M.gguf", "a.Q4_K_M.gguf"], "Q4_K_M", "a.Q4_K_M.gguf"),
        (["a-UD-IQ1_M.gguf", "a-UD-Q4_K_M.gguf"], "latest", "a-UD-Q4_K_M.gguf"),
        (["BF16/a.gguf", "a-Q8_0.gguf"], "bf16", "BF16/a.gguf"),
        (["a.gguf", "mmproj-a-Q4_K_M.gguf", "a-imatrix.gguf", "README.md"], "latest", "a.gguf"),
    ],
)
def test_the_type_or_the_file_behind_a_colon_chooses(files, kind, file):
    assert model_of(list(models_in(files)), kind, "it") == file


@pytest.mark.parametrize(
    ("files", "kind", "advice"),
    [
        (CODER, "Q4_K", "it has no Q4_K; it has Q2_K, Q4_0, Q4_K_M, Q8_0"),
        (["1b-Q8_0.gguf", "3b-Q8_0.gguf"], "latest", "2 such models; name one behind the colon: 1b-Q8_0.gguf, 3b-Q8_0"),
        (["mmproj-F16.gguf"], "F16", "has no GGUF file"),
    ],
)
def test_a_choice_that_cannot_be_made_lists_what_there_is(files, kind, advice):
    with pytest.raises(AdviceError, match=advice):
        model_of(list(models_in(files)), kind, "it")


def test_a_model_that_is_there_in_parts_and_whole_is_taken_whole():
    assert models_in([*SPLIT, "Q8_0/big-Q8_0.gguf"]) == {"Q8_0/big-Q8_0.gguf": ["Q8_0/big-Q8_0.gguf"]}


def tries(hub: PretendedHub, home: Path, names: list[str], **variables: str) -> list[Any]:
    """What becomes of names (after @ their revision) in a process: the client reads settings when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home)} | variables
    call = [sys.executable, "-c", TRIES, json.dumps([name.split("@") for name in names])]
    ran = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_what_a_hub_has_is_downloaded_once_and_found_again_without_it(tmp_path):
    main = {
        "Org/Coder": {name: name.encode() for name in (*CODER, "README.md")},
        "Org/Big": {name: name.encode() for name in (*SPLIT, "model.safetensors")},
        "Org/cut": {"a-Q4_0.gguf": WHOLE},
        "Org/gated": dict.fromkeys(CODER, b""),
        "Org/Text": {"model.safetensors": b""},
    }
    with PretendedHub({name: {"main": files, "v1": {CODER[2]: b"of v1"}} for name, files in main.items()}) as hub:
        good = ["Org/Coder", "Org/Coder:Q8_0", "Org/Coder@v1", "Org/Big:q8_0", "Org/cut", "Org/Big", "Org/Text"]
        bad = {
            "Org/Coder:Q5_0": "'Org/Coder' has no Q5_0; it has Q2_K, Q4_0, Q4_K_M, Q8_0",
            "Org/gated:Q8_0": f"'Org/gated' is gated: accept its terms at {hub.address}/Org/gated, and log in with `hf",
            "Org/private:Q8_0": "shows you no 'Org/private' (401); check the name, or, if it is private, log in",
            "Org/none:Q8_0": "shows you no 'Org/none' (404)",
            "Org/Coder:Q8_0@v2": "'Org/Coder' has no revision 'v2'",
        }
        first = tries(hub, tmp_path, [*good, *bad])
        if first[4].startswith("error"):  # the oldest client goes on in the next call
            first[4] = tries(hub, tmp_path, good[4:5])[0]
        contents = [CODER[2].encode(), CODER[3].encode(), b"of v1", SPLIT[0].encode(), WHOLE]
        assert [Path(path).read_bytes() for path in first[:5]] == contents
        assert all((Path(first[3]).parents[1] / name).read_bytes() == name.encode() for name in SPLIT)
        assert first[5:7] == [None, None]
        assert all(text in line and "\n" not in line for line, text in zip(first[7:], bad.values(), strict=True))
        spans = [span for method, path, span in hub.asked if method == "GET" and "cut/resolve" in path]
        assert re.fullmatch(r"None bytes=[1-9]\d+-", "{} {}".format(*spans))
        offline = tries(hub, tmp_path, [*good[:4], "Org/Coder:Q2_K", "Org/none:Q8_0", "Org/none"], HF_HUB_OFFLINE="1")
    assert [path for _, path, _ in hub.asked].index("/api/models/Org/Coder/revision/v2") == len(hub.asked) - 1
    assert [*offline[:4], offline[6]] == [*first[:4], None]
    assert "what is here of 'Org/Coder' has no Q2_K; it has Q4_K_M, Q8_0" in offline[4]
    assert re.search("'Org/none' is not in .* HF_HUB_OFFLINE is set", offline[5])
    gone = tries(hub, tmp_path, ["Org/Coder", "Org/none:Q8_0"])
    assert gone[0] == first[0]
    assert "check the network" in gone[1]
