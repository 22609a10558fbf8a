"""SFT and DPO of a role, as functions of stages."""

from collections.abc import Sequence
from typing import Any

from peft import PeftModel

from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.record.rows import Pair
from coterie.record.tree import Metrics
from coterie.runs.folder import Run
from coterie.training.checkpoint import weight_hash
from coterie.training.distributed import launches, train_on_ranks
from coterie.training.losses import DPO, SFT, Objective
from coterie.training.reference import with_reference
from coterie.training.settings import DPOSettings, TrainingSettings
from coterie.training.trainer import train


def train_role(
    run: Run,
    iteration: int,
    model: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    progress: Progress,
    *,
    objective: Objective[Any] | None = None,
    role: str,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
) -> Metrics:
    """Train a role's model on items, by default with SFT on rows. ``heldout`` items are measured during training."""
    folder, objective = run.training_folder(iteration, role), objective or SFT()
    named: dict[str, Any] = {
        "objective": objective,
        "progress": progress,
        "tracker": run.tracker.of(role),
        "heldout": heldout,
        "measure_every": measure_every,
    }
    if launches(settings):
        report = train_on_ranks(model, items, settings, folder, **named)
    else:
        report = train(model.model, items, settings, folder, **named)
    dropped = report.dropped_too_long + report.dropped_empty
    return {
        "rows": len(items) - dropped,
        "dropped": dropped,
        "trained_tokens": report.targets,
        "steps": report.steps,
        "loss": report.last_loss,
        "weights": weight_hash(report.final),
    }


def imitate(
    recipe: Recipe,
    run: Run,
    iteration: int,
    settings: TrainingSettings,
    progress: Progress,
    *,
    role: str | None = None,
    version: int | None = None,
    empty: UserError | None = None,
) -> Metrics:
    """Train a role (default: the main one) by SFT on its own turns of the selected trajectories.

    It starts from ``version`` (default: the newest). Raises ``empty`` if nothing was selected.
    """
    role = role or recipe.main_role
    rows = recipe.rows(run, iteration, role)
    if not rows:
        raise empty or UserError(
            f"iteration {iteration} selected no turns of {role} to train on",
            "`coterie report` shows the scores; sample more dialogues, or select by another rule",
        )
    version = recipe.newest(run, role, iteration) if version is None else version
    model = recipe.models(run).load(role, version, trainable=True)
    seeded = recipe.seeded(settings, iteration)
    return train_role(run, iteration, model, rows, seeded, progress, role=role)


def prefer(
    recipe: Recipe,
    run: Run,
    iteration: int,
    pairs: Sequence[Pair],
    objective: DPOSettings,
    settings: TrainingSettings,
    progress: Progress,
    *,
    role: str | None = None,
    heldout: Sequence[Pair] = (),
    measure_every: int | None = None,
) -> Metrics:
    """Train a role's newest version (default: the main role's) by DPO on pairs; it is the reference.

    ``L = -log sigmoid(beta [log pi(w) / pi_ref(w) - log pi(l) / pi_ref(l)])`` for the chosen side w and the rejected
    side l. Log-probs of the reference are stored next to the training.
    """
    role, seeded = role or recipe.main_role, recipe.seeded(settings, iteration)
    model = recipe.models(run).load(role, recipe.newest(run, role, iteration), trainable=True)
    adapter = model.model.active_adapter if isinstance(model.model, PeftModel) else None
    pairs_with_reference, measured = (
        with_reference(
            *(model.model, some, seeded, run.training_folder(iteration, role) / name),
            adapter=adapter,
            normalise=objective.normalise,
            progress=progress,
        )
        if some
        else []
        for name, some in (("reference", pairs), ("reference-heldout", heldout))
    )
    return train_role(
        *(run, iteration, model, pairs_with_reference, seeded, progress),
        objective=DPO(objective),
        role=role,
        heldout=measured,
        measure_every=measure_every,
    )
