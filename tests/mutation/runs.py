"""Faults in reinforcement learning's steps, roles, statistics and runs that resume."""

from copy import deepcopy
from dataclasses import replace

from tests.mutation.fault import (
    Fault,
    around,
    becomes,
    edited,
    given,
    result,
    returns,
    settings,
    swap,
    without_last,
)

V = "coterie.evaluation"
REINFORCE = "tests/runs/test_reinforce.py::"
ACTS = f"{REINFORCE}test_rewards_of_acts_stand_at_the_last_token_of_the_agents_turn"
FLAT = f"{REINFORCE}test_rewards_that_never_differ_leave_the_policy_bitwise_as_it_was"
BATCH = "tests/runs/test_reinforce_batch.py::"
ORDER = f"{BATCH}test_the_minibatches_of_an_epoch_have_each_group_once"
STALE = f"{BATCH}test_a_path_of_which_one_turn_is_of_other_weights_is_dropped_whole_and_counted"
CRITIC = f"{BATCH}test_a_critics_values_are_expected_and_go_on_after_a_path_that_was_cut_off"
COST = f"{BATCH}test_a_divergence_costs_each_token_what_it_is_likelier_than_its_reference"
TRAINED = (
    f"{REINFORCE}test_the_record_names_every_trained_token_with_the_numbers_that_the_loss_used"
)
DYNAMIC = f"{BATCH}test_dynamic_sampling_counts_all_groups_and_trains_on_informative_ones"
LONG = f"{BATCH}test_rows_that_are_too_long_are_left_out_and_counted_and_the_others_are_trained_on"
PATH_CUT = f"{BATCH}test_a_path_that_was_cut_off_is_compared_and_not_trained_on"
INFORMATIVE = f"{BATCH}test_a_task_is_informative_if_one_of_its_agents_groups_is"
CRITICS = f"{BATCH}test_each_role_has_the_advantages_of_its_own_critic"
WHITENING = f"{BATCH}test_whitening_is_over_the_tokens_of_all_paths_of_the_step"
STATISTICS = "tests/test_statistics.py::"
CONSISTENCY = "tests/runs/test_self_consistency.py::"
BY_HAND = f"{CONSISTENCY}test_by_hand_with_equal_answers"
SCALING = "tests/runs/test_test_time_scaling.py::"
ROLES = "tests/recipes/test_two_roles.py::"
RESUMING = "tests/runs/test_resuming.py::"
NEXT_RUN = "tests/cli/test_data_filter.py::test_a_next_run_leaves_out_what_this_one_found_too_easy_or_too_hard"
ROLES_CANNOT = f"{ROLES}test_roles_that_cannot_be_are_refused"
STAGES_CANNOT = f"{ROLES}test_stages_that_cannot_run_are_refused"
NOTHING_RECORDED = f"{RESUMING}test_nothing_is_recorded_if_everything_fails"
STAGE_BEGUN = f"{RESUMING}test_a_stage_continues_under_other_settings_only_before_its_first_result"
SEEDS_RESAMPLED = f"{STATISTICS}test_seeds_are_resampled_too"
BOOTSTRAP_INTERVAL = f"{STATISTICS}test_bootstrap_interval_of_two_values_is_their_range"
WILSON = f"{STATISTICS}test_right_and_wrong_answers_have_wilsons_interval"
EQUAL = f"{STATISTICS}test_equal_values_that_are_no_answers"
PAIRED = f"{STATISTICS}test_a_paired_test_by_hand"
EXPERT_ITERATION = (
    "tests/runs/test_reinforce_batch.py::test_expert_iteration_imitates_the_right_paths_alone"
)
EXPERIMENTS = "tests/project/test_experiments.py::"
ONE_SEED = f"{EXPERIMENTS}test_a_claim_holds_only_if_both_tests_agree_and_never_from_one_seed"
GRADE_AND_COUNT = f"{EXPERIMENTS}test_a_grade_does_not_overwrite_a_count"
GATE_SEED = f"{EXPERIMENTS}test_a_gate_plays_no_seed_of_the_claims_and_a_claim_no_spare_seed"
TWO_SEEDS = f"{EXPERIMENTS}test_no_held_out_task_belongs_to_two_seeds"
BOOTSTRAP_INTERVAL_NEARS = (
    f"{STATISTICS}test_bootstrap_interval_nears_the_normal_one_on_many_values"
)
DIFFERENCES = (
    f"{STATISTICS}test_the_interval_of_differences_is_of_pairs_and_reaches_both_sides_of_equal_ones"
)
COMPARED = (
    "tests/cli/test_evaluate_benchmark.py::"
    "test_policies_are_compared_task_by_task_and_by_the_values_of_a_column"
)
CHECKPOINTS = "tests/runs/test_rl_checkpoints.py::"
BY_ROLE = f"{CHECKPOINTS}test_each_role_has_its_own_numbers_in_lines_and_on_the_page"
STEP_WEIGHTS = f"{CHECKPOINTS}test_a_step_has_the_weights_that_sampled_the_next_one"
BEST = f"{CHECKPOINTS}test_the_best_step_is_kept_and_becomes_the_result"
CTRL_C = f"{CHECKPOINTS}test_ctrl_c_saves_the_newest_step_and_the_run_ends_as_if_it_had_not_been[sampling]"
JUDGE_PICKS = f"{SCALING}test_a_judge_picks_one_of_several_dialogues"


TAUGHT = (
    "tests/recipes/test_rl_roles.py::"
    "test_a_policy_learns_from_itself_with_a_secret_that_its_rows_never_have"
)


def _no_seeds(original, groups, count, rng):
    """Resample tasks within the given seeds, and not the seeds."""
    return sum(original([group], count, rng) for group in groups) / len(groups)


TURNS = "tests/rewards/test_turn_advantages.py::"
TREES = "tests/rollout/test_group_search.py::"
ALSO_ENDED = f"{TURNS}test_a_turn_is_compared_with_all_other_paths_also_ended_ones"
DISCOUNTS = f"{TURNS}test_returns_of_turns_are_discounted_and_can_be_immediate"
STATES = f"{TURNS}test_gigpo_adds_turns_after_equal_states_and_nothing_for_a_state_seen_once"
RUNNING = f"{TURNS}test_the_running_mean_of_a_role_is_the_one_before_the_path"
TURN_ROW = f"{TURNS}test_a_row_of_one_turn_has_its_prompt_its_logprobs_and_its_own_count"
RECURSION = f"{TREES}test_returns_are_those_of_a_plain_recursion"
SPINE = f"{TREES}test_a_spine_has_a_group_at_each_turn_of_its_first_rollout"
CROSSED = f"{TREES}test_crossed_turns_have_the_mean_over_the_turns_of_the_partner"
ONE_CONTINUATION = f"{TREES}test_states_of_untrained_agents_have_one_continuation"
STOPS = (
    f"{TREES}test_alternatives_that_stop_have_the_advantages_of_whole_ones[first-trained0-Rounds]"
)
ENDS = f"{TREES}test_the_reward_of_a_rollout_is_that_of_the_turns_that_end_it"
CUT_TURNS = f"{TREES}test_a_turn_was_cut_off_if_all_rollouts_of_its_return_were"
ONE_BASE = "tests/recipes/test_rl_roles.py::test_roles_of_one_model_have_its_weights_in_memory_once"
MULTIPLE = f"{TREES}test_equal_siblings_are_separate_samples"


def _survivors(original, paths, baseline, gamma=1.0, immediate=False):
    """Compare a turn only with the paths that got as far."""
    result = original(paths, baseline, gamma, immediate)
    lengths = [len(path.ends) for path in paths]
    raised = [
        values
        and [value + sum(0.5 for n in lengths if n <= turn) for turn, value in enumerate(values)]
        for values in result.values
    ]
    return replace(result, values=raised)


def _distinct(groups):
    """Count siblings with equal turns once."""
    return [
        replace(group, members=tuple({m.leaf: m for m in group.members}.values()))
        for group in groups
    ]


def _reversed(critics):
    """The critic of another role."""
    return critics[::-1]


FAULTS = (
    # A teacher that knows the answer.
    Fault(
        "coterie.runs.reinforce_batch:show_secrets", returns(lambda messages: messages), [TAUGHT]
    ),
    # Groups of turns.
    Fault("coterie.rewards.turn_advantages:turn_advantages", around(_survivors), [ALSO_ENDED]),
    Fault("coterie.rewards.turn_advantages:turn_returns", given(gamma=1.0), [DISCOUNTS]),
    Fault("coterie.rewards.turn_advantages:state_advantages", given(weight=0.0), [STATES]),
    Fault(
        "coterie.rewards.turn_advantages:role_advantages",
        around(lambda original, paths, means, decay: original(paths, {}, decay)),
        [RUNNING],
    ),
    Fault(
        "coterie.record.rows:turn_row",
        around(lambda original, rows, turn: replace(original(rows, turn), path_tokens=99)),
        [TURN_ROW],
    ),
    Fault("coterie.runs.reinforce_trees:TaskTree._group_below", returns(None), [RECURSION]),
    Fault("coterie.runs.reinforce_trees:groups_of", result(_distinct), [MULTIPLE]),
    Fault("coterie.rollout.group_search:draw_of", returns(0), [CROSSED]),
    Fault("coterie.rollout.group_search:GroupSearch.known_turn", returns(None), [CROSSED]),
    Fault("coterie.rollout.group_search:GroupSearch._continued", returns(()), [SPINE]),
    Fault(
        "coterie.rollout.group_search:GroupSearch._is_trained", returns(True), [ONE_CONTINUATION]
    ),
    Fault("coterie.rollout.group_search:GroupSearch.stops", returns(False), [STOPS]),
    Fault("coterie.runs.reinforce_trees:TaskTree._ends_path", returns(True), [ENDS]),
    Fault(
        "coterie.runs.reinforce_trees:_complete",
        around(lambda original, endings: endings[0]),
        [CUT_TURNS],
    ),
    # A step: which paths are trained, in which order, with which advantages.
    Fault("coterie.recipes.rl:minibatches", given(seed="0"), [ORDER]),
    Fault("coterie.recipes.rl:minibatches", without_last, [ORDER]),
    Fault("coterie.recipes.rl:minibatches", settings(epochs=1), [ORDER]),
    Fault("coterie.recipes.rl:_rows", given(agents=lambda agents: agents[:0]), [LONG]),
    Fault(
        "coterie.runs.reinforce_batch:fresh_paths",
        around(lambda original, paths, policies: list(paths)),
        [STALE],
    ),
    Fault("coterie.recipes.rl:_has_gradient", returns(True), [FLAT]),
    Fault("coterie.runs.reinforce:ReinforcementLoop._flat_roles", returns(()), [FLAT]),
    Fault("coterie.recipes.rl:_masked", returns(False), [PATH_CUT]),
    Fault("coterie.runs.reinforce_batch:informative_tasks", returns([]), [DYNAMIC]),
    Fault("coterie.recipes.rl:prepare", given(s=edited(rollout=edited(rounds=1))), [DYNAMIC]),
    Fault(
        "coterie.runs.reinforce_batch:informative_tasks",
        given(paths=lambda paths: paths[:2]),
        [INFORMATIVE],
    ),
    Fault("coterie.runs.reinforce_batch:with_kl_cost", given(weight=0.0), [COST]),
    Fault(
        "coterie.runs.reinforce_batch:with_kl_cost", given(weight=lambda weight: -weight), [COST]
    ),
    Fault("coterie.recipes.rl:critic_batch", settings(gae_lambda=0.0), [CRITIC]),
    Fault("coterie.recipes.rl:gae", given(bootstrap=0.0), [CRITIC]),
    Fault("coterie.recipes.rl:critics_batch", given(critics=_reversed), [CRITICS]),
    Fault("coterie.recipes.rl:critic_batch", settings(normalize=False), [WHITENING]),
    Fault("coterie.runs.reinforce_batch:_steps", returns(()), [ACTS]),
    Fault(
        "coterie.runs.reinforce_batch:group_left_out",
        result(lambda left_out: left_out[1:]),
        [DYNAMIC],
    ),
    Fault(
        "coterie.training.policy_gradient:PolicyGradient.facts",
        result(lambda facts: [{**row, "logprob": row["entropy"]} for row in facts]),
        [TRAINED],
    ),
    Fault(
        "coterie.runs.reinforce_batch:step_credit", result(lambda credit: credit[:-1]), [TRAINED]
    ),
    Fault("coterie.runs.reinforce_batch:_whole", given(rewards={}), [ACTS]),
    Fault(
        "coterie.cli.data_rows:step_records",
        result(lambda steps: dict(list(steps.items())[:1])),
        [NEXT_RUN],
    ),
    # Checks of a run's health: none ever fires.
    Fault("coterie.reports.health:Rule.breaks", returns(False), ["tests/reports/test_health.py"]),
    Fault("coterie.cli.report:_held_out", returns([]), ["tests/reports/test_report_page.py"]),
    # Checkpoints by step.
    Fault(
        "coterie.runs.reinforce_record:updates_after",
        around(lambda original, records, step, role: original(records, max(step - 1, 0), role)),
        [STEP_WEIGHTS],
    ),
    Fault("coterie.runs.reinforce:finish_with", returns(None), [BEST]),
    Fault("coterie.runs.interruption:Interruption._save_once", returns(None), [CTRL_C]),
    # Roles: versions, shared bases.
    Fault("coterie.models.adapters:share_weights", becomes(deepcopy), [ONE_BASE]),
    Fault("coterie.runs.roles:Roles.load_source", given(keeps_base=True), [ONE_BASE]),
    Fault("coterie.runs.loop:check_roles", returns(None), [ROLES_CANNOT]),
    Fault("coterie.runs.loop:check_stages", returns(None), [STAGES_CANNOT]),
    # What resumes and what does not.
    Fault("coterie.runs.work_items:_has_succeeded", returns(True), [NOTHING_RECORDED]),
    Fault("coterie.runs.run:Run.begin", returns(None), [STAGE_BEGUN]),
    # Statistics and votes.
    Fault("experiments.paired_test:_two_level_means", around(_no_seeds), [SEEDS_RESAMPLED]),
    Fault(
        f"{V}:resampled_means",
        around(lambda original, values, count, rng: original(values[:1], count, rng)),
        [BOOTSTRAP_INTERVAL],
    ),
    Fault("experiments.paired_test:paired_bootstrap", given(margin=0.0), [PAIRED]),
    Fault("experiments.paired_test:paired_bootstrap", given(clusters=None), [PAIRED]),
    Fault("experiments.paired_test:paired_bootstrap", swap("a", "b"), [PAIRED]),
    # Protocol of the claims.
    Fault("experiments.paired_test:paired_t", returns(0.0), [ONE_SEED]),
    # Expert iteration that punishes wrong paths is reinforcement learning with a baseline.
    Fault("coterie.rewards.turn_advantages:role_advantages", given(decay=0.5), [EXPERT_ITERATION]),
    Fault(
        "experiments.results:asdict",
        around(lambda original, row: (values := original(row)) | values.get("grades", {})),
        [GRADE_AND_COUNT],
    ),
    Fault(
        "experiments.experiment:Experiment.spare",
        around(lambda original, self: self),
        [GATE_SEED],
    ),
    Fault(
        "experiments.experiment:content_of",
        around(lambda original, task: task.id),
        [TWO_SEEDS],
    ),
    Fault(f"{V}:percentiles", given(confidence=0.5), [BOOTSTRAP_INTERVAL_NEARS]),
    # As if the two policies had played different tasks.
    Fault(
        "coterie.runs.evaluation:Evaluation.compare",
        around(lambda original, self, baseline: original(self, replace(self))),
        [COMPARED],
    ),
    Fault(
        f"{V}:difference_interval",
        around(lambda original, gaps, **words: original(sorted(gaps)[: len(gaps) // 2], **words)),
        [DIFFERENCES],
    ),
    Fault(
        "coterie.runs.reinforce_batch:role_metrics",
        around(
            lambda original, samples, batch, policies: original(
                samples, batch, [replace(one, agents=("Alice", "Bob")) for one in policies]
            )
        ),
        [BY_ROLE],
    ),
    Fault(
        f"{V}:wilson_interval",
        around(lambda original, values, *_: (values.mean(), values.mean())),
        [WILSON, EQUAL],
    ),
    Fault(
        f"{V}:task_curve",
        given(draws=lambda draws: [replace(draw, score=1 - draw.score) for draw in draws]),
        [BY_HAND],
    ),
    Fault(
        f"{V}:task_curve",
        result(lambda points: [p._replace(majority=p.coverage) for p in points]),
        [BY_HAND],
    ),
    Fault("coterie.runs.picker:read_pick", returns(1), [JUDGE_PICKS]),
)
