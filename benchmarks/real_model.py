"""A model that people run, on what people ask of it: ours beside llama.cpp's own server, with its look-ups and without.

    python benchmarks/real_model.py runs/real --target qwen2.5-coder-1.5b-q4_k_m.gguf --prompts FOLDER --each 8
    python benchmarks/spec_bench.py --show runs/real/runs.jsonl --over "llama.cpp's server"

On a GPU, with a build of llama.cpp for it, whose own server computes there by the build's file:

    MULTIDRAFT_LLAMA_LIB=FOLDER python benchmarks/real_model.py runs/gpu ... --engine llama.cpp --settling-seconds 0 \\
        --backend FOLDER/libggml-cuda.so

Edits of functions of this project, and of a folder with spec_bench.jsonl and humaneval.jsonl summaries, questions with
context, chats and code. The servers are llama.cpp's as the package xllamacpp brings it (`pip install --no-deps
xllamacpp`), with the same file and threads, and its look-ups with the lengths that are best for edits. Everyone takes
turns on each prompt, prompts are read anew, and what is done is not done again.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import edit_prompts
import spec_bench
from servers import LLAMA_LOOKUPS, LLAMA_SERVER, Contestant, running

from multidraft.errors import AdviceError
from multidraft.io import files

TASKS = {"summaries": "summarization", "contexts": "rag", "chats": "mt_bench"}  # by Spec-Bench's names
LONGEST_PROMPT = 6000  # characters
PLAIN, LOOKUPS = "llama.cpp's server", "its look-ups"
SERVER_SETTINGS = [*LLAMA_LOOKUPS, "--slots", "1", "--context", "4096"]


def prompts(folder: Path, each: int) -> list[dict[str, str]]:
    """So many prompts of every task."""
    asked = list(edit_prompts.prompts(each))
    lines = [json.loads(line) for line in (folder / "spec_bench.jsonl").read_text().splitlines()]
    for task, theirs in TASKS.items():
        fitting = [line for line in lines if line["task"].startswith(theirs) and len(line["prompt"]) < LONGEST_PROMPT]
        asked += [dict(id=line["id"], task=task, prompt=line["prompt"]) for line in spread(fitting, each)]
    for line in spread([json.loads(line) for line in (folder / "humaneval.jsonl").read_text().splitlines()], each):
        text = f"Complete this function. Answer with the whole function only.\n```python\n{line['prompt']}\n```"
        asked.append(dict(id=line["id"], task="code", prompt=text))
    return asked


def spread(lines: list[dict[str, str]], count: int) -> list[dict[str, str]]:
    """So many of them, from all over."""
    return [lines[index * len(lines) // count] for index in range(count)]


def contestants(target: str, threads: int, backend: str | None = None) -> list[Contestant]:
    """llama.cpp's server, plainly and with look-ups."""
    settings = [*SERVER_SETTINGS, "--threads", str(threads), *(["--backend", backend] if backend else [])]
    return [
        Contestant(name, [sys.executable, str(LLAMA_SERVER), "{port}", target, drafts, *settings], {})
        for name, drafts in {PLAIN: "none", LOOKUPS: "ngram"}.items()
    ]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="a folder; the same command goes on with what is there")
    parser.add_argument("--target", required=True, help="a GGUF file")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="a folder with spec_bench.jsonl and humaneval.jsonl"
    )
    parser.add_argument("--each", type=int, default=8, help="prompts of each task")
    parser.add_argument("--engine", nargs="+", default=["ik_llama.cpp", "llama.cpp"])
    parser.add_argument("--temperature", nargs="+", default=["0", "0.7"])
    parser.add_argument("--max-new-tokens", default="128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backend", help="a file of ggml's for a GPU, for llama.cpp's server: see llama_server.py")
    parser.add_argument("--settling-seconds", default="1", help="between a server's answer and the next one's turn")
    parser.add_argument("--only", nargs="+", help="names of contestants, as spec_bench.py has them")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the table."""
    options = arguments()
    try:
        files.make_folder(options.out, "the output")
        asked = options.out / "prompts.jsonl"
        asked.write_text("".join(json.dumps(line) + "\n" for line in prompts(options.prompts, options.each)))
        with ExitStack() as stack:
            servers = {
                contestant.name: stack.enter_context(
                    running(contestant, options.out / f"{contestant.name}.log", options.threads)
                )
                for contestant in contestants(options.target, options.threads, options.backend)
            }
            suffixes = [f" on {engine}" for engine in options.engine] if len(options.engine) > 1 else [""]
            names = options.only or [f"{name}{suffix}" for name in ("plain, ours", "lookup") for suffix in suffixes]
            words = [str(options.out / "runs.jsonl"), "--prompts", str(asked), "--each", str(options.each)]
            words += ["--target", options.target, "--engine", *options.engine, "--temperature", *options.temperature]
            words += ["--max-new-tokens", options.max_new_tokens, "--threads", str(options.threads)]
            words += ["--settling-seconds", options.settling_seconds]
            words += ["--server", *(f"{name}={server.url}" for name, server in servers.items())]
            spec_bench.main([*words, "--only", *names, *servers, "--over", PLAIN])
    except (AdviceError, OSError) as error:
        sys.exit(f"real_model.py: {error}")


if __name__ == "__main__":
    main()
