"""Faults of where the tasks of the coding environments come from."""

from tests.mutation.mutant import Mutant

CODING = "tests/test_coding.py::"
DRAWN = "tests/test_colbench_drawn.py::"
ROWS = "tests/test_colbench_rows.py::"
GENERATED = "tests/test_colbench_generator.py::"
PERSONA = "tests/test_persona.py::"

CHECKS = "generators/colbench/checks.py"

FAULTS = f"{ROWS}test_each_fault_is_found_and_says_whether_the_row_can_be_a_task"
NO_FAULT = f"{DRAWN}test_drawn_rows_are_without_fault_and_differ_by_seed"
REPLIES = f"{PERSONA}test_the_person_tells_one_thing_at_a_time"

MUTANTS = (
    Mutant(
        "colbench-reference-run-once",
        CHECKS,
        "RUNS = 2\n",
        "RUNS = 1\n",
        "random references are used as tasks",
        (FAULTS,),
    ),
    Mutant(
        "colbench-any-two-equal-are-constant",
        CHECKS,
        "all(same(values[0], value) for value in values)",
        "any(same(values[0], value) for value in values)",
        "good rows are called constant",
        (FAULTS,),
    ),
    Mutant(
        "colbench-nan-is-plain",
        CHECKS,
        "if has_nan(value):",
        "if value is None:",
        "rows whose reference gives NaN are not reported",
        (FAULTS,),
    ),
    Mutant(
        "colbench-random-is-usable",
        CHECKS,
        'frozenset({"empty", "fails", "random", "not plain"})',
        'frozenset({"empty", "fails", "not plain"})',
        "random references are reported, and used as tasks",
        (FAULTS,),
    ),
    Mutant(
        "colbench-drawn-without-the-seed",
        "generators/colbench/drawn.py",
        'f"colbench/{kind.name}/{seed}"',
        'f"colbench/{kind.name}"',
        "every seed draws the same rows",
        (f"{NO_FAULT}[easy]",),
    ),
    Mutant(
        "colbench-drawn-with-faults",
        "generators/colbench/drawn.py",
        "if not found.findings:",
        "if found.usable:",
        "rows that a constant passes are drawn",
        (f"{DRAWN}test_a_row_that_a_constant_passes_is_left_out",),
    ),
    Mutant(
        "colbench-splits-share-kinds",
        "generators/colbench/drawn.py",
        "if kind.split == split and kind.level == level]",
        "if kind.level == level]",
        "what is held out is trained on",
        (f"{DRAWN}test_kinds_of_function_are_not_in_both_splits",),
    ),
    Mutant(
        "colbench-drafts-may-give-the-answer-away",
        "generators/colbench/drafts.py",
        "if match.size >= QUOTED:",
        "if match.size >= len(source) + 1:",
        "descriptions that hold the reference are kept",
        (f"{GENERATED}test_replies_that_hold_no_task_are_refused",),
    ),
    Mutant(
        "colbench-drafts-far-requests-are-near",
        "generators/colbench/drafts.py",
        "NEAR = 85.0",
        "NEAR = 8.5",
        "every second task is refused as a copy",
        (f"{GENERATED}test_rows_that_are_nearly_there_are_known",),
    ),
    Mutant(
        "colbench-drafts-copied-code-is-new",
        "generators/colbench/drafts.py",
        "if code is not None:",
        "if code is not None and asked is not None:",
        "the same function is asked for in other words",
        (f"{GENERATED}test_rows_that_are_nearly_there_are_known",),
    ),
    Mutant(
        "colbench-writer-asks-the-same",
        "generators/colbench/prompts.py",
        'f"colbench/{seed}/{number}"',
        'f"colbench/{seed}"',
        "a writer of tasks is given one subject for all",
        (f"{GENERATED}test_every_try_asks_for_something_else_and_excerpts_are_shown",),
    ),
    Mutant(
        "persona-any-split",
        "environments/persona/tasks.py",
        "    if split_of(choices) != split:\n        return None\n",
        "",
        "functions that are held out are trained on",
        (f"{PERSONA}test_splits_are_disjoint_by_construction",),
    ),
    Mutant(
        "persona-without-the-seed",
        "environments/persona/tasks.py",
        'f"persona/{split}/{seed}/{sizes}"',
        'f"persona/{split}/{sizes}"',
        "every seed draws the same tasks",
        (f"{PERSONA}test_tasks_depend_on_the_seed_only_and_a_larger_count_extends_a_smaller_one",),
    ),
    Mutant(
        "persona-calls-that-tell-little",
        "environments/persona/tasks.py",
        "if all(_differs(other, drawn, right) for other in wrong):",
        "if any(_differs(other, drawn, right) for other in wrong):",
        "wrong functions pass all tests",
        (f"{PERSONA}test_the_calls_tell_every_wrong_choice_and_are_not_constant",),
    ),
    Mutant(
        "persona-draws-again",
        "environments/persona/environment.py",
        'start = sum(drawn) if split == "train" else 0',
        "start = 0",
        "every round trains on the same tasks",
        (
            f"{CODING}test_training_tasks_go_on_where_the_last_draw_ended_and_held_out_ones_are_the_same",
        ),
    ),
    Mutant(
        "persona-hears-the-opening",
        "environments/persona/environment.py",
        "transcript[-1][1])",
        "transcript[0][1])",
        "the person answers its own first message",
        (f"{CODING}test_the_scripted_person_answers_the_last_question_from_the_tasks_own_choices",),
    ),
    Mutant(
        "persona-tells-two-things",
        "environments/persona/user_simulator.py",
        "if len(named) > 1:",
        "if len(named) > 2:",
        "asking for everything at once pays",
        (REPLIES,),
    ),
    Mutant(
        "persona-tells-the-first-choice",
        "environments/persona/user_simulator.py",
        "if choice.aspect == named[0]), NO_WISH)",
        "if choice.aspect <= named[0]), NO_WISH)",
        "the person answers another question",
        (REPLIES,),
    ),
    Mutant(
        "persona-script-knows-what-it-was-not-told",
        "environments/persona/scripts.py",
        "choice if choice in known else rng.choice(CHOICES[choice.aspect])",
        "choice",
        "the pre-training corpus guesses right, so asking has no value",
        (f"{PERSONA}test_the_script_uses_nothing_that_it_was_not_told",),
    ),
)
