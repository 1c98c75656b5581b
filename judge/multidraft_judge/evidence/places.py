"""A token that should not be where it is, with the text around it."""

from dataclasses import dataclass

from multidraft_judge.evidence.observation import Completion

CONTEXT_CHARACTERS = 40  # that are shown before and after a place


@dataclass(frozen=True)
class Place:
    """A token that is not the likeliest where it should be, or whose log-probability differs from the reference's."""

    ask: int
    prompt: str  # its end
    position: int  # of the token in the answer
    before: str
    token: str
    after: str
    value: float  # the token's log-probability as the server says
    expected: float  # that of the likeliest token, or of this token at the reference

    @classmethod
    def of(cls, completion: Completion, position: int, value: float, expected: float) -> "Place":
        """The place of a token with the text around it."""
        texts = [token.text for token in completion.tokens]
        before, after = "".join(texts[:position]), "".join(texts[position + 1 :])
        around = before[-CONTEXT_CHARACTERS:], texts[position], after[:CONTEXT_CHARACTERS]
        return cls(
            completion.ask.index, completion.ask.prompt[-CONTEXT_CHARACTERS:], position, *around, value, expected
        )

    def __str__(self) -> str:
        where = f"request {self.ask}, token {self.position}: {self.before!r} > {self.token!r} < {self.after!r}"
        return f"{where}: log-probability {self.value:.4f}, expected {self.expected:.4f}"
