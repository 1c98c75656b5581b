"""Which layers a head hears: one layer off, and a trained head's acceptance falls. Random weights cannot tell."""

import pytest
import torch

from multidraft.cli.models import Loader, load
from multidraft.models.heads.modules import Grown
from multidraft.zoo import smollm2

ANSWERS = [  # that SmolLM2-135M-Instruct wrote at T = 0.7
    "Gravity is a fundamental concept in physics that describes the curvature of spacetime caused by the presence of "
    "matter and energy. It's a mysterious and counterintuitive phenomenon that arises from the Einstein theory of "
    "general relativity. At its core, gravity is the natural tendency of matter to curve spacetime around itself, "
    "which has been confirmed by numerous experiments across the universe.\n\nThe more we know about gravity, the "
    "more we realize that it's a fundamental aspect of the universe that cannot be fully understood by classical "
    "physics alone. This realization has led to significant advances in fields",
    "1. **Read the recipe carefully before preparing**: This is one of the most essential tips to create a memorable "
    "cooking journey.\n2. **Slow-cooker magic**: Consider using a slow-cooker, which allows for perfect slow-cooker "
    "magic.\n3. **Use only high-quality ingredients and spices**: It's amazing how much of the best ingredients can "
    "become just a few of the bad ones.\n\nBy following these tips, you can learn to cook from the best",
    "Hamlet, a masterful blend of classic literature, religion, and social commentary, is said to have been written "
    "by the renowned English playwright and poet, William Shakespeare. The play, written in 1603, is considered a "
    "seminal work of tragedy, blending elements such as the chorus as a chorus with the use of Elizabethan language "
    "in the play and the use of the double act in the final act. The play has been interpreted and reimagined many "
    "times throughout history, but it is arguably the most famous example of Shakespeare's use of multiple",
]


@pytest.mark.skipif(not smollm2.is_installed(), reason=f"the target is not installed: {smollm2.INSTALL}")
@torch.no_grad()
def test_a_layer_off_is_seen_in_acceptance() -> None:
    """Acceptance of one draft at T = 1, exact at all places: 0.278, and 0.264 or 0.261 one layer off."""
    pair = load("smollm2", "eagle3:smollm2", Loader("transformers"))
    rates: dict[int, list[torch.Tensor]] = {0: [], -1: [], 1: []}
    for answer in ANSWERS:
        tokens = torch.tensor(pair.tokenizer(answer)["input_ids"])
        said = pair.target(input_ids=tokens[None], output_hidden_states=True)
        laws = said.logits[:, 1:].float().softmax(-1)[..., pair.draft.module.ids]
        for off, found in rates.items():
            states = [said.hidden_states[layer + off][:, :-1] for layer in pair.draft.hears]
            found.append(acceptance(pair.draft.module, tokens[None, 1:], torch.cat(states, -1), laws))
    right, lower, higher = (float(torch.cat(found).mean()) for found in rates.values())
    assert right > max(lower, higher) + 0.005, (right, lower, higher)


def acceptance(head, tokens: torch.Tensor, features: torch.Tensor, laws: torch.Tensor) -> torch.Tensor:
    """The sum of min(p, q) at each place, where the head is given these states."""
    places = torch.arange(tokens.shape[1])
    mask = (places[:, None] >= places)[None, None]
    logits = head.logits(head(tokens, head.fuse(features), places[None], mask, Grown()))
    return torch.minimum(laws, logits.float().softmax(-1)).sum(-1).flatten()
