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

from coterie.recipes.registry import recipe, settings
from coterie.runs.reinforce_record import step_records
from experiments.experiment import Claim, Experiment, Gate, above

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
SPARE_SEED = 1_000


def run_method(x: Experiment, method: str, seed: int, *, train: bool = True) -> None:
    """Run a method and record its base and its trained policy."""
    preset, world, overrides = METHODS[method]
    common = [*COMMON, f"environment={WORLDS}:{world}", f"seed={seed}"]
    own = recipe(settings(preset, [*common, *overrides, *x.overrides]))
    first = own.stage_keys()[0]
    with x.run(method, own, steps=None if train else [first]) as run:
        x.add_run(f"base of {world.lower()}", run, 0)
        if train:
            x.add_run(method, run, 1, ("reinforce",))
            steps = step_records(run.store, 0, "reinforce").values()
            sampled = sum(int(step["sampled_tokens"]) for step in steps)
            x.say(f"seed {seed}: {method} trained on {sampled:,} sampled tokens")


def gate(x: Experiment) -> Gate:
    """Measure the bases on a spare seed."""
    for method in ("own weights", "returns"):
        run_method(x, method, SPARE_SEED, train=False)
    lengths, trap = (row.score for row in x.rows)
    passed = 0.05 <= lengths <= 0.25 and trap > 0.5
    asked = "the base of lengths at 0.05 to 0.25, the base of trap above 0.5"
    return Gate({"lengths": lengths, "trap": trap}, passed, asked)


def reproduce(x: Experiment) -> list[Claim]:
    """Run all methods and test the claims."""
    for seed in x.seeds:
        for method in METHODS:
            run_method(x, method, seed)
    return [
        above(
            "roles",
            "lengths: own weights over shared weights by more than 0.30",
            *(x.of("own weights"), x.of("shared weights")),
            margin=0.30,
        ),
        above(
            "trap",
            "trap: returns over immediate rewards by more than 0.20",
            *(x.of("returns"), x.of("immediate rewards")),
            margin=0.20,
        ),
        above(
            "first_turn",
            "first-turn: siblings over paths at no more sampled tokens",
            *(x.of("siblings"), x.of("paths")),
            must=False,
        ),
    ]
