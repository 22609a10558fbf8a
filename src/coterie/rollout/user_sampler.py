"""Sampler of a simulated user's turns; the simulator is a script, a model or an endpoint."""

from collections.abc import Sequence

from coterie.environments.user_simulator import PERSON, UserSimulator
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response, utterance

SILENCE = "…"
"""Text of an empty reply."""


class UserSampler:
    """Sampler that passes the task and the dialogue to a user simulator."""

    def __init__(self, simulator: UserSimulator) -> None:
        self.simulator = simulator

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the user's reply to the dialogue."""
        assert prompt.task is not None, "a user simulator needs a task"
        dialogue = [utterance(message, prompt) for message in prompt.messages]
        transcript = [
            (PERSON if one.role == "assistant" else "agent", one.text) for one in dialogue
        ]
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
        """Return one reply for all seeds: equal dialogues get equal replies."""
        response = await self.respond(prompt, context)
        return [response] * len(seeds)
