"""``coterie reproduce optima/isft``: iSFT against its base and two controls, over several seeds.

Claims, margins and tests are fixed here, before any run (one-sided paired bootstrap over tasks and
seeds, p < 0.05). Controls train on as many dialogues as iSFT did in each iteration, under the same
training settings, so in as many steps (``recipes.optima.controls``):

* ``random``: dialogues drawn at random from the control's own rollouts, instead of the best;
* ``scripted``: more pre-training on the scripted corpus that made the base.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coterie.config.folders import make_folder
from coterie.evaluation.claims import Claim, better
from coterie.progress import Progress
from coterie.recipes.findings import ClaimResults, Findings, Scores, settings_for_claims
from coterie.recipes.optima.controls import ScriptedControl
from coterie.recipes.optima.recipe import Optima
from coterie.recipes.optima.settings import OptimaSettings
from coterie.runs.folder import Step, open_run
from coterie.runs.loop import fork, run_steps

MARGIN_OVER_CONTROLS = 0.10


def reproduce(
    folder: Path,
    seeds: Iterable[int],
    words: Sequence[str],
    say: Callable[[str], None],
    progress: Progress,
) -> ClaimResults:
    """Run (or resume) everything, and test the claims."""
    make_folder(folder)
    found = Findings()
    for seed in seeds:
        own = settings_for_claims(OptimaSettings.recipe, [*words, f"seed={seed}"])
        assert isinstance(own, OptimaSettings), "these are claims about Optima"
        base = folder / f"seed-{seed}"
        base.mkdir(exist_ok=True)
        say(f"seed {seed}: iSFT, then the controls")
        counts = _isft(base, own, progress, found)
        _random(base, own, counts, progress, found)
        _scripted(base, own, counts, progress, found)
    return ClaimResults(found, _claims(found.tasks))


def _isft(base: Path, own: OptimaSettings, progress: Progress, found: Findings) -> list[int]:
    """The recipe; gives how many dialogues each iteration selected."""
    recipe = Optima(own)
    recipe.check()
    with open_run(base / "isft", OptimaSettings.recipe, own) as run:
        run_steps(recipe, run, progress)
        found.add("base", own.seed, run, 0)
        for version in range(1, own.iterations + 1):
            found.add("isft", own.seed, run, version)
        selects = [run.metrics(Step(i, "select")) for i in range(own.iterations)]
        return [int(metrics["selected"]) for metrics in selects]


def _random(
    base: Path, own: OptimaSettings, counts: list[int], progress: Progress, found: Findings
) -> None:
    select = own.select.model_copy(update={"rule": "random", "counts": tuple(counts)})
    control = own.model_copy(update={"select": select})
    recipe = Optima(control)
    if not (base / "random").exists():  # the base's evaluation and the first rollouts are the same
        fork(recipe, base / "isft", base / "random", control)
    _control("random", recipe, base, progress, found)


def _scripted(
    base: Path, own: OptimaSettings, counts: list[int], progress: Progress, found: Findings
) -> None:
    _control("scripted", ScriptedControl(own, counts), base, progress, found)


def _control(method: str, recipe: Optima, base: Path, progress: Progress, found: Findings) -> None:
    with open_run(base / method, OptimaSettings.recipe, recipe.settings) as run:
        run_steps(recipe, run, progress)
        found.add(method, recipe.settings.seed, run, recipe.settings.iterations)


def _claims(scores: Scores) -> list[Claim]:
    """The claims, each tested on all seeds."""
    margins = {"base": 0.0, "random": MARGIN_OVER_CONTROLS, "scripted": MARGIN_OVER_CONTROLS}
    ours = {seed: tasks for (method, seed), tasks in scores.items() if method == "isft"}
    return [
        better("isft", ours, other, {seed: scores[other, seed] for seed in ours}, margin)
        for other, margin in margins.items()
    ]
