"""Faults in the mathematics of reinforcement learning: the loss, its means, divergences, advantages, values."""

from tests.mutation.mutant import Mutant

GRADIENT = "tests/test_policy_gradient.py::"
FORMULA = f"{GRADIENT}test_the_loss_is_that_of_the_formula[0.5]"
LACKING = f"{GRADIENT}test_rows_without_what_the_objective_needs_are_refused"

MUTANTS = (
    Mutant(
        "policy-gradient-unclipped",
        "training/policy_gradient.py",
        "torch.maximum(-ratio * advantages, -clipped * advantages)",
        "(-ratio * advantages)",
        "one batch can carry the policy anywhere",
        (FORMULA,),
    ),
    Mutant(
        "policy-gradient-optimist",
        "training/policy_gradient.py",
        "losses = torch.maximum(",
        "losses = torch.minimum(",
        "the clip holds where it should let go",
        (FORMULA,),
    ),
    Mutant(
        "policy-gradient-one-clip",
        "training/policy_gradient.py",
        "1 + s.clip_high",
        "1 + s.clip_low",
        "clip_high has no effect",
        (FORMULA,),
    ),
    Mutant(
        "policy-gradient-towards-the-bad",
        "training/policy_gradient.py",
        "losses = torch.max",
        "losses = -torch.max",
        "bad tokens become likelier",
        (f"{GRADIENT}test_steps_make_good_tokens_likelier_and_bad_ones_less",),
    ),
    Mutant(
        "policy-gradient-reference-the-wrong-way",
        "training/divergence.py",
        "apart = log_ratio(logprobs, reference)",
        "apart = log_ratio(reference, logprobs)",
        "the divergence is that of the other direction",
        (FORMULA,),
    ),
    Mutant(
        "policy-gradient-does-not-say-what-it-needs",
        "training/policy_gradient.py",
        'list[TargetValue] = ["advantages"]',
        "list[TargetValue] = []",
        "rows without advantages end in a traceback",
        (LACKING,),
    ),
)
