"""The tools of a run: which, how they are called, and what runs them while it plays."""

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
    """What agents may call, besides what the environment offers by itself."""

    main: ClassVar[str] = "use"

    use: tuple[str, ...] = key(
        (),
        "Tools: names, mcp:COMMAND, mcp:URL, and your own (path/file.py:NAME, package.module:NAME), such as "
        "[wiki_search, path/file.py:multiply].",
    )
    config: str | None = key(
        None, "A YAML file that says what the names in `use` are (docs/howto/tools.md)."
    )
    calls: Literal["native", "tags", "inline"] = key(
        "native",
        "How calls are written: in the syntax of the model's chat template; as tags, for models without one; or as "
        "tags whose results come within the agent's own message (GAP's form).",
    )
    rounds: int = key(8, "Messages with calls before each answer; a later one is an answer.", ge=1)
    total: int = key(64, "Calls of one dialogue that are run.", ge=1)
    repeats: Literal["refuse", "run"] = key(
        "refuse", "Whether a call that was made before in the dialogue is run again."
    )

    @field_validator("use")
    @classmethod
    def _settled(cls, use: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_name, use))

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"use", "config", "tries", "width"}))


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a run while it plays."""

    functions: Mapping[str, Function]
    limits: CallLimits

    def beside(self, own: Mapping[str, Function]) -> "Toolbox":
        return replace(self, functions={**self.functions, **own})

    async def run(
        self, calls: Sequence[ToolCall], tools: Sequence[Tool], message: str
    ) -> tuple[ToolResult, ...]:
        """Results of the calls of a message, in their order. Raises ``ToolUnavailable``."""
        token = MESSAGE.set(message)
        try:
            return await run_calls(calls, tools, self.functions, self.limits)
        finally:
            MESSAGE.reset(token)


@asynccontextmanager
async def open_toolbox(sources: Sequence[ToolSource], limits: CallLimits) -> AsyncIterator[Toolbox]:
    """All tools, open. Raises ``UserError`` for what can't be opened."""
    async with AsyncExitStack() as stack:
        functions: dict[str, Function] = {}
        for source in sources:
            functions |= await stack.enter_async_context(source.open())
        yield Toolbox(functions, limits)
