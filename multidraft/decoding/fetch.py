"""On a device: what a step needs to know of the target's distributions, copied to the CPU at once.

A walk asks for one node after another, and each question would be a wait. So all nodes are answered beforehand, also
those that no walk comes to. On a CPU there is nothing to wait for, and nothing is fetched.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.state import Scored
from multidraft.decoding.tree import NodeLaw, TargetOnSupport
from multidraft.sampling.from_logits import can_be_pending, pending_distributions
from multidraft.transfer import download, upload
from multidraft.verification.precision import FACTOR_BELOW_ONE

Places = list[tuple[int, int]]  # rows with nodes
MAX_SUMMED_LINES = 64  # at once: their sums in float64 take 78 MB for 151,936 tokens


def fetch(scored: Scored, numbers: list[float]) -> dict[tuple[int, int], int]:
    """Note the distributions at all nodes, and what the CPU needs of them; returns the bonus tokens of leaves.

    `numbers` are the uniform numbers that each row's last token is drawn with. Lines that are no distribution, and
    those of rows with processors, stay to be asked for one by one.
    """
    places = [] if scored.is_cpu else fetched_places(scored)
    if not places:
        return {}
    settings = [scored.rows[row].sampling for row, _ in places]
    probs, is_settled = pending_distributions(scored.lines(places), settings)
    laws = laws_by_line(scored, places)
    supports = [upload(line * probs.shape[1] + law.ids, probs.device) for line, law in laws.items()]
    values = probs.flatten()[torch.cat(supports)] if supports else probs.new_empty(0)
    sums = sums_of_others(probs, supports, [*laws], [numbers[row] for row, _ in places])
    settled, on_support, others, totals, tokens = (copy.numpy() for copy in download(is_settled, values, *sums))
    ends = np.cumsum([len(law.ids) for law in laws.values()])[:-1]
    parts = zip(np.split(on_support, ends), np.split(others, ends), strict=True)
    for (line, law), part in zip(laws.items(), parts, strict=False):
        law.target = TargetOnSupport(*part, float(totals[line]), int(tokens[line])) if settled[line] else None
    scored.known |= {place: probs[line] for line, place in enumerate(places) if settled[line]}
    return {place: int(tokens[line]) for line, place in enumerate(places) if settled[line] and line not in laws}


def fetched_places(scored: Scored) -> Places:
    """All nodes of rows without a fault, and without processors, which are called where a walk comes."""
    rows = [row for row, state in enumerate(scored.rows) if row not in scored.faults and can_be_pending(state.sampling)]
    return [(row, node) for row in rows for node in range(len(scored.trees[row]))]


def laws_by_line(scored: Scored, places: Places) -> dict[int, NodeLaw]:
    """What was drawn from at the places where anything was, by their number."""
    laws = [scored.trees[row].laws.get(node) for row, node in places]
    return {line: law for line, law in enumerate(laws) if law is not None}


def sums_of_others(
    probs: Float[Tensor, "places vocabulary"],
    supports: list[Int[Tensor, " _"]],
    lines: list[int],
    numbers: list[float],
) -> tuple[Float[Tensor, " values"], Float[Tensor, " places"], Int[Tensor, " places"]]:
    """Sums over the tokens that are not in a line's support, up to each that is; all of them; the one that is drawn.

    A few lines at a time, because sums are float64.
    """
    uniform, size = upload(numbers, probs.device, torch.float64).clamp(max=FACTOR_BELOW_ONE)[:, None], probs.shape[1]
    at_supports, totals, tokens = [probs.new_empty(0, dtype=torch.float64)], list[Tensor](), list[Tensor]()
    for first in range(0, len(probs), MAX_SUMMED_LINES):
        others = probs[first : first + MAX_SUMMED_LINES].clone()
        places = [s - first * size for s, line in zip(supports, lines, strict=True) if 0 <= line - first < len(others)]
        if places:
            others.view(-1).index_fill_(0, torch.cat(places), 0.0)
        sums = others.cumsum(-1, dtype=torch.float64)
        at_supports += [sums.view(-1)[torch.cat(places)]] if places else []
        total = sums[:, -1:].contiguous()
        drawn = torch.searchsorted(sums, uniform[first : first + len(sums)] * total, right=True)
        tokens.append(drawn.minimum(torch.searchsorted(sums, total))[:, 0])  # as `pick` does
        totals.append(total[:, 0])
    return torch.cat(at_supports), torch.cat(totals), torch.cat(tokens)
