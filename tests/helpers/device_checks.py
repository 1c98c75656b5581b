"""What must hold on every device, a GPU or a pretended one."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from multidraft_research.studies.acceptance import random_pairs

import multidraft as md
from multidraft.verification.registry import entries

FAST_SCHEMES = [
    name for name, entry in entries().items() if not entry.small and not md.scheme(name).law.per_draft_distributions
]


def check_draws_and_rules(name: str, vocabulary: int, device: torch.device) -> None:
    """A scheme draws on the device what it draws on the CPU, and its rule says the same of it."""
    pairs, scheme = random_pairs(3, vocabulary, 0), md.scheme(name)
    target, draft = pairs.target.double().softmax(-1), pairs.draft.double().softmax(-1)
    uniform = torch.rand(3, scheme.law.num_uniforms, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drafted, there = scheme.law.draw(draft, uniform), scheme.law.draw(draft.to(device), uniform.to(device))
    assert there.tolist() == drafted.tolist()
    ours, theirs = scheme.verify(target, draft, drafted), scheme.verify(target.to(device), draft.to(device), there)
    rounding = max(
        1e-12, 2e-15 * vocabulary
    )  # of float64 sums over the vocabulary, which add up in another order there
    for part in ("accept", "residual", "residual_mass"):
        torch.testing.assert_close(getattr(theirs, part).cpu(), getattr(ours, part), rtol=0, atol=rounding)


@contextmanager
def counted_gpu_waits() -> Iterator[Counter[str]]:
    """The waits of a block for a GPU, as PyTorch notes them: most, and none that is none."""
    counted = Counter[str]()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield counted
        finally:
            torch.cuda.set_sync_debug_mode("default")
    counted.update(str(note.message) for note in notes if "called a synchronizing" in str(note.message))
