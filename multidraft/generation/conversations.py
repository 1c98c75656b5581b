"""Conversations in the form that a model's chat template gives them."""

from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]


def written(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], **settings: Any) -> list[int]:
    """A conversation as tokens, up to where the model's next answer begins; `settings` are the template's."""
    from jinja2 import TemplateError

    settings = {"add_generation_prompt": True} | settings
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:  # templates are programs
        raise AdviceError(f"the chat template refuses the conversation: {error}; change its messages") from None
    return list(tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"])
