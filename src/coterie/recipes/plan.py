"""What a run will cost, before it starts: generations, tokens, updates, memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from coterie.engines.servers.vllm import check_vllm
from coterie.engines.settings import EngineSettings
from coterie.environments.checking import drawn
from coterie.environments.gold import GRADER
from coterie.environments.protocol import Environment
from coterie.environments.traits import Scripted, formats_of, persons_of
from coterie.environments.user_simulator import REFERENCE, check_script
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import check_context, free_memory, load_renderer, weights_of
from coterie.recipes.settings import RecipeSettings
from coterie.rollout.opening import first_prompts
from coterie.runs.roles import Role, check_roles
from coterie.runs.stage import Stage, check_stages
from coterie.training.settings import TrainingSettings
from coterie.trajectories.task import Task

RENDERED = 64
"""So many of the wordiest tasks are rendered to find the longest prompt."""
BYTES_PER_WEIGHT = {"full": 4 * (1 + 1 + 2) + 4, "lora": 4 + 4}
"""By method: float32 weights and the frozen base; gradients and AdamW's two moments of what is trained."""


class Plan(Protocol):
    """What a run costs."""

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for a table."""
        ...


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """What can be said of a recipe that has no plan of its own."""

    stages: tuple[str, ...]
    weights: Mapping[str, int]
    """By role."""
    memory: int
    longest_prompt: int
    heldout: int

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for a table."""
        return [
            ("stages", f"{len(self.stages)}: {', '.join(dict.fromkeys(self.stages))}"),
            *((f"role {role}", f"{count:,} weights") for role, count in self.weights.items()),
            ("memory for weights and optimiser", f"at most {self.memory / 2**20:,.0f} MiB"),
            ("longest first prompt", f"{self.longest_prompt} tokens"),
            ("held-out tasks", f"{self.heldout:,}"),
        ]


def plain_plan(
    settings: RecipeSettings,
    environment: Environment,
    roles: Sequence[Role],
    stages: Sequence[Stage],
    *,
    trains_on_tasks: bool = True,
) -> PlainPlan:
    """Check what every recipe has, and say what is known of its cost.

    ``trains_on_tasks`` is false where nothing is learned from the environment's training tasks, which it may not have.
    Raises ``UserError`` for stages out of order, tasks in both splits, a person whom nobody plays, prompts that a
    model has no room for, and more memory than there is.
    """
    check_stages(settings.recipe, stages)
    check_roles(roles)
    if persons_of(environment):
        check_script(environment.script if isinstance(environment, Scripted) else None)
    count, seed = settings.evaluate.tasks, settings.seed
    heldout = drawn(environment, "heldout", count, seed)
    train = drawn(environment, "train", count, seed) if trains_on_tasks else []
    check_disjoint(train, heldout)
    longest = 0
    for role in roles:
        renderer, context = load_renderer(role.model)
        longest = longest_prompt(environment, renderer, train + heldout)
        check_context(context, longest + settings.max_tokens, role.model)
    weights = {role.name: weights_of(role.model) for role in roles}
    memory = sum(weights.values()) * BYTES_PER_WEIGHT["full"]
    check_memory(sum(weights.values()) * BYTES_PER_WEIGHT["lora"], settings)
    stages_shown = tuple(stage.step.stage for stage in stages)
    return PlainPlan(stages_shown, weights, memory, longest, len(heldout))


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The size of a run. Token counts are upper bounds: every turn at its limit."""

    iterations: int
    tasks: str
    """How many training tasks there are, and were asked for."""
    heldout: str
    """The same of held-out tasks."""
    may_outgrow: bool
    """Whether a dialogue of long turns can outgrow the context; its last turn is then cut."""
    weights: int
    memory: int
    """Bytes for weights, gradients and moments, activations and caches not counted."""
    longest_prompt: int
    dialogues: int
    """Training dialogues over all iterations."""
    evaluations: int
    """Held-out dialogues over all policies, the base included."""
    max_sampled_tokens: int
    max_rows: int
    max_updates: int

    def lines(self) -> list[tuple[str, str]]:
        """(what, how much) for a table."""
        return [
            ("iterations", f"{self.iterations}"),
            ("training tasks", self.tasks),
            ("held-out tasks", self.heldout),
            ("model", f"{self.weights:,} weights"),
            ("memory for weights and optimiser", f"{self.memory / 2**20:,.0f} MiB"),
            (
                "longest first prompt",
                f"{self.longest_prompt} tokens"
                + " (long dialogues outgrow the context and are cut)" * self.may_outgrow,
            ),
            ("training dialogues", f"{self.dialogues:,}"),
            ("held-out dialogues", f"{self.evaluations:,}"),
            ("sampled tokens", f"at most {self.max_sampled_tokens:,}"),
            ("training rows or pairs", f"at most {self.max_rows:,}"),
            ("updates", f"at most {self.max_updates:,}"),
        ]


def updates_of(rows: int, training: TrainingSettings) -> int:
    """Optimiser steps of a training on so many rows or pairs."""
    updates = -(-rows // training.batch_rows) * training.epochs
    return min(updates, training.max_steps or updates)


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
    wanted = "" if reference is None else reference.reveal(GRADER)
    return f"{sorted(task.public.items())} {wanted}"


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
    """Tokens of each agent's first prompt."""
    for agent, first in first_prompts(environment, task, variant=hint).items():
        yield len(renderer.render(first.messages, first.tree, agent, tools=first.tools))


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
        if others := sorted(set(training.lora_targets) - set(engine.vllm.lora_modules)):
            raise UserError(
                f"{name}.lora_targets has {', '.join(others)}, which engine.vllm.lora_modules has not",
                f"add {', '.join(others)} to engine.vllm.lora_modules",
            )


def check_memory(needed: int, settings: RecipeSettings) -> None:
    """Refuse a training that needs more memory than is free."""
    device = settings.engine.device_name
    free = free_memory(torch.device(device))
    if needed > free:
        raise UserError(
            f"training {settings.model} needs about {needed / 2**30:.1f} GiB for weights and "
            f"optimiser, and {free / 2**30:.1f} GiB are free on {device}",
            "use a smaller model, or train.method=lora where the recipe takes it",
        )
