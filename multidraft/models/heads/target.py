"""What a head has to know of its target: its sizes, and the weights that heads without their own take over."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PretrainedConfig

from multidraft.errors import AdviceError
from multidraft.models.gguf.model import GGUF
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.from_gguf import shared_weights
from multidraft.models.huggingface.model_reader import HuggingFaceReader
from multidraft.models.reader import NO_HIDDEN_STATES
from multidraft.models.user_models import Model, as_reader


@dataclass(frozen=True)
class Target:
    """A model that gives hidden states; on a CPU its heads compute in float32, whatever it does."""

    config: PretrainedConfig
    embedding: Float[Tensor, "vocabulary width"] | None
    output: Float[Tensor, "vocabulary width"] | None
    dtype: torch.dtype
    device: torch.device

    @property
    def head_dtype(self) -> torch.dtype:
        """The dtype of a head's weights, but for the embedding, which they share."""
        return torch.float32 if self.device.type == "cpu" else self.dtype


def target_of(model: Model | Target) -> Target:
    """The parts of a target, or these themselves; raises AdviceError where it gives no hidden states."""
    if isinstance(model, Target):
        return model
    reader = as_reader(model)
    if isinstance(reader, GGUF):
        return Target(*shared_weights(reader.weights.path, torch.bfloat16), torch.bfloat16, torch.device("cpu"))
    if not isinstance(reader, HuggingFaceReader):
        raise AdviceError(NO_HIDDEN_STATES.format(f"of {type(reader).__name__}"))
    layers = reader.model.get_input_embeddings(), reader.model.get_output_embeddings()
    embedding, output = (getattr(layer, "weight", None) for layer in layers)
    return Target(compat.text_config(reader.model), embedding, output, reader.dtype, reader.device)
