"""Everything on a device that is not the CPU, which machines without one pretend to have: the tokens of the CPU."""

import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from decoded import readers
from device_checks import FAST_SCHEMES, check_draws_and_rules
from heads import CASES as HEADS
from heads import module_of
from hybrids import ONE_PASS, hybrid
from marks import slow_but
from pretended import alias, device, moved
from test_verify_tree import run as verified
from tiny import tiny_model
from torch import Tensor

import multidraft as md
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.ensemble import LookupThenModel, Mixture
from multidraft.models.heads.drafters import drafter
from multidraft.models.huggingface import fixed_steps
from multidraft.models.ngram import Lookup, NGram
from multidraft.sampling.row_faults import RowFault
from multidraft.server import Limits
from multidraft.server.engine import Engine
from multidraft.verification.registry import entries
from multidraft.zoo import load_pair

pytestmark = pytest.mark.usefixtures("unchecked")  # which is three quarters of the time
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5], [6, 7, 8, 6, 7]]
SIZE = 61  # of the tiny models' vocabulary
Place = Callable[[Any], Any]  # puts a module somewhere


def on_cpu(module: Any) -> Any:
    """The module where it is."""
    return module


@cache
def on_device(module: Any) -> Any:
    """The module on the pretended device."""
    return moved(module)


def generated(target: Any, draft: Any, **settings: Any) -> list[list[int]]:
    """The new tokens of three prompts."""
    fixed = dict(max_new_tokens=7, tree="2x1", eos_token_id=[], generator=torch.Generator().manual_seed(5))
    return [row.tolist() for row in md.generate(target, draft, PROMPTS, **fixed | settings)[0]]


def assert_equal(run: Callable[[Place], object]) -> None:
    """What a run gives where its modules are on the pretended device is what it gives on the CPU."""
    assert run(on_device) == run(on_cpu)


def pair(place: Place) -> tuple[Any, Any]:
    """A tiny target, and a tiny draft model."""
    return place(tiny_model("llama")), place(tiny_model("qwen2"))


DRAFTERS: dict[str, Callable[[Place], Any]] = {
    "none": lambda place: None,
    "model": lambda place: place(tiny_model("qwen2")),
    "model on the CPU": lambda place: tiny_model("qwen2"),
    "n-gram": lambda place: NGram(SIZE),
    "look-up": lambda place: Lookup(SIZE),
    "look-up, then model": lambda place: LookupThenModel([Lookup(SIZE), place(tiny_model("qwen2"))]),
    "mixture": lambda place: Mixture([NGram(SIZE), place(tiny_model("qwen2"))]),
    "mixture by a function": lambda place: Mixture(
        [NGram(SIZE), place(tiny_model("qwen2"))], lambda laws: laws.amax(-1).exp()
    ),
    **{f"head {name}": lambda place, name=name: drafter(place(module_of(name))) for name in HEADS},
}


@pytest.mark.parametrize("temperature", slow_but([0.8], [0, 0.8]))
@pytest.mark.parametrize("name", slow_but(["model", "head eagle3", "look-up, then model"], DRAFTERS))
def test_drafters(name: str, temperature: float) -> None:
    assert_equal(
        lambda place: generated(place(tiny_model("llama")), DRAFTERS[name](place), temperature=temperature, tree="3x2")
    )


def test_a_target_on_the_cpu() -> None:
    ours = generated(tiny_model("llama"), on_device(tiny_model("qwen2")))
    assert ours == generated(*pair(on_cpu))


def test_several_drafters() -> None:
    assert_equal(
        lambda place: generated(
            pair(place)[0], [pair(place)[1], NGram(SIZE)], scheme="distinct:recursive_rejection", tree="2x2"
        )
    )


@pytest.mark.parametrize("name", slow_but(["lfm2"], [*ONE_PASS, "lfm2", "mamba2"]))
def test_hybrids(name: str) -> None:
    target = hybrid(name)
    target.config._experts_implementation = "eager"  # others need kernels that CPUs lack
    assert_equal(lambda place: generated(place(target), place(tiny_model("qwen2")), max_new_tokens=5))


WALKS = [(name, walk) for name, entry in entries().items() for walk in ["commit", "deferred"][: 2 - entry.small]]


@pytest.mark.parametrize(("name", "walk"), slow_but([walk for walk in WALKS if "lorenz" in walk[0]], WALKS))
def test_schemes(name: str, walk: str) -> None:
    law, size = entries()[name].law, 9
    target, draft = tiny_model("llama", vocab_size=size), tiny_model("qwen2", vocab_size=size)
    tree = "2x2" if law.fixed_drafts else "2x1"

    def run(place: Place) -> list[list[int]]:
        drafter = [place(draft), NGram(size)] if law.per_draft_distributions else place(draft)
        return generated(place(target), drafter, scheme=name, walk=walk, tree=tree)

    assert_equal(run)


SETTINGS: dict[str, dict[str, Any]] = {
    "top-k and top-p": dict(top_k=20, top_p=0.8),
    "a nucleus of the draft alone": dict(draft_top_p=0.5, draft_temperature=1.3),
    "processors": dict(repetition_penalty=1.3, no_repeat_ngram_size=2, logit_bias={3: 2.0, 4: -5.0}),
    "penalties": dict(presence_penalty=0.5, frequency_penalty=0.2),
    "filters": dict(min_p=0.05, typical_p=0.9),
    "min-p": dict(min_p=0.3, top_k=7, top_p=0.9),
    "filters of equal scores": dict(top_n_sigma=1.0, epsilon_cutoff=0.01),
    "log-probabilities": dict(logprobs=3),
    "few rows at a time": dict(max_num_seqs=2),
    "a stop token": dict(eos_token_id=[2, 3, 5, 7, 11, 13, 17, 19]),
    "auto": dict(tree="auto", tune_budget=0),
    "auto at temperature 0": dict(tree="auto", tune_budget=0, temperature=0),
    "a tree of many depths": dict(tree="[[0],[1],[2],[0,0],[0,1],[1,0],[0,0,0]]"),
    "randomised drafting": dict(scheme=md.scheme("anchored:lorenz", draft_probability=0.5)),
    "measured": dict(measure=1),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str) -> None:
    assert_equal(lambda place: generated(*pair(place), **SETTINGS[name]))


def test_log_probabilities_and_acceptance() -> None:
    def run(place: Place) -> list[Any]:
        _, info = md.generate(
            *pair(place), PROMPTS, generator=torch.Generator(), max_new_tokens=5, logprobs=2, measure=1
        )
        numbers = [[logprob.logprob for logprob in row] for row in info.logprobs]
        return [*numbers, [info.acceptance_rate, info.optimal_acceptance_rate]]

    for ours, theirs in zip(run(on_device), run(on_cpu), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


def test_a_trace() -> None:
    def run(place: Place) -> list[dict[str, Any]]:
        records = list[dict[str, Any]]()
        generated(*pair(place), trace=records.append)
        return records

    ours, theirs = run(on_device), run(on_cpu)
    assert [record.get("path") for record in ours] == [record.get("path") for record in theirs]
    assert [r["last"]["of"] for r in ours[1:-1]] == pytest.approx([r["last"]["of"] for r in theirs[1:-1]], abs=1e-6)


def test_a_processor_and_a_criterion_get_tensors_of_the_targets_device() -> None:
    seen = set[torch.device]()

    def double(tokens: Tensor, scores: Tensor) -> Tensor:
        seen.update((tokens.device, scores.device))
        return 2 * scores

    def is_long(tokens: Tensor, scores: Any) -> Tensor:
        seen.add(tokens.device)
        return torch.full((len(tokens),), tokens.shape[1] > 9, device=tokens.device)

    def run(place: Place) -> list[list[int]]:
        seen.clear()
        return generated(*pair(place), logits_processor=[double], stopping_criteria=[is_long])

    ours = run(on_device)
    assert seen == {device()}
    assert ours == run(on_cpu)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_large_vocabulary(is_bound: bool) -> None:
    target, draft, tokenizer = load_pair()
    grammar = dict(grammar=md.Grammar(tokenizer, regex="[a-z ]+"), eos_token_id=[0], temperature=0)
    models = target.float(), draft.float()  # bfloat16 is rounded in other places
    assert_equal(lambda place: generated(*map(place, models), tree="2x2x1", **grammar if is_bound else dict(top_p=0.9)))


def test_a_model_that_gives_no_numbers_ends_its_row() -> None:
    broken = moved(tiny_model("llama"))
    broken.lm_head.weight.inner[5] = torch.nan
    with pytest.raises(RowFault, match="row 0, position 7: the target model gives token 5 the score nan"):
        generated(broken, on_device(tiny_model("qwen2")))
    broken_draft = moved(tiny_model("qwen2"))
    broken_draft.lm_head.weight.inner[5] = torch.nan
    with pytest.raises(RowFault, match="the draft model gives token 5 the score nan"):
        generated(on_device(tiny_model("llama")), broken_draft)


def request(prompt: list[int], new_tokens: int, seed: int) -> Request:
    """A request with its own numbers."""
    return Request(prompt, new_tokens, generator=torch.Generator().manual_seed(seed), num_logprobs=1)


WAY = DecodeConfig(md.scheme("anchored:lorenz"), measure=2), StaticTree(Tree.parse("2x1"))


@pytest.mark.parametrize("name", slow_but(["model"], ["model", "head eagle3", "look-up, then model"]))
def test_rows_join_and_leave_and_prefixes_are_kept(name: str) -> None:
    def run(place: Place) -> tuple[Any, ...]:
        batch = Batch(*readers(place(tiny_model("llama")), DRAFTERS[name](place)), *WAY, max_num_seqs=3, max_tokens=300)
        requests = [request([*range(1, 5 + n)], 6 + 3 * n, n) for n in range(4)] + [request([1, 2, 3, 4, 5, 6], 4, 9)]
        with torch.inference_mode():
            for new in requests:
                batch.add([new])
                batch.step(prompt_budget=5)
            while batch.requests:
                batch.step()
        return [row.tokens for row in requests], batch.reused_tokens > 0

    assert_equal(run)
    assert run(on_device)[1]


def test_padded_steps_in_fixed_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `compile=True` does around the compiler: pads, fills, runs; here the step runs as it is written."""
    calls = Counter[str]()

    def step_of(model: Any) -> fixed_steps.StepFunction:
        return lambda *inputs, layers: calls.update([model.device.type]) or fixed_steps.step(*inputs, layers=layers)

    for name, value in {
        "STEPS": WeakKeyDictionary(),
        "MIN_SLOTS": 16,
        "compile_step": step_of,
        "from_dlpack": alias,
    }.items():
        monkeypatch.setattr(fixed_steps, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it would warn where it went on without
        assert_equal(lambda place: generated(*pair(place), compile=True))
    assert calls["pretended"] > 0


def test_no_compiler_knows_the_pretended_device() -> None:
    """A compiler needs kernels for a device, and this one has none: the model runs without, and a warning says why."""
    with pytest.warns(UserWarning, match="does not compile, so it runs without: Unknown device type pretended"):
        ours = generated(*pair(moved), compile=True)
    assert ours == generated(*pair(on_cpu))


def test_the_engine_of_the_server() -> None:
    def run(place: Place) -> list[list[int]]:
        engine = Engine(*readers(*pair(place)), *WAY, Limits(rows=2, tokens_in_cache=200))
        engine.start()
        requests = [request([1 + n, 2, 3], 6, n) for n in range(4)]
        engine.submit(requests)
        engine.close(60)
        assert not engine.faults
        return [row.tokens for row in requests]

    assert_equal(run)


@pytest.mark.parametrize("vocabulary", [7, 600])
@pytest.mark.parametrize("name", FAST_SCHEMES)
def test_draws_and_rules(name: str, vocabulary: int) -> None:
    check_draws_and_rules(name, vocabulary, device())


@pytest.mark.parametrize("name", ["without_replacement:recursive_rejection", "iid:lorenz", "top:naive"])
def test_trees_of_other_engines(name: str) -> None:
    ours = verified(50, device=device())
    assert all(part.device == device() for part in ours[:3])
    assert all(a.cpu().equal(b) for a, b in zip(ours, verified(50), strict=True))
