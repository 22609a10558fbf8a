"""SFT, DPO and log-probs of a role, as functions of stages."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.engines.protocol import POLICY, EngineError, LikelihoodModel
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.record.rows import Facts, Pair, Row, Target, Update, trained_rows
from coterie.record.tree import Metrics
from coterie.runs.run import Run
from coterie.training.distributed import launches
from coterie.training.settings import DPOSettings, TrainingSettings

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.models.adapters import ModelSource
    from coterie.training.losses import Objective
    from coterie.training.rank_trainer import RankScorer
    from coterie.training.ranks import Ranks


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Training of a role in an iteration of a run."""

    run: Run
    iteration: int
    role: str
    model: LoadedModel
    """Model to train."""
    settings: TrainingSettings
    """Settings with the seed of the iteration."""
    progress: Progress

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        run: Run,
        iteration: int,
        settings: TrainingSettings,
        progress: Progress,
        role: str | None = None,
        version: int | None = None,
    ) -> "TrainingJob":
        """Return the training of a version of a role (default: the newest version of the main role)."""
        role = role or recipe.main_role
        version = recipe.newest(run, role, iteration) if version is None else version
        model = recipe.models(run).load(role, version, trainable=True)
        return cls(run, iteration, role, model, recipe.seeded(settings, iteration), progress)

    @property
    def folder(self) -> Path:
        return self.run.training_folder(self.iteration, self.role)

    def train(
        self,
        items: Sequence[Any],
        objective: "Objective[Any] | None" = None,
        *,
        heldout: Sequence[Any] = (),
        measure_every: int | None = None,
        ranks: "tuple[Ranks, ModelSource] | None" = None,
    ) -> Metrics:
        """Train on items, by default with SFT on rows. ``heldout`` items are measured during training.

        ``ranks`` that have started for this training are used.
        """
        from coterie.training.checkpoint import weight_hash
        from coterie.training.losses import SFT
        from coterie.training.trainer import train

        model, progress = self.model.model, self.progress
        named: dict[str, Any] = {"objective": objective or SFT(), "progress": progress}
        named |= {"heldout": heldout, "measure_every": measure_every}
        named |= {"tracker": self.run.tracker.of(self.role), "keep": self._keep_facts}
        if self.role != POLICY:  # the lines of the progress only count rows
            progress.say(f"training {self.role}: {len(items)} rows or pairs")
        with nullcontext(ranks) if ranks else self.open_ranks() as started:
            if started:
                # Only trainings on several processes load this module.
                from coterie.training.rank_trainer import train_on_ranks

                report = train_on_ranks(*started, model, items, self.settings, self.folder, **named)
            else:
                report = train(model, items, self.settings, self.folder, **named)
        dropped = report.dropped_too_long + report.dropped_empty
        return {
            "rows": len(items) - dropped,
            "dropped": dropped,
            "trained_tokens": report.targets,
            "steps": report.steps,
            "loss": report.last_loss,
            "weights": weight_hash(report.final),
        }

    def train_dpo(
        self,
        pairs: Sequence[Pair],
        objective: DPOSettings,
        *,
        heldout: Sequence[Pair] = (),
        measure_every: int | None = None,
    ) -> Metrics:
        """Train by DPO on pairs, with the model before this training as the reference.

        ``L = -log sigmoid(beta [log pi(w) / pi_ref(w) - log pi(l) / pi_ref(l)])`` for the chosen side w and the
        rejected side l; ``objective.kind`` names other losses. Log-probs of the reference, if the loss needs them, are
        stored next to the training. KTO trains on each side alone.
        """
        from peft import PeftModel

        from coterie.training.losses import DPO, KTO
        from coterie.training.rank_trainer import RankScorer
        from coterie.training.reference import unpair_with_reference, with_reference

        model, settings, is_kto = self.model.model, self.settings, objective.kind == "kto"
        # The reference has the adapter that the policy has before this training.
        adapter = model.active_adapter if isinstance(model, PeftModel) else None
        named: dict[str, Any] = {"adapter": adapter, "reduction": objective.reduction}
        named["progress"] = self.progress
        # The same ranks compute the reference and train, because starting them is slow.
        with self.open_ranks() as ranks:
            with RankScorer(*ranks, settings) if ranks else nullcontext() as scorer:

                def referenced(split: Sequence[Pair], name: str) -> Sequence[Any]:
                    if not split or not objective.needs_reference:
                        return split
                    compute = unpair_with_reference if is_kto else with_reference
                    return compute(
                        model, split, settings, self.folder / name, scorer=scorer, **named
                    )

                training_pairs = referenced(pairs, "reference")
                measured = referenced(heldout, "reference-heldout")
            if is_kto and not any(item.mismatched for item in training_pairs):
                raise UserError(
                    "kto compares with completions of other prompts, and no pair has another prompt and one row",
                    "give pairs of different prompts, or use objective.kind=dpo",
                )
            measures: dict[str, Any] = {"heldout": measured, "measure_every": measure_every}
            loss = KTO(objective) if is_kto else DPO(objective)
            return self.train(training_pairs, loss, ranks=ranks, **measures)

    def _keep_facts(
        self, number: int, items: Sequence[Any], facts: Sequence[tuple[int, Facts]]
    ) -> None:
        """Record the rows of an optimizer step."""
        rows = trained_rows(items, facts, arrays=self.settings.keeps_facts(number - 1))
        update = Update(self.iteration, self.run.stage, self.role, number, rows)
        self.run.store.put_update(update)

    @contextmanager
    def open_ranks(self) -> "Iterator[tuple[Ranks, ModelSource] | None]":
        """Start the ranks of the training, if its settings ask for any."""
        if not launches(self.settings):
            yield None
            return
        from coterie.training.rank_trainer import ranks_of

        with ranks_of(self.model, self.settings, self.folder, self.run.launch) as ranks:
            yield ranks


def train_sft(
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
            "`coterie view` shows the scores; sample more dialogues, or select by another rule",
        )
    return TrainingJob.of(recipe, run, iteration, settings, progress, role, version).train(rows)


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
    from coterie.training.rank_trainer import RankScorer
    from coterie.training.ranks import Ranks

    source = models.source(role, version)
    with Ranks(settings, models.settings.device_name, folder, **run.launch) as ranks:
        model = RankLikelihood(RankScorer(ranks, source, settings))
        try:
            yield model
        finally:
            # All requests must end before the ranks do.
            await model.finish()
    shutil.rmtree(folder)
