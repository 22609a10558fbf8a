"""What recipes have in common: stages, roles with their models and versions, playing, fingerprints."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

from coterie.config.plugins import label
from coterie.config.resolve import flatten
from coterie.engines.protocol import POLICY, Engine, Sampling
from coterie.environments.checking import check_needs
from coterie.environments.protocol import Environment
from coterie.environments.registry import content, make_environment
from coterie.environments.traits import agents_of, openers_of
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, identity
from coterie.progress import Progress
from coterie.recipes.plan import Plan, make_plan
from coterie.recipes.settings import RecipeSettings
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.casting import Cast, Openers, open_cast
from coterie.runs.folder import Run, Step
from coterie.runs.place import EVALUATION
from coterie.runs.play import play, summary
from coterie.runs.roles import Role, Roles
from coterie.runs.selected import selected
from coterie.runs.stage import Stage
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings, weight_dtype
from coterie.trajectories.item import Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import digest
from coterie.trajectories.view import Edit

Work = (
    Callable[[Run, int, Progress], Metrics | None]
    | Callable[[Run, int, Progress], Awaitable[Metrics | None]]
)
"""What a stage does, with engines if it is asynchronous; it gives what is to be remembered of it."""


class Recipe(ABC):
    """A recipe under its settings; subclasses say which stages and roles there are."""

    settings: RecipeSettings
    environment: Environment
    name: str
    edits: Mapping[str, Edit] = MappingProxyType({})
    """The recontext rules of its selections, by name."""
    by_task: tuple[str, ...] = ()
    """Stages of which each item is the work of one task, the sampling first, and other names under which they write
    such items. `coterie merge` puts them together; without any, runs of the recipe can't be merged."""

    def __init__(self, settings: RecipeSettings) -> None:
        self.settings = settings
        self.name = settings.recipe
        self.environment = make_environment(settings)
        own = openers_of(self.environment, Path())
        check_needs(self.environment, {**own, **self.openers()})
        self._roles: Roles | None = None

    # -- what a recipe says -------------------------------------------------------------------

    @abstractmethod
    def stages(self) -> list[Stage]: ...

    def roles(self) -> tuple[Role, ...]:
        """Its models by role. The first one is what is evaluated and served."""
        return (Role(POLICY, self.settings.model),)

    def players(self) -> Mapping[str, str]:
        """Which role plays each agent of the environment: by default the first one all of them."""
        return dict.fromkeys(agents_of(self.environment), self.leading)

    @property
    def title(self) -> str:
        return label(self.name)

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield the role, tree and selection of everything that an iteration trains on."""
        players = self.players()
        for tree, one in selected(run, iteration):
            yield players[one.agent], tree, one

    def plan(self) -> Plan:
        """Size of the run. Raises ``UserError`` for what can't work, in seconds."""
        return make_plan(self)

    def trainings(self) -> Mapping[str, TrainingSettings]:
        """Settings of its trainings on rows or pairs, by key; the plan checks them."""
        return {}

    def longest_rows(self) -> tuple[int | None, int]:
        """Tokens of the longest training row, if known beforehand, and the most rows of an item."""
        return None, 1

    def training_tasks(self) -> int:
        """Training tasks that an iteration draws; 0 if none are."""
        values = flatten(self.settings.model_dump(mode="json"))
        named = (values.get(key) for key in ("rollout.tasks", "tasks"))
        return next((n for n in named if isinstance(n, int)), self.settings.evaluate.tasks)

    def dialogues(self) -> int:
        """Training dialogues over all iterations, at most; 0 where it is not known."""
        return 0

    def whole_task(self, task: Task) -> Task:
        """The task of which this one is a part: no part of a held-out task is trained on."""
        return task

    def examples(self) -> list[list[tuple[str, bool]]]:
        """Return a few training rows for people: texts, each with True if it is trained."""
        return []

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """Tokens that must fit into the context after the longest first prompt."""
        return self.settings.max_tokens

    def openers(self) -> Openers:
        """How each thing is opened that an environment may need of a run."""
        return {Sandbox: Sandbox}

    def stage(
        self,
        iteration: int,
        name: str,
        do: Work,
        after: Sequence[Stage] = (),
        depends: Sequence[object] = (),
        *,
        trains: str | Sequence[str] = (),
        alone: bool = False,
    ) -> Stage:
        """A stage, ``after`` others. One that trains, or is ``alone``, finds no servers on the devices."""

        trained = (trains,) if isinstance(trains, str) else tuple(trains)

        def done(run: Run, iteration: int, progress: Progress) -> Metrics:
            models = self.models(run)
            if alone or trained:
                models.make_room()
            found = do(run, iteration, progress)
            measured = models.run_async(_awaited(found)) if inspect.isawaitable(found) else found
            return measured or {}

        needed = tuple(stage.step for stage in after)
        kind = f"{name} {getattr(getattr(do, 'func', do), '__name__', '')} {' '.join(trained)}"
        return Stage(Step(iteration, name), done, needed, tuple(depends), trained, kind)

    # -- what the loop asks -------------------------------------------------------------------

    def steps(self) -> list[Step]:
        return [stage.step for stage in self.stages()]

    def at(self, step: Step) -> Stage:
        """The stage of a step; ``KeyError`` if there is none."""
        return {stage.step: stage for stage in self.stages()}[step]

    def check(self) -> None:
        """Refuse what can't work, in seconds."""
        self.plan()

    def fingerprint(self, step: Step) -> str:
        """Hash of what the step's own results depend on: settings, and which stages it reads."""
        stage, common = self.at(step), (self._models, self._content, self.settings.seed)
        args = sorted(self.settings.engine.template_args.items())
        own = ([str(one) for one in stage.after], *stage.depends, *([args] if args else []))
        return digest(step.stage, *common, *own)[:16]

    @cached_property
    def _models(self) -> list[list[str | None]]:
        return [[role.name, identity(role.model), role.shares] for role in self.roles()]

    @cached_property
    def _content(self) -> str:
        return content(self.settings, self.environment)

    def close(self) -> None:
        """End the servers of its stages."""
        if self._roles is not None:
            self._roles.close()
            self._roles = None

    # -- roles and tasks ----------------------------------------------------------------------

    def models(self, run: Run) -> Roles:
        """The models of its roles; open until :meth:`close`, or until another run is asked for."""
        if self._roles is None or self._roles.run is not run:
            self.close()
            dtype = weight_dtype(self.settings)
            self._roles = Roles(self.roles(), self.settings.engine, run, dtype)
        return self._roles

    @property
    def leading(self) -> str:
        """The role that is evaluated and served, and is meant where none is named: the first one."""
        return self.roles()[0].name

    def versions(self, run: Run, role: str | None = None) -> list[int]:
        """The versions that a role has: as it began, and what each finished training left."""
        name = role or self.leading
        trained = [s.step for s in self.stages() if name in s.trains and run.is_finished(s.step)]
        return [0, *(step.iteration + 1 for step in trained)]

    def policy_path(self, run: Run, version: int, role: str | None = None) -> Path | str:
        return self.models(run).path(role or self.leading, version)

    def load_policy(
        self, run: Run, version: int, role: str | None = None, *, merge: bool = False
    ) -> LoadedModel:
        """A version of a role with its tokenizer and renderer.

        A LoRA adapter is merged into float32 weights; into bfloat16 weights only with ``merge``.
        """
        return self.models(run).load(role or self.leading, version, merge=merge)

    def heldout_tasks(self) -> list[Task]:
        return self.environment.tasks("heldout", self.settings.evaluate.tasks, self.settings.seed)

    def seeded(self, own: TrainingSettings, iteration: int) -> TrainingSettings:
        return own.model_copy(update={"seed": own.seed + self.settings.seed * 1000 + iteration})

    # -- playing ------------------------------------------------------------------------------

    def cast(self, run: Run) -> AbstractAsyncContextManager[Cast]:
        """Who plays besides its roles, and what its environment needs."""
        logs = run.folder / "user_simulator"
        return open_cast(self.environment, logs, openers=self.openers())

    def evaluation(
        self, version: int, after: Sequence[Stage] = (), depends: Sequence[object] | None = None
    ) -> Stage:
        """The stage in which the policies of an iteration are evaluated. By default it depends on how they are."""
        s = self.settings
        own = (s.evaluate.fingerprint(), s.max_tokens, *s.engine.identity())
        given = own if depends is None else depends
        return self.stage(version, EVALUATION, self.evaluate, after, given)

    async def evaluate(self, run: Run, version: int, progress: Progress) -> Metrics:
        """One episode on each held-out task, by the newest version of each role."""
        episodes = [Episode(task, 0, version, EVALUATION) for task in self.heldout_tasks()]
        return await self.play(run, episodes, self.settings.evaluate.temperature, 1.0, progress)

    async def sampler(
        self,
        run: Run,
        version: int,
        temperature: float,
        top_p: float = 1.0,
        role: str | None = None,
    ) -> TokenSampler:
        max_tokens, timeout = self.settings.max_tokens, self.settings.engine.timeout
        sampling = Sampling(temperature, top_p, max_tokens, (), timeout)
        speaking = await self.models(run).speak(role or self.leading, version)
        renderer, context = speaking.renderer, speaking.context_length
        return TokenSampler(
            speaking.engine, renderer.render, sampling, context, renderer.calls, renderer.parts
        )

    async def samplers(
        self, run: Run, iteration: int, temperature: float, top_p: float = 1.0
    ) -> dict[str, TokenSampler]:
        """The sampler of each agent in an iteration: that of the newest version of its role by then."""
        players = self.players()
        by_role = {
            role: await self.sampler(
                run, self.newest(run, role, iteration), temperature, top_p, role
            )
            for role in dict.fromkeys(players.values())
        }
        return {agent: by_role[role] for agent, role in players.items()}

    def newest(self, run: Run, role: str, iteration: int) -> int:
        """The newest version of a role that the trainings before an iteration left."""
        return max(version for version in self.versions(run, role) if version <= iteration)

    async def play(
        self,
        run: Run,
        episodes: Sequence[Episode],
        temperature: float,
        top_p: float,
        progress: Progress,
    ) -> Metrics:
        """Play episodes of one iteration and stage, by the roles of the iteration."""
        samplers = await self.samplers(run, episodes[0].iteration, temperature, top_p)
        return await self.play_by(run, episodes, samplers, progress)

    async def play_by(
        self,
        run: Run,
        episodes: Sequence[Episode],
        samplers: Mapping[str, TokenSampler],
        progress: Progress,
    ) -> Metrics:
        """Play episodes of one iteration and stage, each agent by its sampler."""
        iteration, stage = episodes[0].iteration, episodes[0].stage
        engines = list({id(one.engine): one.engine for one in samplers.values()}.values())
        async with self.cast(run) as cast:
            driver = cast.driver(samplers, self.settings.seed)
            await play(run.store, driver, episodes, progress, partial(_sampled, engines))
        return summary(run.store, iteration, stage)


def _sampled(engines: Sequence[Engine]) -> int:
    return sum(engine.stats.sampled_tokens for engine in engines)


async def _awaited(found: Awaitable[Metrics | None]) -> Metrics | None:
    return await found
