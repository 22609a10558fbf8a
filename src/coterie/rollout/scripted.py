"""A sampler that says what a script has for a task: an expert's path, played with the real tools.

Its turns have the tokens that a policy would have sampled: a message that a stop string ends has no more after it, and
any other ends with the token that ends a turn. So a path is trained on as a sampled one is, with its author named.
"""

from collections.abc import Callable, Sequence

from coterie.engines.protocol import EngineError
from coterie.models.chat import ChatRenderer
from coterie.rollout.recorded import recorded
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.trajectories.task import Task

EXPERT = "expert"
Script = Callable[[Task], Sequence[str]]
"""All messages of the agent for a task, in order."""


class ScriptedSampler:
    """Says the messages of a script one after the other."""

    def __init__(self, renderer: ChatRenderer, script: Script, author: str = EXPERT) -> None:
        self.renderer = renderer
        self.script = script
        self.author = author

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The next message. Raises ``EngineError`` where the script is over, or has one that could not be sampled."""
        assert prompt.task is not None, "a script is of a task"
        messages = self.script(prompt.task)
        place = sum(
            turn.speaker.kind == "agent" and turn.speaker.name == prompt.agent
            for turn in prompt.tree.path(prompt.parent)
        )
        if place >= len(messages):
            raise EngineError(
                f"the script of task {prompt.task.id} has {len(messages)} messages, and one more is asked for"
            )
        text = messages[place]
        stopped = stopped_at(text, prompt.stop)
        if stopped not in (None, len(text)):
            raise EngineError(
                f"message {place + 1} of the script of task {prompt.task.id} goes on after {text[:stopped][-40:]!r}, "
                "where a message ends"
            )
        ended = stopped is None
        return recorded(prompt, context, text, self.author, self.renderer, ended=ended)


def stopped_at(text: str, stops: Sequence[str]) -> int | None:
    """Where sampling would have stopped: after the first stop string; ``None`` if there is none."""
    return min((text.index(one) + len(one) for one in stops if one in text), default=None)
