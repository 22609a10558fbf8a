"""Sampler that replays a task's script, such as an expert's path, with the real tools.

Its turns have the tokens that a policy would have sampled: a message ends with its stop string, or else with the
end-of-turn token. Scripted paths are therefore trained on like sampled paths, and name their author.
"""

from collections.abc import Callable, Sequence

from coterie.engines.protocol import EngineError
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Task
from coterie.rollout.recorded_turns import recorded_response
from coterie.rollout.samplers import AgentContext, Prompt, Response

EXPERT = "expert"
Script = Callable[[Task], Sequence[str]]
"""Function that returns all messages of the agent for a task, in order."""


class ScriptedSampler:
    """Sampler that returns the messages of a script one by one."""

    def __init__(self, renderer: ChatRenderer, script: Script, author: str = EXPERT) -> None:
        self.renderer = renderer
        self.script = script
        self.author = author

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the next message.

        Raises:
            EngineError: The script has no more messages, or a policy could not have sampled this one.
        """
        assert prompt.task is not None, "a script needs a task"
        messages = self.script(prompt.task)
        place = sum(
            turn.speaker.kind == "agent" and turn.speaker.name == prompt.agent
            for turn in prompt.tree.path(prompt.parent)
        )
        if place >= len(messages):
            raise EngineError(
                f"the script of task {prompt.task.id} has {len(messages)} messages, but another is needed"
            )
        text = messages[place]
        stopped = stopped_at(text, prompt.stop)
        if stopped not in (None, len(text)):
            raise EngineError(
                f"message {place + 1} of the script of task {prompt.task.id} continues after its stop string: "
                f"{text[:stopped][-40:]!r}"
            )
        return recorded_response(
            prompt, context, text, self.author, self.renderer, end=stopped is None
        )


def stopped_at(text: str, stops: Sequence[str]) -> int | None:
    """Return the end of the first stop string in a text; ``None`` without one."""
    return min((text.index(one) + len(one) for one in stops if one in text), default=None)
