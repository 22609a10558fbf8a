"""Candidates for every turn of a dialogue that was played before: what else the policy might have said there.

SWEET-RL (arXiv 2503.15478, section 4.2) samples them by the policy that played the dialogue, and has a critic rank
them. A dialogue and its candidates are one tree; each turn's prompt is read once for all of its candidates.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.environments.dialogue import DialogueEnvironment, DialogueState, messages
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn, digest, make_turn

FIRST_DRAW = 1000
"""Draws of candidates begin here, those of played turns are below: the number of a sample."""


@dataclass(frozen=True, slots=True)
class Played:
    """One dialogue, and where its candidates go."""

    task: Task
    sample: int
    path: Sequence[Turn]

    @property
    def key(self) -> str:
        """Of the item that its candidates are."""
        return f"{self.sample:04d}"


@dataclass(slots=True)
class Branching:
    """Says a dialogue again in a tree of its own, and asks for candidates at each turn of the agent."""

    environment: DialogueEnvironment
    sampler: TokenSampler
    iteration: int
    stage: str
    count: int
    """Candidates a turn."""
    seed: int

    async def branch(self, played: Played) -> Tree:
        """The tree of a dialogue with all candidates. Raises ``EngineError``."""
        tree = Tree(played.task.id, self.stage, self.iteration)
        agent = self.environment.agents[0]
        state, context = DialogueState(played.task, None), AgentContext()
        asked: list[tuple[Prompt, AgentContext]] = []
        node = tree.root
        for turn in played.path:
            if turn.speaker.name != agent:
                again = make_turn(
                    node, turn.speaker, turn.parts, author=turn.author, draw=turn.draw
                )
                tree.add(again)
            else:
                shown = messages(self.environment, state, agent)
                prompt = Prompt(tree, node, agent, shown, 0, turn.draw)
                asked.append((prompt, replace(context)))
                response = repeated_response(prompt, context, turn, self.sampler)
                context.add(response, shown)
                tree.add(response.turn, response.request)
                again = response.turn
            state = replace(state, turns=(*state.turns, again))
            node = again.id
        found = await asyncio.gather(
            *(self._candidates(played, place, *one) for place, one in enumerate(asked))
        )
        for one in [response for group in found for response in group]:
            tree.add(one.turn, one.request)
        return tree

    async def _candidates(
        self, played: Played, place: int, prompt: Prompt, context: AgentContext
    ) -> list[Response]:
        key = (self.seed, self.iteration, self.stage, played.task.id, played.sample, place)
        seeds = [int(digest("candidate", *key, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (played.sample + 1)
        draws = range(first, first + self.count)
        return await self.sampler.candidates(prompt, context, seeds, draws)


def repeated_response(
    prompt: Prompt, context: AgentContext, turn: Turn, sampler: TokenSampler
) -> Response:
    """A turn said again, sampled or recorded: the same ids, under the same prompt in another tree."""
    prompt_ids = sampler.render(prompt.shown, prompt.tree, prompt.agent)
    request = prompt.request(prompt_ids, context)
    sample = None if turn.sample is None else replace(turn.sample, request=request.id)
    again = make_turn(
        prompt.parent,
        turn.speaker,
        turn.parts,
        ids=turn.ids,
        sample=sample,
        author=turn.author,
        draw=turn.draw,
        request=None if sample else request.id,
        truncated=turn.truncated,
    )
    return Response(again, request, len(turn.ids))


def candidates(tree: Tree) -> list[list[Turn]]:
    """The candidates of a tree, those of one turn of one dialogue together, in the order in which they
    were drawn."""
    found: dict[tuple[str, int], list[Turn]] = {}
    for turn in tree.turns.values():
        if turn.sample is not None and turn.draw >= FIRST_DRAW:
            found.setdefault((turn.parent, turn.draw // FIRST_DRAW), []).append(turn)
    return [sorted(turns, key=lambda turn: turn.draw) for turns in found.values()]
