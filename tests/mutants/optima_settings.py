"""Faults of what Optima's settings decide: tasks, kinds of iterations, forks, controls."""

from tests.mutation.mutant import Mutant

DRAWS = "tests/test_draws.py::"
NEW_TASKS = f"{DRAWS}test_every_iteration_of_a_recipe_draws_new_tasks"
EARLIER = f"{DRAWS}test_counts_of_earlier_draws_are_a_part_of_what_a_rollout_depends_on"
KINDS = "tests/test_optima_dpo.py::test_each_method_has_its_order_of_iterations"
FINGERPRINTS = (
    "tests/test_optima_dpo.py::test_settings_of_a_tree_are_its_rollouts_and_those_of_pairs_are_not"
)
DEPENDS = "tests/test_optima_settings.py::test_a_setting_is_a_part_of_the_steps_that_it_changes"
SCRIPTED = (
    "tests/test_optima_settings.py::"
    "test_the_scripted_control_trains_on_fresh_dialogues_of_both_agents_in_each_iteration"
)

MUTANTS = (
    Mutant(
        "optima-tasks-of-the-first-iteration-again",
        "recipes/optima/data.py",
        "before, count = counts[:iteration], counts[iteration]",
        "before, count = (), counts[iteration]",
        "every iteration has the same tasks",
        (NEW_TASKS,),
    ),
    Mutant(
        "optima-tasks-counted-as-if-alike",
        "recipes/optima/data.py",
        "before, count = counts[:iteration], counts[iteration]",
        "before, count = [counts[iteration]] * iteration, counts[iteration]",
        "iterations of SFT and DPO repeat each other's tasks where their counts differ",
        (NEW_TASKS,),
    ),
    Mutant(
        "optima-tasks-of-dpo-as-many-as-of-sft",
        "recipes/optima/settings.py",
        '"dpo": self.dpo.tasks}',
        '"dpo": self.rollout.tasks}',
        "dpo.tasks has no effect",
        (NEW_TASKS,),
    ),
    Mutant(
        "optima-tasks-before-not-in-the-fingerprint",
        "recipes/optima/data.py",
        "return self.settings.draws()[: iteration + 1]",
        "return self.settings.draws()[iteration : iteration + 1]",
        "a fork keeps rollouts whose tasks would now be others",
        (EARLIER,),
    ),
    Mutant(
        "optima-idpo-without-sft",
        "recipes/optima/settings.py",
        'return ["dpo" if i else "sft" for i in range(self.iterations)]',
        'return ["dpo" for i in range(self.iterations)]',
        "iDPO has no iteration of SFT to begin with",
        (KINDS,),
    ),
    Mutant(
        "optima-isft-dpo-begins-with-dpo",
        "recipes/optima/settings.py",
        '"dpo" if i % 2 else "sft"',
        '"sft" if i % 2 else "dpo"',
        "iSFT-DPO begins with DPO of the untrained base",
        (KINDS,),
    ),
    Mutant(
        "optima-trees-kept-under-another-reward",
        "recipes/optima/recipe.py",
        "*(s.search.fingerprint(), s.reward.identity(), own.rollout.max_tokens),",
        "*(s.search.fingerprint(), own.rollout.max_tokens),",
        "a fork with another reward keeps trees that were searched by the old one",
        (FINGERPRINTS,),
    ),
    Mutant(
        "optima-fork-keeps-another-reward",
        "recipes/optima/recipe.py",
        "scored, learnt = (s.reward.identity(),), (",
        "scored, learnt = (), (",
        "a fork with another reward keeps the old rewards",
        (DEPENDS,),
    ),
    Mutant(
        "optima-fork-keeps-another-start",
        "recipes/optima/recipe.py",
        "(s.train.identity(), s.from_initial)",
        "(s.train.identity(),)",
        "a fork with another from_initial keeps the old trainings",
        (DEPENDS,),
    ),
    Mutant(
        "optima-fork-keeps-another-objective",
        "recipes/optima/recipe.py",
        'learnt = ("dpo", s.objective.fingerprint(), s.train.identity())',
        'learnt = ("dpo", s.train.identity())',
        "a fork with another beta keeps the old trainings",
        (DEPENDS,),
    ),
    Mutant(
        "optima-control-same-dialogues-again",
        "recipes/optima/controls.py",
        "seed = CORPUS_SEED + self.settings.seed * 1000 + iteration",
        "seed = CORPUS_SEED + self.settings.seed * 1000",
        "the control of more pre-training sees the same dialogues in every iteration",
        (SCRIPTED,),
    ),
    Mutant(
        "optima-control-counts-of-the-first",
        "recipes/optima/controls.py",
        "corpus(seed, self.counts[iteration])",
        "corpus(seed, self.counts[0])",
        "the control trains on other amounts than what it is compared with",
        (SCRIPTED,),
    ),
)
