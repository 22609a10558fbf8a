"""Faults of SWEET-RL's presets, defaults and steps."""

from tests.mutation.mutant import Mutant

STEPS = "tests/sweet/test_steps.py::"

RECIPE = "recipes/sweet_rl/recipe.py"
SETTINGS = "recipes/sweet_rl/settings.py"
PRESET = "recipes/sweet_rl/presets/backend.yaml"

PUBLISHED = "tests/test_presets.py::test_presets_of_sweet_rl_have_the_published_values"
DEFAULTS = f"{STEPS}test_the_defaults_are_the_papers"
CHANGES = f"{STEPS}test_a_changed_setting_changes_the_steps_that_depend_on_it_and_no_other"

MUTANTS = (
    Mutant(
        "sweet-preset-learning-rate-times-ten",
        PRESET,
        "learning_rate: 2.0e-7",
        "learning_rate: 2.0e-6",
        "all trainings on ColBench have ten times the paper's learning rate",
        (PUBLISHED,),
    ),
    Mutant(
        "sweet-preset-critic-beta-tenth",
        PRESET,
        "{beta: 0.1, nll: 0.01, normalise: turns}\n      train: &colbench",
        "{beta: 0.01, nll: 0.01, normalise: turns}\n      train: &colbench",
        "the critic's beta is a tenth of the paper's",
        (PUBLISHED,),
    ),
    Mutant(
        "sweet-preset-imitation-batch",
        PRESET,
        "batch_rows: 32",
        "batch_rows: 8",
        "rejection fine-tuning has the batches of the others",
        (PUBLISHED,),
    ),
    Mutant(
        "sweet-preset-policy-epochs",
        PRESET,
        "epochs: 1, max_length: 16384",
        "max_length: 16384",
        "the policy is trained for the critic's four epochs",
        (PUBLISHED,),
    ),
    Mutant(
        "sweet-preset-all-dialogues-branched",
        PRESET,
        "share: 0.1",
        "share: 1.0",
        "ten times as many turns get candidates as in the released commands",
        (PUBLISHED,),
    ),
    Mutant(
        "sweet-default-nll-times-ten",
        SETTINGS,
        '0.01, "weight of the chosen',
        '0.1, "weight of the chosen',
        "the weight of the NLL term is ten times the paper's",
        (DEFAULTS,),
    ),
    Mutant(
        "sweet-default-token-mean",
        SETTINGS,
        '        "turns",\n        "`turns`: a turn',
        '        "tokens",\n        "`turns`: a turn',
        "the critic's objective is the released code's and not the paper's",
        (DEFAULTS,),
    ),
    Mutant(
        "sweet-default-unprivileged",
        SETTINGS,
        'True,\n        "The critic reads the reference',
        'False,\n        "The critic reads the reference',
        "the method is its own ablation",
        (DEFAULTS,),
    ),
    Mutant(
        "sweet-default-least-reward",
        SETTINGS,
        '1.0,\n        "Least share of tests',
        '0.5,\n        "Least share of tests',
        "half of the tests count as a success",
        (DEFAULTS, PUBLISHED),
    ),
    Mutant(
        "sweet-default-eight-pairs",
        "selection/ranked.py",
        '4, "Pairs a turn, drawn',
        '8, "Pairs a turn, drawn',
        "each turn gives twice the pairs",
        (DEFAULTS,),
    ),
    Mutant(
        "sweet-rewards-outlive-their-critic",
        RECIPE,
        "self.reward, [branched, *critic], ranked",
        "self.reward, [branched], ranked",
        "candidates are scored before the critic is trained, or by one that is stale",
        (f"{STEPS}test_the_steps_of_a_method",),
    ),
    Mutant(
        "sweet-privileges-not-in-the-fingerprint",
        "recipes/sweet_rl/data.py",
        "*(s.kind, s.privileged, s.objective.fingerprint()),",
        "*(s.kind, s.objective.fingerprint()),",
        "the ablation goes on with the privileged critic",
        (CHANGES,),
    ),
    Mutant(
        "sweet-bar-not-in-the-fingerprint",
        RECIPE,
        's.method == "rejection_ft", s.min_reward)',
        's.method == "rejection_ft")',
        "pairs of another min_reward are gone on with",
        (CHANGES,),
    ),
    Mutant(
        "sweet-candidates-not-in-the-rewards-fingerprint",
        RECIPE,
        "ranked = (*drawn, *self.critic_training())",
        "ranked = self.critic_training()",
        "advantages of other candidates are gone on with",
        (CHANGES,),
    ),
    Mutant(
        "sweet-critic-is-a-policy",
        RECIPE,
        "role = CRITIC if self.critical else POLICY",
        "role = POLICY",
        "a run with a critic alone says that its policy is trained",
        (f"{STEPS}test_a_critic_is_no_policy",),
    ),
)
