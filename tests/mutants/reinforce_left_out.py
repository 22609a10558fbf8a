"""Faults of what a step of reinforcement learning leaves out: what is dropped, counted and said."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_reinforce_left_out.py::"
STALE = f"{TESTS}test_a_path_of_which_one_turn_is_of_other_weights_is_dropped_whole_and_counted"
DYNAMIC = f"{TESTS}test_dynamic_sampling_counts_all_groups_and_trains_on_those_that_tell_something"
LONG = f"{TESTS}test_rows_that_are_too_long_are_left_out_and_counted_and_the_others_are_trained_on"
TARGETS = (
    f"{TESTS}test_trained_tokens_are_targets_of_policies_in_all_epochs_and_not_prompts_or_a_critics"
)
ALL_LONG = f"{TESTS}test_a_step_of_which_every_row_is_too_long_is_refused_with_what_to_do"
SAID = f"{TESTS}test_what_was_left_out_of_a_step_is_said_in_its_line"
LATER = f"{TESTS}test_all_updates_of_a_step_learn_from_what_the_step_sampled_and_compare_with_that"
BETWEEN = f"{TESTS}test_checkpoints_are_taken_between_steps_alone_however_long_an_update_takes"
PREPARING, UPDATING = "runs/reinforce/preparing.py", "runs/reinforce/updating.py"


def _fault(name: str, file: str, find: str, replace: str, breaks: str, *tests: str) -> Mutant:
    return Mutant(f"reinforce-left-out-{name}", file, find, replace, breaks, tests)


MUTANTS = (
    _fault("stale-by-first-turn", PREPARING, "for row in path.rows for target in row.targets)",
           "for row in path.rows[:1] for target in row.targets)",
           "a path that old weights have gone on with is trained on", STALE),
    _fault("stale-uncounted", PREPARING, '{"paths_stale": len(drawn.paths) - len(fresh)}', '{"paths_stale": 0}',
           "nobody is told that paths were dropped", STALE),
    _fault("stale-group-tells", PREPARING, "kept = set(telling(fresh)[: groups.tasks])",
           "kept = set(telling(drawn.paths)[: groups.tasks])",
           "a group tells something by a path that is dropped, and takes another's place", DYNAMIC),
    _fault("flat-uncounted", PREPARING,
           '        found |= counts(group_advantages([path.sampled for path in fresh], "mean"))\n', "",
           "of what dynamic sampling left out nothing is counted", DYNAMIC),
    _fault("prompts-count-as-trained", UPDATING, "row.target_count for row in rows", "len(row.ids) for row in rows",
        "controls at equal trained tokens are trained on several times as much", TARGETS),
    _fault("targets-of-critics-count", UPDATING, "if learner.what.like is None:", "if learner.what:",
        "a method with a critic is said to learn from twice as much", TARGETS),
    _fault("long-rows-uncounted", UPDATING, "            found.too_long += len(every) - len(rows)\n", "",
           "rows that are too long are left out in silence", LONG),
    _fault("long-rows-of-a-training-uncounted", UPDATING,
           "            learner.trainer.leave_out(len(every) - len(rows), 0)\n", "",
           "a training does not know what it left out", LONG),
    _fault("nothing-fits", UPDATING, "    if found.too_long and not found.updates:", "    if False:",
           "a run goes on for ever of which every row is too long", ALL_LONG),
    _fault("unsaid", "runs/reinforce/measured.py", "    if missing := left_out([metrics]):", '    if missing := "":',
           "the line of a step says nothing of what was left out", SAID),
    _fault("old-of-newer-weights", PREPARING, "    if rules.recomputed:", "    if rules.recomputed and False:",
           "nothing is known of the weights that sampled", LATER),
    _fault("saved-by-the-clock", "runs/reinforce/learner.py", '{"save_every_seconds": None}', "{}",
           "a policy and its critic save at different updates, and go back to the beginning", BETWEEN),
)  # fmt: skip
