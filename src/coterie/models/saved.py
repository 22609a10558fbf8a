"""Read and write saved weights, with clear errors for missing or damaged files and full disks."""

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
"""Errors from reading a truncated file or an incomplete folder."""
COPY = "restore it from a backup, or create it again"


def with_weights(kind: Any, source: str | Path, *, unused: str = "", **words: Any) -> Any:
    """Load a Transformers model from the safetensors weights of a folder or hub name.

    Raises ``UserError`` if weights can't be read, do not fit the config or are missing (Transformers would initialize
    them randomly). Weights whose names begin with ``unused``, if given, may be missing.
    """
    try:
        model, report = kind.from_pretrained(
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
            "give a folder whose files belong to one model",
        ) from error
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and not Path(source).is_dir() and not hub_answers():
            raise not_here(str(source), "its weights") from error
        reason = str(error).splitlines()[0]
        raise UserError(f"the weights of {source} can't be read: {reason}", COPY) from error
    missing = report["missing_keys"]
    check_whole(source, [name for name in missing if not unused or not name.startswith(unused)])
    return model


def check_whole(source: str | Path, missing: Collection[str]) -> None:
    """Raise ``UserError`` if tensors are missing from saved weights."""
    if missing:
        raise UserError(
            f"tensors are missing from {source}: {len(missing)}, such as {min(missing)}",
            COPY,
        )


@contextmanager
def reading(path: Path, todo: str = COPY) -> Iterator[None]:
    """Convert the errors from reading a damaged file or folder into ``UserError``."""
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
    """Convert errors of safetensors for a full or failing disk into ``OSError``."""
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error
