"""What a user may pass as a model, and the reader of it. Behind this file there are readers only."""

from typing import Any

from transformers import PreTrainedModel as HuggingFaceModel

from multidraft.errors import AdviceError, quote
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.fixed_steps import can_compile
from multidraft.models.huggingface.gated_delta import nets_of
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.huggingface.paths import Paths
from multidraft.models.reader import Reader

Model = HuggingFaceModel | Reader


def as_model(model: Any, name: str) -> Any:
    """The model, out of PEFT's wrapper if it has one: adapters are in the layers. Raises where it cannot be read."""
    if not isinstance(model, HuggingFaceModel | type) and hasattr(model, "peft_config"):
        configs = model.peft_config.values()
        if any(getattr(config, "alora_invocation_tokens", None) for config in configs):
            raise AdviceError(
                f"the {name} model has an adapter that begins where its invocation tokens stand (aLoRA), and trees are "
                "read without; use one that changes every token, such as LoRA"
            )
        if any(getattr(config, "is_prompt_learning", False) for config in configs):
            raise AdviceError(
                f"the {name} model has an adapter that puts tokens of its own before every text, and trees are read "
                "without; use one that changes layers, such as LoRA"
            )
        model = model.get_base_model()
    check_model(model, name)
    return model


def check_model(model: Any, name: str) -> None:
    """Raise unless it is a model that the loop can read with, on a device that has float64."""
    if isinstance(getattr(model, "_orig_mod", None), HuggingFaceModel):
        raise AdviceError(f"the {name} model is compiled; pass the model itself, with compile=True")
    if isinstance(model, type) or not isinstance(model, HuggingFaceModel | Reader):
        raise AdviceError(
            f"the {name} model is {quote(model) if isinstance(model, str) else type(model).__name__}; pass a loaded "
            "model, as AutoModelForCausalLM.from_pretrained(...).eval() returns it, or a Reader of your own"
        )
    if isinstance(model, HuggingFaceModel) and compat.drops_values(model):
        raise AdviceError(
            f"the {name} model, or a part of it, is in training mode, which may drop values at random; call "
            "model.eval()"
        )
    device = model.device if isinstance(model, Reader) else compat.home(model)
    if (kind := device.type) == "mps":
        raise AdviceError(f"the {name} model is on MPS, which has no float64; move both models with model.to('cpu')")
    if kind == "meta":
        raise AdviceError(f"the {name} model has no weights (device meta); load them with from_pretrained")


def as_reader(model: Model, compiled: bool = False) -> Reader:
    """A reader of the model, whose `new` makes those that read; its steps are `compiled` where that can be done."""
    if isinstance(model, Reader):
        return model
    if not isinstance(model, HuggingFaceModel):
        raise AdviceError(f"{type(model).__name__} is no model; pass a loaded Hugging Face model, or a Reader")
    compat.check_supported(model)
    if not compat.needs_paths(model) or nets_of(model):
        return CausalLM(model, compiled=compiled)
    if compiled:
        can_compile(model)  # which warns
    return Paths(model)


def context_of(model: Model) -> int | None:
    """The largest number of tokens in a sequence that a model can read; None for no limit."""
    return model.context if isinstance(model, Reader) else compat.context(model.config)


def vocabulary_size(model: Model) -> int:
    """How far the tokens go that the model knows."""
    return model.vocabulary if isinstance(model, Reader) else compat.vocabulary_of(model).size


def is_reduced(model: Model) -> bool:
    """Whether a draft model knows a part of the target's tokens only."""
    return (model if isinstance(model, Reader) else compat.vocabulary_of(model)).ids is not None
