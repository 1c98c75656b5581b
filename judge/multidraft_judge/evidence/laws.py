"""From the log-probabilities that a server lists to the law that its next token must have.

Servers list the logarithms of different laws: of the law that is sampled from ("sampled": ours, vLLM with
`--logprobs-mode processed_logprobs`), of the softmax with the temperature, before top-k and top-p ("temperature":
SGLang), or of the model's softmax ("raw": vLLM and llama.cpp as they are started by default).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from multidraft_judge.errors import AdviceError, quote

if TYPE_CHECKING:
    from jaxtyping import Float

Reported = Literal["sampled", "temperature", "raw"]
BOUNDARY_TOLERANCE = 1e-3  # where a cut falls so close to a boundary, rounding decides which tokens it keeps


def reported_law(name: str | None, called: str = "--reported") -> Reported | None:
    """The kind of listed law of this name, None for none; raises AdviceError for another name."""
    match name:
        case None | "sampled" | "temperature" | "raw":
            return name
    raise AdviceError(f"{called} is {quote(name)}; use one of sampled, temperature and raw")


@dataclass(frozen=True)
class Settings:
    """What was asked for, and the law that is listed."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 for all
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    reported: Reported = "sampled"

    @property
    def is_plain(self) -> bool:
        """Whether the model's softmax is sampled from, so that all kinds of listed laws are equal."""
        return self.temperature == 1 and not self.cuts and not self.penalties

    @property
    def penalties(self) -> dict[str, float]:
        """The penalties that are not zero, as fields of a request."""
        values = {"presence_penalty": self.presence_penalty, "frequency_penalty": self.frequency_penalty}
        return {name: value for name, value in values.items() if value}

    @property
    def cuts(self) -> bool:
        """Whether top-k or top-p drop tokens."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def only_listed(self) -> bool:
        """Whether the law is known among the listed tokens only, because a temperature changes the others' mass."""
        return self.reported == "raw" and self.temperature not in (0, 1)

    def check(self) -> None:
        """Raise where the listed law does not settle the sampled one."""
        if self.penalties and self.reported != "sampled":
            raise AdviceError(
                f"{self.reported} log-probabilities are listed before penalties; leave these out, or have the server "
                "list what it samples from (vLLM: --logprobs-mode processed_logprobs, and here --reported sampled)"
            )
        if self.only_listed and self.top_p < 1:
            raise AdviceError(
                "raw log-probabilities do not tell which tokens top-p keeps at another temperature than 1; judge at "
                "temperature 1, or have the server list what it samples from (vLLM: --logprobs-mode "
                "processed_logprobs, and here --reported sampled)"
            )


def law_of(top: Float[np.ndarray, " listed"], settings: Settings) -> Float[np.ndarray, " bins"] | None:
    """The law over the listed tokens and "another"; None where the listed tokens do not settle it.

    With `only_listed` it is the law of a token that is known to be a listed one.
    """
    if not len(top):
        return None
    if settings.reported == "raw" and settings.temperature > 0:
        top = top / settings.temperature
    probs = np.exp(top - (top.max() if settings.only_listed else 0.0))
    if settings.reported != "sampled" and settings.cuts:
        kept = kept_tokens(probs, settings)
        return None if kept is None else np.append(probs * (np.arange(len(probs)) < kept) / probs[:kept].sum(), 0.0)
    if settings.only_listed:
        return np.append(probs / probs.sum(), 0.0)
    total = probs.sum()
    return np.append(probs, 1 - total) if total <= 1 else np.append(probs / total, 0.0)


def kept_tokens(probs: Float[np.ndarray, " listed"], settings: Settings) -> int | None:
    """How many of the listed tokens top-k and then top-p keep; None if that hangs on rounding, or on others."""
    kept = len(probs)
    if 0 < settings.top_k < kept:
        kept = settings.top_k
        if probs[kept - 1] < probs[kept] * (1 + BOUNDARY_TOLERANCE):
            return None
    elif settings.top_k > kept:
        return None
    if settings.top_p >= 1:
        return kept
    sums = probs[:kept].cumsum() / (probs[:kept].sum() if settings.top_k else 1.0)
    crossing = int(np.searchsorted(sums, settings.top_p))
    if crossing >= kept or np.abs(sums - settings.top_p).min() < BOUNDARY_TOLERANCE:
        return None
    return crossing + 1
