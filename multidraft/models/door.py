"""The door: what a user may pass as a model, and the reader of it. Behind it there are readers only."""

from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.compiled import can_compile
from multidraft.models.huggingface.gated_delta import nets_of
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.huggingface.paths import Paths
from multidraft.models.reader import Reader

Model = PreTrainedModel | Reader


def as_reader(model: Model, compiled: bool = False) -> Reader:
    """A reader of the model, whose `new` makes those that read; its steps are `compiled` where that can be done."""
    if isinstance(model, Reader):
        return model
    if not isinstance(model, PreTrainedModel):
        raise AdviceError(f"{type(model).__name__} is no model; pass a loaded Hugging Face model, or a Reader")
    if not compat.needs_paths(model) or nets_of(model):
        return CausalLM(model, compiled=compiled)
    if compiled:
        can_compile(model)  # which warns
    return Paths(model)
