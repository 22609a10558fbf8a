"""Faults in what the methods sample, select and train on."""

from dataclasses import replace

from tests.mutation.fault import (
    Fault,
    around,
    becomes,
    edited,
    given,
    result,
    returns,
    reverse,
    settings,
    swap,
)

R = "coterie.recipes."
OPTIMA = "tests/recipes/test_optima.py::"
SEEDED = f"{OPTIMA}test_each_iterations_training_has_its_own_settings_and_seed"
FORMATS = f"{OPTIMA}test_formats_are_drawn_for_each_dialogue_of_iteration_0_and_not_trained_on"
PROBE = f"{OPTIMA}test_the_token_term_of_trees_is_relative_to_the_probe"
VALUES = f"{OPTIMA}test_pairs_are_siblings_and_prefer_the_higher_mean_of_rollouts"
SWEET = "tests/recipes/test_sweet_steps.py::"
REWARD = f"{SWEET}test_a_candidates_reward_is_its_mean_log_ratio_given_the_reference"
MOAT = "tests/recipes/test_moat.py::"
WORTH = f"{MOAT}test_a_plan_is_worth_what_the_grounder_makes_of_the_right_actions"
RIGHT = (
    f"{MOAT}test_the_grounder_learns_right_actions_under_the_plan_that_was_sampled_and_right_rows"
)
OWN_ACTIONS = (
    f"{MOAT}test_the_grounder_of_the_micro_world_learns_only_its_own_actions_with_right_answers"
)
PUT_TOGETHER = (
    "tests/project/test_experiments.py::"
    "test_halves_put_together_are_the_planner_of_one_run_and_the_grounder_of_the_other"
)
GAP = "tests/recipes/test_gap.py::"
DENSE = "tests/recipes/test_dense_tree.py::"
GATE_DPO = f"{OPTIMA}test_the_score_gate_and_thresholds_of_pairs"
TASKS_DRAWN = f"{OPTIMA}test_tasks_are_drawn_once_and_each_sample_has_its_own_seed"
FIRST_DIALOGUE = (
    f"{SWEET}test_the_first_dialogue_of_every_task_gets_candidates_before_the_second_of_any"
)
HEAD_GIVES = f"{SWEET}test_a_head_gives_the_mean_of_a_candidate_or_the_value_at_its_end"
SUCCESS = f"{MOAT}test_success_is_a_mean_of_outcomes_and_plans_that_quote_actions_are_left_out"
PAIR_BEST = f"{MOAT}test_a_pair_is_the_best_and_the_worst_plan_of_a_task"
HELD_OUT = f"{GAP}test_a_held_out_question_is_found_wherever_it_stands_in_a_prompt"
TRACE_AGENT = f"{GAP}test_traces_that_the_agents_call_format_cannot_express"
TRACE_PIECES = f"{GAP}test_traces_of_a_file_are_trained_on_verbatim"
WRONG_ANSWERS = f"{GAP}test_traces_with_wrong_answers_or_missing_facts_are_not_trained_on"
SIDES = "tests/project/test_density.py::test_pairs_of_whole_runs_are_judged_by_further_runs_from_each_side"
RANDOM_SIDES = f"{DENSE}test_controls_turn_some_pairs_or_imitate_an_equal_number_of_successes"
SELECTED_PAIRS = f"{DENSE}test_selected_pairs_are_siblings_that_differ_by_the_margin"


def _turned_back(original, *arguments):
    pairs = original(*arguments)
    return [replace(pair, chosen=pair.rejected, rejected=pair.chosen) for pair in pairs]


FAULTS = (
    # Optima.
    Fault(f"{R}base:Recipe.seeded", given(iteration=0), [SEEDED]),
    Fault(f"{R}optima:Optima.context", returns(None), [FORMATS]),
    Fault(f"{R}optima:Optima._format", given(sample=0), [FORMATS]),
    Fault(f"{R}base:Recipe.pairs", around(_turned_back), [VALUES]),
    Fault(
        f"{R}optima:Optima.edits",
        becomes({"drop_format": lambda messages: messages}),
        [FORMATS],
    ),
    Fault(f"{R}optima:TreeJudge.__init__", given(max_tokens=1), [PROBE]),
    Fault(
        f"{R}optima:mean_scores",
        result(lambda scores: dict.fromkeys(scores, 1.0)),
        [GATE_DPO],
    ),
    Fault(f"{R}base:Recipe.train_tasks", given(iteration=0), [TASKS_DRAWN]),
    # SWEET-RL.
    Fault(f"{R}sweet_rl:TrainedCritic.__init__", given(privileged=False), [REWARD]),
    Fault(
        f"{R}sweet_rl:LikelihoodCritic",
        around(lambda original, critic, reference, how: original(reference, critic, how)),
        [REWARD],
    ),
    Fault(f"{R}sweet_rl:dialogues_to_branch", reverse, [FIRST_DIALOGUE]),
    Fault(
        f"{R}sweet_rl:HeadCritic",
        around(lambda original, model, pool, rule: original(model, "last", rule)),
        [HEAD_GIVES],
    ),
    # MOAT.
    Fault(
        f"{R}moat:mean_loglikelihoods",
        result(lambda found: [-one for one in found]),
        [WORTH],
    ),
    Fault(f"{R}moat:_success", returns(1.0), [SUCCESS]),
    Fault(f"{R}moat:valid_plans", given(leak_guard=False), [SUCCESS]),
    Fault(f"{R}moat:best_first", reverse, [RIGHT]),
    # A scripted critic that accepts wrong actions.
    Fault(
        f"{R}moat:Correction",
        around(lambda original, verdict, *words: original("accepted", *words)),
        [OWN_ACTIONS],
    ),
    Fault("experiments.moat:PLANNER_ONLY", becomes("grounder only"), [PUT_TOGETHER]),
    Fault(f"{R}base:turn_pair", swap("chosen", "rejected"), [PAIR_BEST]),
    # GAP.
    Fault(f"{R}plan:HeldOutQuestions.occurs_in", returns(False), [HELD_OUT]),
    Fault(f"{R}gap_traces:format_error", returns(""), [TRACE_AGENT]),
    Fault(
        f"{R}gap_traces:split_trace",
        result(edited(messages=lambda messages: messages[:-1])),
        [TRACE_PIECES],
    ),
    Fault(f"{R}gap:Gap._flaw", returns(""), [WRONG_ANSWERS]),
    # Dense trees.
    Fault(
        "experiments.dense_tree:RandomSides.turn",
        around(lambda original, self, pair: pair),
        [RANDOM_SIDES],
    ),
    # Pairs are right by their own runs.
    Fault("experiments.dense_tree_density:SideSearch.right", returns([1.0]), [SIDES]),
    Fault(f"{R}dense_tree:dense_pairs", settings(margin=0.01), [SELECTED_PAIRS]),
)
