"""Reinforcement learning of agents that work together: roles, credit to turns, and the trap of immediate rewards.

Claims, margins and tests were fixed before any run of the claims (one-sided paired bootstrap over tasks and seeds,
p < 0.05). Policies are trained and evaluated at temperature 1, in the worlds of ``multi_agent_worlds``:

* must: in ``lengths`` agents with their own weights succeed more often than agents that share weights, by more than
  0.30 (enumerated: at most 0.25 against 1);
* must: in ``trap`` siblings that are compared by their returns (``rl/vine``) score above siblings that are compared by
  the reward of the turn alone (``rl/at_grpo`` as published) by more than 0.20 (enumerated: 1 against 0.5);
* reported: in ``first-turn`` siblings with returns score above ``rl/grpo`` at no more sampled tokens in training.

The runs of a world have equal steps and learning rates. ``rl/grpo`` in ``first-turn`` gets 9 rollouts of a task: with 4
turns and 4 siblings a tree samples 34 turns, 9 rollouts sample 36.

Gate, before any training: the base of ``lengths`` succeeds in 0.05 to 0.25 of 500 tasks of a spare seed, and in
``trap`` the base scores above the trap's 0.5.
"""

from pathlib import Path

from coterie.recipes.base import Recipe
from experiments.claims import Claim, Hypothesis
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.results import Measurements

WORLDS = Path(__file__).with_name("multi_agent_worlds.py")
COMMON = (
    *("model=tiny-exchange", "rollout.temperature=1", "rollout.max_tokens=48", "loss.kl_coef=0"),
    *("train.learning_rate=3e-4", "train.max_length=1024", "train.tokens_per_microbatch=8192"),
    *("train.warmup_ratio=0", "evaluate.temperature=1", "evaluate.tasks=500", "steps.patience=100"),
)
METHODS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "own weights": (
        *("rl/grpo", "Lengths"),
        (
            "policies.weights=each",
            "rollout.tasks=8",
            "rollout.rollouts_per_task=8",
            "steps.count=16",
        ),
    ),
    "shared weights": (
        *("rl/grpo", "Lengths"),
        (
            "policies.weights=one",
            "rollout.tasks=8",
            "rollout.rollouts_per_task=8",
            "steps.count=16",
        ),
    ),
    "returns": (
        *("rl/vine", "Trap"),
        ("rollout.tasks=8", "rollout.rollouts_per_task=4", "steps.count=16"),
    ),
    "immediate rewards": (
        *("rl/at_grpo", "Trap"),
        ("rollout.tasks=8", "rollout.rollouts_per_task=4", "steps.count=16"),
    ),
    "siblings": (
        *("rl/vine", "FirstTurn"),
        ("rollout.tasks=4", "rollout.rollouts_per_task=4", "steps.count=12"),
    ),
    "paths": (
        *("rl/grpo", "FirstTurn"),
        ("rollout.tasks=4", "rollout.rollouts_per_task=9", "steps.count=12"),
    ),
}
"""Preset, world and settings of each method."""
QUICK = Quick(("own weights", "shared weights"), ("evaluate.tasks=100", "steps.count=10"))
TUNING: dict[str, dict[str, float]] = {}
"""Nothing was tuned: all runs have the same learning rate."""


def make(x: Experiment, method: str, seed: int) -> Recipe:
    """Return the recipe of a method."""
    preset, world, overrides = METHODS[method]
    words = [*COMMON, *overrides, *x.overrides, f"seed={seed}"]
    recipe: Recipe = make_recipe(preset, words, f"{WORLDS}:{world}")
    return recipe


def gate(x: Experiment) -> Gate:
    """Measure the bases at temperature 1."""
    scores = {}
    # The first method of each world has its base.
    for method in ("own weights", "returns", "siblings"):
        recipe = make(x, method, SPARE_SEED)
        with x.run(f"base of {METHODS[method][1].lower()}", recipe, steps=()) as run:
            scores[METHODS[method][1]] = x.choose_decode(recipe, run)[1.0]
    lengths, trap = scores["Lengths"], scores["Trap"]
    passed = 0.05 <= lengths <= 0.25 and trap > 0.5
    conditions = "the base of lengths at 0.05 to 0.25, the base of trap above 0.5"
    return Gate({"lengths": lengths, "trap": trap}, passed, conditions)


def run(x: Experiment) -> None:
    """Run all methods."""
    for seed in x.seeds:
        for method in x.chosen(METHODS):
            recipe = make(x, method, seed)
            with x.run(method, recipe) as run:
                base = f"base of {METHODS[method][1].lower()}"
                # Methods of one world have one base.
                if (base, seed) not in x.measurements.tasks:
                    x.add_run(base, recipe, run, 0)
                x.add_run(method, recipe, run, 1)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(
        Hypothesis(
            "roles",
            "lengths: own weights over shared weights by more than 0.30",
            *("own weights", "shared weights"),
            margin=0.30,
        ),
        Hypothesis(
            "trap",
            "trap: returns over immediate rewards by more than 0.20",
            *("returns", "immediate rewards"),
            margin=0.20,
        ),
        Hypothesis(
            "first_turn",
            "first-turn: siblings over paths at no more sampled tokens",
            *("siblings", "paths"),
            must=False,
        ),
    )
