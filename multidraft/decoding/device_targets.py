"""On a device: what a step needs to know of the target's distributions, copied to the CPU at once.

A walk asks for one node after another, and each question would be a wait. So all nodes are answered beforehand, also
those that no walk comes to.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.decoding.state import NodeGroup, RunningRow, groups_by_settings
from multidraft.decoding.targets import Ids, NodeResidual, NodeTarget, Targets
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import Residual
from multidraft.sampling.from_logits import pending_distributions
from multidraft.sampling.processors import process_lines
from multidraft.sampling.row_faults import RowFault
from multidraft.transfer import concatenate, download, upload
from multidraft.verification.distributions import pick_each
from multidraft.verification.precision import FACTOR_BELOW_ONE

MAX_SUMMED_LINES = 64  # at once: their sums in float64 take 78 MB for 151,936 tokens


class FetchedTarget(NodeTarget):
    """A distribution on a device, and what the CPU knows of it: enough for rules, and for most last tokens."""

    def __init__(
        self,
        line: Float[Tensor, " vocabulary"],
        ids: Ids,
        values: Float[np.ndarray, " support"],
        others: float,
        others_before: Float[np.ndarray, " support"],
        other_token: int,
    ):
        super().__init__(line, ids)
        self.values, self.others = values, others
        self.others_before = others_before  # the sums of the other tokens' probabilities up to each id
        self.other_token = other_token  # that the row's last number draws from the others alone

    def token(self, residual: Residual | None, number: float) -> int:
        """One of the ids, or one of the others if nothing else is left; -1 for another one of the others."""
        if not isinstance(residual, NodeResidual | None):  # a walk of somebody's own knows what is left
            return -1
        on_ids, share = (self.values, 1.0) if residual is None else (residual.on_ids, residual.share)
        order = np.argsort(self.ids)
        left = on_ids[order]
        sums = share * self.others_before[order] + left.cumsum()  # of the weights of all tokens up to each
        on_support, total = left.sum(), left.sum() + share * self.others
        if total <= 0 or on_support <= 0:
            return self.other_token if total > 0 else -1
        point = min(number, FACTOR_BELOW_ONE) * total
        place = int(np.searchsorted(sums, point, side="right"))
        is_drawn = place < len(sums) and left[place] > 0 and sums[place] - left[place] <= point
        return int(self.ids[order[place]]) if is_drawn else -1


class DeviceTargets(Targets):
    """Targets whose logits are on a device that is not the CPU."""

    def fetch(self, numbers: list[float]) -> None:
        """Note what the CPU needs of all nodes, in one copy.

        Lines that are no distribution, or that a processor fails on, stay to be asked for one by one, as do those of
        rows with filters of transformers' behind the cuts.
        """
        rows = [row for row, state in enumerate(self.rows) if row not in self.faults and state.sampling.after is None]
        places = [(row, node) for row in rows for node in range(len(self.trees[row]))]
        if not places:
            return
        groups = groups_by_settings(self.rows, self.trees, places)
        lines, is_settled = map(concatenate, zip(*map(self.pending, groups), strict=True))
        places = [place for group in groups for place in group.places]
        ids = [self.ids_at(place) for place in places]
        support = upload(np.concatenate([line * lines.shape[1] + part for line, part in enumerate(ids)]), lines.device)
        drawing = upload([numbers[row] for row, _ in places], lines.device, torch.float64)
        sums = sums_of_others(lines, support.split([*map(len, ids)]), drawing)
        copies = [copy.numpy() for copy in download(is_settled, lines.flatten()[support], *sums)]
        settled, on_support, at_support, totals, tokens = copies
        ends = np.cumsum([*map(len, ids)])[:-1]
        values, others_before = np.split(on_support.astype(np.float64), ends), np.split(at_support, ends)
        for line, place in enumerate(places):
            if settled[line]:
                known = values[line], float(totals[line]), others_before[line], int(tokens[line])
                self.known[place] = FetchedTarget(lines[line], ids[line], *known)

    def pending(self, group: NodeGroup) -> tuple[Float[Tensor, "places vocabulary"], Bool[Tensor, " places"]]:
        """The distributions at nodes of rows with the same settings, and which are settled."""
        logits, faults = process_lines(group.sampling.before, self.lines(group.places), group.prefixes)
        probs, is_settled = pending_distributions(logits, group.sampling)
        if faults:
            is_settled[upload([*faults], is_settled.device)] = False
        return probs, is_settled

    def pick(self, weights: list[Float[Tensor, " vocabulary"]], numbers: list[float]) -> list[int]:
        """The token that each number draws of its weights: all at once, which is one wait."""
        return pick_each(torch.stack([line.double() for line in weights]), numbers) if weights else []


def sums_of_others(
    probs: Float[Tensor, "places vocabulary"], supports: Sequence[Int[Tensor, " _"]], numbers: Float[Tensor, " places"]
) -> tuple[Float[Tensor, " values"], Float[Tensor, " places"], Int[Tensor, " places"]]:
    """Sums over the tokens that are not in a line's support, up to each that is; all of them; the one that is drawn.

    A support has places in all lines together. A few lines at a time, because sums are float64.
    """
    uniform, size = numbers.clamp(max=FACTOR_BELOW_ONE)[:, None], probs.shape[1]
    parts = list[tuple[Tensor, Tensor, Tensor]]()
    for first in range(0, len(probs), MAX_SUMMED_LINES):
        piece = probs[first : first + MAX_SUMMED_LINES]
        places = concatenate(supports[first : first + len(piece)])
        places = places - first * size if first else places
        sums = piece.flatten().index_fill(0, places, 0.0).reshape(-1, size).cumsum(-1, dtype=torch.float64)
        total = sums[:, -1:].clone(memory_format=torch.contiguous_format)  # a line alone would keep its stride
        drawn = torch.searchsorted(sums, uniform[first : first + len(sums)] * total, right=True)
        drawn = drawn.minimum(torch.searchsorted(sums, total))  # as `pick` does
        parts.append((sums.flatten()[places], total[:, 0], drawn[:, 0]))
    before, totals, tokens = map(concatenate, zip(*parts, strict=True))
    return before, totals, tokens


def targets_of(
    rows: list[RunningRow],
    trees: list[TokenTree],
    logits: Float[Tensor, "rows nodes vocabulary"] | None,
    faults: dict[int, RowFault],
) -> Targets:
    """The targets at the nodes of all trees, wherever the logits are."""
    given = [line for line in (logits, *(row.root_logits for row in rows)) if line is not None]
    kind = Targets if all(line.is_cpu for line in given) else DeviceTargets
    return kind(rows, trees, logits, faults)
