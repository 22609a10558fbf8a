"""MCP server as a source of tools.

Example::

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

from coterie.config.settings import Settings, key, server_url
from coterie.errors import UserError
from coterie.record.turn import Tool
from coterie.tools.calls import Function, ToolUnavailable
from coterie.tools.tags import Tag


class McpSettings(Settings):
    """Settings of an MCP server, given by a command or a URL."""

    main: ClassVar[str] = "server"

    server: str = key(
        ...,
        "A command that uses standard input and output (`python server.py`), or the URL of a server "
        "(`https://tools.example/mcp`).",
        quiet=True,
    )
    folder: str = key("", "Working folder of the command; empty: the current folder.")
    environment: tuple[str, ...] = key(
        (),
        "Names of environment variables for the command, in addition to PATH, HOME, USER, LOGNAME, SHELL and TERM. "
        "It gets no others, so no keys.",
    )
    key_variable: str | None = key(
        None,
        "For a URL: environment variable (or name in `.env`) that holds its key. Not the key itself.",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        quiet=True,
    )
    read_only: tuple[str, ...] = key(
        (),
        "Read-only tools that lack `readOnlyHint`. Calls of read-only tools run concurrently and are retried. "
        "Other calls run alone, without retries.",
    )
    start_seconds: float = key(
        30.0, "Timeout in seconds for the server to start and list its tools.", gt=0
    )
    seconds: float = key(
        120.0, "Timeout of a request in seconds, independent of the run's limit.", gt=0
    )

    @property
    def url(self) -> str | None:
        """URL; ``None`` for a command."""
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
    if importlib.util.find_spec("mcp_types") is None:  # version 1 lacks it
        raise UserError(
            "tools of MCP servers need the package mcp, version 2", "pip install -e '.[mcp]'"
        )


@dataclass(frozen=True, slots=True)
class ToolList:
    """Tools of a server."""

    tools: tuple[Tool, ...]
    names: Mapping[str, str]
    """Server's name of each tool, which may have other characters, by our name."""
    identity: str
    """Hash of all names, descriptions, schemas and read-only flags."""

    @property
    def tags(self) -> dict[str, Tag]:
        """Tags of the tools with a single or a single required parameter of type string."""
        names = {tool.name: _only_text(tool.parameters) for tool in self.tools}
        return {tool: Tag(name) for tool, name in names.items() if name}


class McpSource:
    """Source of the tools that the server lists at construction.

    Raises ``UserError`` for a server that does not answer in time, and for unusable tools.
    """

    settings_type = McpSettings

    def __init__(self, settings: McpSettings) -> None:
        need_sdk()
        self._settings = settings
        # In a thread, since an event loop may be running here.
        with ThreadPoolExecutor(1) as thread:
            self._listed: ToolList = thread.submit(self._list).result()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools of the server, with names that every chat template accepts."""
        return self._listed.tools

    @property
    def tags(self) -> Mapping[str, Tag]:
        return self._listed.tags

    @property
    def identity(self) -> str:
        """Hash of the tools' names, descriptions and schemas."""
        return self._listed.identity

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        """Connect; return the functions by tool name. Raises ``UserError`` without a connection or if tools changed."""
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

    def _list(self) -> ToolList:
        from coterie.tools.mcp.client import first_list

        return asyncio.run(first_list(self._settings))


def changes(before: ToolList, now: ToolList) -> str:
    """Describe the differences between two lists."""
    old, new = ({one.name: one for one in each.tools} for each in (before, now))
    parts = {
        "new": sorted(new.keys() - old.keys()),
        "gone": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
    }
    lines = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    return "; ".join(lines) or "their order"


def _only_text(parameters: Mapping[str, object]) -> str | None:
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or len(required) > 1:
        return None
    schema = properties.get(names[0])
    return names[0] if isinstance(schema, Mapping) and schema.get("type") == "string" else None
