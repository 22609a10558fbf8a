"""Sources of a run's tools by name: built-in tools, MCP servers, and the user's functions."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from coterie.config.construct import construct, settings_type_of
from coterie.config.folders import expanded
from coterie.config.plain import wrong_at
from coterie.config.plugins import find
from coterie.config.settings import Settings
from coterie.errors import UserError
from coterie.tools.checking import check_tools
from coterie.tools.native import NativeCalls
from coterie.tools.own import TOOLS, OwnTool, own_tools
from coterie.tools.run import Function
from coterie.tools.source import SessionSource, ToolSource
from coterie.tools.tags import Tag, Tags
from coterie.tools.toolbox import ToolsSettings
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import digest


class JoinedSource:
    """Tools of several named sources. Tools with equal names get the source as prefix: ``wiki_search``, ``web_search``.

    Raises ``UserError`` if names are still equal.
    """

    def __init__(self, sources: Mapping[str, ToolSource]) -> None:
        self._sources = dict(sources)
        count = Counter(tool.name for one in self._sources.values() for tool in one.tools)
        self._names = {
            (source, tool.name): tool.name if count[tool.name] == 1 else f"{source}_{tool.name}"
            for source, one in self._sources.items()
            for tool in one.tools
        }
        self.tools: tuple[Tool, ...] = tuple(
            replace(tool, name=self._names[source, tool.name])
            for source, one in self._sources.items()
            for tool in one.tools
        )
        check_tools(self.tools)
        self.tags: Mapping[str, Tag] = {
            self._names[source, name]: tag
            for source, one in self._sources.items()
            for name, tag in one.tags.items()
        }
        self.identity = digest([(name, one.identity) for name, one in self._sources.items()])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """Open all sources; return their functions by tool name. Raises ``UserError`` like the sources."""
        async with AsyncExitStack() as stack:
            functions: dict[str, Function] = {}
            for source, one in self._sources.items():
                own = await stack.enter_async_context(one.open())
                functions |= {self._names[source, name]: do for name, do in own.items()}
            yield functions


_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
MCP = "mcp:"
"""Prefix of the command or URL of an MCP server."""


class OwnSource:
    """Source of one Python function."""

    def __init__(self, own: OwnTool) -> None:
        self._own = own
        self.tools: tuple[Tool, ...] = (own.tool,)
        argument = own.parameters[0] if len(own.parameters) == 1 else None
        self.tags: Mapping[str, Tag] = {own.tool.name: Tag(argument)}
        self.identity = own.source

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        yield {self._own.tool.name: self._own.do}


def sources_of(names: Sequence[str], config: str | None) -> tuple[ToolSource, ...]:
    """Return the sources of these names; the file ``config`` has settings of named tools.

    Cached, so that a server lists its tools once per process. Raises ``UserError`` for an unknown name, invalid
    settings, two tools with one name, and missing requirements of a source.
    """
    file = None if config is None else expanded(config)
    return _sources(tuple(names), file, "" if file is None else _text(file))


def sources_in(file: Path) -> tuple[ToolSource, ...]:
    """Return all sources of a tools file. Raises ``UserError`` like :func:`sources_of`."""
    return sources_of(tuple(_entries(file, _text(file))), str(file))


def syntax_of(sources: Sequence[ToolSource], settings: ToolsSettings) -> Tags | NativeCalls:
    if settings.calls == "native":
        return NativeCalls()
    return tags_of_sources(sources, inline=settings.calls == "inline")


def tags_of_sources(sources: Sequence[ToolSource], *, inline: bool = False) -> Tags:
    tags: dict[str, Tag] = {}
    for source in sources:
        tags |= {tool.name: source.tags.get(tool.name, Tag()) for tool in source.tools}
    return Tags(tags, answer=None, inline=inline)


@cache
def _sources(names: tuple[str, ...], file: Path | None, text: str) -> tuple[ToolSource, ...]:
    entries = {} if file is None else _entries(file, text)
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"the tools {', '.join(sorted(twice))} are listed twice", "list each once")
    sources = _join({name: _construct(name, entries, file) for name in names})
    check_tools([tool for source in sources for tool in source.tools])
    return sources


def _join(sources: Mapping[str, ToolSource]) -> tuple[ToolSource, ...]:
    count = Counter(tool.name for source in sources.values() for tool in source.tools)
    alike = {
        name: source
        for name, source in sources.items()
        if any(count[tool.name] > 1 for tool in source.tools)
    }
    if not alike or not all(_PLAIN.fullmatch(name) for name in alike):
        return tuple(sources.values())
    if any(isinstance(source, SessionSource) for source in alike.values()):
        return tuple(sources.values())
    rest = (source for name, source in sources.items() if name not in alike)
    return (*rest, JoinedSource(alike))


def _construct(
    name: str, entries: Mapping[str, Mapping[str, Any]], file: Path | None
) -> ToolSource:
    values = dict(entries.get(name, {}))
    kind = str(values.pop("tool", name))
    if kind.startswith(MCP):
        values |= {"server": kind.removeprefix(MCP).strip()}
        kind = "mcp"
    plugin = find(TOOLS, kind)
    if not isinstance(plugin.thing, type):
        if values:
            raise UserError(f"{plugin} is a function and has no settings", f"correct {file}")
        return OwnSource(*own_tools((kind,)))
    settings_type = settings_type_of(plugin, Settings)
    if "name" in settings_type.model_fields and name in entries:
        values.setdefault("name", name)
    try:
        settings = settings_type.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(map(wrong_at, error.errors()))
        where = f"in {file}" if name in entries else "without settings"
        raise UserError(
            f"the tool {name} {where}: {wrong}",
            "give its settings in the file of tools.config (docs/howto/tools.md)",
        ) from error
    source: ToolSource = construct(plugin, Settings, settings)
    return source


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"tools.config={file} can't be read: {error}", "correct the path"
        ) from error


def _entries(file: Path, text: str) -> dict[str, Mapping[str, Any]]:
    do = (
        "write `tools:`, and under it a list of entries with `name`, `tool` and the tool's settings"
    )
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not YAML: {error}", do) from error
    rows = content.get("tools") if isinstance(content, dict) else None
    if not rows or not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
        raise UserError(f"{file} has no list of tools", do)
    entries: dict[str, Mapping[str, Any]] = {}
    for one in rows:
        name = one.get("name", one.get("tool"))
        if not isinstance(name, str):
            raise UserError(f"{file} has a tool without a name", do)
        if name in entries:
            raise UserError(f"{file} has two tools called {name!r}", "rename one of them")
        entries[name] = {key: value for key, value in one.items() if key != "name"}
    return entries
