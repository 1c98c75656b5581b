"""All of a head's training, in a folder: states that are captured once, a head, its checkpoints and its log."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.models.heads.configuration import usual_layers
from multidraft.models.heads.networks import AnyHead
from multidraft.models.heads.saving import save_head
from multidraft_research.training.conversations import MAX_TOKENS, TokenizedChat
from multidraft_research.training.heads import captured, train
from multidraft_research.training.heads.captured import CapturedText
from multidraft_research.training.heads.train import HeadPlan, HeadSettings
from multidraft_research.training.small_draft import TokenSet
from multidraft_research.training.texts import frequent

HELD_OUT = 60  # conversations at each end of a file that are never trained on, or a twelfth of few


class Split(NamedTuple):
    """Texts to train on, and texts that are held out for measurements."""

    training: list[CapturedText]
    held_out: list[CapturedText]


def capture(
    target: PreTrainedModel,
    tokenizer: Any,
    records: Sequence[dict[str, Any]],
    out: Path,
    max_tokens: int,
    report: Callable[[str], object] = lambda line: None,
) -> Split:
    """The target's states at conversations, captured now or before; at most so many tokens are trained on.

    Those where the target wrote the larger part come first, as the rest has to be read for little. `report` gets a line
    on how many there are. Raises AdviceError where too few can be trained on.
    """
    texts = [captured.conversation_of(record, number, tokenizer) for number, record in enumerate(records)]
    conversations = [text for text in texts if text.trained_places]
    held_out = min(HELD_OUT, len(conversations) // 12)
    if not held_out:
        raise AdviceError(too_few(len(conversations), len(texts)))
    layers = usual_layers(target.config.get_text_config(decoder=True).num_hidden_layers)
    training = limit_tokens(conversations[held_out:-held_out], max_tokens)
    parts = {"held": conversations[:held_out] + conversations[-held_out:], "training": training}
    if not training:
        raise AdviceError(f"no text has {max_tokens} tokens or fewer, and no more are to be read; give more --tokens")
    report(
        f"{len(training)} of {len(texts)} texts, {count_tokens(training):,} tokens, are trained on; {2 * held_out} are "
        f"held out, {len(texts) - len(conversations)} have no answer within {MAX_TOKENS} tokens"
    )
    with tqdm(desc="states captured", unit=" tokens", total=sum(count_tokens(part) for part in parts.values())) as bar:
        for name, part in parts.items():
            for _, count in captured.capture(target, part, layers, out, name):
                bar.update(count)
    return Split(captured.load_all(out, "training"), captured.load_all(out, "held"))


def too_few(usable: int, texts: int) -> str:
    """Why nothing can be trained."""
    why = f"of {texts} texts {usable} have a token to train on within their first {MAX_TOKENS}, which are read"
    return f"{f'{texts} conversations' if usable == texts else why}: too few, as some are held out; give 12 or more"


def count_tokens(conversations: Sequence[TokenizedChat]) -> int:
    """Tokens of texts."""
    return sum(len(conversation.tokens) for conversation in conversations)


def limit_tokens(conversations: Sequence[TokenizedChat], max_tokens: int) -> list[TokenizedChat]:
    """Texts of so many tokens together."""
    order = sorted(
        conversations,
        key=lambda item: len(item.tokens) > 1.6 * (len(item.tokens) - item.first),
    )  # stable
    taken: list[TokenizedChat] = []
    for item in order:
        max_tokens -= len(item.tokens)
        if max_tokens < 0:
            break
        taken.append(item)
    return taken


def choose_vocabulary(training: Sequence[CapturedText], size: int, of: int, kept: Path) -> TokenSet:
    """The tokens that a head has, chosen once by how likely the target finds them."""
    if not kept.exists():
        files.write(
            kept, json.dumps(frequent([captured_text.text for captured_text in training], min(size, of), of)).encode()
        )
    return TokenSet(json.loads(kept.read_text()), of)


class NamedTarget(NamedTuple):
    """A target, and the name that the head's files give it."""

    model: PreTrainedModel
    name: str


def train_head(
    target: NamedTarget, split: Split, plan: HeadPlan | tuple[AnyHead, TokenSet], settings: HeadSettings, out: Path,
    every: int, report: Callable[[dict[str, Any]], Any],
) -> Iterator[AnyHead]:  # fmt: skip
    """Train a head, or go on; every so many steps, and at the end, it is measured, reported, and written to out/head.

    In place of a plan, a head that was trained before and its tokens may stand.
    """
    if not isinstance(plan, HeadPlan):
        head, vocabulary = plan
    else:
        of = target.model.config.get_text_config(decoder=True).vocab_size
        vocabulary = choose_vocabulary(split.training, plan.drafted, of, out / "target_ids.json")
        head = train.new_head(plan, target.model, vocabulary, settings.seed)
    steps = train.train(head, split.training, vocabulary, settings, out / "checkpoint.pt")
    with tqdm(desc=f"training {head.settings.kind}", total=settings.steps, unit=" steps") as bar:
        for step, tokens, loss in steps:
            bar.n = step
            bar.set_postfix(loss=f"{loss:.3f}")
            if step % every and step != settings.steps:
                continue
            rates = train.acceptance(head, split.held_out, vocabulary, settings.depth)
            line = {"step": step, "tokens": tokens, "loss": round(loss, 4)} | rates
            write(head, target, out / "head", settings.depth)  # before the log says so: a kill may come between
            with (out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            report(line)
            yield head


def write(head: AnyHead, target: NamedTarget, folder: Path, tokens: int) -> None:
    """The head in the target's dtype."""
    dtype = target.model.dtype
    names = target.model.config.architectures or [type(target.model).__name__]
    save_head(head, folder, target.name, names, tokens, dtype=dtype)
