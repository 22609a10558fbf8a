"""Faults in turns, trees, views, rows, the store and what leaves it."""

from contextlib import contextmanager
from dataclasses import replace

from tests.mutation.fault import (
    Fault,
    around,
    becomes,
    edited,
    given,
    one_more,
    opposite,
    result,
    returns,
    reverse,
    swap,
    without_first,
    without_last,
)

R = "coterie.record."
VIEWS = "tests/record/test_views.py::"
ENGINE = f"{VIEWS}test_a_view_is_what_went_through_the_engine"
TURN = f"{VIEWS}test_a_turn_is_told_from_others_by_what_it_is"
PATHS = f"{VIEWS}test_a_trees_paths_run_from_the_beginning_in_order_of_sample"
CONTEXT = f"{VIEWS}test_recontext_changes_what_is_around_the_same_turns"
PAIR = f"{VIEWS}test_a_pair_has_the_better_side_first"
SEGMENTS = "tests/training/test_policy_terms.py::test_segments_of_a_recorded_path_know_the_path_and_how_it_was_sampled"
FIRST = "tests/training/test_training.py::test_a_target_at_the_first_token_is_not_trained"
SECRETS = "tests/contract/test_07_secrets.py::"
RENDERED = f"{SECRETS}test_rendering_a_secret_for_another_reader_is_refused"
STORE = "tests/record/test_store.py::"
EQUAL = f"{STORE}test_a_tree_comes_back_equal_whatever_order_its_samples_finish_in"
ITEMS = f"{STORE}test_items_metrics_and_failures"
REFUSED = f"{STORE}test_a_record_that_contradicts_the_store_is_refused_whole"
LEFT_OUT = (
    "tests/cli/test_export.py::test_a_row_that_a_program_would_train_other_tokens_of_is_left_out"
)
VIEW_SECRETS = "tests/cli/test_view.py::test_secrets_are_left_out_as_text_and_as_tokens"
BROWSE = "tests/record/test_browse.py::"
VIEW_ROWS = (
    f"{BROWSE}test_each_trained_token_is_shown_with_its_numbers_and_each_turn_lists_its_rows"
)
VIEW_CANDIDATES = f"{BROWSE}test_a_task_with_candidates_alone_is_listed_with_what_became_of_them"
VIEW_ALONE = "tests/cli/test_view.py::test_only_the_page_itself_gets_answers"
HOME = "tests/record/test_jsonl.py::test_secrets_stay_home_unless_asked_for"
TURN_CUT = "tests/record/test_jsonl.py::test_that_a_turn_was_cut_off_comes_back_also_where_its_sample_does_not"
ARRIVAL = "tests/contract/test_04_parallel_tool_results.py::"
EVERY_ORDER = f"{ARRIVAL}test_every_order_of_arrival_gives_the_same_turns_with_the_same_ids"
REQUEST_TOLD = f"{VIEWS}test_a_request_is_told_from_others_by_its_tools"
ROWS_SEGMENTS = f"{VIEWS}test_rows_are_segments_with_own_turns_as_targets"
MESSAGES_REQUEST = f"{VIEWS}test_messages_of_a_request_are_all_that_was_shown"
SCORE_ANY = f"{STORE}test_a_score_is_any_number_or_none"
TARGETS_OVERLAP = (
    f"{VIEWS}test_targets_that_overlap_or_are_out_of_order_empty_or_outside_are_refused"
)
SIDES_EQUAL = f"{VIEWS}test_sides_are_equal_if_tokens_and_targets_are"
LABELLED_TRAJECTORY = (
    f"{VIEWS}test_a_labelled_trajectory_is_of_the_segments_in_which_its_agent_speaks"
)
SECRET_REDACTS = f"{SECRETS}test_a_secret_redacts_itself"
ONLY_READERS = f"{SECRETS}test_only_its_readers_open_it"
ITEMS_FINISHED = f"{STORE}test_items_that_are_finished_together_are_all_there_or_none"
CREDIT_OTHER = f"{STORE}test_credit_of_other_settings_stands_beside_it_and_none_is_overwritten"
SELECTIONS_REFERENCES = f"{STORE}test_selections_are_references_in_stored_order"
TREES_STREAM = f"{STORE}test_trees_stream_in_order_of_task_and_see_a_stage_only"


@contextmanager
def _always_committed(self, begin):
    """A transaction that keeps what was written before an error."""
    self._db.execute(begin)
    try:
        yield
    finally:
        self._db.execute("COMMIT")


@contextmanager
def _one_by_one(self):
    yield


def _one_segment(original, *args):
    segments = original(*args)
    return tuple(
        replace(s, pieces=[p for one in segments for p in one.pieces]) for s in segments[:1]
    )


def _everybodys(original, tree, leaf, agent):
    return [turn for turn in tree.path(leaf) if turn.speaker.kind == "agent" and turn.prompt]


def _with_first_token(original, self):
    return [range(target.start, target.stop) for target in self.targets]


def _logprobs_under_any_context(original, view, index, weight):
    return original(replace(view, context=None), index, weight)


FAULTS = (
    # What a turn and a request are told from others by.
    Fault(f"{R}turn:make_turn", given(draw=0), [TURN]),
    Fault(f"{R}turn:make_turn", given(calls=()), [TURN]),
    Fault(f"{R}turn:make_turn", given(truncated=False), [TURN_CUT]),
    Fault(f"{R}turn:in_order", around(lambda original, results: tuple(results)), [EVERY_ORDER]),
    Fault(f"{R}turn:common_length", one_more, [ENGINE]),
    Fault(
        f"{R}turn:Request.make",
        around(lambda original, cls, *args, **kw: original(cls, *args, **{**kw, "tools": ()})),
        [REQUEST_TOLD],
    ),
    Fault(f"{R}turn:Turn.writer", result(lambda writer: writer.partition("@")[0]), [ROWS_SEGMENTS]),
    Fault(f"{R}turn:Part.visible_to", returns(True), [RENDERED]),
    # Trees.
    Fault(f"{R}tree:Tree.path", reverse, [PATHS]),
    Fault(f"{R}tree:Tree.path", without_first, [PATHS]),
    Fault(f"{R}tree:Tree.trajectories", reverse, [PATHS]),
    Fault(f"{R}tree:root_id", given(stage=""), [PATHS]),
    Fault(f"{R}tree:Tree.messages", without_first, [MESSAGES_REQUEST]),
    Fault(f"{R}tree:Outcome.__post_init__", returns(None), [SCORE_ANY]),
    # Views and segments, recontext, rows and their targets.
    Fault(f"{R}rows:assemble", around(_one_segment), [ENGINE]),
    Fault(f"{R}rows:assemble", given(prompts=lambda prompts: prompts[:-1]), [ENGINE]),
    Fault(f"{R}rows:_own", around(_everybodys), [ENGINE]),
    Fault(f"{R}rows:recontext", result(edited(context=None)), [CONTEXT]),
    Fault(f"{R}rows:recontext", given(edit=lambda edit: lambda messages: messages), [CONTEXT]),
    Fault(f"{R}rows:_row", around(_logprobs_under_any_context), [CONTEXT]),
    Fault(f"{R}rows:_row", given(weight=1.0), [ROWS_SEGMENTS]),
    Fault(
        f"{R}rows:rows",
        result(lambda rows: [replace(row, path_tokens=row.target_count) for row in rows]),
        [SEGMENTS],
    ),
    Fault(f"{R}rows:_target", result(edited(temperature=1.0)), [SEGMENTS]),
    Fault(f"{R}rows:Row.predicted", around(_with_first_token), [FIRST]),
    Fault(f"{R}rows:Row.mask", result(lambda mask: [False, *mask[:-1]]), [ROWS_SEGMENTS]),
    Fault(f"{R}rows:Row.__post_init__", returns(None), [TARGETS_OVERLAP]),
    Fault(f"{R}rows:trajectory_pair", swap("chosen", "rejected"), [PAIR]),
    Fault(f"{R}rows:turn_pair", swap("chosen", "rejected"), [PAIR]),
    Fault(f"{R}rows:_check_agents", returns(None), [PAIR]),
    Fault(f"{R}rows:_trained", result(lambda sides: [ids for ids, _ in sides]), [SIDES_EQUAL]),
    Fault(
        f"{R}rows:labeled_trajectory",
        given(success=lambda success: not success),
        [LABELLED_TRAJECTORY],
    ),
    # Secrets.
    Fault(f"{R}tree:Secret.__str__", around(lambda original, self: self._text), [SECRET_REDACTS]),
    Fault(
        f"{R}tree:Secret.reveal", around(lambda original, self, role: self._text), [ONLY_READERS]
    ),
    Fault(f"{R}tree:Secret.part", result(edited(audience=None)), [RENDERED]),
    Fault(f"{R}tree:is_secret", returns(False), [HOME]),
    Fault(f"{R}tree:_shows_secret", returns(False), [HOME]),
    Fault(f"{R}export:_has_inline", returns(False), [LEFT_OUT]),
    Fault(f"{R}export:_alternates", returns(True), [LEFT_OUT]),
    Fault(f"{R}lineage:redact", becomes(lambda tree: tree), [VIEW_SECRETS]),
    Fault(f"{R}lineage:_trains", returns(True), [VIEW_ROWS]),
    Fault(f"{R}browse:Browser._single_turns", returns([]), [VIEW_CANDIDATES]),
    Fault("coterie.cli.view_server:_refusal", returns(""), [VIEW_ALONE]),
    # The store: one transaction an item, keys, what is refused.
    Fault(f"{R}store:Store._within", becomes(_always_committed), [REFUSED]),
    Fault(f"{R}store:Store.together", becomes(_one_by_one), [ITEMS_FINISHED]),
    Fault(f"{R}store:Store.finish", given(failure=None), [ITEMS]),
    Fault(f"{R}store:Store.finish", given(metrics=None), [ITEMS]),
    Fault(f"{R}store:Store.finished", opposite, [ITEMS]),
    Fault(f"{R}tables:item_row", given(key=edited(sample="")), [ITEMS]),
    Fault(f"{R}tables:kind_key", given(settings=""), [CREDIT_OTHER]),
    Fault(f"{R}store:Store.selections", reverse, [SELECTIONS_REFERENCES]),
    Fault(f"{R}store:Store.tree_keys", given(stage=None), [TREES_STREAM]),
    Fault(f"{R}store:Store._outcomes", without_last, [EQUAL]),
    Fault(f"{R}export:export", given(secrets=True), [HOME]),
)
