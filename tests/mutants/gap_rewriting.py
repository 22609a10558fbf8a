"""Faults of the rewriting of sequential traces by a model."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_gap_rewriting.py::"
CHANGED = f"{TESTS}test_a_reply_that_changes_more_than_the_order_is_refused"
NEEDS = f"{TESTS}test_a_search_in_the_same_round_as_what_it_needs_is_refused"
PAIRS = f"{TESTS}test_traces_whose_searches_and_results_do_not_pair_are_not_asked_for"
PLACES = f"{TESTS}test_results_stand_where_their_marks_are_to_the_letter"
AGAIN = f"{TESTS}test_a_reply_that_is_refused_is_asked_for_again_with_the_reason"
CUT = f"{TESTS}test_a_command_that_was_cut_asks_only_for_what_is_left"
EXPERT = f"{TESTS}test_all_that_an_expert_writes_is_believed"
WRITING, CONVERTING = "recipes/gap/files/rewriting.py", "recipes/gap/files/converting.py"


def _read(name: str, find: str, replace: str, breaks: str, test: str = CHANGED) -> Mutant:
    return Mutant(f"gap-rewriting-{name}", WRITING, find, replace, breaks, (test,))


def _asked(name: str, find: str, replace: str, breaks: str, test: str) -> Mutant:
    return Mutant(f"gap-rewriting-{name}", CONVERTING, find, replace, breaks, (test,))


MUTANTS = (
    _read("two-plans", "if len(plans) != 1 or", "if not plans or", "a trace has two plans"),
    _read("fewer-queries", "    if own == wanted:\n", "    if own <= wanted:\n", "a query of the original is lost"),
    _read("queries-as-sets", "    if own == wanted:\n", "    if set(own) == set(wanted):\n",
          "a query is asked twice"),
    _read("results-anywhere", "    if [known.get(mark) for mark in marks] != list(queries):",
          "    if len(marks) != len(queries):", "a result follows another query"),
    _read("results-written", '    if _MARK.sub("", one.body).strip():', "    if not one.body:",
          "the model writes results"),
    _read("other-answer", "    if final_answer(text) != of.answer:", "    if final_answer(text) is None:",
          "the answer is the model's own"),
    _read("calls-early", "    if calls_before_their_turn(plan, [len(queries) for queries, _ in rounds]):",
          "    if not rounds:", "a plan is written and not kept to"),
    _read("knows-the-future", "if set(words(name)) & later", "if name in later",
          "a query says what nobody has found yet", NEEDS),
    _read("knows-nothing", "                known |= set(words(left.pop(mark, \"\")))",
          "                left.pop(mark, \"\")", "what was found can't be said", EXPERT),
    _read("tags-in-any-order", '    if wrong := violations(whole, "mhqa"):', '    if wrong := violations("", "mhqa"):',
          "an answer needs no thought"),
    _read("first-result-everywhere", "of.searches[mark - 1].shown for mark", "of.searches[0].shown for mark",
          "results are lost", PLACES),
    _read("any-tool", "            if one.name != SEARCH or asked:", "            if asked:",
          "calls of other tools are lost", PAIRS),
    _asked("no-reason", 'again = f"This can\'t be used: {error}. Correct', 'again = f"This can\'t be used. Correct',
           "the model is not told what is wrong", AGAIN),
    _asked("cut-is-whole", "                if reply.truncated:", "                if not reply.text:",
           "a reply that was cut off is believed", AGAIN),
    _asked("failed-is-final", '        if status != "failed":', "        if status:",
           "rows of a server that was down are never asked again", CUT),
    _asked("done-again", "same = {one.row: one for one in known if", "same = {one.row: one for one in known if not",
           "a command that was cut pays for all rows again", CUT),
    _asked("original-lost", '"original_output": row.output', '"original_output": done.output',
           "the trace before the rewriting is lost", AGAIN),
)  # fmt: skip
