"""A server that is asked for streams, whose tokens are counted in the way that it allows."""

from collections.abc import Callable
from contextlib import closing

from multidraft_judge.asking.client import Client
from multidraft_judge.errors import AdviceError
from multidraft_judge.measuring.chunks import Answer, Way, answer_of, ways_of


class Server:
    """A server that is asked for streams; its first answer warms it up and shows how its tokens can be counted."""

    def __init__(self, client: Client, max_tokens: int, clock: Callable[[], float]):
        self.client, self.max_tokens, self.clock = client, max_tokens, clock
        self.way: Way | None = None

    def answer(self, prompt: str, temperature: float) -> tuple[Answer, str]:
        """An answer, and the way in which its tokens were counted."""
        if self.way is None:
            self.way = self.find_way(prompt)
        answer = self.ask(prompt, temperature, self.way)
        if answer is None:
            raise AdviceError(f"{self.client.url} has stopped saying how many tokens a chunk has; ask it again")
        return answer, self.way.name

    def find_way(self, prompt: str) -> Way:
        """The first way that counts the tokens of an answer."""
        ways = ways_of(self.client.dialect.name)
        for way in ways:
            try:
                if self.ask(prompt, 0.0, way) is not None:
                    return way
            except AdviceError:  # some servers refuse fields that they do not know
                if way is ways[-1]:
                    raise
        raise AdviceError(
            f"{self.client.url} does not say how many tokens a chunk has, neither by usage nor by log-probabilities; "
            "measure another server"
        )

    def ask(self, prompt: str, temperature: float, way: Way) -> Answer | None:
        """One streamed answer, which may end by itself; None if the way cannot count its tokens."""
        fields = {name: value for name, value in self.client.dialect.fields.items() if name != "ignore_eos"}
        body = {"model": self.client.model, "prompt": prompt, "max_tokens": self.max_tokens}
        body |= fields | {"temperature": temperature} | way.fields
        with closing(self.client.events(body)) as events:  # type: ignore[type-var]
            return answer_of(((self.clock(), event) for event in events), way)
