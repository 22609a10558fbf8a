"""Faults of Optima's reward: its terms, conduct, likelihood."""

from tests.mutation.mutant import Mutant

REWARDS = "tests/test_rewards.py::"
BY_HAND = f"{REWARDS}test_reward_is_task_minus_tokens_plus_inverse_loss"
TRUNCATED = f"{REWARDS}test_a_truncated_dialogue_has_terms_of_minus_one_and_sets_no_scale"
LEAK = f"{REWARDS}test_a_leak_is_an_utterance_that_speaks_for_the_other"
REPEAT = f"{REWARDS}test_a_repeat_is_told_without_case_blanks_and_the_own_name"
SEEN = "tests/test_optima_algorithm.py::"
LOSSES = f"{SEEN}test_losses_are_those_of_the_frozen_base_without_formats"

MUTANTS = (
    Mutant(
        "optima-reward-pays-for-tokens",
        "rewards/combined.py",
        "return -settings.lambda_token * sample.tokens / max(max_tokens, 1)",
        "return settings.lambda_token * sample.tokens / max(max_tokens, 1)",
        "long dialogues are rewarded",
        (BY_HAND,),
    ),
    Mutant(
        "optima-reward-tokens-without-a-scale",
        "rewards/combined.py",
        "max_tokens = max(counts, default=1)",
        "max_tokens = min(counts, default=1)",
        "the token term is relative to the shortest dialogue and outweighs the task",
        (BY_HAND,),
    ),
    Mutant(
        "optima-reward-truncated-sets-the-scale",
        "rewards/combined.py",
        "[s.tokens for s in samples if not s.truncated] or [s.tokens for s in samples]",
        "[s.tokens for s in samples]",
        "beside a truncated dialogue all others seem short",
        (TRUNCATED,),
    ),
    Mutant(
        "optima-reward-truncated-is-fluent",
        "rewards/combined.py",
        "        return -1.0\n    if sample.repeats",
        "        pass\n    if sample.repeats",
        "endless loops are trained on, for they are likely",
        (TRUNCATED,),
    ),
    Mutant(
        "optima-reward-loss-times-lambda",
        "rewards/combined.py",
        "return settings.lambda_loss / max(sample.loss, settings.min_loss)",
        "return settings.lambda_loss * max(sample.loss, settings.min_loss)",
        "surprising talk is rewarded",
        (BY_HAND,),
    ),
    Mutant(
        "optima-reward-loss-without-a-bound",
        "rewards/combined.py",
        "return settings.lambda_loss / max(sample.loss, settings.min_loss)",
        "return settings.lambda_loss / max(sample.loss, 1e-6)",
        "a dialogue of which the base is sure has a reward of a million",
        (f"{REWARDS}test_a_loss_near_zero_is_rewarded_no_more_than_the_smallest_one",),
    ),
    Mutant(
        "optima-reward-loss-of-the-best-turn",
        "rewards/combined.py",
        "return max(losses[turn] for turn in path)",
        "return min(losses[turn] for turn in path)",
        "one fluent turn makes up for gibberish in all others",
        (LOSSES,),
    ),
    Mutant(
        "optima-reward-one-leak-is-enough",
        "rewards/combined.py",
        "return -settings.leak_penalty * sample.leaks",
        "return -settings.leak_penalty * bool(sample.leaks)",
        "further leaks cost nothing",
        (f"{REWARDS}test_each_leak_costs_the_penalty",),
    ),
    Mutant(
        "optima-reward-leaks-keep-the-task",
        "rewards/combined.py",
        "0.0 if sample.leaks and settings.leaks_lose_task else sample.outcome.score",
        "sample.outcome.score",
        "in trees speaking for the partner costs nothing",
        (f"{REWARDS}test_in_trees_a_leak_loses_the_task_term",),
    ),
    Mutant(
        "optima-reward-short-tokens-exclusive",
        "rewards/combined.py",
        "sample.tokens <= settings.short_tokens",
        "sample.tokens < settings.short_tokens",
        "a dialogue of exactly short_tokens passes",
        (f"{REWARDS}test_talk_that_is_too_short_counts_as_a_truncated_dialogue_does",),
    ),
    Mutant(
        "optima-conduct-own-name-is-a-leak",
        "rewards/conduct.py",
        'said = turn.text.lstrip().removeprefix(f"{turn.speaker.name}:")',
        "said = turn.text.lstrip()",
        "an utterance that begins with its speaker's name loses 10",
        (LEAK,),
    ),
    Mutant(
        "optima-conduct-own-name-never-a-leak",
        "rewards/conduct.py",
        'return any(f"{agent}:" in said for agent in agents)',
        'return any(f"{agent}:" in said for agent in agents if agent != turn.speaker.name)',
        "an agent that plays the partner's turn and its own again is not found out",
        (LEAK,),
    ),
    Mutant(
        "optima-conduct-repeats-by-letter",
        "rewards/conduct.py",
        ".strip().casefold() for turn in path",
        ".strip() for turn in path",
        "a repeat in other case is none",
        (REPEAT,),
    ),
    Mutant(
        "optima-likelihood-sum-over-tokens",
        "rewards/likelihood.py",
        "-sum(logprobs[position:stop]) / len(piece.ids)",
        "-sum(logprobs[position:stop])",
        "R_loss grows with the length of a turn",
        (LOSSES,),
    ),
    Mutant(
        "optima-likelihood-of-the-token-before",
        "rewards/likelihood.py",
        "losses, position = {}, -1",
        "losses, position = {}, 0",
        "a turn's loss is read one token too late",
        (LOSSES,),
    ),
)
