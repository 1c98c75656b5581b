"""Models and tokenizers from folders or the hub, and models cut from others: whole, or refused by name in one line."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from multidraft.errors import AdviceError, quote
from multidraft.io.files import check_folder, content
from multidraft.models.huggingface.compat import body, check_supported, home, text_config
from multidraft.models.reader import Reader

MAX_SIZES = {"num_hidden_layers": 10_000, "hidden_size": 2**20, "intermediate_size": 2**22, "vocab_size": 2**24}
MAX_SETTINGS_BYTES = 2**26  # of a file
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json")


def load_model(name: str, **settings: object) -> PreTrainedModel:
    """A causal language model in evaluation mode, in the dtype that it is stored in.

    Raises AdviceError where its checkpoint is not the model that its configuration describes.
    """
    model, loading = load(AutoModelForCausalLM, name, "model", dtype="auto", output_loading_info=True, **settings)
    check_whole(name, loading)
    return model.eval()


def load_tokenizer(name: str, **settings: object) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; raises AdviceError where it has no pieces."""
    tokenizer = load(AutoTokenizer, name, "tokenizer", **settings)
    if len(tokenizer.get_vocab()) < 2:  # made from nothing where its files are missing
        raise AdviceError(f"the tokenizer of {name!r} has no vocabulary; put its tokenizer.json back")
    return tokenizer


def load(kind: Any, name: str, what: str, **settings: object) -> Any:
    """`from_pretrained` whose failures say what to do in one line; code of the model's own runs only if asked for."""
    check_folder(name)
    folder = Path(name).expanduser()
    if folder.is_dir() and not (folder / "config.json").exists():
        if files := sorted(folder.glob("*.gguf")):
            raise AdviceError(f"folder {name!r} holds GGUF files; name one of them, such as {files[0].name}")
        if (folder / "adapter_config.json").exists():
            advice = "merge it by PEFT's `merge_and_unload()`, and save the model"
            raise AdviceError(f"folder {name!r} holds an adapter and no model; {advice}")
        raise AdviceError(f"folder {name!r} has no config.json; give one that `save_pretrained` has written")
    for file in SETTINGS if folder.is_dir() else ():
        settings_in(folder / file)
    try:
        settings = {"trust_remote_code": False} | settings
        return kind.from_pretrained(str(folder) if folder.is_dir() else name, **settings)
    except Exception as error:  # files can be broken in more ways than there are kinds of errors
        if "trust_remote_code" in str(error):
            raise AdviceError(
                f"the {what} {name!r} brings code of its own, which is not run; read it, and pass "
                "trust_remote_code=True (--trust-remote-code)"
            ) from None
        advice = "no such folder is here, so the hub was asked: check the name and the network"
        if folder.is_dir():
            advice = "a folder needs whole files config.json, safetensors and tokenizer.json, all of one model"
        raise AdviceError(f"cannot load a {what} from {name!r}: {reason(error)}; {advice}") from None


def settings_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none; transformers would do without some that are broken.

    Raises where it asks for far more than any model has: building it would take hours.
    """
    try:
        settings = json.loads(content(path, path.name, MAX_SETTINGS_BYTES).decode()) if path.exists() else {}
    except (OSError, ValueError, RecursionError):  # AdviceError is one of them
        settings = None
    what = f"{path.name} in {str(path.parent)!r}"
    if not isinstance(settings, dict):
        raise AdviceError(f"{what} is broken: it holds no JSON object; get the file again")
    for part in (settings, *(value for value in settings.values() if isinstance(value, dict))):
        for name, largest in MAX_SIZES.items():
            if isinstance(size := part.get(name), int | float) and size > largest:
                raise AdviceError(f"{what} has {name} {quote(size)}, above {largest}; get it again")
    return settings


def reason(error: Exception) -> str:
    """What an error says, in one line of decent length."""
    text = str(error).strip().split("\n")[0].rstrip(".: ")
    kind = type(error).__name__
    return f"{kind}: {text[:200]}" if text and not isinstance(error, OSError | ValueError) else text[:300] or kind


def check_whole(name: str, loading: dict[str, Any]) -> None:
    """Raise unless every weight came from the checkpoint, and every weight of the checkpoint went into the model.

    Tied weights are no missing ones, and buffers that older versions saved are no weights.
    """
    for kind, what in (
        ("missing", "lacks weights that its config.json asks for"),
        ("mismatched", "has weights of other shapes than its config.json asks for"),
        ("unexpected", "has weights that its config.json has no place for"),
    ):
        keys = sorted(map(str, loading[f"{kind}_keys"]))
        if keys := [key for key in keys if kind != "unexpected" or key.endswith("weight")]:
            others = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise AdviceError(
                f"the checkpoint of {name!r} {what}: {keys[0]}{others}; get the whole model again, with its own config"
            )


def check_runs(model: PreTrainedModel, name: str) -> None:
    """Raise unless the model can be used with trees, and reads a token to finite logits, one for each of its tokens."""
    check_supported(model)
    size = text_config(model).vocab_size
    try:
        with torch.inference_mode():
            logits = model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=home(model)), use_cache=False).logits
    except Exception as error:  # whatever a configuration that makes no sense may lead to
        raise AdviceError(
            f"the model {name!r} cannot read a token: {reason(error)}; check its config.json, or get the model again"
        ) from None
    if logits.shape[-1] != size or not logits.is_floating_point() or not bool(logits.isfinite().any()):
        raise AdviceError(
            f"the model {name!r} gives logits {tuple(logits.shape)} {logits.dtype} that are no numbers or not {size}; "
            "its weights or its config.json are broken, so get the model again"
        )


def check_sizes(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, name: str) -> None:
    """Raise where a tokenizer has far more pieces than the model has tokens, or less than half as many."""
    pieces, tokens = len(tokenizer), text_config(model).vocab_size
    if not tokens / 2 <= pieces <= 1.02 * tokens:  # a few special ones may have no logits
        raise AdviceError(
            f"the tokenizer of {name!r} has {pieces} pieces and the model {tokens} tokens; "
            "they are not of one model, so put the model's own tokenizer.json there"
        )


def first_layers(model: PreTrainedModel | Reader, count: int) -> PreTrainedModel:
    """A model of the first `count` layers, between the same embedding and the same norm and head, as a drafter.

    Every weight is shared with `model`, which stays as it was. Raises AdviceError for a family whose decoder does not
    keep its layers in one list `layers`, and for a wrong count (LayerSkip, Elhoushi et al., 2024; Draft & Verify, Zhang
    et al., 2023: there the layers are trained or chosen for it).
    """
    if isinstance(model, Reader):
        raise AdviceError(f"the layers of a {type(model).__name__} cannot be cut; draft by another model or ngram")
    (name, decoder), config, kind = body(model), copy.deepcopy(model.config), model.config.model_type
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != getattr(config, "num_hidden_layers", None):
        raise AdviceError(f"the layers of {kind} cannot be cut; use a family such as llama, or a draft model")
    if "forward" in vars(model) or "forward" in vars(decoder):  # accelerate's, which would call the whole model
        raise AdviceError(f"this {kind} is spread over devices; load it on one to draft by its first layers")
    if not 1 <= count < len(layers):
        raise AdviceError(f"{count} of {len(layers)} layers make no drafter; use 1 to {len(layers) - 1}")
    config.num_hidden_layers = count
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:count]
    shallow: Any = copy.copy(model)
    cut: Any = copy.copy(decoder)
    for copied in (shallow, cut):  # the very same parameters and buffers, but children that can be replaced
        copied._modules, copied.config = dict(copied._modules), config
    cut.layers = layers[:count]
    setattr(shallow, name, cut)
    return shallow
