"""What a run of ``dense_tree`` will cost, and the refusal of what can't work."""

from coterie.environments.checking import drawn
from coterie.environments.protocol import Environment
from coterie.environments.traits import most_turns
from coterie.errors import UserError
from coterie.models.loading import check_context, load_renderer, weights_of
from coterie.recipes.dense_tree.settings import DenseTreeSettings
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


def dense_tree_plan(settings: DenseTreeSettings, environment: Environment) -> RunPlan:
    """Check the settings against environment, model and machine, and say what the run costs.

    Token counts are upper bounds: every message at its limit. Raises ``UserError`` for what can't work.
    """
    s = settings
    _check_services(s, environment)
    train = drawn(environment, "train", s.rollout.tasks, s.seed)
    heldout = drawn(environment, "heldout", s.evaluate.tasks, s.seed)
    check_disjoint(train, heldout)
    renderer, context = load_renderer(s.model)
    longest = longest_prompt(environment, renderer, train + heldout)
    check_context(context, longest + s.max_tokens, s.model)
    check_length("train", s.train, context, shortest_prompt(environment, renderer, train))
    weights, steps = weights_of(s.model), most_turns(environment)
    memory = weights * BYTES_PER_WEIGHT[s.train.method]
    check_memory(memory, s)
    part, parts = s.rollout.shard
    trees = len(range(part, len(train), parts))
    if not trees:
        raise UserError(
            f"rollout.shard=[{part},{parts}] has no tasks: there are {len(train)}",
            "divide the run into fewer parts, or give it more rollout.tasks",
        )
    runs, evaluations = trees * s.search.runs * s.iterations, len(heldout) * (s.iterations + 1)
    rows = min(trees * s.search.pairs, s.budget.pairs or trees * s.search.pairs)
    return RunPlan(
        s.iterations,
        f"{trees:,} of {s.rollout.tasks:,} asked for",
        f"{len(heldout):,} of {s.evaluate.tasks:,} asked for",
        longest + steps * (s.max_tokens + 8) > context,
        weights,
        memory,
        longest,
        runs,
        evaluations,
        (runs + evaluations) * steps * s.max_tokens,
        rows * s.iterations,
        updates_of(rows, s.train) * s.iterations,
    )


def _check_services(s: DenseTreeSettings, environment: Environment) -> None:
    """Servers, trackers, ranks and the sandbox can be had."""
    check_served(s.engine, {"train": s.train})
    check_launch(s.train, s.engine.device_name, "train")
    check_tracker(s.tracker)
    if Sandbox in environment.needs:
        make_jail(s.sandbox)
