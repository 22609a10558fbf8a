"""Faults of how trees grow: ways to go on, rollouts that share turns, searches that go on later."""

from tests.mutation.mutant import Mutant

GAMES = "tests/test_grower.py::"

GROWER = "rollout/grower.py"
SEARCH = "rollout/tree_search.py"
BRANCHES = "rollout/branches.py"

MERGED = f"{GAMES}test_a_merged_turn_goes_on_from_its_sibling"
STORED = f"{GAMES}test_a_search_of_a_tree_from_a_store_goes_on_alike"

MUTANTS = (
    Mutant(
        "growing-one-seed-for-all-who-act",
        SEARCH,
        "depth = len(at.state.turns) + place",
        "depth = len(at.state.turns)",
        "players who act at the same time draw the same random numbers",
        (f"{GAMES}test_every_turn_of_every_rollout_is_drawn_by_a_seed_of_its_own",),
    ),
    Mutant(
        "growing-sessions-are-never-copied",
        GROWER,
        "several = len(parts) > 1",
        "several = False",
        "every way but one is replayed from the beginning",
        (f"{GAMES}test_a_search_grows_the_same_tree_with_forks_and_with_replay",),
    ),
    Mutant(
        "growing-merged-turns-go-on-apart",
        GROWER,
        "placed += (self._again(same, len(same.ids)),)",
        "placed += (replace(response, turn=turn),)",
        "a rollout goes on from words that are not in the tree",
        (MERGED,),
    ),
    Mutant(
        "growing-merged-turns-are-not-counted",
        GROWER,
        "sum(response.tokens for response in way)",
        "sum(response.tokens for response in own)",
        "tokens that were sampled are missing from the record",
        (MERGED,),
    ),
    Mutant(
        "growing-finished-searches-are-done-again",
        SEARCH,
        "for search in range(done, self.searches):",
        "for search in range(self.searches):",
        "a search that goes on plays everything again",
        (STORED,),
    ),
    Mutant(
        "growing-choice-forgets-what-was-played",
        SEARCH,
        "self.rollouts = list(rollouts)",
        "self.rollouts = [one for one in rollouts if one.number]",
        "a search that goes on values only a part of the rollouts",
        (STORED,),
    ),
    Mutant(
        "growing-pruned-sessions-stay-open",
        BRANCHES,
        "        await self._close(gone)\n        for node in gone:",
        "        for node in gone:",
        "sessions of failed rollouts take the places of others",
        (f"{GAMES}test_a_pruned_tree_goes_on_and_what_stood_elsewhere_is_closed",),
    ),
    Mutant(
        "growing-pruned-beginning",
        BRANCHES,
        "            for turn in after.seen:\n                tree.add(turn)\n        self._cut",
        "            pass\n        self._cut",
        "after a search of which nothing is left, what the environment says first is not in the tree",
        (f"{GAMES}test_what_the_environment_says_first_outlives_pruning",),
    ),
    Mutant(
        "growing-answer-to-a-node-unchecked",
        BRANCHES,
        "if before and found.seen and found.seen[0].id not in before:",
        "if not before and found.seen and found.seen[0].id not in before:",
        "a tree goes on from words that the environment did not say then",
        (f"{GAMES}test_a_node_whose_answer_has_changed_is_refused_there",),
    ),
    Mutant(
        "growing-ungraded-fails-all",
        SEARCH,
        'failures[leaf] = f"no reward: {error}"',
        'failures |= {r.leaf: f"no reward: {error}" for r in played if r.leaf}',
        "a path that can't be graded fails its whole search",
        (f"{GAMES}test_a_path_that_cannot_be_graded_is_lost_alone",),
    ),
)
