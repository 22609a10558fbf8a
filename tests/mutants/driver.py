"""Faults of tools, sessions, and branches of environments with sessions."""

from tests.mutation.mutant import Mutant

TOOLS = "tests/test_tools.py::"
SESSIONS = "tests/test_sessions.py::"
BRANCHES = "tests/test_branches.py::"

IN_PLACE = f"{TOOLS}test_a_call_that_changes_the_environment_runs_in_its_place_beside_nothing"
NOT_RUN = f"{TOOLS}test_broken_calls_are_answered_in_their_place_and_never_run"
AGAIN = f"{TOOLS}test_what_cannot_be_reached_is_tried_again_and_then_fails_the_item"
BROKEN_TAGS = f"{TOOLS}test_broken_tags_are_calls_that_are_not_run"
FORKS = f"{SESSIONS}test_a_copy_goes_on_and_what_it_was_copied_from_stays_if_it_can"
BOUND = f"{SESSIONS}test_no_more_than_the_bound_are_live_and_the_longest_unused_makes_room"
SAME_TREE = f"{BRANCHES}test_a_random_tree_grows_the_same_with_forks_and_with_replay"
ALONE = f"{BRANCHES}test_of_fifty_branches_each_fails_alone"
FROM_STORE = f"{BRANCHES}test_a_tree_from_the_store_goes_on_where_it_was"
SIMULTANEOUS = f"{BRANCHES}test_players_who_act_at_the_same_time_do_not_see_each_other"

MUTANTS = (
    Mutant(
        "calls-results-as-text",
        "trajectories/calls.py",
        "    return tuple(found[at] for at in sorted(found))\n",
        "    return tuple(found[at] for at in sorted(found, key=str))\n",
        "the tenth result comes before the second",
        (
            "tests/contract/test_04_parallel_tool_results.py::"
            "test_results_stand_in_the_order_of_their_calls",
        ),
    ),
    Mutant(
        "tools-broken-calls-run",
        "tools/run.py",
        "        if call.error:\n",
        "        if call.error and False:\n",
        "a call that can't be run is run",
        (NOT_RUN,),
    ),
    Mutant(
        "tools-alone-in-company",
        "tools/run.py",
        "one[0] if one[1].name in alone and not one[1].error else -1",
        "-1",
        "a call that changes the environment runs beside others",
        (IN_PLACE,),
    ),
    Mutant(
        "tools-alone-tried-again",
        "tools/run.py",
        "tries = 1 if call.name in alone else limits.tries",
        "tries = limits.tries",
        "a call that changes the environment may do so twice",
        (AGAIN,),
    ),
    Mutant(
        "tools-no-width",
        "tools/run.py",
        "room = asyncio.Semaphore(limits.width)",
        "room = asyncio.Semaphore(1000)",
        "as many calls run at the same time as there are",
        (f"{TOOLS}test_no_more_than_the_width_run_at_once",),
    ),
    Mutant(
        "tools-unreachable-is-an-answer",
        "tools/run.py",
        "            if number == tries - 1:\n                raise\n",
        "            if number == tries - 1:\n"
        '                return ToolResult(call.id, "gone", error=True)\n',
        "a server that is gone becomes the agent's fault",
        (AGAIN,),
    ),
    Mutant(
        "tools-arguments-unchecked",
        "tools/checking.py",
        "    if fault is None:\n",
        "    if True:\n",
        "calls with wrong arguments are run",
        (f"{TOOLS}test_calls_that_cannot_be_run_say_why",),
    ),
    Mutant(
        "tools-schemas-are-fetched",
        "tools/checking.py",
        "Draft202012Validator(tool.parameters, registry=Registry())",
        "Draft202012Validator(tool.parameters)",
        "a tool's schema makes us fetch an address",
        (f"{TOOLS}test_a_schema_elsewhere_is_not_fetched",),
    ),
    Mutant(
        "tags-open-tags-run",
        "tools/tags.py",
        'error = "" if closing else _unclosed(name, finish, last=until == len(text))',
        'error = ""',
        "a call that was cut off is run",
        (BROKEN_TAGS,),
    ),
    Mutant(
        "tags-run-into-the-next",
        "tools/tags.py",
        "opened[number + 1].start() if number + 1 < len(opened) else len(text)",
        "len(text)",
        "a tag that is not closed takes in the next one",
        (BROKEN_TAGS,),
    ),
    Mutant(
        "sessions-without-a-bound",
        "rollout/sessions.py",
        "        while len(self._all) >= self.max_sessions:\n            if self._idle:",
        "        while False:\n            if self._idle:",
        "as many sessions are live as branches want",
        (BOUND,),
    ),
    Mutant(
        "sessions-fork-shares",
        "rollout/sessions.py",
        "        if opening is None:\n            return session\n",
        "        if opening is not None:\n            return session\n",
        "a branch goes on with the session that others stand at",
        (FORKS,),
    ),
    Mutant(
        "sessions-left-open",
        "rollout/sessions.py",
        "await asyncio.gather(*(self.drop(session) for session in list(self._all)))",
        "await asyncio.sleep(0)",
        "sessions outlive the run",
        (
            f"{SESSIONS}test_each_session_is_closed_by_the_task_that_opened_it",
            f"{SESSIONS}test_all_are_closed_when_a_branch_fails",
        ),
    ),
    Mutant(
        "branches-session-anywhere",
        "rollout/branches.py",
        "        return here or await self._replay(at)\n",
        "        return here or await self._open()\n",
        "a branch goes on in a session that stands at the beginning",
        (SAME_TREE, FROM_STORE),
    ),
    Mutant(
        "branches-replay-unchecked",
        "rollout/branches.py",
        "                if here.node != then.node:\n                    raise self._diverged(here)\n",
        "                here = then\n",
        "an environment that drifts goes on unnoticed",
        (ALONE,),
    ),
    Mutant(
        "branches-no-limit",
        "rollout/branches.py",
        "            found = replace(found, end=_limit(left))\n",
        "            pass\n",
        "a path goes on when its turns are used up",
        (f"{BRANCHES}test_a_limit_ends_a_path_truncated",),
    ),
    Mutant(
        "branches-done-again",
        "rollout/branches.py",
        "        if last not in self._after:\n            async with self._live(at, others_follow",
        "        if True:\n            async with self._live(at, others_follow",
        "equal work is done again",
        (f"{BRANCHES}test_work_that_was_done_is_not_done_again",),
    ),
    Mutant(
        "branches-second-turn-beside-the-first",
        "rollout/branches.py",
        "            parent = turn.id\n        return tuple(taken)\n\n    def _with_calls",
        "        return tuple(taken)\n\n    def _with_calls",
        "turns taken at the same time are not on one path",
        (SIMULTANEOUS,),
    ),
    Mutant(
        "branches-rewards-lost",
        "rollout/branches.py",
        "self.rewards[turn.id] = float(found.rewards[turn.speaker.name])",
        "pass",
        "what an environment gives for a step is lost",
        (SIMULTANEOUS,),
    ),
    Mutant(
        "branches-seed-of-all-tasks",
        "rollout/branches.py",
        'digest("environment", seed, task.id)',
        'digest("environment", seed)',
        "all tasks begin in one environment",
        (f"{BRANCHES}test_all_branches_and_samples_have_one_environment",),
    ),
    Mutant(
        "outcome-any-score",
        "trajectories/tree.py",
        "if self.score is not None and not math.isfinite(self.score):",
        "if False:",
        "a score that is not a number is stored",
        ("tests/test_store.py::test_a_score_is_any_number_or_none",),
    ),
    Mutant(
        "ungraded-is-zero",
        "runs/held_out.py",
        "    failed = Draw(None, 0.0, 0, failed=True)\n",
        "    failed = Draw(None, 0.0, 0)\n",
        "what could not be graded is not counted as failed",
        ("tests/test_held_out.py::test_what_could_not_be_graded_counts_as_failed",),
    ),
    Mutant(
        "request-id-without-tools",
        "trajectories/turn.py",
        "seen, *offered)",
        "seen)",
        "prompts with other tools are one request",
        ("tests/test_views.py::test_a_request_is_told_from_others_by_its_tools",),
    ),
    Mutant(
        "images-unchecked",
        "trajectories/table.py",
        '    _check_images(db, turn.parts, f"turn {turn.id}")\n',
        "",
        "a turn may show an image that the store has not",
        ("tests/test_store.py::test_images_are_kept_by_their_hash",),
    ),
)
