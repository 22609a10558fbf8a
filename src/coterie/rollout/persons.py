"""How a person's next turn is made: by a user simulator, which is a script, a model or an endpoint."""

from collections.abc import Sequence

from coterie.environments.user_simulator import PERSON, UserSimulator
from coterie.rollout.samplers import AgentContext, Prompt, Response, utterance
from coterie.trajectories.turn import Part, Speaker, make_turn

SILENCE = "…"
"""Stands for a reply that is empty."""


class PersonSampler:
    """Speaks by a user simulator, which is given the task and what was said."""

    def __init__(self, simulator: UserSimulator) -> None:
        self.simulator = simulator

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """The person's reply to the conversation."""
        assert prompt.task is not None, "a person is asked about a task"
        said = [utterance(message, prompt) for message in prompt.shown]
        transcript = [(PERSON if one.role == "assistant" else "agent", one.text) for one in said]
        reply = await self.simulator.reply(prompt.task, transcript, prompt.seed)
        turn = make_turn(
            prompt.parent,
            Speaker("person", prompt.agent),
            [Part(reply or SILENCE, source=PERSON)],
            author=self.simulator.name,
        )
        return Response(turn, None, 0)

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """The person's reply, once for all: the same words are answered alike."""
        response = await self.respond(prompt, context)
        return [response] * len(seeds)
