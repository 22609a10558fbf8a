"""Candidates for every turn of a dialogue that was played before: what else the policy might have said there.

SWEET-RL (arXiv 2503.15478, section 4.2) samples them by the policy that played the dialogue, and has a critic rank
them. A dialogue and its candidates are one tree; each turn's prompt is read once for all of its candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coterie.environments.protocol import State
from coterie.environments.traits import agents_of
from coterie.rollout.driver import Driver
from coterie.rollout.grower import Rollout, TreeGrower, together
from coterie.rollout.recorded import state_after
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.taken import context_at
from coterie.rollout.transitions import Position
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
        return f"{self.sample:04d}"


@dataclass(slots=True)
class Branching:
    """Says a dialogue again in a tree of its own, and asks for candidates at each turn of an agent.

    The environment is a pure one whose state follows from the turns: what was recorded is taken as it is.
    """

    driver: Driver
    sampler: TokenSampler
    sessions: Sessions
    iteration: int
    stage: str
    count: int

    async def branch(self, played: Played) -> Tree:
        """The tree of a dialogue with all candidates. Raises ``EngineError``."""
        tree = Tree(played.task.id, self.stage, self.iteration)
        branches = self.driver.branches(played.task, tree, self.sessions)
        samplers = dict.fromkeys(agents_of(self.driver.environment), self.sampler)
        key = (self.driver.seed, self.iteration, self.stage, played.task.id, played.sample)

        def seed(candidate: Rollout, at: Position, among: int) -> int:
            place, number = candidate.search, candidate.number
            return int(digest("candidate", *key, place, number)[:15], 16)

        grower = TreeGrower(branches, lambda *_: samplers, seed)
        asked: list[Position] = []
        at = Position(tree.root, State(played.task, branches.seed))
        for turn in played.path:
            if turn.speaker.name in samplers:
                asked.append(at)
                prompt = branches.prompt(at, turn.speaker.name, 0, turn.draw)
                at = await self._said(at, prompt, turn)
            else:
                at = await self._heard(at, tree, turn)
        first = FIRST_DRAW * (played.sample + 1)
        draws = range(first, first + self.count)
        ways = await together(
            [
                grower.ways(one, [Rollout(place, n, one.node) for n in range(self.count)], draws)
                for place, one in enumerate(asked)
            ]
        )
        for one in [response for group in ways for way in group for response in way]:
            tree.add(one.turn, one.request)
        return tree

    async def _said(self, at: Position, prompt: Prompt, turn: Turn) -> Position:
        context = context_at(at, prompt.agent)
        response = repeated_response(prompt, context, turn, self.sampler)
        context.add(response, prompt.shown)
        prompt.tree.add(response.turn, response.request)
        state = await state_after(self.driver.environment, at.state, response.turn)
        return Position(response.turn.id, state, {**at.contexts, prompt.agent: context})

    async def _heard(self, at: Position, tree: Tree, turn: Turn) -> Position:
        again = make_turn(at.node, turn.speaker, turn.parts, author=turn.author, draw=turn.draw)
        tree.add(again)
        state = await state_after(self.driver.environment, at.state, again)
        return Position(again.id, state, at.contexts)


def repeated_response(
    prompt: Prompt, context: AgentContext, turn: Turn, sampler: TokenSampler
) -> Response:
    """A turn said again, sampled or recorded: the same ids, under the same prompt in another tree."""
    prompt_ids = sampler.render(prompt.shown, prompt.tree, prompt.agent, tools=prompt.tools)
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
