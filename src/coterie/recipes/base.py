"""Base class of recipes: stages, roles and their model versions, episodes, fingerprints.

A subclass has a method for each kind of stage, declared by :func:`stage`, and returns its stages from
:meth:`Recipe.stages`. :mod:`coterie.runs.loop` runs them. A *role* is a named model with versions, an *agent* is an
actor of the environment that a role plays (:meth:`Recipe.players`).
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coterie.config.plugins import label
from coterie.config.resolve import flatten
from coterie.config.settings import Settings
from coterie.engines.protocol import POLICY, Sampling
from coterie.environments.protocol import Environment, Openers, agents_of, check_needs, openers_of
from coterie.environments.registry import content, make_environment
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import identity, load_renderer
from coterie.progress import Progress
from coterie.recipes import registry
from coterie.recipes.plan import Plan, make_plan, sandbox_settings
from coterie.recipes.settings import RecipeSettings
from coterie.record.rows import Edit, Pair, Row, View, recontext, rows, turn_pair, view
from coterie.record.tree import Metrics, Selection, Task, Tree
from coterie.record.turn import digest
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.runs.loop import EVALUATION, Role, Stage, StageDeclaration, load_selections, stage
from coterie.runs.run import Run, StageKey, find_run, open_run, read_config
from coterie.runs.work_items import Actors, open_actors, play, sampled_tokens, summary
from coterie.training.settings import TrainingSettings, loads_in_4bit, weight_dtype

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.runs.roles import Roles

Work = (
    Callable[[Run, int, Progress], Metrics | None]
    | Callable[[Run, int, Progress], Awaitable[Metrics | None]]
)
"""Method of a stage. Returns its metrics. An asynchronous method may use engines."""


@dataclass(frozen=True, slots=True)
class TurnCritic:
    """Critic that scores candidates of a turn."""

    fingerprint: str
    """Hash of all that its scores depend on."""
    open: Callable[[], AbstractAsyncContextManager[Any]]
    """Opens an object with ``renderer``, whose token ids it reads (``None`` if it reads text), and ``advantages(task,
    tree, turns)``."""


EVALUATION_USES = ("evaluate", "turn_tokens", "engine")
"""Settings that evaluations depend on."""


class Recipe(ABC):
    """Base class of recipes. Subclasses define :meth:`stages`, and :meth:`roles` if they train several models."""

    settings: RecipeSettings
    environment: Environment
    name: str
    reach_cluster = True
    """False if the plan must not ask the cluster, such as in a dry run."""
    edits: Mapping[str, Edit] = MappingProxyType({})
    """Recontext rules of the selections, by name."""
    by_task: tuple[str, ...] = ()
    """Names under which stages write one item per task, the sampling stage first. `coterie merge` merges these items;
    runs of a recipe without any cannot be merged."""

    def __init__(self, settings: RecipeSettings) -> None:
        self.settings = settings
        self.name = settings.recipe
        self.environment = make_environment(settings)
        # Only the types of the openers are checked here. Nothing is opened, so the folder does not matter.
        environment_openers = openers_of(self.environment, Path())
        check_needs(self.environment, {**environment_openers, **self.openers()})
        # Models are opened on first use, so that a plan needs no weights.
        self._roles: Roles | None = None

    # -- for subclasses -----------------------------------------------------------------------

    @abstractmethod
    def stages(self) -> list[Stage]:
        """Return all stages in order; the same ones at each call, whatever the run has done so far."""

    def roles(self) -> tuple[Role, ...]:
        """Return the roles and their models. The first role is evaluated and served."""
        return (Role(POLICY, self.settings.model),)

    def players(self) -> Mapping[str, str]:
        """Map each agent of the environment to the role that plays it. Default: the first role plays all agents."""
        return dict.fromkeys(agents_of(self.environment), self.main_role)

    def only_agent(self, advice: str) -> str:
        """Return the environment's only actor, an agent. Raises ``UserError`` for other environments."""
        agents, actors = agents_of(self.environment), self.environment.actors
        if len(actors) != 1 or not agents:
            benchmark = self.settings.benchmark
            problem = f"{self.name} trains one agent, and {benchmark} has {', '.join(actors)}"
            raise UserError(problem, advice)
        return agents[0]

    @property
    def title(self) -> str:
        """Name of the method, or of the class of a plug-in."""
        return label(self.name)

    def heldout_loss(self, run: Run, version: int) -> tuple[float, float, float] | None:
        """Return a policy's held-out loss with its 95% interval, by which sweeps compare; ``None`` for scores."""
        return None

    def critic(self, run: Run) -> TurnCritic | None:
        """Return the critic of turns of a run, for `coterie evaluate critic=RUN`. Raises ``UserError`` if untrained."""
        return None

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield the role, tree and selection of everything that an iteration trains on."""
        players = self.players()
        for tree, selection in load_selections(run, iteration):
            yield players[selection.agent], tree, selection

    def training_view(
        self, run: Run, tree: Tree, selection: Selection, leaf: str | None = None
    ) -> View:
        """Return the agent's view of the path to ``leaf`` (default: of the selection) under its recontext rule."""
        leaf = leaf or selection.leaf
        if selection.context is None:
            return view(tree, leaf, selection.agent)
        edit, render = self.edits[selection.context], self.renderer(selection.agent).render
        return recontext(
            tree, leaf, selection.agent, name=selection.context, edit=edit, render=render
        )

    def make_pair(self, tree: Tree, selection: Selection, chosen: View, rejected: View) -> Pair:
        """Pair two alternatives of one turn. Pairs of one tree share a group."""
        return turn_pair(chosen, rejected, weight=selection.weight, group=tree.task)

    def plan(self) -> Plan:
        """Return the size of the run. Raises ``UserError`` for invalid settings within seconds."""
        return make_plan(self)

    def trainings(self) -> Mapping[str, TrainingSettings]:
        """Return the settings of trainings on rows or pairs by key. The plan checks them."""
        return self.settings.trainings

    def longest_rows(self) -> tuple[int | None, int, int | None]:
        """Return the tokens of the longest training row, the maximum rows of an item, and the number of items."""
        return None, 1, None

    @property
    def holds_out(self) -> bool:
        """True if there are held-out tasks."""
        return True

    def training_tasks(self) -> int:
        """Return the number of training tasks per iteration."""
        # Recipes have different keys for the number of tasks; the first usual key counts.
        values = flatten(self.settings.model_dump(mode="json"))
        candidates = (values.get(key) for key in ("rollout.tasks", "tasks"))
        return next((n for n in candidates if isinstance(n, int)), self.settings.evaluate.tasks)

    def task_counts(self, iteration: int) -> list[int]:
        """Return the numbers of training tasks that the iterations up to this one draw."""
        return [self.training_tasks()] * (iteration + 1)

    def train_tasks(self, iteration: int = 0) -> list[Task]:
        """Return the training tasks of an iteration. Every iteration continues where the last one stopped."""
        # The counts of earlier iterations tell the environment where to continue.
        *previous_counts, count = self.task_counts(iteration)
        return self.environment.tasks("train", count, self.settings.seed, previous_counts)

    def dialogues(self) -> int:
        """Return the maximum number of training dialogues of all iterations; 0 if unknown."""
        return 0

    def whole_task(self, task: Task) -> Task:
        """Return the task that this task is a step of, or itself. No step of a held-out task is trained on."""
        return task

    def examples(self) -> list[list[tuple[str, bool]]]:
        """Return a few training rows to print, as texts with True where a text is trained on."""
        return []

    def context_reserve(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """Return the tokens that must fit into the context after the longest first prompt."""
        return self.settings.turn_tokens

    def openers(self) -> Openers:
        """Return functions that open the resources an environment may need, by type."""
        if (limits := sandbox_settings(self.settings, self.environment)) is None:
            return {}
        # Only environments that run programs load the sandbox.
        from coterie.tools.sandbox.pool import Sandbox

        return {Sandbox: partial(Sandbox, limits)}

    def make_stages(
        self, iteration: int, *methods: Work, after: Sequence[Stage] = ()
    ) -> list[Stage]:
        """Make the stages of methods with :func:`stage`, in order.

        Args:
            iteration: Iteration of the stages.
            methods: Methods of the recipe. An override without :func:`stage` has the one of the method it overrides.
            after: Earlier stages whose results the methods without an ``after`` read.
        """
        stages, keys = list[Stage](), dict[str, StageKey]()
        for method in methods:
            declared = self._declaration(method)
            uses, depends, roles = (
                value(self, iteration) if callable(value) else value
                for value in (declared.uses, declared.depends, declared.trains)
            )
            if unknown := [name for name in declared.after if name not in keys]:
                problem = f"{self.name}: the stage {declared.name} comes after {unknown[0]}"
                raise UserError(problem, "pass the method of that stage to make_stages before it")
            inputs = [keys[name] for name in declared.after] or [stage.key for stage in after]
            # Stages of the same kind do the same work, so that a dry run can estimate a stage from a trial.
            kind = f"{declared.name} {getattr(method, '__name__', '')} {' '.join(roles)}"
            settings = (_identity(attrgetter(name)(self.settings)) for name in uses)
            key = keys[declared.name] = StageKey(iteration, declared.name)
            # Servers and cached models leave the devices first, because a training needs their memory.
            do = partial(self._do, method, release=declared.alone or bool(roles))
            depends = (*settings, *depends)
            stages.append(Stage(key, do, tuple(inputs), depends, tuple(roles), kind))
        return stages

    def _declaration(self, method: Work) -> StageDeclaration:
        name = getattr(method, "__name__", "")
        overridden = (vars(base).get(name) for base in type(self).__mro__)
        for function in (method, *overridden):
            if declared := getattr(function, "declaration", None):
                return declared
        raise UserError(f"{self.name}: {name} is no stage", f'put `@stage("{name}")` above it')

    def _do(
        self, method: Work, run: Run, iteration: int, progress: Progress, *, release: bool
    ) -> Metrics:
        models = self.models(run)
        if release:
            models.release_devices()
        result: Any = method(run, iteration, progress)
        # A coroutine runs on the event loop of the engines, which stay open between stages.
        metrics = models.engines.run(result) if inspect.iscoroutine(result) else result
        return metrics or {}

    # -- for the loop -------------------------------------------------------------------------

    def stage_keys(self) -> list[StageKey]:
        """Return the iteration and name of each stage, in order."""
        return [stage.key for stage in self.stages()]

    def finished(self, run: Run, *names: str) -> list[StageKey]:
        """Return the keys of the finished stages, or of those with certain names, in order."""
        keys = (key for key in self.stage_keys() if not names or key.stage in names)
        return [key for key in keys if run.is_finished(key)]

    def find_stage(self, key: StageKey) -> Stage:
        """Return the stage of a key. Raises ``KeyError`` if the recipe has no such stage."""
        return {stage.key: stage for stage in self.stages()}[key]

    def fingerprint(self, key: StageKey) -> str:
        """Return a hash of the settings and stages that a stage's results depend on."""
        return self._fingerprints[key]

    @cached_property
    def _fingerprints(self) -> dict[StageKey, str]:
        user_simulator = self.settings.user_simulator.identity()
        common = (self._models, self._content, self.settings.seed, user_simulator)
        # Without arguments of the chat template nothing is added to the hash, so runs from before
        # there were any keep their fingerprints.
        template_args = sorted(self.settings.engine.template.items())
        fingerprints: dict[StageKey, str] = {}
        for current in self.stages():
            # The hashes of the inputs are included, so that a change also invalidates all later stages.
            inputs = [f"{key} {fingerprints.get(key, '')}" for key in current.after]
            depends = (inputs, *current.depends, *([template_args] if template_args else []))
            fingerprints[current.key] = digest(current.key.stage, *common, *depends)[:16]
        return fingerprints

    @cached_property
    def _models(self) -> list[list[str | None]]:
        """Identities of the roles' models, which all stages depend on."""
        # Models in 4 bits sample other tokens, already before a training.
        in_4bit = ["load_in_4bit"] * loads_in_4bit(self.settings)
        return [[role.name, identity(role.model), role.shares, *in_4bit] for role in self.roles()]

    @cached_property
    def _content(self) -> str:
        """Hash of the environment and its data, which all stages depend on."""
        return content(self.settings, self.environment)

    def close(self) -> None:
        """Close the models and engines that :meth:`models` opened. The recipe can be used again."""
        if self._roles is not None:
            self._roles.close()
            self._roles = None

    # -- training data ------------------------------------------------------------------------

    def rows(self, run: Run, iteration: int, role: str | None = None) -> list[Row]:
        """Return the rows of the trajectories that an iteration trains a role on."""
        return [
            row
            for player, tree, selection in self.trained_on(run, iteration)
            if player == (role or self.main_role)
            for row in rows(self.training_view(run, tree, selection), selection.weight)
            if row.targets
        ]

    def pairs(self, run: Run, iteration: int, role: str | None = None) -> list[Pair]:
        """Return the pairs that an iteration trains a role on."""
        return [
            self.make_pair(
                tree,
                selection,
                *(
                    self.training_view(run, tree, selection, leaf)
                    for leaf in (selection.leaf, selection.rejected)
                ),
            )
            for player, tree, selection in self.trained_on(run, iteration)
            if player == (role or self.main_role) and selection.rejected is not None
        ]

    # -- roles and tasks ----------------------------------------------------------------------

    def models(self, run: Run) -> "Roles":
        """Return the models of the roles, open until :meth:`close` or a call with another run."""
        # The models belong to one run; a call with another run closes them.
        if self._roles is None or self._roles.run is not run:
            from coterie.runs.roles import Roles

            self.close()
            servers = None if run.cluster is None else run.cluster.servers
            s, in_4bit = self.settings, loads_in_4bit(self.settings)
            self._roles = Roles(self.roles(), s.engine, run, weight_dtype(s), servers, in_4bit)
        return self._roles

    @cached_property
    def renderers(self) -> dict[str, ChatRenderer]:
        """Renderers of the roles' models; no weights are loaded."""
        args = self.settings.engine.template
        return {role.name: load_renderer(role.model, args)[0] for role in self.roles()}

    def renderer(self, agent: str) -> ChatRenderer:
        """Return the renderer of the model that plays an agent."""
        return self.renderers[self.players().get(agent, self.main_role)]

    @property
    def main_role(self) -> str:
        """The first role, which is evaluated and served, and is the default of other methods."""
        return self.roles()[0].name

    def versions(self, run: Run, role: str | None = None) -> list[int]:
        """Return the versions of a role: 0 initially, and one per finished training."""
        name = role or self.main_role
        # The training of a role in iteration i makes its version i + 1.
        trained = [stage.key for stage in self.stages() if name in stage.trains]
        return [0, *(key.iteration + 1 for key in trained if run.is_finished(key))]

    def find_version(
        self,
        run: Run,
        role: str | None = None,
        iteration: int | None = None,
        step: int | None = None,
        *,
        trained: bool = False,
    ) -> int | Path:
        """Return a version of a role, by default the newest, or its checkpoint after a step of reinforcement learning.

        Raises ``UserError`` if it does not exist, or if the newest must be ``trained`` and is the base.
        """
        name = role or self.main_role
        if step is not None:
            # Only reinforcement learning has steps.
            from coterie.runs.reinforce_record import step_folder

            return step_folder(run, name, step)
        versions = self.versions(run, name)
        version = versions[-1] if iteration is None else iteration
        if trained and iteration is None and version == 0:
            fix = "continue the run, or give --iteration 0 for the base, or a step of reinforcement learning"
            raise UserError(f"{run.folder} has not trained {name!r} yet", fix)
        if version not in versions:
            names = ", ".join(map(str, versions))
            problem = f"{run.folder} has no version {version} of {name!r}; it has {names}"
            fix = "give one of these with --iteration, or continue the run"
            raise UserError(f"{problem} (0 is the base)", fix)
        return version

    def heldout_tasks(self) -> list[Task]:
        """Return the tasks of evaluations."""
        return self.environment.tasks("heldout", self.settings.evaluate.tasks, self.settings.seed)

    def seeded(self, training: TrainingSettings, iteration: int) -> TrainingSettings:
        """Return the settings of a training with the seed of its iteration."""
        # Runs with other seeds and other iterations shuffle their rows differently.
        return training.model_copy(
            update={"seed": training.seed + self.settings.seed * 1000 + iteration}
        )

    # -- playing ------------------------------------------------------------------------------

    def actors(self, run: Run) -> AbstractAsyncContextManager[Actors]:
        """Open the simulated users and resources that the environment needs."""
        logs = run.folder / "user_simulator"
        return open_actors(self.environment, logs, self.settings.user_simulator, self.openers())

    def evaluation(self, version: int, after: Sequence[Stage] = ()) -> Stage:
        """Make the stage that evaluates the policies of an iteration."""
        return self.make_stages(version, self.evaluate, after=after)[0]

    @stage(EVALUATION, uses=EVALUATION_USES)
    async def evaluate(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Play one episode on each held-out task with the newest version of each role."""
        episodes = [Episode(task, 0, version, EVALUATION) for task in self.heldout_tasks()]
        temperature = self.settings.evaluate.temperature
        metrics = await self.play(run, episodes, temperature, 1.0, progress)
        return {**metrics, "metric": self.environment.metric}

    async def sampler(
        self,
        run: Run,
        version: int,
        temperature: float,
        top_p: float = 1.0,
        role: str | None = None,
    ) -> TokenSampler:
        """Return a sampler of a version of a role (default: the first), whose engine is then open."""
        max_tokens, timeout = self.settings.turn_tokens, self.settings.engine.timeout
        sampling = Sampling(temperature, top_p, max_tokens, (), timeout)
        role_engine = await self.models(run).open_engine(role or self.main_role, version)
        return role_engine.sampler(sampling)

    async def samplers(
        self, run: Run, iteration: int, temperature: float, top_p: float = 1.0
    ) -> dict[str, TokenSampler]:
        """Return a sampler for each agent, with the newest version of its role in the iteration."""
        # Agents with the same role share a sampler, and with it the engine's caches.
        players, by_role = self.players(), dict[str, TokenSampler]()
        for role in dict.fromkeys(players.values()):
            version = self.newest(run, role, iteration)
            by_role[role] = await self.sampler(run, version, temperature, top_p, role)
        return {agent: by_role[role] for agent, role in players.items()}

    def newest(self, run: Run, role: str, iteration: int) -> int:
        """Return the newest version of a role before the trainings of an iteration."""
        return max(version for version in self.versions(run, role) if version <= iteration)

    def rollout_episodes(self, iteration: int, rollouts_per_task: int) -> list[Episode]:
        """Return the episodes of an iteration's stage ``rollout``: several for each training task."""
        tasks, numbers = self.train_tasks(iteration), range(rollouts_per_task)
        return [Episode(task, number, iteration, "rollout") for task in tasks for number in numbers]

    async def play(
        self,
        run: Run,
        episodes: Sequence[Episode],
        temperature: float,
        top_p: float,
        progress: Progress,
    ) -> Metrics:
        """Play episodes of one stage with the newest version of each role, and return their summary."""
        samplers = await self.samplers(run, episodes[0].iteration, temperature, top_p)
        return await self.play_by(run, episodes, samplers, progress)

    async def play_by(
        self,
        run: Run,
        episodes: Sequence[Episode],
        samplers: Mapping[str, TokenSampler],
        progress: Progress,
    ) -> Metrics:
        """Play episodes of one stage with the samplers of the agents, and return their summary."""
        iteration, stage = episodes[0].iteration, episodes[0].stage
        async with self.actors(run) as actors:
            driver = actors.driver(samplers, self.settings.seed)
            await play(run.store, driver, episodes, progress, sampled_tokens(samplers.values()))
        turns = (turn for tree in run.store.trees(iteration, stage) for turn in tree.turns.values())
        silent = {*agents_of(self.environment)}.difference(turn.speaker.name for turn in turns)
        # A mistake in `next_actors` would otherwise show only as a role that learns nothing.
        for agent in sorted(silent):
            progress.say(f"warning: {agent} acts in no dialogue of {stage} {iteration}")
        return summary(run.store, iteration, stage)


def _identity(value: object) -> object:
    """Return what results depend on in a setting or group; a group may leave out keys by ``identity()``."""
    if not isinstance(value, Settings):
        return value
    if identity := getattr(value, "identity", None):
        return identity()
    return {name: _identity(getattr(value, name)) for name in type(value).model_fields}


@contextmanager
def recorded_run(folder: Path, overrides: Sequence[str] = ()) -> Iterator[tuple[Recipe, Run]]:
    """Open a run read-only, with the recipe of its stored settings.

    ``overrides`` override stored settings. Raises ``UserError`` for a folder that is not a run.
    """
    name, stored = read_config(folder)
    recipe = registry.recipe(registry.settings(name, overrides, stored))
    with open_run(folder, name, recipe.settings, write=False) as run:
        yield recipe, run


def stored_policy(name: str) -> Path | str | None:
    """Return the weights of ``RUN`` (its newest policy, or its base) or ``RUN@STEP``; ``None`` if this is not a run."""
    if (run_and_step := find_run(name)) is None:
        return None
    folder, step = run_and_step
    with recorded_run(folder) as (recipe, run):
        return recipe.models(run).path(recipe.main_role, recipe.find_version(run, step=step))
