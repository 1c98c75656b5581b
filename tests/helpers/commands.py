"""The command line from outside, and two tiny models in folders for it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from multidraft_research.training import corpus
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import multidraft as md
from multidraft.cli.decode import Job
from multidraft.cli.engines import Loader
from multidraft.cli.generate import SamplingOptions
from multidraft.cli.main import app
from multidraft.cli.options import DraftingOptions
from multidraft.cli.pair import Models
from multidraft.cli.prompts import check_template, read_prompts
from multidraft.models.reader import Reader

WORDS = ["the", "old", "house", "stood", "alone", "naïve", "日本語", "😀", "and", "a", "storm", "came", "çà"]
CONTEXT = 96
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)


def run(*words: object, **settings: Any):
    """The result of `multidraft ...`."""
    return CliRunner().invoke(app, [str(word) for word in words], **settings)


def printed(*words: object) -> Any:
    """What `multidraft ... --json` prints."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def ends_with_advice(result, advice: str) -> None:
    """Exit code 2, one line on stderr with the advice, nothing on stdout."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    notes = "this processor does not multiply bfloat16"  # is said first, where that is so
    lines = [line for line in result.stderr.splitlines() if line.strip() and not line.startswith(notes)]
    (line,) = [line for line in lines if "%|" not in line]  # without the progress that a slow machine shows
    assert line.startswith("multidraft: ")
    assert advice in line


def interrupt() -> None:
    """What Ctrl-C does."""
    raise KeyboardInterrupt


def stop_at(monkeypatch, call: int, tokens: int, stop: Callable[[], object] = interrupt) -> list[list[int]]:
    """Ctrl-C in the given call of `md.generate` after some tokens; returns the first prompts of all calls."""
    plainly, prompts = md.generate, list[list[int]]()

    def interrupted(target, draft, rows, *, stream, **settings):
        prompts.append(rows[0])
        seen: list[int] = []

        def heard(row, emitted):
            stream(row, emitted)
            seen.extend(emitted.tokens)
            if len(prompts) == call and len(seen) >= tokens:
                stop()

        return plainly(target, draft, rows, stream=heard, **settings)

    monkeypatch.setattr(md, "generate", interrupted)
    return prompts


@dataclass(frozen=True)
class GivenJob(Job):
    """A run of the command line whose models are given, not named."""

    given: Models | None = None

    @property
    def models(self) -> Models:
        if self.chat:
            check_template(self.given.tokenizer, self.target)
        return self.given


def job_of(
    model: Reader, tokenizer: Any, prompt: str, chat: bool = False, schema: str | None = None, **settings: Any
) -> Job:
    """`multidraft generate --prompt PROMPT` with these settings."""
    settings = asdict(DraftingOptions()) | asdict(SamplingOptions()) | {"max_new_tokens": 30} | settings
    prompts, given = read_prompts(prompt, None, None), Models(model, None, tokenizer)
    job = GivenJob("toy", "none", Loader(), prompts, chat, 1, 0, settings, schema=schema, given=given)
    job.check()
    return job


def results(*files: Path) -> list[dict]:
    """The results in files of JSON lines, without the settings that each begins with."""
    return [json.loads(line) for file in files for line in file.read_text().splitlines()[1:]]


def written(file: Path, *texts: str, **settings: str) -> Path:
    """A file of prompts that are called p0, p1, .."""
    lines = [json.dumps({"id": f"p{i}", "task": "story", "prompt": text}) for i, text in enumerate(texts)]
    file.write_text("\n".join(lines) + "\n", **settings)
    return file


def synthetic(size: int) -> str:
    """Text of words in a fixed pseudo-random order."""
    order = torch.randint(len(WORDS), (size // 5,), generator=torch.Generator().manual_seed(3)).tolist()
    return "".join(WORDS[i] + (".\n" if n % 9 == 8 else " ") for n, i in enumerate(order))


def save_model(folder: Path, seed: int, tokenizer) -> None:
    """A tiny random Llama with a tokenizer beside it."""
    torch.manual_seed(seed)
    ids = dict(bos_token_id=0, eos_token_id=None)
    config = LlamaConfig(vocab_size=320, max_position_embeddings=CONTEXT, initializer_range=0.3, **ids, **SIZES)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_pair(folder: Path, template: str | None = None) -> Path:
    """`target` and `draft` in a folder, with one tokenizer."""
    tokenizer = corpus.train_tokenizer(synthetic(20_000), 320, CONTEXT)
    tokenizer.chat_template = template
    for seed, role in enumerate(("target", "draft")):
        save_model(folder / role, seed, tokenizer)
    return folder
