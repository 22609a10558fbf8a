"""What a run of ``optima`` will cost, and the refusal of what can't work."""

from dataclasses import dataclass

from coterie.environments.checking import drawn
from coterie.environments.protocol import Environment
from coterie.environments.traits import agents_of, most_turns
from coterie.models.loading import check_context, load_renderer, weights_of
from coterie.recipes.optima.settings import OptimaDPOSettings, OptimaSettings
from coterie.recipes.plan import (
    BYTES_PER_WEIGHT,
    RunPlan,
    check_disjoint,
    check_length,
    check_memory,
    check_served,
    longest_prompt,
    shortest_prompt,
    updates_of,
)
from coterie.training.launch import check_launch
from coterie.training.settings import TrainingSettings
from coterie.training.trackers import check_tracker
from coterie.trajectories.task import Task


def optima_plan(settings: OptimaSettings, environment: Environment) -> RunPlan:
    """Check the settings against environment, model and machine, and say what the run costs.

    Raises :class:`UserError` for what can't work: no such model, a first turn that the
    model's context has no room for, more memory than there is, tasks in both splits.
    """
    trainings = _trainings(settings)
    check_served(settings.engine, trainings)
    for name, training in trainings.items():
        check_launch(training, settings.engine.device_name, name)
    check_tracker(settings.tracker)
    turns = most_turns(environment)
    train = drawn(environment, "train", settings.rollout.tasks, settings.seed)
    heldout = drawn(environment, "heldout", settings.evaluate.tasks, settings.seed)
    searched: list[Task] = []
    if isinstance(settings, OptimaDPOSettings):
        searched = drawn(environment, "train", settings.dpo.tasks, settings.seed)
    check_disjoint(train + searched, heldout)
    renderer, context = load_renderer(settings.model)
    longest = longest_prompt(environment, renderer, train + searched + heldout)
    check_context(context, longest + settings.rollout.max_tokens, settings.model)
    shortest = shortest_prompt(environment, renderer, train + searched)
    for name, training in trainings.items():
        check_length(name, training, context, shortest)
    weights = weights_of(settings.model)
    memory = weights * BYTES_PER_WEIGHT[settings.train.method]
    check_memory(memory, settings)
    counts = len(train), len(searched), len(agents_of(environment))
    sizes = [size(settings, i, *counts) for i in range(settings.iterations)]
    dialogues = sum(one.dialogues for one in sizes)
    evaluations = (settings.iterations + 1) * len(heldout)
    room = longest + turns * (settings.rollout.max_tokens + 8)
    return RunPlan(
        settings.iterations,
        f"{len(train):,} a round of {settings.rollout.tasks:,} asked for",
        f"{len(heldout):,} of {settings.evaluate.tasks:,} asked for",
        room > context,
        weights,
        memory,
        longest,
        dialogues,
        evaluations,
        (dialogues + evaluations) * turns * settings.rollout.max_tokens,
        sum(one.rows for one in sizes),
        sum(one.updates for one in sizes),
    )


@dataclass(frozen=True, slots=True)
class Size:
    """What one iteration costs at most."""

    dialogues: int
    rows: int
    """Rows, or pairs."""
    updates: int


def size(settings: OptimaSettings, iteration: int, tasks: int, searched: int, agents: int) -> Size:
    """The size of an iteration; ``tasks`` are those of one of SFT, ``searched`` those of one of DPO."""
    if isinstance(settings, OptimaDPOSettings) and settings.kinds()[iteration] == "dpo":
        s = settings.dpo
        rollouts = s.search.searches * s.search.rollouts
        # of siblings of one parent at most; or one of each parent that has several children
        pairs = rollouts * (rollouts - 1) // 2 if s.select.rule == "all" else rollouts - 1
        pairs = searched * max(int(pairs * s.select.top_share), 1)
        return Size(searched * rollouts + s.probe, pairs, updates_of(pairs, s.train))
    rows = round(tasks * settings.select.top_share) * agents
    return Size(tasks * settings.rollout.samples, rows, updates_of(rows, settings.train))


def _trainings(settings: OptimaSettings) -> dict[str, TrainingSettings]:
    """The trainings that a run has, by their keys."""
    if isinstance(settings, OptimaDPOSettings):
        return {"train": settings.train, "dpo.train": settings.dpo.train}
    return {"train": settings.train}
