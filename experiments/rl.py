"""RL: GRPO, DAPO, PPO and expert iteration in ``exchange`` and ``persona``.

Fixed before any run; all claims are reported (one-sided paired bootstrap over tasks and seeds, and a t test over seeds,
p < 0.05 each; 500 held-out tasks a seed):

* in each world, each of the four methods scores above the base at its best decode;
* in each world, GRPO scores above expert iteration: the same loop, which imitates the dialogues with the highest reward
  of their group. Groups with equal rewards teach neither of them.

Equal for all: one optimizer step for 64 dialogues, 12 times, and the learning rate. DAPO draws up to twice as many
dialogues more, where rewards of groups are equal. Nothing was tuned.

Gate, on the spare seed: rewards differ in at least 0.2 of the groups of eight, and the base at its best decode scores
at most 0.8.
"""

from statistics import fmean

from coterie.recipes.base import Recipe
from experiments.claims import Claim, Hypothesis
from experiments.experiment import SPARE_SEED, Experiment, Gate, Quick, make_recipe
from experiments.results import BEST, Measurements

GRPO, EXPERT = "GRPO", "expert iteration"
WORLDS = ("exchange", "persona")
GROUP = 8
EQUAL = (
    "steps.count=12",
    "steps.patience=100",
    "steps.minibatches_per_step=1",
    "train.learning_rate=3e-4",
)
GROUPS = ("rollout.tasks=8", f"rollout.rollouts_per_task={GROUP}")
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    GRPO: ("rl/grpo", GROUPS),
    "DAPO": ("rl/dapo", (*GROUPS, "rollout.oversample_tasks=8", "rollout.rounds=3")),
    "PPO": ("rl/ppo", ("rollout.tasks=64", "rollout.rollouts_per_task=1")),
    EXPERT: ("rl/grpo", (*GROUPS, "advantage.baseline=best", "loss.kl_coef=0")),
}
"""Preset of each method, and settings that differ from it."""
RUNS = {f"{world}: {method}": (world, method) for world in WORLDS for method in METHODS}
QUICK = Quick(("exchange: GRPO", "exchange: expert iteration"), ("evaluate.tasks=200",))
MIN_DIFFER, MAX_BASE, GATE_TASKS = 0.2, 0.8, 100


def make(x: Experiment, world: str, method: str, seed: int) -> Recipe:
    """Return the recipe of a method in a world."""
    preset, words = METHODS[method]
    recipe: Recipe = make_recipe(preset, [*EQUAL, *words, *x.overrides, f"seed={seed}"], world)
    return recipe


def run(x: Experiment) -> None:
    """Run the methods in both worlds."""
    for seed in x.seeds:
        for name in x.chosen(RUNS):
            world, method = RUNS[name]
            recipe = make(x, world, method, seed)
            with x.run(name, recipe) as run:
                # All methods of a world have one base.
                if method == GRPO:
                    x.add_run(f"{world}: base", recipe, run, 0)
                x.add_run(name, recipe, run, 1)


def claims(measurements: Measurements) -> list[Claim]:
    """Test the claims."""
    return measurements.test(
        *(
            Hypothesis(
                f"{world}_{method}_over_base".lower().replace(" ", "_"),
                f"{world}: {method} scores above the base",
                *(f"{world}: {method}", f"{world}: base{BEST}"),
                must=False,
            )
            for world in WORLDS
            for method in METHODS
        ),
        *(
            Hypothesis(
                f"{world}_grpo_over_expert_iteration",
                f"{world}: GRPO scores above {EXPERT}",
                *(f"{world}: {GRPO}", f"{world}: {EXPERT}"),
                must=False,
            )
            for world in WORLDS
        ),
    )


def gate(x: Experiment) -> Gate:
    """Play the spare seed with the base at several decodes, and groups of some tasks at the temperature of training."""
    values = dict[str, float]()
    for world in WORLDS:
        recipe = make(x, world, GRPO, SPARE_SEED)
        with x.run(f"base of {world}", recipe, steps=()) as run:
            values[f"base of {world}"] = max(x.choose_decode(recipe, run).values())
            groups = x.sample_groups(recipe, run, GROUP, tasks=GATE_TASKS)
            values[f"{world} differ"] = fmean(len({*group}) > 1 for group in groups)
    return Gate(
        values,
        passed=all(
            values[f"base of {world}"] <= MAX_BASE and values[f"{world} differ"] >= MIN_DIFFER
            for world in WORLDS
        ),
        conditions=f"bases at most {MAX_BASE}, groups with rewards that differ at least {MIN_DIFFER}",
    )
