"""Plays dialogues: every episode starts at once, the engine batches whatever waits.

One episode is one sample of one task. Its random numbers come from its key (seed, iteration,
stage, task, sample, turn), so what it says does not depend on what else runs. A failure ends that
episode alone and is reported with its reason.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from coterie.engines.protocol import Completion, Engine, EngineError, Sampling
from coterie.environments.dialogue import (
    DialogueEnvironment,
    DialogueState,
    messages,
    next_agent,
    step,
)
from coterie.rollout.flight import in_flight
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import (
    Message,
    Part,
    Request,
    Sample,
    Speaker,
    Turn,
    digest,
    make_turn,
)
from coterie.trajectories.view import Render


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of one task."""

    task: Task
    sample: int
    iteration: int
    stage: str
    format: str | None = None
    """The format prompt of this episode, if any."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished episode: its tree of one path, or why it failed."""

    episode: Episode
    tree: Tree | None
    failure: str | None = None


class Player:
    """Plays episodes of one environment with one engine."""

    def __init__(
        self,
        environment: DialogueEnvironment,
        engine: Engine,
        render: Render,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.environment = environment
        self.engine = engine
        self.render = render
        self.sampling = sampling
        self.seed = seed

    async def play_all(self, episodes: Sequence[Episode]) -> AsyncIterator[Finished]:
        """Start all episodes; yield each as it finishes. Closing the iterator cancels the rest."""
        work = (self._guarded(episode) for episode in episodes)
        async for finished in in_flight(work, limit=max(len(episodes), 1)):
            yield finished

    async def _guarded(self, episode: Episode) -> Finished:
        try:
            return Finished(episode, await self.play(episode))
        except EngineError as error:
            return Finished(episode, None, str(error))

    async def play(self, episode: Episode) -> Tree:
        """Play one episode to its end. Raises :class:`EngineError` if the engine gives up on it."""
        tree = Tree(episode.task.id, episode.stage, episode.iteration)
        state = DialogueState(episode.task, episode.format)
        memory: dict[str, _Memory] = {}
        while state.end is None:
            agent = next_agent(self.environment, state)
            turn = await self._speak(
                tree, state, agent, memory.setdefault(agent, _Memory()), episode
            )
            state = await step(self.environment, state, turn)
        score = (
            self.environment.score(episode.task, state.answer) if state.end != "runaway" else 0.0
        )
        leaf = state.turns[-1].id
        tree.end(Outcome(leaf, episode.sample, state.end, state.answer, score))
        return tree

    async def _speak(
        self, tree: Tree, state: DialogueState, agent: str, memory: "_Memory", episode: Episode
    ) -> Turn:
        parent = state.turns[-1].id if state.turns else tree.root
        shown = messages(self.environment, state, agent)
        prompt = self.render(shown, tree, agent)
        request = Request.make(
            agent, parent, memory.turn, prompt, shown, memory.ids, memory.messages
        )
        seed = self._seed(episode, len(state.turns))
        (completion,) = await self.engine.sample(prompt, [seed], self.sampling)
        turn = make_turn(
            parent,
            Speaker("agent", agent),
            [Part(completion.text, source="sampled")],
            sample=self._sample(request.id, completion),
            draw=episode.sample,
        )
        tree.add(turn, request)
        memory.turn = turn.id
        memory.ids = prompt + completion.ids
        memory.messages = (*shown, Message("assistant", turn=turn.id))
        return turn

    def _sample(self, request: str, completion: Completion) -> Sample:
        return Sample(
            request,
            completion.ids,
            completion.logprobs,
            completion.finish,
            self.engine.policy,
            self.engine.version,
            completion.seed,
            self.sampling.temperature,
            self.sampling.top_p,
        )

    def _seed(self, episode: Episode, turn: int) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample, turn)
        return int(digest("seed", *key)[:15], 16)


@dataclass(slots=True)
class _Memory:
    """What an agent has seen and said so far, for storing its next request as a delta."""

    turn: str | None = None
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()


def dialogue_tokens(path: Sequence[Turn]) -> int:
    """Tokens of a dialogue: those of its sampled turns, end-of-turn tokens included."""
    return sum(len(turn.ids) for turn in path if turn.sample)
