"""Report of an ``optima`` run: rewards by term, costs, and the selected dialogues and turns."""

from collections.abc import Mapping, Sequence

from coterie.recipes.optima import Optima
from coterie.recipes.report import only, selected_examples
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example
from coterie.reports.page import Section
from coterie.rewards.dialogue_reward import Reward
from coterie.runs.run import Run

Sample = tuple[Reward, bool]
"""Reward of a rollout, and True if any of it was selected."""


def sections(recipe: Optima, run: Run) -> list[Section]:
    iterations = [key.iteration for key in recipe.finished(run, "reward")]
    selects = [key.iteration for key in recipe.finished(run, "select")]
    selected = [
        Section(
            f"selected-{i}",
            f"What iteration {i} was trained on",
            "Marked tokens are trained.",
            examples=_selected(recipe, run, i),
        )
        # The first and the last iteration, once if they are the same.
        for i in dict.fromkeys((*selects[:1], *selects[-1:]))
    ]
    return [_rewards({i: _samples(recipe, run, i) for i in iterations}), *selected]


def _selected(recipe: Optima, run: Run, i: int) -> tuple[Example, ...]:
    terms = recipe.rule(i).names()
    if recipe.is_dpo(i):
        rule = recipe.dpo_settings.select
        reason = (
            "Replies after the same turns. A pair: the value of the chosen one is above theta_filter="
            f"{rule.theta_filter:g}, and above the rejected one by more than theta_diff={rule.theta_diff:g}."
        )
        return selected_examples(recipe, run, i, reason=reason, facts=only("value", "visits"))

    def facts(credit: Mapping[str, float]) -> Mapping[str, float]:
        terms_of_node = {name: credit[name] for name in terms if name in credit}
        return {
            "reward": sum(terms_of_node.values()),
            **{f"= {name}": value for name, value in terms_of_node.items()},
        }

    select = recipe.settings.select
    reason = (
        f"Selected: the best rollout of its task, with a reward of {select.threshold:g} or more, and among the best of "
        "all tasks."
    )
    return selected_examples(recipe, run, i, reason=reason, facts=facts)


def _samples(recipe: Optima, run: Run, i: int) -> list[Sample]:
    # The leaf of a selection is the end of a whole dialogue, or a turn of a tree.
    turns = {selection.leaf for _, selection in run.store.selections(i, "select")}
    by_task = recipe.rewards(run, i).values()
    rewards = {reward.leaf: reward for of_task in by_task for reward in of_task}
    return [
        (rewards[outcome.leaf], any(turn.id in turns for turn in path))
        for tree in run.store.trees(i, "rollout")
        for outcome, path in tree.graded()
        if outcome.leaf in rewards
    ]


def _rewards(samples: Mapping[int, Sequence[Sample]]) -> Section:
    rows = []
    totals: dict[bool, list[Point]] = {False: [], True: []}
    for i, every in samples.items():
        for over in (False, True):
            rewards_of_group = [reward for reward, selected in every if selected or not over]
            if rewards_of_group:
                name = "selected" if over else "all"
                means = {
                    t: sum(reward.terms[t] for reward in rewards_of_group) / len(rewards_of_group)
                    for t in rewards_of_group[0].terms
                }
                total = sum(means.values())
                rows.append((f"{i}", name, f"{total:.3f}", *(f"{v:.3f}" for v in means.values())))
                totals[over].append(Point(i, total, f"iteration {i}: {name} {total:.2f}"))
    terms = next((list(every[0][0].terms) for every in samples.values() if every), [])
    series = (
        Series("all rollouts", tuple(totals[False]), "grey"),
        Series("selected for training", tuple(totals[True])),
    )
    chart = Chart("reward-chart", "Mean reward", "iteration", "reward", series)
    return Section(
        "reward",
        "Reward",
        "Mean reward and its terms, each with its sign and coefficient: the terms add up to the reward.",
        ("iteration", "over", "reward", *(f"= {name}" for name in terms)),
        tuple(rows),
        (chart,) if rows else (),
    )
