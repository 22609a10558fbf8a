"""Tools of any MCP server, as a source of tools.

source = McpSource(McpSettings(server="python server.py"))
async with source.open() as functions:
    print(await functions["add"]({"a": 1, "b": 2}))
"""

import asyncio
import importlib.util
import shlex
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from coterie.config.settings import Settings, key
from coterie.config.urls import server_url
from coterie.errors import UserError
from coterie.tools.run import Function, ToolUnavailable
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool


class McpSettings(Settings):
    """A server of the Model Context Protocol: a program that we start, or a URL."""

    main: ClassVar[str] = "server"

    server: str = key(
        ...,
        "A command that talks by its standard input and output (`python server.py`), or the URL of a server "
        "(`https://tools.example/mcp`).",
        quiet=True,
    )
    folder: str = key("", "Where the command runs; empty: the working folder.")
    environment: tuple[str, ...] = key(
        (),
        "Names of environment variables that the command is given, besides PATH, HOME, USER, LOGNAME, SHELL and TERM. "
        "It gets no others, so none of our keys.",
    )
    key_variable: str | None = key(
        None,
        "For a URL: environment variable (or name in `.env`) that holds its key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    read_only: tuple[str, ...] = key(
        (),
        "Tools that only look although the server does not say so: their calls run side by side and are tried "
        "again. All others but those with `readOnlyHint` run one after the other, once.",
    )
    start_seconds: float = key(
        30.0, "Seconds in which the server must come up and say what tools it has.", gt=0
    )
    seconds: float = key(
        120.0, "Seconds after which a request is given up, whatever the run's own limit is.", gt=0
    )

    @property
    def url(self) -> str | None:
        """The URL; ``None`` for a command."""
        return self.server if self.server.startswith(("http://", "https://")) else None

    @property
    def command(self) -> list[str]:
        return shlex.split(self.server)

    @field_validator("server")
    @classmethod
    def _check_server(cls, server: str) -> str:
        server = server.strip()
        if not server.startswith(("http://", "https://")):
            try:
                words = shlex.split(server)
            except ValueError as error:
                raise ValueError(f"is not a command: {error}") from None
            if not words:
                raise ValueError("must be a command or a URL")
            return server
        if server_url(server).userinfo:
            raise ValueError("must not hold a password; name its variable in key_variable")
        return server

    @model_validator(mode="after")
    def _check_use(self) -> Self:
        if self.url is None and self.key_variable is not None:
            raise ValueError("key_variable is for a URL; name it in environment for a command")
        if self.url is not None and (self.environment or self.folder):
            raise ValueError("environment and folder are for a command, not for a URL")
        return self


def need_sdk() -> None:
    """Raise ``UserError`` if the package ``mcp`` is missing, or older than 2."""
    if importlib.util.find_spec("mcp_types") is None:  # which version 1 does not bring
        raise UserError(
            "tools of MCP servers need the package mcp, version 2", "pip install -e '.[mcp]'"
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """The tools of a server."""

    tools: tuple[Tool, ...]
    names: Mapping[str, str]
    """By our name of a tool: the server's, which may have other characters."""
    identity: str
    """A hash of all names, descriptions, schemas and whether they only read."""

    @property
    def tags(self) -> dict[str, Tag]:
        """Tools that can be called by a tag: those with one parameter that is a text, or one that must be given."""
        found = {}
        for tool in self.tools:
            if name := _only_text(tool.parameters):
                found[tool.name] = Tag(name)
        return found


class McpSource:
    """The tools that the server lists when this is made, which are those of the run.

    Raises ``UserError`` for a server that does not answer in time, and for tools that no model can be given.
    """

    settings_type = McpSettings

    def __init__(self, settings: McpSettings) -> None:
        need_sdk()
        self._settings = settings
        # A thread of its own: this may be called where a loop runs.
        with ThreadPoolExecutor(1) as thread:
            self._listed: Listed = thread.submit(self._list).result()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The server's tools, under names that every template takes."""
        return self._listed.tools

    @property
    def tags(self) -> Mapping[str, Tag]:
        return self._listed.tags

    @property
    def identity(self) -> str:
        """A hash of the tools' names, descriptions and schemas."""
        return self._listed.identity

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """What runs the calls. Raises ``UserError`` if the server is not there, or has other tools now."""
        from coterie.tools.mcp.client import Session

        session = Session(self._settings, self._listed)
        try:
            try:
                await session.ready()
            except ToolUnavailable as error:
                raise UserError(str(error), "start the server again") from error
            yield {tool.name: partial(session.call, tool.name) for tool in self.tools}
        finally:
            await session.close()

    def _list(self) -> Listed:
        from coterie.tools.mcp.client import first_list

        return asyncio.run(first_list(self._settings))


def changes(before: Listed, now: Listed) -> str:
    """Return the differences between two lists."""
    old, new = ({one.name: one for one in each.tools} for each in (before, now))
    parts = {
        "new": sorted(new.keys() - old.keys()),
        "gone": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
    }
    found = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    return "; ".join(found) or "their order"


def _only_text(parameters: Mapping[str, object]) -> str | None:
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or len(required) > 1:
        return None
    schema = properties.get(names[0])
    return names[0] if isinstance(schema, Mapping) and schema.get("type") == "string" else None
