"""Weights on disk: a file that is missing, cut off or damaged is named, and so is a disk that is full."""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError

from coterie.errors import UserError
from coterie.models.hub import hub_answers, local_only, not_here

DAMAGE = (
    SafetensorError, json.JSONDecodeError, UnicodeDecodeError, KeyError, FileNotFoundError, ValidationError,
)  # fmt: skip
"""What reading a part of a file, or a part of a folder's files, ends in."""
COPY = "put it back from a copy, or make it again"


def with_weights(kind: Any, source: str | Path, *, unused: str = "", **words: Any) -> Any:
    """A Transformers model of this kind with the weights of a folder (or hub name), in safetensors.

    Raises ``UserError`` for weights that can't be read, do not fit the config, or are not all there: Transformers
    would draw those anew. Those whose names begin with ``unused``, if it is given, may be missing.
    """
    try:
        model, told = kind.from_pretrained(
            source,
            use_safetensors=True,
            output_loading_info=True,
            local_files_only=local_only(str(source)),
            trust_remote_code=False,
            **words,
        )
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise UserError(
            f"the weights of {source} do not fit its config.json",
            "give a folder whose files are of one model",
        ) from error
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and not Path(source).is_dir() and not hub_answers():
            raise not_here(str(source), "its weights") from error
        reason = str(error).splitlines()[0]
        raise UserError(f"the weights of {source} can't be read: {reason}", COPY) from error
    missing = told["missing_keys"]
    check_whole(source, [one for one in missing if not unused or not one.startswith(unused)])
    return model


def check_whole(source: str | Path, missing: Collection[str]) -> None:
    """Refuse (``UserError``) saved weights of which some are ``missing``."""
    if missing:
        raise UserError(
            f"the weights of {source} are not whole: {len(missing)} are missing, such as {min(missing)}",
            COPY,
        )


@contextmanager
def reading(path: Path, todo: str = COPY) -> Iterator[None]:
    """Turn the errors of reading a damaged file (or folder of files) into a ``UserError``."""
    try:
        yield
    except DAMAGE as error:
        raise UserError(f"{path} is cut off or damaged: {_reason(error)}", todo) from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        return f"it has no {name!r}" if first["type"] == "missing" else f"{name}: {first['msg']}"
    return str(error).splitlines()[0]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what safetensors raises for a disk that is full or fails into the ``OSError`` that it is elsewhere."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
