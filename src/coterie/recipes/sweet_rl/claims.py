"""``coterie reproduce sweet_rl``: the method, its baselines and its ablations, over several seeds.

Claims, margins and tests are fixed here, before any run (one-sided paired bootstrap over tasks and
seeds, p < 0.05; score is success: all ten tests in the sandbox):

* must: SWEET scores above the base (zero-shot);
* must: SWEET scores above rejection fine-tuning;
* reported: SWEET scores above multi-turn DPO;
* reported: SWEET scores above SWEET whose critic does not see the reference;
* reported: SWEET scores above SWEET whose critic takes sums in place of means (the paper: replies collapse).

A seed's runs share what is equal in them: the base's evaluation, the offline dialogues and the
candidates. The other critics (a regression head, a value function, a judge) run with the first seed and
make no claim. The judge is the base itself, asked about a tenth of the candidates (it compares them in
words, three comparisons for each); if none of its verdicts can be read there is no pair, and its row is that of
the base.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from coterie.config.folders import make_folder
from coterie.evaluation.claims import Claim, Results, above
from coterie.progress import Progress
from coterie.recipes.findings import ClaimResults, Findings, settings_for_claims
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.sweet_rl.recipe import SECOND, SweetRL
from coterie.recipes.sweet_rl.settings import SweetSettings
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.loop import fork, run_steps

NAME = SweetSettings.recipe
METHODS: dict[str, tuple[str, ...]] = {
    "sweet": (),
    "rejection_ft": ("method=rejection_ft",),
    "multi_turn_dpo": ("method=multi_turn_dpo",),
    "no_reference": ("critic.privileged=false",),
    "sums": ("critic.objective.normalise=none",),
}
"""What differs from the preset; the first begins, the others take over what is equal."""
CRITICS: dict[str, tuple[str, ...]] = {
    "regression": ("critic.kind=regression",),
    "classifier": ("critic.kind=classifier",),
    "judge": ("critic.kind=judge", "candidates.share=0.02"),
}
BASE = "zero_shot"


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
    seeds = list(seeds)
    for seed in seeds:
        base = folder / f"seed-{seed}"
        base.mkdir(exist_ok=True)
        methods = METHODS | (CRITICS if seed == seeds[0] else {})
        for method, own in methods.items():
            say(f"seed {seed}: {method}")
            _run(method, _recipe([*words, *own, f"seed={seed}"]), base, progress, found)
    return ClaimResults(found, _claims(found))


def _recipe(words: Sequence[str]) -> SweetRL:
    recipe = recipe_of(settings_for_claims(NAME, words))
    assert isinstance(recipe, SweetRL), "these are claims about SWEET-RL"
    return recipe


def _run(method: str, recipe: SweetRL, base: Path, progress: Progress, found: Findings) -> None:
    folder, own = base / method, recipe.settings
    if method == "sweet":
        recipe.check()
    elif not folder.exists():
        fork(recipe, base / "sweet", folder, own)
    with open_run(folder, recipe.name, own) as run:
        unchanged = method == "judge" and not _judged(recipe, run, progress)
        if not unchanged:
            run_steps(recipe, run, progress)
        if method == "sweet":
            found.add(BASE, own.seed, run, 0)
        found.add(method, own.seed, run, 0 if unchanged else own.rounds)


def _judged(recipe: SweetRL, run: Run, progress: Progress) -> bool:
    """Whether the judge made any pair; one that can't read makes none, and leaves the policy as it was."""
    before = [
        step for step in recipe.steps() if step != recipe.steps()[-1] and step.stage != "train"
    ]
    run_steps(recipe, run, progress, before)
    return int(run.metrics(Step(SECOND, "select"))["selected"]) > 0


def _claims(found: Findings) -> list[Claim]:
    """The claims, each tested on all seeds."""

    def of(method: str) -> Results:
        return {seed: tasks for (name, seed), tasks in found.tasks.items() if name == method}

    told = (
        ("over_zero_shot", "SWEET scores above the base", BASE, True),
        ("over_rejection_ft", "SWEET scores above rejection fine-tuning", "rejection_ft", True),
        ("over_multi_turn_dpo", "SWEET scores above multi-turn DPO", "multi_turn_dpo", False),
        ("reference", "SWEET scores above SWEET without the reference", "no_reference", False),
        ("normalisation", "SWEET scores above SWEET with sums for means", "sums", False),
    )
    return [
        above(id_, claim, of("sweet"), of(other), must=must) for id_, claim, other, must in told
    ]
