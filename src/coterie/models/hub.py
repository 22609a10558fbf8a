"""Whether the Hugging Face hub answers: asked before a model is looked up there.

The hub's own client tries each file of a model six times, which without a network takes minutes.
"""

from functools import cache
from pathlib import Path

from huggingface_hub import constants, get_session

from coterie.errors import UserError

TRIES = 2
TIMEOUT = 5.0
"""Seconds that the hub has for an answer, at each try."""


def local_only(source: str) -> bool:
    """Whether a model is read from this machine alone: it is a folder, or the hub does not answer."""
    return Path(source).is_dir() or not hub_answers()


@cache
def hub_answers() -> bool:
    """Whether the hub (or the mirror in ``HF_ENDPOINT``) can be reached; asked once a process."""
    if constants.HF_HUB_OFFLINE:
        return False
    return any(_answers() for _ in range(TRIES))


def _answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # whatever the client raises, whose library the hub's package may change
        return False
    return True


def not_here(source: str, what: str) -> UserError:
    """The refusal of a model of which this machine lacks a file while the hub does not answer."""
    why = (
        "HF_HUB_OFFLINE is set"
        if constants.HF_HUB_OFFLINE
        else f"{constants.ENDPOINT} can't be reached"
    )
    return UserError(
        f"{source!r} is not a packaged model or a folder, {what} was not downloaded earlier, and {why}",
        "check the spelling and the network; to work offline, download the model on another machine "
        f"(hf download {source} --local-dir FOLDER), copy the folder, and give it as the model",
    )
