"""What ``sweet_rl`` trains on, out of the record: rewards, dialogues to branch, pairs, the critic's views."""

from collections.abc import Iterator
from functools import partial

from coterie.environments.coding import AGENT, CRITIC, with_reference
from coterie.models.loading import LoadedModel
from coterie.rollout.candidates import Played
from coterie.runs.folder import Run
from coterie.trajectories.pair import Pair, trajectory_pair, turn_pair
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn
from coterie.trajectories.view import View, recontext, view

PRIVILEGED = "with_reference"
"""Name of the recontext rule of the critic's rows."""
FIRST = 0
"""The round of the dialogues, and of the critic."""
SECOND = 1
"""The round of the candidates, and of the policy."""


def rewards(run: Run) -> dict[tuple[str, int], float]:
    """Share of tests that each dialogue's answer passes, by task and sample."""
    found = {}
    for key, metrics in run.store.metrics(FIRST, "rollout").items():
        if key.task and "fraction" in metrics:
            found[key.task, int(key.sample)] = float(metrics["fraction"])
    return found


def played(run: Run, share: float) -> list[Played]:
    """The dialogues whose turns get candidates: the first of every task before the second of any."""
    keys = sorted((sample, task) for task, sample in rewards(run))
    found = []
    for sample, name in keys[: max(1, int(len(keys) * share))]:
        tree = run.store.tree(FIRST, "rollout", name)
        path = next(path for o, path in tree.trajectories() if o.sample == sample)
        found.append(Played(run.store.task(name), sample, path))
    return found


def selected(run: Run, iteration: int) -> Iterator[tuple[Tree, Selection]]:
    """What a round selected, each with its tree."""
    tree: Tree | None = None
    for task, selection in run.store.selections(iteration, "select"):
        if tree is None or tree.task != task:
            tree = run.store.tree(iteration, "rollout", task)
        yield tree, selection


def pairs(run: Run, iteration: int, model: LoadedModel, context: str | None) -> list[Pair]:
    """The selected pairs, as :func:`seen` in ``context``: of whole dialogues in round 0, of turns in round 1."""
    found = []
    for tree, selection in selected(run, iteration):
        assert selection.rejected is not None, "these selections are pairs"
        task = run.store.task(tree.task)
        better, worse = (
            seen(task, tree, leaf, context, model) for leaf in (selection.leaf, selection.rejected)
        )
        if iteration == FIRST:
            found.append(trajectory_pair(better, worse, group=tree.task))
        else:
            found.append(turn_pair(better, worse, group=tree.turns[selection.leaf].parent))
    return found


def seen(task: Task, tree: Tree, leaf: str, context: str | None, model: LoadedModel) -> View:
    """A dialogue as the agent saw it, or (:data:`PRIVILEGED`) as the critic does."""
    if context is None:
        return view(tree, leaf, AGENT)
    render = partial(model.renderer.render, privileges=CRITIC)
    return recontext(tree, leaf, AGENT, name=context, edit=with_reference(task), render=render)


def critic_prompt(
    task: Task, tree: Tree, turn: Turn, model: LoadedModel, *, privileged: bool
) -> tuple[int, ...]:
    """Ids of a turn's prompt as the critic sees it."""
    assert turn.prompt is not None, "a candidate answers a request"
    shown = tree.messages(tree.requests[turn.prompt])
    if not privileged:
        return model.renderer.render(shown, tree, AGENT)
    return model.renderer.render(with_reference(task)(shown), tree, AGENT, privileges=CRITIC)
