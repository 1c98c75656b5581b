"""Multi-draft speculative decoding of a decoder-only model: the output has exactly the model's own distribution."""

try:
    import multidraft
except ImportError as error:  # no requirements.txt names it: no package index has it, and pip would look there
    raise ImportError(
        "this needs multidraft, which is on no package index: in its checkout, pip install -c constraints.txt -e ."
    ) from error


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
