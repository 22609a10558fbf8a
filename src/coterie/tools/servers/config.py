"""The file of a tool server: which tools it has, each with the settings of its kind.

tools:
  - kind: retrieve
    name: wiki          # default: its kind
    index: pages
  - kind: code
"""

from pathlib import Path
from typing import Any

from coterie.config.construct import construct, settings_type_of
from coterie.config.plugins import find
from coterie.config.resolve import read_yaml, resolve
from coterie.errors import UserError
from coterie.tools.servers.app import Served
from coterie.tools.servers.kinds import BACKENDS, BackendSettings

PAGE = "docs/howto/tools.md lists the keys of each kind"
NEEDS = (
    "write `tools:`, and under it a list of tools, such as `- kind: retrieve` with `index: FOLDER`"
)


def read_tools(file: Path) -> list[Served]:
    """The tools of a file, made and not yet opened.

    Raises ``UserError`` for a broken file, an unknown kind or key, two tools of one name, and whatever a tool
    itself refuses.
    """
    values = read_yaml(file)
    if others := [name for name in values if name != "tools"]:
        raise UserError(f"{file}: unknown key {others[0]!r}", NEEDS)
    entries = values.get("tools")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{file} names no tools", NEEDS)
    settings = [_settings(file, number, entry) for number, entry in enumerate(entries, 1)]
    names = [one.name for one in settings]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{file}: there are two tools called {twice[0]}", "give one a `name`")
    return [Served(one, _made(file, one)) for one in settings]


def _settings(file: Path, number: int, entry: Any) -> BackendSettings:
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise UserError(f"{file}: tool {number} has no `kind`", NEEDS)
    kind = entry["kind"]
    try:
        own = settings_type_of(find(BACKENDS, kind), BackendSettings)
        found = resolve(own, [entry], where=PAGE)
    except UserError as error:
        raise UserError(f"{file}: tool {number} ({kind}): {error.what}", error.todo) from error
    named: BackendSettings = found.model_copy(update={"name": found.name or _plain(kind)})
    return named


def _plain(kind: str) -> str:
    """A kind's name in a path."""
    return kind.rpartition(":")[2]


def _made(file: Path, settings: BackendSettings) -> Any:
    try:
        return construct(find(BACKENDS, settings.kind), BackendSettings, settings)
    except UserError as error:
        raise UserError(f"{file}: the tool {settings.name}: {error.what}", error.todo) from error
