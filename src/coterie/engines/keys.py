"""Keys of outside servers, from the environment or a ``.env`` file; shown as set or not, never more.

The environment comes first. ``.env`` is looked for in the working folder only. A key never becomes
part of settings, which are written to run folders: those hold the name of its variable.
"""

import os
from pathlib import Path

from dotenv import dotenv_values

from coterie.errors import UserError

FILE = ".env"
ENDING = "_API_KEY"
USUAL = "OPENAI_API_KEY"
"""Shown by ``coterie doctor`` even where it is not set."""


class ApiKey:
    """A key that does not show itself; ``name`` is that of its variable."""

    __slots__ = ("_text", "name")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text

    @property
    def header(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._text}"}

    def in_header(self, name: str) -> dict[str, str]:
        """The header of this name, for servers that want the bare key in it."""
        return {name: self._text}

    def redact(self, text: str) -> str:
        return text.replace(self._text, str(self))

    def __str__(self) -> str:
        return f"<{self.name}>"

    __repr__ = __str__


def find_key(name: str, folder: Path) -> ApiKey:
    """The key of variable ``name``, from the environment or the ``.env`` of a folder.

    Raises :class:`UserError` if it is not set, or is none (its value is not shown).
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
    """Every ``..._API_KEY`` of the environment and of the folder's ``.env``: whether it is set."""
    values = {**_file(folder), **os.environ}
    names = sorted({USUAL, *(name for name in values if name.endswith(ENDING))})
    return {name: bool(values.get(name)) for name in names}


def _file(folder: Path) -> dict[str, str | None]:
    return dotenv_values(folder / FILE, interpolate=False, encoding="utf-8-sig")
