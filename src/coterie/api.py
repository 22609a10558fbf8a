"""Environments and rollouts for custom loops.

    played = play(environment("exchange"), engine, tasks, samples=8)
    best = [max(group, key=reward) for group in by_task(played)]

The functions also work inside a running event loop, such as in a notebook.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.protocol import Environment, agents_of
from coterie.environments.registry import PlayedSettings, make_environment
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.record.export import begin_with_user, chat
from coterie.record.rows import Row, prompts, rows, view
from coterie.record.tree import Outcome, Task, Tree
from coterie.record.turn import Message, Turn
from coterie.rollout.episodes import Episode, EpisodeResult
from coterie.rollout.recorded_turns import Script, ScriptedSampler
from coterie.rollout.samplers import Sampler, TokenSampler
from coterie.runs.benchmark import benchmark_settings
from coterie.runs.items import open_actors
from coterie.tools.sandbox.pool import Sandbox

Result = TypeVar("Result")
Engines = InProcessEngine | Mapping[str, InProcessEngine]


@dataclass(frozen=True, slots=True)
class Played:
    """Rollout of a task: its turns and its score."""

    task: Task
    sample: int
    tree: Tree | None
    """Tree with a single path; ``None`` if the sample failed."""
    failure: str | None
    tokens: int
    metrics: Mapping[str, float | int | str]
    """Metrics from the environment's grade."""

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the rollout; ``None`` if it failed."""
        return next(iter(self.tree.outcomes.values())) if self.tree else None

    @property
    def score(self) -> float:
        """Score from the environment; 0 if the rollout failed or could not be graded."""
        score = self.outcome.score if self.outcome else None
        return 0.0 if score is None else score

    @property
    def path(self) -> Sequence[Turn]:
        return self.tree.path(self.outcome.leaf) if self.tree and self.outcome else ()

    def rows(self, agent: str | None = None, weight: float = 1.0) -> list[Row]:
        """Return training rows of an agent (by default of all), with its own turns as targets."""
        if self.tree is None or self.outcome is None:
            return []
        speakers = {turn.speaker.name for turn in self.path if turn.sample is not None}
        agents = [agent] if agent is not None else sorted(speakers)
        views = [view(self.tree, self.outcome.leaf, name) for name in agents]
        return [row for one in views for row in rows(one, weight) if row.targets]

    def __str__(self) -> str:
        lines = [f"{turn.speaker.name}: {turn.text}" for turn in self.path]
        return "\n".join([*lines, self.failure or f"score {self.score:g}"])


def environment(
    name: str, *, tools: Sequence[str] = (), calls: str = "native", **keys: object
) -> Environment:
    """Make an environment.

    Args:
        name: Environment or data set: a built-in name, an entry point, ``package.module:Class`` or
            ``path/file.py:Class``.
        tools: Tools of the agents, as in ``tools=[...]`` of a run.
        calls: Syntax of tool calls.
        **keys: Settings of the environment or data set (``source="sample"``, ``turns=5``).

    Raises:
        UserError: The name is unknown or the settings are invalid.
    """
    dataset_keys = ("source", "heldout", "question", "answer")
    words = [
        f"{'dataset' if key in dataset_keys else 'environment'}.{key}={value}"
        for key, value in keys.items()
    ]
    if tools:
        words += [f"tools=[{','.join(tools)}]", f"tools.calls={calls}"]
    return make_environment(benchmark_settings(PlayedSettings, name, words))


def play(
    environment: Environment,
    engines: Engines,
    tasks: Sequence[Task],
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 256,
    seed: int = 0,
) -> list[Played]:
    """Sample rollouts of tasks concurrently and return them in the order of tasks and samples.

    The same seed and weights give the same samples. A failed sample has the reason in ``Played.failure`` and scores 0.

    Args:
        environment: Environment of the tasks.
        engines: Engine of all agents, or a mapping with an engine for each agent.
        tasks: Tasks to play.
        samples: Number of rollouts per task.
        temperature: Sampling temperature.
        top_p: Nucleus sampling threshold.
        max_tokens: Maximum number of tokens per turn.
        seed: Seed of the rollouts.
    """
    if not isinstance(engines, InProcessEngine):
        absent = [agent for agent in agents_of(environment) if agent not in engines]
        if absent:
            raise UserError(
                f"there is no engine for {', '.join(absent)} (engines: {', '.join(engines) or 'none'})",
                "give one engine for all agents, or a mapping with one for each",
            )
    sampling = Sampling(temperature, top_p, max_tokens, ())
    samplers = {
        agent: _sampler(
            engines if isinstance(engines, InProcessEngine) else engines[agent], sampling
        )
        for agent in agents_of(environment)
    }
    episodes = [Episode(task, n, 0, "play") for task in tasks for n in range(samples)]
    results = run_now(_play(environment, samplers, episodes, seed))
    return [results[episode.key] for episode in episodes]


def demonstrate(
    environment: Environment, tasks: Sequence[Task], script: Script, *, seed: int = 0
) -> list[dict[str, Any]]:
    """Play the messages of an expert with the real tools, and return the dialogues as rows for ``coterie run sft``.

    Args:
        environment: Environment with one agent, whose tools, if it has some, are called by tags.
        tasks: Tasks to demonstrate.
        script: Function that returns all messages of the agent for a task, as a model would write them.
        seed: Seed of the environment.

    Returns:
        ``{"messages": [...]}`` of each task, with the prompts that the environment shows.

    Raises:
        UserError: A dialogue fails or does not score 1, or there are several agents or native calls.
    """
    agents = agents_of(environment)
    if len(agents) != 1:
        raise UserError(
            f"{environment.name} has {len(agents)} agents", "demonstrate an environment with one"
        )
    samplers = {agents[0]: ScriptedSampler(load_renderer("tiny-exchange")[0], script)}
    episodes = [Episode(task, 0, 0, "demonstrate") for task in tasks]
    results = run_now(_play(environment, samplers, episodes, seed))
    return [_demonstration(results[episode.key], agents[0]) for episode in episodes]


def _demonstration(rollout: Played, agent: str) -> dict[str, Any]:
    if rollout.tree is None or rollout.outcome is None or rollout.score < 1:
        raise UserError(
            f"the script of task {rollout.task.id} fails: {rollout}", "correct the script"
        )
    last = prompts(rollout.tree, rollout.outcome.leaf, agent)[-1][1]
    request = rollout.tree.requests[str(last.prompt)]
    if request.tools:
        raise UserError(
            "demonstrations have calls as tags, and these tools are shown by the chat template",
            "use calls='tags', or write messages with tool_calls yourself",
        )
    messages = (*rollout.tree.messages(request), Message("assistant", turn=last.id))
    return {"messages": begin_with_user(chat(rollout.tree, messages, agent))}


def by_task(rollouts: Sequence[Played]) -> list[list[Played]]:
    """Group the rollouts of each task, in the order of :func:`play`."""
    return [list(group) for _, group in itertools.groupby(rollouts, key=lambda one: one.task.id)]


def run_now(work: Coroutine[Any, Any, Result]) -> Result:
    """Run asynchronous work and return its result. Uses a new thread inside a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _play(
    environment: Environment,
    samplers: Mapping[str, Sampler],
    episodes: Sequence[Episode],
    seed: int,
) -> dict[Any, Played]:
    results = {}
    with tempfile.TemporaryDirectory() as logs:
        opened = open_actors(environment, Path(logs), openers={Sandbox: Sandbox})
        async with opened as actors, actors.driver(samplers, seed).play_all(episodes) as playing:
            async for one in playing:
                results[one.episode.key] = _rollout_of(one)
    return results


def _sampler(engine: InProcessEngine, sampling: Sampling) -> TokenSampler:
    loaded = engine.loaded
    renderer = loaded.renderer
    context = loaded.context_length
    return TokenSampler(engine, renderer.render, sampling, context, renderer.calls, renderer.parts)


def _rollout_of(finished: EpisodeResult) -> Played:
    task, sample = finished.episode.task, finished.episode.sample
    return Played(task, sample, finished.tree, finished.failure, finished.tokens, finished.metrics)
