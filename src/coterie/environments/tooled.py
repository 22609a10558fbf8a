"""A base class of pure environments whose agents may call the tools that a run brings."""

from coterie.environments.protocol import Observation, State, Syntax
from coterie.environments.pure import Pure
from coterie.environments.settings import ToolSettings
from coterie.tools.own import tags_of
from coterie.tools.run import CallLimits, run_calls
from coterie.trajectories.calls import Tool
from coterie.trajectories.turn import Speaker, Turn


class Tooled(Pure):
    """Calls and the final answer are tags in the text. The tools are those of its settings, which look at nothing of
    the state."""

    settings_type: type[ToolSettings] = ToolSettings

    def __init__(self, settings: ToolSettings) -> None:
        self.own = settings.found()
        self.tags = tags_of(self.own)
        self.syntax: Syntax | None = self.tags

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        """All of them, for every actor."""
        return tuple(one.tool for one in self.own)

    def taught(self) -> str:
        """What a prompt says of the tools, and of the form of an answer."""
        return self.tags.teach([one.tool for one in self.own])

    async def called(self, turn: Turn) -> tuple[Observation, ...]:
        """What a turn's calls gave; nothing if it has none."""
        if not turn.calls:
            return ()
        tools = [one.tool for one in self.own]
        functions = {one.tool.name: one.do for one in self.own}
        results = await run_calls(turn.calls, tools, functions, CallLimits())
        return (Observation(Speaker("tool", "tools"), results=results),)
