"""Faults of merging: what is copied, what is left out, which runs are put together."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_merge.py::"
FILE = "recipes/merging.py"
COPY = "trajectories/merging.py"
SAME = f"{TESTS}test_parts_of_a_run_become_the_run_that_nobody_divided"
MISSING = f"{TESTS}test_a_part_that_is_missing_is_named_and_the_merged_run_can_do_it"
BASE = f"{TESTS}test_a_base_that_one_part_has_evaluated_is_not_evaluated_again"
TOGETHER = f"{TESTS}test_families_train_together_on_what_each_has_selected"
HELD_OUT = f"{TESTS}test_families_do_not_train_on_what_the_run_is_evaluated_on"
ONE_ID = f"{TESTS}test_one_id_of_two_tasks_is_refused"
PARTS = f"{TESTS}test_runs_that_are_no_parts_of_one_are_refused"
FAMILIES = f"{TESTS}test_families_that_do_not_fit_are_refused"

MUTANTS = (
    Mutant(
        "merge-a-part-left-out",
        FILE,
        "if plan.missing and not partial:",
        "if plan.missing and partial:",
        "a run is trained on a part of its trees, and nobody is told",
        (MISSING,),
    ),
    Mutant(
        "merge-missing-trees-count-as-grown",
        FILE,
        "if not plan.missing:",
        "if plan.divided:",
        "the merged run would never grow the trees of a part that is missing",
        (MISSING,),
    ),
    Mutant(
        "merge-one-id-of-two-tasks",
        FILE,
        "[*twice, *other_tasks(db)]",
        "[*twice]",
        "a tree is filed under another task that has the same id",
        (ONE_ID,),
    ),
    Mutant(
        "merge-without-credit",
        COPY,
        "for kind, settings, name in db.execute",
        "for kind, settings, name in () and db.execute",
        "the values of nodes are lost",
        (SAME,),
    ),
    Mutant(
        "merge-credit-of-other-settings",
        COPY,
        "kind_key(db, renamed.get(settings, settings), name)",
        "kind_key(db, settings, name)",
        "the merged run does not find the values of a family",
        (TOGETHER,),
    ),
    Mutant(
        "merge-parts-have-selected",
        FILE,
        "    if not plan.divided:\n        run.select(",
        "    if plan.parts:\n        run.select(",
        "nothing is selected from all parts together",
        (SAME,),
    ),
    Mutant(
        "merge-selections-of-the-first-alone",
        FILE,
        "            copy_selections(db,",
        "            part is plan.parts[0] and copy_selections(db,",
        "a family is merged and not trained on",
        (TOGETHER,),
    ),
    Mutant(
        "merge-other-models",
        FILE,
        "if _models(one) != _models(other):",
        "if _models(one) != _models(one):",
        "what one model said is learnt by another",
        (FAMILIES,),
    ),
    Mutant(
        "merge-other-seeds",
        FILE,
        "if one.settings.seed != other.settings.seed:",
        "if one.settings.seed < 0:",
        "runs of two seeds are mixed",
        (FAMILIES,),
    ),
    Mutant(
        "merge-other-settings",
        FILE,
        "and in_common(one, other) == one.steps():",
        "and in_common(one, one) == one.steps():",
        "parts under other settings are taken for parts of one run",
        (PARTS,),
    ),
    Mutant(
        "merge-for-another-training",
        FILE,
        "    if one != other:\n        found = differences(first.stored",
        "    if not one:\n        found = differences(first.stored",
        "pairs and whole runs are mixed in one training",
        (FAMILIES,),
    ),
    Mutant(
        "merge-unfinished",
        FILE,
        "            if not run.is_finished(step):\n",
        "            if run.begun_under(step) is None and run.is_finished(step):\n",
        "trees that are still growing are merged",
        (PARTS, FAMILIES),
    ),
    Mutant(
        "merge-held-out-tasks",
        FILE,
        "if content_of(run.store.task(id_)) in held_out:",
        "if id_ in held_out:",
        "a family trains on what the run is evaluated on",
        (HELD_OUT,),
    ),
    Mutant(
        "merge-base-evaluated-again",
        FILE,
        "return old.is_finished(step) and not run.is_finished(step)",
        "return run.is_finished(step)",
        "what a part has evaluated is evaluated again",
        (BASE,),
    ),
)
