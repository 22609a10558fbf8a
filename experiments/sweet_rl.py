"""SWEET-RL: the method, its baselines and its critic without the reference in ``persona``.

Claims, margins and tests were fixed before any run of the claims (score is success: all ten tests in the sandbox). All
are with 150 tasks:

* must: SWEET scores above the base (zero-shot);
* reported: SWEET scores above SWEET whose critic does not see the reference;
* reported: the critic with the reference orders more pairs of first turns rightly, by more than 0.10;
* reported: SWEET scores above rejection fine-tuning, and above multi-turn DPO.

Each critic has a row with the pairs of first turns that it orders rightly. Other critics and numbers of tasks are in
``sweet_rl_critics``.

Gates, on the spare seed (``sweet_rl_gates`` has the exact values):

* the share of the variance of the first turn's advantage that only the reference tells is 0.2 to 0.45: less leaves the
  reference nothing to tell, and more is noise that no policy can use;
* the base at its best decode succeeds in at most 0.55, and an agent that knows which aspects are likely in at least
  0.35 more;
* of the claims on the reference alone: with 150 tasks, the critic with the reference orders at least 0.10 more pairs of
  first turns rightly.

A seed's runs share their equal steps: the base's evaluation, the offline dialogues and the candidates.
"""

from collections.abc import Mapping
from statistics import fmean

from coterie.recipes.sweet_rl import SECOND, SweetRL
from coterie.runs.loop import EVALUATION
from experiments.claims import Claim, Hypothesis
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.results import BEST, Measurements
from experiments.sweet_rl_gates import (
    critic_accuracy,
    measured_rates,
    reference_share,
    table_asker,
)

BACKEND = "sweet_rl/backend"
METHODS: dict[str, tuple[str, ...]] = {
    "sweet": (),
    "no_reference": ("critic.privileged=false",),
    "rejection_ft": ("method=rejection_ft",),
    "multi_turn_dpo": ("method=multi_turn_dpo",),
}
"""Differences from the preset. The first run begins; the others share its equal steps."""
CRITIC = "critic of "
"""Prefix of the rows of critics, whose score is the share of pairs of first turns that they order rightly."""
MIN_SHARE, MAX_SHARE, MAX_BASE, MIN_GAIN, MIN_ACCURACY_GAIN = 0.2, 0.45, 0.55, 0.35, 0.1


TUNING = {
    "sweet": {
        "nll_coef=10, learning_rate=3e-4, epochs=3": 0.356,
        "nll_coef=10, learning_rate=3e-4, epochs=6": 0.340,
        "nll_coef=3, learning_rate=3e-4, epochs=3": 0.330,
        "nll_coef=10, learning_rate=1e-3, epochs=3": 0.230,
    },
    "rejection_ft": {
        "learning_rate=3e-4, epochs=4": 0.260,
        "learning_rate=3e-4, epochs=8": 0.330,
        "learning_rate=3e-4, epochs=16": 0.394,
        "learning_rate=1e-3, epochs=8": 0.374,
    },
    "multi_turn_dpo": {
        "nll_coef=0.1, learning_rate=1e-4, epochs=4": 0.186,
        "nll_coef=1, learning_rate=3e-4, epochs=4": 0.296,
        "nll_coef=10, learning_rate=3e-4, epochs=4": 0.280,
        "nll_coef=10, learning_rate=3e-4, epochs=8": 0.392,
    },
}
"""Settings of the policy's training that were tried on the spare seed, and the success at temperature 1.

SWEET without the reference has the settings of SWEET.
"""
QUICK = Quick(("sweet", "rejection_ft"), ("rollout.tasks=75", "evaluate.tasks=200"))
OVER_ZERO_SHOT = Hypothesis(
    "over_zero_shot", "SWEET scores above the base", "sweet", "zero_shot" + BEST
)
BASELINES = (
    Hypothesis(
        "over_rejection_ft",
        "SWEET scores above rejection fine-tuning",
        *("sweet", "rejection_ft"),
        must=False,
    ),
    Hypothesis(
        "over_multi_turn_dpo",
        "SWEET scores above multi-turn DPO",
        *("sweet", "multi_turn_dpo"),
        must=False,
    ),
)
REFERENCE = (
    Hypothesis(
        "reference",
        "SWEET scores above SWEET without the reference",
        *("sweet", "no_reference"),
        must=False,
    ),
    Hypothesis(
        "critic",
        "the critic with the reference orders more first turns rightly, by more than 0.10",
        *(CRITIC + "sweet", CRITIC + "no_reference"),
        must=False,
        margin=MIN_ACCURACY_GAIN,
    ),
)

ON_REFERENCE = ("reference", "critic", "reference_75")
"""Claims on the reference, here and in ``sweet_rl_critics``, which have a gate of their own."""


def run(x: Experiment) -> None:
    """Run the methods."""
    for seed in x.seeds:
        for method in x.chosen(METHODS):
            run_method(x, method, [*x.overrides, f"seed={seed}", *METHODS[method]])


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(OVER_ZERO_SHOT, *REFERENCE, *BASELINES)


def gate(x: Experiment) -> Gate:
    """Enumerate what the reference tells, and train critics with and without it."""
    overrides = [*x.overrides, f"seed={SPARE_SEED}"]
    recipe: SweetRL = make_recipe(BACKEND, overrides)
    with x.base(recipe) as run:
        base = max(x.choose_decode(recipe, run).values())
        temperature = recipe.settings.rollout.temperature
        with x.evaluate("decode", recipe, run, 0, temperature) as store:
            rates = measured_rates(store, 0, EVALUATION)
    values = {"reference_share": reference_share(rates), "base": base, "asker": table_asker()}
    for method in ("sweet", "no_reference"):
        recipe = make_recipe(BACKEND, [*overrides, *METHODS[method]])
        # The policy is not trained.
        steps = [key for key in recipe.stage_keys() if key.stage != EVALUATION][:-2]
        shares = "sweet" if method != "sweet" else None
        with x.run(method, recipe, shares=shares, steps=steps) as run:
            accuracy = critic_accuracy(recipe, run).values()
            values[CRITIC + method] = fmean(result.score for result in accuracy)
    return gate_of(values)


def gate_of(values: Mapping[str, float]) -> Gate:
    """Return the gate of these measurements."""
    gain = values[CRITIC + "sweet"] - values[CRITIC + "no_reference"]
    condition = (
        f"the critic with the reference orders {MIN_ACCURACY_GAIN} more pairs rightly ({gain:.3f})"
    )
    return Gate(
        values,
        passed=MIN_SHARE <= values["reference_share"] <= MAX_SHARE
        and values["base"] <= MAX_BASE
        and values["asker"] - values["base"] >= MIN_GAIN,
        conditions=f"reference_share between {MIN_SHARE} and {MAX_SHARE}, base at most {MAX_BASE}, asker at least "
        f"{MIN_GAIN} above it",
        failed=dict.fromkeys(ON_REFERENCE, condition) if gain < MIN_ACCURACY_GAIN else {},
    )


def run_method(
    x: Experiment,
    method: str,
    overrides: list[str],
    name: str = BACKEND,
    leader: str = "sweet",
) -> None:
    """Run a method of a recipe, which shares the equal steps of the ``leader``."""
    recipe: SweetRL = make_recipe(name, overrides)
    with x.run(method, recipe, shares=leader if method != leader else None) as run:
        if method == "sweet":
            x.add_run("zero_shot", recipe, run, 0)
        x.add_run(method, recipe, run, recipe.settings.iteration_count)
        # Pairs of first turns have a right order in ``persona`` only.
        if recipe.has_critic and name == BACKEND:
            s = recipe.settings
            critic = (CRITIC + method, s.seed, SECOND, s.candidates.temperature)
            x.measurements.add(*critic, critic_accuracy(recipe, run))
