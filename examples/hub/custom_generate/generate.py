"""Multi-draft speculative decoding of a decoder-only model: the output has exactly the model's own distribution."""

import multidraft


def generate(*inputs, model, **arguments):
    """`model.generate`, decoded with drafts of `draft_model` (or `assistant_model`).

    The class is asked, because in a model folder that holds this file `model.generate` is this very function. What
    transformers would drop on the way to a callable arrives here, and goes on under a name that is kept.
    """
    names = {
        "assistant_model": "draft_model",
        "streamer": "stream",
        "stop_strings": "stop",
        "tokenizer": "stop_tokenizer",
    }
    for theirs, ours in names.items():
        value = arguments.pop(theirs, None)
        if value is not None:
            arguments.setdefault(ours, value)
    return type(model).generate(model, *inputs, custom_generate=multidraft.generate, **arguments)
