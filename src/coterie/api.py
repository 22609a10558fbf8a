"""Models, environments, rollouts and training for scripts and notebooks.

    model = load("tiny-exchange")
    rollouts = play(environment(rows, reward=score), model, samples=8)
    train(model, [row for group in by_task(rollouts) for row in max(group, key=reward).rows()])

The functions also work inside a running event loop, such as in a notebook.
"""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from coterie.config.folders import expanded
from coterie.config.plugins import object_name
from coterie.config.resolve import nested
from coterie.datasets.columns import Columns
from coterie.datasets.conversations import Conversations, Preferences
from coterie.datasets.question_files import FileSettings
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling, run_now
from coterie.environments.conversation import with_tags
from coterie.environments.protocol import Environment, agents_of
from coterie.environments.registry import TaskSettings, make_environment
from coterie.errors import UserError
from coterie.models.adapters import load_adapter, merged
from coterie.models.catalogue import ADAPTER_FILE
from coterie.models.loading import LoadedModel, is_adapter, load_renderer, load_tokenizer, reading
from coterie.models.loading import load as load_model
from coterie.recipes.base import stored_policy
from coterie.record.export import begin_with_user, chat
from coterie.record.rows import Pair, Row, prompts, view
from coterie.record.rows import rows as rows_of_view
from coterie.record.tree import Outcome, Task, Tree
from coterie.record.turn import Message, Turn, digest
from coterie.rollout.episodes import Episode, EpisodeResult
from coterie.rollout.samplers import Sampler, TokenSampler
from coterie.rollout.script_player import Script, ScriptedSampler
from coterie.runs.benchmark import benchmark_settings
from coterie.runs.work_items import open_actors
from coterie.tools.sandbox.pool import Sandbox
from coterie.training import trainer
from coterie.training.chat_rows import conversation_rows, preference_pair
from coterie.training.checkpoint import TrainingReport
from coterie.training.losses import DPO, SFT, Objective
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings

Sampled = LoadedModel | InProcessEngine
"""Model of an agent."""
DATASET_KEYS = ("source", "heldout", "question", "answer", "ignore")
"""Keys of :func:`environment` that are settings of the data set."""
_FOLDER = tempfile.TemporaryDirectory(prefix="coterie-")
"""Files of rows that are given as dictionaries."""


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
        """Turns of the rollout, in order; empty if it failed."""
        return self.tree.path(self.outcome.leaf) if self.tree and self.outcome else ()

    def rows(self, agent: str | None = None, weight: float = 1.0) -> list[Row]:
        """Return training rows of an agent (by default of all), with its own turns as targets."""
        if self.tree is None or self.outcome is None:
            return []
        speakers = {turn.speaker.name for turn in self.path if turn.sample is not None}
        agents = [agent] if agent is not None else sorted(speakers)
        views = [view(self.tree, self.outcome.leaf, name) for name in agents]
        return [
            row for agent_view in views for row in rows_of_view(agent_view, weight) if row.targets
        ]

    def __str__(self) -> str:
        lines = [f"{turn.speaker.name}: {turn.text}" for turn in self.path]
        return "\n".join([*lines, self.failure or f"score {self.score:g}"])


def load(name_or_path: str | Path, **options: Any) -> LoadedModel:
    """Load a model for sampling and training.

    Args:
        name_or_path: Packaged model, catalogue entry, Hugging Face name, folder of a model or of a LoRA adapter (which
            is merged into its base), or run folder: its last policy, or
            with ``RUN@STEP`` its policy after a step of reinforcement learning.
        **options: ``dtype``, ``device``, ``template_args`` and ``attention`` of :func:`coterie.models.loading.load`.
    """
    source = stored_policy(str(name_or_path)) or name_or_path
    if not is_adapter(folder := expanded(source)):
        return load_model(source, **options)
    loaded, has_tokenizer = load_merged(folder, **options), (folder / "tokenizer.json").is_file()
    template = loaded.tokenizer.chat_template
    # With the base's template it would read other prompts than it was trained on.
    if has_tokenizer and load_tokenizer(str(folder)).chat_template != template:
        raise UserError(
            f"the adapter in {folder} has another chat template than its base",
            f"run `coterie export model {folder} --merge --out MERGED`, and load MERGED",
        )
    return loaded


def load_merged(folder: Path, **options: Any) -> LoadedModel:
    """Load the base of an adapter, with the base's tokenizer, and merge the adapter into it."""
    with reading(folder / ADAPTER_FILE):
        base = json.loads((folder / ADAPTER_FILE).read_bytes())["base_model_name_or_path"]
    inside = folder / base  # exported adapters may name a base beside them
    loaded = load_model(inside if inside.is_dir() else base, **options)
    return replace(loaded, model=merged(load_adapter(loaded.model, folder)))


def environment(
    name: str | Path | type | Iterable[Mapping[str, Any]],
    *,
    tools: Sequence[str | Callable[..., Any]] = (),
    calls: str = "native",
    **keys: object,
) -> Environment:
    """Make an environment.

    Args:
        name: Environment or data set: a built-in name, an entry point, ``package.module:Class``,
            ``path/file.py:Class`` or a class; or questions: a file of rows, or rows as dictionaries.
        tools: Tools of the agents, as in ``tools=[...]`` of a run, or functions with a docstring and types.
        calls: Syntax of tool calls.
        **keys: Settings of the environment or data set (``source="sample"``, ``turns=5``), and ``dataset``, the name of
            the rows of an environment. Functions are allowed where a setting names a function: ``reward=score``.

    Raises:
        UserError: The name is unknown or the settings are invalid.
    """
    if not isinstance(name, str | Path):
        name = object_name(name) if callable(name) else _rows_file(name)
    overrides = [f"dataset={keys.pop('dataset')}"] if "dataset" in keys else ()
    values = {
        f"{'dataset' if key in DATASET_KEYS else 'environment'}.{key}": _named(value)
        for key, value in keys.items()
    }
    if tools:
        values |= {"tools.use": [*map(_named, tools)], "tools.calls": calls}
    settings = benchmark_settings(TaskSettings, str(name), overrides, [nested(values)])
    return make_environment(settings)


def _named(value: object) -> object:
    return object_name(value) if callable(value) else value


def _rows_file(rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows to a temporary JSONL file, which is kept until the process ends, since rows are read on demand."""
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
    file = Path(_FOLDER.name) / f"rows-{digest(*lines)}.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def play(
    environment: Environment,
    models: Sampled | Mapping[str, Sampled],
    tasks: Sequence[Task] | int = 16,
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
        models: Model or engine of all agents, or a mapping with one for each agent.
        tasks: Tasks to play, or a number of training tasks.
        samples: Number of rollouts per task.
        temperature: Sampling temperature.
        top_p: Nucleus sampling threshold.
        max_tokens: Maximum number of tokens per turn.
        seed: Seed of the rollouts, and of a number of tasks.
    """
    agents = agents_of(environment)
    by_agent = models if isinstance(models, Mapping) else dict.fromkeys(agents, models)
    if absent := [agent for agent in agents if agent not in by_agent]:
        raise UserError(
            f"there is no engine for {', '.join(absent)} (engines: {', '.join(by_agent) or 'none'})",
            "give one engine for all agents, or a mapping with one for each",
        )
    if isinstance(tasks, int):
        tasks = environment.tasks("train", tasks, seed)
    # Agents with the same model share an engine, which packs the weights once.
    sampling, samplers = Sampling(temperature, top_p, max_tokens, ()), dict[int, TokenSampler]()
    for model in by_agent.values():
        engine = model if isinstance(model, InProcessEngine) else InProcessEngine(model)
        renderer, context = engine.loaded.renderer, engine.loaded.context_length
        samplers[id(model)] = TokenSampler.of(engine, renderer, sampling, context)
    episodes = [Episode(task, n, 0, "play") for task in tasks for n in range(samples)]
    of_agents = {agent: samplers[id(by_agent[agent])] for agent in agents}
    results = run_now(_play(environment, of_agents, episodes, seed))
    return [results[episode.key] for episode in episodes]


def train(
    model: Any,
    rows: Sequence[Any],
    settings: TrainingSettings | None = None,
    folder: Path | str | None = None,
    *,
    objective: Objective[Any] | None = None,
    heldout: Sequence[Any] = (),
    calls: Literal["native", "tags"] = "native",
    **options: Any,
) -> TrainingReport:
    """Train a model in place.

    Args:
        model: Model of :func:`load`, or a Transformers model if ``rows`` are no dictionaries.
        rows: Conversations or preferences as dictionaries, in the formats of ``coterie run sft`` and ``dpo``; or items
            of the objective: :class:`Row` for SFT, :class:`Pair` for DPO.
        settings: Settings of the training.
        folder: Folder of checkpoints, metrics and final weights (``final/``). The same call resumes a stopped training.
            By default only the model in memory is trained; ``model.save(folder)`` writes it.
        objective: Objective to minimize; the default is DPO for pairs and preferences, else SFT.
        heldout: Rows whose loss is measured.
        calls: Syntax of the calls in dictionaries: the model's, or tags (``tools.calls=tags``).
        **options: Other arguments of :func:`coterie.training.trainer.train`.

    Raises:
        UserError: A row cannot be trained on, or a LoRA adapter has no folder.
    """
    settings = settings or TrainingSettings()
    if folder is None and settings.method == "lora":
        raise UserError("a LoRA adapter needs a folder", "give one: folder='lora'")
    items, heldout_items = (_items(model, split, calls) for split in (rows, heldout))
    module = model.model if isinstance(model, LoadedModel) else model
    is_paired = bool(items) and isinstance(items[0], Pair)
    objective = objective or (DPO() if is_paired else SFT())
    with ExitStack() as stack:
        folder = Path(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        if isinstance(objective, DPO):
            items, heldout_items = (
                with_reference(
                    *(module, pairs, settings, folder / name),
                    reduction=objective.settings.reduction,
                )
                if objective.settings.needs_reference
                and any(pair.reference is None for pair in pairs)
                else pairs
                for name, pairs in (("reference", items), ("reference-heldout", heldout_items))
            )
        arguments = (module, items, settings, folder)
        return trainer.train(*arguments, objective=objective, heldout=heldout_items, **options)


def _items(model: Any, rows: Sequence[Any], calls: str) -> Sequence[Any]:
    """Return the training items of rows; items are returned unchanged."""
    if not rows or not isinstance(rows[0], Mapping):
        return rows
    if not isinstance(model, LoadedModel):
        raise UserError("dictionaries need the model's tokenizer", "give a model of coterie.load")
    settings = FileSettings(name="rows", source=str(_rows_file(rows)), heldout=0)
    preferences = Preferences(settings)
    is_preference = bool(preferences.format_of(Columns(rows[0])))
    conversations = (preferences if is_preference else Conversations(settings)).rows("train")
    if calls == "tags":
        conversations = list(map(with_tags, conversations))
    if is_preference:
        return [preference_pair(model.renderer, row) for row in conversations]
    return [item for row in conversations for item in conversation_rows(model.renderer, row)]


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
        problem = f"{environment.name} has {len(agents)} agents"
        raise UserError(problem, "demonstrate an environment with one")
    samplers = {agents[0]: ScriptedSampler(load_renderer("tiny-exchange")[0], script)}
    episodes = [Episode(task, 0, 0, "demonstrate") for task in tasks]
    results = run_now(_play(environment, samplers, episodes, seed))
    return [_demonstration(results[episode.key], agents[0]) for episode in episodes]


def _demonstration(rollout: Played, agent: str) -> dict[str, Any]:
    if rollout.tree is None or rollout.outcome is None or rollout.score < 1:
        problem = f"the script of task {rollout.task.id} fails: {rollout}"
        raise UserError(problem, "correct the script")
    response = prompts(rollout.tree, rollout.outcome.leaf, agent)[-1][1]
    request = rollout.tree.requests[str(response.prompt)]
    if request.tools:
        problem = "demonstrations have calls as tags, and the chat template shows these tools"
        raise UserError(problem, "use calls='tags', or write messages with tool_calls yourself")
    messages = (*rollout.tree.messages(request), Message("assistant", turn=response.id))
    return {"messages": begin_with_user(chat(rollout.tree, messages, agent))}


def by_task(rollouts: Sequence[Played]) -> list[list[Played]]:
    """Group the rollouts of each task, in the order of :func:`play`."""
    return [
        list(group) for _, group in itertools.groupby(rollouts, key=lambda rollout: rollout.task.id)
    ]


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
            async for finished in playing:
                results[finished.episode.key] = _rollout_of(finished)
    return results


def _rollout_of(finished: EpisodeResult) -> Played:
    task, sample = finished.episode.task, finished.episode.sample
    return Played(task, sample, finished.tree, finished.failure, finished.tokens, finished.metrics)
