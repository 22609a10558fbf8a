"""Faults of what is said of Optima's results: votes, coverage, intervals, claims."""

from tests.mutation.mutant import Mutant

VOTES = "tests/test_self_consistency.py::"
BY_HAND = f"{VOTES}test_by_hand_with_equal_answers"
BY_F1 = f"{VOTES}test_by_hand_with_f1"
STATISTICS = "tests/test_statistics.py::"
CLAIMS = "tests/test_claims.py::"
BETTER = f"{CLAIMS}test_better_needs_more_than_the_margin_at_no_more_tokens"
BRIEF = f"{CLAIMS}test_brief_needs_few_tokens_and_hardly_a_lower_score"
CHANCE = f"{CLAIMS}test_a_claim_holds_only_where_chance_is_unlikely"

MUTANTS = (
    Mutant(
        "optima-vote-first-member-only",
        "environments/votes.py",
        "for member in group):",
        "for member in group[:1]):",
        "answers that are alike in a chain are several groups",
        (BY_F1,),
    ),
    Mutant(
        "optima-vote-smallest-group",
        "environments/votes.py",
        "largest = max(map(len, self._groups), default=0)",
        "largest = min(map(len, self._groups), default=0)",
        "the rarest answer wins",
        (BY_HAND,),
    ),
    Mutant(
        "optima-vote-silence-counts",
        "environments/votes.py",
        "        if answer is None:\n            return\n",
        '        answer = answer or ""\n',
        "dialogues without an answer are a group",
        (f"{VOTES}test_silence_has_no_vote",),
    ),
    Mutant(
        "optima-scaling-coverage-is-a-mean",
        "evaluation/self_consistency.py",
        "best, total = max(best, draw.score), total + draw.score",
        "best, total = (best * index + draw.score) / (index + 1), total + draw.score",
        "coverage is the mean score",
        (BY_HAND,),
    ),
    Mutant(
        "optima-scaling-tokens-of-one",
        "evaluation/self_consistency.py",
        "tokens += draw.tokens",
        "tokens = draw.tokens",
        "many dialogues seem to cost what one does",
        (BY_HAND,),
    ),
    Mutant(
        "optima-statistics-tasks-of-all-seeds",
        "evaluation/statistics.py",
        "effect = float(np.mean([group.mean() for group in groups]))",
        "effect = float(np.mean(np.concatenate(groups)))",
        "seeds with more tasks weigh more",
        (f"{STATISTICS}test_every_seed_weighs_the_same",),
    ),
    Mutant(
        "optima-statistics-seeds-are-fixed",
        "evaluation/statistics.py",
        "chosen = rng.integers(len(groups), size=(count, len(groups)))",
        "chosen = np.tile(np.arange(len(groups)), (count, 1))",
        "the luck of a training run does not count",
        (f"{STATISTICS}test_seeds_are_resampled_too",),
    ),
    Mutant(
        "optima-statistics-p-may-be-zero",
        "evaluation/statistics.py",
        "(1 + at_most) / (1 + resamples)",
        "at_most / resamples",
        "p is 0: surer than can be",
        (f"{STATISTICS}test_a_sure_gain_has_the_smallest_p",),
    ),
    Mutant(
        "optima-statistics-margin-ignored",
        "evaluation/statistics.py",
        "np.count_nonzero(means <= margin + 1e-12)",
        "np.count_nonzero(means <= 1e-12)",
        "any gain passes for one of more than the margin",
        (f"{STATISTICS}test_an_effect_of_exactly_the_margin_is_not_above_it", BETTER),
    ),
    Mutant(
        "optima-claims-at-any-tokens",
        "evaluation/claims.py",
        "holds=test.p < SIGNIFICANCE and used <= 1,",
        "holds=test.p < SIGNIFICANCE,",
        "a method that talks more is said to be better at no more tokens",
        (BETTER,),
    ),
    Mutant(
        "optima-claims-likely-by-chance",
        "evaluation/claims.py",
        "SIGNIFICANCE = 0.05",
        "SIGNIFICANCE = 0.5",
        "what chance explains is claimed",
        (CHANCE,),
    ),
    Mutant(
        "optima-claims-brief-at-any-score",
        "evaluation/claims.py",
        "worse = max(tokens.p, score.p)",
        "worse = tokens.p",
        "half the tokens at a fraction of the score is claimed",
        (BRIEF,),
    ),
    Mutant(
        "optima-claims-brief-at-any-length",
        "evaluation/claims.py",
        "worse = max(tokens.p, score.p)",
        "worse = score.p",
        "any equal score is claimed to be at half the tokens",
        (BRIEF,),
    ),
    Mutant(
        "optima-claims-longer-is-shorter",
        "evaluation/claims.py",
        "test, tried = compared(ours, theirs, _tokens, 0.0)",
        "test, tried = compared(theirs, ours, _tokens, 0.0)",
        "the ablation of the token term is claimed to talk longer where it talks less",
        (f"{CLAIMS}test_longer_compares_tokens_alone",),
    ),
)
