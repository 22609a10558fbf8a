"""Reading what was saved: a file that is missing, cut off or damaged is named, with what to do about it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from coterie.errors import UserError

DAMAGE = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, KeyError, FileNotFoundError)
"""What reading a part of a file, or a part of a folder's files, ends in."""
COPY = "put it back from a copy, or make it again"


@contextmanager
def reading(path: Path, todo: str = COPY) -> Iterator[None]:
    """Turn the errors of reading a damaged file (or folder of files) into a ``UserError``."""
    try:
        yield
    except DAMAGE as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UserError(f"{path} is cut off or damaged: {reason}", todo) from error
