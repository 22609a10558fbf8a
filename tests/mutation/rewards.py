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
C = "coterie.config.user_code:"
USER, QUESTION = "tests/config/test_user_code.py::", "tests/environments/test_question.py::"
ADV = "tests/rewards/test_advantages.py"
REWARDS = "tests/rewards/test_rewards.py"
OPTIMA = "tests/recipes/test_optima.py::"
FROZEN = f"{OPTIMA}test_losses_are_those_of_the_frozen_base_without_formats"
CRITIC = "tests/rewards/test_step_critic.py"
TARGET = "tests/rewards/test_target_likelihood.py"
REPLY = "tests/rewards/test_corrections.py::test_a_reply_is_read_as_what_it_says"
SELECT = "tests/test_selection.py"
BATCH = "tests/runs/test_reinforce_batch.py::"
DIVERGENCE_COSTS = (
    f"{BATCH}test_a_divergence_costs_each_token_what_it_is_likelier_than_its_reference"
)


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
    Fault(f"{A}_standardize", around(_biased), [ADV]),
    Fault(f"{A}STD_FLOOR", becomes(1e-12), [ADV]),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "leave_one_out" else kind),
        [ADV],
    ),
    Fault(
        f"{A}group_advantages",
        given(baseline=lambda kind: "mean" if kind == "mean_std" else kind),
        [ADV],
    ),
    Fault(f"{A}group_advantages", given(paths=each(edited(group="all"))), [ADV]),
    Fault(f"{A}SampledPath.total", around(_failed_is_zero), [ADV]),
    Fault(f"{A}SampledPath.token_rewards", reverse, [ADV]),
    Fault(f"{A}_check", returns(None), [ADV]),
    Fault(f"{A}gae", given(lam=1.0), [ADV]),
    Fault(f"{A}gae", given(gamma=1.0), [ADV]),
    Fault(f"{A}gae", result(lambda both: (both[0], both[0]), "returns are advantages"), [ADV]),
    Fault(f"{A}gae", given(bootstrap=0.0), [ADV]),
    Fault(f"{A}whiten", around(_each_path), [ADV]),
    Fault(f"{A}kl_rewards", swap("logprobs", "reference"), [DIVERGENCE_COSTS]),
    Fault(f"{W}advantages:turn_ends", around(_first_tokens), [ADV]),
    Fault(f"{W}advantages:trained_values", around(_all_values), [ADV]),
    # The reward of a path.
    Fault(f"{W}dialogue_reward:overlong_penalty", given(finish="end"), [ADV]),
    Fault(f"{W}dialogue_reward:overlong_penalty", given(limit=lambda limit: limit + 1), [ADV]),
    Fault(
        f"{W}dialogue_reward:PathReward.terms",
        result(lambda terms: terms or {"environment": 0.0}, "ungraded is zero"),
        [REWARDS],
    ),
    Fault(
        f"{W}dialogue_reward:PathReward.__init__",
        settings(measures_only_if_correct=False),
        [REWARDS],
    ),
    Fault(f"{W}dialogue_reward:PathReward.__init__", settings(repeat_penalty=0.0), [REWARDS]),
    Fault(f"{W}dialogue_reward:_breaks_form", returns(False), [REWARDS]),
    Fault(f"{W}dialogue_reward:_breaks_form", opposite, [REWARDS]),
    Fault(
        f"{W}dialogue_reward:GradedPath.own_turns",
        around(lambda original, self: self.path),
        [REWARDS],
    ),
    # Rewards of users.
    Fault(
        "coterie.environments.question:NAMES",
        becomes(("reply", "question", "answer", "row")),
        [f"{QUESTION}test_a_reward_function_gets_its_values_by_name"],
    ),
    Fault(f"{C}_state", returns([]), [f"{USER}test_what_code_of_a_user_changes_is_restored"]),
    Fault(
        f"{C}in_steps",
        around(lambda original, work, seconds=0.0: work),
        [f"{USER}test_concurrent_calls_do_not_restore_each_others_changes"],
    ),
    Fault(
        "coterie.environments.grading:_same_in_order",
        given(question=""),
        ["tests/environments/test_mathematics.py::test_the_question_tells_of_ratios_and_matrices"],
    ),
    # Optima's reward, equation 1.
    Fault(f"{W}dialogue_reward:rewards", settings(lambda_token=lambda weight: -weight), [REWARDS]),
    Fault(f"{W}dialogue_reward:rewards", settings(min_loss=1e-9), [REWARDS]),
    Fault(f"{W}dialogue_reward:rewards", settings(loss_term="inverse"), [REWARDS]),
    Fault(f"{W}dialogue_reward:rewards", settings(leaks_lose_task=False), [REWARDS]),
    Fault(f"{W}dialogue_reward:rewards", given(max_tokens=None), [REWARDS]),
    Fault(f"{W}dialogue_reward:DialogueSample.truncated", returns(False), [REWARDS]),
    Fault(
        f"{W}dialogue_reward:largest_loss",
        around(lambda original, losses, path: min(losses[turn] for turn in path)),
        [FROZEN],
    ),
    Fault(f"{W}dialogue_reward:count_leaks", given(agents=lambda agents: agents[:1]), [REWARDS]),
    Fault(f"{W}dialogue_reward:count_repeats", returns(0), [REWARDS]),
    Fault(f"{W}critics:_of_turns", given(logprobs=lambda logprobs: [*logprobs[1:], 0.0]), [FROZEN]),
    Fault(
        f"{W}critics:turn_losses",
        result(lambda losses: {turn: -loss for turn, loss in losses.items()}, "negated"),
        [FROZEN],
    ),
    # Critics: SWEET-RL's advantages, MOAT's perplexity and corrections, judges.
    Fault(f"{W}critics:LikelihoodCritic.__init__", swap("critic", "reference"), [CRITIC]),
    Fault(f"{W}critics:LikelihoodCritic.__init__", given(reduction="none"), [CRITIC]),
    Fault(f"{W}critics:HeadCritic.__init__", given(pool="last"), [CRITIC]),
    Fault(f"{W}critics:HeadCritic._pooled", given(start=lambda start: start - 1), [CRITIC]),
    Fault(f"{W}critics:_checked", around(lambda original, numbers: numbers), [CRITIC]),
    Fault(
        f"{W}critics:mean_loglikelihoods",
        result(lambda found: [one * 2 for one in found], "doubled"),
        [TARGET],
    ),
    Fault(
        f"{W}critics:mean_loglikelihoods",
        given(target=lambda target: target[:-1]),
        [TARGET],
    ),
    Fault(
        f"{W}critics:perplexity",
        given(mean_loglikelihood=lambda mean: -mean),
        [TARGET],
    ),
    Fault(f"{W}dialogue_reward:quotes", returns(False), [TARGET]),
    Fault(
        f"{W}critics:read_correction",
        given(reply=lambda reply: reply.replace("Corrected actions", "")),
        [REPLY],
    ),
    Fault(
        f"{W}critics:read_correction",
        result(edited(verdict="accepted"), "always accepted"),
        [REPLY],
    ),
    # Selections.
    Fault("coterie.selection:best_demonstrations", around(_last_selected), [SELECT]),
    Fault("coterie.selection:difference_pairs", reverse, [SELECT]),
    Fault("coterie.selection:best_demonstrations", settings(threshold=-math.inf), [SELECT]),
    Fault("coterie.selection:best_demonstrations", settings(top_share=1.0), [SELECT]),
    Fault("coterie.selection:best_demonstrations", settings(skip_share=0.0), [SELECT]),
    Fault("coterie.selection:best_demonstrations", settings(min_score=0.0), [SELECT]),
    Fault("coterie.selection:sibling_pairs", settings(theta_filter=-math.inf), [SELECT]),
    Fault("coterie.selection:sibling_pairs", settings(theta_diff=0.0), [SELECT]),
    Fault("coterie.selection:sibling_pairs", reverse, [SELECT]),
    Fault("coterie.selection:sibling_pairs", settings(top_share=1.0), [SELECT]),
    Fault("coterie.selection:sibling_pairs", given(score=lambda score: lambda node: 1.0), [SELECT]),
    Fault("coterie.selection:qualify", settings(margin=0.0), [SELECT]),
    Fault("coterie.selection:needed_visits", given(limit=10**9), [SELECT]),
    Fault(
        "coterie.selection:dense_pairs",
        result(lambda found: [replace(p, chosen=p.rejected, rejected=p.chosen) for p in found]),
        [SELECT],
    ),
    Fault("coterie.selection:_same_text", returns(False), [SELECT]),
    Fault(
        "coterie.selection:first_differences",
        given(rewards=lambda rewards: {leaf: -one for leaf, one in rewards.items()}),
        [SELECT],
    ),
    Fault("coterie.selection:densest", given(seed=0), [SELECT]),
    Fault("coterie.selection:densest", settings(tasks=None), [SELECT]),
    Fault("coterie.selection:_shares", given(budget=lambda budget: budget - 1), [SELECT]),
    Fault(
        "coterie.selection:ranked_pairs",
        given(scores=lambda scores: {node: -one for node, one in scores.items()}),
        [SELECT],
    ),
    Fault("coterie.selection:ranked_pairs", settings(top_share=0.5), [SELECT]),
    Fault("coterie.selection:trajectory_pairs", given(min_reward=0.0), [SELECT]),
)
