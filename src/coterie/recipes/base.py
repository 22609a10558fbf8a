"""What recipes have in common that train one policy in rounds: engines, policies by version, playing.

Policy 0 is the model that was given; policy ``i`` is what the training of round ``i - 1`` left.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from pathlib import Path

from coterie.engines.protocol import Sampling
from coterie.engines.run_engines import RunEngines
from coterie.environments.protocol import Environment
from coterie.environments.registry import content
from coterie.models.loading import LoadedModel, identity, is_adapter, load, reload
from coterie.progress import Progress
from coterie.recipes.plan import RunPlan
from coterie.recipes.settings import RecipeSettings
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.casting import Cast, open_cast
from coterie.runs.folder import Run, Step
from coterie.runs.play import play, summary
from coterie.training.checkpoint import weight_hash
from coterie.training.record import TrainingReport
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.turn import digest

STAGES = ("evaluate", "rollout", "reward", "select", "train")
"""Of a round, in their order; each has a command of its own."""


class PolicyRecipe(ABC):
    """A recipe under its settings; subclasses say which steps there are and how each is done."""

    settings: RecipeSettings
    environment: Environment
    name: str

    def __init__(self) -> None:
        self._engines: RunEngines | None = None

    # -- what the loop asks -------------------------------------------------------------------

    @abstractmethod
    def steps(self) -> list[Step]:
        """All steps in the order in which they run."""

    @abstractmethod
    def needs(self, step: Step) -> list[Step]:
        """The steps whose results this one reads."""

    @abstractmethod
    def depends(self, step: Step) -> tuple[object, ...]:
        """The settings of a step that are its own."""

    def check(self) -> None:
        """Load what the run needs and refuse what can't work, in seconds."""
        self.plan()

    @abstractmethod
    def plan(self) -> RunPlan:
        """What the run costs. Raises ``UserError`` for what can't work, in seconds."""

    @abstractmethod
    def do(self, run: Run, step: Step, progress: Progress) -> Metrics:
        """Do one step; finished items of an interrupted one are kept."""

    def fingerprint(self, step: Step) -> str:
        """Hash of the settings that the step's own results depend on."""
        s = self.settings
        common = (self._model, s.dataset, s.data.context, self._content, s.seed)
        return digest(step.stage, *common, *self.depends(step))[:16]

    @cached_property
    def _model(self) -> str:
        """What the base model is, wherever it lies."""
        return identity(self.settings.model)

    @cached_property
    def _content(self) -> str:
        """What the data set's files hold, wherever they lie."""
        return content(self.settings.dataset, self.settings.data)

    def close(self) -> None:
        """End the servers of its steps."""
        if self._engines is not None:
            self._engines.close()
            self._engines = None

    # -- tasks and policies -------------------------------------------------------------------

    def heldout_tasks(self) -> list[Task]:
        """The same held-out tasks for every policy."""
        return self.environment.tasks("heldout", self.settings.evaluate.tasks, self.settings.seed)

    def versions(self, run: Run) -> list[int]:
        """The policies that a run has: the base, and what each finished training left."""
        count = self.settings.rounds
        return [0, *(i + 1 for i in range(count) if run.is_finished(Step(i, "train")))]

    def policy_path(self, run: Run, version: int) -> Path | str:
        """Where policy ``version`` is: the base, or what training ``version - 1`` left."""
        return run.training_folder(version - 1) / "final" if version else self.settings.model

    def load_policy(self, run: Run, version: int) -> LoadedModel:
        """Policy ``version`` with its tokenizer and renderer; a LoRA adapter is merged."""
        path, device = self.policy_path(run, version), self.settings.engine.device_name
        if not is_adapter(path):
            return load(path, device=device)
        loaded = load(self.settings.model, device=device)
        reload(loaded, path)
        return loaded

    # -- playing ------------------------------------------------------------------------------

    def engines(self, run: Run) -> RunEngines:
        """What its policies speak by; open until :meth:`close`."""
        if self._engines is None:
            s = self.settings
            self._engines = RunEngines(s.engine, s.model, run.folder / "servers")
        return self._engines

    def cast(self, run: Run) -> AbstractAsyncContextManager[Cast]:
        """Who plays besides its policies, and what its environment needs."""
        return open_cast(self.environment, run.folder / "user_simulator")

    async def evaluate(self, run: Run, version: int, progress: Progress) -> Metrics:
        """One dialogue of policy ``version`` on each held-out task."""
        episodes = [Episode(task, 0, version, "evaluate") for task in self.heldout_tasks()]
        return await self.play(run, episodes, self.settings.evaluate.temperature, 1.0, progress)

    async def sampler(
        self, run: Run, version: int, temperature: float, top_p: float = 1.0
    ) -> TokenSampler:
        """What the agents of policy ``version`` speak by."""
        max_tokens, timeout = self.settings.max_tokens, self.settings.engine.timeout
        sampling = Sampling(temperature, top_p, max_tokens, (), timeout)
        path = self.policy_path(run, version)
        policy = await self.engines(run).speak(
            version, path, lambda: self.load_policy(run, version)
        )
        return TokenSampler(policy.engine, policy.renderer.render, sampling, policy.context_length)

    async def play(
        self,
        run: Run,
        episodes: Sequence[Episode],
        temperature: float,
        top_p: float,
        progress: Progress,
    ) -> Metrics:
        """Play episodes of one iteration and stage, by the policy of the iteration."""
        iteration, stage = episodes[0].iteration, episodes[0].stage
        sampler = await self.sampler(run, iteration, temperature, top_p)
        stats = sampler.engine.stats
        async with self.cast(run) as cast:
            driver = cast.driver(sampler, self.settings.seed)
            await play(run.store, driver, episodes, progress, lambda: stats.sampled_tokens)
        return summary(run.store, iteration, stage)

    def seeded(self, own: TrainingSettings, iteration: int) -> TrainingSettings:
        """A training's settings with a seed of the run and the iteration."""
        return own.model_copy(update={"seed": own.seed + self.settings.seed * 1000 + iteration})


def trained_metrics(report: TrainingReport, trained_tokens: int) -> Metrics:
    """What to remember of a training."""
    return {
        "rows": report.rows,
        "dropped": report.dropped_too_long + report.dropped_empty,
        "trained_tokens": trained_tokens,
        "steps": report.steps,
        "loss": report.last_loss,
        "weights": weight_hash(report.final),
    }
