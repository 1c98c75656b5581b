"""Who decodes in `spec_bench.py`: ours on each engine, transformers' own ways, llama.cpp's own loop, and servers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx2
import torch
from servers import ALL_TOKENS

import multidraft as md
from multidraft.cli.engines import Loader
from multidraft.cli.pair import load
from multidraft.cli.run_report import with_whole_vocabulary
from multidraft.zoo import smollm2

SERVER_PATIENCE = 600  # seconds until it has answered
Run = dict[str, Any]
Decode = Callable[[list[int], float, int], Run]
OURS = {  # by name: what drafts, and with which settings
    "plain, ours": ("none", {}),
    "lookup": ("lookup", dict(tree="auto")),
    "ngram": ("ngram", dict(tree="auto")),
    "draft": ("DRAFT", dict(tree="auto")),
    "draft and copying": ("copy+DRAFT", dict(tree="auto")),
    "head": ("eagle3:smollm2", dict(tree="auto")),
    "head and copying": ("copy+eagle3:smollm2", dict(tree="auto")),
}
ASSISTANTS = {f"assisted, {n}": dict(num_assistant_tokens=n, assistant_confidence_threshold=0.0) for n in (2, 4)}
ASSISTANTS |= {"assisted, 8, threshold 0.4": dict(num_assistant_tokens=8, assistant_confidence_threshold=0.4)}
LOOKUPS = {f"prompt look-up, {n}": dict(prompt_lookup_num_tokens=n) for n in (5, 10)}


def contestants(
    target: str, engines: list[str], servers: list[str], new_tokens: int, only: list[str] | None
) -> tuple[Callable[[str], list[int]], dict[str, Decode]]:
    """The prompt's tokens from its text, and everyone who decodes; the first is what others are compared with.

    An engine may come with a file of the target of its own, as in `llama.cpp=q8_0.gguf`; a server is `NAME=URL`. Of
    several engines each contestant's name says on which.
    """
    everyone, encoders = dict[str, Decode](), list[Callable[[str], list[int]]]()
    for engine in engines:
        name, _, file = engine.partition("=")
        encode, decoders = of_engine(file or target, name, f" on {name}" if len(engines) > 1 else "", new_tokens, only)
        everyone |= decoders
        encoders.append(encode)
    return encoders[0], everyone | dict(served(server, new_tokens) for server in servers)


def of_engine(
    target: str, engine: str, suffix: str, new_tokens: int, only: list[str] | None
) -> tuple[Callable[[str], list[int]], dict[str, Decode]]:
    """Everyone on one engine, whose names end with `suffix`, and how it encodes a prompt."""
    loader = Loader(engine=engine)
    base = load(target, "none", loader)
    chat = partial(base.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=True, return_dict=False)
    all_contestants = {
        f"{name}{suffix}": ours(base.target, drafter(target, draft, loader), settings, new_tokens)
        for name, (draft, settings) in OURS.items()
        if not only or f"{name}{suffix}" in only
    }
    if engine == "transformers":
        assistant = with_whole_vocabulary(drafter(target, "DRAFT", loader), base.target.config.vocab_size)
        return partial(ids_of, chat), all_contestants | theirs(base.target, assistant, new_tokens)
    from llama_plain import decode

    def plain_loop(ids: list[int], temperature: float, seed: int) -> Run:
        tokens = decode(base.target, ids, new_tokens, temperature, seed, base.target.weights.ends)
        return dict(tokens=len(tokens))

    return partial(ids_of, chat), {f"{engine}'s plain loop": plain_loop} | all_contestants


def served(server: str, new_tokens: int) -> tuple[str, Decode]:
    """A server's completions of token ids, each prompt read anew; its name and address are `NAME=URL`."""
    name, _, url = server.partition("=")
    client = httpx2.Client(base_url=url, timeout=SERVER_PATIENCE)
    model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def decode(ids: list[int], temperature: float, seed: int) -> Run:
        settings = dict(model=model, temperature=temperature, seed=seed, max_tokens=new_tokens, cache_prompt=False)
        answer = client.post("/v1/completions", json=settings | ALL_TOKENS | dict(prompt=ids)).raise_for_status().json()
        return dict(tokens=answer["usage"]["completion_tokens"])

    return name, decode


def ids_of(chat: Callable[..., list[int]], text: str) -> list[int]:
    """A user's turn in the chat template."""
    return list(chat([{"role": "user", "content": text}]))


def drafter(target: str, name: str, loader: Loader) -> Any:
    """What drafts, by its name."""
    shipped = "smollm2" if target == "smollm2" else str(smollm2.DRAFT)  # for another file of the target, too
    return load(target, name.replace("DRAFT", shipped), loader).draft if name != "none" else None


def ours(target: Any, drafter: Any, settings: dict[str, Any], new_tokens: int) -> Decode:
    """Our loop with a drafter."""

    def decode(ids: list[int], temperature: float, seed: int) -> Run:
        generator = torch.Generator().manual_seed(seed)
        common = dict(temperature=temperature, max_new_tokens=new_tokens, generator=generator)
        rows, info = md.generate(target, drafter, [ids], **common, **settings)
        report = info.as_dict()
        rates = dict(acceptance=report["acceptance_rate"], optimum=report["optimal_acceptance_rate"])
        parts = {name: round(seconds, 4) for name, seconds in report["seconds"].items()}
        return dict(tokens=len(rows[0]), passes=report["target_passes"], parts=parts, trees=report["trees"]) | rates

    return decode


def theirs(target: Any, assistant: Any, new_tokens: int) -> dict[str, Decode]:
    """transformers: plainly, with prompt look-up, and assisted by the shipped draft model."""
    ways: dict[str, dict[str, Any]] = {"`model.generate`": {}} | LOOKUPS
    ways_to_decode = {name: generated(target, new_tokens, settings) for name, settings in ways.items()}
    return ways_to_decode | {
        name: generated(target, new_tokens, dict(assistant_model=assistant), settings)
        for name, settings in ASSISTANTS.items()
    }


def generated(target: Any, new_tokens: int, settings: dict[str, Any], of_assistant: Any = None) -> Decode:
    """`model.generate` with settings; an assistant's own are set anew for each call, because calls change them."""

    def decode(ids: list[int], temperature: float, seed: int) -> Run:
        torch.manual_seed(seed)
        if of_assistant:
            settings["assistant_model"].generation_config.update(**of_assistant)
        sampling = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else {}
        prompt = torch.tensor([ids])
        out = target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new_tokens,
            pad_token_id=2,
            **({"do_sample": False} | sampling),
            **settings,
        )
        return dict(tokens=out.shape[1] - len(ids))

    return decode
