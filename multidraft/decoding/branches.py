"""What a model that takes plain numbers is to read of one row's tree: tensors cost more here than they carry."""

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.rows import Row
from multidraft.decoding.state import Plan, State
from multidraft.decoding.tree import Tree
from multidraft.machine.device import is_far, waits
from multidraft.models import Answering, Branches, LanguageModel
from multidraft.verification.laws.anchored import Anchored


def taking_numbers(model: LanguageModel | None, drafts: DraftTree) -> Answering | None:
    """The model, if it takes plain numbers and the tree has them."""
    fits = len(drafts.trees) == 1 and not (drafts.repeats or waits(drafts.tokens))
    return model if fits and isinstance(model, Answering) else None


def takes_numbers(state: State, plan: Plan) -> bool:
    """Whether all that is drafted is a known tree of one row, at a temperature, by a model that takes plain numbers."""
    own, shape = state.sampling[0].for_draft or state.sampling[0], plan.shape
    one = len(state.roots) == 1 and isinstance(state.draft, Answering) and not is_far(state.target.device)
    drawn = shape.is_known and shape.most_drafts > 0 and type(plan.scheme.law) is Anchored
    return one and drawn and own.is_temperature


def level(tree: Tree, tokens: list[int], read: list[int], slots: list[int], state: State) -> Branches:
    """What the draft model reads of a level, beside what it has `read`; with the root the chain above it."""
    unread, position = state.unread[0], state.positions[0]
    depth, above = tree.depths[slots[0]], len(unread)
    if depth == 0:
        positions = list(range(position - above, position + 1))
        return Branches([*unread, tokens[0]], positions, list(range(above + 1)), list(range(-1, above)))
    before = [above + read.index(tree.parents[slot]) for slot in slots]
    new = [max(tokens[slot], 0) for slot in slots]
    return Branches(new, [position + depth] * len(slots), [above + depth] * len(slots), before)


def nodes(row: Row, position: int) -> Branches:
    """What the target reads: the nodes alone."""
    tokens, depths = [row.token[slot] for slot in row.slots], [row.tree.depths[slot] for slot in row.slots]
    before = [-1, *(row.place[row.tree.parents[slot]] for slot in row.slots[1:])]
    return Branches(tokens, [position + depth for depth in depths], depths, before)
