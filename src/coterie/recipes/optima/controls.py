"""Controls for claims about ``optima/isft``: the same training on rows that nothing selected.

The control of random rollouts needs no code of its own: it is ``select.rule=random``.
"""

from collections.abc import Sequence
from dataclasses import replace

from coterie.environments.exchange.scripts import corpus
from coterie.microworlds.exchange import pretraining_rows
from coterie.models.loading import LoadedModel
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.optima.settings import OptimaSettings
from coterie.runs.folder import Run
from coterie.runs.stage import Stage
from coterie.trajectories.row import Row

CORPUS_SEED = 900_000
"""Dialogues of the control come from this seed on: none that made the base."""


class ScriptedControl(Optima):
    """More pre-training: each iteration trains on as many scripted dialogues as iSFT selected."""

    def __init__(self, settings: OptimaSettings, counts: Sequence[int]) -> None:
        super().__init__(settings)
        self.counts = counts

    def stages(self) -> list[Stage]:
        """Only trainings, each from the one before, and the evaluation of the last policy."""
        whole = super().stages()
        kept = [*(stage for stage in whole if stage.trains), whole[-1]]
        return [
            replace(stage, after=tuple(one.step for one in kept[max(n - 1, 0) : n]))
            for n, stage in enumerate(kept)
        ]

    def rows(self, run: Run, iteration: int, policy: LoadedModel) -> list[Row]:
        """Both agents' rows of fresh scripted dialogues."""
        seed = CORPUS_SEED + self.settings.seed * 1000 + iteration
        dialogues = corpus(seed, self.counts[iteration])
        return [row for d in dialogues for row in pretraining_rows(d, policy.tokenizer)]
