"""Who decodes in `decode.py`: plain decoding, transformers with and without an assistant, and our schemes and trees."""

import copy
import time
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

import multidraft as md
from multidraft.generation import DEFAULT_SCHEME, DEFAULT_TREE
from multidraft.zoo import Pair


class Case(NamedTuple):
    """Who decodes, and how: a tree and a walk, or the name of an assistant's settings."""

    who: str
    setting: str = ""


PLAIN, THEIRS, ASSISTED = Case("plain decoding, ours"), Case("`model.generate`"), "assisted generation"
STATIC = Case("`model.generate`, compiled", "static cache")  # compiled by transformers on a GPU alone
DEFAULT = Case(DEFAULT_SCHEME, f"{DEFAULT_TREE} deferred")


def assistant(tokens: int, threshold: float = 0.0, schedule: str = "constant") -> dict[str, Any]:
    """Fields of the draft model's generation config; with a threshold, drafting stops at a token less likely."""
    names = ("num_assistant_tokens", "assistant_confidence_threshold", "num_assistant_tokens_schedule")
    return dict(zip(names, (tokens, threshold, schedule), strict=True))


ASSISTANTS = {"1 token": assistant(1)} | {f"{tokens} tokens": assistant(tokens) for tokens in (2, 3, 5)}
ASSISTANTS |= {f"{n} tokens, threshold {t}": assistant(n, t) for n in (5, 8, 20) for t in (0.2, 0.3, 0.4)}
ASSISTANTS |= {"heuristic from 5 tokens": assistant(5, 0.0, "heuristic")}
ASSISTANTS |= {"heuristic from 5 tokens, threshold 0.4": assistant(5, 0.4, "heuristic")}
OURS = [
    Case("iid:lorenz", "1x1x1 deferred"),
    Case("iid:lorenz", "1x1x1x1 deferred"),
    Case("iid:recursive_rejection", "2x1x1x1 commit"),
    Case("iid:recursive_rejection", "4x2x2x1 commit"),
    Case("without_replacement:recursive_rejection", "2x1x1x1 deferred"),
    Case("without_replacement:recursive_rejection", "4x2x2x1 deferred"),
    Case("greedy:maximal_coupling", "2x1x1x1 deferred"),
    Case("iid:lorenz", "2x1x1x1 deferred"),
    Case("anchored:lorenz", "4x2x2x1 commit"),
]
FIXED_TREES = [
    Case(DEFAULT_SCHEME, f"{tree} deferred")
    for tree in ("1x1", "1x1x1", "1x1x1x1", "2x1x1", "2x1x1x1", "3x1x1", "3x1x1x1", "2x2x2", "4x2x2x1")
]
DYNAMIC = ["3 tokens", "5 tokens", "8 tokens, threshold 0.2", "heuristic from 5 tokens"]  # the best of each kind
ALL = [PLAIN, THEIRS, *(Case(ASSISTED, name) for name in ASSISTANTS), *OURS, *FIXED_TREES, DEFAULT]
SOME = [PLAIN, *(Case(ASSISTED, name) for name in DYNAMIC), *FIXED_TREES, DEFAULT]
FEW = [PLAIN, Case(ASSISTED, "3 tokens"), Case(ASSISTED, "5 tokens, threshold 0.4"), FIXED_TREES[1], DEFAULT]
Run = dict[str, Any]


def decode(pair: Pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, options: Any) -> Run:
    """Decode a batch, and say how it went; time that only the report takes does not count."""
    start = time.perf_counter()
    if case in (THEIRS, STATIC) or case.who == ASSISTED:
        run = theirs(pair, case, prompts, temperature, seed, options.new_tokens)
    else:
        run = ours(pair, case, prompts, temperature, seed, options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    run["seconds"] = round(time.perf_counter() - start - run.pop("measure", 0.0), 5)
    return run


def ours(pair: Pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, options: Any) -> Run:
    """By our loop, past any end of text, so that everyone makes as many tokens."""
    tree, _, walk = case.setting.partition(" ")
    plain = case == PLAIN
    settings = {} if plain else dict(scheme=case.who, tree=tree, walk=walk)
    rows, info = md.generate(
        pair.target,
        None if plain else pair.draft,
        prompts,
        temperature=temperature,
        max_new_tokens=options.new_tokens,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(seed),
        measure=False,
        compile=options.compile,
        **settings,
    )
    parts = {name: round(info.seconds[name], 5) for name in ("draft", "target", "measure")}
    return dict(tokens=sum(map(len, rows)), passes=info.row_passes, accepted=info.accepted) | parts


def theirs(pair: Pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, new_tokens: int) -> Run:
    """By transformers: nothing truncated, past any end of text; an assistant's settings are set anew for each batch."""
    torch.manual_seed(seed)
    settings: dict[str, Any] = dict(do_sample=False)
    if temperature:
        settings = dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0)
    if case == STATIC:
        settings["cache_implementation"] = "static"
    elif case.setting:
        pair.draft.generation_config.update(**ASSISTANTS[case.setting])
        settings["assistant_model"] = pair.draft
    longest = max(map(len, prompts))
    ids = torch.tensor([[-1] * (longest - len(prompt)) + prompt for prompt in prompts], device=pair.target.device)
    ends: dict[str, Any] = dict(max_new_tokens=new_tokens, eos_token_id=-1, pad_token_id=0)
    out = pair.target.generate(ids.clamp(min=0), attention_mask=(ids >= 0).long(), **ends, **settings)
    return dict(tokens=out[:, longest:].numel())


def deeper(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The same distribution from more layers: those that are added write nothing to the residual stream."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    larger = type(target)(config).to(target.dtype).to(target.device)
    larger.load_state_dict(target.state_dict(), strict=False)
    for layer in larger.model.layers[target.config.num_hidden_layers :]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    larger.generation_config = target.generation_config
    return larger.eval()
