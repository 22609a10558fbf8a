"""How long work tells what it is doing. The command line renders it; silence is the default."""

from typing import Protocol


class Progress(Protocol):
    """Somebody who watches. All calls come from the main rank, in order."""

    def start(self, total: int, description: str) -> None:
        """``total`` units of work (dialogues, optimiser steps, bytes) are ahead."""
        ...

    def advance(self, n: int, **fields: float) -> None:
        """``n`` more are done. A training's ``fields`` are those of ``metrics.jsonl``."""
        ...

    def close(self) -> None:
        """No more calls will come; also called when the training failed."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, total: int, description: str) -> None:
        """Nothing."""

    def advance(self, n: int, **fields: float) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
