"""Is the hub of models there: without a network, its own client tries for most of a minute before it says so."""

from collections.abc import Iterable
from pathlib import Path
from threading import Thread

PATIENCE = 4  # seconds for an answer, whatever it is


def settle(names: Iterable[str]) -> None:
    """Where a model is to come from the hub and the hub does not answer, take only what was fetched before."""
    if all(Path(name).expanduser().is_dir() for name in names):
        return
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not answers():
        constants.HF_HUB_OFFLINE = True


def answers() -> bool:
    """Whether the hub says anything in time; in a thread, because looking up a name heeds no time limit."""
    heard: list[bool] = []
    thread = Thread(target=lambda: heard.append(asked()), daemon=True)
    thread.start()
    thread.join(PATIENCE + 1)
    return heard == [True]


def asked() -> bool:
    """Whether a request is answered, through whatever proxy the hub's client uses."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # the client's kinds of errors depend on its version
        return False
    return True
