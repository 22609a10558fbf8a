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
TERM = f"{REWARDS}test_each_term_follows_its_settings"
COUNTS = f"{REWARDS}test_leaks_and_repeats_are_counted_by_the_names_of_speakers"
OPTIMA = "tests/test_optima_algorithm.py::"
FROZEN = f"{OPTIMA}test_losses_are_those_of_the_frozen_base_without_formats"
PATH = f"{REWARDS}test_the_reward_of_a_path_is_the_environments_and_the_settings_terms"
FORM = f"{REWARDS}test_a_path_that_breaks_its_form_is_worth_what_the_run_says"
CRITIC = "tests/test_step_critic.py::"
RATIO = f"{CRITIC}test_an_advantage_is_the_log_ratio_of_critic_and_reference"
HEAD = f"{CRITIC}test_a_head_scores_candidates_as_one_by_one"
TARGET = "tests/test_target_likelihood.py::"
REPLY = "tests/test_corrections.py::test_a_reply_is_read_as_what_it_says"
SELECT = "tests/test_selection.py::"
BEST = f"{SELECT}test_the_best_of_each_task_above_the_threshold_then_the_top_share"
SIBLINGS = f"{SELECT}test_siblings_that_differ_enough_are_pairs_the_best_first"
NEARLY_EQUAL = f"{ADV}test_nearly_equal_rewards_are_not_blown_up"
GROUPS_KEPT = f"{ADV}test_groups_are_kept_apart_in_any_order_and_so_are_actors"
FAILED_PATH = f"{ADV}test_a_failed_path_leaves_its_group_before_the_mean"
REWARDS_STEPS = f"{ADV}test_rewards_of_steps_are_summed_for_a_group_and_placed_for_gae"
WHITENING_OVER = f"{ADV}test_whitening_is_over_all_tokens_of_the_step"
BATCH = "tests/test_reinforce_batch.py::"
DIVERGENCE_COSTS = (
    f"{BATCH}test_a_divergence_costs_each_token_what_it_is_likelier_than_its_reference"
)
OBSERVATIONS_CHANGE = f"{ADV}test_observations_change_no_advantage_and_no_return"
WHAT_NOTHING = f"{ADV}test_what_nothing_predicts_has_no_place_among_trained_tokens"
LENGTH_COSTS = f"{ADV}test_length_costs_softly_by_what_was_sampled_and_a_cut_costs_all"
TOKENS_MAY = f"{REWARDS}test_tokens_may_be_relative_to_a_given_number"
CANDIDATES_CANNOT = f"{CRITIC}test_candidates_that_cannot_be_scored_are_errors"
TOKENS_TARGET = f"{TARGET}test_the_tokens_of_the_target_count_and_no_other"
PERPLEXITY_EXPONENTIAL = f"{TARGET}test_a_perplexity_is_the_exponential_of_the_mean_loss"
PLAN_QUOTES = f"{TARGET}test_a_plan_that_quotes_an_action_is_a_leak"
GATE_KEEPS = f"{SELECT}test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward"
RANDOM_TAKES = f"{SELECT}test_random_takes_as_many_as_asked_one_a_task_and_repeats"
VISITS = f"{SELECT}test_visits_are_needed_up_to_a_bound_and_pairs_are_counted_as_they_are_found"
DENSE = f"{SELECT}test_siblings_make_a_pair_from_the_margin_and_the_visits_on"
WHOLE_RUNS = f"{SELECT}test_whole_runs_are_paired_where_they_first_differ"
BUDGET = f"{SELECT}test_the_tasks_with_the_most_pairs_give_the_same_share_and_the_total_is_exact"
HALVES = f"{SELECT}test_pairs_are_drawn_from_the_best_and_the_worst_and_never_inverted"
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
    Fault(f"{A}_check", returns(None), [GROUPS_KEPT]),
    Fault(f"{A}gae", given(lam=1.0), [GAE]),
    Fault(f"{A}gae", given(gamma=1.0), [GAE]),
    Fault(f"{A}gae", result(lambda both: (both[0], both[0]), "returns are advantages"), [GAE]),
    Fault(f"{A}gae", given(bootstrap=0.0), [GAE]),
    Fault(f"{A}whiten", around(_each_path), [WHITENING_OVER]),
    Fault(f"{A}kl_rewards", swap("logprobs", "reference"), [DIVERGENCE_COSTS]),
    Fault(f"{W}advantages:turn_ends", around(_first_tokens), [OBSERVATIONS_CHANGE]),
    Fault(f"{W}advantages:trained_values", around(_all_values), [WHAT_NOTHING]),
    # The reward of a path.
    Fault(f"{W}dialogue_reward:overlong_penalty", given(finish="end"), [LENGTH_COSTS]),
    Fault(
        f"{W}dialogue_reward:overlong_penalty", given(limit=lambda limit: limit + 1), [LENGTH_COSTS]
    ),
    Fault(
        f"{W}dialogue_reward:PathReward.terms",
        result(lambda terms: terms or {"environment": 0.0}, "ungraded is zero"),
        [PATH],
    ),
    Fault(f"{W}dialogue_reward:PathReward.__init__", settings(gated=False), [PATH]),
    Fault(f"{W}dialogue_reward:PathReward.__init__", settings(repeats=0.0), [PATH]),
    Fault(f"{W}dialogue_reward:_breaks_form", returns(False), [FORM]),
    Fault(f"{W}dialogue_reward:_breaks_form", opposite, [FORM]),
    Fault(
        f"{W}dialogue_reward:GradedPath.own_turns",
        around(lambda original, self: self.path),
        [PATH],
    ),
    # Optima's reward, equation 1.
    Fault(f"{W}dialogue_reward:rewards", settings(lambda_token=lambda weight: -weight), [EQUATION]),
    Fault(f"{W}dialogue_reward:rewards", settings(min_loss=1e-9), [TERM]),
    Fault(f"{W}dialogue_reward:rewards", settings(loss_term="inverse"), [TERM]),
    Fault(f"{W}dialogue_reward:rewards", settings(leaks_lose_task=False), [TERM]),
    Fault(f"{W}dialogue_reward:rewards", given(max_tokens=None), [TOKENS_MAY]),
    Fault(f"{W}dialogue_reward:DialogueSample.truncated", returns(False), [TERM]),
    Fault(
        f"{W}dialogue_reward:largest_loss",
        around(lambda original, losses, path: min(losses[turn] for turn in path)),
        [FROZEN],
    ),
    Fault(f"{W}dialogue_reward:count_leaks", given(agents=lambda agents: agents[:1]), [COUNTS]),
    Fault(f"{W}dialogue_reward:count_repeats", returns(0), [COUNTS]),
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
    Fault("coterie.selection:best_demonstrations", settings(skip_share=0.0), [BEST]),
    Fault("coterie.selection:best_demonstrations", settings(min_score=0.0), [GATE_KEEPS]),
    Fault(
        "coterie.selection:random_demonstrations",
        given(seed=lambda seed: random.SystemRandom().random()),
        [RANDOM_TAKES],
    ),
    Fault("coterie.selection:sibling_pairs", settings(theta_filter=-math.inf), [SIBLINGS]),
    Fault("coterie.selection:sibling_pairs", settings(theta_diff=0.0), [SIBLINGS]),
    Fault("coterie.selection:sibling_pairs", reverse, [SIBLINGS]),
    Fault("coterie.selection:sibling_pairs", settings(top_share=1.0), [SIBLINGS]),
    Fault(
        "coterie.selection:sibling_pairs", given(score=lambda score: lambda node: 1.0), [SIBLINGS]
    ),
    Fault("coterie.selection:qualify", settings(margin=0.0), [DENSE]),
    Fault("coterie.selection:needed_visits", given(limit=10**9), [VISITS]),
    Fault(
        "coterie.selection:dense_pairs",
        result(lambda found: [replace(p, chosen=p.rejected, rejected=p.chosen) for p in found]),
        [DENSE],
    ),
    Fault("coterie.selection:_same_text", returns(False), [DENSE]),
    Fault(
        "coterie.selection:first_differences",
        given(rewards=lambda rewards: {leaf: -one for leaf, one in rewards.items()}),
        [WHOLE_RUNS],
    ),
    Fault("coterie.selection:densest", given(seed=0), [BUDGET]),
    Fault("coterie.selection:densest", settings(tasks=None), [BUDGET]),
    Fault("coterie.selection:_shares", given(budget=lambda budget: budget - 1), [BUDGET]),
    Fault(
        "coterie.selection:ranked_pairs",
        given(scores=lambda scores: {node: -one for node, one in scores.items()}),
        [HALVES],
    ),
    Fault("coterie.selection:ranked_pairs", settings(top_share=0.5), [HALVES]),
    Fault("coterie.selection:trajectory_pairs", given(min_reward=0.0), [REPEATS_MAKE]),
)
