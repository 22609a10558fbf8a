"""``coterie evaluate BENCHMARK policy=...``: one table over policies, and one JSON object.

A policy is a run folder (its newest checkpoint, or all of them), a model, or the URL of an
OpenAI-compatible server. Single agents may have policies of their own, by their names
(``policy.planner=...``). Who plays is found in ``cli.candidates``; what is printed is in ``cli.figures``.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from rich.console import Console

from coterie.cli.candidates import (
    FOLDER,
    ONE,
    Candidate,
    Player,
    candidates,
    cast_of,
    is_run,
    of_agents,
)
from coterie.cli.figures import Figures, show
from coterie.config.folders import check_new_file, expanded, make_folder
from coterie.config.plugins import absolute_name
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.engines.chat_model import check_chat
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import EngineError
from coterie.engines.run_engines import RunEngines, Speaking
from coterie.engines.settings import EngineSettings
from coterie.environments.checks import draw_tasks
from coterie.environments.coding import Coding
from coterie.environments.protocol import Scripted, check_graded
from coterie.environments.registry import (
    CODING,
    Choice,
    is_data_file,
    make_environment,
    played_type,
    with_file,
)
from coterie.environments.user_simulator import SCRIPT, check_script
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.recipes.description import RunCritic
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import critic_of, descriptions, settings
from coterie.recipes.registry import recipe as recipe_of
from coterie.record.store import Store
from coterie.record.tree import Task, Tree
from coterie.record.turn import Turn
from coterie.rollout.candidates import BestOfSampler
from coterie.rollout.samplers import Sampler, TextSampler, TokenSampler
from coterie.runs.benchmark import (
    PRESETS,
    BenchmarkSettings,
    benchmark_settings,
    evaluate,
    sampler_per_agent,
    store_name,
)
from coterie.runs.best_of_n import NOBODY, PickerSettings, score_best_of_n
from coterie.runs.evaluation_results import STAGE
from coterie.runs.export_rows import dialogue_rows, write_rows
from coterie.runs.folder import Run, read_config
from coterie.terminal import ConsoleProgress
from coterie.training.checkpoint import weight_hash


class EvaluatedSettings(BenchmarkSettings):
    """A benchmark, and what becomes of its dialogues. None of it changes what is played."""

    picker: PickerSettings = PickerSettings()
    dump: str | None = key(
        None,
        "Also write the dialogues to NAME_step_V.jsonl, V being the version of the policy, as rows with step, input, "
        "output, score, data_source and ground_truth.",
        source="GAP: trainer.val_generations_jsonl_path",
    )

    @model_validator(mode="after")
    def _several_to_pick_from(self) -> Self:
        if self.picker.picks and self.samples == 1:
            raise ValueError("picker picks the best of several dialogues; give samples=3")
        return self


def check_evaluated(settings: EvaluatedSettings) -> None:
    """Refuse (``UserError``) a judge that can't be had, and dialogues that are there already."""
    check_chat("picker", settings.picker, NOBODY)
    if settings.dump is not None:
        name = expanded(settings.dump)
        for file in name.parent.glob(f"{escape(name.name)}_step_*.jsonl"):
            check_new_file(file)


async def figures_of(settings: EvaluatedSettings, figures: Figures) -> Figures:
    """Figures with the judge's choice, once the dialogues are dumped. Raises ``UserError``."""
    if settings.dump is None and not settings.picker.picks:
        return figures
    with Store.open(figures.store, read_only=True) as store:
        attempt = store.iterations(STAGE)[-1]
        if settings.dump is not None:
            await _dump(settings, settings.dump, figures, store, attempt)
        if not settings.picker.picks:
            return figures
        picks = figures.store.with_suffix(".picks.jsonl")
        try:
            found = await score_best_of_n(
                *(store, attempt, STAGE, figures.found.n, settings.samples, settings.picker, picks)
            )
        except EngineError as error:
            raise UserError(
                f"picker={settings.picker.model}: {error}",
                "the dialogues are kept: the same command asks only for picks that are missing",
            ) from error
    return replace(figures, picked=found)


async def _dump(
    settings: EvaluatedSettings, name: str, figures: Figures, store: Store, attempt: int
) -> None:
    file = Path(f"{expanded(name)}_step_{figures.version}.jsonl")
    rows = await dialogue_rows(
        *(store, attempt, STAGE, settings.build_environment(), settings.played, figures.version)
    )
    write_rows(file, rows)


KEYS = "docs/howto/evaluate.md has the keys; `coterie evaluate --help` has examples"


class ModelSettings(EvaluatedSettings):
    """A benchmark and a policy whose weights we have."""

    policy: str | None = key(
        None,
        "A run folder, or a model's name or folder, for all agents; `policy.AGENT=` names that of one of them.",
    )
    engine: EngineSettings = EngineSettings()
    best_of: int = key(
        1,
        "Candidates of each turn, of which the one is said that `critic` scores highest; with "
        "temperature=1.",
        source="SWEET-RL figure 3a: 1 to 32",
        ge=1,
    )
    critic: str | None = key(
        None, "A run folder whose recipe trains a critic, which scores candidates."
    )

    @model_validator(mode="after")
    def _needs_critic(self) -> Self:
        if (self.best_of > 1) != (self.critic is not None):
            raise ValueError("best_of=N goes with critic=RUN, and only with it")
        if self.best_of > 1 and self.temperature == 0:
            raise ValueError(
                "best_of candidates at temperature=0 would all be one; give temperature=1"
            )
        return self


class ServerSettings(EvaluatedSettings):
    """A benchmark and a policy that is only talked to."""

    policy: str = key(..., "The URL of an OpenAI-compatible server.")
    endpoint: EndpointSettings


def evaluate_benchmark(
    benchmark: str, words: Sequence[str], *, every: bool, console: Console
) -> None:
    """Evaluate, print the table, and one JSON object as the last line."""
    show(*played(benchmark, words, every=every, console=console))


def played(
    benchmark: str,
    words: Sequence[str],
    *,
    every: bool,
    console: Console,
    split: Split = "heldout",
) -> tuple[str, BenchmarkSettings, list[Figures], str | None]:
    """Play the tasks of a split: what is played, how, what each policy came to, and what a server was used for."""
    preset, (own, words) = _preset(words), of_agents(words)
    words, as_trained = _as_trained(benchmark, words, console)
    if urls := _urls(words, own):
        if every:
            raise UserError("--checkpoints all: a server has none", "give a run folder as policy=")
        layers = [preset, {"endpoint": {"url": urls[-1]}}]
        server = benchmark_settings(ServerSettings, benchmark, words, layers, where=KEYS)
        _check(server, split)
        found, usage = asyncio.run(_by_endpoint(server, console, split))
        return server.played, server, [found], usage
    layers = [as_trained, preset]
    model = benchmark_settings(ModelSettings, benchmark, words, layers, where=KEYS)
    if model.critic and not isinstance(make_environment(model), Coding):
        raise UserError(
            f"critic={model.critic} judges functions, which {model.played} does not ask for",
            f"use one of: {', '.join(CODING)}",
        )
    named = cast_of(model, model.policy, own)
    _check(model, split)
    return model.played, model, _by_models(model, named, every, console, split), None


def _as_trained(
    benchmark: str, words: Sequence[str], console: Console
) -> tuple[list[str], Mapping[str, Any]]:
    """Return words and values that play a benchmark as the run did whose policy is evaluated, if it is the run's own.

    Runs of ``sft`` on questions are played with the bare question as the prompt, as they were trained.
    """
    of_file = with_file([f"dataset={benchmark}"]) if is_data_file(benchmark) else []
    words, name = [*of_file, *with_file(words)], "qa" if of_file else absolute_name(benchmark)
    policy = next((word[7:] for word in reversed(words) if word.startswith("policy=")), "")
    if not is_run(policy):
        return words, {}
    recipe, stored = read_config(Path(policy))
    run, asked = Choice.of(stored), Choice.among(words)
    environment = run.environment if name in (run.dataset, run.environment) else None
    dataset = asked.dataset or (name if name == run.dataset else run.dataset)
    if (
        environment is None
        or dataset != run.dataset
        or asked.environment not in (None, environment)
    ):
        return words, {}
    groups = ("dataset", "environment", "tools")
    values: dict[str, Any] = {group: stored.get(group, {}) for group in groups}
    source = next((word for word in words if word.startswith("dataset.source=")), None)
    if source not in (None, f"dataset.source={values['dataset'].get('source')}"):
        del values["dataset"]
    if environment == "conversation":
        environment, values["environment"] = "question", {"prompt": "{question}"}
    limit = settings(recipe, (), stored).max_tokens
    console.print(f"{benchmark} as in {policy}: environment={environment} max_tokens={limit}")
    own = [f"environment={environment}", *([f"dataset={dataset}"] if dataset else [])]
    return [*own, *words], {**values, "max_tokens": limit}


def _check(settings: EvaluatedSettings, split: Split) -> None:
    """Refuse data, a judge and a person that can't be had before a policy is loaded."""
    check_evaluated(settings)
    environment = settings.build_environment()
    check_graded(environment)
    draw_tasks(environment, split, 1, settings.seed)
    if isinstance(environment, Scripted):
        check_chat("user_simulator", settings.user_simulator, SCRIPT)
        if settings.user_simulator.url is None and settings.user_simulator.model == SCRIPT:
            check_script(environment.script)


def _by_models(
    settings: ModelSettings, named: Mapping[str, str], every: bool, console: Console, split: Split
) -> list[Figures]:
    found = []
    for one in candidates(named, settings.engine, every=every):
        make_folder(one.folder)
        engines = RunEngines(settings.engine, one.players[0].base, one.folder / "servers")
        try:
            found.append(engines.run(_by_engines(settings, one, engines, console, split)))
        finally:
            engines.close()
    return found


async def _by_engines(
    settings: ModelSettings, one: Candidate, engines: RunEngines, console: Console, split: Split
) -> Figures:
    speaking, said = {}, []
    for player in one.players:
        speaking[player.agents] = await engines.speak(
            *(player.version, player.path, player.load),
            role=one.role(player),
            base=player.base,
            template_args=player.template_args,
        )
        said.append(_speaker(settings, player, speaking[player.agents]))
    path = one.folder / await store_name(_plain(settings), _all_speakers(one.players, said), split)
    sampling, progress = settings.sampling(settings.engine.timeout), ConsoleProgress(console)
    samplers: dict[str, Sampler] = {}
    stats = [of.engine.stats for of in speaking.values()]
    async with AsyncExitStack() as stack:
        for agents, of in speaking.items():
            renderer, context = of.renderer, of.context_length
            sampler = TokenSampler(
                of.engine, renderer.render, sampling, context, renderer.calls, renderer.parts
            )
            best = await stack.enter_async_context(_best(settings, sampler, of.renderer, split))
            samplers |= dict.fromkeys(agents, best)
        found = await evaluate(
            *(settings, samplers, path, progress),
            lambda: sum(n.sampled_tokens for n in stats),
            split=split,
        )
    if not any(n.requests for n in stats):
        console.print(f"{one.label}: done before, read from {path}")
    renderers = {agent: of.renderer for agents, of in speaking.items() for agent in agents}
    figures = Figures(one.label, one.version, found, path, decoder=renderers.__getitem__)
    return await figures_of(settings, figures)


def _all_speakers(players: Sequence[Player], said: Sequence[str]) -> str:
    """What the turns of all models depend on: of several also which agents each plays."""
    agents = [player.agents for player in players]
    return said[0] if len(said) == 1 else str(list(zip(agents, said, strict=True)))


def _speaker(settings: ModelSettings, player: Player, of: Speaking) -> str:
    weights = weight_hash(Path(player.path)) if Path(player.path).is_dir() else str(player.path)
    speaker = f"{weights} {settings.engine.identity()}"
    if player.template_args and not settings.engine.template_args:
        speaker += f" {sorted(player.template_args.items())}"
    speaker += (
        f" best of {settings.best_of} {_critic_hash(settings.critic)}" if settings.critic else ""
    )
    template = of.renderer.template
    return speaker + (f" on {template.day}" if template.has_clock else "")


async def _by_endpoint(
    settings: ServerSettings, console: Console, split: Split
) -> tuple[Figures, str]:
    server = settings.endpoint
    make_folder(FOLDER)
    async with Endpoint(server) as endpoint:
        args = f" {sorted(server.template_args.items())}" if server.template_args else ""
        speaker = f"{server.url} {server.model}{args}"
        path = FOLDER / await store_name(_plain(settings), speaker, split)
        found = await evaluate(
            settings,
            sampler_per_agent(settings, TextSampler(endpoint, settings.sampling(server.timeout))),
            path,
            ConsoleProgress(console),
            lambda: endpoint.usage.completion_tokens,
            again=True,
            split=split,
        )
        cost = endpoint.usage.cost if found.fresh else None
        figures = await figures_of(settings, Figures(server.model, 0, found, path, cost=cost))
        return figures, str(endpoint.usage)


@asynccontextmanager
async def _best(
    settings: ModelSettings, sampler: TokenSampler, renderer: ChatRenderer, split: Split
) -> AsyncIterator[Sampler]:
    """The sampler, or one that says the best of several candidates by a run's critic."""
    if settings.critic is None:
        yield sampler
        return
    with _critic_run(Path(settings.critic)) as (own, run):
        tasks = {task.id: task for task in _tasks(settings, split)}
        async with own.open(run) as critic:
            if critic.renderer is not None:
                _check_words(settings, critic.renderer, renderer)

            async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
                return await critic.score(tasks[tree.task], tree, turns)

            yield BestOfSampler(sampler, settings.best_of, score)


def _check_words(settings: ModelSettings, critic: ChatRenderer, policy: ChatRenderer) -> None:
    if critic.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UserError(
            f"critic={settings.critic} has another tokenizer than policy={settings.policy}",
            "give the critic of a run whose base has the policy's tokenizer",
        )


def _tasks(settings: ModelSettings, split: Split) -> list[Task]:
    return settings.build_environment().tasks(split, settings.tasks, settings.seed)


@contextmanager
def _critic_run(folder: Path) -> Iterator[tuple[RunCritic, Run]]:
    with recorded_run(folder, recipe_of) as (recipe, run):
        critic = critic_of(recipe)
        if critic is None:
            having = " or ".join(one.name for one in descriptions() if one.critic)
            raise UserError(
                f"critic={folder} is a run of {recipe.name} without a critic",
                f"give a run of {having}",
            )
        yield critic, run


def _critic_hash(folder: str) -> str:
    with _critic_run(Path(folder)) as (critic, run):
        return critic.fingerprint(run)


def _urls(words: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """The address that ``policy=`` gives, if it is one. A server plays all agents."""
    given = [word.partition("=")[2] for word in words if word.startswith("policy=")]
    found = [url for url in given if _is_url(url)]
    of_one = [f"{ONE}{agent}={name}" for agent, name in own.items() if found or _is_url(name)]
    if of_one:
        raise UserError(
            f"{of_one[0]}: a server plays all agents, and no other policy plays beside it",
            "give policy=URL alone, or models and run folders",
        )
    return found


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _preset(words: Sequence[str]) -> Mapping[str, Any]:
    asked = [word.partition("=")[2] for word in words if word.startswith("method=")]
    return next((values for method, values in PRESETS.items() if method in asked[-1:]), {})


def _plain(settings: BenchmarkSettings) -> BenchmarkSettings:
    names = BenchmarkSettings.model_fields
    plain = played_type(BenchmarkSettings, settings.choice)
    return plain(**{name: getattr(settings, name) for name in names})
