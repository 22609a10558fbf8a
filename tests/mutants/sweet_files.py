"""Faults of the files that SWEET-RL imports and exports."""

from tests.mutation.mutant import Mutant

FILES = "tests/test_sweet_files.py::"
IMPORT = "tests/test_sweet_import.py::"
PREFERENCES = "tests/test_sweet_preferences.py::"

BECOME = f"{IMPORT}test_trajectories_become_the_finished_dialogues_of_round_0"

MUTANTS = (
    Mutant(
        "sweet-files-repeats-of-other-tasks",
        "recipes/sweet_rl/files/records.py",
        "if len({row.task.problem_description for row in block}) > 1:",
        "if len({row.task.problem_description for row in block}) > repeats:",
        "dialogues of different tasks are taken for repeats of one",
        (f"{FILES}test_repeats_of_a_task_are_grouped",),
    ),
    Mutant(
        "sweet-files-thoughts-lost",
        "recipes/sweet_rl/files/importing.py",
        "line.content if line.output is None else line.output",
        "line.content",
        "what the agent thought is not trained",
        (BECOME,),
    ),
    Mutant(
        "sweet-files-part-of-the-tests-is-success",
        "recipes/sweet_rl/files/importing.py",
        "Grade(float(row.reward >= 1)",
        "Grade(float(row.reward > 0)",
        "imported failures count as successes",
        (BECOME,),
    ),
    Mutant(
        "sweet-files-held-out-by-id-only",
        "recipes/sweet_rl/files/importing.py",
        "if task.id in held_out or content_of(task) in held_out:",
        "if task.id in held_out:",
        "held-out tasks under another id are trained on",
        (f"{IMPORT}test_tasks_that_are_held_out_are_left_out_however_few_are_evaluated",),
    ),
    Mutant(
        "sweet-files-reference-in-exported-policy-prompts",
        "recipes/sweet_rl/files/exporting.py",
        "self._prompt(tree, leaf, self.recipe.context(iteration))",
        "self._prompt(tree, leaf, PRIVILEGED)",
        "others train their policy on the references",
        (f"{IMPORT}test_whole_dialogues_are_what_multi_turn_dpo_compares",),
    ),
    Mutant(
        "sweet-files-exported-sides-swapped",
        "recipes/sweet_rl/files/exporting.py",
        "yield PreferenceRow(chosen=chosen, rejected=other)",
        "yield PreferenceRow(chosen=other, rejected=chosen)",
        "others learn to fail from our file",
        (f"{IMPORT}test_whole_dialogues_are_what_multi_turn_dpo_compares",),
    ),
    Mutant(
        "sweet-files-imported-sides-swapped",
        "recipes/sweet_rl/files/preferences.py",
        "for text in (row.chosen, row.rejected):",
        "for text in (row.rejected, row.chosen):",
        "the policy learns what a file rejects",
        (f"{PREFERENCES}test_the_policy_trains_on_imported_pairs",),
    ),
    Mutant(
        "sweet-files-references-in-imported-prompts",
        "recipes/sweet_rl/files/preferences.py",
        "if SHOWN_REFERENCE in chat.system:",
        "if SHOWN_REFERENCE == chat.system:",
        "the critic's rows train the policy",
        (f"{PREFERENCES}test_a_broken_line_is_named_and_nothing_is_made",),
    ),
)
