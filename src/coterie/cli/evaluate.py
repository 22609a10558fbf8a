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
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator
from rich.console import Console

from coterie.config.folders import check_new, expanded, make_folder
from coterie.config.plugins import absolute_name
from coterie.config.resolve import flatten
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.engines.chat_model import NOBODY, check_chat
from coterie.engines.endpoint import Endpoint, EndpointSettings
from coterie.engines.protocol import POLICY, EngineError, Sampling
from coterie.engines.settings import EngineSettings, OptionValue
from coterie.environments.coding import Coding
from coterie.environments.protocol import agents_of, check_graded, draw_tasks
from coterie.environments.qa_metrics import question_of
from coterie.environments.registry import Choice, is_data_file, make_environment, with_file
from coterie.environments.user_simulator import check_user
from coterie.errors import UserError, did_you_mean
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load
from coterie.models.loading import resolve as resolve_model
from coterie.recipes.base import Recipe, TurnCritic, recorded_run
from coterie.recipes.plan import notes_of
from coterie.recipes.registry import settings
from coterie.record.store import Store
from coterie.record.tree import Tree
from coterie.record.turn import Turn
from coterie.rollout.candidates import BestOfSampler
from coterie.rollout.samplers import Sampler, TextSampler
from coterie.runs.benchmark import (
    PRESETS,
    BenchmarkSettings,
    benchmark_settings,
    evaluate,
    sampler_per_agent,
    store_name,
    task_values,
    write_dialogues,
)
from coterie.runs.evaluation import Evaluation, compare_stores
from coterie.runs.loop import EVALUATION
from coterie.runs.picker import PickerSettings, pick_best
from coterie.runs.reinforce_record import step_folder
from coterie.runs.run import Run, find_run, read_config
from coterie.terminal import ConsoleProgress

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.runs.engines import RoleEngine, RunEngines

FOLDER = Path("runs/evaluations")
"""Folder for evaluations of models and endpoints. Evaluations of a run go into the run folder."""
URL = ("http://", "https://")
AGENT_KEY = "policy."
"""Prefix of the key for the policy of one agent."""


@dataclass(frozen=True, slots=True)
class Player:
    """A model and the agents that it plays."""

    label: str
    """Name of the policy, for tables. The roles of a run have the same."""
    agents: tuple[str, ...]
    version: int
    base: str
    path: Path | str
    load: Callable[[], LoadedModel]
    template_args: Mapping[str, OptionValue]


def agent_policies(
    settings: BenchmarkSettings, policy: str | None, by_agent: Mapping[str, str]
) -> dict[str, str]:
    """Return the name of each agent's policy. Raise ``UserError`` for a missing or unknown agent or policy."""
    agents = agents_of(settings.build_environment())
    for name in by_agent:
        if name not in agents:
            fix = f"{did_you_mean(name, agents)}its agents are {', '.join(agents)}"
            raise UserError(f"{settings.benchmark} has no agent {name!r}", fix)
    missing = [agent for agent in agents if agent not in by_agent]
    if missing and policy is None:
        problem = "no policy is given" + (f" for {', '.join(missing)}" if by_agent else "")
        fix = "add policy=NAME (a run folder, model or server URL)"
        fix += f", or {AGENT_KEY}{missing[0]}=NAME" if len(agents) > 1 else ""
        raise UserError(problem, fix)
    named = {agent: by_agent.get(agent, policy or "") for agent in agents}
    # Unknown names are reported before any model is loaded.
    for name in dict.fromkeys(named.values()):
        if find_run(name) is None:
            resolve_model(name)
    return named


def candidates(
    named: Mapping[str, str], engine: EngineSettings, checkpoints: str
) -> Iterator[tuple[Player, ...]]:
    """Yield the models that play together, for each of the ``checkpoints``: ``last``, ``all``, or steps.

    Only a single run can have several checkpoints.
    """
    overrides = [f"engine.device={engine.device}"]
    changed = engine.model_dump(
        include={"template_args", "reasoning_parser"}, exclude_defaults=True
    )
    overrides += [f"engine.{name}={json.dumps(value)}" for name, value in changed.items()]
    names = list(dict.fromkeys(named.values()))
    with ExitStack() as runs:
        parts = list[list[list[Player]]]()
        for name in names:
            agents = tuple(agent for agent, policy in named.items() if policy == name)
            prefix = f"{', '.join(agents)}: " * (len(names) > 1)
            if run_and_step := find_run(name):
                folder, step = run_and_step
                recipe, run = runs.enter_context(recorded_run(folder, overrides))
                steps = checkpoints if step is None else str(step)
                parts.append(list(_of_run(recipe, run, agents, steps, prefix + folder.name)))
            else:
                source, args = resolve_model(name), engine.template
                loader = partial(load, source, device=engine.device_name, template_args=args)
                parts.append([[Player(prefix + name, agents, 0, source, source, loader, args)]])
        for choice in zip(*parts, strict=True):
            yield tuple(player for players in choice for player in players)


def _of_run(
    recipe: Recipe, run: Run, agents: Sequence[str], checkpoints: str, label: str
) -> Iterator[list[Player]]:
    """Yield the models of a run's roles, for each checkpoint."""
    by_role: dict[str, list[str]] = {}
    for agent in agents:
        by_role.setdefault(recipe.players().get(agent, recipe.main_role), []).append(agent)
    versions, steps = [0], list[int | None]([None])
    if checkpoints in ("last", "all"):
        # Roles may be trained at different times, so the versions of all roles count.
        versions = sorted({version for role in by_role for version in recipe.versions(run, role)})
        versions = versions[-1 if checkpoints == "last" else 0 :]
    elif all(map(str.isdecimal, words := checkpoints.split(","))):
        steps = [int(word) for word in dict.fromkeys(words)]
    else:
        problem = f"--checkpoints {checkpoints} is no list of steps"
        raise UserError(problem, "use last, all, or steps such as 50,100")
    models = {role.name: role.model for role in recipe.roles()}
    for version, step in product(versions, steps):
        players = list[Player]()
        for role, role_agents in by_role.items():
            newest = recipe.newest(run, role, version)
            # Version 0 is the base model, which is loaded by its name.
            weights = newest if step is None else step_folder(run, role, step)
            path = recipe.models(run).path(role, weights)
            players.append(
                Player(
                    f"{label} {f'step {step}' if step else version or 'base'}",
                    tuple(role_agents),
                    step or newest,
                    models[role],
                    path if weights else resolve_model(path),
                    partial(recipe.models(run).load, role, weights),
                    recipe.settings.engine.template,
                )
            )
        yield players


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
        if self.picker.judges and self.samples == 1:
            raise ValueError("picker chooses among several dialogues; use samples=3")
        return self


async def _with_outputs(settings: EvaluatedSettings, result: Evaluation) -> Evaluation:
    """Dump the dialogues, and add the win rate and the judge's choice. Raises ``UserError``."""
    picker = settings.picker
    if (rival := rival_store(settings)) is not None:
        result = replace(result, wins=compare_stores(result.store, rival))
    if settings.dump is None and not picker.judges:
        return result
    with Store.open(result.store, read_only=True) as store:
        if settings.dump is not None:
            file = Path(f"{expanded(settings.dump)}_step_{result.version}.jsonl")
            await write_dialogues(file, store, settings, result.version)
        if not picker.judges:
            return result
        questions = {task: question_of(store.task(task)) for task in result.draws}
    # Picks are stored, so that a repeated command requests only the missing ones.
    file = result.store.with_suffix(".picks.jsonl")
    try:
        picked, unreadable = await pick_best(questions, result.draws, picker, file)
    except EngineError as error:
        fix = "repeat the command: it keeps the dialogues and requests only the missing picks"
        raise UserError(f"picker={picker.model}: {error}", fix) from error
    return replace(result, picked=picked, unreadable=unreadable)


def rival_store(settings: EvaluatedSettings) -> Path | None:
    """Return the store of ``against``. Raises ``UserError`` if it does not exist."""
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
    overrides: Sequence[str],
    *,
    checkpoints: str = "last",
    console: Console,
    split: Split = "heldout",
) -> tuple[EvaluatedSettings, list[Evaluation]]:
    """Evaluate policies on a split. Return the settings of the first policy, and the results of all."""
    policies, by_agent, given_overrides = split_policies(overrides)
    names = list(dict.fromkeys([*policies, *by_agent.values()]))
    values = dict(pair.split("=", 1) for pair in given_overrides if "=" in pair)
    if by_agent and any(name.startswith(URL) for name in names):
        named_agents = ", ".join(f"{AGENT_KEY}{agent}={name}" for agent, name in by_agent.items())
        problem = f"{named_agents}: a server plays all agents"
        raise UserError(problem, "give only policy=URL, or only models and run folders")
    # A method may have preset values.
    preset: Mapping[str, Any] = PRESETS.get(values.get("method"), {})  # type: ignore[call-overload]
    # All policies are played with the settings of the first run on this benchmark.
    for policy in policies or [""]:
        overrides, as_trained = _as_trained(benchmark, given_overrides, policy, console)
        if as_trained:
            break
    if checkpoints != "last" and (len(names) != 1 or find_run(names[0]) is None):
        problem = (
            f"--checkpoints {checkpoints}: {', '.join(names) or 'no policy'} is not one run folder"
        )
        raise UserError(problem, "give one run folder as policy=")
    if len(policies) > 1 and "dump" in values:
        raise UserError("dump= writes the dialogues of one policy", "give one, or leave it out")
    plays = list[ServerSettings | tuple[ModelSettings, dict[str, str]]]()
    for policy in policies or [""]:
        layers = [as_trained, preset, {"policy": policy or None}]
        # With several policies, settings of the engine apply only to models, and of the endpoint only to servers.
        foreign = "engine." if policy.startswith(URL) else "endpoint."
        keys = [pair for pair in overrides if len(policies) == 1 or not pair.startswith(foreign)]
        if policy.startswith(URL):
            layers.append({"endpoint": {"url": policy}})
            plays.append(benchmark_settings(ServerSettings, benchmark, keys, layers, where=KEYS))
            continue
        model = benchmark_settings(ModelSettings, benchmark, keys, layers, where=KEYS)
        if model.critic and not isinstance(make_environment(model), Coding):
            problem = f"critic={model.critic} scores only code, and {model.benchmark} has no code"
            raise UserError(problem, "use persona or colbench_code")
        plays.append((model, agent_policies(model, model.policy, by_agent)))
    # Checked once, because all policies share data, judge and user simulator.
    settings = plays[0] if isinstance(plays[0], ServerSettings) else plays[0][0]
    _check(settings, split, console)
    columns = {} if settings.by is None else task_values(settings, split, settings.by)
    results = list[Evaluation]()
    for play in plays:
        if isinstance(play, ServerSettings):
            results.append(asyncio.run(_by_endpoint(play, console, split)))
        else:
            results += _by_models(*play, checkpoints, console, split)
    labels = [result.label for result in results]
    for n, label in enumerate(labels):
        if labels.count(label) > 1:  # such as of runs whose folders have one name
            label = f"{policies[n]}: {label}"
        results[n] = replace(results[n], label=label, columns=columns)
    return settings, results


def split_policies(overrides: Sequence[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Split policies (``policy=A policy=B`` or ``policies=[A,B]``), those of single agents, and the other overrides.

    Agents are no keys of the settings, so these overrides are read first.
    """
    policies, by_agent, rest = list[str](), dict[str, str](), list[str]()
    for pair in overrides:
        name, separator, value = pair.partition("=")
        if name == "policy":
            policies.append(value)
        elif name == "policies":
            policies += [part.strip() for part in value.strip("[] ").split(",")]
        elif separator and name.startswith(AGENT_KEY):
            by_agent[name.removeprefix(AGENT_KEY)] = value
        else:
            rest.append(pair)
    return [*dict.fromkeys(filter(None, policies))], by_agent, rest


def own_benchmark(folder: Path) -> list[str]:
    """Return the benchmark that a run plays, and the overrides of its evaluations."""
    _, stored = read_config(folder)
    values, choice = flatten(stored), Choice.of(stored)
    keys = {"tasks": "evaluate.tasks", "temperature": "evaluate.temperature", "seed": "seed"}
    overrides = [f"{key}={values[name]}" for key, name in keys.items()]
    return [choice.dataset or choice.environment or "", *overrides]


def _as_trained(
    benchmark: str, overrides: Sequence[str], policy: str, console: Console
) -> tuple[list[str], Mapping[str, Any]]:
    """Return overrides and values for a run's own benchmark with the settings of its training.

    Policies of ``sft`` on questions get the bare question as the prompt, as in training.
    """
    # A file as the benchmark is a data set of questions.
    file_overrides = with_file([f"dataset={benchmark}"]) if is_data_file(benchmark) else []
    overrides = [*file_overrides, *with_file(overrides)]
    name = "qa" if file_overrides else absolute_name(benchmark)
    if (run_and_step := find_run(policy)) is None:
        return overrides, {}
    recipe, stored = read_config(run_and_step[0])
    run, choice = Choice.of(stored), Choice.among(overrides)
    # The settings of training apply only to the data set and environment that the run was trained on.
    environment = run.environment if name in (run.dataset, run.environment) else None
    dataset = choice.dataset or (name if name == run.dataset else run.dataset)
    is_same = dataset == run.dataset and choice.environment in (None, environment)
    if environment is None or not is_same:
        return overrides, {}
    groups = ("dataset", "environment", "tools")
    values: dict[str, Any] = {group: stored.get(group, {}) for group in groups}
    # The stored settings of the data set belong to its stored source.
    source = next((pair for pair in overrides if pair.startswith("dataset.source=")), None)
    if source not in (None, f"dataset.source={values['dataset'].get('source')}"):
        del values["dataset"]
    if environment == "conversation":
        environment, values["environment"] = "question", {"prompt": "{question}"}
    limit = settings(recipe, (), stored).turn_tokens
    console.print(f"{benchmark} as in {policy}: environment={environment} max_tokens={limit}")
    names = [f"environment={environment}", *([f"dataset={dataset}"] if dataset else [])]
    return [*names, *overrides], {**values, "max_tokens": limit}


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
) -> Iterator[Evaluation]:
    from coterie.runs.engines import RunEngines

    # Evaluations of a single run go into its folder.
    names = list(dict.fromkeys(named.values()))
    run_and_step = find_run(names[0]) if len(names) == 1 else None
    folder = run_and_step[0] / "evaluations" if run_and_step else FOLDER
    for players in candidates(named, settings.engine, checkpoints):
        console.print(f"policy {_label(players)}")
        make_folder(folder)
        # Each candidate has its own engines, which are closed before the next model loads.
        engines = RunEngines(settings.engine, folder / "servers")
        try:
            yield engines.run(_by_engines(settings, players, folder, engines, console, split))
        finally:
            engines.close()


def _label(players: Sequence[Player]) -> str:
    return "; ".join(dict.fromkeys(player.label for player in players))


async def _by_engines(
    settings: ModelSettings,
    players: Sequence[Player],
    folder: Path,
    engines: "RunEngines",
    console: Console,
    split: Split,
) -> Evaluation:
    opened, speakers = dict[str, "RoleEngine"](), list[str]()
    for player in players:
        # The author of turns, and the name of log files.
        role = POLICY if len(players) == 1 else "-".join(player.agents)
        engine = await engines.open_engine(
            player.version,
            player.path,
            player.load,
            role=role,
            base=player.base,
            template_args=player.template_args,
        )
        opened |= dict.fromkeys(player.agents, engine)
        speakers.append(_speaker(settings, player, engine.renderer))
    # The name of the store depends on all that the dialogues depend on, so that an equal evaluation
    # is read and not repeated.
    path = folder / await store_name(settings, _all_speakers(players, speakers), split)
    sampling, samplers = settings.sampling(settings.engine.timeout), dict[str, Sampler]()
    stats = [opened[player.agents[0]].engine.stats for player in players]
    async with AsyncExitStack() as stack:
        for player in players:
            # The agents of a model share a sampler, and with it the engine's caches.
            engine = opened[player.agents[0]]
            best = await stack.enter_async_context(_best(settings, engine, sampling, split))
            samplers |= dict.fromkeys(player.agents, best)
        result = await evaluate(
            settings,
            samplers,
            path,
            ConsoleProgress(console),
            lambda: sum(n.sampled_tokens for n in stats),
            split=split,
        )
    label, version = _label(players), max(player.version for player in players)
    # Without a request, all dialogues were in the store.
    if not any(n.requests for n in stats):
        console.print(f"{label}: already evaluated, read from {path}")
    models = tuple(str(player.path) for player in players)
    result = replace(result, label=label, version=version, models=models)
    return await _with_outputs(settings, result)


def _all_speakers(players: Sequence[Player], speakers: Sequence[str]) -> str:
    """Return the identity of all models; with several models, also the agents of each."""
    agents = [player.agents for player in players]
    return speakers[0] if len(speakers) == 1 else str(list(zip(agents, speakers, strict=True)))


def _speaker(settings: ModelSettings, player: Player, renderer: ChatRenderer) -> str:
    """Return the identity of a model: everything that its turns depend on."""
    from coterie.training.checkpoint import weight_hash

    # Local weights are identified by their content, because a folder may be trained further.
    weights = weight_hash(Path(player.path)) if Path(player.path).is_dir() else str(player.path)
    speaker = f"{weights} {settings.engine.identity()}"
    # The template arguments of a run apply only if the evaluation gives no others.
    if player.template_args and not settings.engine.template:
        speaker += f" {sorted(player.template_args.items())}"
    if settings.critic:
        with _critic_of(settings.critic) as critic:
            speaker += f" best of {settings.best_of} {critic.fingerprint}"
    # A template with a date gives other prompts on another day.
    template = renderer.template
    return speaker + (f" on {template.day}" if template.has_clock else "")


async def _by_endpoint(settings: ServerSettings, console: Console, split: Split) -> Evaluation:
    server = settings.endpoint
    make_folder(FOLDER)
    async with Endpoint(server) as endpoint:
        args = f" {sorted(server.template_args.items())}" if server.template_args else ""
        path = FOLDER / await store_name(settings, f"{server.url} {server.model}{args}", split)
        sampler = TextSampler(endpoint, settings.sampling(server.timeout))
        result = await evaluate(
            settings,
            sampler_per_agent(settings, sampler),
            path,
            ConsoleProgress(console),
            lambda: endpoint.usage.completion_tokens,
            # The weights behind a URL may have changed since the last evaluation.
            again=True,
            split=split,
        )
        # Dialogues from the store were paid for earlier, so the cost of all is unknown.
        cost = endpoint.usage.cost if result.fresh else None
        result = replace(result, label=server.model, version=0, cost=cost)
        return replace(await _with_outputs(settings, result), usage=str(endpoint.usage))


@asynccontextmanager
async def _best(
    settings: ModelSettings, engine: "RoleEngine", sampling: Sampling, split: Split
) -> AsyncIterator[Sampler]:
    """Open the sampler of an engine. With a critic in the settings, it chooses the best of several candidates."""
    sampler = engine.sampler(sampling)
    if settings.critic is None:
        yield sampler
        return
    with _critic_of(settings.critic) as turn_critic:
        environment = settings.build_environment()
        sample = environment.tasks(split, settings.tasks, settings.seed)
        tasks = {task.id: task for task in sample}
        async with turn_critic.open() as critic:
            # The critic reads the policy's token ids, so both need the same vocabulary.
            vocabulary = critic.renderer and critic.renderer.tokenizer.get_vocab()
            if vocabulary and vocabulary != engine.renderer.tokenizer.get_vocab():
                problem = f"critic={settings.critic} and policy={settings.policy} have different tokenizers"
                raise UserError(problem, "use the critic of a run whose base has the policy's")

            async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
                return await critic.advantages(tasks[tree.task], tree, turns)

            yield BestOfSampler(sampler, settings.best_of, score)


@contextmanager
def _critic_of(folder: str) -> Iterator[TurnCritic]:
    with recorded_run(Path(folder)) as (recipe, run):
        critic = recipe.critic(run)
        if critic is None:
            problem = f"critic={folder} is a run of {recipe.name}, which has no critic"
            raise UserError(problem, "give a run of sweet_rl with method=sweet, or of your recipe")
        yield critic
