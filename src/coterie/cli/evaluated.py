"""What an evaluation does with the dialogues that it has: a judge picks the best of several, and all go into a file."""

from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Self

from pydantic import model_validator

from coterie.cli.figures import Figures
from coterie.config.folders import check_new_file, expanded
from coterie.config.settings import key
from coterie.engines.chat_model import check_chat
from coterie.engines.protocol import EngineError
from coterie.errors import UserError
from coterie.evaluation.picking import NOBODY, PickerSettings
from coterie.runs.benchmark import BenchmarkSettings
from coterie.runs.best_picked import best_picked
from coterie.runs.dumped import dumped, write_rows
from coterie.runs.held_out import STAGE
from coterie.trajectories.store import Store


class EvaluatedSettings(BenchmarkSettings):
    """A benchmark, and what becomes of its dialogues. None of it changes what is played."""

    picker: PickerSettings = PickerSettings()
    dump: str | None = key(
        None,
        "Also write the dialogues to NAME_step_V.jsonl, V being the version of the policy, as rows with step, input, "
        "output, score, data_source and ground_truth.",
        source="GAP: trainer.val_generations_jsonl_path",
    )

    @model_validator(mode="after")
    def _several_to_pick_from(self) -> Self:
        if self.picker.picks and self.samples == 1:
            raise ValueError("picker picks the best of several dialogues; give samples=3")
        return self


def check_evaluated(settings: EvaluatedSettings) -> None:
    """Refuse (``UserError``) a judge that can't be had, and dialogues that are there already."""
    check_chat("picker", settings.picker, NOBODY)
    if settings.dump is not None:
        name = expanded(settings.dump)
        for file in name.parent.glob(f"{escape(name.name)}_step_*.jsonl"):
            check_new_file(file)


async def figures_of(settings: EvaluatedSettings, figures: Figures) -> Figures:
    """Figures with the judge's choice, once the dialogues are dumped. Raises ``UserError``."""
    if settings.dump is None and not settings.picker.picks:
        return figures
    with Store.open(figures.store, read_only=True) as store:
        attempt = store.iterations(STAGE)[-1]
        if settings.dump is not None:
            await _dump(settings, settings.dump, figures, store, attempt)
        if not settings.picker.picks:
            return figures
        picks = figures.store.with_suffix(".picks.jsonl")
        try:
            found = await best_picked(
                *(store, attempt, STAGE, figures.found.n, settings.samples, settings.picker, picks)
            )
        except EngineError as error:
            raise UserError(
                f"picker={settings.picker.model}: {error}",
                "the dialogues are kept: the same command asks only for picks that are missing",
            ) from error
    return replace(figures, picked=found)


async def _dump(
    settings: EvaluatedSettings, name: str, figures: Figures, store: Store, attempt: int
) -> None:
    file = Path(f"{expanded(name)}_step_{figures.version}.jsonl")
    rows = await dumped(*(store, attempt, STAGE, settings.made(), settings.played, figures.version))
    write_rows(file, rows)
