"""Candidates for turns: several samples of a turn, as siblings in a tree.

SWEET-RL (arXiv 2503.15478, section 4.2) samples candidates for every agent turn of a dialogue
(:class:`CandidateSampling`), and of the candidates of a turn plays the best (:class:`BestOfSampler`).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from coterie.environments.protocol import Environment, Shared, State, agents_of, faults_of
from coterie.record.tree import Task, Tree
from coterie.record.turn import Request, Turn, digest, make_turn
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import Driver
from coterie.rollout.positions import (
    Position,
    context_at,
    gather_all,
    left_after,
    make_step_result,
    sample_in_context,
)
from coterie.rollout.samplers import AgentContext, Prompt, Response, TokenSampler
from coterie.rollout.sessions import Sessions

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
        """Return the tree of a dialogue with all candidates. Raises ``EngineError`` if sampling fails."""
        environment, task = self.driver.environment, dialogue.task
        tree = Tree(task.id, self.stage, self.iteration)
        branches = self.driver.branches(task, tree, self.sessions)
        agents, branching = agents_of(environment), list[tuple[Position, str, list[int]]]()
        key = (self.driver.seed, self.iteration, self.stage, task.id, dialogue.sample)
        # Each dialogue has a range of draws of its own, by which its candidates are grouped later.
        first_draw = FIRST_DRAW * (dialogue.sample + 1)
        position = Position(tree.root, State(task, branches.seed))
        for turn in dialogue.path:
            contexts, agent = dict(position.contexts), turn.speaker.name
            if agent in agents:
                # The seeds follow from the dialogue and the turn alone, so an interrupted stage repeats them.
                seeds = [digest("candidate", *key, len(branching), n) for n in range(self.count)]
                branching.append((position, agent, [int(seed[:15], 16) for seed in seeds]))
                # Copy the agent's turn below a prompt of this tree, so that later requests are deltas on it.
                prompt = branches.prompt(position, agent, 0, turn.draw)
                context = context_at(environment, position, agent, prompt.messages)
                copied_turn, request = _repeated(prompt, context, turn, self.sampler)
                contexts[agent] = context.after(copied_turn, request)
                tree.add(copied_turn, request)
            else:
                # A turn of a person or of the environment has no tokens, only content.
                speaker_and_parts = (turn.speaker, turn.parts)
                copied_turn = make_turn(
                    position.node, *speaker_and_parts, author=turn.author, draw=turn.draw
                )
                tree.add(copied_turn)
            position = Position(
                copied_turn.id,
                await _state_after(environment, position.state, copied_turn),
                contexts,
            )
        # All turns of the dialogue are known now, so the candidates of all of them are sampled at once.
        work = [
            self._candidates(branches, *branching_point, first_draw)
            for branching_point in branching
        ]
        for group in await gather_all(work):
            for response in group:
                tree.add(response.turn, response.request)
        return tree

    async def _candidates(
        self,
        branches: Branches,
        position: Position,
        agent: str,
        seeds: Sequence[int],
        first_draw: int,
    ) -> list[Response]:
        """Sample all candidates with one pass over the prompt."""
        # The seed and draw of the prompt are unused, since every candidate has its own.
        draws = range(first_draw, first_draw + self.count)
        prompt_here = branches.prompt(position, agent, 0, 0)
        context = context_at(branches.environment, position, agent, prompt_here.messages)
        return await sample_in_context(
            branches.environment,
            position.state,
            prompt_here,
            lambda prompt: self.sampler.candidates(prompt, context, seeds, draws),
        )


async def _state_after(environment: Environment, state: State, turn: Turn) -> State:
    """Return the state of a pure environment after a recorded turn, without the environment's observations.

    The state ends if the environment ends it at this turn, even if the recorded path continues.
    """
    # The first state has no counts yet. An end is removed, because the recorded path continues.
    budgets = left_after(state.left or environment.limits, [turn])
    next_state = replace(state, turns=(*state.turns, turn), left=budgets, end=None)
    with faults_of(environment):
        transition = await environment.act(next_state, (turn,), Shared())
        # The recorded observations are turns of the path already.
        silent = replace(transition, seen=(), rewards={})
        return make_step_result(turn.id, next_state, (turn,), silent, {}, None).position.state


def _repeated(
    prompt: Prompt, context: AgentContext, turn: Turn, sampler: TokenSampler
) -> tuple[Turn, Request]:
    """Copy a turn with its ids to the same prompt in another tree."""
    # Request ids differ between trees, so the sample must refer to the new one.
    prompt_ids = sampler.render(prompt.messages, prompt.tree, prompt.agent, tools=prompt.tools)
    request = prompt.request(prompt_ids, context)
    sample = None if turn.sample is None else replace(turn.sample, request=request.id)
    prompted = replace(turn, sample=sample, request=None if sample else request.id)
    return prompted.moved(prompt.parent, turn.speaker, ()), request


def candidates(tree: Tree) -> list[list[Turn]]:
    """Return the candidates of a tree, grouped by the turn and dialogue they are for, in order of draw."""
    groups: dict[tuple[str, int], list[Turn]] = {}
    for turn in tree.turns.values():
        # Turns of the dialogue itself have draws below this number.
        if turn.sample is not None and turn.draw >= FIRST_DRAW:
            groups.setdefault((turn.parent, turn.draw // FIRST_DRAW), []).append(turn)
    return [sorted(turns, key=lambda turn: turn.draw) for turns in groups.values()]


Score = Callable[[Tree, Sequence[Turn]], Awaitable[Sequence[float]]]


@dataclass(eq=False)
class BestOfSampler:
    """Sampler of the best of ``count`` candidates (SWEET-RL's figure 3a). The tree keeps the others as siblings."""

    sampler: TokenSampler
    count: int
    score: Score

    @property
    def width(self) -> int:
        return self.sampler.width

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        """Return the candidate with the highest score; the first one on ties."""
        seeds = [int(digest("best of", prompt.seed, n)[:15], 16) for n in range(self.count)]
        first_draw = FIRST_DRAW * (prompt.draw + 1)
        draws = range(first_draw, first_draw + self.count)
        candidates = await self.sampler.candidates(prompt, context, seeds, draws)
        # The tree keeps all candidates for the record; adding the best one again changes nothing.
        for candidate in candidates:
            prompt.tree.add(candidate.turn, candidate.request)
        scores = await self.score(prompt.tree, [candidate.turn for candidate in candidates])
        return candidates[max(range(self.count), key=lambda n: scores[n])]
