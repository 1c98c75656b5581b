"""All of a head's training, in a folder: states that are captured once, a head, its checkpoints and its log."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.models.heads import Head
from multidraft.models.heads.configuration import usual_layers
from multidraft.models.heads.saving import save_head
from multidraft_research.training.heads import lesson, states
from multidraft_research.training.heads.lesson import Lesson, Plan
from multidraft_research.training.heads.states import Seen
from multidraft_research.training.small_draft import Vocabulary
from multidraft_research.training.teaching import Conversation
from multidraft_research.training.texts import frequent

HELD_OUT = 60  # conversations at each end of a file that are never taught, or a twelfth of few


class Course(NamedTuple):
    """What is taught, and what is held out to see what was learnt."""

    taught: list[Seen]
    held: list[Seen]


def capture(target: PreTrainedModel, tokenizer: Any, records: Sequence[dict[str, Any]], out: Path, most: int) -> Course:
    """The target's states at conversations, captured now or before; of what is taught at most so many tokens.

    Those where the target wrote the larger part come first, as the rest has to be read for little.
    """
    conversations = [states.conversation_of(record, number, tokenizer) for number, record in enumerate(records)]
    held = min(HELD_OUT, len(conversations) // 12)
    if not held:
        raise AdviceError(f"{len(conversations)} conversations are too few: some are held out; give 12 or more")
    layers = usual_layers(target.config.get_text_config(decoder=True).num_hidden_layers)
    parts = {"held": conversations[:held] + conversations[-held:], "taught": bounded(conversations[held:-held], most)}
    with tqdm(desc="states captured", unit=" tokens", total=sum(size(part) for part in parts.values())) as bar:
        for name, part in parts.items():
            for _, count in states.capture(target, part, layers, out, name):
                bar.update(count)
    return Course(states.load_all(out, "taught"), states.load_all(out, "held"))


def size(conversations: Sequence[Conversation]) -> int:
    """Tokens of texts."""
    return sum(len(conversation.tokens) for conversation in conversations)


def bounded(conversations: Sequence[Conversation], most: int) -> list[Conversation]:
    """Texts of so many tokens together."""
    order = sorted(
        conversations,
        key=lambda item: len(item.tokens) > 1.6 * (len(item.tokens) - item.first),
    )  # stable
    taken: list[Conversation] = []
    for item in order:
        most -= len(item.tokens)
        if most < 0:
            break
        taken.append(item)
    return taken


def vocabulary_of(taught: Sequence[Seen], size: int, of: int, kept: Path) -> Vocabulary:
    """The tokens that a head has, chosen once by how likely the target finds them."""
    if not kept.exists():
        files.write(kept, json.dumps(frequent([seen.text for seen in taught], min(size, of), of)).encode())
    return Vocabulary(json.loads(kept.read_text()), of)


class Target(NamedTuple):
    """A target, and the name that the head's files give it."""

    model: PreTrainedModel
    name: str


def teach(
    target: Target, course: Course, plan: Plan | str, taught: Lesson, out: Path, every: int,
    told: Callable[[dict[str, Any]], Any],
) -> Iterator[Head]:  # fmt: skip
    """Teach a head, or go on; every so many steps, and at the end, it is measured, told of, and written to out/head.

    A plan that is a name, such as `eagle3:FOLDER`, is of a head that was taught before.
    """
    if isinstance(plan, str):
        head, vocabulary = lesson.resumed(plan, target.model)
    else:
        of = target.model.config.get_text_config(decoder=True).vocab_size
        vocabulary = vocabulary_of(course.taught, plan.drafted, of, out / "target_ids.json")
        head = lesson.begun(plan, target.model, vocabulary, taught.seed)
    steps = lesson.train(head, course.taught, vocabulary, taught, out / "checkpoint.pt")
    with tqdm(desc=f"teaching {head.settings.kind}", total=taught.steps, unit=" steps") as bar:
        for step, tokens, loss in steps:
            bar.n = step
            bar.set_postfix(loss=f"{loss:.3f}")
            if step % every and step != taught.steps:
                continue
            rates = lesson.acceptance(head, course.held, vocabulary, taught.depth)
            line = {"step": step, "tokens": tokens, "loss": round(loss, 4)} | rates
            with (out / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            told(line)
            write(head, target, out / "head", taught.depth)
            yield head


def write(head: Head, target: Target, folder: Path, tokens: int) -> None:
    """The head in the target's dtype."""
    dtype = target.model.dtype
    names = target.model.config.architectures or [type(target.model).__name__]
    save_head(head, folder, target.name, names, tokens, dtype=dtype)
