"""Medusa (Cai et al., 2024): heads on the target's last state, each of which guesses a token further on by itself.

From the state at token i, with token i + 1 known, head h gives the law of token i + 2 + h, whatever stands between.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multidraft.models.heads.formats import Settings
from multidraft.models.heads.layers import Drafting


class Block(nn.Module):
    """A layer that adds to what it reads: `x + SiLU(W x + b)`."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, states: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        """Each state by itself."""
        return states + nn.functional.silu(self.linear(states))


class Medusa(nn.ModuleList, Drafting):
    """The heads, each a list of layers and an output; names of weights are `{head}.{layer}.linear.weight` and so on.

    `d2t` gives the target's tokens of a reduced output, as an offset.
    """

    def __init__(self, settings: Settings):
        width = settings.target_width
        super().__init__(
            nn.ModuleList(
                [*(Block(width) for _ in range(settings.depth)), nn.Linear(width, settings.drafted, bias=False)]
            )
            for _ in range(settings.heads)
        )
        self.settings = settings
        self.reduce(settings)

    def settle(self, device: torch.device) -> None:
        """Nothing is computed anew after loading."""

    def logits(self, states: Float[Tensor, "*shape width"], head: int) -> Float[Tensor, "*shape drafted"]:
        """What one head says, of the target's last states, normed."""
        for layer in self[head]:  # type: ignore[attr-defined]  # the output last
            states = layer(states)
        return states

    def forward(self, states: Float[Tensor, "*shape width"]) -> Float[Tensor, "heads *shape drafted"]:
        """What every head says."""
        return torch.stack([self.logits(states, head) for head in range(self.settings.heads)])
