"""What a model that takes plain numbers is to read of one row's tree: tensors cost more here than they carry."""

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.rows import Row
from multidraft.models import Answering, Branches, LanguageModel
from multidraft.numerics.waiting import waits


def taking_numbers(model: LanguageModel | None, drafts: DraftTree) -> Answering | None:
    """The model, if it takes plain numbers and the tree has them."""
    fits = len(drafts.trees) == 1 and not (drafts.repeats or waits(drafts.tokens))
    return model if fits and isinstance(model, Answering) else None


def level(drafts: DraftTree, slots: list[int], depth: int, unread: list[int], position: int) -> Branches:
    """What the draft model reads of a level; with the root the chain above it. The slots count as read from now on."""
    read, above = drafts.read[0], len(unread)
    drafts.read = [read + slots]
    token = drafts.tokens[0].tolist()
    if depth == 0:
        positions = list(range(position - above, position + 1))
        return Branches([*unread, token[0]], positions, list(range(above + 1)), list(range(-1, above)))
    tokens, parents = [max(token[slot], 0) for slot in slots], drafts.trees[0].parents
    before = [above + read.index(parents[slot]) for slot in slots]
    return Branches(tokens, [position + depth] * len(slots), [above + depth] * len(slots), before)


def nodes(row: Row, position: int) -> Branches:
    """What the target reads: the nodes alone."""
    tokens, depths = [row.token[slot] for slot in row.slots], [row.tree.depths[slot] for slot in row.slots]
    before = [-1, *(row.place[row.tree.parents[slot]] for slot in row.slots[1:])]
    return Branches(tokens, [position + depth for depth in depths], depths, before)
