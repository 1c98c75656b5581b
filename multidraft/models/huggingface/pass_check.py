"""Whether a model says the same of a token whatever is read beside it: a user's modules may look across a pass.

A hook that writes `hidden[:, -1]` writes every new token in plain decoding, and one node of a tree. A module that
scales by the largest number of a pass rounds a token by what is read beside it.
"""

import torch
from torch import nn

from multidraft.models.huggingface.model_reader import HuggingFaceReader
from multidraft.models.huggingface.weight_marks import GLOBAL_HOOKS, has_additions, library_of
from multidraft.models.reader import Reader, chain_parents

PROBE_TOKENS = 5
KNOWN_LIBRARIES = {"torch", "transformers", "peft"}  # whose modules treat each token alike
DEPENDENCE_NOTE = (
    "a module, hook or forward in the target treats tokens differently that are read in one pass (as one that writes "
    "the last position does), so no tree can be verified: decoding goes on without drafts"
)
TOLERANCE, ROUNDED_TOLERANCE = 1e-3, 0.1  # of logits, to the largest one: in float32, and in narrower numbers


def depends_on_pass(reader: Reader) -> bool:
    """Whether something that was put into a model makes logits of tokens read at once differ from those one by one."""
    if not isinstance(reader, HuggingFaceReader):
        return False
    if not any(GLOBAL_HOOKS) and not any(map(may_look_across, reader.model.modules())):
        return False
    together, one_by_one = reader.new(PROBE_TOKENS + 1), reader.new(PROBE_TOKENS + 1)
    tokens = [token % together.vocabulary for token in range(3, 3 + PROBE_TOKENS)]
    logits = together.forward([tokens], [chain_parents(PROBE_TOKENS)]).logits[0].float()
    tolerance = TOLERANCE if reader.dtype.itemsize > 2 else ROUNDED_TOLERANCE
    for token, line in zip(tokens, logits, strict=True):
        alone = one_by_one.forward([[token]], [[-1]]).logits[0, -1].float()
        one_by_one.commit([[0]])
        difference = torch.where(alone == line, 0, alone - line).abs().max()
        if not difference <= tolerance * line[line.isfinite()].abs().max():
            return True
    return False


def may_look_across(part: nn.Module) -> bool:
    """Whether a module, or what somebody has put into it, may treat tokens of a pass differently."""
    libraries = {library_of(type(part)), library_of(type(part).forward)}
    return not libraries <= KNOWN_LIBRARIES or has_additions(part)
