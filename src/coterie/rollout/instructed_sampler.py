"""Samplers that instruct the model to write a worse or better step, or to follow a principle that it writes first.

DensePolicy makes siblings differ by such instructions, or by temperature. Only the prompt of the instructed step has
the instruction: later prompts do not repeat it, and training removes it (:func:`drop_requests`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coterie.record.turn import Message, Part
from coterie.rollout.grower import gather_all
from coterie.rollout.samplers import AgentContext, CandidateSampler, Prompt, Response, TokenSampler

REQUEST = "request"
"""Source of the prompt part with the instruction."""
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
    """Sampler with an instruction; ``plain`` samples the step that ``contrast_instruct`` rewrites."""

    sampler: TokenSampler
    plain: TokenSampler
    kind: Kind
    better: bool = False
    """Request a better step instead of a worse one."""

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Sample one step; the context continues without the instruction."""
        (response,) = await self.candidates(prompt, context, [prompt.seed])
        context.add(response, prompt.messages)
        return response

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        draws = list(draws) or [prompt.draw] * len(seeds)
        return await gather_all(
            [
                self._sample(prompt, context, seed, draw)
                for seed, draw in zip(seeds, draws, strict=True)
            ]
        )

    async def _sample(
        self, prompt: Prompt, context: AgentContext, seed: int, draw: int
    ) -> Response:
        instructed = add_request(prompt, await self._request(prompt, context, seed))
        (response,) = await self.sampler.candidates(instructed, context, [seed], [draw])
        return response

    async def _request(self, prompt: Prompt, context: AgentContext, seed: int) -> str:
        if self.kind == "fixed_instruct":
            return WORSE
        if self.kind == "contrast_instruct":
            (step,) = await self.plain.candidates(prompt, context, [seed])
            return REWRITE[self.better].format(step=step.turn.text.strip())
        question = add_request(prompt, PRINCIPLE[self.better])
        (principle,) = await self.sampler.candidates(question, context, [seed])
        return FOLLOW[self.better].format(principle=" ".join(principle.turn.text.split()))


def add_request(prompt: Prompt, request: str) -> Prompt:
    """Append a request to the last message of a prompt."""
    *before, last = prompt.messages
    parts = last.parts if last.turn is None else prompt.tree.turns[last.turn].parts
    instructed = Message(last.role, (*parts, Part(f"\n\n{request}", source=REQUEST)))
    return replace(prompt, messages=(*before, instructed))


def drop_requests(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Recontext rule: remove requests from messages."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != REQUEST)) for m in messages
    )


def instructed_samplers(
    kind: Kind, greedy: TokenSampler, sampled: TokenSampler, count: int
) -> list[CandidateSampler]:
    """Return samplers by label: the first is greedy without a request, the others alternate better and worse steps.

    With ``fixed_instruct`` all others request worse steps.
    """
    others = [
        InstructedSampler(sampled, greedy, kind, kind != "fixed_instruct" and bool(label % 2))
        for label in range(1, count)
    ]
    return [greedy, *others]
