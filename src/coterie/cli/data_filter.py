"""``coterie data filter``: the rows that a policy solves neither always nor never.

It plays them, or reads what an evaluation or a run has played.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from coterie.cli.evaluate import played
from coterie.config.folders import check_new_folder
from coterie.datasets.data_set import SPLITS, Split
from coterie.datasets.filtering import Divided, RateRule, divided_by_rate, write_divided
from coterie.datasets.finding import Rows
from coterie.environments.registry import PlayedSettings
from coterie.errors import UserError
from coterie.recipes.registry import settings as recipe_settings
from coterie.recipes.reinforcing import STAGE as STEPS
from coterie.runs.benchmark import benchmark_settings
from coterie.runs.folder import read_config
from coterie.runs.held_out import STAGE
from coterie.runs.pass_rates import PassRate, PassRates, pass_rates, step_rates
from coterie.trajectories.store import Store

KEYS = "`coterie data filter --help` has examples"


@dataclass(frozen=True, slots=True)
class Stored:
    """Dialogues that were played before."""

    file: Path
    stage: str = STAGE
    iteration: int | None = None
    """The last one, if ``None``."""


def filter_rows(
    benchmark: str,
    words: Sequence[str],
    out: Path,
    rule: RateRule,
    passing: float,
    split: Split,
    stored: Stored | None,
    console: Console,
) -> Path:
    """Play a split, or read what was played, and write a new folder of rows.

    Raises ``UserError`` as an evaluation does, for a folder that is there, and if no row is kept.
    """
    check_new_folder(out, "give another folder")
    if stored is None:
        settings, found = _play(benchmark, words, split, console)
    else:
        settings, found = benchmark_settings(PlayedSettings, benchmark, words, where=KEYS), stored
    rows = _rows(settings)
    return _write(rows, _read(found, passing), found.file, out, rule, split, console)


def filter_run(
    folder: Path, out: Path, rule: RateRule, passing: float, iteration: int | None, console: Console
) -> Path:
    """Read how a run's reinforcement learning went, and write a new folder of its training rows.

    Each task counts by the newest step that sampled it. Raises ``UserError`` for a run without such steps, for a folder
    that is there, and if no row is kept.
    """
    check_new_folder(out, "give another folder")
    name, kept = read_config(folder)
    file = folder / "store.sqlite"
    with Store.open(file, read_only=True) as store:
        if not store.iterations(STEPS):
            raise UserError(
                f"{folder} has no step of reinforcement learning yet",
                "give a run that has; to read what another run sampled use --store RUN/store.sqlite --stage rollout",
            )
        rates = step_rates(store, _iteration(store, Stored(file, STEPS, iteration)), STEPS, passing)
    rows = _rows(recipe_settings(name, (), kept))
    return _write(rows, rates, file, out, replace(rule, unplayed="kept"), "train", console)


def _rows(settings: PlayedSettings) -> Rows:
    """Those that are played. Raises ``UserError`` for an environment without any."""
    if settings.dataset.name is None:
        raise UserError(
            f"{settings.played} makes its own tasks: there are no rows to filter",
            "give a data set, such as `coterie data filter mhqa dataset=2wiki`",
        )
    return Rows(settings.dataset)


def _write(
    rows: Rows,
    rates: PassRates,
    file: Path,
    out: Path,
    rule: RateRule,
    split: Split,
    console: Console,
) -> Path:
    """Divide the rows of a split by their rates."""
    rated = [(row, rates.of(rows.name, row)) for row in rows.split(split)]
    _check_known(rated, file, split)
    divided = divided_by_rate(
        ((row, None if one is None else one.rate) for row, one in rated), rule
    )
    others = [(one, rows.split(one)) for one in SPLITS if one != split and rows.has(one)]
    write_divided(out, divided, split, others)
    _say(divided, [one for _, one in rated], rule, console)
    return out


def _play(
    benchmark: str, words: Sequence[str], split: Split, console: Console
) -> tuple[PlayedSettings, Stored]:
    """An evaluation of the split, or the rest of one."""
    _, settings, (figures, *_), _ = played(
        benchmark, words, every=False, console=console, split=split
    )
    return settings, Stored(figures.store)


def _read(stored: Stored, passing: float) -> PassRates:
    if not stored.file.is_file():
        raise UserError(
            f"there is no file {stored.file}",
            "give the store of an evaluation (runs/evaluations/*.sqlite), or a run's store.sqlite",
        )
    with Store.open(stored.file, read_only=True) as store:
        return pass_rates(store, _iteration(store, stored), stored.stage, passing)


def _iteration(store: Store, stored: Stored) -> int:
    """The iteration to read. Raises ``UserError`` if the stage has no dialogue in it."""
    known = store.iterations(stored.stage)
    asked = stored.iteration if stored.iteration is not None else max(known, default=None)
    if asked is None or asked not in known:
        raise UserError(
            f"{stored.file} has no dialogue of the stage {stored.stage!r}"
            + (f" in iteration {asked}" if known else ""),
            "name another one (--stage, --iteration): runs sample training tasks in `rollout`; for reinforcement "
            "learning use --from RUN",
        )
    return asked


def _check_known(rated: Sequence[tuple[object, PassRate | None]], file: Path, split: Split) -> None:
    if all(one is None for _, one in rated):
        raise UserError(
            f"no {split} row of this data set has a graded dialogue in {file}",
            "give the data set and the split that were played there (dataset.source=, --split)",
        )


def _say(
    divided: Divided, rates: Sequence[PassRate | None], rule: RateRule, console: Console
) -> None:
    known = [one for one in rates if one is not None]
    for place, rows in divided.rows.items():
        also = f", {len(rates) - len(known):,} of them not played" * (
            place == rule.unplayed == "kept"
        )
        console.print(f"{place.replace('_', ' ')}: {len(rows):,} rows{also}")
    counts = Counter(f"{one.passed}/{one.graded}" for one in known)
    shown = sorted(counts.items(), key=lambda one: (len(one[0]), one[0]))
    console.print("passed: " + ", ".join(f"{rate} of {count:,}" for rate, count in shown))
