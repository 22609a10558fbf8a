"""Faults of tools that any environment is given: limits, repeats, who sees what, replays, what is left out."""

from tests.mutation.mutant import Mutant

FILE = "environments/with_tools.py"
TESTS = "tests/test_with_tools.py::"
CALLS = (
    f"{TESTS}test_calls_are_answered_and_neither_the_environment_nor_the_other_agent_hears_of_them"
)
LIMIT = f"{TESTS}test_the_environments_own_limit_counts_answers_alone"
LAST = f"{TESTS}test_after_its_last_calls_an_agent_is_told_to_answer_and_what_it_says_is_the_answer"
REPEATS = f"{TESTS}test_repeated_calls_and_those_over_the_total_are_answered_and_not_run"
SESSIONS = f"{TESTS}test_a_session_is_forked_or_replayed_and_calls_that_only_look_are_not_run_again"
SHORT = f"{TESTS}test_a_dialogue_that_outgrows_the_context_goes_on_without_its_oldest_results"
SHORTENED = "tests/contract/test_13_shortened_prompts.py::"
CONTEXT = "tests/test_context.py::"

MUTANTS = (
    Mutant(
        "tools-repeats-run",
        FILE,
        "asked.add(_key(call))",
        "asked.discard(_key(call))",
        "a call that was made in the same message is run again",
        (REPEATS,),
    ),
    Mutant(
        "tools-repeats-forgotten",
        FILE,
        "held.asked | {_key(call) for call in ran if call.id not in failed}",
        "frozenset(_key(call) for call in ran)",
        "only calls of the last message count as repeats",
        (REPEATS,),
    ),
    Mutant(
        "tools-failed-calls-are-repeats",
        FILE,
        "for call in ran if call.id not in failed}",
        "for call in ran}",
        "a call that failed can't be made again",
        (f"{TESTS}test_a_call_that_failed_may_be_made_again",),
    ),
    Mutant(
        "tools-total-ignored",
        FILE,
        "elif count >= self.settings.total:",
        "elif count > self.settings.total:",
        "one call more than the total is run",
        (REPEATS,),
    ),
    Mutant(
        "tools-rounds-not-reset",
        FILE,
        "now = replace(held, data=found.data, rounds=0)",
        "now = replace(held, data=found.data)",
        "rounds are those of the whole dialogue, and not of each answer",
        (LIMIT, f"{TESTS}test_rounds_begin_anew_with_each_answer"),
    ),
    Mutant(
        "tools-turns-counted",
        FILE,
        "turns = tuple(t for t in state.turns if t.id not in hidden and not _of_tools(t.speaker))",
        "turns = tuple(t for t in state.turns if not _of_tools(t.speaker))",
        "the environment is told of messages that call",
        (CALLS, LIMIT),
    ),
    Mutant(
        "tools-shown-to-all",
        FILE,
        "if turn.id in hidden and turn.speaker.name == actor:",
        "if turn.id in hidden:",
        "an agent is shown another one's calls",
        (CALLS,),
    ),
    Mutant(
        "tools-calls-at-the-end",
        FILE,
        "before[turn.id], now = tuple(now), []",
        "before[turn.id] = ()",
        "an agent's calls stand after all answers",
        (CALLS,),
    ),
    Mutant(
        "tools-last-round-untold",
        FILE,
        "if len(now) == 2 * self.settings.rounds:",
        "if len(now) > 2 * self.settings.rounds:",
        "an agent is not told that it can't call any more",
        (LAST,),
    ),
    Mutant(
        "tools-run-again-in-replay",
        FILE,
        "if recorded and not any(self.changes(call) for call in calls):",
        "if recorded and not calls:",
        "a replay runs calls that only look",
        (SESSIONS,),
    ),
    Mutant(
        "tools-changes-copied-in-replay",
        FILE,
        "if recorded and not any(self.changes(call) for call in calls):",
        "if recorded:",
        "a replay does not do again what changed something",
        (SESSIONS,),
    ),
    Mutant(
        "tools-for-persons",
        FILE,
        'return self.offered if self.actors[actor] == "agent" else ()',
        "return self.offered",
        "a person is offered tools",
        (f"{TESTS}test_persons_are_not_offered_tools_and_may_write_what_looks_like_a_call",),
    ),
    Mutant(
        "tools-newest-left-out",
        FILE,
        "gone = set(places[:count])",
        "gone = set(places[-count:])",
        "when a dialogue has become too long its newest results go",
        (SHORT,),
    ),
    Mutant(
        "tools-own-words-left-out",
        FILE,
        "if message.turn in told]",
        'if message.role != "system"]',
        "when a dialogue has become too long the agent's own messages go",
        (SHORT,),
    ),
    Mutant(
        "tools-version-without-settings",
        FILE,
        "settings.identity())",
        '"")',
        "a run goes on under other settings of its tools",
        (f"{TESTS}test_it_has_the_traits_and_the_grades_of_the_environment",),
    ),
    Mutant(
        "tools-latency-without-tries",
        "tools/run.py",
        "left_out = max(0, len(text) - limits.max_characters)",
        "left_out = 0",
        "cut results are not counted",
        (f"{TESTS}test_the_page_shows_how_tools_were_used_and_each_call_on_a_time_line",),
    ),
    Mutant(
        "tools-left-out-is-a-users",
        FILE,
        'turn = message.turn if message.role == "tool" else None',
        "turn = None",
        "a result that is left out becomes a user's message, and its call has none",
        (f"{SHORTENED}test_a_result_that_is_left_out_stays_a_result",),
    ),
    Mutant(
        "context-fails-the-path",
        "rollout/branches.py",
        'if not any(turn.speaker.kind == "agent" for turn in at.state.turns):',
        "if at.state.turns:",
        "a dialogue that outgrows the context fails, and what was said is lost",
        (f"{CONTEXT}test_environments_grade_a_talk_that_was_cut_off_anywhere",),
    ),
    Mutant(
        "context-is-forgotten-in-trees",
        "rollout/branches.py",
        "if here.node in self._cut or (outcome is not None and outcome.ending == CONTEXT):",
        "if here.node in self._cut:",
        "a tree from the store does not know where there was no room",
        (f"{CONTEXT}test_a_tree_keeps_such_paths_and_goes_on_from_the_store",),
    ),
    Mutant(
        "tools-data-are-references",
        "tools/checking.py",
        "for inner in DRAFT202012.subresources_of(schema):",
        "for inner in schema.values():",
        "what looks like a reference in a default is refused",
        ("tests/test_tools.py::test_what_looks_like_a_reference_in_plain_data_is_none",),
    ),
    Mutant(
        "tools-functions-in-the-loop",
        "tools/own.py",
        "if inspect.iscoroutinefunction(function) else _apart(said)",
        "if inspect.iscoroutinefunction(function) else asyncio.sleep(0, said())",
        "a function that waits holds up all dialogues",
        (f"{TESTS}test_a_function_that_waits_holds_up_nobody_and_has_its_time_limit",),
    ),
)
