"""Requests whose owners listen."""

import threading
from collections.abc import Callable

import torch

from multidraft.decoding.request import Request, Update

MAX_WAIT_SECONDS = 60


class Heard:
    """A request and all that its owner hears."""

    def __init__(self, prompt: list[int], new_tokens: int, seed: int = 0, **settings):
        self.events, self.over, self.seed = list[Update](), threading.Event(), seed
        self.after: dict[int, Callable[[], object]] = {}  # what to do after so many tokens
        self.request = Request(
            prompt, new_tokens, on_update=self.hear, generator=torch.Generator().manual_seed(seed), **settings
        )

    def hear(self, event: Update) -> None:
        self.events.append(event)
        if event.prompt_tokens_read is not None:
            return
        for count in [count for count in self.after if len(self.request.tokens) >= count]:
            self.after.pop(count)()
        if event.end or event.error:
            self.over.set()

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if event.step for token in event.step.emitted.tokens]

    def end(self) -> Update:
        assert self.over.wait(MAX_WAIT_SECONDS)
        return self.events[-1]
