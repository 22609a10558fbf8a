"""Reachability of the Hugging Face hub, checked before a request for a model.

Without a network, the hub's own client retries each file of a model six times, which takes minutes.
"""

from functools import cache
from pathlib import Path

from huggingface_hub import constants, get_session

from coterie.errors import UserError

TRIES = 2
TIMEOUT = 5.0
"""Timeout of each try, in seconds."""


def local_only(source: str) -> bool:
    """Return True if a model must be read locally: it is a folder, or the hub is unreachable."""
    return Path(source).is_dir() or not hub_answers()


@cache
def hub_answers() -> bool:
    """Return True if the hub (or the mirror in ``HF_ENDPOINT``) is reachable. Checked once per process."""
    if constants.HF_HUB_OFFLINE:
        return False
    return any(_answers() for _ in range(TRIES))


def _answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except (
        Exception
    ):  # the HTTP library, and so its errors, depend on the version of huggingface_hub
        return False
    return True


def not_here(source: str, what: str) -> UserError:
    """Return the error for a model with a missing file while the hub is unreachable."""
    reason = (
        "HF_HUB_OFFLINE is set"
        if constants.HF_HUB_OFFLINE
        else f"{constants.ENDPOINT} can't be reached"
    )
    return UserError(
        f"{source!r} is not a packaged model or a folder, {what} was not downloaded earlier, and {reason}",
        "check the spelling and the network; to work offline, download the model on another machine "
        f"(hf download {source} --local-dir FOLDER), copy the folder, and give it as the model",
    )
