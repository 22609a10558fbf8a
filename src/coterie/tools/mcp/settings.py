"""Which MCP server is used, how it is reached, and how long is waited for it."""

import importlib.util
import shlex
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from coterie.config.settings import Settings, key
from coterie.config.urls import server_url
from coterie.errors import UserError


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
        """The words of the command."""
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
            "tools of MCP servers need the package mcp, version 2", "pip install 'coterie[mcp]'"
        )
