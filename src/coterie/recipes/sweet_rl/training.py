"""The trainings of ``sweet_rl``: preferring, imitating, and the critics of other kinds."""

from collections.abc import Sequence

from coterie.environments.coding import AGENT
from coterie.errors import UserError
from coterie.models.heads import add_head
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import PolicyRecipe, trained_metrics
from coterie.recipes.sweet_rl.data import FIRST, PRIVILEGED, rewards, seen, selected
from coterie.recipes.sweet_rl.settings import CriticSettings
from coterie.runs.folder import Run
from coterie.training.classifier import Classifier
from coterie.training.dpo import DPO, DPOSettings
from coterie.training.loop import train
from coterie.training.reference import with_reference
from coterie.training.regression import Regression
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import Metrics
from coterie.trajectories.labelled import Labelled, labelled
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import view


def prefer(
    recipe: PolicyRecipe,
    run: Run,
    iteration: int,
    model: LoadedModel,
    pairs: Sequence[Pair],
    objective: DPOSettings,
    settings: TrainingSettings,
    progress: Progress,
) -> Metrics:
    """Train on pairs against the model as it is: the policy, or the critic."""
    own, folder = recipe.seeded(settings, iteration), run.training_folder(iteration)
    known = with_reference(
        model.model,
        pairs,
        own,
        folder / "reference",
        normalise=objective.normalise,
        progress=progress,
    )
    report = train(model.model, known, own, folder, objective=DPO(objective), progress=progress)
    return trained_metrics(report, _targets(pairs) * own.epochs)


def imitate(
    recipe: PolicyRecipe,
    run: Run,
    model: LoadedModel,
    settings: TrainingSettings,
    progress: Progress,
) -> Metrics:
    """SFT on the dialogues that succeeded."""
    chosen: list[Row] = []
    for tree, selection in selected(run, FIRST):
        chosen += [row for row in rows(view(tree, selection.leaf, AGENT)) if row.targets]
    if not chosen:
        raise UserError(
            "no dialogue succeeded, so there is nothing to imitate", "sample more tasks"
        )
    own = recipe.seeded(settings, FIRST)
    report = train(model.model, chosen, own, run.training_folder(FIRST), progress=progress)
    return trained_metrics(report, sum(row.target_count for row in chosen) * own.epochs)


def train_critic(
    recipe: PolicyRecipe,
    run: Run,
    model: LoadedModel,
    pairs: Sequence[Pair],
    s: CriticSettings,
    progress: Progress,
) -> Metrics:
    """Train the critic on pairs of dialogues."""
    if s.kind == "likelihood":
        return prefer(recipe, run, FIRST, model, pairs, s.objective, s.train, progress)
    own, folder = recipe.seeded(s.train, FIRST), run.training_folder(FIRST)
    add_head(model.model)
    report = train(model.model, pairs, own, folder, objective=Regression(), progress=progress)
    return trained_metrics(report, _targets(pairs) * own.epochs)


def foretell(
    recipe: PolicyRecipe,
    run: Run,
    model: LoadedModel,
    s: CriticSettings,
    min_reward: float,
    progress: Progress,
) -> Metrics:
    """Train a critic that is a value function: whether dialogues succeeded, by the ``min_reward`` share of tests."""
    own, folder = recipe.seeded(s.train, FIRST), run.training_folder(FIRST)
    shares = rewards(run)
    context = PRIVILEGED if s.privileged else None
    items: list[Labelled] = []
    for tree in run.store.trees(FIRST, "rollout"):
        task = run.store.task(tree.task)
        for outcome, _ in tree.trajectories():
            shown = seen(task, tree, outcome.leaf, context, model)
            succeeded = shares[tree.task, outcome.sample] >= min_reward
            items.append(labelled(shown, succeeded, group=tree.task))
    add_head(model.model)
    report = train(model.model, items, own, folder, objective=Classifier(), progress=progress)
    targets = sum(row.target_count for item in items for row in item.rows)
    return trained_metrics(report, targets * own.epochs)


def _targets(pairs: Sequence[Pair]) -> int:
    sides = (side for pair in pairs for side in (pair.chosen, pair.rejected))
    return sum(row.target_count for side in sides for row in side)
