"""What is text: Unicode without lone surrogates, which are halves of characters and no character.

JSON and YAML can spell a half (``"\\ud800"``); no tokenizer, file or server takes it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from coterie.errors import UserError

MAX_DEPTH = 100
"""Levels of a value that :func:`shallow` takes, which is far from Python's own limit of recursion."""

_SPELLED = re.compile(r"\\u[dD][89a-fA-F]")


def encoded(text: str, what: str) -> bytes:
    """A text's bytes. Raises ``UserError`` if ``what`` it is holds half a character."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        wrong = _explain(error)
        raise UserError(
            f"{what} holds {wrong}", "write the whole character there, or remove it"
        ) from error


def read_json(text: str) -> Any:
    """The value of a JSON text; raises ``ValueError``, also for one that holds half a character or nests too deep."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    return whole(value) if _SPELLED.search(text) else value


def whole(value: Any) -> Any:
    """A JSON value; raises ``ValueError`` if some text of it holds half a character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds {_explain(error)}") from error
    return value


def shallow(value: Any) -> Any:
    """A JSON value; raises ``ValueError`` if it nests deeper than ``MAX_DEPTH`` levels."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [
            one.values() if isinstance(one, Mapping) else one
            for one in level
            if isinstance(one, Mapping | list | tuple)
        ]
        if not inner:
            return value
        level = [one for several in inner for one in several]
    raise ValueError(f"it nests too deep (more than {MAX_DEPTH} levels)")


def _explain(error: UnicodeEncodeError) -> str:
    found = f"\\u{ord(error.object[error.start]):04x}"
    return f"half a character (the lone surrogate {found}, at character {error.start + 1})"
