"""A model in this process as the reference."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from multidraft_judge.asking.dialects import judged_logprobs
from multidraft_judge.errors import AdviceError, optional, quote
from multidraft_judge.evidence.laws import Reported, Settings
from multidraft_judge.evidence.observation import BROKEN_CHARACTER, ID_PREFIX, Completion, Token
from multidraft_judge.references.reference import OTHER_TOKENS, Reference, Scores

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.models.user_models import Model
    from multidraft.sampling.settings import Sampling


LOG_ZERO = float("-inf")  # the logarithm
FLOAT32 = "float32"
FLOAT32_SHARE = 4.0  # SmolLM2 in bfloat16 is off from float32 by up to 0.28: ten times four times 0.01 lets it be


def check_dtype(dtype: str | None, model: str | None) -> None:
    """Raise unless it is none, or float32 for a model."""
    if dtype not in (None, FLOAT32):
        raise AdviceError(f"--reference-dtype is {quote(dtype)}; use {FLOAT32}, or leave it out to read it as stored")
    if dtype is not None and model is None:
        raise AdviceError("--reference-dtype is of a model that is loaded here; give --reference-model, too")


def load_reference(name: str, num_logprobs: int, dtype: str | None = None) -> "ModelReference":
    """A model by its name, as multidraft loads it; raises AdviceError where multidraft is missing, or refuses it.

    In float32 it is read by transformers on the CPU, a GGUF file, too.
    """
    optional("multidraft", "install its wheel, or `pip install .` in its checkout")
    from multidraft.cli.drafter_names import NONE
    from multidraft.cli.engines import DEFAULT_LOADER, TRANSFORMERS, Loader
    from multidraft.cli.pair import load
    from multidraft.errors import AdviceError as Refusal

    try:
        models = load(name, NONE, Loader(TRANSFORMERS) if dtype == FLOAT32 else DEFAULT_LOADER)
    except Refusal as error:
        raise AdviceError(str(error)) from error
    target: Any = models.target
    if dtype == FLOAT32:
        target = target.cpu().float()
    reference = ModelReference(target, models.tokenizer, top=judged_logprobs(num_logprobs))
    if str(getattr(target, "dtype", None)).endswith(FLOAT32):  # also where a processor does not multiply bfloat16
        reference.rounding_share = FLOAT32_SHARE
    return reference


class ModelReference(Reference):
    """A model in this process, whose listed law is the server's kind."""

    def __init__(
        self, model: "Model", tokenizer: "PreTrainedTokenizerBase", reported: Reported = "sampled", top: int = 10
    ):
        from multidraft.models.user_models import as_reader

        self.model, self.tokenizer, self.reported, self.top = as_reader(model), tokenizer, reported, top

    @cached_property
    def ids_by_text(self) -> dict[str, int | None]:
        """The number of each token by its text; None for texts that several tokens have."""
        numbers = dict[str, int | None]()
        for token in range(len(self.tokenizer)):
            text = self.text_of(token)
            numbers[text] = None if text in numbers else token
        return numbers

    def text_of(self, token: int) -> str:
        """The text of a token by itself."""
        return str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))

    def ids_of(self, completion: Completion) -> list[int] | None:
        """The numbers of a text's tokens; None if they are not known for sure."""
        tokens = completion.tokens
        ids = [self.ids_by_text.get(token.text, -1) if token.id is None else token.id for token in tokens]
        for token, number in zip(tokens, ids, strict=True):
            if number is not None and not 0 <= number < len(self.tokenizer):
                raise AdviceError(OTHER_TOKENS.format(f"it has no token {token.text!r}"))
        known = [number for number in ids if number is not None]
        return known if len(known) == len(ids) else None

    def prompt_of(self, completion: Completion) -> list[int]:
        """The numbers of the prompt's tokens, as the server reads it."""
        ids = completion.prompt_ids or list(self.tokenizer(completion.ask.prompt, verbose=False)["input_ids"])
        start = self.tokenizer.bos_token_id
        return ids or ([] if start is None else [start])

    def score(self, completions: Sequence[Completion], settings: Settings, width: int) -> Scores:
        """Score texts in batches; in wider ones also in pieces of `width` tokens, as decoding does."""
        texts = [self.ids_of(completion) for completion in completions]
        scores: Scores = [None if not ids else [] for ids in texts]
        known = [index for index, ids in enumerate(texts) if ids]
        for first in range(0, len(known), width):
            batch = known[first : first + width]
            prompts = [self.prompt_of(completions[index]) for index in batch]
            logits = self.logits(prompts, [texts[index] or [] for index in batch], width if width > 1 else None)
            for index, rows in zip(batch, logits, strict=True):
                scores[index] = self.scored(completions[index], texts[index] or [], rows, settings)
        return scores

    def logits(self, prompts: list[list[int]], texts: list[list[int]], piece: int | None) -> Iterator[Any]:
        """The logits at every token of each text."""
        import torch

        inputs = [prompt + text[:-1] for prompt, text in zip(prompts, texts, strict=True)]
        read, parts = self.model.new(max(map(len, inputs))), list[list[Any]]([] for _ in inputs)
        shortest, longest = min(map(len, prompts)), max(map(len, inputs))
        bounds = [0, *range(shortest, longest, piece or longest), longest]
        with torch.inference_mode():
            for start, end in pairwise(bounds):
                tokens = [row[start:end] for row in inputs]
                chains = [list(range(-1, len(row) - 1)) for row in tokens]
                logits = read.forward(tokens, chains).logits
                read.commit([list(range(len(row))) for row in tokens])
                for row, new, lines in zip(parts, tokens, logits, strict=True):
                    row.append(lines[: len(new)].float())
        for row, text in zip(parts, texts, strict=True):
            yield torch.cat(row)[-len(text) :]

    def scored(self, completion: Completion, ids: list[int], logits: Any, settings: Settings) -> list[Token]:
        """The tokens of a text with what the model says of them, in the law that the server lists."""
        import torch

        from multidraft.decoding.logprobs import top_logprobs
        from multidraft.sampling.from_logits import target_distributions

        prompt = self.prompt_of(completion)
        sampling = self.sampling(completion.ask.temperature, settings, len(prompt))
        prefixes = [torch.tensor(prompt + ids[:place]) for place in range(len(ids))] if sampling.looks_back else None
        logs = target_distributions(logits, sampling, prefixes)[0].log()
        has_numbers = all(token.text.startswith(ID_PREFIX) for token in completion.tokens)

        def name(token: int) -> str:
            text = self.text_of(token)
            return f"{ID_PREFIX}{token}" if has_numbers or BROKEN_CHARACTER in text else text

        return [
            Token(name(token), score.logprob, tuple((name(t), v) for t, v in score.top if v > LOG_ZERO), 0, token)
            for token, score in zip(ids, top_logprobs(logs, ids, self.top), strict=True)
        ]

    def sampling(self, temperature: float, settings: Settings, prompt_length: int) -> "Sampling":
        """What the listed law is made with; at temperature 0 servers list it at temperature 1, and cut nothing."""
        from multidraft.sampling.processors import CountPenalty, Processors
        from multidraft.sampling.settings import Sampling

        penalty = CountPenalty(settings.presence_penalty, settings.frequency_penalty, prompt_length)
        before = Processors([penalty]) if settings.penalties else None  # they need sampled laws (Settings.check)
        if temperature == 0 or self.reported == "raw":
            return Sampling(before=before)
        if self.reported == "temperature":
            return Sampling(temperature)
        top_p = settings.top_p if settings.top_p < 1 else None
        return Sampling(temperature, settings.top_k or None, top_p, before=before)
