"""Faults in advantages, rewards, critics, and what is selected from them."""

import math
import random
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
    swap,
)

A = "coterie.rewards.advantages:"
ADV = "tests/test_advantages.py::"
CALCULATOR = f"{ADV}test_each_baseline_gives_what_a_calculator_gives"
GAE = f"{ADV}test_gae_is_the_sum_of_discounted_errors"
REWARDS = "tests/test_rewards.py::"
EQUATION = f"{REWARDS}test_reward_is_task_minus_tokens_plus_inverse_loss"
TRUNCATED = f"{REWARDS}test_a_truncated_dialogue_has_terms_of_minus_one_and_sets_no_scale"
LEAK = f"{REWARDS}test_a_leak_is_an_utterance_that_speaks_for_the_other"
OPTIMA = "tests/test_optima_algorithm.py::"
FROZEN = f"{OPTIMA}test_losses_are_those_of_the_frozen_base_without_formats"
PATH = "tests/test_reinforce.py::test_the_reward_of_a_path_is_what_was_given_and_what_the_run_adds"
FORM = "tests/test_reinforce.py::test_a_path_that_breaks_its_form_is_worth_what_the_run_says"
CRITIC = "tests/test_step_critic.py::"
RATIO = f"{CRITIC}test_an_advantage_is_the_log_ratio_of_critic_and_reference"
HEAD = f"{CRITIC}test_a_head_scores_candidates_as_one_by_one"
JUDGE = f"{CRITIC}test_a_judge_ranks_by_the_share_of_comparisons_won"
TARGET = "tests/test_target_likelihood.py::"
REPLY = "tests/test_corrections.py::test_a_reply_is_read_as_what_it_says"
SELECT = "tests/test_selection.py::"
BEST = f"{SELECT}test_best_of_each_task_above_the_threshold_then_the_top_share"
PAIRS = "tests/test_tree_search.py::"
SIBLINGS = f"{PAIRS}test_all_siblings_that_differ_enough_are_pairs_the_best_first"
DENSE = "tests/test_dense_pairs.py::"
RANKED = "tests/test_ranked.py::"


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
    Fault(f"{A}_standard", around(_biased), killed_by=[CALCULATOR]),
    Fault(
        f"{A}STD_FLOOR",
        becomes(1e-12),
        killed_by=[f"{ADV}test_nearly_equal_rewards_are_not_blown_up"],
    ),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "leave_one_out" else kind),
        killed_by=[CALCULATOR],
    ),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "mean_std" else kind),
        killed_by=[CALCULATOR],
    ),
    Fault(
        f"{A}group_advantages",
        given(paths=each(edited(group="all"))),
        killed_by=[f"{ADV}test_groups_are_kept_apart_in_any_order_and_so_are_actors"],
    ),
    Fault(
        f"{A}Sampled.total",
        around(_failed_is_zero),
        killed_by=[f"{ADV}test_a_failed_path_leaves_its_group_before_the_mean"],
    ),
    Fault(
        f"{A}Sampled.token_rewards",
        reverse,
        killed_by=[f"{ADV}test_rewards_of_steps_are_summed_for_a_group_and_placed_for_gae"],
    ),
    Fault(
        f"{A}_check",
        returns(None),
        killed_by=[
            f"{ADV}test_a_path_that_comes_once_for_each_of_its_rows_is_refused_and_so_is_one_without_a_group"
        ],
    ),
    Fault(f"{A}gae", given(lam=1.0), killed_by=[GAE]),
    Fault(f"{A}gae", given(gamma=1.0), killed_by=[GAE]),
    Fault(f"{A}gae", result(lambda both: (both[0], both[0]), "returns are advantages"), [GAE]),
    Fault(
        f"{A}gae",
        given(bootstrap=0.0),
        killed_by=[
            f"{ADV}test_a_path_that_was_cut_off_goes_on_in_its_last_value_and_one_that_ended_does_not"
        ],
    ),
    Fault(
        f"{A}whiten",
        around(_each_path),
        killed_by=[f"{ADV}test_whitening_is_over_all_tokens_of_the_step"],
    ),
    Fault(
        f"{A}kl_rewards",
        swap("logprobs", "reference"),
        killed_by=[
            f"{ADV}test_divergence_costs_reward_where_the_policy_is_likelier_than_its_reference"
        ],
    ),
    Fault(
        "coterie.rewards.placing:turn_ends",
        around(_first_tokens),
        killed_by=[f"{ADV}test_observations_change_no_advantage_and_no_return"],
    ),
    Fault(
        "coterie.rewards.placing:trained_values",
        around(_all_values),
        killed_by=[f"{ADV}test_what_nothing_predicts_has_no_place_among_trained_tokens"],
    ),
    # The reward of a path.
    Fault(
        "coterie.rewards.overlong:overlong_penalty",
        given(finish="end"),
        killed_by=[
            f"{ADV}test_what_was_cut_off_costs_all_by_its_record_and_running_out_of_turns_nothing"
        ],
    ),
    Fault(
        "coterie.rewards.overlong:overlong_penalty",
        given(limit=lambda limit: limit + 1),
        killed_by=[f"{ADV}test_length_costs_softly_by_what_was_sampled"],
    ),
    Fault(
        "coterie.rewards.path_reward:PathReward.of",
        result(lambda reward: reward or 0.0, "ungraded is zero"),
        killed_by=[PATH],
    ),
    Fault(
        "coterie.rewards.path_reward:PathReward.__init__",
        given(settings=edited(gated=False)),
        killed_by=[PATH],
    ),
    Fault(
        "coterie.rewards.path_reward:PathReward.__init__",
        given(settings=edited(repeats=0.0)),
        killed_by=[PATH],
    ),
    Fault("coterie.rewards.path_reward:_breaks_form", returns(False), killed_by=[FORM]),
    Fault("coterie.rewards.path_reward:_breaks_form", opposite, killed_by=[FORM]),
    Fault(
        "coterie.rewards.path_reward:Graded.own",
        around(lambda original, self: self.path),
        killed_by=["tests/test_reinforce.py::test_observations_change_no_reward_of_length"],
    ),
    # Optima's reward, equation 1.
    Fault(
        "coterie.rewards.combined:rewards",
        given(settings=edited(lambda_token=lambda weight: -weight)),
        killed_by=[EQUATION],
    ),
    Fault(
        "coterie.rewards.combined:rewards",
        given(settings=edited(min_loss=1e-9)),
        killed_by=[f"{REWARDS}test_a_loss_near_zero_is_rewarded_no_more_than_the_smallest_one"],
    ),
    Fault(
        "coterie.rewards.combined:rewards",
        given(settings=edited(loss_term="inverse")),
        killed_by=[f"{REWARDS}test_the_bounded_loss_term_is_at_most_its_weight"],
    ),
    Fault(
        "coterie.rewards.combined:rewards",
        given(settings=edited(leaks_lose_task=False)),
        killed_by=[f"{REWARDS}test_in_trees_a_leak_loses_the_task_term"],
    ),
    Fault(
        "coterie.rewards.combined:rewards",
        given(max_tokens=None),
        killed_by=[f"{REWARDS}test_tokens_may_be_relative_to_a_given_number"],
    ),
    Fault("coterie.rewards.combined:Sampled.truncated", returns(False), killed_by=[TRUNCATED]),
    Fault(
        "coterie.rewards.combined:largest_loss",
        around(lambda original, losses, path: min(losses[turn] for turn in path)),
        killed_by=[FROZEN],
    ),
    Fault(
        "coterie.rewards.conduct:leaks",
        given(agents=lambda agents: agents[:1]),
        killed_by=[LEAK],
    ),
    Fault(
        "coterie.rewards.conduct:repeats",
        returns(0),
        killed_by=[f"{REWARDS}test_a_repeat_is_told_without_case_blanks_and_the_own_name"],
    ),
    Fault(
        "coterie.rewards.likelihood:_of_turns",
        given(logprobs=lambda logprobs: [*logprobs[1:], 0.0]),
        killed_by=[FROZEN],
    ),
    Fault(
        "coterie.rewards.likelihood:turn_losses",
        result(lambda losses: {turn: -loss for turn, loss in losses.items()}, "negated"),
        killed_by=[FROZEN],
    ),
    # Critics: SWEET-RL's advantages, MOAT's perplexity and corrections, judges.
    Fault(
        "coterie.rewards.step_critic:LikelihoodCritic.__init__",
        swap("critic", "reference"),
        killed_by=[RATIO],
    ),
    Fault(
        "coterie.rewards.step_critic:LikelihoodCritic.__init__",
        given(normalise="none"),
        killed_by=[RATIO],
    ),
    Fault("coterie.rewards.step_critic:HeadCritic.__init__", given(pool="last"), killed_by=[HEAD]),
    Fault(
        "coterie.rewards.step_critic:HeadCritic._pooled",
        given(start=lambda start: start - 1),
        killed_by=[HEAD],
    ),
    Fault(
        "coterie.rewards.step_critic:_checked",
        around(lambda original, numbers: numbers),
        killed_by=[f"{CRITIC}test_candidates_that_cannot_be_scored_are_errors"],
    ),
    Fault(
        "coterie.rewards.target_likelihood:mean_loglikelihoods",
        result(lambda found: [one * 2 for one in found], "doubled"),
        killed_by=[f"{TARGET}test_the_tokens_of_the_target_count_and_no_other"],
    ),
    Fault(
        "coterie.rewards.target_likelihood:mean_loglikelihoods",
        given(target=lambda target: target[:-1]),
        killed_by=[f"{TARGET}test_the_tokens_of_the_target_count_and_no_other"],
    ),
    Fault(
        "coterie.rewards.target_likelihood:perplexity",
        given(mean_loglikelihood=lambda mean: -mean),
        killed_by=[f"{TARGET}test_a_perplexity_is_the_exponential_of_the_mean_loss"],
    ),
    Fault(
        "coterie.rewards.leaks:quotes",
        returns(False),
        killed_by=[f"{TARGET}test_a_plan_that_quotes_an_action_is_a_leak"],
    ),
    Fault(
        "coterie.rewards.corrections:read_correction",
        given(reply=lambda reply: reply.replace("</think>", "")),
        killed_by=[REPLY],
    ),
    Fault(
        "coterie.rewards.corrections:read_correction",
        result(edited(verdict="accepted"), "always accepted"),
        killed_by=[REPLY],
    ),
    # Selections.
    Fault("coterie.selection.demonstrations:best_demonstrations", around(_last_selected), [BEST]),
    Fault(
        "coterie.selection.demonstrations:best_demonstrations",
        given(settings=edited(threshold=-math.inf)),
        killed_by=[BEST],
    ),
    Fault(
        "coterie.selection.demonstrations:best_demonstrations",
        given(settings=edited(top_share=1.0)),
        killed_by=[BEST],
    ),
    Fault(
        "coterie.selection.demonstrations:best_demonstrations",
        given(settings=edited(skip_share=0.0)),
        killed_by=[f"{SELECT}test_the_easiest_can_be_left_out"],
    ),
    Fault(
        "coterie.selection.demonstrations:best_demonstrations",
        given(settings=edited(min_score=0.0)),
        killed_by=[f"{SELECT}test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward"],
    ),
    Fault(
        "coterie.selection.demonstrations:random_demonstrations",
        given(seed=lambda seed: random.SystemRandom().random()),
        killed_by=[f"{SELECT}test_random_takes_as_many_as_asked_one_a_task_and_repeats"],
    ),
    Fault(
        "coterie.selection.pairs:sibling_pairs",
        given(settings=edited(theta_filter=-math.inf)),
        killed_by=[SIBLINGS],
    ),
    Fault(
        "coterie.selection.pairs:sibling_pairs",
        given(settings=edited(theta_diff=0.0)),
        killed_by=[SIBLINGS],
    ),
    Fault("coterie.selection.pairs:sibling_pairs", reverse, killed_by=[SIBLINGS]),
    Fault(
        "coterie.selection.pairs:sibling_pairs",
        given(settings=edited(top_share=1.0)),
        killed_by=[f"{PAIRS}test_the_top_share_of_a_task_is_rounded_down_but_one_pair_stays"],
    ),
    Fault(
        "coterie.selection.pairs:sibling_pairs",
        given(score=lambda score: lambda node: 1.0),
        killed_by=[f"{PAIRS}test_the_gate_lets_only_right_utterances_be_chosen"],
    ),
    Fault(
        "coterie.selection.dense_pairs:qualify",
        given(settings=edited(margin=0.0)),
        killed_by=[f"{DENSE}test_siblings_make_a_pair_from_the_margin_on"],
    ),
    Fault(
        "coterie.selection.dense_pairs:needed_visits",
        given(most=10**9),
        killed_by=[f"{DENSE}test_a_node_far_from_the_end_needs_more_visits_up_to_a_bound"],
    ),
    Fault(
        "coterie.selection.dense_pairs:dense_pairs",
        result(lambda found: [replace(p, chosen=p.rejected, rejected=p.chosen) for p in found]),
        killed_by=[f"{DENSE}test_siblings_make_a_pair_from_the_margin_on"],
    ),
    Fault(
        "coterie.selection.dense_pairs:_same_text",
        returns(False),
        killed_by=[f"{DENSE}test_equal_texts_make_no_pair"],
    ),
    Fault(
        "coterie.selection.dense_pairs:first_differences",
        given(rewards=lambda rewards: {leaf: -one for leaf, one in rewards.items()}),
        killed_by=[f"{DENSE}test_whole_runs_are_paired_where_they_first_differ"],
    ),
    Fault(
        "coterie.selection.budget:densest",
        given(seed=0),
        killed_by=[f"{DENSE}test_what_is_kept_depends_on_the_seed"],
    ),
    Fault(
        "coterie.selection.budget:densest",
        given(settings=edited(tasks=None)),
        killed_by=[f"{DENSE}test_the_tasks_with_the_most_pairs_are_kept"],
    ),
    Fault(
        "coterie.selection.budget:_shares",
        given(most=lambda most: most - 1),
        killed_by=[f"{DENSE}test_each_task_gives_the_same_share_and_the_total_is_exact"],
    ),
    Fault(
        "coterie.selection.ranked:ranked_pairs",
        given(scores=lambda scores: {node: -one for node, one in scores.items()}),
        killed_by=[f"{RANKED}test_halves_never_invert_the_scores"],
    ),
    Fault(
        "coterie.selection.ranked:ranked_pairs",
        given(settings=edited(top_share=0.5)),
        killed_by=[f"{RANKED}test_a_smaller_share_leaves_the_middle_out"],
    ),
    Fault(
        "coterie.selection.ranked:trajectory_pairs",
        given(min_reward=0.0),
        killed_by=[f"{RANKED}test_repeats_make_pairs_of_a_full_success_and_what_is_worse"],
    ),
)
