"""What a Hugging Face model's settings say, which models can be trusted with trees, and what versions differ in.

Models that cannot be trusted are refused by name, never wrong in silence. What is private in transformers is used here
alone; versions are 4.57 to the newest.
"""

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from packaging.version import Version
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, __version__

from multidraft.errors import AdviceError
from multidraft.models.vocabularies import Vocabulary

KEEPS_SOME = Version(__version__) >= Version("5.24")  # whether of hidden states only those asked for take memory
STATES = Version("5.16")  # since when what recurrent models remember has one form
MASKED_KINDS = {"full_attention", "sliding_attention"}  # layers in which a mask says what a token sees
MEMORIES = "past_key_values", "cache_params", "cache"  # what models call what they remember: from 5.24 on the last
CONTINUING_FAMILIES = (  # with a recurrent state, from which several tokens can be read at once; others one by one
    "bamba falcon_h1 granitemoehybrid lfm2 mamba2 nemotron_h olmo_hybrid qwen3_5 qwen3_5_text qwen3_next"
).split()
ENCODERS = (
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta "
    "roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
).split()
UNFIT_FAMILIES = {
    **{name: "is an encoder, whose tokens see later ones; use a decoder-only model" for name in ENCODERS},
    "recurrent_gemma": "keeps its state in its own layers, where batches cannot part; use another model",
    "rwkv": "is read wrongly by transformers where a batch goes on token by token; use another model",
}
if Version(__version__) < Version("5"):  # where nothing in the model says so
    UNFIT_FAMILIES |= {
        "moshi": "ignores explicit positions before transformers 5; update it",
        "xglm": "adds the cache's length to explicit positions before transformers 5; update it",
    }
VOCABULARIES: WeakKeyDictionary[PreTrainedModel, Vocabulary] = WeakKeyDictionary()
PARAMETERS: WeakKeyDictionary[Callable, tuple[frozenset[str], bool]] = WeakKeyDictionary()  # see names_of_parameters


def text_config(model: PreTrainedModel) -> PretrainedConfig:
    """The settings of the decoder, where a model has others beside it."""
    return model.config.get_text_config(decoder=True)


def recorded_layers(layers: Sequence[int]) -> list[int] | bool:
    """What `output_hidden_states` should be for these: before 5.24, what a list of them means differs by release."""
    return list(layers) if KEEPS_SOME else True


def vocabulary_of(model: PreTrainedModel) -> Vocabulary:
    """The tokens that it has now; `target_ids` in the settings of a draft model say that they are part of a target's.

    What was made before serves again while it is of these tokens: to look through all `target_ids` takes a while.
    """
    token_count, target_ids = count_tokens(model), getattr(model.config, "target_ids", None)
    if model not in VOCABULARIES or not VOCABULARIES[model].is_of(token_count, target_ids):
        VOCABULARIES[model] = Vocabulary(token_count, target_ids)
    return VOCABULARIES[model]


def count_tokens(model: PreTrainedModel) -> int:
    """How many tokens it reads and scores; raises AdviceError where its weights have another number than its settings.

    An embedding may have more rows than that (Mllama's have images there), but not fewer.
    """
    token_count = text_config(model).vocab_size
    row_count = getattr(layer_of(model.get_input_embeddings), "num_embeddings", token_count)
    column_count = getattr(layer_of(model.get_output_embeddings), "out_features", token_count)
    if row_count < token_count or column_count != token_count:
        raise AdviceError(
            f"{model.config.model_type} has {token_count} tokens by its config, an embedding of {row_count} and logits "
            f"for {column_count}; change them together, by model.resize_token_embeddings({column_count})"
        )
    return token_count


def layer_of(getter: Callable[[], nn.Module | None]) -> nn.Module | None:
    """The layer that a model names; None where it has none or does not tell."""
    try:
        return getter()
    except (AttributeError, NotImplementedError):
        return None


def home(model: PreTrainedModel) -> torch.device:
    """Where tokens go in: the device of the first layer, or the one that accelerate runs it on if it is offloaded."""
    if model.device.type != "meta":
        return model.device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    devices = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((device for device in devices if device is not None), "meta"))


def windows(config: PretrainedConfig) -> dict[str, int | None]:
    """The window of each type of layer (None: a token sees all before it); without types, all layers are alike."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return {kind: window if kind in ("all", "sliding_attention") else None for kind in kinds or ["all"]}


def context(config: PretrainedConfig) -> int | None:
    """The largest number of tokens in a sequence.

    Rotary frequencies of type longrope change for the whole sequence once it outgrows the original context, and keys in
    a cache would no longer match: such a model is used up to there.
    """
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        return rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    return getattr(config, "max_position_embeddings", None)


def layer_types(model: PreTrainedModel) -> set[str]:
    """The types of its layers, where it says them."""
    return set(getattr(text_config(model), "layer_types", None) or ())


def is_stateful(model: PreTrainedModel) -> bool:
    """Whether it remembers more than keys and values."""
    others = any(kind == "linear_attention" or not kind.endswith("attention") for kind in layer_types(model))
    return others or getattr(model, "_is_stateful", False) or "cache_params" in forward_arguments(model)


def needs_paths(model: PreTrainedModel) -> bool:
    """Whether a mask and positions cannot say what its tokens see."""
    positions = "position_ids" in forward_arguments(model) and not getattr(text_config(model), "alibi", False)
    own_mask = model.config.model_type == "gpt_neo"  # which counts slots, not positions
    return is_stateful(model) or own_mask or not positions or not layer_types(model) <= MASKED_KINDS


def continues(model: PreTrainedModel) -> bool:
    """Whether several tokens can be read behind others in one pass."""
    return not is_stateful(model) or model.config.model_type in CONTINUING_FAMILIES


def forward_arguments(model: PreTrainedModel) -> Collection[str]:
    """What its forward pass may be called with; a forward of its own may hand on all that its class's takes.

    So may that of a class that names no tokens: then it is its parent's.
    """
    inherited = (vars(kind)["forward"] for kind in type(model).__mro__ if "forward" in vars(kind))
    known = next((function for function in inherited if "input_ids" in names_of_parameters(function)[0]), None)
    names, hands_on = names_of_parameters(getattr(model.forward, "__func__", model.forward))
    return names | names_of_parameters(known or type(model).forward)[0] if hands_on else names


def names_of_parameters(function: Callable) -> tuple[frozenset[str], bool]:
    """Those of a function, and whether it takes others by name; kept, since to look takes 0.1 ms."""
    if function not in PARAMETERS:
        parameters = inspect.signature(function).parameters
        PARAMETERS[function] = frozenset(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return PARAMETERS[function]


def memory_name(model: PreTrainedModel) -> str:
    """What a model calls that which it remembers."""
    return next(name for name in MEMORIES if name in forward_arguments(model))


def check_supported(model: PreTrainedModel) -> None:
    """Raise AdviceError, which names the model and the reason, unless its trees can be trusted."""
    name = model.config.model_type
    for what in faults_of(model):
        raise AdviceError(f"{name} {what}")
    dynamic = (part for part in model.modules() if isinstance(part, torch.ao.nn.quantized.dynamic.Linear))
    if any(part._packed_params.dtype == torch.qint8 for part in dynamic):  # which rounds all its inputs together
        warnings.warn(
            f"{name} is quantised with scales of whole passes: a token's probabilities then depend a little on what is "
            "read beside it, and no decoding has exactly one law; quantise weights only where that matters",
            stacklevel=3,
        )


def faults_of(model: PreTrainedModel) -> Iterator[str]:
    """Why its trees cannot be trusted."""
    config, attention = text_config(model), text_config(model)._attn_implementation
    if model.config.model_type in UNFIT_FAMILIES:
        yield UNFIT_FAMILIES[model.config.model_type]
    if getattr(config, "is_encoder_decoder", False):
        yield "is an encoder-decoder; use a decoder-only model"
    if not model.can_generate():
        yield f"is a {type(model).__name__} here, which gives no logits of tokens; load it with AutoModelForCausalLM"
    if is_stateful(model) and Version(__version__) < STATES:
        yield f"has a recurrent state, which is read from transformers {STATES} on; update it"
    if not set(MEMORIES) & set(forward_arguments(model)):
        yield "gives nothing to go on from after a pass; use another model"
    if attention not in ("sdpa", "eager") and not needs_paths(model):
        yield f'has attention {attention}, which takes no tree mask; load it with attn_implementation="sdpa" or "eager"'
    if model.dtype.itemsize == 1:
        yield f"has weights in {model.dtype}, which nothing multiplies; load it with dtype=torch.bfloat16"
    if drops_values(model):
        yield "is in training mode, where dropout changes its distribution; call model.eval() first"


def drops_values(model: PreTrainedModel) -> bool:
    """Whether it is in training mode, or a part of it is that drops values at random then."""
    rates = ((part, getattr(part, "p", None) or getattr(part, "attention_dropout", None)) for part in model.modules())
    return model.training or any(part.training and isinstance(rate, float) and rate > 0 for part, rate in rates)


def body(model: PreTrainedModel) -> tuple[str, nn.Module]:
    """The model without its head, and its name in the model; before 5, gemma3_text has noted another name."""
    name = model.base_model_prefix if hasattr(model, model.base_model_prefix) else "model"
    return name, getattr(model, name, model)
