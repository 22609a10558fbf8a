"""SFT, DPO and log-probs of a role, as functions of stages."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.engines.protocol import POLICY, EngineError, LikelihoodModel
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.record.rows import Pair, Row, Target
from coterie.record.tree import Metrics
from coterie.runs.run import Run
from coterie.training.distributed import launches
from coterie.training.settings import DPOSettings, TrainingSettings

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.models.adapters import ModelSource
    from coterie.training.losses import Objective
    from coterie.training.ranks import Ranks, RankScorer


def train_role(
    run: Run,
    iteration: int,
    model: LoadedModel,
    items: Sequence[Any],
    settings: TrainingSettings,
    progress: Progress,
    *,
    objective: "Objective[Any] | None" = None,
    role: str,
    heldout: Sequence[Any] = (),
    measure_every: int | None = None,
    ranks: "tuple[Ranks, ModelSource] | None" = None,
) -> Metrics:
    """Train a role's model on items, by default with SFT on rows. ``heldout`` items are measured during training.

    ``ranks`` that have started for this training are used.
    """
    from coterie.training.checkpoint import weight_hash
    from coterie.training.losses import SFT
    from coterie.training.trainer import train

    folder, objective = run.training_folder(iteration, role), objective or SFT()
    named: dict[str, Any] = {"objective": objective, "progress": progress, "heldout": heldout}
    named |= {"tracker": run.tracker.of(role), "measure_every": measure_every}
    if role != POLICY:  # the lines of the progress only count rows
        progress.say(f"training {role}: {len(items)} rows or pairs")
    with nullcontext(ranks) if ranks else ranks_for(run, model, settings, folder) as started:
        if started:
            # Only trainings on several processes load this module.
            from coterie.training.ranks import train_on_ranks

            report = train_on_ranks(*started, model.model, items, settings, folder, **named)
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


@contextmanager
def ranks_for(
    run: Run, model: LoadedModel, settings: TrainingSettings, folder: Path
) -> "Iterator[tuple[Ranks, ModelSource] | None]":
    """Start the ranks of a training, if its settings ask for any."""
    if launches(settings):
        from coterie.training.ranks import ranks_of

        with ranks_of(model, settings, folder, run.launch) as ranks:
            yield ranks
    else:
        yield None


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
    from peft import PeftModel

    from coterie.training.losses import DPO
    from coterie.training.ranks import RankScorer
    from coterie.training.reference import with_reference

    role, seeded = role or recipe.main_role, recipe.seeded(settings, iteration)
    model = recipe.models(run).load(role, recipe.newest(run, role, iteration), trainable=True)
    # The reference is the policy before this training, so with its adapter if it has one.
    adapter = model.model.active_adapter if isinstance(model.model, PeftModel) else None
    folder = run.training_folder(iteration, role)
    # The same ranks compute the reference and train, because starting them is slow.
    with ranks_for(run, model, seeded, folder) as ranks:
        with RankScorer(*ranks, seeded) if ranks else nullcontext() as scorer:
            pairs_with_reference, measured = (
                with_reference(
                    *(model.model, pairs_of_split, seeded, folder / name),
                    adapter=adapter,
                    reduction=objective.reduction,
                    progress=progress,
                    scorer=scorer,
                )
                if pairs_of_split
                else []
                for name, pairs_of_split in (("reference", pairs), ("reference-heldout", heldout))
            )
        return train_role(
            *(run, iteration, model, pairs_with_reference, seeded, progress),
            objective=DPO(objective),
            role=role,
            heldout=measured,
            measure_every=measure_every,
            ranks=ranks,
        )


class RankLikelihood:
    """Log-probs by a frozen model on ranks. Requests that wait together are one call, which all ranks share."""

    def __init__(self, scorer: "RankScorer") -> None:
        self._scorer = scorer
        self._rows: list[Row] = []
        self._call: asyncio.Task[list[tuple[float, ...] | None]] | None = None
        self._lock = asyncio.Lock()

    async def logprobs(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        # Rows of concurrent requests form one list, and each request remembers its part.
        start = len(self._rows)
        for continuation in continuations:
            ids = (*prefix, *continuation)
            self._rows.append(Row(ids, (Target(len(prefix), len(ids), ""),)))
        stop = len(self._rows)
        # The first request starts a call, which those after it join.
        self._call = self._call or asyncio.create_task(self._score())
        # A request that is cancelled must not cancel the call for the others.
        values = (await asyncio.shield(self._call))[start:stop]
        if None in values:
            raise EngineError("a prompt with its target is longer than the model's context")
        return [list(value or ()) for value in values]

    async def _score(self) -> list[tuple[float, ...] | None]:
        async with self._lock:
            # Requests from here on belong to the next call.
            rows, self._rows, self._call = self._rows, [], None
            # The limits grow to the longest row, so that none is dropped.
            longest, scorer_settings = max(len(row.ids) for row in rows), self._scorer.settings
            tokens = max(longest, scorer_settings.tokens_per_microbatch)
            room = {"max_length": longest, "tokens_per_microbatch": tokens}
            scorer = replace(self._scorer, settings=scorer_settings.model_copy(update=room))
            # In a thread, so that the event loop can accept further requests.
            return await asyncio.to_thread(scorer.row_values, "reference", rows, 1.0)

    async def finish(self) -> None:
        """Wait for the call in progress, which would start the ranks again if they ended."""
        async with self._lock:
            pass


@asynccontextmanager
async def likelihood_model(
    recipe: Recipe, run: Run, role: str, version: int, settings: TrainingSettings
) -> AsyncIterator[LikelihoodModel]:
    """Open a version of a role to compute log-probs: on ranks if its training asks for any, else in this process."""
    models, folder = recipe.models(run), run.folder / "scoring"
    if not launches(settings):
        yield models.embedded(role, version)
        return
    from coterie.training.ranks import Ranks, RankScorer

    source = models.source(role, version, merge=False)
    with Ranks(settings, models.settings.device_name, folder, **run.launch) as ranks:
        model = RankLikelihood(RankScorer(ranks, source, settings))
        try:
            yield model
        finally:
            # All requests must end before the ranks do.
            await model.finish()
    shutil.rmtree(folder)
