"""Faults of agents that write programs and do mathematics: how programs are run, judged and read, and what is told."""

from tests.mutation.mutant import Mutant

RUN, PLAY, GAP = (
    "tests/test_contest.py::",
    "tests/test_workflow_code.py::",
    "tests/test_gap_code.py::",
)
PROCESS = f"{RUN}test_a_program_is_run_as_a_process_with_its_own_input_and_output"
ALONE = f"{RUN}test_every_test_is_judged_by_itself"
BAD = f"{RUN}test_a_bad_program_has_a_recorded_outcome_and_the_next_one_is_judged"
LEFT = f"{RUN}test_processes_that_a_program_leaves_are_ended_before_its_next_test"
JAIL = f"{RUN}test_what_is_expected_is_nowhere_in_the_jail"
CALLED = f"{RUN}test_functions_and_methods_are_called_with_lines_of_json"
TOTAL = f"{RUN}test_all_tests_together_have_a_time_limit"
OUTPUTS = f"{RUN}test_outputs_are_compared_by_lines_and_words"
VALUES = f"{RUN}test_values_are_compared_as_json"
FORMS = f"{PLAY}test_an_answer_that_gives_no_program_says_why"
LENIENT = f"{PLAY}test_lenient_takes_the_last_program_and_code_without_fences"
METHOD = f"{PLAY}test_a_method_is_asked_for_with_its_beginning_and_its_tests_call_it"
ALL = f"{PLAY}test_all_tests_of_code_contests_count_the_generated_ones_too"
SECRET = f"{PLAY}test_nobody_but_a_grader_reads_the_tests"
PUBLIC = f"{PLAY}test_what_is_graded_on_public_tests_alone_says_so"
FLAWED = f"{PLAY}test_a_problem_that_can_not_be_graded_is_left_out_and_never_scored"
EXAM = f"{PLAY}test_every_exam_is_played_from_a_file_and_compared_as_mathematics"
BOX = f"{PLAY}test_a_box_outside_of_the_tag_counts_for_those_that_do_not_know_the_form"
TWO = f"{PLAY}test_two_data_sets_are_refused_and_an_environment_is_named"
OWN = f"{GAP}test_own_problems_with_a_training_split_are_exported_with_their_tests"
LEARNS = f"{GAP}test_a_policy_learns_the_traces_of_a_file_and_its_programs_are_run"


def _mutant(name: str, file: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"gap-code-{name}", f"{file}.py", find, replace, breaks, (test,))


def _child(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return _mutant(name, "tools/contest_child", find, replace, breaks, test)


def _judge(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return _mutant(name, "tools/contest", find, replace, breaks, test)


def _output(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return _mutant(name, "tools/contest_output", find, replace, breaks, test)


def _code(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return _mutant(name, "environments/workflow/code", find, replace, breaks, test)


def _maths(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return _mutant(name, "environments/workflow/code_maths", find, replace, breaks, test)


MUTANTS = (
    _child("stragglers", "    _end_what_is_left()\n", "", "what a program starts goes on beside its next tests", LEFT),
    _child("threads", "            if thread is not threading.current_thread() and not thread.daemon:\n"
           "                thread.join()\n", "            pass\n", "threads are cut off at the end", PROCESS),
    _child("atexit", "        atexit._run_exitfuncs()\n", "", "functions for the end are not run", PROCESS),
    _child("exit-is-error", "return (end.code or 0) & 0xFF", "return 1", "sys.exit(0) is an error", PROCESS),
    _child("too-much", "ended if out <= most else TOO_MUCH", "ended", "what is too much is called another output", BAD),
    _child("prints-count", "stdout = out if function is None else os.open(os.devnull, os.O_WRONLY)", "stdout = out",
           "what a function prints is taken for its value", CALLED),
    _child("no-imports", "            _have_usual(vars(main))\n", "            pass\n",
           "a given beginning fails", CALLED),
    _judge("expected-inside", 'source = f"{_child()}\\nPROGRAM = {program!r}\\n"',
           'source = f"{_child()}\\nPROGRAM = {program!r}\\nTESTS = {[one.output for one in tests]!r}\\n"',
           "a program can read what is expected", JAIL),
    _judge("no-total", '"total_seconds": limits.total_seconds', '"total_seconds": 1e4 * limits.total_seconds',
           "all tests together may take as long as they like", TOTAL),
    _judge("status-ignored", "    if ended:\n", "    if ended and not printed:\n",
           "a program that fails after it printed passes", ALONE),
    _judge("functions-as-text", 'same_value if test.kind == "functional" else same_output', "same_output",
           "values are compared as text", CALLED),
    _output("whole-numbers-near", "if any(wanted.groups()):", "if wanted:", "nearly the same whole number is right",
            OUTPUTS),
    _output("any-case", "    if expected == printed:\n        return True\n    if max(",
            "    if expected.lower() == printed.lower():\n        return True\n    if max(", "yes is YES", OUTPUTS),
    _output("lines-joined", 'text.strip().split("\\n")', 'text.strip().split("\\0")', "lines do not count", OUTPUTS),
    _output("fewer-lines", "len(wanted) == len(found) and all(map(_same_line", "all(map(_same_line",
            "a beginning is enough", OUTPUTS),
    _output("values-exact", "return same(wanted, found, TOLERANCE)", "return wanted == found",
            "a float is right to the last bit only", VALUES),
    _code("any-test", "Grade(float(all(one.passed for one in found))", "Grade(float(any(one.passed for one in found))",
          "one test of many is enough", METHOD),
    _code("several-programs", "if len(blocks) == 1 or (blocks and self.settings.lenient):", "if blocks:",
          "of two programs the last one counts unasked", FORMS),
    _code("first-program", "            return blocks[-1], \"\"\n", "            return blocks[0], \"\"\n",
          "a draft counts", LENIENT),
    _code("bare-code", 'return (code_of(answer), "") if self.settings.lenient else ("", NO_PROGRAM)',
          'return code_of(answer), ""', "code without fences counts unasked", FORMS),
    _code("no-starter", 'if starter.strip() else ""', 'if not starter.strip() else ""',
          "nobody is told how a solution begins", METHOD),
    _code("tests-shown", 'public = {"question": row.question, "starter"',
          'public = {"question": row.question + str(row.tests), "starter"', "the agent reads the tests", SECRET),
    _code("public-untold", '"public_tests_only": float("tests" in task.public)', '"public_tests_only": 0.0',
          "a score on public tests looks like any other", PUBLIC),
    _code("flaw-played", "        if row.flaw:\n", "        if not row.id:\n", "what has no tests is played", FLAWED),
    _code("graphs", "    graphs = False\n", "", "</graph> in a program ends a message",
          f"{PLAY}test_a_graph_in_a_program_is_text"),
    _mutant("blank-output", "datasets/contest_rows", "if not self.output.strip():", "if self.output is None:",
            "a test without an expected output counts", FLAWED),
    _mutant("generated-tests", "datasets/contest_rows", '"public_tests", "private_tests", "generated_tests"):',
            '"public_tests", "private_tests"):', "generated tests do not count", ALL),
    _maths("box-kept", "return None if found is None else boxed_answer(found) or found", "return found",
           "votes tell a boxed answer from the same one without a box",
           f"{PLAY}test_an_answer_is_recorded_without_its_box"),
    _maths("as-text", "any(same_mathematics(gold, answer) for", "any(gold == answer for", "one half is not 0.5", EXAM),
    _maths("box-anywhere", "if found is None and self.settings.lenient:", "if found is None:",
           "a box outside of the tag counts unasked", BOX),
    _mutant("set-dropped", "runs/benchmark", "if asked is not None and asked != settled(benchmark):",
            "if asked is not None and asked == settled(benchmark):", "another set is played than was asked for", TWO),
    _mutant("train-asked", "recipes/gap/data", "trains_on_tasks=own", "trains_on_tasks=True",
            "a set for evaluation alone can't be evaluated on", f"{GAP}test_a_set_for_evaluation_alone_can_be_planned"),
    _mutant("export-calls", "recipes/gap/files/exporting", 'if any(test.kind == "functional" for test in tests):',
            "if not tests:", "tests of functions are exported as standard input", OWN),
)  # fmt: skip
