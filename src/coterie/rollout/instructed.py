"""Samplers that ask for a step of another kind: worse, better, or by a principle that the model writes first.

DensePolicy's ways of making siblings differ that are not temperatures. What is asked is in the prompt of the step
alone: the next step's prompt does not have it, and training drops it (:func:`drop_requests`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coterie.rollout.grower import together
from coterie.rollout.samplers import AgentContext, CandidateSampler, Prompt, Response, TokenSampler
from coterie.trajectories.turn import Message, Part

REQUEST = "request"
"""Source of the part that asks for a step of another kind."""
Kind = Literal["fixed_instruct", "contrast_instruct", "meta_instruct"]
WORSE = (
    "Write a message that is allowed, but a less efficient or less careful next step than your best one. Do not say "
    "that it is."
)
REWRITE = {
    True: "Your next message would be:\n{step}\nWrite a better one in its place, and nothing else.",
    False: "Your next message would be:\n{step}\nWrite a worse one in its place, which a careless person might write, "
    "and nothing else.",
}
PRINCIPLE = {
    True: "Before you go on: write one sentence that says what makes a next step good here. Write nothing else.",
    False: "Before you go on: write one sentence that says which mistake is easily made here. Write nothing else.",
}
FOLLOW = {
    True: "Write your next message so that it follows this: {principle}",
    False: "Write your next message so that it makes this mistake: {principle} Do not say that it does.",
}


@dataclass(frozen=True, slots=True)
class InstructedSampler:
    """Asks a sampler for a step of another kind. ``plain`` says what the step would be without."""

    sampler: TokenSampler
    plain: TokenSampler
    kind: Kind
    better: bool = False
    """Whether a better step is asked for, or a worse one."""

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """One step; the context goes on without what was asked."""
        (response,) = await self.candidates(prompt, context, [prompt.seed])
        context.add(response, prompt.shown)
        return response

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        numbers = list(draws) or [prompt.draw] * len(seeds)
        found = [
            self._one(prompt, context, seed, draw)
            for seed, draw in zip(seeds, numbers, strict=True)
        ]
        return await together(found)

    async def _one(self, prompt: Prompt, context: AgentContext, seed: int, draw: int) -> Response:
        asked = asking(prompt, await self._request(prompt, context, seed))
        (response,) = await self.sampler.candidates(asked, context, [seed], [draw])
        return response

    async def _request(self, prompt: Prompt, context: AgentContext, seed: int) -> str:
        if self.kind == "fixed_instruct":
            return WORSE
        if self.kind == "contrast_instruct":
            (step,) = await self.plain.candidates(prompt, context, [seed])
            return REWRITE[self.better].format(step=step.turn.text.strip())
        (said,) = await self.sampler.candidates(
            asking(prompt, PRINCIPLE[self.better]), context, [seed]
        )
        return FOLLOW[self.better].format(principle=" ".join(said.turn.text.split()))


def asking(prompt: Prompt, request: str) -> Prompt:
    """The prompt with a request at the end of its last message."""
    *before, last = prompt.shown
    parts = last.parts if last.turn is None else prompt.tree.turns[last.turn].parts
    said = Message(last.role, (*parts, Part(f"\n\n{request}", source=REQUEST)))
    return replace(prompt, shown=(*before, said))


def drop_requests(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """A recontext rule: the same messages without what was asked besides."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != REQUEST)) for m in messages
    )


def speakers(
    kind: Kind, greedy: TokenSampler, sampled: TokenSampler, count: int
) -> list[CandidateSampler]:
    """Samplers by label: the first is greedy and asked for nothing, of the others every second is to be better.

    With ``fixed_instruct`` all others are to be worse.
    """
    others = [
        InstructedSampler(sampled, greedy, kind, kind != "fixed_instruct" and bool(label % 2))
        for label in range(1, count)
    ]
    return [greedy, *others]
