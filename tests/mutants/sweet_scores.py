"""Faults of how SWEET-RL scores candidates: the critic, a value head, a judge."""

from tests.mutation.mutant import Mutant

RANKED_TURNS = "tests/sweet/test_candidates.py::"
CRITIC = "tests/test_step_critic.py::"

DATA = "recipes/sweet_rl/data.py"
TURN_CRITIC = "recipes/sweet_rl/critic.py"

REWARD = (
    f"{RANKED_TURNS}test_a_candidates_reward_is_its_mean_log_ratio_where_the_reference_is_shown"
)
ABLATION = f"{RANKED_TURNS}test_ablations_of_the_critic_change_what_it_reads_or_how_it_counts"
FAILS = f"{RANKED_TURNS}test_a_turn_that_the_critic_fails_on_is_counted_and_costs_no_other"
JUDGED = f"{RANKED_TURNS}test_a_judge_reads_what_was_said_and_the_reference_if_it_may"
RATIO = f"{CRITIC}test_an_advantage_is_the_log_ratio_of_critic_and_reference"
ONE_BY_ONE = f"{CRITIC}test_a_head_scores_candidates_as_one_by_one"
WINS = f"{CRITIC}test_a_judge_ranks_by_the_share_of_comparisons_won"

MUTANTS = (
    Mutant(
        "sweet-advantage-sign",
        "rewards/step_critic.py",
        "sum(one) - sum(other)",
        "sum(other) - sum(one)",
        "the critic's order is upside down",
        (REWARD, RATIO),
    ),
    Mutant(
        "sweet-advantage-without-reference-model",
        "rewards/step_critic.py",
        "[sum(one) - sum(other) for one, other",
        "[sum(one) for one, _",
        "candidates are ranked by likelihood",
        (RATIO,),
    ),
    Mutant(
        "sweet-advantage-summed",
        "rewards/step_critic.py",
        'if self.normalise == "tokens":',
        'if self.normalise == "mean":',
        "long candidates have large advantages",
        (RATIO,),
    ),
    Mutant(
        "sweet-head-summed",
        "rewards/step_critic.py",
        "[float(v.mean()) for v",
        "[float(v.sum()) for v",
        "long candidates have large values",
        (ONE_BY_ONE,),
    ),
    Mutant(
        "sweet-head-reads-the-prompt",
        "rewards/step_critic.py",
        'begin = start if self.pool == "mean" else -1',
        'begin = 1 if self.pool == "mean" else -1',
        "values of the prompt are part of each candidate's",
        (ONE_BY_ONE,),
    ),
    Mutant(
        "sweet-scores-that-are-no-numbers",
        "rewards/step_critic.py",
        "if not all(map(math.isfinite, numbers)):",
        "if not numbers:",
        "a damaged critic ranks candidates at random",
        (f"{CRITIC}test_candidates_that_cannot_be_scored_are_errors",),
    ),
    Mutant(
        "sweet-base-as-its-own-critic",
        TURN_CRITIC,
        "engine = models.embedded(CRITIC, FIRST + 1)",
        "engine = models.embedded(CRITIC, FIRST)",
        "the trained critic is never asked",
        (REWARD,),
    ),
    Mutant(
        "sweet-critic-scores-sums",
        TURN_CRITIC,
        '"none" if s.objective.normalise == "none" else "tokens"',
        '"tokens" if s.objective.normalise == "tokens" else "none"',
        "a critic of turn means ranks by sums",
        (REWARD,),
    ),
    Mutant(
        "sweet-heads-pooled-the-other-way",
        TURN_CRITIC,
        '"mean" if s.kind == "regression" else "last"',
        '"last" if s.kind == "regression" else "mean"',
        "heads are read where they were not trained",
        (f"{RANKED_TURNS}test_a_head_gives_the_mean_of_a_candidate_or_the_value_at_its_end",),
    ),
    Mutant(
        "sweet-critic-reads-the-reference-anyway",
        TURN_CRITIC,
        "yield TrainedCritic(step, critic, s.privileged)",
        "yield TrainedCritic(step, critic, True)",
        "the ablation's critic scores with the reference shown",
        (ABLATION,),
    ),
    Mutant(
        "sweet-critic-prompt-upside-down",
        DATA,
        "if not privileged:",
        "if privileged:",
        "the critic reads the reference in the ablation alone",
        (REWARD, ABLATION),
    ),
    Mutant(
        "sweet-one-failed-turn-fails-the-tree",
        TURN_CRITIC,
        "if errors and not credit else None",
        "if errors else None",
        "a task is a failure because of one turn",
        (FAILS,),
    ),
    Mutant(
        "sweet-unscored-turns-not-counted",
        TURN_CRITIC,
        '"unscored": len(errors)}',
        '"unscored": 0}',
        "nobody sees that the critic failed",
        (FAILS,),
    ),
    Mutant(
        "sweet-gone-engine-is-a-failed-turn",
        TURN_CRITIC,
        "isinstance(values, EngineError) and not isinstance(values, EngineGone)",
        "isinstance(values, EngineError)",
        "a dead engine leaves a run whose turns all failed",
        (FAILS,),
    ),
    Mutant(
        "sweet-judge-always-privileged",
        TURN_CRITIC,
        'task.secrets[REFERENCE].reveal(CRITIC) if self.privileged else "(not shown)"',
        "task.secrets[REFERENCE].reveal(CRITIC)",
        "the ablation's judge reads the reference",
        (JUDGED,),
    ),
    Mutant(
        "sweet-judge-reads-thoughts",
        TURN_CRITIC,
        "[self.environment.visible(turn.text) for turn in group]",
        "[turn.text for turn in group]",
        "the judge compares what the person never sees",
        (JUDGED,),
    ),
    Mutant(
        "sweet-judge-losses-are-wins",
        "rewards/judge.py",
        "won[b] += 1 - share",
        "won[b] += share",
        "both replies of a comparison win",
        (WINS,),
    ),
    Mutant(
        "sweet-judge-draws-the-same-for-all-turns",
        "rewards/judge.py",
        'f"{self.seed}/{key}"',
        'f"{self.seed}"',
        "the same places of the list meet in every turn",
        (f"{CRITIC}test_comparisons_are_few_fair_and_drawn_from_the_seed",),
    ),
    Mutant(
        "sweet-judge-unreadable-is-a-win",
        "rewards/judge.py",
        "None: 0.5}[verdict]",
        "None: 1.0}[verdict]",
        "a judge that says nothing prefers what is shown first",
        (f"{CRITIC}test_an_unreadable_answer_is_a_tie_and_counted",),
    ),
    Mutant(
        "sweet-judge-not-shown-the-reference",
        "rewards/judge.py",
        '        "Reference solution": situation.reference,\n',
        "",
        "the privileged judge knows no more than the agent",
        (f"{CRITIC}test_the_judge_is_shown_all_that_a_critic_may_see",),
    ),
    Mutant(
        "sweet-judge-first-line-is-the-verdict",
        "rewards/judge.py",
        "ends = lines[:1] + lines[-1:]",
        "ends = lines[:1]",
        "a letter after its reasons is not read",
        (f"{CRITIC}test_verdicts",),
    ),
    Mutant(
        "sweet-judge-last-line-is-the-verdict",
        "rewards/judge.py",
        "ends = lines[:1] + lines[-1:]",
        "ends = lines[-1:]",
        "a letter before its reasons is not read, and neither is what contradicts it",
        (f"{CRITIC}test_verdicts",),
    ),
)
