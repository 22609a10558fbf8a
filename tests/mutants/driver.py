"""Faults of tools, sessions, and branches of environments with sessions."""

from tests.mutation.mutant import Mutant

TOOLS = "tests/test_tools.py::"
SESSIONS = "tests/test_sessions.py::"
BRANCHES = "tests/test_branches.py::"
PLAY = "tests/test_play.py::"
FAULTS = "tests/test_environment_faults.py::"

IN_PLACE = f"{TOOLS}test_a_call_that_changes_the_environment_runs_in_its_place_beside_nothing"
NOT_RUN = f"{TOOLS}test_broken_calls_are_answered_in_their_place_and_never_run"
AGAIN = f"{TOOLS}test_what_cannot_be_reached_is_tried_again_and_then_fails_the_item"
BROKEN_TAGS = "tests/test_tags.py::test_broken_tags_are_calls_that_are_not_run"
FORKS = f"{SESSIONS}test_a_copy_goes_on_and_what_it_was_copied_from_stays_if_it_can"
BOUND = f"{SESSIONS}test_no_more_than_the_bound_are_live_and_the_longest_unused_makes_room"
SAME_TREE = f"{BRANCHES}test_a_random_tree_grows_the_same_with_forks_and_with_replay"
ALONE = f"{BRANCHES}test_of_fifty_branches_each_fails_alone"
FROM_STORE = "tests/test_replay.py::test_a_tree_from_the_store_goes_on_where_it_was"
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
        "        while len(self._all) >= self.max_sessions and not self._ended:\n",
        "        while False:\n",
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
        "            if not found.same(then):\n                raise self._diverged(found.position)\n",
        "",
        "an environment that drifts goes on unnoticed",
        (ALONE,),
    ),
    Mutant(
        "branches-no-limit",
        "rollout/transitions.py",
        "    end = _limit(now.left) if found.end is None else found.end\n",
        "    end = found.end\n",
        "a path goes on when its turns are used up",
        (f"{BRANCHES}test_a_limit_ends_a_path_truncated",),
    ),
    Mutant(
        "branches-done-again",
        "rollout/branches.py",
        "        if node not in self._after:\n            async with self._arriving",
        "        if True:\n            self._after.pop(node, None)\n            async with self._arriving",
        "equal work is done again",
        (f"{BRANCHES}test_work_that_was_done_is_not_done_again",),
    ),
    Mutant(
        "branches-second-turn-beside-the-first",
        "rollout/taken.py",
        "        parent = turn.id\n    return tuple(taken)\n",
        "    return tuple(taken)\n",
        "turns taken at the same time are not on one path",
        (SIMULTANEOUS,),
    ),
    Mutant(
        "branches-rewards-lost",
        "rollout/branches.py",
        "        self.rewards |= arrival.rewards\n",
        "",
        "what an environment gives for a step is lost",
        (SIMULTANEOUS,),
    ),
    Mutant(
        "branches-seed-of-all-tasks",
        "rollout/transitions.py",
        'digest("environment", seed, task.id)',
        'digest("environment", seed)',
        "all tasks begin in one environment",
        (f"{BRANCHES}test_all_branches_and_samples_have_one_environment",),
    ),
    Mutant(
        "sessions-place-lost-on-cancel",
        "rollout/sessions.py",
        "await asyncio.shield(asyncio.ensure_future(self._drop(session)))",
        "await self._drop(session)",
        "a branch that is cancelled while its session closes keeps the place",
        (f"{SESSIONS}test_a_branch_that_is_cancelled_gives_its_place_back",),
    ),
    Mutant(
        "sessions-dead-one-keeps-its-place",
        "rollout/sessions.py",
        "        except BaseException:\n            await self.drop(session)\n            raise\n        if opening",
        "        except BaseException:\n            raise\n        if opening",
        "a session that can't be copied keeps its place for ever",
        (f"{SESSIONS}test_a_session_whose_copying_fails_gives_its_place_back",),
    ),
    Mutant(
        "sessions-open-after-the-run",
        "rollout/sessions.py",
        "        if self._ended:\n",
        "        if False:\n",
        "a session opens when all are closed, and stays open",
        (f"{SESSIONS}test_nothing_opens_when_the_run_has_ended",),
    ),
    Mutant(
        "branches-rewards-of-a-replay",
        "rollout/transitions.py",
        "self.seen, self.rewards, here.answer, here.end)",
        "self.seen, other.rewards, here.answer, there.end)",
        "other rewards and endings in a replay are not noticed",
        ("tests/test_replay.py::test_a_replay_that_differs_is_noticed_and_changes_nothing",),
    ),
    Mutant(
        "branches-done-twice-at-once",
        "rollout/branches.py",
        "            async with self._arriving.setdefault(node, asyncio.Lock()):\n",
        "            async with asyncio.Lock():\n",
        "two branches that meet do the same work on two sessions",
        (f"{BRANCHES}test_what_many_ask_for_at_the_same_time_is_done_once",),
    ),
    Mutant(
        "branches-sessions-of-all-trees",
        "rollout/branches.py",
        "        return self, node\n",
        "        return node\n",
        "samples of a task take and close each other's sessions",
        (f"{FAULTS}test_samples_of_one_task_have_sessions_of_their_own",),
    ),
    Mutant(
        "branches-calls-beyond-the-limit",
        "rollout/taken.py",
        "            left = None if left is None else max(0, left - len(turn.calls))\n",
        "",
        "actors who call at the same time each have all calls that are left",
        (f"{BRANCHES}test_no_more_calls_are_run_than_are_left_to_all_who_act",),
    ),
    Mutant(
        "branches-cut-off-call-meets-whole-one",
        "trajectories/turn.py",
        '        *(["truncated"] if truncated else []),\n',
        "",
        "a turn that was cut off is the turn that was not",
        (
            "tests/test_jsonl.py::test_that_a_turn_was_cut_off_comes_back_also_where_its_sample_does_not",
        ),
    ),
    Mutant(
        "states-that-change",
        "rollout/transitions.py",
        "    _check_frozen(found.data)\n",
        "",
        "a branch may change the state of others",
        (f"{FAULTS}test_data_that_can_be_changed_fails_its_item",),
    ),
    Mutant(
        "cancelled-inside-ends-the-run",
        "rollout/timing.py",
        "            if task is None or task.cancelling():\n",
        "            if True:\n",
        "what an environment cancels ends the whole run",
        (f"{FAULTS}test_what_an_environment_should_not_do_fails_its_item",),
    ),
    Mutant(
        "environments-unchecked",
        "rollout/driver.py",
        "        check_environment(environment, shared)\n",
        "",
        "an environment that lacks a method is found out in the middle of a run",
        (f"{FAULTS}test_an_environment_that_lacks_something_is_refused",),
    ),
    Mutant(
        "secret-images-leave",
        "trajectories/redaction.py",
        'Part(f"<{part.source}>", part.audience) if',
        'replace(part, text=f"<{part.source}>") if',
        "an image that only a secret shows is exported",
        ("tests/test_jsonl.py::test_an_image_that_only_a_secret_shows_stays_home",),
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
    Mutant(
        "play-rewards-are-lost",
        "runs/play.py",
        "for turn, reward in one.rewards.items()]",
        "for turn, reward in one.rewards.items() if False]",
        "what an environment rewards is not in the store",
        (f"{PLAY}test_each_turn_that_was_rewarded_has_its_reward_and_no_other_turn",),
    ),
    Mutant(
        "play-rewards-of-the-last-turn",
        "rollout/branches.py",
        "self.rewards |= arrival.rewards",
        "self.rewards = dict(arrival.rewards)",
        "only the last turn of an episode keeps its reward",
        (
            f"{PLAY}test_each_turn_that_was_rewarded_has_its_reward_and_no_other_turn",
            f"{PLAY}test_rewards_of_sessions_differ_by_turn_and_are_given_once",
        ),
    ),
)
