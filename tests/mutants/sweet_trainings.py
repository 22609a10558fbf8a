"""Faults of what SWEET-RL selects and trains."""

from tests.mutation.mutant import Mutant

TRAININGS = "tests/sweet/test_trainings.py::"
RANKED_TURNS = "tests/sweet/test_candidates.py::"
RANKED = "tests/test_ranked.py::"
HEAD = "tests/test_value_head.py::"

RECIPE = "recipes/sweet_rl/recipe.py"
DATA = "recipes/sweet_rl/data.py"
TRAINING = "recipes/sweet_rl/training.py"

OF_THE_CRITIC = (
    f"{TRAININGS}test_the_critic_learns_a_success_over_a_failure_with_the_reference_shown"
)
UNPRIVILEGED = f"{TRAININGS}test_a_critic_without_privileges_is_trained_without_the_reference"
OF_DIALOGUES = f"{TRAININGS}test_multi_turn_dpo_trains_the_policy_on_whole_dialogues_as_it_saw_them"
IMITATES = f"{TRAININGS}test_rejection_ft_imitates_what_succeeded"
GOOD_ENOUGH = f"{TRAININGS}test_pairs_need_a_dialogue_that_is_good_enough"
VALUE = f"{TRAININGS}test_a_value_function_is_told_which_dialogues_succeeded"
HALVES = (
    f"{RANKED_TURNS}test_pairs_of_turns_are_of_the_upper_half_over_the_lower_each_turn_drawn_anew"
)
OF_THE_POLICY = f"{RANKED_TURNS}test_the_policy_learns_turns_from_the_base_without_the_reference"
BY_HAND = f"{HEAD}test_losses_of_given_values_are_those_worked_out_by_hand"
ADAPTED = "tests/test_sweet_rl.py::test_a_critic_with_a_value_head_can_be_an_adapter"

MUTANTS = (
    Mutant(
        "sweet-imitates-above-the-bar-only",
        RECIPE,
        "for leaf, reward in of_task if reward >= least]",
        "for leaf, reward in of_task if reward > least]",
        "a dialogue that passes all tests is not a success",
        (IMITATES,),
    ),
    Mutant(
        "sweet-imitates-everything",
        RECIPE,
        "for leaf, reward in of_task if reward >= least]",
        "for leaf, reward in of_task]",
        "failures are imitated too",
        (IMITATES,),
    ),
    Mutant(
        "sweet-failure-over-success",
        RECIPE,
        "for best, worse in found]",
        "for worse, best in found]",
        "the critic learns to prefer failures",
        (GOOD_ENOUGH, OF_THE_CRITIC),
    ),
    Mutant(
        "sweet-least-reward-ignored",
        RECIPE,
        "trajectory_pairs(of_task, least)",
        "trajectory_pairs(of_task)",
        "min_reward changes nothing",
        (GOOD_ENOUGH,),
    ),
    Mutant(
        "sweet-rewards-all-or-nothing",
        DATA,
        'float(metrics["fraction"])',
        'float(metrics["fraction"] == 1)',
        "the share of tests is lost",
        (GOOD_ENOUGH,),
    ),
    Mutant(
        "sweet-pairs-of-any-best",
        "selection/ranked.py",
        "    if best < min_reward:",
        "    if not best:",
        "a failure is preferred to a worse failure",
        (f"{RANKED}test_repeats_make_pairs_of_a_full_success_and_what_is_worse",),
    ),
    Mutant(
        "sweet-pairs-of-failures-below-the-bar",
        "selection/ranked.py",
        "if reward < best]",
        "if reward < min_reward]",
        "with a lower bar, the best is not preferred to what passed it",
        (f"{RANKED}test_a_lower_bar_takes_a_best_that_is_no_full_success",),
    ),
    Mutant(
        "sweet-worst-of-the-ranking-chosen",
        "selection/ranked.py",
        "key=lambda node: -scores[node])",
        "key=lambda node: scores[node])",
        "pairs come from the wrong end of the ranking",
        (f"{RANKED}test_halves_never_invert_the_scores",),
    ),
    Mutant(
        "sweet-rejected-from-all-the-rest",
        "selection/ranked.py",
        "ranked[-share:]",
        "ranked[share:]",
        "the middle of the ranking is rejected too",
        (f"{RANKED}test_a_smaller_share_leaves_the_middle_out",),
    ),
    Mutant(
        "sweet-equal-scores-are-pairs",
        "selection/ranked.py",
        "if scores[chosen] > scores[rejected]]",
        "if scores[chosen] >= scores[rejected]]",
        "candidates of one score are preferred to each other",
        (f"{RANKED}test_odd_numbers_one_candidate_and_equal_scores",),
    ),
    Mutant(
        "sweet-pairs-drawn-once-for-all-turns",
        RECIPE,
        'digest("pairs", s.seed, group[0].id)',
        'digest("pairs", s.seed)',
        "every turn's pairs have the same ranks",
        (HALVES,),
    ),
    Mutant(
        "sweet-worse-candidate-chosen",
        RECIPE,
        "for best, worse in ranked_pairs(own, s.pairs, seed)",
        "for worse, best in ranked_pairs(own, s.pairs, seed)",
        "the policy learns what the critic finds worse",
        (HALVES,),
    ),
    Mutant(
        "sweet-policy-sees-the-reference",
        DATA,
        "privileged = iteration == FIRST and self.critical and self.settings.critic.privileged",
        "privileged = self.critical and self.settings.critic.privileged",
        "the policy is trained under prompts that hold the reference",
        (OF_THE_POLICY,),
    ),
    Mutant(
        "sweet-baseline-sees-the-reference",
        DATA,
        "privileged = iteration == FIRST and self.critical and self.settings.critic.privileged",
        "privileged = iteration == FIRST and self.settings.critic.privileged",
        "multi-turn DPO is trained under prompts that hold the reference",
        (OF_DIALOGUES,),
    ),
    Mutant(
        "sweet-critic-never-privileged",
        DATA,
        "return PRIVILEGED if privileged else None",
        "return None",
        "the critic is trained without the reference",
        (OF_THE_CRITIC,),
    ),
    Mutant(
        "sweet-critic-always-privileged",
        DATA,
        "iteration == FIRST and self.critical and self.settings.critic.privileged",
        "iteration == FIRST and self.critical",
        "the ablation without privileges trains with the reference",
        (UNPRIVILEGED,),
    ),
    Mutant(
        "sweet-policy-begins-as-the-critic",
        TRAINING,
        "model = recipe.models(run).load_to_train(POLICY, 0)\n    found, own",
        "model = recipe.models(run).load_to_train(CRITIC, iteration)\n    found, own",
        "the policy is trained from the critic, and held to it",
        (OF_THE_POLICY,),
    ),
    Mutant(
        "sweet-baseline-with-the-policys-numbers",
        RECIPE,
        "self, run, FIRST, s.multi_turn_dpo, progress",
        "self, run, FIRST, s.policy, progress",
        "settings of multi_turn_dpo change nothing",
        (OF_DIALOGUES,),
    ),
    Mutant(
        "sweet-worse-side-first",
        DATA,
        "for leaf in (selection.leaf, selection.rejected)\n        )",
        "for leaf in (selection.rejected, selection.leaf)\n        )",
        "trainings prefer what was rejected",
        (OF_THE_CRITIC, OF_THE_POLICY),
    ),
    Mutant(
        "sweet-critic-compares-last-turns",
        DATA,
        "found.append(trajectory_pair(better, worse, group=tree.task))",
        "found.append(turn_pair(better, worse, group=tree.task))",
        "whole dialogues are compared by their last turn alone",
        (OF_DIALOGUES,),
    ),
    Mutant(
        "sweet-policy-compares-whole-dialogues",
        DATA,
        "turn_pair(better, worse, group=tree.turns[selection.leaf].parent)",
        "trajectory_pair(better, worse, group=tree.turns[selection.leaf].parent)",
        "turns before the compared one are trained as if they were part of it",
        (OF_THE_POLICY,),
    ),
    Mutant(
        "sweet-reference-summed",
        "recipes/trainings.py",
        "normalise=objective.normalise,",
        'normalise="none",',
        "the critic's means are compared with the base's sums",
        (OF_THE_CRITIC,),
    ),
    Mutant(
        "sweet-nll-dropped",
        "recipes/trainings.py",
        "objective=DPO(objective),",
        'objective=DPO(objective.model_copy(update={"nll": 0.0})),',
        "the NLL term is never trained",
        (OF_THE_POLICY, OF_THE_CRITIC),
    ),
    Mutant(
        "sweet-value-labels-above-the-bar-only",
        TRAINING,
        "shares[tree.task, outcome.sample] >= least",
        "shares[tree.task, outcome.sample] > least",
        "the value function is told that nothing succeeded",
        (VALUE,),
    ),
    Mutant(
        "sweet-value-function-always-privileged",
        TRAINING,
        "context = PRIVILEGED if s.privileged else None",
        "context = PRIVILEGED",
        "the ablation's value function reads the reference",
        (VALUE,),
    ),
    Mutant(
        "sweet-value-turns-at-their-beginning",
        "training/classifier.py",
        "[turn[-1] for turn in turns]",
        "[turn[0] for turn in turns]",
        "a turn is judged by its first token",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-value-labels-swapped",
        "training/classifier.py",
        "logits if item.success else -logits",
        "-logits if item.success else logits",
        "the value function foretells failure",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-value-mean-over-turns",
        "training/classifier.py",
        "-logits).sum()",
        "-logits).mean()",
        "turns of long dialogues count less",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-value-weight-not-counted",
        "training/classifier.py",
        "return item.weight * sum(",
        "return sum(",
        "weights change the step's size and not the shares in it",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-reward-model-upside-down",
        "training/regression.py",
        "logsigmoid(better - worse)",
        "logsigmoid(worse - better)",
        "the reward model prefers failures",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-reward-model-sums",
        "training/regression.py",
        'worse = side_statistic(pair.rejected, rejected, "tokens")',
        'worse = side_statistic(pair.rejected, rejected, "none")',
        "long rejected sides have large rewards",
        (BY_HAND,),
    ),
    Mutant(
        "sweet-adapted-critic-is-the-base",
        "runs/roles.py",
        "        if adapter:\n            reload(loaded, path)\n",
        "",
        "a critic that is an adapter judges by the base",
        (ADAPTED,),
    ),
    Mutant(
        "sweet-head-as-wide-as-the-layers",
        "models/heads.py",
        "return int(causal(model).get_output_embeddings().weight.shape[-1])",
        "return int(model.config.hidden_size)",
        "a model that ends narrower than its layers can't be a critic",
        (f"{HEAD}test_a_head_is_as_wide_as_the_states_that_the_vocabulary_is_read_from",),
    ),
    Mutant(
        "sweet-critic-in-slices",
        "training/launch.py",
        "    if head:\n        refuse",
        "    if head and False:\n        refuse",
        "a run samples all its dialogues before it says that its critic can't be trained so",
        (
            "tests/test_sweet_rl.py::"
            "test_a_critic_in_slices_is_refused_before_the_run_where_it_has_a_value_head",
        ),
    ),
)
