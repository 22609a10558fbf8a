"""What a step samples: groups of paths by the newest policy, round after round until enough of them tell something."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.engines.protocol import Engine, Sampling
from coterie.environments.checks import draw_tasks
from coterie.environments.protocol import Environment
from coterie.progress import Progress
from coterie.rewards.path_reward import PathReward
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.casting import Cast
from coterie.runs.folder import Run
from coterie.runs.play import play
from coterie.runs.reinforce.advantages import Judged
from coterie.runs.reinforce.paths import Path, paths_of
from coterie.runs.reinforce.settings import GroupSettings
from coterie.trajectories.task import Task

Judge = Callable[[Sequence[Path]], Judged]


@dataclass(slots=True)
class Drawn:
    """What one step has sampled."""

    draws: int
    """Draws of tasks, over all steps so far."""
    rounds: int = 0
    tasks: list[str] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    played: int = 0
    """Samples, failed ones included."""
    unmeasured: tuple[str, ...] = ()
    """Measures that ``reward.measures`` weighs, and that no dialogue of the step has."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Samples the groups of steps, in one iteration of a run."""

    run: Run
    iteration: int
    stage: str
    environment: Environment
    cast: Cast
    settings: GroupSettings
    reward: PathReward
    agents: Sequence[str]
    seed: int

    async def sample(
        self,
        step: int,
        draws: int,
        samplers: Mapping[str, TokenSampler],
        enough: Callable[[Drawn], bool],
        progress: Progress,
    ) -> Drawn:
        """Play the tasks of a step; what is stored already is not played again.

        ``draws`` is how many there were before. It stops when there is ``enough``, and after the last round.
        """
        found = Drawn(draws)
        while found.rounds < self.settings.rounds:
            tasks = self._tasks(found)
            if not tasks:
                break
            await self._play(step, tasks, samplers, progress)
            names = [task.id for task in tasks]
            found.tasks += names
            found.played += len(names) * self.settings.samples
            at = place(self.stage, step)
            found.paths += paths_of(
                *(self.run.store, self.iteration, at, names, self.agents), self.reward
            )
            if enough(found):
                break
        found.unmeasured = self._unmeasured(step)
        return found

    def _unmeasured(self, step: int) -> tuple[str, ...]:
        weighed = self.reward.settings.measures
        if not weighed:
            return ()
        played = self.run.store.metrics(self.iteration, place(self.stage, step))
        known = {name for key, measures in played.items() if key.task for name in measures}
        return tuple(name for name in weighed if name not in known)

    def _tasks(self, found: Drawn) -> list[Task]:
        """The next draw, without what the step has already; none if there is nothing else."""
        count, known = self.settings.drawn, set(found.tasks)
        before = [count] * found.draws
        given = draw_tasks(self.environment, "train", count, self.seed, before)
        found.draws += 1
        found.rounds += 1
        return [task for task in given if task.id not in known]

    async def _play(
        self,
        step: int,
        tasks: Sequence[Task],
        samplers: Mapping[str, TokenSampler],
        progress: Progress,
    ) -> None:
        episodes = [
            Episode(task, sample, self.iteration, place(self.stage, step))
            for task in tasks
            for sample in range(self.settings.samples)
        ]
        engines: dict[int, Engine] = {id(one.engine): one.engine for one in samplers.values()}
        driver = self.cast.driver(samplers, self.seed)

        def sampled() -> int:
            return sum(engine.stats.sampled_tokens for engine in engines.values())

        await play(self.run.store, driver, episodes, progress, sampled)


def place(stage: str, step: int) -> str:
    """Under which stage's name a step's samples are stored."""
    return f"{stage}/{step:05d}"


def sampling_of(settings: GroupSettings, timeout: float) -> Sampling:
    return Sampling(settings.temperature, 1.0, settings.max_tokens, (), timeout)
