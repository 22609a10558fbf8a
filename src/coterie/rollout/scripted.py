"""An agent that says what is written for a task, one message after the other: an expert, or a file of traces.

Its turns have tokens and requests as sampled ones have, and no log-probs, so that they can be trained on.
"""

from collections.abc import Callable, Sequence

from coterie.engines.protocol import EngineError
from coterie.models.chat import ChatRenderer
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Part, Speaker, make_turn


class ScriptedSampler:
    """Says the messages of a script. One that ends with a stop string has no end of turn, as if it had been sampled."""

    def __init__(
        self, renderer: ChatRenderer, script: Callable[[Task], Sequence[str]], author: str
    ) -> None:
        self.renderer = renderer
        self.script = script
        self.author = author

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The next message. Raises ``EngineError`` where the script has no more."""
        assert prompt.task is not None, "a script is of a task"
        said, turns = self.script(prompt.task), prompt.tree.turns
        number = sum(
            one.turn is not None and turns[one.turn].speaker.name == prompt.agent
            for one in prompt.shown
        )
        if number >= len(said):
            raise EngineError(
                f"the script of task {prompt.task.id} is over after {len(said)} messages"
            )
        text = said[number]
        ids = self.renderer.written(text, ended=not text.endswith(prompt.stop))
        prompt_ids = self.renderer.render(
            prompt.shown, prompt.tree, prompt.agent, tools=prompt.tools
        )
        request = prompt.request(prompt_ids, context)
        turn = make_turn(
            prompt.parent,
            Speaker("agent", prompt.agent),
            [Part(text)],
            ids=ids,
            author=self.author,
            draw=prompt.draw,
            request=request.id,
        )
        response = Response(turn, request, len(ids))
        context.add(response, prompt.shown)
        return response
