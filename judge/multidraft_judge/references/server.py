"""Another server as the reference: it scores a text by `echo`, or by vLLM's `prompt_logprobs`."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from multidraft_judge.asking.client import Client, sampling_fields
from multidraft_judge.asking.dialects import Entry, entries_of
from multidraft_judge.errors import AdviceError, quote
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import ID_PREFIX, Completion, Token
from multidraft_judge.references.reference import OTHER_TOKENS, Reference, Scores

CHECKED_PROMPTS = 4  # to see whether a reference has the same tokenizer


class ServerReference(Reference):
    """Another server, which scores a text by `echo` or by `prompt_logprobs`.

    It may score a text alike each time, where steps with drafts round otherwise: so the stated rounding counts, too.
    """

    rounding_share = 1.0

    def __init__(self, client: Client):
        self.client, self.reported = client, client.dialect.reported
        if client.dialect.scores_by is None:
            raise AdviceError(
                f"{client.url} ({client.dialect.name}) does not score texts; give another --reference, or the model "
                "itself as --reference-model"
            )

    def score(self, completions: Sequence[Completion], settings: Settings, width: int) -> Scores:
        """Ask for the scores of all texts."""
        with ThreadPoolExecutor(width) as pool:
            return list(pool.map(lambda completion: self.score_text(completion, settings), completions))

    def check_prompts(self, subject: Client, prompts: Sequence[str]) -> None:
        """Raise where subject and reference read some prompt as other tokens; answers are no test of that."""
        for prompt in prompts[:CHECKED_PROMPTS]:
            ids, texts = prompt_tokens(self.client, prompt)
            try:
                their_ids, their_texts = prompt_tokens(subject, prompt)
            except AdviceError:  # it need not score prompts
                return
            is_cut_otherwise = texts != their_texts and "".join(texts) == "".join(their_texts)  # else names differ
            if (ids != their_ids) if ids and their_ids else is_cut_otherwise:
                raise AdviceError(OTHER_TOKENS.format(f"they read the prompt {quote(prompt)} as other tokens"))

    def score_text(self, completion: Completion, settings: Settings) -> list[Token] | None:
        """One text's tokens at the reference; None if it reads other tokens."""
        if not completion.tokens:
            return None
        scored = self.by_numbers if self.client.dialect.scores_by == "prompt_logprobs" else self.by_echo
        entries = scored(completion, sampling_fields(settings, completion.ask.temperature))
        if len(entries) != len(completion.tokens):
            return None
        is_text = numbers_of(completion) is None  # which may be read as other tokens than came
        if is_text and [entry.text for entry in entries] != [token.text for token in completion.tokens]:
            return None
        return [entry.token(self.client.num_logprobs) for entry in entries]

    def by_echo(self, completion: Completion, fields: dict[str, Any]) -> list[Entry]:
        """The tokens before the one that is generated."""
        prompt = numbers_of(completion) or completion.ask.prompt + completion.text
        choice = self.ask(fields | {"prompt": prompt, "echo": True})
        return list(entries_of(choice))[-len(completion.tokens) - 1 : -1]

    def by_numbers(self, completion: Completion, fields: dict[str, Any]) -> list[Entry]:
        """The end of the prompt, as vLLM scores it: numbers of tokens with their log-probabilities."""
        numbers = numbers_of(completion)
        if numbers is None:
            raise AdviceError(
                f"{self.client.url} scores tokens by number, and the server that is judged does not say the numbers "
                "of its tokens; use --reference-model"
            )
        choice = self.ask(fields | {"prompt": numbers, "prompt_logprobs": self.client.num_logprobs})
        count = len(completion.tokens)
        listed = (choice.get("prompt_logprobs") or [])[-count:]
        return [prompt_entry(place or {}, token) for place, token in zip(listed, numbers[-count:], strict=False)]

    def ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The only choice of an answer of one token."""
        body = {"model": self.client.model, "max_tokens": 1, "logprobs": self.client.num_logprobs} | fields
        return next(iter(self.client.post(body).get("choices") or []), {})


def prompt_tokens(client: Client, prompt: str) -> tuple[list[int], list[str]]:
    """The numbers and the texts of a prompt's tokens, as a server reads it; empty where it does not say."""
    can_echo = client.dialect.scores_by == "echo"
    fields = client.dialect.fields | {"prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    body = {"model": client.model, "logprobs": client.num_logprobs} | fields | ({"echo": True} if can_echo else {})
    choice: dict[str, Any] = next(iter(client.post(body).get("choices") or []), {})
    texts = [entry.text for entry in entries_of(choice)][:-1] if can_echo else []
    return choice.get("prompt_token_ids") or [], texts


def numbers_of(completion: Completion) -> list[int] | None:
    """The numbers of all tokens, with the prompt's; None where the server does not say them."""
    numbers = [token.id for token in completion.tokens]
    known = [number for number in numbers if number is not None]
    return None if completion.prompt_ids is None or len(known) < len(numbers) else [*completion.prompt_ids, *known]


def prompt_entry(listed: dict[str, Any], token: int) -> Entry:
    """A token of a prompt as vLLM scores it."""
    values = {f"{ID_PREFIX}{other}": float(item["logprob"]) for other, item in listed.items()}
    return Entry(f"{ID_PREFIX}{token}", values.get(f"{ID_PREFIX}{token}"), values, token)
