"""The trainings of ``sweet_rl``: preferring, imitating, and the critics of other kinds."""

from coterie.engines.run_engines import POLICY
from coterie.environments.coding import AGENT, CRITIC
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.sweet_rl.data import FIRST, PRIVILEGED, SweetData, pairs, rewards, seen
from coterie.recipes.sweet_rl.settings import CriticSettings, PolicySettings
from coterie.recipes.trainings import prefer, train_role
from coterie.runs.folder import Run
from coterie.runs.selected import selected
from coterie.training.classifier import Classifier
from coterie.training.regression import Regression
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import Metrics
from coterie.trajectories.labelled import Labelled, labelled
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row, rows
from coterie.trajectories.view import view


def prefer_selected(
    recipe: SweetData, run: Run, iteration: int, s: PolicySettings, progress: Progress
) -> Metrics:
    """Train the policy, from the base, on the selected pairs."""
    model = recipe.models(run).load_to_train(POLICY, 0)
    found, own = _pairs(recipe, run, iteration, model), recipe.seeded(s.train, iteration)
    return prefer(run, iteration, model, found, s.objective, own, progress, role=POLICY)


def imitate(recipe: SweetData, run: Run, settings: TrainingSettings, progress: Progress) -> Metrics:
    """SFT on the dialogues that succeeded."""
    chosen: list[Row] = []
    for tree, selection in selected(run, FIRST):
        chosen += [row for row in rows(view(tree, selection.leaf, AGENT)) if row.targets]
    if not chosen:
        raise UserError(
            "no dialogue succeeded, so there is nothing to imitate", "sample more tasks"
        )
    model = recipe.models(run).load_to_train(POLICY, 0)
    own = recipe.seeded(settings, FIRST)
    return train_role(run, FIRST, model, chosen, own, progress, role=POLICY)


def train_critic(recipe: SweetData, run: Run, s: CriticSettings, progress: Progress) -> Metrics:
    model = recipe.models(run).load_to_train(CRITIC, 0)
    found, own = _pairs(recipe, run, FIRST, model), recipe.seeded(s.train, FIRST)
    if s.kind == "likelihood":
        return prefer(run, FIRST, model, found, s.objective, own, progress, role=CRITIC)
    return train_role(
        *(run, FIRST, model, found, own, progress),
        objective=Regression(),
        role=CRITIC,
    )


def foretell(recipe: SweetData, run: Run, s: CriticSettings, progress: Progress) -> Metrics:
    """Train a critic that is a value function: whether dialogues succeeded, by the ``min_reward`` share of tests."""
    model = recipe.models(run).load_to_train(CRITIC, 0)
    shares, least = rewards(run), recipe.settings.min_reward
    context = PRIVILEGED if s.privileged else None
    items: list[Labelled] = []
    for tree in run.store.trees(FIRST, "rollout"):
        task = run.store.task(tree.task)
        for outcome, _ in tree.trajectories():
            shown = seen(task, tree, outcome.leaf, context, model)
            succeeded = shares[tree.task, outcome.sample] >= least
            items.append(labelled(shown, succeeded, group=tree.task))
    return train_role(
        *(run, FIRST, model, items, recipe.seeded(s.train, FIRST), progress),
        objective=Classifier(),
        role=CRITIC,
    )


def _pairs(recipe: SweetData, run: Run, iteration: int, model: LoadedModel) -> list[Pair]:
    """The selected pairs; raises ``UserError`` if there are none."""
    found = pairs(run, iteration, model, recipe.context(iteration))
    if not found:
        raise UserError(
            f"no pair was selected in round {iteration}",
            "sample more tasks or repeats (rollout.tasks, rollout.repeats): pairs need a full success "
            "and a failure on one task; or lower min_reward"
            if iteration == FIRST
            else "raise candidates.share or candidates.count; a judge whose verdicts can't be read makes "
            "all candidates equal",
        )
    return found
