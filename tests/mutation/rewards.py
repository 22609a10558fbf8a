"""Faults in advantages, rewards, critics, and what is selected from them."""

import math
from dataclasses import replace

from tests.mutation.fault import (
    Fault,
    around,
    becomes,
    each,
    edited,
    given,
    opposite,
    result,
    returns,
    reverse,
    settings,
    swap,
)

A = "coterie.rewards.advantages:"
W = "coterie.rewards."
S = "coterie.selection."
ADV = "tests/test_advantages.py::"
CALCULATOR = f"{ADV}test_each_baseline_gives_what_a_calculator_gives"
GAE = f"{ADV}test_gae_is_the_sum_of_discounted_errors"
REWARDS = "tests/test_rewards.py::"
EQUATION = f"{REWARDS}test_reward_is_task_minus_tokens_plus_inverse_loss"
TRUNCATED = f"{REWARDS}test_a_truncated_dialogue_has_terms_of_minus_one_and_sets_no_scale"
LEAK = f"{REWARDS}test_a_leak_is_an_utterance_that_speaks_for_the_other"
OPTIMA = "tests/test_optima.py::"
FROZEN = f"{OPTIMA}test_losses_are_those_of_the_frozen_base_without_formats"
PATH = "tests/test_reinforce.py::test_the_reward_of_a_path_is_what_was_given_and_what_the_run_adds"
FORM = "tests/test_reinforce.py::test_a_path_that_breaks_its_form_is_worth_what_the_run_says"
CRITIC = "tests/test_step_critic.py::"
RATIO = f"{CRITIC}test_an_advantage_is_the_log_ratio_of_critic_and_reference"
HEAD = f"{CRITIC}test_a_head_scores_candidates_as_one_by_one"
TARGET = "tests/test_target_likelihood.py::"
REPLY = "tests/test_corrections.py::test_a_reply_is_read_as_what_it_says"
SELECT = "tests/test_selection.py::"
BEST = f"{SELECT}test_best_of_each_task_above_the_threshold_then_the_top_share"
PAIRS = "tests/test_tree_search.py::"
BOUNDS = f"{PAIRS}test_both_bounds_are_exclusive"
SIBLINGS = f"{PAIRS}test_all_siblings_that_differ_enough_are_pairs_the_best_first"
NEARLY_EQUAL = f"{ADV}test_nearly_equal_rewards_are_not_blown_up"
GROUPS_KEPT = f"{ADV}test_groups_are_kept_apart_in_any_order_and_so_are_actors"
FAILED_PATH = f"{ADV}test_a_failed_path_leaves_its_group_before_the_mean"
REWARDS_STEPS = f"{ADV}test_rewards_of_steps_are_summed_for_a_group_and_placed_for_gae"
PATH_COMES = f"{ADV}test_a_path_that_comes_once_for_each_of_its_rows_is_refused_and_so_is_one_without_a_group"
PATH_CUT = (
    f"{ADV}test_a_path_that_was_cut_off_goes_on_in_its_last_value_and_one_that_ended_does_not"
)
WHITENING_OVER = f"{ADV}test_whitening_is_over_all_tokens_of_the_step"
DIVERGENCE_COSTS = (
    f"{ADV}test_divergence_costs_reward_where_the_policy_is_likelier_than_its_reference"
)
OBSERVATIONS_CHANGE = f"{ADV}test_observations_change_no_advantage_and_no_return"
WHAT_NOTHING = f"{ADV}test_what_nothing_predicts_has_no_place_among_trained_tokens"
WHAT_CUT = f"{ADV}test_what_was_cut_off_costs_all_by_its_record_and_running_out_of_turns_nothing"
LENGTH_COSTS = f"{ADV}test_length_costs_softly_by_what_was_sampled"
OBSERVATIONS_CHANGE_NO = "tests/test_reinforce.py::test_observations_change_no_reward_of_length"
LOSS_NEAR = f"{REWARDS}test_a_loss_near_zero_is_rewarded_no_more_than_the_smallest_one"
BOUNDED_LOSS = f"{REWARDS}test_the_bounded_loss_term_is_at_most_its_weight"
TREES_LEAK = f"{REWARDS}test_in_trees_a_leak_loses_the_task_term"
TOKENS_MAY = f"{REWARDS}test_tokens_may_be_relative_to_a_given_number"
REPEAT_TOLD = f"{REWARDS}test_a_repeat_is_told_without_case_blanks_and_the_own_name"
CANDIDATES_CANNOT = f"{CRITIC}test_candidates_that_cannot_be_scored_are_errors"
TOKENS_TARGET = f"{TARGET}test_mean_loglikelihoods_are_over_the_tokens_of_the_target"
PERPLEXITY_EXPONENTIAL = f"{TARGET}test_a_perplexity_is_the_exponential_of_the_mean_loss"
PLAN_QUOTES = f"{TARGET}test_a_plan_that_quotes_an_action_is_a_leak"
EASIEST_CAN = f"{SELECT}test_the_easiest_can_be_left_out"
GATE_KEEPS = f"{SELECT}test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward"
TOP_SHARE = f"{PAIRS}test_the_top_share_of_a_task_is_rounded_down_but_one_pair_stays"
GATE_LETS = f"{PAIRS}test_the_gate_lets_only_right_utterances_be_chosen"
SIBLINGS_MAKE = f"{SELECT}test_siblings_make_a_pair_from_the_margin_on"
NODE_FAR = f"{SELECT}test_a_node_far_from_the_end_needs_more_visits_up_to_a_bound"
EQUAL_TEXTS = f"{SELECT}test_equal_texts_make_no_pair"
WHOLE_RUNS = f"{SELECT}test_whole_runs_are_paired_where_they_first_differ"
WHAT_KEPT = f"{SELECT}test_what_is_kept_depends_on_the_seed"
TASKS_MOST = f"{SELECT}test_the_tasks_with_the_most_pairs_are_kept"
EACH_TASK = f"{SELECT}test_each_task_gives_the_same_share_and_the_total_is_exact"
HALVES_NEVER = f"{SELECT}test_halves_never_invert_the_scores"
SMALLER_SHARE = f"{SELECT}test_a_smaller_share_leaves_the_middle_out"
REPEATS_MAKE = f"{SELECT}test_repeats_make_pairs_of_a_full_success_and_what_is_worse"


def _failed_is_zero(original, self):
    return math.fsum(r or 0.0 for r in (self.reward, *(reward for _, reward in self.steps)))


def _biased(original, values, floor):
    share = math.sqrt(len(values) / (len(values) - 1))
    return [share * value for value in original(values, floor)]


def _each_path(original, paths):
    return [original([path])[0] for path in paths]


def _first_tokens(original, rows):
    ends = original(rows)
    return {turn: place - 1 for turn, place in ends.items()}


def _all_values(original, rows):
    return [value for row in rows for value in row.values or ()]


def _last_selected(original, rewards, settings):
    negative = {
        task: [replace(r, terms={"task": -r.total}) for r in rs] for task, rs in rewards.items()
    }
    return original(negative, settings)


FAULTS = (
    # Advantages.
    Fault(f"{A}_standardize", around(_biased), [CALCULATOR]),
    Fault(f"{A}STD_FLOOR", becomes(1e-12), [NEARLY_EQUAL]),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "leave_one_out" else kind),
        [CALCULATOR],
    ),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "mean_std" else kind),
        [CALCULATOR],
    ),
    Fault(f"{A}group_advantages", given(paths=each(edited(group="all"))), [GROUPS_KEPT]),
    Fault(f"{A}SampledPath.total", around(_failed_is_zero), [FAILED_PATH]),
    Fault(f"{A}SampledPath.token_rewards", reverse, [REWARDS_STEPS]),
    Fault(f"{A}_check", returns(None), [PATH_COMES]),
    Fault(f"{A}gae", given(lam=1.0), [GAE]),
    Fault(f"{A}gae", given(gamma=1.0), [GAE]),
    Fault(f"{A}gae", result(lambda both: (both[0], both[0]), "returns are advantages"), [GAE]),
    Fault(f"{A}gae", given(bootstrap=0.0), [PATH_CUT]),
    Fault(f"{A}whiten", around(_each_path), [WHITENING_OVER]),
    Fault(f"{A}kl_rewards", swap("logprobs", "reference"), [DIVERGENCE_COSTS]),
    Fault(f"{W}advantages:turn_ends", around(_first_tokens), [OBSERVATIONS_CHANGE]),
    Fault(f"{W}advantages:trained_values", around(_all_values), [WHAT_NOTHING]),
    # The reward of a path.
    Fault(f"{W}dialogue_reward:overlong_penalty", given(finish="end"), [WHAT_CUT]),
    Fault(
        f"{W}dialogue_reward:overlong_penalty", given(limit=lambda limit: limit + 1), [LENGTH_COSTS]
    ),
    Fault(
        f"{W}dialogue_reward:PathReward.compute",
        result(lambda reward: reward or 0.0, "ungraded is zero"),
        [PATH],
    ),
    Fault(f"{W}dialogue_reward:PathReward.__init__", settings(gated=False), [PATH]),
    Fault(f"{W}dialogue_reward:PathReward.__init__", settings(repeats=0.0), [PATH]),
    Fault(f"{W}dialogue_reward:_breaks_form", returns(False), [FORM]),
    Fault(f"{W}dialogue_reward:_breaks_form", opposite, [FORM]),
    Fault(
        f"{W}dialogue_reward:GradedPath.own_turns",
        around(lambda original, self: self.path),
        [OBSERVATIONS_CHANGE_NO],
    ),
    # Optima's reward, equation 1.
    Fault(f"{W}dialogue_reward:rewards", settings(lambda_token=lambda weight: -weight), [EQUATION]),
    Fault(f"{W}dialogue_reward:rewards", settings(min_loss=1e-9), [LOSS_NEAR]),
    Fault(f"{W}dialogue_reward:rewards", settings(loss_term="inverse"), [BOUNDED_LOSS]),
    Fault(f"{W}dialogue_reward:rewards", settings(leaks_lose_task=False), [TREES_LEAK]),
    Fault(f"{W}dialogue_reward:rewards", given(max_tokens=None), [TOKENS_MAY]),
    Fault(f"{W}dialogue_reward:DialogueSample.truncated", returns(False), [TRUNCATED]),
    Fault(
        f"{W}dialogue_reward:largest_loss",
        around(lambda original, losses, path: min(losses[turn] for turn in path)),
        [FROZEN],
    ),
    Fault(f"{W}dialogue_reward:count_leaks", given(agents=lambda agents: agents[:1]), [LEAK]),
    Fault(f"{W}dialogue_reward:count_repeats", returns(0), [REPEAT_TOLD]),
    Fault(f"{W}critics:_of_turns", given(logprobs=lambda logprobs: [*logprobs[1:], 0.0]), [FROZEN]),
    Fault(
        f"{W}critics:turn_losses",
        result(lambda losses: {turn: -loss for turn, loss in losses.items()}, "negated"),
        [FROZEN],
    ),
    # Critics: SWEET-RL's advantages, MOAT's perplexity and corrections, judges.
    Fault(f"{W}critics:LikelihoodCritic.__init__", swap("critic", "reference"), [RATIO]),
    Fault(f"{W}critics:LikelihoodCritic.__init__", given(normalise="none"), [RATIO]),
    Fault(f"{W}critics:HeadCritic.__init__", given(pool="last"), [HEAD]),
    Fault(f"{W}critics:HeadCritic._pooled", given(start=lambda start: start - 1), [HEAD]),
    Fault(f"{W}critics:_checked", around(lambda original, numbers: numbers), [CANDIDATES_CANNOT]),
    Fault(
        f"{W}critics:mean_loglikelihoods",
        result(lambda found: [one * 2 for one in found], "doubled"),
        [TOKENS_TARGET],
    ),
    Fault(
        f"{W}critics:mean_loglikelihoods",
        given(target=lambda target: target[:-1]),
        [TOKENS_TARGET],
    ),
    Fault(
        f"{W}critics:perplexity",
        given(mean_loglikelihood=lambda mean: -mean),
        [PERPLEXITY_EXPONENTIAL],
    ),
    Fault(f"{W}dialogue_reward:quotes", returns(False), [PLAN_QUOTES]),
    Fault(
        f"{W}critics:read_correction",
        given(reply=lambda reply: reply.replace("</think>", "")),
        [REPLY],
    ),
    Fault(
        f"{W}critics:read_correction",
        result(edited(verdict="accepted"), "always accepted"),
        [REPLY],
    ),
    # Selections.
    Fault("coterie.selection:best_demonstrations", around(_last_selected), [BEST]),
    Fault("coterie.selection:best_demonstrations", settings(threshold=-math.inf), [BEST]),
    Fault("coterie.selection:best_demonstrations", settings(top_share=1.0), [BEST]),
    Fault("coterie.selection:best_demonstrations", settings(skip_share=0.0), [EASIEST_CAN]),
    Fault("coterie.selection:best_demonstrations", settings(min_score=0.0), [GATE_KEEPS]),
    Fault("coterie.selection:sibling_pairs", settings(theta_filter=-math.inf), [BOUNDS]),
    Fault("coterie.selection:sibling_pairs", settings(theta_diff=0.0), [SIBLINGS]),
    Fault("coterie.selection:sibling_pairs", reverse, [SIBLINGS]),
    Fault("coterie.selection:sibling_pairs", settings(top_share=1.0), [TOP_SHARE]),
    Fault(
        "coterie.selection:sibling_pairs", given(score=lambda score: lambda node: 1.0), [GATE_LETS]
    ),
    Fault("coterie.selection:qualify", settings(margin=0.0), [SIBLINGS_MAKE]),
    Fault("coterie.selection:needed_visits", given(limit=10**9), [NODE_FAR]),
    Fault(
        "coterie.selection:dense_pairs",
        result(lambda found: [replace(p, chosen=p.rejected, rejected=p.chosen) for p in found]),
        [SIBLINGS_MAKE],
    ),
    Fault("coterie.selection:_same_text", returns(False), [EQUAL_TEXTS]),
    Fault(
        "coterie.selection:first_differences",
        given(rewards=lambda rewards: {leaf: -one for leaf, one in rewards.items()}),
        [WHOLE_RUNS],
    ),
    Fault("coterie.selection:densest", given(seed=0), [WHAT_KEPT]),
    Fault("coterie.selection:densest", settings(tasks=None), [TASKS_MOST]),
    Fault("coterie.selection:_shares", given(budget=lambda budget: budget - 1), [EACH_TASK]),
    Fault(
        "coterie.selection:ranked_pairs",
        given(scores=lambda scores: {node: -one for node, one in scores.items()}),
        [HALVES_NEVER],
    ),
    Fault("coterie.selection:ranked_pairs", settings(top_share=0.5), [SMALLER_SHARE]),
    Fault("coterie.selection:trajectory_pairs", given(min_reward=0.0), [REPEATS_MAKE]),
)
