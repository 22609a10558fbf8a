"""Faults in reading users' files: what is trained, what is shown, and how much is held out."""

from tests.mutation.fault import Fault, becomes, given, returns

D = "coterie.datasets."
FORMS = "tests/datasets/test_published_forms.py::"
CHATS = f"{FORMS}test_conversations_train_what_their_form_means"
PAIRS = f"{FORMS}test_preferences_train_what_their_form_means"
QUESTIONS = f"{FORMS}test_questions_show_and_grade_what_their_form_means"
SHARES = (
    "tests/datasets/test_conversations.py::test_a_share_of_rows_is_held_out_even_if_they_open_alike"
)
RECORDED = (
    "tests/environments/program/test_external.py::"
    "test_supervised_training_has_the_sampled_tokens_of_good_episodes"
)
FAULTS = [
    Fault(f"{D}columns:message_is_trained", returns(True), [CHATS]),
    Fault(f"{D}columns:check_training_keys", returns(None), [CHATS]),
    Fault(f"{D}columns:check_media", returns(None), [CHATS]),
    Fault(f"{D}columns:check_text", returns(None), [CHATS]),
    Fault(f"{D}conversations:repeated_prompts", returns((True, 1.0)), [PAIRS]),
    Fault(f"{D}problems:read_options", returns(None), [QUESTIONS]),
    Fault(f"{D}question_files:system_of", returns(""), [QUESTIONS]),
    Fault(f"{D}files:SLACK", becomes(10.0), [SHARES]),
    Fault(f"{D}files:divided", given(share=lambda share: share / 2), [SHARES]),
    Fault(f"{D}run_record:FINAL_REWARD", becomes("reward"), [RECORDED]),
]
