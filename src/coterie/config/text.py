"""Checks for lone surrogates in text and for deep nesting in JSON.

JSON and YAML can contain a lone surrogate (``"\\ud800"``), half of a character, which tokenizers, files and servers
reject.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from coterie.errors import UserError

MAX_DEPTH = 100
"""Maximum nesting of values for :func:`shallow`, far below Python's recursion limit."""

_SPELLED = re.compile(r"\\u[dD][89a-fA-F]")


def encoded(text: str, what: str) -> bytes:
    """Encode a text. Raise ``UserError``, which names the text ``what``, for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        wrong = _explain(error)
        raise UserError(f"{what} holds {wrong}", "write the full character or remove it") from error


def read_json(text: str) -> Any:
    """Parse JSON. Raise ``ValueError`` for invalid JSON, a lone surrogate or too deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    return whole(value) if _SPELLED.search(text) else value


def whole(value: Any) -> Any:
    """Return a JSON value unchanged. Raise ``ValueError`` if it contains a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"it holds {_explain(error)}") from error
    return value


def shallow(value: Any) -> Any:
    """Return a JSON value unchanged. Raise ``ValueError`` if it nests deeper than ``MAX_DEPTH`` levels."""
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
    code = f"\\u{ord(error.object[error.start]):04x}"
    return f"half a character (the lone surrogate {code}, at character {error.start + 1})"
