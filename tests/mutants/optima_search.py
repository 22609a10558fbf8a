"""Faults of Optima's selection, of its pairs, and of its search of trees."""

from tests.mutation.mutant import Mutant

SELECTION = "tests/test_selection.py::"
BEST = f"{SELECTION}test_best_of_each_task_above_the_threshold_then_the_top_share"
GATE = f"{SELECTION}test_the_gate_keeps_wrong_trajectories_out_whatever_their_reward"
EASIEST = f"{SELECTION}test_the_easiest_can_be_left_out"
RANDOM = f"{SELECTION}test_random_takes_as_many_as_asked_one_a_task_and_repeats"
TREES = "tests/test_tree_search.py::"
GAMES = "tests/test_grower.py::"
ALL_PAIRS = f"{TREES}test_all_siblings_that_differ_enough_are_pairs_the_best_first"
BOUNDS = f"{TREES}test_both_bounds_are_exclusive"
SHARE = f"{TREES}test_the_top_share_of_a_task_is_rounded_down_but_one_pair_stays"
SOFTMAX = f"{TREES}test_a_node_is_drawn_by_softmax_of_its_value"
NEAR = f"{TREES}test_what_was_chosen_and_what_is_near_it_is_left_out"
VALUE = f"{TREES}test_a_value_is_the_mean_over_the_rollouts_through_a_node"
SEEN = "tests/test_optima_algorithm.py::"

MUTANTS = (
    Mutant(
        "optima-select-worst-of-each-task",
        "selection/demonstrations.py",
        "key=lambda r: (-r.total, r.sample)",
        "key=lambda r: (r.total, r.sample)",
        "each task's worst dialogue is trained on",
        (BEST,),
    ),
    Mutant(
        "optima-select-gate-not-applied",
        "selection/demonstrations.py",
        "[r for r in rs if r.score >= settings.min_score]",
        "list(rs)",
        "select.min_score has no effect: wrong dialogues are trained on",
        (GATE, f"{SEEN}test_the_gate_of_sft_takes_only_dialogues_that_were_right"),
    ),
    Mutant(
        "optima-select-gate-after-the-best",
        "selection/demonstrations.py",
        "[r for r in rs if r.score >= settings.min_score] for task, rs in rewards.items()}",
        "[r for r in rs] if max((r.total, r.score) for r in rs)[1] >= settings.min_score else []"
        " for task, rs in rewards.items() if rs}",
        "a task whose best dialogue is wrong is left out, though another one is right",
        (GATE,),
    ),
    Mutant(
        "optima-select-threshold-on-the-score",
        "selection/demonstrations.py",
        "if r.total >= settings.threshold]",
        "if r.score >= settings.threshold]",
        "the threshold is that of the task term in place of R",
        (
            "tests/test_original_files.py::"
            "test_the_gate_the_threshold_and_the_shares_decide_what_is_trained_on",
        ),
    ),
    Mutant(
        "optima-select-share-of-all-tasks",
        "selection/demonstrations.py",
        "(round(len(good) * s) for s in",
        "(round(len(best) * s) for s in",
        "the top share is that of all tasks: with few good ones none is left out",
        (BEST, EASIEST),
    ),
    Mutant(
        "optima-select-bottom-share",
        "selection/demonstrations.py",
        "good.sort(key=lambda item: (-item[1].total, item[0]))",
        "good.sort(key=lambda item: (item[1].total, item[0]))",
        "the worst of the good ones are kept",
        (BEST,),
    ),
    Mutant(
        "optima-select-easiest-stay",
        "selection/demonstrations.py",
        "return good[first:stop]",
        "return good[:stop]",
        "select.skip_share has no effect",
        (EASIEST,),
    ),
    Mutant(
        "optima-select-random-of-one-seed",
        "selection/demonstrations.py",
        "generator = random.Random(seed)",
        "generator = random.Random()",
        "the control can't be repeated",
        (RANDOM,),
    ),
    Mutant(
        "optima-pairs-filter-on-the-rejected",
        "selection/pairs.py",
        "if pair.value > settings.theta_filter",
        "if pair.value - pair.difference > settings.theta_filter",
        "only pairs whose worse side is good too are kept",
        (ALL_PAIRS,),
    ),
    Mutant(
        "optima-pairs-filter-inclusive",
        "selection/pairs.py",
        "if pair.value > settings.theta_filter",
        "if pair.value >= settings.theta_filter",
        "an utterance of exactly theta_filter is chosen",
        (BOUNDS,),
    ),
    Mutant(
        "optima-pairs-difference-not-asked",
        "selection/pairs.py",
        "            and pair.difference > settings.theta_diff\n",
        "            and pair.difference > 0\n",
        "dpo.select.theta_diff has no effect: noise is trained on",
        (ALL_PAIRS,),
    ),
    Mutant(
        "optima-pairs-all-are-kept",
        "selection/pairs.py",
        "return found[: max(int(len(found) * settings.top_share), 1)]",
        "return found",
        "dpo.select.top_share has no effect",
        (SHARE,),
    ),
    Mutant(
        "optima-pairs-none-of-few",
        "selection/pairs.py",
        "return found[: max(int(len(found) * settings.top_share), 1)]",
        "return found[: int(len(found) * settings.top_share)]",
        "a task with one pair gives none",
        (SHARE,),
    ),
    Mutant(
        "optima-pairs-of-the-root-only",
        "selection/pairs.py",
        "for parent in (tree.root, *tree.turns):",
        "for parent in (tree.root,):",
        "only first utterances are compared",
        (ALL_PAIRS,),
    ),
    Mutant(
        "optima-search-values-of-the-last-rollout",
        "rollout/search.py",
        "node: Value(math.fsum(found) / len(found), len(found))",
        "node: Value(found[-1], len(found))",
        "an utterance is worth what its last rollout was",
        (VALUE,),
    ),
    Mutant(
        "optima-search-best-value",
        "rollout/search.py",
        "node: Value(math.fsum(found) / len(found), len(found))",
        "node: Value(max(found), len(found))",
        "an utterance is worth its luckiest rollout",
        (VALUE,),
    ),
    Mutant(
        "optima-search-always-the-best",
        "rollout/search.py",
        "return rng.choices(best, weights)[0]",
        "return best[0]",
        "the search has no softmax and never looks elsewhere",
        (SOFTMAX,),
    ),
    Mutant(
        "optima-search-uniform",
        "rollout/search.py",
        "return rng.choices(best, weights)[0]",
        "return rng.choices(best)[0]",
        "values do not steer the search",
        (SOFTMAX,),
    ),
    Mutant(
        "optima-search-worst-are-drawn",
        "rollout/search.py",
        "key=lambda node: (-values[node].mean, node)",
        "key=lambda node: (values[node].mean, node)",
        "the search goes on from the worst utterances",
        (f"{TREES}test_only_the_best_are_drawn",),
    ),
    Mutant(
        "optima-search-near-ones-are-drawn",
        "rollout/search.py",
        "< settings.choice_distance",
        "<= 0",
        "dpo.search.choice_distance has no effect",
        (NEAR,),
    ),
    Mutant(
        "optima-search-distance-over-the-shorter",
        "rollout/search.py",
        "Levenshtein.distance(text, other) / (max(len(text), len(other)) + 1)",
        "Levenshtein.distance(text, other) / (min(len(text), len(other)) / 4 + 1)",
        "near utterances are not near any more",
        (NEAR,),
    ),
    Mutant(
        "optima-tree-nothing-is-merged",
        "rollout/search.py",
        "/ (len(new) + 1) < distance",
        "/ (len(new) + 1) < 0",
        "dpo.search.merge_distance has no effect: trees fall apart, and values are of single rollouts",
        (f"{TREES}test_near_siblings_are_one[0.5]", f"{TREES}test_merging_makes_a_tree_narrower"),
    ),
    Mutant(
        "optima-tree-equal-seeds",
        "rollout/tree_search.py",
        'self.key("seed", rollout.search, rollout.number, depth)',
        'self.key("seed", 0, 0, depth)',
        "all rollouts of a search say the same",
        (
            f"{TREES}test_merging_makes_a_tree_narrower",
            f"{GAMES}test_every_turn_of_every_rollout_is_drawn_by_a_seed_of_its_own",
        ),
    ),
    Mutant(
        "optima-tree-half-paths-stay",
        "rollout/tree_search.py",
        "        if any(rollout.leaf is None for rollout in found):\n            await self._prune()\n",
        "",
        "turns of failed rollouts stay in the tree though the record has none of them",
        (f"{TREES}test_a_branch_that_fails_is_recorded_and_the_others_go_on",),
    ),
    Mutant(
        "optima-episodes-equal-samples",
        "rollout/driver.py",
        "key = (self.seed, episode.iteration, episode.stage, episode.task.id, episode.sample)",
        "key = (self.seed, episode.iteration, episode.stage, episode.task.id)",
        "all samples of a task are drawn with the same random numbers",
        ("tests/test_optima_algorithm.py::test_samples_of_a_task_have_their_own_random_numbers",),
    ),
    Mutant(
        "optima-episodes-tokens-of-the-last-turn",
        "rollout/episodes.py",
        "return sum(len(turn.ids) for turn in path)",
        "return len(path[-1].ids)",
        "the token term counts the last turn only",
        (f"{SEEN}test_the_probe_says_what_tokens_are_over",),
    ),
)
