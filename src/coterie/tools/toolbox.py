"""Tools of a run: their settings, and the open toolbox."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from pydantic import field_validator

from coterie.config.plugins import absolute_name
from coterie.config.settings import key
from coterie.tools.run import CallLimits, Function, run_calls
from coterie.tools.source import MESSAGE, ToolSource
from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.turn import digest


class ToolsSettings(CallLimits):
    """Tools of agents, in addition to the environment's tools."""

    main: ClassVar[str] = "use"

    use: tuple[str, ...] = key(
        (),
        "Tools: names, mcp:COMMAND, mcp:URL, and your functions (path/file.py:NAME, package.module:NAME), such as "
        "[wiki_search, path/file.py:multiply].",
    )
    config: str | None = key(None, "A YAML file that defines names in `use` (docs/howto/tools.md).")
    calls: Literal["native", "tags", "inline"] = key(
        "native",
        "Syntax of calls: the model's chat template; tags, for models without one; or tags whose results are inserted "
        "into the agent's message (as in GAP).",
    )
    rounds: int = key(
        8, "Messages with calls before each answer; the next message is the answer.", ge=1
    )
    total: int = key(64, "Calls per dialogue.", ge=1)
    repeats: Literal["refuse", "run"] = key(
        "refuse", "Whether an earlier call of the dialogue runs again."
    )

    @field_validator("use")
    @classmethod
    def _resolve(cls, use: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_name, use))

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"use", "config", "tries", "width"}))


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Open tools of a run."""

    functions: Mapping[str, Function]
    limits: CallLimits

    def beside(self, own: Mapping[str, Function]) -> "Toolbox":
        return replace(self, functions={**self.functions, **own})

    async def run(
        self, calls: Sequence[ToolCall], tools: Sequence[Tool], message: str
    ) -> tuple[ToolResult, ...]:
        """Run the calls of a message; return results in their order. Raises ``ToolUnavailable``."""
        token = MESSAGE.set(message)
        try:
            return await run_calls(calls, tools, self.functions, self.limits)
        finally:
            MESSAGE.reset(token)


@asynccontextmanager
async def open_toolbox(sources: Sequence[ToolSource], limits: CallLimits) -> AsyncIterator[Toolbox]:
    """Open all tools. Raises ``UserError`` if one can't be opened."""
    async with AsyncExitStack() as stack:
        functions: dict[str, Function] = {}
        for source in sources:
            functions |= await stack.enter_async_context(source.open())
        yield Toolbox(functions, limits)
