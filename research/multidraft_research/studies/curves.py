"""The Lorenz rule on one recorded pair: the two curves that set the optimum, and the schedule that reaches it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.sampling.from_logits import distribution
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.precision import MIN_DRAFT_PROBABILITY
from multidraft.verification.rules.lorenz_schedule import Schedule, prepend_zero, schedule, shift_right
from multidraft_research.captures.recording import Recording
from multidraft_research.studies import pictures

LOW, HIGH = 0.6, 0.8  # neither curve is trivial where the optimum is in between


@dataclass(frozen=True)
class PositionCase:
    """A position of a recording, and the schedule of the rule there; tensors hold the tokens that can be drafted."""

    position: int
    drafts: int
    plan: Schedule

    @property
    def size(self) -> int:
        """K, the number of tokens that can be drafted."""
        return int((self.plan.draft > MIN_DRAFT_PROBABILITY).sum())

    @property
    def tokens(self) -> list[int]:
        """Their ids, largest p/q first."""
        return self.plan.order[: self.size].tolist()

    @property
    def target(self) -> Float[Tensor, " K"]:
        """p, in that order."""
        return self.plan.target[self.plan.order[: self.size]]

    @property
    def draft(self) -> Float[Tensor, " K"]:
        """q, in that order."""
        return self.plan.draft[self.plan.order[: self.size]]

    @property
    def ends(self) -> Float[Tensor, " K"]:
        """T_k, when each phase ends."""
        return self.plan.T[: self.size]

    @property
    def resets(self) -> list[int]:
        """The positions at which D_k reaches a new record low."""
        return (self.plan.drop[: self.size] > 0).nonzero()[:, 0].tolist()

    def some_draft_within(self, mass: Tensor) -> Tensor:
        """F(t), the probability that some draft falls into a set of draft mass t."""
        return 1 - (1 - mass) ** self.drafts

    def shares(self) -> Float[Tensor, "K K"]:
        """Which part of the machine each token has in each phase: in proportion to what is left of its time.

            u_i = q_i * (product of s over the phases from i to k - 1) / (Q_k - T_{k-1})    for i <= k

        A row sums to 1; `r = u.T @ (F(T_k) - F(T_{k-1}))` is what the rule accepts of each token.
        """
        phase, token = torch.tril_indices(self.size, self.size)
        left = self.draft.new_zeros(self.size, self.size)
        left[phase, token] = self.draft[token] * self.plan.between(token, phase)
        return left / (self.plan.Q[: self.size] - shift_right(self.ends))[:, None]


def telling_case(recording: Recording, drafts: int, top_k: int) -> PositionCase:
    """Of the positions whose optimum lies between LOW and HIGH, the one where resets lose most of the target.

    The draft is cut to its `top_k` likeliest tokens, the target stays whole. Raises AdviceError where none will do.
    """
    target, draft = distribution(recording.target.double()), distribution(recording.draft.double(), top_k=top_k)
    optimum = optimal_iid(target, draft, drafts)
    lost = (target * (draft > 0)).sum(-1) - optimum
    between = (optimum >= LOW) & (optimum <= HIGH)
    if not between.any():
        raise AdviceError(
            f"the optimum with {drafts} drafts lies between {LOW} and {HIGH} at none of {len(optimum)} positions; "
            "record more with --max-new-tokens, or change --drafts or --top-k"
        )
    position = int(torch.where(between, lost, -1.0).argmax())
    return PositionCase(position, drafts, schedule(target[position], draft[position], torch.tensor(drafts)))


def draw(case: PositionCase, names: list[str], path: Path) -> None:
    """Three panels: the two curves, their difference with its record lows, and the schedule."""
    drawn, axes = pictures.figure(columns=3, width=4.6, height=3.9)
    draw_curves(case, axes[0, 0])
    draw_difference(case, axes[0, 1])
    draw_schedule(case, names, axes[0, 2])
    drawn.supxlabel(f"no bars: exact, at position {case.position} alone", fontsize="small")
    pictures.save(drawn, path)


def draw_curves(case: PositionCase, axis: Any) -> None:
    """The Lorenz curve of the pair and F, with the distance that costs acceptance."""
    mass, work = prepend_zero(case.plan.Q[: case.size]), prepend_zero(case.target.cumsum(0))
    grid = torch.linspace(0, 1, 201, dtype=torch.float64)
    axis.plot(mass, work, marker="o", markersize=3, label="Lorenz curve $(Q_k, P_k)$")
    axis.plot(grid, case.some_draft_within(grid), label=f"$F(t) = 1 - (1 - t)^{case.drafts}$")
    axis.axhline(float(work[-1]), color=pictures.COLOURS[5], linestyle=":", linewidth=1)
    axis.annotate("$P_K$", (1, float(work[-1])), ha="right", va="bottom")
    for k in case.resets:
        t, low, high = (float(x[k]) for x in (case.plan.Q, case.some_draft_within(case.plan.Q), work[1:]))
        axis.vlines(t, low, high, color=pictures.COLOURS[3])
        axis.annotate(f"reset, $k = {k + 1}$", (t, high), (8, -9), textcoords="offset points")
    axis.set(xlabel="draft mass $Q$", ylabel="target mass $P$", title="two curves", xlim=(0, 1.01), ylim=(0, 1.02))
    axis.legend(loc="lower right", frameon=False)


def draw_difference(case: PositionCase, axis: Any) -> None:
    """D_k and its record lows; the last of them is what is lost."""
    mass = case.plan.Q[: case.size]
    D = case.some_draft_within(mass) - case.target.cumsum(0)
    M = D.cummin(0).values.clamp(max=0)
    axis.plot(prepend_zero(mass), prepend_zero(D), marker="o", markersize=3, label="$D_k = F(Q_k) - P_k$")
    axis.step(prepend_zero(mass), prepend_zero(M), where="post", label="$M_k = \\min(0, D_1, .., D_k)$")
    axis.plot(mass[case.resets], D[case.resets], "o", color=pictures.COLOURS[3], label="resets")
    axis.axhline(0, color=pictures.COLOURS[5], linewidth=0.8)
    title = f"$\\alpha^* = P_K + M_K = {case.target.sum():.3f} - {abs(float(M[-1])):.3f} = {case.plan.optimum:.3f}$"
    axis.set(xlabel="draft mass $Q$", title=title, xlim=(0, 1.01))
    axis.legend(loc="best", frameon=False)


def draw_schedule(case: PositionCase, names: list[str], axis: Any) -> None:
    """Who has the machine when: a phase is a column, a token a colour, its share a height; its area is at most q."""
    from matplotlib import colormaps

    begins, shares = shift_right(case.ends), case.shares()
    bottom = torch.zeros(case.size, dtype=torch.float64)
    for i, name in enumerate(names):
        colour = colormaps["viridis"](i / max(case.size - 1, 1))
        label = f"{name}  {case.target[i] / case.draft[i]:.2g}"
        box = dict(align="edge", color=colour, edgecolor="white", linewidth=0.3)
        axis.bar(begins, shares[:, i], case.ends - begins, bottom, label=label, **box)
        bottom += shares[:, i]
    for k in case.resets:
        axis.axvline(float(case.ends[k]), color=pictures.COLOURS[3], linewidth=2)
    axis.grid(False)
    axis.set(xlabel="time $t$", ylabel="share of the machine $u_i(t)$", title="the schedule", ylim=(0, 1))
    axis.set_xlim(0, float(case.ends[-1]))
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, title="token  $p/q$"
    )
