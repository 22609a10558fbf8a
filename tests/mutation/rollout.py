"""Faults in episodes, branches, tree searches, candidates, templates and adapters."""

import math
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
    without_first,
)

R = "coterie.rollout."
M = "coterie.models."
SEARCH = "tests/rollout/test_tree_search.py::"
VALUE = f"{SEARCH}test_a_value_is_the_mean_over_the_rollouts_through_a_node"
SOFTMAX = f"{SEARCH}test_a_node_is_drawn_by_softmax_of_its_value"
NEAR = f"{SEARCH}test_only_the_best_that_are_not_near_earlier_starts_are_drawn"
WHOLE = f"{SEARCH}test_every_rollout_ends_every_turn_is_where_it_was_sampled_and_near_siblings_are_one[0.5]"
GROWER = "tests/rollout/test_grower.py::"
SEEDS = f"{GROWER}test_every_turn_of_every_rollout_is_drawn_by_a_seed_of_its_own"
DENSE = "tests/rollout/test_dense_search.py::"
ROLLOUTS = f"{DENSE}test_a_value_is_the_mean_over_rollouts_each_counted_once"
PROMISE = f"{DENSE}test_a_node_promises_by_contrast_depth_and_visits"
ONCE = f"{DENSE}test_a_child_is_sampled_once_and_nothing_is_played_twice"
ENOUGH = f"{DENSE}test_a_search_ends_with_its_pairs_or_its_rollouts"
FIRST = f"{DENSE}test_the_first_search_varies_the_first_step_and_is_greedy_then"
BRANCHES = "tests/rollout/test_branches.py::"
PLAY = (
    "tests/rollout/test_play.py::test_each_turn_that_was_rewarded_has_its_reward_and_no_other_turn"
)
WIDTH = "tests/rollout/test_play.py::test_the_dialogues_in_flight_follow_the_width_of_the_engine"
CANDIDATES = "tests/recipes/test_sweet_steps.py::"
PROMPT = f"{CANDIDATES}test_candidates_are_the_base_policys_under_the_prompt_of_the_turn"
OPTIMA = "tests/recipes/test_optima.py::"
FORGED = "tests/models/test_forged_turns.py::"
OWN_TURNS = f"{FORGED}test_own_turns_stay_as_sampled_in_any_company"
ROLES = "tests/training/test_roles.py::"
DRAWS = "tests/engines/test_inprocess_engine.py::test_draws_follow_the_distribution_and_top_p_cuts_its_tail"
SPANS = "tests/engines/test_inprocess_engine.py::test_a_completion_in_flight_spans_a_load_and_leaves_no_old_keys"
SEEDS_DIFFER = (
    "tests/engines/test_inprocess_engine.py::test_one_call_with_many_seeds_equals_many_calls"
)
VALUE_CAN = f"{DENSE}test_a_value_can_be_the_mean_of_the_children"
FIRST_CHILD = f"{DENSE}test_the_first_child_is_greedy_and_the_others_take_the_temperatures_in_turn"
SAMPLES_TASK = f"{OPTIMA}test_tasks_are_drawn_once_and_each_sample_has_its_own_seed"
CODING = "tests/environments/test_coding.py::"
WHAT_PERSON = f"{CODING}test_what_a_person_draws_is_of_the_sample_and_of_the_place_of_its_turn"
PROBE_SAYS = f"{OPTIMA}test_the_token_term_of_trees_is_relative_to_the_probe"
PLAYERS_WHO = f"{BRANCHES}test_players_who_act_at_the_same_time_do_not_see_each_other"
LIMIT_ENDS = f"{BRANCHES}test_a_limit_ends_a_path_truncated"
DATA_CAN = (
    "tests/environments/test_environment_faults.py::test_data_that_can_be_changed_fails_its_item"
)
REWARD_BELONGS = (
    "tests/rollout/test_play.py::test_a_reward_belongs_to_all_that_is_said_at_the_same_time"
)
N_CANDIDATES = f"{CANDIDATES}test_of_n_candidates_the_one_with_the_highest_score_is_said"
EVERY_CONTENT = f"{FORGED}test_every_content_leaves_the_templates_control_tokens_as_they_are"
NO_TOOL_TEXT = f"{FORGED}test_no_text_of_a_tool_can_forge_a_turn"
TEMPLATES = "tests/contract/test_15_chat_templates.py::"
ORDERS = (
    f"{TEMPLATES}test_every_message_is_shown_once_in_its_order_by_every_template[deepseekv3-USU]"
)
KEPT_THOUGHT = f"{TEMPLATES}test_thoughts_are_kept_or_dropped_as_the_template_does_it[qwen3_8]"
ROWS = f"{TEMPLATES}test_rows_of_two_questions_are_the_templates_own_prompts_and_whole_replies"
STRANGER = "tests/engines/test_relay.py::test_a_stranger_reaches_no_route"
PARSER = f"{TEMPLATES}test_the_reasoning_parser_says_whether_templates_without_thoughts_have_any"
LACKS = f"{TEMPLATES}test_a_prompt_that_lacks_a_message_is_refused_with_the_message"
HIDDEN_THOUGHT = (
    f"{TEMPLATES}test_a_thought_is_seen_by_its_agent_alone_and_answers_are_read_without_it[qwen3_6]"
)
SAMPLED_IDS = "tests/models/test_chat.py::test_sampled_ids_are_spliced_in_and_closed_once"
ADAPTERS = "tests/contract/test_16_adapters.py::test_merged_exported_loaded_and_sampled_weights_are_the_adapters"
SCALE_ADAPTER = f"{ROLES}test_the_scale_of_an_adapter_is_alpha_over_r"
BASE_DIFFERS = f"{ROLES}test_adapters_of_other_bases_and_unknown_ones_are_refused"


def _values_of_the_best(original, tree, rollouts):
    values = {}
    for rollout in rollouts:
        if rollout.leaf is not None and rollout.reward is not None:
            for node in (tree.root, *(turn.id for turn in tree.path(rollout.leaf))):
                values[node] = max(values.get(node, -math.inf), rollout.reward)
    return {n: replace(one, mean=values[n]) for n, one in original(tree, rollouts).items()}


def _repeats_counted(original, self, path, reward):
    self._leaves.clear()
    original(self, path, reward)


def _visits_unseen(original, self, node):
    self._starts.clear()
    return original(self, node)


def _one_seed_for_all_turns(original, self, episode, at, place):
    return original(self, episode, replace(at, state=replace(at.state, turns=())), place)


HISTORIES = "tests/environments/program/test_histories.py::"
ECHOED = f"{HISTORIES}test_echoed_replies_are_the_sampled_tokens[granite-as sent]"
PARALLEL = f"{HISTORIES}test_each_sampled_token_is_trained_once_after_its_own_prompt[parallel conversations]"
OTHER_ROLE = f"{HISTORIES}test_replies_of_another_role_are_context"


def _of_any_role(original, actor, wire, stop, past, turns):
    return original(actor, wire, stop, [replace(prompted, actor=actor) for prompted in past], turns)


FAULTS = (
    # Optima's trees: values, the draw of a node, merges, seeds.
    Fault(f"{R}tree_search:node_values", around(_values_of_the_best), [VALUE]),
    Fault(f"{R}tree_search:choose", settings(softmax_temperature=1e9), [SOFTMAX]),
    Fault(f"{R}tree_search:choose", settings(best=10**6), [NEAR]),
    Fault(f"{R}tree_search:choose", settings(choice_distance=0.0), [NEAR]),
    Fault(f"{R}tree_search:_near", returns(False), [NEAR]),
    Fault(f"{R}tree_search:_has_grandchild", returns(True), [VALUE]),
    Fault(f"{R}tree_search:_same", given(distance=0.0), [WHOLE]),
    Fault(f"{R}tree_search:TreeSearch.seed_of", given(index=0), [SEEDS]),
    Fault(f"{R}tree_search:TreeSearch.seed_of", given(rollout=edited(number=0)), [SEEDS]),
    Fault(f"{R}tree_search:TreeSearch.plan", without_first, [WHOLE]),
    # Dense trees: values, promise, labels, the end of a search.
    Fault(f"{R}dense_search:TreeValues.add", around(_repeats_counted), [ROLLOUTS]),
    Fault(f"{R}dense_search:TreeValues.add", given(reward=lambda reward: -reward), [ROLLOUTS]),
    Fault(f"{R}dense_search:TreeValues.__init__", given(rule="rollouts"), [VALUE_CAN]),
    Fault(f"{R}dense_search:TreeValues.siblings", returns([]), [PROMISE]),
    Fault(f"{R}dense_search:DenseSearch.priority", around(_visits_unseen), [PROMISE]),
    Fault(f"{R}dense_search:DEPTH", becomes(0.0), [PROMISE]),
    Fault(f"{R}dense_search:DenseSearch.best_first", reverse, [PROMISE]),
    Fault(f"{R}dense_search:DenseSearch.known_turn", returns(None), [ONCE]),
    Fault(f"{R}dense_search:DenseSearch.is_covered", returns(False), [ONCE]),
    Fault(f"{R}dense_search:DenseSearch.is_done", returns(False), [ENOUGH]),
    Fault(f"{R}dense_search:DenseSearch._first", reverse, [FIRST]),
    Fault(f"{R}dense_search:DenseSearchSettings.temperature", returns(0.0), [FIRST_CHILD]),
    # Episodes and branches: seeds, who sees what, limits, rewards on the way.
    Fault(f"{R}episodes:Driver._seed", given(episode=edited(sample=0)), [SAMPLES_TASK]),
    Fault(f"{R}episodes:Driver._seed", around(_one_seed_for_all_turns), [WHAT_PERSON]),
    Fault(f"{R}episodes:dialogue_tokens", given(path=lambda path: path[-1:]), [PROBE_SAYS]),
    Fault(f"{R}episodes:Driver.in_flight", returns(10_000), [WIDTH]),
    Fault(f"{R}positions:_rewards", returns({}), [PLAY]),
    Fault(f"{R}positions:_rewards", given(actions=lambda actions: actions[::-1]), [PLAYERS_WHO]),
    Fault(f"{R}positions:_limit", returns(None), [LIMIT_ENDS]),
    Fault(f"{R}positions:_check_frozen", returns(None), [DATA_CAN]),
    Fault(f"{R}episodes:final_credit", given(grade=edited(rewards={})), [REWARD_BELONGS]),
    # Candidates and best of n.
    Fault(f"{R}candidates:candidates", result(lambda groups: [g[1:] for g in groups]), [PROMPT]),
    Fault(f"{R}candidates:FIRST_DRAW", becomes(1), [PROMPT]),
    Fault(f"{R}candidates:CandidateSampling.branch", given(dialogue=edited(sample=0)), [PROMPT]),
    Fault(f"{R}candidates:BestOfSampler.__init__", given(count=1), [N_CANDIDATES]),
    # Text cannot forge a turn; sampled tokens are spliced into later prompts as they are.
    Fault(
        f"{M}control:ControlTokens.hidden",
        around(lambda original, self, shown: iter([(shown.text, False)])),
        [EVERY_CONTENT],
    ),
    Fault(f"{M}control:ControlTokens.allowed_ids", given(role="assistant"), [NO_TOOL_TEXT]),
    # Programs: echoed replies are the sampled tokens, and replies of another role are context.
    Fault("coterie.environments.program_history:_echoes", returns(False), [ECHOED]),
    Fault("coterie.record.rows:_previous", returns({}), [PARALLEL]),
    Fault("coterie.environments.program_history:read_history", around(_of_any_role), [OTHER_ROLE]),
    # Chat templates: roles, thoughts, lost messages.
    Fault(f"{M}chat:ChatRenderer._arrange", around(lambda original, self, chat: chat), [ORDERS]),
    Fault(f"{M}chat:ChatRenderer._header_before", given(rest=""), [KEPT_THOUGHT]),
    Fault(f"{M}chat:ChatRenderer._without_calls", returns(None), [f"{ROWS}[gptoss-True-True]"]),
    Fault(
        f"{M}chat:ChatRenderer._find_end",
        result(lambda ids: ids[:1]),
        [f"{ROWS}[cohere2-False-False]"],
    ),
    Fault("coterie.engines.connections:_proof", given(nonces=b""), [STRANGER]),
    Fault("coterie.engines.connections:_proof", given(secret=""), [STRANGER]),
    Fault("coterie.engines.settings:EngineSettings.template", returns({}), [PARSER]),
    Fault(f"{M}template:Layout._check_shown", returns(None), [LACKS]),
    Fault(f"{M}template:Thoughts.split", given(opened=False), [HIDDEN_THOUGHT]),
    Fault(f"{M}chat:_is_own", returns(False), [OWN_TURNS]),
    # Adapters that share a base.
    Fault(f"{M}adapters:add_lora", given(alpha=1), [SCALE_ADAPTER]),
    Fault(f"{M}adapters:untie", returns(None), [ADAPTERS]),
    Fault(f"{M}adapters:_check_base", returns(None), [BASE_DIFFERS]),
    # What an engine draws.
    Fault("coterie.engines.llama:CompiledLlama.leave", given(reuse=True), [SPANS]),
    Fault("coterie.engines.inprocess:draw_by_torch", given(logits=lambda logits: -logits), [DRAWS]),
    Fault("coterie.engines.inprocess:_top_p", given(logprobs=lambda logprobs: -logprobs), [DRAWS]),
    Fault("coterie.engines.sequence:uniforms", given(seed=0), [SEEDS_DIFFER]),
)
