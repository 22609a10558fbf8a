"""API keys of external servers, from the environment or a ``.env`` file; a key is never printed.

The environment has priority. ``.env`` is read from the working folder only. Settings, which are written to run folders,
have the name of the variable, never the key.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

from coterie.errors import UserError

FILE = ".env"
ENDING = "_API_KEY"
USUAL = "OPENAI_API_KEY"
"""Listed by ``coterie doctor`` even if it is not set."""


class ApiKey:
    """API key that is redacted when printed; ``name`` is the name of its variable."""

    __slots__ = ("_text", "name")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    @property
    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._text}"}

    def in_header(self, name: str) -> dict[str, str]:
        """Return a header with the bare key."""
        return {name: self._text}

    def redact(self, text: str) -> str:
        return text.replace(self._text, str(self))

    def __str__(self) -> str:
        return f"<{self.name}>"

    __repr__ = __str__


def find_key(name: str, folder: Path) -> ApiKey:
    """Read the key of a variable from the environment or the ``.env`` of a folder.

    Raises :class:`UserError` if it is not set or not a valid key (the message does not have its value).
    """
    text = (os.environ.get(name) or _file(folder).get(name) or "").strip()
    if not text:
        raise UserError(
            f"{name} is not set",
            f"export {name}=..., or write the line {name}=... into {folder.resolve() / FILE}",
        )
    if not all("!" <= letter <= "~" for letter in text):
        raise UserError(
            f"the value of {name} is not a key: it has spaces or characters other than ASCII",
            "copy the key again",
        )
    return ApiKey(name, text)


def configured(folder: Path) -> dict[str, bool]:
    """Return the names of all ``..._API_KEY`` variables of the environment and ``.env``, with True if set."""
    values = {**_file(folder), **os.environ}
    names = sorted({USUAL, *(name for name in values if name.endswith(ENDING))})
    return {name: bool(values.get(name)) for name in names}


def _file(folder: Path) -> dict[str, str | None]:
    return dotenv_values(folder / FILE, interpolate=False, encoding="utf-8-sig")
