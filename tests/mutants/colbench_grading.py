"""Faults of how the coding environments grade an answer."""

from tests.mutation.mutant import Mutant

CODING = "tests/test_coding.py::"
VALUES = "tests/test_plain_values.py::"
SANDBOX = "tests/test_sandbox.py::"

ENVIRONMENT = "environments/coding.py"
COMPARE = "tools/sandbox/compare.py"

ENDS = f"{CODING}test_a_dialogue_ends_with_an_answer_or_with_the_last_turn"
FRACTION = f"{CODING}test_the_fraction_of_tests_and_why_each_failed_are_kept"
SETTINGS = f"{CODING}test_floats_may_differ_by_the_tolerance_of_the_settings"
VERDICTS = f"{CODING}test_tests_that_hold_their_verdict_are_taken_apart"
SAME = f"{VALUES}test_values_are_the_same_as_in_python"
TOLERANCE = f"{VALUES}test_floats_may_differ_by_the_tolerance"
LEGACY = f"{SANDBOX}test_legacy_mode_compares_as_the_original_did"

MUTANTS = (
    Mutant(
        "colbench-any-test-passes",
        "tools/sandbox/results.py",
        "return all(test.passed for test in self.tests)",
        "return any(test.passed for test in self.tests)",
        "one right call is a success",
        (FRACTION,),
    ),
    Mutant(
        "colbench-failed-calls-pass",
        "tools/sandbox/results.py",
        "    if result.wire is None:\n        passed = False",
        '    if result.wire is None:\n        passed = mode == "module"',
        "a call that raises passes",
        (FRACTION,),
    ),
    Mutant(
        "colbench-fraction-of-ten",
        "tools/sandbox/results.py",
        "for test in self.tests) / len(self.tests)",
        "for test in self.tests) / 10",
        "tasks with other than ten tests have wrong shares",
        (f"{SANDBOX}test_an_answer_is_graded_call_by_call",),
    ),
    Mutant(
        "colbench-legacy-none-passes",
        "tools/sandbox/results.py",
        'passed = expected[0] != "none" and equal(expected, result.wire)',
        "passed = equal(expected, result.wire)",
        "legacy scores are higher than the original's",
        (LEGACY,),
    ),
    Mutant(
        "colbench-legacy-words-everywhere",
        ENVIRONMENT,
        'self.mode == "legacy" and any(word in',
        "any(word in",
        "a comment with the wrong word fails an answer in every mode",
        (f"{CODING}test_legacy_refuses_words_wherever_they_stand",),
    ),
    Mutant(
        "colbench-legacy-runs-as-a-module",
        ENVIRONMENT,
        "mode=self.mode,\n            tolerance",
        'mode="module",\n            tolerance',
        "legacy grading passes what the original failed",
        (f"{CODING}test_what_passes_as_a_module_fails_as_in_the_legacy_grader",),
    ),
    Mutant(
        "colbench-tolerance-not-passed-on",
        ENVIRONMENT,
        "            tolerance=self.tolerance,\n",
        "",
        "the setting changes nothing",
        (SETTINGS,),
    ),
    Mutant(
        "colbench-strictness-not-passed-on",
        ENVIRONMENT,
        "            strict=self.strict,\n",
        "",
        "the setting changes nothing",
        (f"{CODING}test_values_are_compared_by_type_too_if_so_set",),
    ),
    Mutant(
        "colbench-expected-of-the-first-call",
        ENVIRONMENT,
        "reference, hidden_calls(task), mode=self.mode",
        'reference + "\\n", hidden_calls(task)[:1] * len(hidden_calls(task)), mode=self.mode',
        "every call is expected to give what the first does",
        (ENDS,),
    ),
    Mutant(
        "colbench-turn-limit-is-well-formed",
        ENVIRONMENT,
        "state.end == ANSWERED and self.well_formed",
        "self.well_formed",
        "a model that never writes the marker seems to follow the form",
        (ENDS,),
    ),
    Mutant(
        "colbench-replies-count-as-turns",
        ENVIRONMENT,
        "return sum(turn.speaker.name == AGENT for turn in state.turns)",
        "return len(state.turns)",
        "dialogues end at half of their turns",
        (ENDS,),
    ),
    Mutant(
        "colbench-one-of-two-comparisons-asked",
        "environments/colbench.py",
        "asked[0] if len(asked) == 1 else ast.Tuple(asked, ast.Load())",
        "asked[0]",
        "a test that compares two results tests one of them",
        (VERDICTS,),
    ),
    Mutant(
        "colbench-either-of-two-comparisons-is-both",
        "environments/colbench.py",
        "if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):",
        "if isinstance(node, ast.BoolOp):",
        "of a test that takes either of two results both are wanted",
        (VERDICTS,),
    ),
    Mutant(
        "colbench-builtin-side-asked",
        "environments/colbench.py",
        "not isinstance(one, ast.Name) or not hasattr(builtins, one.id)",
        "isinstance(one, ast.Name)",
        "the expected side of a comparison is what an answer is asked",
        (VERDICTS,),
    ),
    Mutant(
        "colbench-any-element-equal",
        COMPARE,
        "return len(content) == len(other) and all(\n            same(one, two",
        "return len(content) == len(other) and any(\n            same(one, two",
        "a list with one right element is right",
        (SAME,),
    ),
    Mutant(
        "colbench-values-of-keys-ignored",
        COMPARE,
        "ours.keys() == theirs.keys() and all(",
        "ours.keys() == theirs.keys() or all(",
        "a dictionary with the right keys is right",
        (TOLERANCE, SAME),
    ),
    Mutant(
        "colbench-strict-compares-by-kind",
        COMPARE,
        "and (strict or _kind(expected) != _kind(given)):",
        "and _kind(expected) != _kind(given):",
        "strict grading takes 1.0 for 1",
        (SAME,),
    ),
    Mutant(
        "colbench-tolerance-of-whole-numbers",
        COMPARE,
        'or "float" not in (expected[0], given[0])',
        'or "float" in (expected[0], given[0])',
        "the tolerance is for whole numbers, and not for floats",
        (TOLERANCE,),
    ),
    Mutant(
        "colbench-nan-never-the-same",
        COMPARE,
        'return "nan" if value.is_nan()',
        'return "snan" if value.is_nan()',
        "a decimal that is not a number is not the same as a float that is none",
        (f"{VALUES}test_values_that_python_never_calls_equal_are_compared_by_what_they_hold",),
    ),
    Mutant(
        "colbench-legacy-takes-nan-for-itself",
        COMPARE,
        "return not _unequal(expected) and not _unequal(given) and same(expected, given)",
        "return same(expected, given)",
        "legacy scores are higher than the original's",
        (f"{VALUES}test_values_that_python_never_calls_equal_are_compared_by_what_they_hold",),
    ),
    Mutant(
        "colbench-zones-ignored",
        COMPARE,
        "// _MICROSECOND - int(offset, 16)",
        "// _MICROSECOND",
        "noon is noon in every time zone",
        (SAME,),
    ),
)
