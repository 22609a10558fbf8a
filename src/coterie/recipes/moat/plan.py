"""What a run of ``moat`` will cost, and the refusal of what can't work."""

from dataclasses import replace

from coterie.engines.chat_model import check_chat
from coterie.environments.checking import drawn
from coterie.environments.plan_ground.environment import PlanGround
from coterie.errors import UserError
from coterie.models.loading import check_context, load_renderer, weights_of
from coterie.recipes.moat.settings import SCRIPT, MoatSettings
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
from coterie.tools.sandbox.jail import make_jail
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.launch import check_launch
from coterie.training.trackers import check_tracker
from coterie.trajectories.task import Task


def moat_plan(settings: MoatSettings, environment: PlanGround) -> RunPlan:
    """Check the settings against environment, models and machine, and say what the run costs.

    Token counts are upper bounds: every turn at its limit. Raises ``UserError`` for what can't work.
    """
    s = settings
    _check_services(s, environment)
    train = drawn(environment, "train", s.rollout.tasks, s.seed)
    heldout = drawn(environment, "heldout", s.evaluate.tasks, s.seed)
    check_disjoint([_whole(task) for task in train], [_whole(task) for task in heldout])
    if not environment.scored_tasks(s.measure.tasks, s.seed):
        raise UserError("no held-out task has right actions", "give the data set held-out rows")
    models = {"model": s.model, "grounder": s.grounder or s.model}
    longest, weights = 0, {}
    for name, model in models.items():
        renderer, context = load_renderer(model)
        longest = max(longest, longest_prompt(environment, renderer, train + heldout))
        check_context(context, longest + environment.max_turns * s.max_tokens, model)
        shortest = shortest_prompt(environment, renderer, train)
        for key, training in s.trainings.items():
            check_length(key, training, context, shortest)
        weights[name] = weights_of(model)
    memory = _memory(s, weights)
    check_memory(memory, s)
    rows = _rows(s, len(train))
    plans = len(train) * s.rollout.samples * s.iterations if s.parts != "sft" else 0
    measured = len(environment.scored_tasks(s.measure.tasks, s.seed)) * s.measure.samples
    halves = s.iterations * (2 if s.parts in ("joint", "planner") else 1) + 1
    evaluations = len(heldout) * (s.iterations + 1) if environment.ungraded is None else 0
    turns = environment.max_turns * (plans + evaluations) + measured * halves
    return RunPlan(
        s.iterations,
        f"{len(train):,} of {s.rollout.tasks:,} asked for",
        f"{len(heldout):,} of {s.evaluate.tasks:,} asked for",
        False,
        sum(weights.values()) if not s.share else weights["model"],
        memory,
        longest,
        plans,
        evaluations,
        turns * s.max_tokens,
        sum(count for _, count in rows),
        sum(updates_of(count, s.trainings[name]) for name, count in rows),
    )


def _whole(task: Task) -> Task:
    """A task by what is asked alone: a single step stands for the task that it is a step of."""
    return replace(task, public={name: task.public[name] for name in ("question", "description")})


def _memory(s: MoatSettings, weights: dict[str, int]) -> int:
    """Bytes for weights, gradients and moments of the one that is trained, and for the weights of the other."""
    method = "full" if any(one.method == "full" for one in s.trainings.values()) else "lora"
    largest = max(weights.values())
    others = 0 if s.share else 4 * min(weights.values())
    return largest * BYTES_PER_WEIGHT[method] + others


def _rows(s: MoatSettings, tasks: int) -> list[tuple[str, int]]:
    """The trainings of a run, by their keys, each with its rows or pairs at most."""
    found = [("start.train", s.start.tasks)] * 2 * s.start.enabled
    for _ in range(s.iterations):
        if s.parts == "sft":
            found += [("improve.train", tasks)] * 2
        if s.parts in ("joint", "planner"):
            found.append(("align.train", tasks * _pairs(s)))
        if s.parts in ("joint", "grounder"):
            each = {"best": 1, "top": s.correct.top, "all": s.rollout.samples}
            learnt = each[s.correct.candidates] + s.correct.gold
            found.append(("improve.train", tasks * learnt))
    return found


def _pairs(s: MoatSettings) -> int:
    """Pairs of a task, at most."""
    k = s.rollout.samples
    return k * (k - 1) // 2 if s.pairs.rule == "all" else 1


def _check_services(s: MoatSettings, environment: PlanGround) -> None:
    """Servers, trackers, ranks, the sandbox and the critic can be had."""
    check_served(s.engine, s.trainings)
    for name, training in s.trainings.items():
        check_launch(training, s.engine.device_name, name)
    check_tracker(s.tracker)
    if Sandbox in environment.needs:
        make_jail(s.sandbox)
    check_chat("correct.critic", s.correct.critic, SCRIPT)
