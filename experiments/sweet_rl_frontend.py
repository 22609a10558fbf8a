"""SWEET-RL on web pages: the method and its baselines on the micro-world ``pages``.

The kind of house in the request makes some values of each aspect likely, which nothing tells the agent, and the user
says which aspect is wrong, but not what it should be. The score is the share of aspects that the last page has right,
minus 0.01 for each message after the first. Claims, margins and tests were fixed before any run of the claims:

* must: SWEET scores above the base (zero-shot);
* reported: SWEET scores above rejection fine-tuning;
* reported: SWEET scores above multi-turn DPO.

A seed's runs share their equal steps: the base's evaluation and the offline dialogues. The base that may not answer
before its last turn has a row, because patience alone needs no training.

Gate, on the spare seed: the base scores at most 0.6 at its best decode, and an agent that knows the likely values and
tries them first at least 0.85.

``environment.score=similarity`` scores the same dialogues by pictures of a browser.
"""

import json
from dataclasses import replace

from coterie.environments.pages.micro_world import (
    HIDDEN,
    LIKELY,
    MAX_TURNS,
    TURN_COST,
    VALUES,
    Design,
    Pages,
    largest_difference,
    share_right,
)
from coterie.environments.user_simulator import PERSON
from coterie.recipes.sweet_rl import SweetRL
from coterie.record.tree import Task
from experiments.claims import Claim
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.results import Measurements
from experiments.sweet_rl import BASELINES, OVER_ZERO_SHOT, run_method

NAME = "sweet_rl/frontend"
METHODS = ("sweet", "rejection_ft", "multi_turn_dpo")
PATIENT = "zero_shot, to the last turn"
MAX_BASE, MIN_ASKER = 0.6, 0.85
TUNING = {
    "sweet": {
        "nll_coef=1, learning_rate=1e-4, epochs=1": 0.270,
        "nll_coef=1, learning_rate=1e-4, epochs=4": 0.340,
        "nll_coef=1, learning_rate=3e-4, epochs=4": 0.343,
    },
    "rejection_ft": {
        "min_reward=0.54, learning_rate=3e-4, epochs=8": 0.266,
        "min_reward=0.54, learning_rate=3e-4, epochs=16": 0.276,
        "min_reward=0.54, learning_rate=1e-3, epochs=8": 0.276,
        "min_reward=0.34, learning_rate=3e-4, epochs=8": 0.269,
    },
    "multi_turn_dpo": {
        "nll_coef=0.1, learning_rate=1e-4, epochs=4": 0.259,
        "nll_coef=1, learning_rate=3e-4, epochs=4": 0.293,
        "nll_coef=10, learning_rate=3e-4, epochs=4": 0.274,
        "nll_coef=0.1, learning_rate=3e-4, epochs=4": 0.276,
    },
}
"""Settings of the policy's training that were tried on the spare seed, and the score at temperature 1."""
QUICK = Quick(("sweet", "rejection_ft"), ("rollout.tasks=60", "evaluate.tasks=60"))
DEFAULTS = ("evaluate.tasks=550",)
"""More pages than are used, because seeds draw some of them twice."""


class PatientPages(Pages):
    """Pages whose agent can't answer before its last turn."""

    def answer(self, text: str) -> None:
        return None


def run(x: Experiment) -> None:
    """Run the methods with every seed."""
    for seed in x.seeds:
        for method in x.chosen(METHODS):
            run_method(x, method, [*x.overrides, f"method={method}", f"seed={seed}"], NAME)
        recipe: SweetRL = make_recipe(NAME, [*x.overrides, f"seed={seed}"])
        assert isinstance(recipe.environment, Pages)
        with x.base(recipe) as run:
            x.add_run(PATIENT, recipe, run, 0, PatientPages(recipe.environment.settings))


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims of the backend whose methods run here, of which only one must hold."""
    return measurements.test(OVER_ZERO_SHOT, *BASELINES)


def gate(x: Experiment) -> Gate:
    """Play the held-out tasks with the base, and with an agent that knows the likely values."""
    recipe: SweetRL = make_recipe(NAME, [*x.overrides, f"seed={SPARE_SEED}"])
    with x.base(recipe) as run:
        base = max(x.choose_decode(recipe, run).values())
        shares = [table_asker(task) for task in recipe.heldout_tasks()]
    asker = sum(shares) / len(shares)
    return Gate(
        {"base": base, "asker": asker},
        passed=base <= MAX_BASE and asker >= MIN_ASKER,
        conditions=f"base at most {MAX_BASE}, asker at least {MIN_ASKER}",
    )


def table_asker(task: Task) -> float:
    """Return the score of an agent that tries the likely values of an aspect first, then the others."""
    goal = Design(**json.loads(task.secrets[HIDDEN].reveal(PERSON)))
    assert goal.heading is not None
    untried = {
        name: [*likely, *(value for value in VALUES[name] if value not in likely)]
        for name, likely in LIKELY[goal.heading.split()[-1]].items()
    }
    page = Design(heading=goal.heading, **{name: values.pop(0) for name, values in untried.items()})
    for turn in range(MAX_TURNS):
        name = largest_difference(page, goal)
        if name is None or turn == MAX_TURNS - 1:
            break
        page = replace(page, **{name: untried[name].pop(0)})
    return share_right(page, goal) - TURN_COST * turn
