"""From the store of an ``optima`` run to what its report page shows."""

from collections.abc import Sequence
from typing import Literal

from coterie.environments.gold import known_answers, question_of
from coterie.models.loading import LoadedModel
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.tree_pages import shown_turns
from coterie.reports.common import (
    EXAMPLES,
    dialogue_view,
    failures,
    held_out_dialogue,
    policy_point,
    shown_settings,
    tasks_of,
    timings,
)
from coterie.reports.data import (
    AgentFacts,
    Conduct,
    Counts,
    DialogueView,
    Example,
    RewardMeans,
    RewardPart,
    RewardSample,
    RunReport,
    TaskTree,
)
from coterie.rewards.dialogue_reward import Reward
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.first_prompts import first_prompts
from coterie.runs.folder import Run, Step
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task

TREES = 3


def task_trees(recipe: Optima, run: Run) -> tuple[TaskTree, ...]:
    """Trees of the last iteration whose pairs are selected; those with pairs come first."""
    done = [
        step.iteration
        for step in recipe.steps()
        if recipe.is_dpo(step.iteration) and run.is_finished(Step(step.iteration, "select"))
    ]
    if not done:
        return ()
    pairs: dict[str, list[Selection]] = {}
    for task, selection in run.store.selections(done[-1], "select"):
        pairs.setdefault(task, []).append(selection)
    every = (key[0] for key in sorted(run.store.finished_keys(done[-1], "reward")) if key[0])
    tasks = list(dict.fromkeys([*pairs, *every]))[:TREES]
    return tuple(_task_tree(recipe, run, done[-1], task, pairs.get(task, [])) for task in tasks)


def _task_tree(
    recipe: Optima, run: Run, iteration: int, task_id: str, pairs: list[Selection]
) -> TaskTree:
    tree, task = run.store.tree(iteration, "rollout", task_id), run.store.task(task_id)
    values = recipe.values(run, tree)
    root = values.get(tree.root)
    return TaskTree(
        iteration,
        task_id,
        question_of(task),
        known_answers(task),
        recipe.agents,
        root.mean if root else None,
        root.visits if root else 0,
        len(pairs),
        shown_turns(tree, tree.root, values, pairs),
    )


def optima_report(recipe: Optima, run: Run) -> RunReport:
    """All that the page shows of a run, finished or not."""
    done = [step for step in recipe.steps() if run.is_finished(step)]
    trained = [run.metrics(step) for step in done if step.stage == "train"]
    means, samples = _rewards(recipe, run, done)
    return RunReport(
        title=f"{recipe.name} on {recipe.settings.played}",
        command=f"coterie run {recipe.name} --folder {run.folder}",
        model=recipe.settings.model,
        seed=recipe.settings.seed,
        metric=recipe.environment.metric,
        planned=recipe.settings.iterations,
        counts=Counts(
            tasks=sum(tasks_of(run, step) for step in done if step.stage == "rollout"),
            samples=len(samples),
            selected_rows=sum(int(metrics["rows"]) for metrics in trained),
            trained_tokens=sum(int(metrics["trained_tokens"]) for metrics in trained),
        ),
        settings=shown_settings(recipe.settings),
        iterations=tuple(
            policy_point(run, step.iteration) for step in done if step.stage == "evaluate"
        ),
        rewards=tuple(means),
        conduct=tuple(_conduct(run, step.iteration) for step in done if step.stage == "reward"),
        samples=tuple(samples),
        examples=_examples(recipe, run, [s.iteration for s in done if s.stage == "evaluate"]),
        trees=task_trees(recipe, run),
        failures=failures(run),
        timings=timings(run, done),
    )


def _rewards(
    recipe: Optima, run: Run, done: Sequence[Step]
) -> tuple[list[RewardMeans], list[RewardSample]]:
    means: list[RewardMeans] = []
    points: list[RewardSample] = []
    for step in done:
        if step.stage != "reward":
            continue
        i = step.iteration
        turns = {selection.leaf for _, selection in run.store.selections(i, "select")}
        found = {r.leaf: r for rewards in recipe.rewards(run, i).values() for r in rewards}
        chosen: list[Reward] = []
        for tree in run.store.trees(i, "rollout"):
            for outcome, path in tree.trajectories():
                reward = found.get(outcome.leaf)
                if reward is None or outcome.score is None:
                    continue
                # All of the dialogue, or in an iteration of pairs a turn of it.
                selected = any(turn.id in turns for turn in path)
                chosen += [reward] * selected
                points.append(
                    RewardSample(i, reward.total, dialogue_tokens(path), outcome.score, selected)
                )
        means += [_means(i, "all", list(found.values()))] if found else []
        means += [_means(i, "selected", chosen)] if chosen else []
    return means, points


def _means(iteration: int, over: Literal["all", "selected"], rewards: list[Reward]) -> RewardMeans:
    parts = [
        RewardPart(name, sum(r.terms[name] for r in rewards) / len(rewards))
        for name in rewards[0].terms
    ]
    return RewardMeans(iteration, over, tuple(parts), sum(part.mean for part in parts))


def _conduct(run: Run, iteration: int) -> Conduct:
    found = run.metrics(Step(iteration, "reward"))
    failed = run.metrics(Step(iteration, "rollout")).get("failed", 0)
    return Conduct(
        iteration,
        dialogues=int(found["trajectories"]),
        truncated=int(found["truncated"]),
        leaks=int(found["leaks"]),
        repeats=int(found["repeats"]),
        failed=int(failed),
    )


def _examples(recipe: Optima, run: Run, versions: Sequence[int]) -> tuple[Example, ...]:
    """Held-out tasks with the first and the last evaluated policy's dialogue, and at the end
    training tasks with a dialogue of which tokens were trained."""
    if not versions:
        return ()
    model = recipe.load_policy(run, 0)
    found = []
    for task in recipe.heldout_tasks()[:EXAMPLES]:
        before = held_out_dialogue(run, versions[0], task, model)
        after = held_out_dialogue(run, versions[-1], task, model) if len(versions) > 1 else None
        found.append(_example(recipe, task, before, after))
    return tuple(found + _trained_examples(recipe, run, model))


def _trained_examples(recipe: Optima, run: Run, model: LoadedModel) -> list[Example]:
    """Training tasks of the first iteration: a dialogue passed over beside the one trained."""
    found = []
    chosen = dict(run.store.selections(0, "select"))
    for task, selection in list(chosen.items())[:EXAMPLES]:
        tree = run.store.tree(0, "rollout", task)
        paths = {outcome.leaf: (outcome, path) for outcome, path in tree.trajectories()}
        other = next((found for leaf, found in paths.items() if leaf != selection.leaf), None)
        before = dialogue_view(model, 0, *other, trained=False) if other else None
        after = dialogue_view(model, 0, *paths[selection.leaf], trained=True)
        found.append(_example(recipe, run.store.task(task), before, after))
    return found


def _example(
    recipe: Optima, task: Task, before: DialogueView | None, after: DialogueView | None
) -> Example:
    shown = first_prompts(recipe.environment, task)
    facts = tuple(
        AgentFacts(
            agent,
            tuple(
                part.text.strip()
                for part in shown[agent].messages[0].parts
                if part.audience == frozenset({agent})
            ),
        )
        for agent in recipe.agents
    )
    return Example(task.id, question_of(task), known_answers(task), facts, before, after)
