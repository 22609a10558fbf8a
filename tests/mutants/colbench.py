"""Faults of the coding worlds: what is said and shown, how answers are read and graded, where tasks come from."""

from tests.mutation.mutant import Mutant

CODING = "tests/test_coding.py::"
TEXT = "tests/test_code_text.py::"
DRAWN = "tests/test_colbench_drawn.py::"
ROWS = "tests/test_colbench_rows.py::"
GENERATED = "tests/test_colbench_generator.py::"
PERSONA = "tests/test_persona_world.py::"
VALUES = "tests/test_plain_values.py::"
SANDBOX = "tests/test_sandbox.py::"

WORLD = "environments/coding.py"
MARKS = "environments/code_text.py"
PERSON = "environments/person.py"
CHECKS = "environments/colbench/checks.py"
COMPARE = "tools/sandbox/compare.py"

ENDS = f"{CODING}test_a_dialogue_ends_with_an_answer_or_with_the_last_turn"
FRACTION = f"{CODING}test_the_fraction_of_tests_and_why_each_failed_are_kept"
SECRETS = f"{CODING}test_secrets_are_for_those_who_may_read_them"
LEAKS = f"{CODING}test_what_a_reply_quotes_of_the_reference_is_counted"
SETTINGS = f"{CODING}test_floats_may_differ_by_the_tolerance_of_the_settings"
VERDICTS = f"{CODING}test_tests_that_hold_their_verdict_are_taken_apart"
CUT = f"{CODING}test_replies_are_cut_at_a_sentence"
MARKER = f"{TEXT}test_marker_and_thoughts"
CODE = f"{TEXT}test_code_of_an_answer"
FAULTS = f"{ROWS}test_each_fault_is_found_and_says_whether_the_row_can_be_a_task"
NO_FAULT = f"{DRAWN}test_drawn_rows_are_without_fault_and_differ_by_seed"
REPLIES = f"{PERSONA}test_the_person_tells_one_thing_at_a_time"
SAME = f"{VALUES}test_values_are_the_same_as_in_python"
TOLERANCE = f"{VALUES}test_floats_may_differ_by_the_tolerance"
LEGACY = f"{SANDBOX}test_legacy_mode_compares_as_the_original_did"
PROMPTED = "tests/test_sweet_steps.py::test_only_a_critic_may_read_the_reference_in_its_prompt"

SAID = (
    Mutant(
        "colbench-one-turn-more",
        WORLD,
        "_own(state) >= self.max_turns",
        "_own(state) > self.max_turns",
        "the agent has a turn more than it is told",
        (ENDS,),
    ),
    Mutant(
        "colbench-last-turn-is-no-answer",
        WORLD,
        "answer, end = self.visible(said.text).strip(), TURNS",
        "answer, end = None, TURNS",
        "a last turn without the marker always fails",
        (ENDS,),
    ),
    Mutant(
        "colbench-transcript-with-thoughts",
        WORLD,
        "turn.text if turn.speaker.name == PERSON else self.visible(turn.text),",
        "turn.text,",
        "the person reads what the agent thinks",
        (f"{CODING}test_thoughts_stay_out_of_the_history_and_of_the_persons_sight",),
    ),
    Mutant(
        "colbench-one-seed-for-all-replies",
        WORLD,
        'digest("person", said.id)',
        'digest("person")',
        "a person's random numbers are the same in every turn",
        (f"{CODING}test_what_a_person_draws_depends_on_what_was_said",),
    ),
    Mutant(
        "colbench-agent-reads-the-reference",
        WORLD,
        "readers=frozenset({PERSON, CRITIC, GRADER})",
        "readers=frozenset({AGENT, PERSON, CRITIC, GRADER})",
        "nothing keeps the reference out of the agent's prompts",
        (SECRETS,),
    ),
    Mutant(
        "colbench-critic-reads-the-tests",
        WORLD,
        "name=TESTS, readers=frozenset({GRADER})",
        "name=TESTS, readers=frozenset({GRADER, CRITIC})",
        "the critic knows the hidden calls",
        (SECRETS,),
    ),
    Mutant(
        "colbench-reference-shown-to-anyone",
        WORLD,
        "task.secrets[REFERENCE].part(CRITIC))",
        'Part(task.secrets[REFERENCE].reveal(CRITIC), source="task"))',
        "the critic's context renders for the policy too",
        (PROMPTED,),
    ),
    Mutant(
        "colbench-marker-at-the-second",
        MARKS,
        "return seen[markers[0].end : end].strip()",
        "return seen[markers[-1].end :].strip()",
        "what follows a repeated marker is taken for the answer",
        (MARKER,),
    ),
    Mutant(
        "colbench-marker-among-thoughts-lost",
        MARKS,
        'return f"{MARKER} {seen}" if lost and not kept else seen',
        "return seen",
        "an answer whose marker stands before OUTPUT: is no answer",
        (MARKER,),
    ),
    Mutant(
        "colbench-marker-twice",
        MARKS,
        "if lost and not kept else seen",
        "if lost or kept else seen",
        "a marker is added to what has one",
        (MARKER,),
    ),
    Mutant(
        "colbench-first-fence-of-any-language",
        MARKS,
        "next((one for one in fences if one.language in _PYTHON), fences[0])",
        "fences[0]",
        "an example of input is taken for the code",
        (CODE,),
    ),
    Mutant(
        "colbench-open-fence-is-no-code",
        MARKS,
        "ends[0] if ends else len(answer)]",
        "ends[0] if ends else fence.end]",
        "code whose fence is not closed is lost",
        (CODE,),
    ),
    Mutant(
        "colbench-leaks-of-the-agent",
        WORLD,
        "for turn in state.turns[1:] if turn.speaker.name == PERSON]",
        "for turn in state.turns[1:]]",
        "right answers count as leaks",
        (ENDS, LEAKS),
    ),
    Mutant(
        "colbench-leaks-not-counted",
        PERSON,
        "LEAKED = 30\n",
        "LEAKED = 300\n",
        "a person who reads the code out is not noticed",
        (LEAKS,),
    ),
    Mutant(
        "colbench-roles-swapped",
        PERSON,
        "'You' if who == PERSON else 'Assistant'",
        "'Assistant' if who == PERSON else 'You'",
        "a model that plays the person takes itself for the assistant",
        (SECRETS,),
    ),
    Mutant(
        "colbench-unfinished-sentence-stays",
        PERSON,
        "if len(text) <= longest and not unfinished:",
        "if len(text) <= longest:",
        "the agent reads half a sentence",
        (CUT,),
    ),
    Mutant(
        "colbench-reply-cut-at-the-first-sentence",
        PERSON,
        "return text[: ends[-1]]",
        "return text[: ends[0]]",
        "whole sentences that fit are cut off",
        (CUT,),
    ),
)

GRADED = (
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
        WORLD,
        'self.mode == "legacy" and any(word in',
        "any(word in",
        "a comment with the wrong word fails an answer in every mode",
        (f"{CODING}test_legacy_refuses_words_wherever_they_stand",),
    ),
    Mutant(
        "colbench-legacy-runs-as-a-module",
        WORLD,
        "mode=self.mode,\n            tolerance",
        'mode="module",\n            tolerance',
        "legacy grading passes what the original failed",
        (f"{CODING}test_what_passes_as_a_module_fails_as_in_the_legacy_grader",),
    ),
    Mutant(
        "colbench-tolerance-not-passed-on",
        WORLD,
        "            tolerance=self.tolerance,\n",
        "",
        "the setting changes nothing",
        (SETTINGS,),
    ),
    Mutant(
        "colbench-strictness-not-passed-on",
        WORLD,
        "            strict=self.strict,\n",
        "",
        "the setting changes nothing",
        (f"{CODING}test_values_are_compared_by_type_too_if_so_set",),
    ),
    Mutant(
        "colbench-expected-of-the-first-call",
        WORLD,
        "reference, hidden_calls(task), mode=self.mode",
        'reference + "\\n", hidden_calls(task)[:1] * len(hidden_calls(task)), mode=self.mode',
        "every call is expected to give what the first does",
        (ENDS,),
    ),
    Mutant(
        "colbench-turn-limit-is-well-formed",
        WORLD,
        "state.end == ANSWERED and self.well_formed",
        "self.well_formed",
        "a model that never writes the marker seems to follow the form",
        (ENDS,),
    ),
    Mutant(
        "colbench-replies-count-as-turns",
        WORLD,
        "return sum(turn.speaker.name == AGENT for turn in state.turns)",
        "return len(state.turns)",
        "dialogues end at half of their turns",
        (ENDS,),
    ),
    Mutant(
        "colbench-one-of-two-comparisons-asked",
        "environments/colbench/environment.py",
        "asked[0] if len(asked) == 1 else ast.Tuple(asked, ast.Load())",
        "asked[0]",
        "a test that compares two results tests one of them",
        (VERDICTS,),
    ),
    Mutant(
        "colbench-either-of-two-comparisons-is-both",
        "environments/colbench/environment.py",
        "if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):",
        "if isinstance(node, ast.BoolOp):",
        "of a test that takes either of two results both are wanted",
        (VERDICTS,),
    ),
    Mutant(
        "colbench-builtin-side-asked",
        "environments/colbench/environment.py",
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
        "a decimal that is no number is not the same as a float that is none",
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

TASKS = (
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
        "environments/colbench/drawn.py",
        'f"colbench/{kind.name}/{seed}"',
        'f"colbench/{kind.name}"',
        "every seed draws the same rows",
        (f"{NO_FAULT}[easy]",),
    ),
    Mutant(
        "colbench-drawn-with-faults",
        "environments/colbench/drawn.py",
        "if not found.findings:",
        "if found.usable:",
        "rows that a constant passes are drawn",
        (f"{DRAWN}test_a_row_that_a_constant_passes_is_left_out",),
    ),
    Mutant(
        "colbench-splits-share-kinds",
        "environments/colbench/drawn.py",
        "if kind.split == split and kind.level == level]",
        "if kind.level == level]",
        "what is held out is trained on",
        (f"{DRAWN}test_kinds_of_function_are_not_in_both_splits",),
    ),
    Mutant(
        "colbench-drafts-may-give-the-answer-away",
        "environments/colbench/drafts.py",
        "if match.size >= QUOTED:",
        "if match.size >= len(source) + 1:",
        "descriptions that hold the reference are kept",
        (f"{GENERATED}test_replies_that_hold_no_task_are_refused",),
    ),
    Mutant(
        "colbench-drafts-far-requests-are-near",
        "environments/colbench/drafts.py",
        "NEAR = 85.0",
        "NEAR = 8.5",
        "every second task is refused as a copy",
        (f"{GENERATED}test_rows_that_are_nearly_there_are_known",),
    ),
    Mutant(
        "colbench-drafts-copied-code-is-new",
        "environments/colbench/drafts.py",
        "if code is not None:",
        "if code is not None and asked is not None:",
        "the same function is asked for in other words",
        (f"{GENERATED}test_rows_that_are_nearly_there_are_known",),
    ),
    Mutant(
        "colbench-writer-asks-the-same",
        "environments/colbench/prompts.py",
        'f"colbench/{seed}/{number}"',
        'f"colbench/{seed}"',
        "a writer of tasks is given one subject for all",
        (f"{GENERATED}test_every_try_asks_for_something_else_and_excerpts_are_shown",),
    ),
    Mutant(
        "persona-any-split",
        "environments/persona/world.py",
        "    if split_of(choices) != split:\n        return None\n",
        "",
        "functions that are held out are trained on",
        (f"{PERSONA}test_splits_are_disjoint_by_construction",),
    ),
    Mutant(
        "persona-without-the-seed",
        "environments/persona/world.py",
        'f"persona/{split}/{seed}/{sizes}"',
        'f"persona/{split}/{sizes}"',
        "every seed draws the same tasks",
        (f"{PERSONA}test_tasks_depend_on_the_seed_only_and_a_larger_count_extends_a_smaller_one",),
    ),
    Mutant(
        "persona-calls-that-tell-little",
        "environments/persona/world.py",
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
        "said[-1][1])",
        "said[0][1])",
        "the person answers its own first message",
        (f"{CODING}test_the_scripted_person_answers_the_last_question_from_the_tasks_own_choices",),
    ),
    Mutant(
        "persona-tells-two-things",
        "environments/persona/person.py",
        "if len(named) > 1:",
        "if len(named) > 2:",
        "asking for everything at once pays",
        (REPLIES,),
    ),
    Mutant(
        "persona-tells-the-first-choice",
        "environments/persona/person.py",
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

MUTANTS = (*SAID, *GRADED, *TASKS)
