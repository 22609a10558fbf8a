"""Faults in grading, sandbox verdicts, plans of tools, and what environments let agents see."""

from tests.mutation.fault import (
    Fault,
    around,
    becomes,
    edited,
    given,
    result,
    returns,
    without_first,
    without_last,
)

E = "coterie.environments."
B = "coterie.tools."
ANSWERS = "tests/environments/test_answers.py::"
WORDS = f"{ANSWERS}test_f1_of_word_multisets_is_the_best_over_golds"
NUMBERS = "tests/environments/test_answers.py::"
SPELLING = f"{NUMBERS}test_a_number_has_one_spelling"
LEFT_OVER = f"{NUMBERS}test_a_number_with_something_left_over_scores_agrees_and_votes_for_nothing"
LATEX = "tests/environments/test_mathematics.py::test_one_spelling_of_latex"
OTHER = "tests/environments/test_mathematics.py::test_answers_are_equal_or_not_in_either_order"
REWARDS = "tests/recipes/test_gap_rewards.py::"
PLAIN = "tests/tools/sandbox/test_plain_values.py::"
VALUES = f"{PLAIN}test_values_are_the_same_as_in_python"
CODING = "tests/environments/test_coding.py::"
NOT_PLAIN = f"{PLAIN}test_other_types_are_decoded_as_what_equals_no_plain_value"
FRACTION = f"{CODING}test_the_fraction_of_tests_and_why_each_failed_are_kept"
PLAN = "tests/environments/workflow/test_workflow_plan.py::"
WORKFLOW = "tests/environments/workflow/test_workflow.py::"
TAGS = "tests/tools/test_tools.py::"
EXACT_MATCH = f"{ANSWERS}test_exact_match_holds_for_any_alias_after_normalisation"
NORMALISATION_DROPS = (
    f"{ANSWERS}test_normalisation_drops_case_punctuation_articles_and_spare_spaces"
)
SERVERS = "tests/environments/bridges/test_environment_servers.py::"
HOSTILE_REPLY = f"{SERVERS}test_a_hostile_reply_ends_early_in_an_error_with_the_url"
SENT_AGAIN = f"{SERVERS}test_an_action_is_sent_again_only_if_the_server_did_not_carry_it_out"
COMMANDS_OF_TERMINALS = "tests/test_progress.py::test_no_text_sends_commands_to_a_terminal"
LAST_MARK = "tests/environments/test_answers.py::test_the_last_mark_counts"
EXACT_MATCH_1 = f"{REWARDS}test_exact_match_is_1_if_every_part_of_the_last_answer_is_right"
FIRST_ANSWER = f"{REWARDS}test_with_the_first_answer_alone_the_others_do_not_count"
F1_OVERLAP = f"{REWARDS}test_f1_is_the_overlap_of_words"
HAND_F1 = "tests/runs/test_self_consistency.py::test_by_hand_with_f1"
HAND_EQUAL = "tests/runs/test_self_consistency.py::test_by_hand_with_equal_answers"
SILENCE_NO = "tests/runs/test_self_consistency.py::test_silence_has_no_vote"
VALUES_COMPARED = f"{CODING}test_values_are_compared_by_type_too_if_so_set"
FLOATS_MAY = f"{PLAIN}test_floats_may_differ_by_the_tolerance"
VALUES_PYTHON = f"{PLAIN}test_values_that_python_never_calls_equal_are_compared_by_what_they_hold"
ONLY_CRITIC = (
    "tests/recipes/test_sweet_steps.py::test_only_a_critic_may_read_the_reference_in_its_prompt"
)
DIALOGUE_ENDS = f"{CODING}test_a_dialogue_ends_with_an_answer_or_with_the_last_turn"
MARKER_THOUGHTS = "tests/environments/test_coding.py::test_marker_and_thoughts"
LEAK = "tests/environments/test_user_simulator.py::test_a_reply_that_quotes_a_secret_is_a_leak_in_any_environment"
UNKNOWN = "tests/environments/test_user_simulator.py::test_a_prompt_with_other_names_is_refused"
WHAT_REPLY = f"{CODING}test_quotes_of_the_reference_are_counted"
LEVELS_RANDOM = f"{PLAN}test_the_levels_of_random_graphs_are_right"
FRONTEND = "tests/environments/pages/test_frontend.py::"
LAST_PAGE = f"{FRONTEND}test_only_the_last_page_is_rendered_and_scored"
QUOTED = f"{FRONTEND}test_a_reference_quoted_in_any_way_is_a_leak"
WHICH_ASPECT = (
    f"{FRONTEND}test_the_scripted_user_says_which_aspect_is_wrong_and_not_what_it_should_be"
)
ADDRESSES = f"{FRONTEND}test_whole_addresses_of_pictures_are_replaced"
SIMILARITY = "tests/tools/test_similarity.py::"
IMAGE_SIZES = "tests/tools/test_render.py::test_placeholder_images_have_their_size"
OTHER_LINKS = "tests/tools/test_render.py::test_other_links_stay"
MISSING_BLACK = f"{SIMILARITY}test_a_missing_page_has_the_raw_similarity_of_a_black_image"
BY_HAND = f"{SIMILARITY}test_layout_by_hand"
COSINE = f"{SIMILARITY}test_clip_is_the_cosine_of_transformers"
ONLY_CALLS = f"{WORKFLOW}test_only_the_calls_of_a_plan_can_be_too_early_for_it"
EACH_VIOLATION = (
    "tests/environments/workflow/test_workflow_plan.py::test_each_violation_is_counted_once"
)
RESULT_CAN = f"{TAGS}test_a_result_can_neither_close_its_tag_nor_open_another"
PLAN_GROUND = "tests/environments/plans/test_plan_ground.py::"
GROUNDER_SEES = f"{PLAN_GROUND}test_the_grounder_sees_tools_task_and_plan_and_the_planner_no_tools"


def _dot_of_parts(original, self, first, second):
    return original(self, first[:-1], second[:-1])


def _one_gold(original, prediction, golds):
    return original(prediction, golds[:1])


def _any_call(original, self):
    return any(test.passed for test in self.tests)


def _words_once(original, predicted, gold):
    return original(sorted(set(predicted)), sorted(set(gold)))


def _all_secrets(original, task, person):
    return {name: secret.reveal(min(secret.readers)) for name, secret in task.secrets.items()}


def _all_at_once(original, self):
    return type(original(self))({task.id: () for task in self.tasks})


QUESTION = "tests/environments/test_question.py::"
RANGE = f"{QUESTION}test_an_own_reward_gets_plain_values_and_its_range_is_scaled"
REFUSED = f"{QUESTION}test_what_can_not_be_used_is_refused_before_anything_is_played"
BOX = f"{QUESTION}test_built_in_rewards_read_the_last_box_or_the_whole_reply"
FAULTS = (
    Fault(f"{E}question:answer_of", around(lambda original, reply: reply.strip()), [BOX]),
    Fault(f"{E}question:filled", given(hidden=lambda hidden: set()), [REFUSED]),
    Fault(f"{E}question:Question._try_out", returns(None), [REFUSED]),
    Fault(
        f"{E}question:Question._function_grade", result(edited(score=lambda v: 2 * v - 1)), [RANGE]
    ),
    # Answers: exact match, F1, numbers, mathematics.
    Fault(f"{E}qa_metrics:exact_match", around(_one_gold), [EXACT_MATCH]),
    Fault(f"{E}qa_metrics:f1", around(_one_gold), [WORDS]),
    Fault(f"{E}qa_metrics:_word_f1", around(_words_once), [WORDS]),
    Fault(
        f"{E}qa_metrics:normalize_answer",
        around(lambda original, text: " ".join(text.lower().split())),
        [NORMALISATION_DROPS],
    ),
    Fault(f"{E}grading:_parse", result(lambda v: None if v is None else abs(v)), [SPELLING]),
    Fault(f"{E}grading:is_name", returns(True), [LEFT_OVER]),
    Fault(
        f"{E}qa_metrics:marked_answer",
        given(text=lambda text: text[: text.find("</A") + 4] if "</A" in text else text),
        [LAST_MARK],
    ),
    Fault(f"{E}grading:spelling", around(lambda original, latex: latex), [LATEX]),
    Fault(f"{E}grading:_equal", returns(True), [OTHER]),
    Fault(f"{E}grading:_split", given(text=lambda text: text.split(",")[0]), [OTHER]),
    Fault(f"{E}workflow.plan_graph:parts", given(several="first"), [EXACT_MATCH_1]),
    Fault(f"{E}workflow.plan_graph:parts", given(several="all"), [FIRST_ANSWER]),
    Fault(f"{E}workflow.plan_graph:overlap", result(float.__ceil__), [F1_OVERLAP]),
    # A vote of several dialogues.
    Fault(
        f"{E}qa_metrics:Vote._alike",
        around(lambda original, self, answer, other: answer == other),
        [HAND_F1],
    ),
    Fault(
        f"{E}qa_metrics:Vote.winners",
        around(lambda original, self: tuple(self._groups[-1]) if self._groups else ()),
        [HAND_EQUAL],
    ),
    Fault(f"{E}qa_metrics:Vote.add", given(answer=lambda answer: answer or ""), [SILENCE_NO]),
    # Verdicts of the sandbox.
    Fault(f"{B}sandbox.inside.plain:StandIn", becomes(list), [NOT_PLAIN]),
    Fault(f"{B}sandbox.results:Graded.success", around(_any_call), [FRACTION]),
    Fault(f"{B}sandbox.results:same", given(strict=True), [VALUES]),
    Fault(f"{B}sandbox.results:same", given(strict=False), [VALUES_COMPARED]),
    Fault(f"{B}sandbox.results:same", given(tolerance=0.0), [FLOATS_MAY]),
    Fault(f"{B}sandbox.results:has_nan", returns(False), [VALUES_PYTHON]),
    Fault(f"{E}coding:hidden_calls", without_last, [FRACTION]),
    Fault(f"{E}collaboration:with_reference", returns(lambda messages: messages), [ONLY_CRITIC]),
    Fault(
        f"{E}collaboration:Collaboration.limits",
        result(lambda limits: {name: most + 1 for name, most in limits.items()}),
        [DIALOGUE_ENDS],
    ),
    Fault(f"{E}collaboration:visible", around(lambda original, text: text), [MARKER_THOUGHTS]),
    # Web pages.
    Fault(
        f"{E}pages.frontend:Frontend.page", around(lambda original, self, text: None), [LAST_PAGE]
    ),
    Fault(f"{E}pages.micro_world:largest_difference", returns("bar"), [WHICH_ASPECT]),
    Fault(
        "coterie.datasets.web_pages:with_pictures", around(lambda original, html: html), [ADDRESSES]
    ),
    Fault(f"{E}user_simulator:LEAKED", becomes(50), [WHAT_REPLY]),
    Fault(f"{E}user_simulator:PIECE", becomes(30), [QUOTED]),
    Fault(
        f"{E}user_simulator:with_leaks",
        result(edited(metrics=lambda metrics: {**metrics, "leaks": 0})),
        [LEAK],
    ),
    Fault(f"{E}user_simulator:readable_secrets", around(_all_secrets), [UNKNOWN]),
    # Plans: levels, early calls, violations.
    Fault(f"{E}workflow.plan_graph:Plan.sorter", around(_all_at_once), [LEVELS_RANDOM]),
    Fault(f"{E}workflow.agent:calls_before_their_turn", returns(0), [ONLY_CALLS]),
    Fault(f"{E}workflow.plan_graph:violations", without_first, [EACH_VIOLATION]),
    Fault(f"{B}calls:inside", around(lambda original, text, *args: text), [RESULT_CAN]),
    # Similarity of pages.
    Fault(
        f"{B}render:_gray_image", result(lambda url: url.replace("%27600", "%27599")), [IMAGE_SIZES]
    ),
    Fault(
        f"{B}render:inline_resources", result(lambda html: html.replace("<link", "")), [OTHER_LINKS]
    ),
    Fault(f"{B}similarity:_plain", given(color=(255, 255, 255)), [MISSING_BLACK]),
    Fault(f"{B}similarity:_overlap", result(lambda overlap: max(overlap, 0.5)), [BY_HAND]),
    Fault(f"{B}similarity:Encoder.similarity", around(_dot_of_parts), [COSINE]),
    # Who sees what of planner and grounder.
    Fault(f"{E}plans.plan_ground:PlanGround.observe", given(actor="planner"), [GROUNDER_SEES]),
    # Replies of environment servers.
    Fault(f"{E}bridges.server_client:CONTAINERS", becomes(10**9), [HOSTILE_REPLY]),
    Fault(f"{E}bridges.server_client:BUSY", becomes((429, 500, 503)), [SENT_AGAIN]),
    Fault("coterie.terminal:CONTROL_CHARACTERS", becomes({}), [COMMANDS_OF_TERMINALS]),
)
