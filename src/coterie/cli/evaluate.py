"""``coterie evaluate BENCHMARK policy=...``: evaluate policies on the tasks of a benchmark.

A policy is a run folder (its newest policy, all, or steps), ``RUN@STEP``, a model, or the URL of an OpenAI-compatible
server. ``policy=NAME`` plays all agents, ``policy.AGENT=NAME`` one of them. In a run with several roles, each agent is
played by its role, or by the main role if it has no role.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from rich.console import Console

from coterie.cli.figures import Figures
from coterie.config.folders import check_new, expanded, make_folder
from coterie.config.plugins import absolute_name
from coterie.config.resolve import flatten
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.engines.chat_model import check_chat
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import POLICY, EngineError
from coterie.engines.run_engines import RunEngines, Speaking
from coterie.engines.settings import EngineSettings, OptionValue
from coterie.environments.coding import Coding
from coterie.environments.protocol import agents_of, check_graded, draw_tasks
from coterie.environments.registry import (
    CODING,
    Choice,
    is_data_file,
    make_environment,
    played_type,
    with_file,
)
from coterie.environments.user_simulator import check_user
from coterie.errors import UserError, did_you_mean
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load
from coterie.models.loading import resolve as resolve_model
from coterie.recipes.base import Recipe, recorded_run
from coterie.recipes.plan import notes_of
from coterie.recipes.registry import settings
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
    evaluate,
    sampler_per_agent,
    score_best_of_n,
    store_name,
    task_values,
    win_rate,
    write_dialogues,
)
from coterie.runs.loop import EVALUATION
from coterie.runs.reinforce_record import step_folder
from coterie.runs.run import Run, find_run, read_config
from coterie.terminal import ConsoleProgress
from coterie.training.checkpoint import weight_hash

FOLDER = Path("runs/evaluations")
"""Folder for evaluations of models and endpoints. Evaluations of a run go into the run folder."""
URL = ("http://", "https://")
AGENT_KEY = "policy."
"""Prefix of the key for the policy of one agent."""


@dataclass(frozen=True, slots=True)
class Player:
    """A model and the agents that it plays."""

    agents: tuple[str, ...]
    version: int
    base: str
    path: Path | str
    load: Callable[[], LoadedModel]
    template_args: Mapping[str, OptionValue]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model to evaluate, or several models that play together."""

    label: str
    version: int
    players: tuple[Player, ...]
    folder: Path

    def role(self, player: Player) -> str:
        """Return the name of a model as author of turns and in log files."""
        return POLICY if len(self.players) == 1 else "-".join(player.agents)


def agent_policies(
    settings: BenchmarkSettings, policy: str | None, by_agent: Mapping[str, str]
) -> dict[str, str]:
    """Return the name of each agent's policy. Raise ``UserError`` for a missing or unknown agent or policy."""
    agents = agents_of(settings.build_environment())
    for name in by_agent:
        if name not in agents:
            fix = f"{did_you_mean(name, agents)}its agents are {', '.join(agents)}"
            raise UserError(f"{settings.played} has no agent {name!r}", fix)
    missing = [agent for agent in agents if agent not in by_agent]
    if missing and policy is None:
        problem = (
            f"no policy is given for {', '.join(missing)}" if by_agent else "no policy is given"
        )
        alternative = f", or {AGENT_KEY}{missing[0]}=NAME" if len(agents) > 1 else ""
        raise UserError(
            problem, f"add policy=NAME (a run folder, model or server URL){alternative}"
        )
    named = {agent: by_agent.get(agent, policy or "") for agent in agents}
    # Unknown names are reported before any model is loaded.
    for name in dict.fromkeys(named.values()):
        if find_run(name) is None:
            resolve_model(name)
    return named


def candidates(
    named: Mapping[str, str], engine: EngineSettings, checkpoints: str
) -> Iterator[Candidate]:
    """Yield the candidates of named policies. ``checkpoints`` of a run are ``last``, ``all``, or steps."""
    names = list(dict.fromkeys(named.values()))
    words = [f"engine.device={engine.device}"]  # override the settings of a recorded run
    changed = engine.model_dump(
        include={"template_args", "reasoning_parser"}, exclude_defaults=True
    )
    words += [f"engine.{name}={json.dumps(value)}" for name, value in changed.items()]
    with ExitStack() as runs:
        parts = []
        for name in names:
            agents = tuple(agent for agent, policy in named.items() if policy == name)
            agents_label = f"{', '.join(agents)}: " * (len(names) > 1)
            if run_and_step := find_run(name):
                folder, step = run_and_step
                recipe, run = runs.enter_context(recorded_run(folder, words))
                chosen = checkpoints if step is None else str(step)
                part = []
                for version, n in _versions(recipe, run, agents, chosen):
                    label = f"{agents_label}{folder.name} {f'step {n}' if n else version or 'base'}"
                    part.append((label, _of_run(recipe, run, version, n, agents)))
            else:
                source, args = resolve_model(name), engine.template
                loader = partial(load, source, device=engine.device_name, template_args=args)
                part = [
                    (f"{agents_label}{name}", (Player(agents, 0, source, source, loader, args),))
                ]
            parts.append(part)
        # Evaluations of a single run go into its folder.
        only = find_run(names[0]) if len(names) == 1 else None
        stores = only[0] / "evaluations" if only else FOLDER
        # Several policies have one version each, because only a single run can have several
        # checkpoints.
        for choice in zip(*parts, strict=True):
            players = tuple(player for _, of_run in choice for player in of_run)
            newest = max(player.version for player in players)
            yield Candidate("; ".join(label for label, _ in choice), newest, players, stores)


def _versions(
    recipe: Recipe, run: Run, agents: Sequence[str], checkpoints: str
) -> list[tuple[int, int | None]]:
    """Return versions of the roles that play, without a step: the last, or all. Or 0 with each step of a list."""
    if checkpoints in ("last", "all"):
        # Roles may be trained at different times, so the versions of all roles count.
        roles = {_role(recipe, agent) for agent in agents}
        versions = sorted({version for role in roles for version in recipe.versions(run, role)})
        return [(version, None) for version in versions[-1 if checkpoints == "last" else 0 :]]
    steps = list(dict.fromkeys(checkpoints.split(",")))
    if not all(map(str.isdecimal, steps)):
        problem = f"--checkpoints {checkpoints} is no list of steps"
        raise UserError(problem, "use last, all, or steps such as 50,100")
    return [(0, int(step)) for step in steps]


def _of_run(
    recipe: Recipe, run: Run, version: int, step: int | None, agents: Sequence[str]
) -> tuple[Player, ...]:
    models = {role.name: role.model for role in recipe.roles()}
    template, players = recipe.settings.engine.template, list[Player]()
    for role in dict.fromkeys(_role(recipe, agent) for agent in agents):
        role_agents = tuple(agent for agent in agents if _role(recipe, agent) == role)
        newest = recipe.newest(run, role, version)
        # Version 0 is the base model, which is loaded by its name.
        weights = newest if step is None else step_folder(run, role, step)
        path = recipe.policy_path(run, weights, role)
        source, load_weights = path if weights else resolve_model(path), recipe.load_policy
        loader = partial(load_weights, run, weights, role)
        players.append(Player(role_agents, step or newest, models[role], source, loader, template))
    return tuple(players)


def _role(recipe: Recipe, agent: str) -> str:
    return recipe.players().get(agent, recipe.main_role)


class EvaluatedSettings(BenchmarkSettings):
    """Settings of a benchmark and its outputs. Outputs do not affect the dialogues."""

    picker: PickerSettings = PickerSettings()
    against: str | None = key(
        None,
        "Page (.html) or store (.sqlite) of another policy's evaluation on the same tasks: also report the win rate. A "
        "win is a strictly higher score, and a tie counts half.",
        source="SWEET-RL table 2: GPT-4o",
    )
    by: str | None = key(
        None,
        "Column of the rows (`a.b` is inside `a`): also report the score for each of its values.",
    )
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


async def add_picks(settings: EvaluatedSettings, figures: Figures) -> Figures:
    """Dump the dialogues, and add the judge's choice and the win rate. Raises ``UserError``."""
    picker = settings.picker
    if settings.dump is None and settings.against is None and not picker.picks:
        return figures
    with Store.open(figures.store, read_only=True) as store:
        if (rival := rival_store(settings)) is not None:
            with Store.open(rival, read_only=True) as rival_scores:
                figures = replace(figures, wins=win_rate(store, rival_scores, rival.name))
        # The newest attempt has the dialogues of the figures.
        attempt = store.iterations(EVALUATION)[-1]
        if settings.dump is not None:
            file = Path(f"{expanded(settings.dump)}_step_{figures.version}.jsonl")
            await write_dialogues(file, store, attempt, EVALUATION, settings, figures.version)
        if not picker.picks:
            return figures
        # Picks are stored, so that a repeated command requests only the missing ones.
        file = figures.store.with_suffix(".picks.jsonl")
        try:
            best = await score_best_of_n(store, attempt, EVALUATION, settings.samples, picker, file)
        except EngineError as error:
            fix = "repeat the command: it keeps the dialogues and requests only the missing picks"
            raise UserError(f"picker={picker.model}: {error}", fix) from error
    return replace(figures, picked=best)


def rival_store(settings: EvaluatedSettings) -> Path | None:
    """Return the store of ``against``. Raises ``UserError`` if there is none."""
    if settings.against is None:
        return None
    store = expanded(settings.against).with_suffix(".sqlite")
    if not store.is_file():
        problem = f"against={settings.against}: there is no store {store}"
        fix = "evaluate the other policy first, and give the page that `coterie evaluate` prints"
        raise UserError(problem, fix)
    with Store.open(store, read_only=True) as rival:
        if not rival.iterations(EVALUATION):
            raise UserError(f"{store} has no evaluation", "give the store of a finished evaluation")
    return store


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


def play_benchmark(
    benchmark: str,
    words: Sequence[str],
    *,
    checkpoints: str = "last",
    console: Console,
    split: Split = "heldout",
) -> tuple[str, BenchmarkSettings, list[Figures], str | None]:
    """Evaluate policies on a split. Return the benchmark's name and settings, all figures, and a server's usage."""
    # Agents are no keys of the settings, so their words are read first.
    of_agents = [word for word in words if word.startswith(AGENT_KEY) and "=" in word]
    by_agent = dict(word.removeprefix(AGENT_KEY).split("=", 1) for word in of_agents)
    words = [word for word in words if word not in of_agents]
    policies, words = split_policies(words)
    values = dict(word.split("=", 1) for word in words if "=" in word)
    if by_agent and any(policy.startswith(URL) for policy in (*policies, *by_agent.values())):
        problem = f"{', '.join(of_agents)}: a server plays all agents"
        raise UserError(problem, "give only policy=URL, or only models and run folders")
    # A method may have preset values.
    preset: Mapping[str, Any] = PRESETS.get(values.get("method"), {})  # type: ignore[call-overload]
    # All policies are played with the same settings: those of the first run on this benchmark.
    given_words = words
    for policy in policies or [""]:
        words, as_trained = _as_trained(benchmark, given_words, policy, console)
        if as_trained:
            break
    named = [*dict.fromkeys([*policies, *by_agent.values()])]
    if checkpoints != "last" and (len(named) != 1 or find_run(named[0]) is None):
        refused = ", ".join(named) or "no policy"
        problem = f"--checkpoints {checkpoints}: {refused} is not one run folder"
        raise UserError(problem, "give one run folder as policy=")
    if len(policies) > 1 and "dump" in values:
        raise UserError("dump= writes the dialogues of one policy", "give one, or leave it out")
    plays = list[tuple[ServerSettings, None] | tuple[ModelSettings, dict[str, str]]]()
    for policy in policies or [""]:
        layers = [as_trained, preset]
        if policy.startswith(URL):
            layers += [{"policy": policy, "endpoint": {"url": policy}}]
            # With several policies, settings of the engine apply only to models, and of the
            # endpoint only to servers.
            overrides = [
                word for word in words if len(policies) == 1 or not word.startswith("engine.")
            ]
            server = benchmark_settings(ServerSettings, benchmark, overrides, layers, where=KEYS)
            plays.append((server, None))
            continue
        layers += [{"policy": policy or None}]
        overrides = [
            word for word in words if len(policies) == 1 or not word.startswith("endpoint.")
        ]
        model = benchmark_settings(ModelSettings, benchmark, overrides, layers, where=KEYS)
        if model.critic and not isinstance(make_environment(model), Coding):
            problem = f"critic={model.critic} scores only code, and {model.played} has no code"
            raise UserError(problem, f"use one of: {', '.join(CODING)}")
        plays.append((model, agent_policies(model, model.policy, by_agent)))
    # Checked once, because all policies share data, judge and user simulator.
    first_settings, _ = plays[0]
    _check(first_settings, split, console)
    columns = (
        {} if first_settings.by is None else task_values(first_settings, split, first_settings.by)
    )
    figures, usages = list[Figures](), list[str]()
    for play in plays:
        if isinstance(play[0], ModelSettings):
            figures += _by_models(*play, checkpoints, console, split)
        else:
            result, usage = asyncio.run(_by_endpoint(play[0], console, split))
            figures.append(result)
            usages.append(usage)
    labels = [result.label for result in figures]
    for n, label in enumerate(labels):
        if labels.count(label) > 1:  # such as of runs whose folders have one name
            figures[n] = replace(figures[n], label=f"{policies[n]}: {label}")
    figures = [replace(result, columns=columns) for result in figures]
    return first_settings.played, first_settings, figures, "; ".join(usages) or None


def split_policies(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the policies in ``policy=A policy=B`` or ``policies=[A,B]``, and the other words."""
    policies, rest = list[str](), list[str]()
    for word in words:
        name, _, value = word.partition("=")
        if name == "policy":
            policies.append(value)
        elif name == "policies":
            policies += [part.strip() for part in value.strip("[] ").split(",")]
        else:
            rest.append(word)
    return [*dict.fromkeys(filter(None, policies))], rest


def own_benchmark(folder: Path) -> list[str]:
    """Return the benchmark that a run plays, and the words of its evaluations."""
    _, stored = read_config(folder)
    values, choice = flatten(stored), Choice.of(stored)
    keys = {"tasks": "evaluate.tasks", "temperature": "evaluate.temperature", "seed": "seed"}
    words = [f"{key}={values[name]}" for key, name in keys.items()]
    return [choice.dataset or choice.environment or "", *words]


def _as_trained(
    benchmark: str, words: Sequence[str], policy: str, console: Console
) -> tuple[list[str], Mapping[str, Any]]:
    """Return words and values for a run's own benchmark with the settings of its training.

    Policies of ``sft`` on questions get the bare question as the prompt, as in training.
    """
    # A file as the benchmark is a data set of questions.
    file_words = with_file([f"dataset={benchmark}"]) if is_data_file(benchmark) else []
    words = [*file_words, *with_file(words)]
    name = "qa" if file_words else absolute_name(benchmark)
    if (run_and_step := find_run(policy)) is None:
        return words, {}
    recipe, stored = read_config(run_and_step[0])
    run, choice = Choice.of(stored), Choice.among(words)
    # The settings of training apply only to the data set and environment that the run was trained
    # on.
    environment = run.environment if name in (run.dataset, run.environment) else None
    dataset = choice.dataset or (name if name == run.dataset else run.dataset)
    is_same = dataset == run.dataset and choice.environment in (None, environment)
    if environment is None or not is_same:
        return words, {}
    groups = ("dataset", "environment", "tools")
    values: dict[str, Any] = {group: stored.get(group, {}) for group in groups}
    # The stored settings of the data set belong to its stored source.
    source = next((word for word in words if word.startswith("dataset.source=")), None)
    if source not in (None, f"dataset.source={values['dataset'].get('source')}"):
        del values["dataset"]
    if environment == "conversation":
        environment, values["environment"] = "question", {"prompt": "{question}"}
    limit = settings(recipe, (), stored).turn_tokens
    console.print(f"{benchmark} as in {policy}: environment={environment} max_tokens={limit}")
    names = [f"environment={environment}", *([f"dataset={dataset}"] if dataset else [])]
    return [*names, *words], {**values, "max_tokens": limit}


def _check(settings: EvaluatedSettings, split: Split, console: Console) -> None:
    """Raise ``UserError`` for unavailable data, judge, user simulator or dump file, before a policy is loaded."""
    check_chat("picker", settings.picker, NOBODY)
    rival_store(settings)
    if settings.dump is not None:
        name = expanded(settings.dump)
        for file in name.parent.glob(f"{escape(name.name)}_step_*.jsonl"):
            check_new(file)
    environment = settings.build_environment()
    check_graded(environment)
    tasks = draw_tasks(environment, split, settings.tasks, settings.seed)
    for title, text in notes_of(environment):
        console.print(f"{title}: {text}")
    check_user(environment, settings.user_simulator, tasks)


def _by_models(
    settings: ModelSettings,
    named: Mapping[str, str],
    checkpoints: str,
    console: Console,
    split: Split,
) -> list[Figures]:
    figures = []
    for candidate in candidates(named, settings.engine, checkpoints):
        console.print(f"policy {candidate.label}")
        make_folder(candidate.folder)
        base = candidate.players[0].base
        # Each candidate has its own engines, which are closed before the next model loads.
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
    # The name of the store depends on all that the dialogues depend on, so that an equal evaluation
    # is read and not repeated.
    identity = _all_speakers(candidate.players, speakers)
    path = candidate.folder / await store_name(_plain(settings), identity, split)
    sampling, progress = settings.sampling(settings.engine.timeout), ConsoleProgress(console)
    samplers: dict[str, Sampler] = {}
    stats = [actor.engine.stats for actor in actors.values()]
    async with AsyncExitStack() as stack:
        for agents, actor in actors.items():
            sampler = TokenSampler.of(actor.engine, actor.renderer, sampling, actor.context_length)
            best = await stack.enter_async_context(_best(settings, sampler, actor.renderer, split))
            samplers |= dict.fromkeys(agents, best)
        result = await evaluate(
            *(settings, samplers, path, progress),
            lambda: sum(n.sampled_tokens for n in stats),
            split=split,
        )
    # Without a request, all dialogues were in the store.
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
    # Local weights are identified by their content, because a folder may be trained further.
    weights = weight_hash(Path(player.path)) if Path(player.path).is_dir() else str(player.path)
    speaker = f"{weights} {settings.engine.identity()}"
    # The template arguments of a run apply only if the evaluation gives no others.
    if player.template_args and not settings.engine.template:
        speaker += f" {sorted(player.template_args.items())}"
    if settings.critic:
        with _critic_run(settings.critic) as (recipe, run):
            speaker += f" best of {settings.best_of} {recipe.critic_fingerprint(run)}"
    # A template with a date gives other prompts on another day.
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
            # The weights behind a URL may have changed since the last evaluation.
            again=True,
            split=split,
        )
        # Dialogues from the store were paid for earlier, so the cost of all is unknown.
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
    with _critic_run(settings.critic) as (recipe, run):
        environment = settings.build_environment()
        sample = environment.tasks(split, settings.tasks, settings.seed)
        tasks = {task.id: task for task in sample}
        async with recipe.open_critic(run) as critic:
            # The critic reads the policy's token ids, so both need the same vocabulary.
            vocabulary = critic.renderer and critic.renderer.tokenizer.get_vocab()
            if vocabulary and vocabulary != renderer.tokenizer.get_vocab():
                problem = f"critic={settings.critic} and policy={settings.policy} have different tokenizers"
                raise UserError(problem, "use the critic of a run whose base has the policy's")

            async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
                return await critic.advantages(tasks[tree.task], tree, turns)

            yield BestOfSampler(sampler, settings.best_of, score)


@contextmanager
def _critic_run(folder: str) -> Iterator[tuple[Recipe, Run]]:
    with recorded_run(Path(folder)) as (recipe, run):
        if not recipe.has_critic:
            problem = f"critic={folder} is a run of {recipe.name}, which has no critic"
            raise UserError(problem, "give a run of sweet_rl with method=sweet, or of your recipe")
        yield recipe, run


def _plain(settings: BenchmarkSettings) -> BenchmarkSettings:
    # Outputs do not affect the dialogues, so they are not part of the store's name.
    names = BenchmarkSettings.model_fields
    plain = played_type(BenchmarkSettings, settings.choice)
    return plain(**{name: getattr(settings, name) for name in names})
