"""Sampling of a step: groups of paths with the newest policy.

With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) it samples groups until enough have different rewards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.engines.protocol import Engine, Sampling
from coterie.environments.checks import draw_tasks
from coterie.environments.protocol import Environment
from coterie.progress import Progress
from coterie.record.tree import Task
from coterie.rewards.path_reward import PathReward
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.actors import Actors
from coterie.runs.folder import Run
from coterie.runs.play import play
from coterie.runs.reinforce.paths import AgentPath, paths_of
from coterie.runs.reinforce.settings import GroupSettings


@dataclass(slots=True)
class StepSamples:
    """Samples of one step."""

    draws: int
    """Number of draws of tasks over all steps so far."""
    rounds: int = 0
    tasks: list[str] = field(default_factory=list)
    paths: list[AgentPath] = field(default_factory=list)
    played: int = 0
    """Number of samples, including failed samples."""
    unmeasured: tuple[str, ...] = ()
    """Names in ``reward.measures`` that no dialogue of the step has."""


@dataclass(frozen=True, slots=True)
class GroupSampler:
    """Samples the groups of each step."""

    run: Run
    iteration: int
    stage: str
    environment: Environment
    actors: Actors
    settings: GroupSettings
    reward: PathReward
    agents: Sequence[str]
    seed: int

    async def sample(
        self,
        step: int,
        draws: int,
        samplers: Mapping[str, TokenSampler],
        enough: Callable[[StepSamples], bool],
        progress: Progress,
    ) -> StepSamples:
        """Play the tasks of a step, except for stored samples.

        ``draws`` is the number of draws before this step. Rounds end when ``enough`` returns True.
        """
        samples = StepSamples(draws)
        while samples.rounds < self.settings.rounds:
            tasks = self._tasks(samples)
            if not tasks:
                break
            await self._play(step, tasks, samplers, progress)
            names = [task.id for task in tasks]
            samples.tasks += names
            samples.played += len(names) * self.settings.samples
            at = step_stage(self.stage, step)
            samples.paths += paths_of(
                *(self.run.store, self.iteration, at, names, self.agents), self.reward
            )
            if enough(samples):
                break
        samples.unmeasured = self._unmeasured(step)
        return samples

    def _unmeasured(self, step: int) -> tuple[str, ...]:
        weighted = self.reward.settings.measures
        if not weighted:
            return ()
        metrics = self.run.store.metrics(self.iteration, step_stage(self.stage, step))
        known = {name for key, measures in metrics.items() if key.task for name in measures}
        return tuple(name for name in weighted if name not in known)

    def _tasks(self, samples: StepSamples) -> list[Task]:
        """Draw tasks that the step does not have yet."""
        count, known = self.settings.draw_count, set(samples.tasks)
        before = [count] * samples.draws
        tasks = draw_tasks(self.environment, "train", count, self.seed, before)
        samples.draws += 1
        samples.rounds += 1
        return [task for task in tasks if task.id not in known]

    async def _play(
        self,
        step: int,
        tasks: Sequence[Task],
        samplers: Mapping[str, TokenSampler],
        progress: Progress,
    ) -> None:
        episodes = [
            Episode(task, sample, self.iteration, step_stage(self.stage, step))
            for task in tasks
            for sample in range(self.settings.samples)
        ]
        engines: dict[int, Engine] = {id(one.engine): one.engine for one in samplers.values()}
        driver = self.actors.driver(samplers, self.seed)

        def sampled() -> int:
            return sum(engine.stats.sampled_tokens for engine in engines.values())

        await play(self.run.store, driver, episodes, progress, sampled)


def step_stage(stage: str, step: int) -> str:
    """Return the stage name under which the samples of a step are stored."""
    return f"{stage}/{step:05d}"


def sampling_of(settings: GroupSettings, timeout: float) -> Sampling:
    return Sampling(settings.temperature, 1.0, settings.max_tokens, (), timeout)
