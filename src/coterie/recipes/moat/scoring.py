"""Plan rewards r(s) and the objective J of MOAT (arXiv 2509.09629).

r(s) = (1/|a|) sum_l log pi_g(a_l | a_<l, x, I, s),   PPL(a | x, I, s) = exp(-r(s))
J(pi_p, pi_g) = E_x E_{s ~ pi_p} r(s)
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Engine, EngineError
from coterie.environments.plan_ground import GROUNDER, PLANNER, gold
from coterie.environments.protocol import State
from coterie.progress import Progress
from coterie.recipes.moat.data import MoatData
from coterie.record.tree import Credit, ItemKey, Metrics, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.dialogue_reward import quotes
from coterie.rewards.likelihood import mean_loglikelihoods, perplexity
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, do_items, on_trees

LEFT_OUT = ("empty", "truncated", "equal", "leaks")
"""Reasons why a plan has no reward: it is empty, truncated, a duplicate, or quotes the gold actions."""
IN_FLIGHT = 16
"""Tasks scored concurrently."""


async def reward_plans(recipe: MoatData, run: Run, i: int, progress: Progress) -> Metrics:
    """Compute the rewards of an iteration's plans under the current grounder."""
    grounder = recipe.models(run).embedded(GROUNDER, recipe.newest(run, GROUNDER, i))
    work = partial(_reward_tree, recipe, run, grounder)
    await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
    tree_metrics = [m for key, m in run.store.metrics(i, "reward").items() if key.task]
    counts = {name: sum(int(m[name]) for m in tree_metrics) for name in ("plans", *LEFT_OUT)}
    rewards = [float(m["reward"]) for m in tree_metrics if "reward" in m]
    return {**counts, "reward": statistics.fmean(rewards) if rewards else 0.0}


async def _reward_tree(recipe: MoatData, run: Run, grounder: InProcessEngine, tree: Tree) -> Done:
    key = ItemKey(tree.iteration, "reward", tree.task)
    task, s = run.store.task(tree.task), recipe.settings.reward
    plans, counts = valid_plans(tree, task, leak_guard=s.leak_guard)
    metrics: dict[str, float | int | str] = {"plans": len(plans), **counts}
    if not plans or gold(task).done:
        return Done(key, metrics)
    try:
        loglikelihoods = await _loglikelihoods(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, metrics, failure=str(error))
    success = {plan.id: _success(tree, plan) for plan in plans}
    rewards = [
        loglikelihood + s.success * success[plan.id]
        for plan, loglikelihood in zip(plans, loglikelihoods, strict=True)
    ]
    settings = recipe.fingerprint(Step(tree.iteration, "reward"))
    credit = [
        Credit(plan.id, name, value, settings)
        for plan, loglikelihood, reward in zip(plans, loglikelihoods, rewards, strict=True)
        for name, value in (
            ("loglikelihood", loglikelihood), ("perplexity", perplexity(loglikelihood)), ("reward", reward),
        )
    ]  # fmt: skip
    metrics |= {"reward": statistics.fmean(rewards), "spread": max(rewards) - min(rewards)}
    return Done(key, metrics, None, tuple(credit))


def valid_plans(tree: Tree, task: Task, *, leak_guard: bool) -> tuple[list[Turn], Counter[str]]:
    """Return the plans that get a reward, and the number of other plans by reason."""
    counts: Counter[str] = Counter(dict.fromkeys(LEFT_OUT, 0))
    by_text: dict[str, Turn] = {}
    actions = [action for step in gold(task).steps for action in step.actions]
    for turn in sorted(tree.children(tree.root), key=lambda turn: turn.draw):
        text = " ".join(turn.text.split())
        if not text or turn.truncated:
            counts["truncated" if turn.truncated else "empty"] += 1
        elif text in by_text:
            counts["equal"] += 1
        elif leak_guard and quotes(text, actions):
            counts["leaks"] += 1
        else:
            by_text[text] = turn
    return list(by_text.values()), counts


async def _loglikelihoods(
    recipe: MoatData, grounder: Engine, task: Task, tree: Tree, plans: Sequence[Turn]
) -> list[float]:
    """Return r(s) of each plan ``s``: the mean log-likelihood of the gold actions in nats per token."""
    render = recipe.renderers[GROUNDER]
    prompts = []
    for plan in plans:
        messages = recipe.environment.see(State(task, 0, turns=(plan,)), GROUNDER)
        prompts.append(render(messages, tree, GROUNDER))
    return await mean_loglikelihoods(grounder, prompts, render.encode_turn(gold(task).actions))


def _success(tree: Tree, plan: Turn) -> float:
    """Return the mean score of the grounder's actions for a plan; 0 if it has no graded actions."""
    leaves = [plan, *tree.children(plan.id)]
    scores = [tree.outcomes[node.id].score for node in leaves if node.id in tree.outcomes]
    return statistics.fmean(score or 0.0 for score in scores) if scores else 0.0


async def measure(
    recipe: MoatData, run: Run, step: Step, versions: Mapping[str, int], progress: Progress
) -> Metrics:
    """Estimate J of the given versions: the mean over held-out tasks and its standard error."""
    s = recipe.settings
    planner = await recipe.sampler(
        run, versions[PLANNER], s.rollout.temperature, s.rollout.top_p, PLANNER
    )
    grounder = recipe.models(run).embedded(GROUNDER, versions[GROUNDER])
    tasks = recipe.environment.scored_tasks(s.measure.tasks, s.seed)
    run.store.put_tasks(tasks)
    items = {
        ItemKey(step.iteration, step.stage, task.id): partial(
            _measure_task, recipe, planner, grounder, task, step
        )
        for task in tasks
    }
    title = f"{step.stage} {step.iteration}"
    await do_items(run.store, items, progress, "tasks", title, in_flight=IN_FLIGHT)
    task_metrics = [
        m for key, m in run.store.metrics(step.iteration, step.stage).items() if key.task
    ]
    values = [float(m["loglikelihood"]) for m in task_metrics if "loglikelihood" in m]
    if not values:
        return {"n": 0}
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    j = statistics.fmean(values)
    return {
        "n": len(values),
        "j": j,
        "standard_error": spread / math.sqrt(len(values)),
        **versions,
    }


async def _measure_task(
    recipe: MoatData, planner: TokenSampler, grounder: Engine, task: Task, step: Step
) -> Done:
    """Sample plans of a held-out task and average their r(s)."""
    key = ItemKey(step.iteration, step.stage, task.id)
    tree = Tree(task.id, step.stage, step.iteration)
    samples = range(recipe.settings.measure.samples)
    seeds = [int(digest("J", recipe.settings.seed, task.id, n)[:15], 16) for n in samples]
    messages = recipe.environment.see(State(task, 0), PLANNER)
    prompt = Prompt(tree, tree.root, PLANNER, messages, seeds[0], 0)
    try:
        candidates = await planner.candidates(prompt, AgentContext(), seeds, list(samples))
        for candidate in candidates:
            tree.add(candidate.turn, candidate.request)
        plans = [candidate.turn for candidate in candidates]
        loglikelihoods = await _loglikelihoods(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, {}, failure=str(error))
    return Done(key, {"loglikelihood": statistics.fmean(loglikelihoods)}, tree)
