"""Faults of BabyAI as an environment: its games, its splits, its moves, its ends; and of the script that plays it."""

from tests.mutation.mutant import Mutant

TESTS = "tests/test_babyai.py::"
GAMES = "environments/acting/babyai_games.py"
VIEW = "environments/acting/babyai_view.py"
ENVIRONMENT = "environments/acting/babyai.py"
SPLITS = f"{TESTS}test_splits_share_no_game_and_none_comes_twice"
CONTENT = f"{TESTS}test_games_differ_in_the_mission_the_place_and_the_direction_alone"
FORKS = f"{TESTS}test_a_fork_says_what_a_replay_says_and_leaves_its_parent_alone"
MOVES = f"{TESTS}test_moves_are_made_and_what_is_not_a_move_costs_a_step_alone"
SOLVES = f"{TESTS}test_the_bot_of_the_package_solves_levels_through_the_text"
LOSES = f"{TESTS}test_a_wrong_object_loses_where_the_level_says_so_and_steps_run_out"
PLAYER = "microworlds/acts_player.py"
SCRIPT = "tests/test_acts.py::test_the_script_wins_without_its_habit_and_loses_with_it"
IN_VIEW = f"{TESTS}test_what_is_in_view_is_told_from_where_the_agent_looks"

MUTANTS = (
    Mutant(
        "babyai-split-by-the-seed",
        GAMES,
        "if split_of_key(key) == split and",
        "if split_of_key(str(game)) == split and",
        "a held-out game is a training game under another seed",
        (SPLITS,),
    ),
    Mutant(
        "babyai-a-game-comes-twice",
        GAMES,
        "            seen.add(key)\n",
        "",
        "a small level gives the same game many times",
        (SPLITS,),
    ),
    Mutant(
        "babyai-content-without-the-direction",
        GAMES,
        "*map(int, level.agent_pos), int(level.agent_dir)]",
        "*map(int, level.agent_pos)]",
        "different games are taken for one",
        (CONTENT,),
    ),
    Mutant(
        "babyai-content-without-the-mission",
        GAMES,
        "stands, level.mission)",
        "stands)",
        "different games are taken for one",
        (CONTENT,),
    ),
    Mutant(
        "babyai-a-larger-count-begins-anew",
        GAMES,
        "return drawn[start : start + count]",
        "return drawn[-count:]",
        "tasks change with their number",
        (f"{TESTS}test_a_larger_count_extends_a_smaller_one_and_draws_go_on",),
    ),
    Mutant(
        "babyai-the-package-prints",
        GAMES,
        'vars(roomgrid_level)["print"] = _keep_quiet',
        'vars(roomgrid_level)["_print"] = _keep_quiet',
        "each layout that the package rejects is a line on the screen",
        (f"{TESTS}test_the_package_prints_nothing",),
    ),
    Mutant(
        "babyai-a-fork-shares-the-game",
        ENVIRONMENT,
        "nullcontext(Game(copy.deepcopy(self.level)))",
        "nullcontext(Game(self.level))",
        "a branch moves the agent of another",
        (FORKS,),
    ),
    Mutant(
        "babyai-a-fork-copies-the-surface",
        ENVIRONMENT,
        "copy.deepcopy(self.level)",
        "copy.copy(self.level)",
        "what a branch picks up is gone from another",
        (FORKS,),
    ),
    Mutant(
        "babyai-a-session-begins-with-another-game",
        ENVIRONMENT,
        'live.start(int(str(task.public["seed"])))',
        "live.start(0)",
        "all tasks are one game",
        (MOVES,),
    ),
    Mutant(
        "babyai-an-unknown-action-moves",
        ENVIRONMENT,
        "            listed = ",
        "            live.move('move forward')\n            live.move('turn left')\n            listed = ",
        "what is refused is done",
        (MOVES,),
    ),
    Mutant(
        "babyai-every-end-is-success",
        ENVIRONMENT,
        "SOLVED if float(reward) > 0 else FAILED",
        "SOLVED",
        "a lost game is a solved one",
        (LOSES,),
    ),
    Mutant(
        "babyai-success-without-an-end",
        ENVIRONMENT,
        "float(state.end == SOLVED)",
        "float(state.end != FAILED)",
        "who runs out of steps has succeeded",
        (MOVES,),
    ),
    Mutant(
        "babyai-the-limit-is-not-the-settings",
        ENVIRONMENT,
        "super().__init__(settings.steps)",
        "super().__init__(30)",
        "steps are not what was asked for",
        (LOSES,),
    ),
    Mutant(
        "babyai-moves-are-not-counted",
        ENVIRONMENT,
        "Transition(moves + 1, ",
        "Transition(moves, ",
        "the metric says that nothing was done",
        (MOVES,),
    ),
    Mutant(
        "babyai-nothing-is-said-of-a-move-in-vain",
        ENVIRONMENT,
        'else f"{NOTHING_CHANGED} {view}"',
        "else view",
        "the agent is not told that its move did nothing",
        (f"{TESTS}test_a_wall_in_the_way_is_told",),
    ),
    Mutant(
        "babyai-left-is-right",
        VIEW,
        "'right' if self.right > 0 else 'left'",
        "'left' if self.right > 0 else 'right'",
        "the agent turns away from what it looks for",
        (IN_VIEW,),
    ),
    Mutant(
        "babyai-what-is-carried-lies-before-the-agent",
        VIEW,
        "and (column, row) != (middle, near)",
        "",
        "the agent sees what it carries at its feet",
        (IN_VIEW,),
    ),
    Mutant(
        "babyai-a-name-is-an-action",
        ENVIRONMENT,
        '"pick up": 3, "drop": 4',
        '"pick up": 4, "drop": 3',
        "the agent drops what it is to pick up",
        (SOLVES,),
    ),
    Mutant(
        "acts-the-script-has-no-habit",
        PLAYER,
        "{FORWARD} if tempted and rng.random() < habit else good",
        "good",
        "there is nothing to train away",
        (SCRIPT,),
    ),
    Mutant(
        "acts-the-script-looks-to-both-sides",
        PLAYER,
        "{last} if last in (LEFT, RIGHT) else {LEFT, RIGHT}",
        "{LEFT, RIGHT}",
        "who looks for something turns to and fro, and good play often loses",
        (SCRIPT,),
    ),
    Mutant(
        "acts-sums-are-never-traps",
        "microworlds/acts.py",
        "if problem.trap and rng.random() < habit:",
        "if problem.trap and rng.random() > habit:",
        "the habit of multiplying is weaker than the stage says",
        ("tests/test_acts.py::test_the_habit_is_as_frequent_in_rows_as_the_stage_says",),
    ),
    Mutant(
        "acts-rows-without-the-prompt",
        "microworlds/acts.py",
        'messages = [("system", TOLD)]',
        'messages = [("system", "")]',
        "the model is asked in words that it has never seen",
        ("tests/test_acts.py::test_rows_of_games_are_what_the_environment_shows",),
    ),
)
