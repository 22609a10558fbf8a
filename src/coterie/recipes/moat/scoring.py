"""What a plan is worth to the grounder: rewards of sampled plans, and J on held-out tasks."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Engine, EngineError
from coterie.environments.plan_ground.environment import GROUNDER, PLANNER, gold
from coterie.environments.protocol import State
from coterie.progress import Progress
from coterie.recipes.moat.data import MoatData
from coterie.rewards.leaks import quotes
from coterie.rewards.target_likelihood import mean_loglikelihoods, perplexity
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, do_items, on_trees
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn, digest

LEFT_OUT = ("empty", "truncated", "equal", "leaks")
"""Why plans have no reward: they say nothing, were cut off, are an earlier one again, or quote right actions."""
IN_FLIGHT = 16
"""Tasks that are scored at a time."""


async def reward_plans(recipe: MoatData, run: Run, i: int, progress: Progress) -> Metrics:
    """The rewards of an iteration's plans under its grounder."""
    grounder = recipe.models(run).embedded(GROUNDER, recipe.newest(run, GROUNDER, i))
    work = partial(_rewarded, recipe, run, grounder)
    await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
    found = [m for key, m in run.store.metrics(i, "reward").items() if key.task]
    counts = {name: sum(int(m[name]) for m in found) for name in ("plans", *LEFT_OUT)}
    scored = [float(m["reward"]) for m in found if "reward" in m]
    return {**counts, "reward": statistics.fmean(scored) if scored else 0.0}


async def _rewarded(recipe: MoatData, run: Run, grounder: InProcessEngine, tree: Tree) -> Done:
    key = ItemKey(tree.iteration, "reward", tree.task)
    task, s = run.store.task(tree.task), recipe.settings.reward
    plans, counts = usable(tree, task, leak_guard=s.leak_guard)
    metrics: dict[str, float | int | str] = {"plans": len(plans), **counts}
    if not plans or gold(task).done:
        return Done(key, metrics)
    try:
        found = await _scores(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, metrics, failure=str(error))
    success = {one.id: _success(tree, one) for one in plans}
    rewards = [score + s.success * success[one.id] for one, score in zip(plans, found, strict=True)]
    settings = recipe.fingerprint(Step(tree.iteration, "reward"))
    credit = [
        Credit(one.id, name, value, settings)
        for one, score, reward in zip(plans, found, rewards, strict=True)
        for name, value in (
            ("loglikelihood", score), ("perplexity", perplexity(score)), ("reward", reward),
        )
    ]  # fmt: skip
    metrics |= {"reward": statistics.fmean(rewards), "spread": max(rewards) - min(rewards)}
    return Done(key, metrics, None, tuple(credit))


def usable(tree: Tree, task: Task, *, leak_guard: bool) -> tuple[list[Turn], Counter[str]]:
    """The plans that can have a reward, and how many can't, by the reason."""
    counts: Counter[str] = Counter(dict.fromkeys(LEFT_OUT, 0))
    found: dict[str, Turn] = {}
    actions = [action for step in gold(task).steps for action in step.actions]
    for turn in sorted(tree.children(tree.root), key=lambda turn: turn.draw):
        text = " ".join(turn.text.split())
        if not text or turn.truncated:
            counts["truncated" if turn.truncated else "empty"] += 1
        elif text in found:
            counts["equal"] += 1
        elif leak_guard and quotes(text, actions):
            counts["leaks"] += 1
        else:
            found[text] = turn
    return list(found.values()), counts


async def _scores(
    recipe: MoatData, grounder: Engine, task: Task, tree: Tree, plans: Sequence[Turn]
) -> list[float]:
    """Mean log-likelihood (nats a token) of a task's right actions after each plan."""
    render = recipe.renderers[GROUNDER]
    prompts = []
    for plan in plans:
        shown = recipe.environment.see(State(task, 0, turns=(plan,)), GROUNDER)
        prompts.append(render(shown, tree, GROUNDER))
    return await mean_loglikelihoods(grounder, prompts, render.encode_turn(gold(task).actions))


def _success(tree: Tree, plan: Turn) -> float:
    """What the grounder's own actions for a plan were worth; 0 where there are none."""
    leaves = [plan, *tree.children(plan.id)]
    ends = [tree.outcomes[one.id].score for one in leaves if one.id in tree.outcomes]
    return statistics.fmean(score or 0.0 for score in ends) if ends else 0.0


async def measure(
    recipe: MoatData, run: Run, step: Step, versions: Mapping[str, int], progress: Progress
) -> Metrics:
    """J of versions of both roles: the mean over held-out tasks, and its standard error."""
    s = recipe.settings
    planner = await recipe.sampler(
        run, versions[PLANNER], s.rollout.temperature, s.rollout.top_p, PLANNER
    )
    grounder = recipe.models(run).embedded(GROUNDER, versions[GROUNDER])
    tasks = recipe.environment.scored_tasks(s.measure.tasks, s.seed)
    run.store.put_tasks(tasks)
    items = {
        ItemKey(step.iteration, step.stage, task.id): partial(
            _measured, recipe, planner, grounder, task, step
        )
        for task in tasks
    }
    title = f"{step.stage} {step.iteration}"
    await do_items(run.store, items, progress, "tasks", title, in_flight=IN_FLIGHT)
    found = [m for key, m in run.store.metrics(step.iteration, step.stage).items() if key.task]
    values = [float(m["loglikelihood"]) for m in found if "loglikelihood" in m]
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


async def _measured(
    recipe: MoatData, planner: TokenSampler, grounder: Engine, task: Task, step: Step
) -> Done:
    """The plans of a held-out task, and how likely they make its right actions, on average."""
    key = ItemKey(step.iteration, step.stage, task.id)
    tree = Tree(task.id, step.stage, step.iteration)
    samples = range(recipe.settings.measure.samples)
    seeds = [int(digest("J", recipe.settings.seed, task.id, n)[:15], 16) for n in samples]
    shown = recipe.environment.see(State(task, 0), PLANNER)
    prompt = Prompt(tree, tree.root, PLANNER, shown, seeds[0], 0)
    try:
        said = await planner.candidates(prompt, AgentContext(), seeds, list(samples))
        for one in said:
            tree.add(one.turn, one.request)
        plans = [one.turn for one in said]
        found = await _scores(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, {}, failure=str(error))
    return Done(key, {"loglikelihood": statistics.fmean(found)}, tree)
