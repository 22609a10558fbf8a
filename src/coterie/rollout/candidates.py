"""Candidate turns for every agent turn of a dialogue, to train on or to return the best.

SWEET-RL (arXiv 2503.15478, section 4.2) samples candidates from the policy that played the dialogue and ranks them with
a critic. One pass over each turn's prompt samples all of its candidates, and a dialogue and its candidates are one
tree (:class:`CandidateSampling`).

:class:`BestOfSampler` returns the best candidate of each turn, as in the paper's figure 3a. The tree keeps the other
candidates as its siblings.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from coterie.environments.protocol import State, agents_of
from coterie.record.tree import Task, Tree
from coterie.record.turn import Turn, digest, make_turn
from coterie.rollout.branches import context_at
from coterie.rollout.episodes import Driver
from coterie.rollout.recorded_turns import state_after
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.transitions import Position
from coterie.rollout.tree_search import Rollout, TreeGrower, gather_all

FIRST_DRAW = 1000
"""First draw number of candidates; the draws of played turns are sample numbers below it."""


@dataclass(frozen=True, slots=True)
class PlayedDialogue:
    """A dialogue to sample candidates for."""

    task: Task
    sample: int
    path: Sequence[Turn]

    @property
    def key(self) -> str:
        return f"{self.sample:04d}"


@dataclass(slots=True)
class CandidateSampling:
    """Copies a dialogue into a new tree and samples candidates at each agent turn.

    The environment must be pure, with a state that follows from the turns alone.
    """

    driver: Driver
    sampler: TokenSampler
    sessions: Sessions
    iteration: int
    stage: str
    count: int

    async def branch(self, dialogue: PlayedDialogue) -> Tree:
        """Return the tree of a dialogue with all candidates.

        Raises:
            EngineError: Sampling failed.
        """
        tree = Tree(dialogue.task.id, self.stage, self.iteration)
        branches = self.driver.branches(dialogue.task, tree, self.sessions)
        samplers = dict.fromkeys(agents_of(self.driver.environment), self.sampler)
        key = (self.driver.seed, self.iteration, self.stage, dialogue.task.id, dialogue.sample)

        def seed(candidate: Rollout, at: Position, among: int) -> int:
            place, number = candidate.search, candidate.number
            return int(digest("candidate", *key, place, number)[:15], 16)

        grower = TreeGrower(branches, lambda *_: samplers, seed)
        positions: list[Position] = []
        at = Position(tree.root, State(dialogue.task, branches.seed))
        for turn in dialogue.path:
            contexts = dict(at.contexts)
            if turn.speaker.name in samplers:
                positions.append(at)
                prompt = branches.prompt(at, turn.speaker.name, 0, turn.draw)
                contexts[prompt.agent] = context_at(at, prompt.agent)
                response = repeated_response(prompt, contexts[prompt.agent], turn, self.sampler)
                again = response.turn
                tree.add(again, response.request)
            else:
                who = (turn.speaker, turn.parts)
                again = make_turn(at.node, *who, author=turn.author, draw=turn.draw)
                tree.add(again)
            state = await state_after(self.driver.environment, at.state, again)
            at = Position(again.id, state, contexts)
        first = FIRST_DRAW * (dialogue.sample + 1)
        draws = range(first, first + self.count)
        groups = await gather_all(
            [
                grower.sample(one, [Rollout(place, n, one.node) for n in range(self.count)], draws)
                for place, one in enumerate(positions)
            ]
        )
        for one in [response for group in groups for step in group for response in step]:
            tree.add(one.turn, one.request)
        return tree


def repeated_response(
    prompt: Prompt, context: AgentContext, turn: Turn, sampler: TokenSampler
) -> Response:
    """Copy a turn with its ids to the same prompt in another tree, and update ``context``."""
    prompt_ids = sampler.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    sample = None if turn.sample is None else replace(turn.sample, request=request.id)
    prompted = replace(turn, sample=sample, request=None if sample else request.id)
    again = prompted.moved(prompt.parent, turn.speaker, ())
    response = Response(again, request, len(turn.ids))
    context.add(response, prompt.messages)
    return response


def candidates(tree: Tree) -> list[list[Turn]]:
    """Return the candidates of a tree, grouped by the turn and dialogue they are for, in order of draw."""
    groups: dict[tuple[str, int], list[Turn]] = {}
    for turn in tree.turns.values():
        if turn.sample is not None and turn.draw >= FIRST_DRAW:
            groups.setdefault((turn.parent, turn.draw // FIRST_DRAW), []).append(turn)
    return [sorted(turns, key=lambda turn: turn.draw) for turns in groups.values()]


Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]


@dataclass(eq=False)
class BestOfSampler:
    """Sampler that returns the best of ``count`` candidates."""

    sampler: TokenSampler
    count: int
    score: Score

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the candidate with the highest score; the first one on ties."""
        seeds = [int(digest("best of", prompt.seed, n)[:15], 16) for n in range(self.count)]
        first = FIRST_DRAW * (prompt.draw + 1)
        draws = range(first, first + self.count)
        candidates = await self.sampler.candidates(prompt, context, seeds, draws)
        for candidate in candidates:
            prompt.tree.add(candidate.turn, candidate.request)
        scores = await self.score(prompt.tree, [candidate.turn for candidate in candidates])
        best = candidates[max(range(self.count), key=lambda n: scores[n])]
        context.add(best, prompt.messages)
        return best
