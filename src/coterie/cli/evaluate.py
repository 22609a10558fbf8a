"""``coterie evaluate BENCHMARK policy=...``: evaluate policies on the tasks of a benchmark.

A policy is a run folder (its newest checkpoint, or all checkpoints), a model, or the URL of an OpenAI-compatible
server. ``policy.AGENT=...`` sets the policy of one agent. ``cli.candidates`` resolves the policies, and
``cli.figures`` prints the results.
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
    AGENT_KEY,
    FOLDER,
    Candidate,
    Player,
    agent_policies,
    candidates,
    is_run,
    split_agent_policies,
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
from coterie.environments.protocol import check_graded
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
from coterie.recipes.base import recorded_run
from coterie.recipes.registry import BUILT_IN, RunCritic, critic_of, settings
from coterie.record.store import Store
from coterie.record.tree import Tree
from coterie.record.turn import Turn
from coterie.rollout.recorded_turns import BestOfSampler
from coterie.rollout.samplers import Sampler, TextSampler, TokenSampler
from coterie.runs.benchmark import (
    NOBODY,
    PRESETS,
    BenchmarkSettings,
    PickerSettings,
    benchmark_settings,
    dialogue_rows,
    evaluate,
    sampler_per_agent,
    score_best_of_n,
    store_name,
    write_rows,
)
from coterie.runs.folder import Run, read_config
from coterie.runs.loop import EVALUATION
from coterie.terminal import ConsoleProgress
from coterie.training.checkpoint import weight_hash


class EvaluatedSettings(BenchmarkSettings):
    """Settings of a benchmark and its outputs. Outputs do not affect the dialogues."""

    picker: PickerSettings = PickerSettings()
    dump: str | None = key(
        None,
        "Also write the dialogues to NAME_step_V.jsonl, V being the version of the policy, as rows with step, input, "
        "output, score, data_source and ground_truth.",
        source="GAP: trainer.val_generations_jsonl_path",
    )

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.picker.picks and self.samples == 1:
            raise ValueError("picker chooses among several dialogues; use samples=3")
        return self


def check_outputs(settings: EvaluatedSettings) -> None:
    """Raise ``UserError`` if the judge is unavailable or a dump file exists."""
    check_chat("picker", settings.picker, NOBODY)
    if settings.dump is not None:
        name = expanded(settings.dump)
        for file in name.parent.glob(f"{escape(name.name)}_step_*.jsonl"):
            check_new_file(file)


async def add_picks(settings: EvaluatedSettings, figures: Figures) -> Figures:
    """Dump the dialogues and add the judge's choice. Raises ``UserError``."""
    picker = settings.picker
    if settings.dump is None and not picker.picks:
        return figures
    with Store.open(figures.store, read_only=True) as store:
        attempt = store.iterations(EVALUATION)[-1]
        if settings.dump is not None:
            environment, version = settings.build_environment(), figures.version
            rows = await dialogue_rows(
                store, attempt, EVALUATION, environment, settings.played, version
            )
            write_rows(Path(f"{expanded(settings.dump)}_step_{version}.jsonl"), rows)
        if not picker.picks:
            return figures
        file, n = figures.store.with_suffix(".picks.jsonl"), figures.evaluation.n
        try:
            best = await score_best_of_n(
                store, attempt, EVALUATION, n, settings.samples, picker, file
            )
        except EngineError as error:
            raise UserError(
                f"picker={picker.model}: {error}",
                "repeat the command: it keeps the dialogues and requests only the missing picks",
            ) from error
    return replace(figures, picked=best)


KEYS = "docs/howto/evaluate.md has the keys; `coterie evaluate --help` has examples"


class ModelSettings(EvaluatedSettings):
    """Settings of a benchmark and a policy with local weights."""

    policy: str | None = key(
        None,
        "Run folder, or name or folder of a model, for all agents; `policy.AGENT=` sets one agent.",
    )
    engine: EngineSettings = EngineSettings()
    best_of: int = key(
        1,
        "Candidates of each turn; the candidate with the highest score of `critic` is used. Needs "
        "temperature=1.",
        source="SWEET-RL figure 3a: 1 to 32",
        ge=1,
    )
    critic: str | None = key(
        None, "Run folder of a recipe that trains a critic; the critic scores candidates."
    )

    @model_validator(mode="after")
    def _needs_critic(self) -> Self:
        if (self.best_of > 1) != (self.critic is not None):
            raise ValueError("best_of=N and critic=RUN need each other; give both or neither")
        if self.best_of > 1 and self.temperature == 0:
            raise ValueError("all best_of candidates are equal at temperature=0; use temperature=1")
        return self


class ServerSettings(EvaluatedSettings):
    """Settings of a benchmark and a policy behind a server."""

    policy: str = key(..., "URL of an OpenAI-compatible server.")
    endpoint: EndpointSettings


def evaluate_benchmark(
    benchmark: str, words: Sequence[str], *, every: bool, console: Console
) -> None:
    """Evaluate policies. Print a table and, as the last line, one JSON object."""
    show(*play_benchmark(benchmark, words, every=every, console=console))


def play_benchmark(
    benchmark: str,
    words: Sequence[str],
    *,
    every: bool,
    console: Console,
    split: Split = "heldout",
) -> tuple[str, BenchmarkSettings, list[Figures], str | None]:
    """Evaluate policies on the tasks of a split.

    Returns:
        Name of the benchmark, its settings, the figures of each policy, and the usage of a server if there is one.
    """
    preset, (own, words) = _preset(words), split_agent_policies(words)
    words, as_trained = _as_trained(benchmark, words, console)
    if urls := _urls(words, own):
        if every:
            raise UserError(
                "--checkpoints all: a server has no checkpoints", "give a run folder as policy="
            )
        layers = [preset, {"endpoint": {"url": urls[-1]}}]
        server = benchmark_settings(ServerSettings, benchmark, words, layers, where=KEYS)
        _check(server, split)
        figures, usage = asyncio.run(_by_endpoint(server, console, split))
        return server.played, server, [figures], usage
    layers = [as_trained, preset]
    model = benchmark_settings(ModelSettings, benchmark, words, layers, where=KEYS)
    if model.critic and not isinstance(make_environment(model), Coding):
        raise UserError(
            f"critic={model.critic} scores only code, and {model.played} has no code",
            f"use one of: {', '.join(CODING)}",
        )
    named = agent_policies(model, model.policy, own)
    _check(model, split)
    return model.played, model, _by_models(model, named, every, console, split), None


def _as_trained(
    benchmark: str, words: Sequence[str], console: Console
) -> tuple[list[str], Mapping[str, Any]]:
    """Return words and values for a run's own benchmark with the settings of its training.

    Policies of ``sft`` on questions get the bare question as the prompt, as in training.
    """
    file_words = with_file([f"dataset={benchmark}"]) if is_data_file(benchmark) else []
    words = [*file_words, *with_file(words)]
    name = "qa" if file_words else absolute_name(benchmark)
    policy = next((word[7:] for word in reversed(words) if word.startswith("policy=")), "")
    if not is_run(policy):
        return words, {}
    recipe, stored = read_config(Path(policy))
    run, choice = Choice.of(stored), Choice.among(words)
    environment = run.environment if name in (run.dataset, run.environment) else None
    dataset = choice.dataset or (name if name == run.dataset else run.dataset)
    if (
        environment is None
        or dataset != run.dataset
        or choice.environment not in (None, environment)
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
    """Raise ``UserError`` for unavailable data, judge or user simulator, before a policy is loaded."""
    check_outputs(settings)
    environment = settings.build_environment()
    check_graded(environment)
    draw_tasks(environment, split, 1, settings.seed)
    if hasattr(environment, "script"):
        check_chat("user_simulator", settings.user_simulator, SCRIPT)
        if settings.user_simulator.url is None and settings.user_simulator.model == SCRIPT:
            check_script(environment.script)


def _by_models(
    settings: ModelSettings, named: Mapping[str, str], every: bool, console: Console, split: Split
) -> list[Figures]:
    figures = []
    for candidate in candidates(named, settings.engine, every=every):
        make_folder(candidate.folder)
        base = candidate.players[0].base
        engines = RunEngines(settings.engine, base, candidate.folder / "servers")
        try:
            figures.append(engines.run(_by_engines(settings, candidate, engines, console, split)))
        finally:
            engines.close()
    return figures


async def _by_engines(
    settings: ModelSettings,
    candidate: Candidate,
    engines: RunEngines,
    console: Console,
    split: Split,
) -> Figures:
    actors, speakers = {}, []
    for player in candidate.players:
        actors[player.agents] = await engines.speak(
            *(player.version, player.path, player.load),
            role=candidate.role(player),
            base=player.base,
            template_args=player.template_args,
        )
        speakers.append(_speaker(settings, player, actors[player.agents]))
    identity = _all_speakers(candidate.players, speakers)
    path = candidate.folder / await store_name(_plain(settings), identity, split)
    sampling, progress = settings.sampling(settings.engine.timeout), ConsoleProgress(console)
    samplers: dict[str, Sampler] = {}
    stats = [actor.engine.stats for actor in actors.values()]
    async with AsyncExitStack() as stack:
        for agents, actor in actors.items():
            renderer, context = actor.renderer, actor.context_length
            sampler = TokenSampler(
                actor.engine, renderer.render, sampling, context, renderer.calls, renderer.parts
            )
            best = await stack.enter_async_context(_best(settings, sampler, renderer, split))
            samplers |= dict.fromkeys(agents, best)
        result = await evaluate(
            *(settings, samplers, path, progress),
            lambda: sum(n.sampled_tokens for n in stats),
            split=split,
        )
    if not any(n.requests for n in stats):
        console.print(f"{candidate.label}: already evaluated, read from {path}")
    renderers = {agent: actor.renderer for agents, actor in actors.items() for agent in agents}
    figures = Figures(
        candidate.label, candidate.version, result, path, decoder=renderers.__getitem__
    )
    return await add_picks(settings, figures)


def _all_speakers(players: Sequence[Player], speakers: Sequence[str]) -> str:
    """Return the identity of all models; with several models, also the agents of each."""
    agents = [player.agents for player in players]
    return speakers[0] if len(speakers) == 1 else str(list(zip(agents, speakers, strict=True)))


def _speaker(settings: ModelSettings, player: Player, actor: Speaking) -> str:
    """Return the identity of a model: everything that its turns depend on."""
    weights = weight_hash(Path(player.path)) if Path(player.path).is_dir() else str(player.path)
    speaker = f"{weights} {settings.engine.identity()}"
    if player.template_args and not settings.engine.template_args:
        speaker += f" {sorted(player.template_args.items())}"
    speaker += (
        f" best of {settings.best_of} {_critic_hash(settings.critic)}" if settings.critic else ""
    )
    template = actor.renderer.template
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
        result = await evaluate(
            settings,
            sampler_per_agent(settings, TextSampler(endpoint, settings.sampling(server.timeout))),
            path,
            ConsoleProgress(console),
            lambda: endpoint.usage.completion_tokens,
            again=True,
            split=split,
        )
        cost = endpoint.usage.cost if result.fresh else None
        figures = await add_picks(settings, Figures(server.model, 0, result, path, cost=cost))
        return figures, str(endpoint.usage)


@asynccontextmanager
async def _best(
    settings: ModelSettings, sampler: TokenSampler, renderer: ChatRenderer, split: Split
) -> AsyncIterator[Sampler]:
    """Wrap the sampler to choose the best of several candidates, if the settings have a critic."""
    if settings.critic is None:
        yield sampler
        return
    with _critic_run(Path(settings.critic)) as (run_critic, run):
        environment = settings.build_environment()
        sample = environment.tasks(split, settings.tasks, settings.seed)
        tasks = {task.id: task for task in sample}
        async with run_critic.open(run) as critic:
            if critic.renderer is not None:
                _check_tokenizers(settings, critic.renderer, renderer)

            async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
                return await critic.score(tasks[tree.task], tree, turns)

            yield BestOfSampler(sampler, settings.best_of, score)


def _check_tokenizers(settings: ModelSettings, critic: ChatRenderer, policy: ChatRenderer) -> None:
    if critic.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise UserError(
            f"critic={settings.critic} and policy={settings.policy} have different tokenizers",
            "use the critic of a run whose base model has the policy's tokenizer",
        )


@contextmanager
def _critic_run(folder: Path) -> Iterator[tuple[RunCritic, Run]]:
    with recorded_run(folder) as (recipe, run):
        critic = critic_of(recipe)
        if critic is None:
            names = " or ".join(one.name for one in BUILT_IN if one.critic)
            raise UserError(
                f"critic={folder} is a run of {recipe.name}, which has no critic",
                f"give a run of {names}",
            )
        yield critic, run


def _critic_hash(folder: str) -> str:
    with _critic_run(Path(folder)) as (critic, run):
        return critic.fingerprint(run)


def _urls(words: Sequence[str], own: Mapping[str, str]) -> list[str]:
    """Return the URLs among the words ``policy=``. Raises ``UserError`` if single agents have policies, too."""
    policies = [word.partition("=")[2] for word in words if word.startswith("policy=")]
    urls = [policy for policy in policies if _is_url(policy)]
    single = [f"{AGENT_KEY}{agent}={name}" for agent, name in own.items() if urls or _is_url(name)]
    if single:
        raise UserError(
            f"{single[0]} is in conflict: a server plays all agents",
            "give only policy=URL, or only models and run folders",
        )
    return urls


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _preset(words: Sequence[str]) -> Mapping[str, Any]:
    methods = [word.partition("=")[2] for word in words if word.startswith("method=")]
    return next((values for method, values in PRESETS.items() if method in methods[-1:]), {})


def _plain(settings: BenchmarkSettings) -> BenchmarkSettings:
    names = BenchmarkSettings.model_fields
    plain = played_type(BenchmarkSettings, settings.choice)
    return plain(**{name: getattr(settings, name) for name in names})
