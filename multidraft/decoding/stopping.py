"""When a row has ended: where plain decoding would have stopped, wherever in a step that falls."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria, StopStringCriteria
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from multidraft.decoding.record import Emitted
from multidraft.errors import AdviceError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stopping:
    """Limits for each row, end-of-text tokens, criteria that look at the sequence, and a time after which all stop."""

    budgets: list[int]  # new tokens by row
    ends: set[int]
    criteria: Sequence[StoppingCriteria] = ()
    prompts: Sequence[Sequence[int]] = ()  # what the criteria see before the new tokens
    deadline: float = float("inf")
    device: torch.device = CPU  # where the criteria expect the sequence

    def cut(self, row: int, done: list[int], new: Emitted) -> tuple[Emitted, bool]:
        """The emitted tokens up to the first that ends the row, and whether it goes on."""
        room = self.budgets[row] - len(done)
        for count, token in enumerate(new.tokens[:room], 1):
            if token in self.ends or (self.criteria and self.met(row, done + new.tokens[:count])):
                return new.first(count), False
        return new if len(new.tokens) <= room else new.first(room), len(new.tokens) < room

    def met(self, row: int, tokens: list[int]) -> bool:
        """Whether a criterion holds after these new tokens."""
        sequence = torch.tensor([[*self.prompts[row], *tokens]], device=self.device)
        return any(bool(torch.as_tensor(criterion(sequence, None)).any()) for criterion in self.criteria)

    def time_is_up(self) -> bool:
        """Whether the pass that has just ended was the last; its tokens are kept."""
        return time.time() > self.deadline


def stop_strings(strings: str | Sequence[str] | None, tokenizer: PreTrainedTokenizerBase | None) -> list:
    """The criterion for stop strings, if there are any."""
    if not strings:
        return []
    if tokenizer is None:
        raise AdviceError(
            "stop strings need the tokenizer; pass it as stop_tokenizer (model.generate keeps `tokenizer` to itself)"
        )
    return [StopStringCriteria(tokenizer, strings if isinstance(strings, str) else list(strings))]


def from_criteria(
    criteria: Sequence[StoppingCriteria], prompts: list[list[int]], budgets: list[int], device: torch.device
) -> Stopping:
    """The same from a list that `generate` prepared for prompts of these (padded) tokens."""
    ends, others, deadline = set[int](), [], float("inf")
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            budgets = [min(b, criterion.max_length - len(p)) for b, p in zip(budgets, prompts, strict=True)]
        elif type(criterion) is EosTokenCriteria:
            ends |= set(criterion.eos_token_id.tolist())
        elif type(criterion) is MaxTimeCriteria:
            deadline = min(deadline, criterion.initial_timestamp + criterion.max_time)
        else:
            others.append(criterion)
    return Stopping(budgets, ends, others, prompts, deadline, device)
