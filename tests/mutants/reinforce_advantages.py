"""Faults of how paths get their advantages, and of what is refused where they can't have any."""

from tests.mutation.mutant import Mutant

TESTS, BAD = "tests/test_reinforce_advantages.py::", "tests/test_reinforce_bad_input.py::"
VALUED = f"{TESTS}test_a_critics_values_are_what_was_expected_and_a_path_that_was_cut_off_goes_on_in_them"
WHITE = f"{TESTS}test_whitening_is_over_the_tokens_of_all_paths_of_the_step"
COST = f"{TESTS}test_a_divergence_in_the_reward_costs_each_token_what_it_is_likelier_than_the_reference_said"
FAILED = f"{BAD}test_dialogues_that_failed_or_were_not_graded_leave_their_groups_and_are_counted"
NO_REWARD = f"{BAD}test_a_run_without_any_reward_stops_and_says_that_it_had_none[rl/grpo]"
CUT = f"{BAD}test_a_limit_that_cuts_every_dialogue_off_is_named_where_nothing_can_be_learned"
ROOM = f"{BAD}test_a_length_that_leaves_no_row_is_refused_before_the_run"
FLAT = f"{BAD}test_flat_groups_are_learned_from_by_what_needs_no_advantage_and_yet_end_the_run"
ADVANTAGES, LOOP = "runs/reinforce/advantages.py", "runs/reinforce/loop.py"


def _fault(name: str, file: str, find: str, replace: str, breaks: str, *tests: str) -> Mutant:
    return Mutant(f"reinforce-advantages-{name}", file, find, replace, breaks, tests)


MUTANTS = (
    _fault("cut-is-the-end", ADVANTAGES, "ends[-1] if path.outcome.ending.truncated else 0.0", "0.0",
           "what a limit cut off counts as if nothing could come after it", VALUED),
    _fault("every-path-goes-on", ADVANTAGES, "ends[-1] if path.outcome.ending.truncated else 0.0", "ends[-1]",
           "a path that has ended is worth what the critic says after it", VALUED),
    _fault("returns-unplaced", ADVANTAGES, "estimates.append(gae(rewards, values,",
           "estimates.append(gae(rewards, [0.0] * len(values),", "the critic has no part in advantages", VALUED),
    _fault("too-long-uncounted", ADVANTAGES, '"paths_too_long": len(graded) - len(kept)', '"paths_too_long": 0',
           "paths that a critic can't read are left out in silence", VALUED),
    _fault("never-white", ADVANTAGES, "    if settings.whiten:", "    if False:",
           "advantages have any size", WHITE),
    _fault("divergence-free", "runs/reinforce/preparing.py", "if row.reference is None or row.logprobs is None:",
           "if True:", "reward.kl costs nothing", COST),
    _fault("failed-uncounted", "runs/reinforce/measured.py", '"samples_failed": drawn.played - len(outcomes)',
           '"samples_failed": 0', "nobody is told that dialogues failed", FAILED),
    _fault("wrong-reason", LOOP, 'if not any(one["paths"] for one in last) and', "if False and",
           "a run without a grade is said to have equal rewards", NO_REWARD),
    _fault("limit-unsaid", LOOP, 'tokens" if cut else ""', 'tokens" if cut > 1 else ""',
           "nobody is told that a limit cut everything off", CUT),
    _fault("no-room", "recipes/rl/recipe.py", '        check_room("update", s.update, context, shortest)\n', "",
           "a run samples a step before it says that no row fits", ROOM),
    _fault("no-room-for-the-critic", "recipes/rl/recipe.py", "        if s.has_critic:\n            check_room",
           "        if False:\n            check_room", "the critic can read no row", ROOM),
    _fault("flat-unlearned", "recipes/reinforcing.py",
           "always=bool(s.loss.kl or s.loss.entropy or s.reward.kl)", "always=False",
           "an entropy bonus moves nothing where rewards are equal", FLAT),
)  # fmt: skip
