"""What differs between kinds of servers: how one is started, and how it takes a checkpoint."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from coterie.engines.servers.child import HOST
from coterie.engines.servers.client import ServerClient


class Backend(Protocol):
    """One kind of inference server."""

    kind: str
    """For names of servers and logs."""

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        """The command line of a server of ``model`` (a folder or hub name), called ``name``."""
        ...

    def environment(self, index: int) -> Mapping[str, str]:
        """Variables for the server of this number, such as its devices."""
        ...

    async def reload(self, client: ServerClient, path: str, version: str) -> None:
        """Replace a running server's weights. Raises a ``ServerFault``."""
        ...

    def check_adapter(self, folder: Path) -> None:
        """Refuse (``UserError``) an adapter that servers of this kind do not take."""
        ...


class CoterieBackend:
    """``coterie serve model``: our own server."""

    kind = "coterie"

    def command(self, model: str, name: str, port: int) -> Sequence[str]:
        """The command line."""
        return (
            sys.executable, "-m", "coterie", "serve", "model", model, "--name", name,
            "--host", HOST, "--port", str(port), "--allow-loading",
        )  # fmt: skip

    def environment(self, index: int) -> Mapping[str, str]:
        """Nothing of its own."""
        return {}

    async def reload(self, client: ServerClient, path: str, version: str) -> None:
        """By its own route."""
        await client.post("/load_checkpoint", {"path": path, "version": version})

    def check_adapter(self, folder: Path) -> None:
        """It merges adapters, and takes any."""
