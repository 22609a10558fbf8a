"""Faults of plan rows: how they are joined, converted, written and prepared."""

from tests.mutation.mutant import Mutant

FILES = "tests/test_lumos_files.py::"
CONVERTERS = "tests/test_plan_converters.py::"
ROWS = "tests/test_plan_rows.py::"

LUMOS = "datasets/lumos_files.py"
DIALOGUES = "datasets/lumos_dialogues.py"
TEXT = "datasets/lumos_text.py"
LINES = "datasets/lumos_lines.py"
GSM8K = "datasets/gsm8k_plans.py"
STRATEGY = "datasets/strategyqa_plans.py"

NO_ROW = f"{FILES}test_lines_that_make_no_row_say_why"
DIALOGUE = f"{FILES}test_a_dialogue_step_by_step_gives_subgoals_actions_and_results"
WRITTEN = f"{FILES}test_what_was_written_is_read_as_the_same_rows"

MUTANTS = (
    Mutant(
        "lumos-joins-other-tasks",
        LUMOS,
        "if ground is not None and one_line(ground.task) == one_line(plan.task):",
        "if ground is not None:",
        "lines that were numbered anew get the actions of other tasks",
        (f"{FILES}test_lines_that_were_numbered_anew_join_by_their_task",),
    ),
    Mutant(
        "lumos-joins-any-of-the-same-task",
        LUMOS,
        "if counts[one_line(one.task)] == 1}",
        "if counts[one_line(one.task)]}",
        "one of several lines of a task is taken",
        (f"{FILES}test_tasks_that_are_there_twice_join_by_id_only",),
    ),
    Mutant(
        "lumos-other-subgoals",
        LUMOS,
        "if not one_line(theirs).startswith(expected):",
        "if not one_line(theirs):",
        "actions stand under subgoals that they were not made for",
        (NO_ROW,),
    ),
    Mutant(
        "lumos-missing-index",
        DIALOGUES,
        "if numbers != list(range(start, start + len(last.says))):",
        "if numbers[-1] - start + 1 != len(last.says):",
        "a missing line of a step is not noticed",
        (NO_ROW,),
    ),
    Mutant(
        "lumos-half-a-join-is-enough",
        LUMOS,
        "JOINED = 0.5",
        "JOINED = 0.0",
        "files of different sets are joined to a handful of rows",
        (f"{FILES}test_files_that_do_not_join_are_refused_with_ids_and_numbers",),
    ),
    Mutant(
        "lumos-guesses-are-known",
        LUMOS,
        "[1] * (count - 1) + [len(flat) - count + 1]), False",
        "[1] * (count - 1) + [len(flat) - count + 1]), True",
        "guessed steps are trained on as if they were known",
        (f"{FILES}test_actions_given_at_once_are_dealt_to_the_subgoals",),
    ),
    Mutant(
        "lumos-output-begins-anew",
        DIALOGUES,
        "group = tuple(actions(text, last))",
        "group = tuple(actions(text))",
        "the last result has the name of the first one",
        (DIALOGUE,),
    ),
    Mutant(
        "lumos-actions-cut-at-semicolons",
        TEXT,
        r"""_ACTION = re.compile(r";\s*(?=(?:R\d+(?:\s*,\s*R\d+)*|Output)\s*=)")""",
        r"""_ACTION = re.compile(r";\s*")""",
        "arguments with a semicolon become actions",
        (DIALOGUE,),
    ),
    Mutant(
        "lumos-any-number-begins-a-subgoal",
        TEXT,
        "        if number == first + len(starts):\n",
        "        if number:\n",
        "a subgoal that speaks of another one is cut in two",
        (f"{FILES}test_texts_are_taken_apart_whatever_the_instruction_says",),
    ),
    Mutant(
        "lumos-unrolled-without-history",
        LINES,
        '"messages": line.messages[:end]}',
        '"messages": line.messages[end - 2 : end]}',
        "a step is learnt without what came before it",
        (f"{FILES}test_unrolling_gives_a_line_for_each_turn_with_the_dialogue_so_far",),
    ),
    Mutant(
        "lumos-writes-what-reads-otherwise",
        LINES,
        "    for row in rows:\n        _check_readable(row)\n",
        "",
        "rows become other rows in a file",
        (f"{FILES}test_rows_that_would_be_read_as_others_are_not_written",),
    ),
    Mutant(
        "lumos-counts-not-written",
        LINES,
        "counts = tuple(len(step.actions) for step in row.steps) if row.aligned else ()",
        "counts = ()",
        "which actions belong together is lost",
        (WRITTEN,),
    ),
    Mutant(
        "gsm8k-plans-any-answer",
        GSM8K,
        "if list(results.values.values())[-1] != number(row.answer):",
        "if not results.values:",
        "plans that give a wrong answer are trained on",
        (f"{CONVERTERS}test_a_solution_without_a_plan_is_left_out_with_the_reason",),
    ),
    Mutant(
        "gsm8k-plans-oldest-result",
        GSM8K,
        "for name in reversed(self.stated):",
        "for name in self.stated:",
        "an operand refers to a result that only looks like it",
        (f"{CONVERTERS}test_an_operand_refers_to_the_newest_result_that_it_equals",),
    ),
    Mutant(
        "gsm8k-plans-take-every-number-for-a-result",
        GSM8K,
        "if found in self.question and name in self.used:",
        "if found in self.question and not name:",
        "days of a week become the pens of a box",
        (f"{CONVERTERS}test_a_number_of_the_question_is_not_taken_for_a_result_that_was_used",),
    ),
    Mutant(
        "gsm8k-plans-tell-the-result",
        GSM8K,
        'lambda one: "?" if number(one[0]) in hidden else one[0]',
        "lambda one: one[0]",
        "subgoals give the answer away",
        (f"{CONVERTERS}test_a_subgoal_tells_neither_the_formula_nor_the_result",),
    ),
    Mutant(
        "strategyqa-plans-look-everything-up",
        STRATEGY,
        "    if OPERATION in _leaves(told):\n        return None\n",
        "",
        "comparisons are looked up in an encyclopedia",
        (f"{CONVERTERS}test_what_people_found_tells_what_to_look_up",),
    ),
    Mutant(
        "plans-checked-without-order",
        "datasets/plan_checks.py",
        "if any(not 1 <= int(one) <= last for one in _RESULT.findall(arguments)):",
        "if any(not 1 <= int(one) <= last + 1 for one in _RESULT.findall(arguments)):",
        "an action that uses its own result is called fine",
        (f"{ROWS}test_findings_tell_what_is_wrong_with_actions",),
    ),
    Mutant(
        "prepared-without-a-share",
        "datasets/splits.py",
        "share = data_set.share if",
        "share = 1 - data_set.share if",
        "nine tenths are held out",
        (f"{FILES}test_a_set_is_prepared_from_its_two_files_and_a_tenth_is_held_out",),
    ),
)  # fmt: skip
