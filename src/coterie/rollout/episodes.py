"""Plays dialogues: every episode starts at once, the engine batches whatever waits.

One episode is one sample of one task. Its random numbers come from its key (seed, iteration,
stage, task, sample, turn), so what it says does not depend on what else runs. A failure ends that
episode alone and is reported with its reason.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.dialogue import (
    DialogueEnvironment,
    DialogueState,
    begin,
    graded,
    messages,
    next_agent,
    step,
)
from coterie.environments.services import NO_SERVICES, Services
from coterie.rollout.flight import in_flight
from coterie.rollout.samplers import AgentContext, Prompt, Sampler
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Turn, digest

MESSAGES = "messages"
"""The metric of a dialogue that counts its agents' messages."""
CUT_OFF = "cut_off"
"""The one that counts those that ran to the limit of tokens; of many dialogues, the share of all messages."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One sample of one task."""

    task: Task
    sample: int
    iteration: int
    stage: str
    format: str | None = None
    """The format prompt of this episode, if any."""

    @property
    def key(self) -> ItemKey:
        """Under which the store has it."""
        return ItemKey(self.iteration, self.stage, self.task.id, f"{self.sample:04d}")


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished episode: its tree of one path, or why it failed."""

    episode: Episode
    tree: Tree | None
    failure: str | None = None
    tokens: int = 0
    """Of all its agents' turns, as their maker counts."""
    metrics: Metrics = field(default_factory=dict)
    """What the environment found in grading it, and how many messages there are and were cut off."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """By turn: what the environment gave for it."""


class Player:
    """Plays episodes of one environment with one sampler for all agents."""

    def __init__(
        self,
        environment: DialogueEnvironment,
        sampler: Sampler,
        seed: int,
        services: Services = NO_SERVICES,
    ) -> None:
        self.environment = environment
        self.sampler = sampler
        self.seed = seed
        self.services = services

    def play_all(
        self, episodes: Sequence[Episode]
    ) -> AbstractAsyncContextManager[AsyncIterator[Finished]]:
        """Start all episodes; gives each as it finishes. None outlives the block (``in_flight``).

        The block raises ``EngineGone`` when the engine will answer nobody.
        """
        work = (self._guarded(episode) for episode in episodes)
        return in_flight(work, limit=max(len(episodes), 1))

    async def _guarded(self, episode: Episode) -> Finished:
        try:
            return await self.play(episode)
        except EngineGone:
            raise
        except EngineError as error:
            return Finished(episode, None, str(error))

    async def play(self, episode: Episode) -> Finished:
        """Play one episode to its end. Raises :class:`EngineError` if the engine gives up on it."""
        tokens = messages_said = truncated = 0
        tree = Tree(episode.task.id, episode.stage, episode.iteration)
        state = begin(self.environment, episode.task, tree.root, episode.format)
        for turn in state.turns:
            tree.add(turn)
        contexts = {agent: AgentContext() for agent in self.environment.agents}
        while state.end is None:
            agent = next_agent(self.environment, state)
            prompt = self._prompt(tree, state, agent, episode)
            response = await self.sampler.respond(prompt, contexts[agent])
            tree.add(response.turn, response.request)
            tokens += response.tokens
            messages_said += 1
            truncated += response.truncated
            known = len(state.turns)
            state = await step(
                self.environment,
                state,
                response.turn,
                truncated=response.truncated,
                services=self.services,
            )
            for turn in state.turns[known + 1 :]:
                tree.add(turn)
        grade = await graded(self.environment, state, self.services)
        leaf = state.turns[-1].id
        tree.end(Outcome(leaf, episode.sample, state.end, state.answer, grade.score))
        metrics = {**grade.metrics, MESSAGES: messages_said, CUT_OFF: truncated}
        return Finished(episode, tree, tokens=tokens, metrics=metrics)

    def _prompt(self, tree: Tree, state: DialogueState, agent: str, episode: Episode) -> Prompt:
        parent = state.turns[-1].id if state.turns else tree.root
        shown = messages(self.environment, state, agent)
        seed = self._seed(episode, len(state.turns))
        return Prompt(tree, parent, agent, shown, seed, episode.sample)

    def _seed(self, episode: Episode, turn: int) -> int:
        key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample, turn)
        return int(digest("seed", *key)[:15], 16)


def dialogue_tokens(path: Sequence[Turn]) -> int:
    """Tokens of a dialogue: those of its turns, end-of-turn tokens included.

    Turns that came as text have none; what their endpoint counted is among the item's metrics.
    """
    return sum(len(turn.ids) for turn in path)
