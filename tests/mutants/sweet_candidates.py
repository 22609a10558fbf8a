"""Faults of how SWEET-RL draws candidates for every turn, and says the best of them."""

from tests.mutation.mutant import Mutant

STEPS = "tests/sweet/test_steps.py::"
RANKED_TURNS = "tests/sweet/test_candidates.py::"

RECIPE = "recipes/sweet_rl/recipe.py"
DATA = "recipes/sweet_rl/data.py"

CANDIDATES = f"{RANKED_TURNS}test_candidates_are_the_base_policys_under_the_prompt_of_the_turn"
BEST = f"{RANKED_TURNS}test_of_n_candidates_the_one_with_the_highest_score_is_said"

MUTANTS = (
    Mutant(
        "sweet-candidates-at-the-dialogues-temperature",
        "recipes/sweet_rl/branching.py",
        "recipe.sampler(run, 0, s.candidates.temperature,",
        "recipe.sampler(run, 0, s.rollout.temperature,",
        "candidates.temperature changes nothing",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-by-the-critic",
        "recipes/sweet_rl/branching.py",
        "recipe.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)",
        'recipe.sampler(run, 1, s.candidates.temperature, s.rollout.top_p, "critic")',
        "the critic says the candidates, and not the base",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-one-seed-for-all-repeats",
        "rollout/candidates.py",
        "played.task.id, played.sample)",
        "played.task.id)",
        "the first turns of a task's dialogues have the same candidates",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-one-seed-for-all-turns",
        "rollout/candidates.py",
        "*key, place, number)",
        "*key, number)",
        "all turns of a dialogue draw the same random numbers",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-of-two-dialogues-are-one-group",
        "rollout/candidates.py",
        "first = FIRST_DRAW * (played.sample + 1)",
        "first = FIRST_DRAW",
        "candidates of a task's second dialogue take the place of the first one's",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-one-seed-for-all",
        "rollout/candidates.py",
        "*key, place, number)",
        "*key, place)",
        "all candidates of a turn are the same one",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-of-the-beginning",
        "rollout/candidates.py",
        "asked.append(at)",
        "asked.append(asked[0] if asked else at)",
        "all candidates are what might have been said first",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-candidates-without-the-first",
        "rollout/candidates.py",
        "turn.draw >= FIRST_DRAW",
        "turn.draw > FIRST_DRAW",
        "one candidate is never scored",
        (CANDIDATES,),
    ),
    Mutant(
        "sweet-second-dialogues-before-first-ones",
        DATA,
        "keys = sorted((sample, task) for task, sample in rewards(run))",
        "keys = [(sample, task) for task, sample in sorted(rewards(run))]",
        "candidates come from half of the tasks",
        (
            f"{RANKED_TURNS}test_the_first_dialogue_of_every_task_gets_candidates_before_the_second_of_any",
        ),
    ),
    Mutant(
        "sweet-one-dialogue-a-task",
        DATA,
        "repeats = range(self.settings.rollout.repeats)",
        "repeats = range(1)",
        "there is nothing to compare",
        (f"{STEPS}test_each_task_is_played_k_times_and_each_held_out_one_once",),
    ),
    Mutant(
        "sweet-best-of-n-says-the-worst",
        "rollout/best_of.py",
        "best = max(range",
        "best = min(range",
        "the worst candidate is said",
        (BEST,),
    ),
    Mutant(
        "sweet-best-of-n-one-seed",
        "rollout/best_of.py",
        'digest("best of", prompt.seed, n)',
        'digest("best of", n)',
        "all dialogues draw the same random numbers",
        (BEST,),
    ),
)
