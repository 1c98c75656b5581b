"""Draws without waits: their laws, by counting tuples and whole trees."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from device_checks import counted_gpu_waits
from pretended import counted_waits, device
from scipy.stats import chi2
from test_verify_tree import DRAFT, TARGET, drawn
from torch import Tensor

import multidraft as md
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface.fixed_steps import capture_graph
from multidraft.tensor_trees.batched import verify_batched
from multidraft.tensor_trees.draws import DrawnTrees, FixedTree, draw_children
from multidraft.transfer import upload

PROBS = torch.tensor([0.5, 0.0, 0.3, 0.2])
TUPLES, FALSE_ALARM = 200_000, 1e-9
NAMES = {"without_replacement": "without_replacement:naive", "iid": "iid:naive"}


def is_far(drawn: Tensor, law: str) -> bool:
    """Whether pairs of tokens have another law, by chi-squared; false alarm at one fixed seed in 1e9."""
    tuples, chances = md.scheme(NAMES[law], drafts=2).tuples(PROBS.double())
    seen = torch.stack([(drawn == pair).all(-1).sum() for pair in tuples])
    expected = TUPLES * chances
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return int(seen.sum()) != TUPLES or statistic > chi2.ppf(1 - FALSE_ALARM, len(tuples) - 1)


def pairs(law: str, probs: Tensor = PROBS) -> Tensor:
    return draw_children(probs.expand(TUPLES, -1), 2, law, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("law", NAMES)
def test_their_law(law: str) -> None:
    assert not is_far(pairs(law), law)


def test_biased_ones_are_seen() -> None:
    """Of another law, in the other order, and from probabilities that are a little flatter."""
    flatter = PROBS ** (1 / 1.1)
    assert is_far(pairs("iid"), "without_replacement")
    assert is_far(pairs("without_replacement").flip(-1), "without_replacement")
    assert is_far(pairs("without_replacement", flatter / flatter.sum()), "without_replacement")


def test_positions_stay_empty_where_nothing_is_left() -> None:
    assert draw_children(PROBS, 5, "without_replacement")[3:].tolist() == [-1, -1]
    assert draw_children(PROBS, 5, "top").tolist() == [0, 2, 3, -1, -1]
    with pytest.raises(md.AdviceError, match="choose without_replacement"):
        draw_children(PROBS, 2, "distinct")


@pytest.mark.parametrize("law", [*NAMES, "top"])
def test_they_never_wait(law: str) -> None:
    probs = upload(PROBS.expand(3, 2, -1), device())
    with counted_waits() as waits:
        drawn = draw_children(probs, 2, law)
    assert not waits
    assert drawn.shape == (3, 2, 2)


@pytest.mark.parametrize("zero", range(4))
def test_noise_of_zero_draws_nothing_impossible(monkeypatch: pytest.MonkeyPatch, zero: int) -> None:
    """Its logarithm is infinite: without a bound, token 1 of probability 0 would be drawn, and first."""
    noise = torch.full((4,), 0.5, dtype=torch.float64)
    noise[zero] = 0.0
    monkeypatch.setattr(torch, "rand", lambda *_, **__: noise)
    assert sorted(draw_children(PROBS, 4, "without_replacement").tolist()) == [-1, 0, 2, 3]


VOCABULARY, NUM_TREES = 3, 300_000
SHAPES = ["2x1", "[[0],[1],[2],[0,0],[2,0],[0,0,0]]"]
SCHEMES = {"without_replacement": "without_replacement:recursive_rejection", "iid": "iid:recursive_rejection"}
SCHEMES["top"] = "top:naive"


def prefixes(tokens: Tensor, shape: Tree, slots: Sequence[int]) -> Tensor:
    """The tokens that lead to slots, as numbers."""
    numbers = []
    for slot in slots:
        number, weight = torch.zeros_like(tokens[:, 0]), 1
        while slot:
            number, weight, slot = number + weight * tokens[:, slot], weight * VOCABULARY, shape.parents[slot]
        numbers.append(number)
    return torch.stack(numbers, -1)


def prefix_table(law, depth: int) -> Tensor:
    """Distributions by the number of their prefix."""
    places = [()]
    for _ in range(depth):
        places = [(*place, token) for place in places for token in range(VOCABULARY)]
    return torch.stack([law(place) for place in places])


TABLES = {law: [prefix_table(law, depth) for depth in range(3)] for law in (DRAFT, TARGET)}


def trees_of(shape: str, law: str, rows: int, device: torch.device = PROBS.device, **settings: object) -> DrawnTrees:
    """Trees whose nodes draw from the table DRAFT."""
    return drawing(shape, law, rows, device, **settings)()


def drawing(
    shape: str, law: str, rows: int, device: torch.device = PROBS.device, **settings: object
) -> Callable[[], DrawnTrees]:
    """A function that draws them, and nothing else."""
    tree = Tree.parse(shape)
    fixed, depths = FixedTree(tree, device), tree.depths
    tables = [upload(table, device) for table in TABLES[DRAFT]]
    roots = upload(torch.zeros(rows, dtype=torch.int64), device)

    def distributions(tokens: Tensor, slots: Sequence[int]) -> Tensor:
        return tables[depths[slots[0]]][prefixes(tokens, tree, slots)]

    return lambda: fixed.draw(roots, distributions, law, **settings)


@cache
def some_trees(shape: str, law: str) -> DrawnTrees:
    """Many trees."""
    return trees_of(shape, law, NUM_TREES, generator=torch.Generator().manual_seed(2))


def is_other(trees: DrawnTrees, shape: str, law: str) -> bool:
    """Whether trees have another law than that of their enumeration, by chi-squared; false alarm at one seed in 1e9."""
    (tables, *_), chances = drawn(shape, md.scheme(SCHEMES[law]))
    powers = VOCABULARY ** torch.arange(tables[0].shape[1])
    names, order = (tables[0] * powers).sum(-1).sort()
    places = torch.searchsorted(names, (trees.candidates * powers).sum(-1)).clamp(max=len(names) - 1)
    expected = NUM_TREES * torch.tensor(chances, dtype=torch.float64)[order]
    if not names[places].equal((trees.candidates * powers).sum(-1)):
        return True
    seen = places.bincount(minlength=len(names))
    is_rare = expected < 10  # counted as one
    cells = [torch.cat([part[~is_rare], part[is_rare].sum()[None]]) for part in (seen, expected)]
    statistic = ((cells[0] - cells[1]) ** 2 / cells[1].clamp(min=1)).sum()
    return bool(statistic > chi2.ppf(1 - FALSE_ALARM, len(cells[0]) - 1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("law", NAMES)
def test_the_law_of_trees(law: str, shape: str) -> None:
    trees = some_trees(shape, law)
    assert not is_other(trees, shape, law)
    slots = [slot for slot, count in enumerate(Tree.parse(shape).drafts) if count]
    for slot in slots:  # the laws that are kept are those that were drawn from
        depth = Tree.parse(shape).depths[slot]
        numbers = prefixes(trees.candidates, Tree.parse(shape), [slot])[:, 0]
        assert trees.draft_probs[:, slot].equal(TABLES[DRAFT][depth][numbers])


@pytest.mark.usefixtures("unchecked")
def test_biased_trees_are_seen() -> None:
    assert is_other(some_trees(SHAPES[0], "iid"), SHAPES[0], "without_replacement")
    assert is_other(some_trees(SHAPES[0], "without_replacement"), SHAPES[0], "iid")
    trees, order = some_trees(SHAPES[0], "iid"), torch.tensor([0, 2, 1, 3, 4])  # siblings whose children stay
    assert is_other(trees._replace(candidates=trees.candidates[:, order]), SHAPES[0], "iid")


def first_token_is_off(trees: DrawnTrees, shape: str, law: str) -> bool:
    """Whether the first token that is emitted, accepted or not, has another law than the target's; 1 seed in 1e9."""
    tree, depths = Tree.parse(shape), range(len(Tree.parse(shape)))
    target = torch.stack(
        [TABLES[TARGET][min(tree.depths[s], 2)][prefixes(trees.candidates, tree, [s])[:, 0] % 9] for s in depths], 1
    )
    uniform = torch.rand(NUM_TREES, 1 + len(tree), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    settings = dict(scheme=md.scheme(SCHEMES[law]), walk="commit", siblings=FixedTree(tree, PROBS.device).siblings)
    predicts, *_ = verify_batched(*trees[:4], target, trees.draft_probs, uniform[:, 1:], uniform[:, 0], **settings)
    seen = predicts[trees.retrieve_index[:, 0]].bincount(minlength=VOCABULARY)
    expected = NUM_TREES * TARGET(()).double()
    return float(((seen - expected) ** 2 / expected).sum()) > chi2.ppf(1 - FALSE_ALARM, VOCABULARY - 1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("law", SCHEMES)
def test_what_is_drawn_and_verified_has_the_targets_law(law: str) -> None:
    trees = some_trees(SHAPES[0], law)
    assert not first_token_is_off(trees, SHAPES[0], law)
    if law != "top":  # which does not look at them
        assert first_token_is_off(trees._replace(draft_probs=trees.draft_probs.flip(-1)), SHAPES[0], law)


def test_no_link_leads_to_a_slot_that_stays_empty() -> None:
    sure = torch.tensor([0.0, 1.0, 0.0])
    tree = FixedTree(Tree.parse("2x1"), sure.device)
    trees = tree.draw(torch.zeros(2, dtype=torch.int64), lambda _, slots: sure.expand(2, len(slots), -1), "top")
    assert trees.candidates.tolist() == [[0, 1, 0, 1, 1]] * 2
    assert trees.retrieve_next_token.tolist() == [[1, 3, 4, -1, -1]] * 2  # nothing leads to slot 2, nor from it on
    assert trees.retrieve_next_sibling.tolist() == [[-1] * 5] * 2
    _, _, counts = md.verify_tree(*trees[:4], sure.expand(2, 5, -1), generator=torch.Generator())
    assert counts.tolist() == [2, 2]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("law", SCHEMES)
def test_whole_trees_never_wait(law: str) -> None:
    with counted_waits() as waits:
        trees = trees_of(SHAPES[1], law, 4, device())
    assert not waits
    assert all(part.device == device() for part in trees)


def check_graphs() -> None:
    """Compile the draws of whole trees, without breaks; top drafts are those of the eager ones."""
    for law in SCHEMES:
        torch._dynamo.reset()
        trees = torch.compile(drawing(SHAPES[1], law, 5), fullgraph=True, backend="eager")()
        assert law != "top" or all(a.equal(b) for a, b in zip(trees, trees_of(SHAPES[1], law, 5), strict=True))


@pytest.mark.slow
def test_whole_trees_are_one_graph() -> None:
    """In a process of its own: what checks hints here cannot be compiled."""
    code = "from test_draws import check_graphs; check_graphs(); print('whole')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr[-2000:]


GPU = torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("law", NAMES)
def test_the_law_of_trees_on_a_gpu(law: str, shape: str) -> None:
    trees = trees_of(shape, law, NUM_TREES, GPU, generator=torch.Generator(GPU).manual_seed(2))
    assert not is_other(DrawnTrees(*(part.cpu() for part in trees)), shape, law)


@pytest.mark.gpu
@pytest.mark.parametrize("law", SCHEMES)
def test_draws_and_verification_never_wait_for_a_gpu_and_fit_a_graph(law: str) -> None:
    draw, scheme = drawing(SHAPES[0], law, 5, GPU), md.scheme(SCHEMES[law])
    target, uniform = torch.full((5, 5, 3), 1 / 3, device=GPU), torch.rand(5, 6, dtype=torch.float64, device=GPU)

    def work() -> list[Tensor]:
        trees = draw()
        settings = dict(scheme=scheme, walk="commit", siblings=(2, 1))
        return [*verify_batched(*trees[:4], target, trees.draft_probs, uniform[:, 1:], uniform[:, 0], **settings)]

    work()
    with counted_gpu_waits() as waits:
        work()
    assert not waits
    replay = capture_graph(lambda: [torch.cat(work()[2:])], None)
    [tokens] = replay()
    assert ((tokens >= 0) & (tokens <= 2)).all()
