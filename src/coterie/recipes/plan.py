"""The size of a run, before it starts, and the refusal of what can't work."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from coterie.engines.chat_model import check_chat
from coterie.engines.servers.vllm import check_vllm
from coterie.engines.settings import EngineSettings
from coterie.environments.answers import GRADER
from coterie.environments.checks import draw_tasks
from coterie.environments.protocol import Environment, Scripted, formats_of, most_turns, persons_of
from coterie.environments.user_simulator import (
    REFERENCE,
    SCRIPT,
    UserSimulatorSettings,
    check_script,
)
from coterie.errors import UserError
from coterie.models.adapters import ALL_LINEAR, add_lora
from coterie.models.chat import ChatRenderer
from coterie.models.loading import (
    check_context,
    checked_skeleton,
    device_memory,
    load_renderer,
    skeleton,
)
from coterie.recipes.settings import RecipeSettings
from coterie.record.tree import Task
from coterie.rollout.episodes import first_prompts
from coterie.runs.loop import EVALUATION, check_stages
from coterie.runs.roles import check_roles
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings, make_jail
from coterie.training.launch import accelerate_config, check_launch, launches
from coterie.training.memory import (
    MemoryPlan,
    ModelShape,
    TrainedModel,
    cache_memory,
    training_memory,
)
from coterie.training.objective import Reads
from coterie.training.settings import TrainingSettings, weight_dtype
from coterie.training.trackers import check_tracker

if TYPE_CHECKING:
    from coterie.recipes.base import Recipe

RENDERED = 64
"""So many of the wordiest tasks are rendered to find the longest prompt."""
CRITIC_TRAINING = "critic.train"
"""Key of the training of a critic: servers never sample from it, and it may have a value head."""
MARKS = 8
"""Tokens around a message, at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a run. Counts are upper bounds: every dialogue and message at its limit."""

    stages: tuple[str, ...]
    tasks: int
    """Training tasks that an iteration draws."""
    tasks_wanted: int
    heldout: int
    heldout_wanted: int
    shapes: Mapping[str, ModelShape]
    """Sizes of each role's model."""
    memory: tuple[MemoryPlan, ...]
    """Of sampling, and of each training."""
    device: str
    available: int
    """Bytes of the device's memory."""
    longest_prompt: int
    """Tokens of a first prompt."""
    shortest_prompt: int
    """Tokens of the first prompt of a training task."""
    context: int
    """The shortest context of a role's model."""
    dialogues: int
    """Training dialogues over all iterations; 0 where the recipe does not say."""
    evaluations: int
    """Held-out dialogues over all policies, the base included."""
    turns: int | None
    max_tokens: int
    rows: int = 0
    """Training rows or pairs of a file."""
    details: tuple[tuple[str, str], ...] = ()
    """Further lines about the recipe's own data."""

    @property
    def generations(self) -> int:
        return (self.dialogues + self.evaluations) * (self.turns or 1)

    @property
    def weights(self) -> dict[str, int]:
        """Number of weights of each role's model."""
        return {role: shape.weights for role, shape in self.shapes.items()}

    @property
    def may_outgrow(self) -> bool:
        """Whether a dialogue of long turns can outgrow the context; its last turn is then cut."""
        return grown(self.longest_prompt, self.turns or 1, self.max_tokens) > self.context

    def lines(self) -> list[tuple[str, str]]:
        names = ", ".join(dict.fromkeys(self.stages))
        lines = [("stages", f"{len(self.stages)}: {names}")]
        if self.tasks_wanted:
            lines.append(("training tasks", f"{self.tasks:,} of {self.tasks_wanted:,} asked for"))
        if self.rows:
            lines.append(("training rows", f"{self.rows:,}"))
        lines += self.details
        lines += [
            ("held-out tasks", f"{self.heldout:,} of {self.heldout_wanted:,} asked for"),
            *((f"role {role}", f"{count:,} weights") for role, count in self.weights.items()),
            *(one.line(self.available, self.device) for one in self.memory),
            (
                "longest first prompt",
                f"{self.longest_prompt} tokens"
                + " (long dialogues outgrow the context and are cut)" * self.may_outgrow,
            ),
        ]
        if self.dialogues:
            lines.append(("training dialogues", f"at most {self.dialogues:,}"))
        lines.append(("held-out dialogues", f"{self.evaluations:,}"))
        if self.dialogues and self.turns:
            count, tokens = self.generations, self.generations * self.max_tokens
            lines.append(("generations", f"at most {count:,}, with {tokens:,} tokens"))
        return lines


def grown(prompt: int, turns: int, max_tokens: int) -> int:
    """Return the tokens of a dialogue whose turns are as long as they may be."""
    return prompt + turns * (max_tokens + MARKS)


def make_plan(recipe: "Recipe") -> Plan:
    """Check the settings against environment, models and machine, and compute the size of the run.

    Raises ``UserError`` for stages out of order, missing services, tasks in both splits, prompts or rows that a model
    has no room for, and more memory than there is.
    """
    s, environment = recipe.settings, recipe.environment
    roles, stages = recipe.roles(), recipe.stages()
    check_stages(s.recipe, stages)
    check_roles(roles)
    trainings = recipe.trainings()
    head = any(role.head for role in roles)
    _check_services(s, environment, trainings, head=head)
    count = recipe.training_tasks()
    train = draw_tasks(environment, "train", count, s.seed) if count else []
    heldout = draw_tasks(environment, "heldout", s.evaluate.tasks, s.seed)
    check_disjoint(list(map(recipe.whole_task, train)), list(map(recipe.whole_task, heldout)))
    longest, shortest, contexts, shapes = 0, [], [], {}
    for role in roles:
        renderer, context = load_renderer(role.model, s.engine.template_args)
        prompt = longest_prompt(environment, renderer, train + heldout)
        check_context(context, prompt + recipe.room(renderer, train), role.model)
        shortest.append(shortest_prompt(environment, renderer, train or heldout))
        for name, training in trainings.items():
            check_length(name, training, context, shortest[-1])
            check_training(name, training, s, role.model)
        if s.engine.attention:
            skeleton(role.model, s.engine.attention)
        longest = max(longest, prompt)
        shapes[role.name] = ModelShape.of(checked_skeleton(role.model))
        contexts.append(context)
    turns, dialogues = _turns(environment), max(len(heldout), recipe.dialogues())
    length = min(contexts) if turns is None else grown(longest, turns, s.max_tokens)
    policies = [shapes[role.name] for role in roles if not role.head and role.shares is None]
    memory = []
    if s.engine.kind == "inprocess":  # vLLM servers have devices or shares of their own
        memory.append(_sampling_memory(s, policies, dialogues, min(length, *contexts)))
    row, rows = recipe.longest_rows()
    for name, training in trainings.items():
        reads: Reads = "differences" if head and name == CRITIC_TRAINING else "logprobs"
        shape = max(shapes.values(), key=lambda one: one.weights)
        model = TrainedModel(shape, training, row, rows, reads, s.engine.attention or "sdpa")
        memory.append(_training_memory(s, name, model))
    device = s.engine.device_name
    available = device_memory(torch.device(device))[1]
    for one in memory:
        one.check(available, device, s.model)
    return Plan(
        stages=tuple(stage.step.stage for stage in stages),
        tasks=len(train),
        tasks_wanted=count,
        heldout=len(heldout),
        heldout_wanted=s.evaluate.tasks,
        shapes=shapes,
        memory=tuple(memory),
        device=device,
        available=available,
        longest_prompt=longest,
        shortest_prompt=max(shortest),
        context=min(contexts),
        dialogues=recipe.dialogues(),
        evaluations=len(heldout) * sum(one.step.stage == EVALUATION for one in stages),
        turns=turns,
        max_tokens=s.max_tokens,
    )


def _sampling_memory(
    s: RecipeSettings, shapes: Sequence[ModelShape], dialogues: int, length: int
) -> MemoryPlan:
    """Plan the memory of stages that sample in this process."""
    terms: Counter[str] = Counter()
    size = weight_dtype(s).itemsize
    for shape in shapes:
        terms["weights"] += shape.weights * size
        terms.update(cache_memory(shape, s.engine, size, dialogues, length))
    advice = ("a training in bfloat16", "engine.max_batch=16", "engine.cache_gib=1")
    return MemoryPlan("sampling", terms, advice)


def _training_memory(s: RecipeSettings, name: str, model: TrainedModel) -> MemoryPlan:
    """Plan the memory of a training in this process or on ranks of its own."""
    config = accelerate_config(model.settings, name) if launches(model.settings) else {}
    return training_memory(
        name,
        [model],
        device=s.engine.device_name,
        ranks=config.get("num_processes", 1),
        sharded=config.get("distributed_type") == "FSDP",
    )


def _check_services(
    s: RecipeSettings,
    environment: Environment,
    trainings: Mapping[str, TrainingSettings],
    *,
    head: bool,
) -> None:
    """Refuse servers, ranks, a tracker, a sandbox or a user simulator that this machine does not have."""
    check_served(s.engine, {key: one for key, one in trainings.items() if key != CRITIC_TRAINING})
    for key, training in trainings.items():
        check_launch(training, s.engine.device_name, key, head=head and key == CRITIC_TRAINING)
    check_tracker(s.tracker)
    if Sandbox in environment.needs:
        make_jail(getattr(s, "sandbox", SandboxSettings()))
    simulator = getattr(s, "user_simulator", UserSimulatorSettings())
    check_chat("user_simulator", simulator, SCRIPT)
    if persons_of(environment) and simulator.url is None and simulator.model == SCRIPT:
        check_script(environment.script if isinstance(environment, Scripted) else None)


def _turns(environment: Environment) -> int | None:
    try:
        return most_turns(environment)
    except UserError:
        return None


def check_disjoint(train: list[Task], heldout: list[Task]) -> None:
    """Refuse an environment in which a held-out task is a training task, by id or by content."""
    ids = {task.id for task in train}
    contents = set(map(content_of, train))
    for task in heldout:
        if task.id in ids or content_of(task) in contents:
            raise UserError(
                f"held-out task {task.id} is also a training task",
                "correct the environment's splits: a score on trained tasks says nothing",
            )


def content_of(task: Task) -> str:
    """What makes a task what it is: what is shown, and where people want different things with the same
    words, the reference."""
    reference = task.secrets.get(REFERENCE)
    reference_text = "" if reference is None else reference.reveal(GRADER)
    return f"{sorted(task.public.items())} {reference_text}"


def longest_prompt(environment: Environment, renderer: ChatRenderer, tasks: list[Task]) -> int:
    """Tokens of the longest first prompt of the wordiest of these tasks."""
    wordiest = sorted(tasks, key=_wordiness, reverse=True)[:RENDERED]
    hint = max(formats_of(environment), key=len, default=None)
    return max(n for task in wordiest for n in _prompts(environment, renderer, task, hint))


def shortest_prompt(environment: Environment, renderer: ChatRenderer, tasks: list[Task]) -> int:
    """Tokens of the shortest first prompt of the least wordy of these tasks, without a format."""
    tersest = sorted(tasks, key=_wordiness)[:RENDERED]
    return min(n for task in tersest for n in _prompts(environment, renderer, task, None))


def _wordiness(task: Task) -> int:
    return len(str(task.public))


def _prompts(
    environment: Environment, renderer: ChatRenderer, task: Task, hint: str | None
) -> Iterator[int]:
    for agent, first in first_prompts(environment, task, variant=hint).items():
        yield len(renderer.render(first.messages, first.tree, agent, tools=first.tools))


def check_training(name: str, training: TrainingSettings, s: RecipeSettings, model: str) -> None:
    """Refuse another dtype than the run's, an attention that can't train so, and an adapter that does not fit."""
    if training.dtype == "float32" and weight_dtype(s) != torch.float32:
        raise UserError(
            f"{name}.dtype=float32, and another training of this run has bfloat16, which all its models then have",
            f"set {name}.dtype=bfloat16 too",
        )
    flat = training.packing == "flat" and training.dtype == "bfloat16"
    if (s.engine.attention or "").startswith("flash") and not flat:
        raise UserError(
            f"engine.attention={s.engine.attention} is for 16 bits, and takes no mask of beginnings that rows share",
            f"set {name}.dtype=bfloat16 and {name}.packing=flat, or use engine.attention=sdpa",
        )
    if training.method == "lora":
        add_lora(skeleton(model), r=1, alpha=1, target_modules=training.lora_targets)


def check_length(name: str, training: TrainingSettings, context: int, shortest: int) -> None:
    """Refuse rows that the model can't take, and a limit that leaves no row: each begins with a prompt."""
    if training.max_length > context:
        raise UserError(
            f"{name}.max_length={training.max_length} is more than the model's context of "
            f"{context} tokens",
            f"use {name}.max_length={context} or less",
        )
    check_room(name, training, context, shortest)


def check_room(name: str, training: TrainingSettings, context: int, shortest: int) -> None:
    """Refuse a limit that leaves no row."""
    if training.max_length <= shortest:
        raise UserError(
            f"{name}.max_length={training.max_length} leaves nothing to train on: the shortest prompt "
            f"has {shortest} tokens",
            f"use {name}.max_length={context}, or what prompts and replies need",
        )


def check_served(engine: EngineSettings, trainings: Mapping[str, TrainingSettings]) -> None:
    """Refuse servers that can't be started, and adapters that they have no room for.

    ``trainings`` are those whose models the servers will speak by, by their keys.
    """
    if engine.kind != "vllm":
        return
    check_vllm(engine.vllm)
    for name, training in trainings.items():
        if training.method != "lora" or engine.vllm.urls:  # others know what their servers take
            continue
        if training.rank > engine.vllm.lora_rank:
            raise UserError(
                f"{name}.method=lora trains adapters of rank {training.rank}, and the vLLM servers take "
                f"up to engine.vllm.lora_rank={engine.vllm.lora_rank}",
                f"set engine.vllm.lora_rank={training.rank}",
            )
        targets = set(training.lora_targets) - {ALL_LINEAR}
        if others := sorted(targets - set(engine.vllm.lora_modules)):
            raise UserError(
                f"{name}.lora_targets has {', '.join(others)}, which engine.vllm.lora_modules has not",
                f"add {', '.join(others)} to engine.vllm.lora_modules",
            )
