"""SWEET-RL: the method, its baselines and its ablations.

Claims, margins and tests were fixed before any run (one-sided paired bootstrap over tasks and
seeds, p < 0.05; score is success: all ten tests in the sandbox):

* must: SWEET scores above the base (zero-shot);
* must: SWEET scores above rejection fine-tuning;
* reported: SWEET scores above multi-turn DPO;
* reported: SWEET scores above SWEET whose critic does not see the reference;
* reported: SWEET scores above SWEET whose critic takes sums in place of means (the paper: replies collapse).

A seed's runs share their equal steps: the base's evaluation, the offline dialogues and the candidates. The
other critics (a regression head, a value function, a judge) run with the first seed and make no claim. The
judge is the base itself, asked about a tenth of the candidates (it compares them in words, three comparisons
for each); if none of its verdicts can be read there is no pair, and its row is the base's.
"""

from coterie.recipes.sweet_rl import SECOND, SweetRL
from coterie.runs.loop import run_stages
from coterie.runs.run import StageKey
from experiments.experiment import Claim, Experiment, make_recipe

METHODS: dict[str, tuple[str, ...]] = {
    "sweet": (),
    "rejection_ft": ("method=rejection_ft",),
    "multi_turn_dpo": ("method=multi_turn_dpo",),
    "no_reference": ("critic.privileged=false",),
    "sums": ("critic.objective.reduction=none",),
}
"""Differences from the preset. The first run begins; the others share its equal steps."""
CRITICS: dict[str, tuple[str, ...]] = {
    "regression": ("critic.kind=regression",),
    "classifier": ("critic.kind=classifier",),
    "judge": ("critic.kind=judge", "candidates.share=0.02"),
}


def reproduce(x: Experiment) -> list[Claim]:
    """Run the methods, and the other critics with the first seed; test the claims."""
    for seed in x.seeds:
        for method, overrides in (METHODS | (CRITICS if seed == x.seeds[0] else {})).items():
            run_method(x, method, [*x.overrides, *overrides, f"seed={seed}"])
    return x.claims(
        "sweet",
        [
            ("over_zero_shot", "SWEET scores above the base", True, "zero_shot"),
            ("over_rejection_ft", "SWEET scores above rejection fine-tuning", True, "rejection_ft"),
            ("over_multi_turn_dpo", "SWEET scores above multi-turn DPO", False, "multi_turn_dpo"),
            ("reference", "SWEET scores above SWEET without the reference", False, "no_reference"),
            ("normalisation", "SWEET scores above SWEET with sums for means", False, "sums"),
        ],
    )


def run_method(
    x: Experiment, method: str, overrides: list[str], name: str = "sweet_rl/backend"
) -> None:
    """Run a method of a recipe. A judge that makes no pair trains nothing."""
    recipe: SweetRL = make_recipe(name, overrides)
    *before, _ = recipe.stage_keys()
    before = [step for step in before if step.stage != "train"]
    steps, shares = (before if method == "judge" else None), "sweet" if method != "sweet" else None
    with x.run(method, recipe, shares=shares, steps=steps) as run:
        version = recipe.settings.iteration_count
        if method == "sweet":
            x.add_run("zero_shot", run, 0)
        if method == "judge" and not int(run.metrics(StageKey(SECOND, "select"))["selected"]):
            version = 0
        elif method == "judge":
            run_stages(recipe, run, x.progress)
        x.add_run(method, run, version)
