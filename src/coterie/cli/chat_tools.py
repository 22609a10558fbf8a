"""Tools in ``coterie chat``: what the model calls is run and shown, and the model goes on with the results."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from coterie.environments.protocol import Shared
from coterie.models.chat import ChatRenderer
from coterie.tools.checking import checked
from coterie.tools.finding import sources_of, syntax_of
from coterie.tools.native import NativeCalls, shown_by_template
from coterie.tools.run import Function
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.source import SessionSource
from coterie.tools.tags import Tags
from coterie.tools.toolbox import Toolbox, ToolsSettings, open_toolbox
from coterie.trajectories.calls import Tool, ToolCall, ToolResult
from coterie.trajectories.turn import Finish, Message, Part, Role, Speaker, Turn, make_turn

TOOLS = Speaker("tool", "tools")


@dataclass(frozen=True, slots=True)
class ChatTools:
    """The tools of a conversation, open."""

    toolbox: Toolbox
    tools: tuple[Tool, ...]
    syntax: Tags | NativeCalls
    settings: ToolsSettings

    def told(self, shown: Sequence[Message]) -> tuple[Message, ...]:
        """Messages that tell of them, where the model's template does not."""
        return self.syntax.told(shown, self.tools)

    @property
    def by_template(self) -> tuple[Tool, ...]:
        """The tools that the model's template shows."""
        return shown_by_template(self.syntax, self.tools)

    @property
    def role(self) -> Role:
        return self.syntax.role

    def calls(self, text: str, finish: Finish, renderer: ChatRenderer) -> tuple[ToolCall, ...]:
        if isinstance(self.syntax, NativeCalls):
            found = renderer.calls(text, finish, self.tools)
        else:
            found = self.syntax.parse(text, finish)
        return checked(found, self.tools, max_calls=self.settings.max_calls)

    async def answer(self, turn: Turn) -> Turn:
        """The results of a turn's calls, as the turn after it. Raises ``ToolUnavailable``."""
        results = await self.toolbox.run(turn.calls, self.tools, turn.text)
        shown = self.syntax.show(results)
        parts = (Part(shown, source="results"),) if shown else ()
        return make_turn(turn.id, TOOLS, parts, results=results, author="environment")


def lines_of(turn: Turn, results: Sequence[ToolResult]) -> list[str]:
    """Calls with their results, as a person is shown them."""
    told = {one.call_id: one for one in results}
    return [
        f"[{call.name} {call.arguments}]\n{told[call.id].text}"
        for call in turn.calls
        if call.id in told
    ]


@asynccontextmanager
async def open_tools(
    settings: ToolsSettings, renderer: ChatRenderer, seed: int
) -> AsyncIterator[ChatTools | None]:
    """The tools; ``None`` if there are none. Raises ``UserError`` for what can't be had, or called by this model."""
    if not settings.use:
        yield None
        return
    sources = sources_of(settings.use, settings.config)
    syntax = syntax_of(sources, settings)
    if isinstance(syntax, NativeCalls):
        renderer.tools.required()
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(open_toolbox(sources, settings))
        of_session = [one for one in sources if isinstance(one, SessionSource)]
        if of_session:
            shared, own = Shared(await stack.enter_async_context(Sandbox())), dict[str, Function]()
            for source in of_session:
                own |= await stack.enter_async_context(source.open_session(seed, shared))
            box = box.beside(own)
        offered = tuple(tool for source in sources for tool in source.tools)
        yield ChatTools(box, offered, syntax, settings)
