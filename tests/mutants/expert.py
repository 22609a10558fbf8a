"""Faults of an expert: what it knows too early, what waits for what, which rows are refused, and what is trained."""

from tests.mutation.mutant import Mutant

EXPERT, PATHS = "tests/test_expert.py::", "tests/contract/test_13_scripted_paths.py::"
FOLDER = "environments/workflow/"
UNKNOWN = f"{EXPERT}test_what_is_not_known_yet_is_not_said"
KNOWN = f"{EXPERT}test_an_answer_that_an_earlier_level_found_may_be_searched"
BRANCHES = f"{EXPERT}test_a_comparison_of_two_chains_is_two_branches_and_a_task_without_a_search"
CHAIN = f"{EXPERT}test_a_chain_searches_one_after_the_other_under_the_name_that_the_question_has"
SPELLED = f"{EXPERT}test_what_is_about_the_same_name_waits_for_the_one_that_is_spelled_so"
WIKI = f"{EXPERT}test_rows_of_2wiki_that_come_to_nothing_say_why"
DATES = f"{EXPERT}test_dates_decide_which_way_a_comparison_goes"
HOTPOT = f"{EXPERT}test_rows_of_hotpot_qa_that_come_to_nothing_say_why"
BRIDGE = f"{EXPERT}test_a_bridge_is_crossed_from_the_page_that_the_question_names"
HOPS = f"{EXPERT}test_hops_wait_for_those_that_they_name"
MUSIQUE = f"{EXPERT}test_rows_of_musique_that_come_to_nothing_say_why"
TWICE = f"{EXPERT}test_nobody_asks_the_same_twice"
FOUND = f"{EXPERT}test_gold_was_found_if_all_its_pages_are_in_some_result"
TARGETS = f"{PATHS}test_all_that_the_expert_says_is_a_target_once_and_nothing_else_is"
ENDS = f"{PATHS}test_a_message_without_a_stop_string_ends_as_a_turn_does"
POLICY = f"{PATHS}test_a_policy_that_says_the_same_has_the_same_tokens"
FAILS = f"{PATHS}test_what_could_not_be_sampled_so_fails_its_episode"


def _of(module: str, name: str, find: str, replace: str, breaks: str, *tests: str) -> Mutant:
    return Mutant(f"expert-{name}", f"{FOLDER}{module}.py", find, replace, breaks, tests)


MUTANTS = (
    _of("steps", "answer-leaks", "hidden = [answer, *(one for found in results[number:] for one in found)]",
        "hidden = list(results[number + 1 : number])", "a first query may have the answer in it", UNKNOWN),
    _of("steps", "level-leaks", "for found in results[number:] for", "for found in results[number:1] for",
        "a later query may say what a still later one finds", UNKNOWN),
    _of("steps", "plan-leaks", "said += [task.text for task in plan.tasks]", "said += [task.id for task in plan.tasks]",
        "a plan says what is found later", UNKNOWN),
    _of("steps", "found-stays-hidden", "for found in results[:number] for", "for found in results[:0] for",
        "a query may not say what an earlier level found", KNOWN),
    _of("steps", "chain-is-parallel", "for level in plan.levels", "for level in [plan.order]",
        "a chain is searched at once", CHAIN),
    _of("steps", "compares-too-early", "if one.id not in waited)", "if one.id in waited)",
        "the comparison waits for the wrong tasks", BRANCHES),
    _of("steps", "asks-twice", "raise NoTrace(TWICE)", "pass", "a query is made twice, and refused", TWICE),
    _of("expert_2wiki", "no-evidence", "if not row.evidences:", "if not row.context:",
        "a row without evidences is taken", WIKI),
    _of("expert_2wiki", "other-answer", "elif not alike(row.answer, steps[-1].result):", "elif not row.answer:",
        "the answer need not be what was found", WIKI),
    _of("expert_2wiki", "broken-chain", "elif number and row.type in CHAINS:",
        "elif number and row.type in COMPARISONS:",
        "a chain is broken, and goes on", WIKI),
    _of("expert_2wiki", "dates-turned", "min(dates) if earlier", "max(dates) if earlier",
        "the later one came first", DATES),
    _of("expert_2wiki", "dates-inexact", "one[:exact] for one in found", "one[:3] for one in found",
        "a year is before all its days", WIKI),
    _of("expert_2wiki", "dependency-lost", "return next(iter(free or places), None)",
        "return next(iter(free[1:]), None)",
        "a fact does not wait for what it is about", CHAIN),
    _of("names", "first-alike", "return equal or [", "return [", "a name is taken for one that is longer", SPELLED),
    _of("expert_hotpot", "answer-first", "if _has_answer(row, way[1])", "if _has_answer(row, way[0])",
        "the last page need not have the answer", HOTPOT, BRIDGE),
    _of("expert_hotpot", "apart", "if says(first.text, bare(second.title))", "if first.text",
        "a page is searched that nothing names", HOTPOT),
    _of("expert_musique", "one-dependency", "tuple(map(name_of, places))", "tuple(map(name_of, places))[:1]",
        "a hop waits for one of those that it names", HOPS),
    _of("expert_musique", "names-more", "if not places and _names_more(row, said):",
        "if places and _names_more(row, said):",
        "a first query knows more than the question", MUSIQUE),
    _of("found_gold", "some-gold", "return found.issuperset(map(_plain, titles))",
        "return not found.isdisjoint(map(_plain, titles))", "one page of two is enough", FOUND),
    Mutant("expert-last-not-ended", "rollout/scripted.py", "ended = stopped is None", "ended = False",
           "what no stop string ends has no end of turn", (ENDS,)),
    Mutant("expert-calls-ended", "rollout/scripted.py", "ended = stopped is None", "ended = bool(text)",
           "a call is followed by an end of turn", (TARGETS, POLICY)),
    Mutant("expert-goes-on", "rollout/scripted.py", "if stopped not in (None, len(text)):", "if stopped == 0:",
           "a message goes on after its call", (FAILS,)),
    Mutant("expert-observation-trained", "trajectories/view.py", "Piece(prompt[len(running) :])",
           "Piece(prompt[len(running) :], turn)", "results are targets", (TARGETS,)),
    Mutant("expert-end-always", "models/chat.py", "(self._end if ended else ())", "(self._end if text else ())",
           "a turn that a stop string ended has an end of turn", (TARGETS,)),
)  # fmt: skip
