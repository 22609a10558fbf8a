"""Faults in objectives, log-probs, tries, batches, optimizer steps and checkpoints."""

import math
from dataclasses import replace

from tests.mutation.fault import (
    Fault,
    around,
    edited,
    given,
    negated,
    result,
    returns,
    settings,
    swap,
    without_last,
)

T = "coterie.training."
M = "coterie.models."
TRAINING = "tests/training/test_training.py::"
LOSS = f"{TRAINING}test_loss_is_one_weighted_mean_over_the_step"
FIRST = f"{TRAINING}test_a_target_at_the_first_token_is_not_trained"
ADAMW = f"{TRAINING}test_a_step_is_that_of_adamw_with_decay_of_matrices_only"
ROUNDED = f"{TRAINING}test_updates_smaller_than_bfloat16_resolves_count_in_the_mean"
ORDER = f"{TRAINING}test_every_row_is_seen_once_per_epoch_and_the_order_is_that_of_the_seed"
MARGIN = "tests/training/test_value_head.py::test_the_bradley_terry_loss_is_that_of_the_margin"
DPO = "tests/contract/test_05_preferences.py::test_the_loss_is_that_of_the_own_tokens_of_every_turn"
DROPPED = "tests/contract/test_05_preferences.py::test_pairs_that_cannot_be_trained_are_dropped_and_counted_or_refused"
HEAD = "tests/training/test_value_head.py::"
OTHERS = f"{HEAD}test_other_losses_of_pairs_are_those_worked_out_by_hand"
KTO = f"{HEAD}test_kto_compares_with_the_divergence_of_the_whole_step_however_it_is_split[64]"
HEADS = f"{HEAD}test_losses_of_given_values_are_those_worked_out_by_hand"
POLICY = f"{T}policy_gradient:PolicyGradient.__init__"
FORMULA = "tests/training/test_policy_terms.py::test_the_loss_is_that_of_the_formula[0.5]"
TERMS = "tests/training/test_policy_terms.py::"
CLIPS = f"{TERMS}test_each_side_has_its_clip_and_bad_tokens_a_second_one"
GSPO = f"{TERMS}test_gspo_clips_the_geometric_mean_of_a_rows_ratios"
CISPO = f"{TERMS}test_cispo_clips_a_constant_weight_and_trains_every_token"
DISTILL = (
    f"{TERMS}test_distillation_has_the_expected_gradient_of_the_divergence_from_the_teacher[ppo]"
)
MEANS = f"{TERMS}test_means_are_of_tokens_or_of_paths_and_never_of_rows"
IMPORTANCE = (
    f"{TERMS}test_tokens_weigh_what_the_trainer_says_they_were_likelier_than_the_engine_said"
)
DIVERGENCE = f"{TERMS}test_estimates_have_the_gradients_that_their_names_promise"
PACKED = (
    "tests/contract/test_06_tries.py::test_packed_loss_and_gradients_are_the_flat_ones[sft-llama]"
)
TRIES = "tests/contract/test_06_tries.py::test_random_tries_are_those_of_their_sequences"
QLORA = "tests/training/test_qlora.py::"
IN_4_BITS = f"{QLORA}test_the_memory_plan_counts_the_bytes_of_4_bits"
FULL_BASE = f"{QLORA}test_reinforcement_learning_and_its_merged_policy"
ONCE = "tests/contract/test_06_tries.py::test_a_trie_holds_each_shared_token_once"
CHEAPER = "tests/contract/test_06_tries.py::test_sequences_are_packed_only_where_it_is_cheaper"
COUNTED = (
    "tests/training/test_trainer.py::test_a_training_that_is_cut_counts_what_it_leaves_out_once"
)
ENTROPY_GRADIENT = f"{TERMS}test_entropy_has_the_gradient_of_entropy_only_where_it_is_in_the_loss"
RATIOS_ONE = (
    f"{TERMS}test_ratios_are_one_before_the_first_update_at_the_temperature_of_sampling[0.7]"
)
ROWS_ANOTHER = f"{TERMS}test_rows_of_another_distribution_are_refused"
RATIOS_WOULD = f"{TERMS}test_ratios_that_would_overflow_are_held_and_finite"
LOSS_FORMULA = "tests/training/test_policy_terms.py::test_the_loss_is_that_of_the_formula"
WHAT_MEASURED = "tests/training/test_value_head.py::test_what_is_measured_and_what_is_refused"
LOSS_GRADIENT = "tests/training/test_value_head.py::test_the_loss_and_its_gradient_are_those_of_the_formula[flat]"
ENTROPIES_THOSE = f"{TERMS}test_entropies_are_those_of_the_models_own_distributions"
BEHAVIOUR_LOGPROBS = (
    "tests/contract/test_08_logprobs.py::test_behaviour_logprobs_are_those_of_the_trainer"
)
LOGPROBS_THOSE = (
    "tests/contract/test_08_logprobs.py::test_logprobs_are_those_of_the_models_own_logits"
)
LOSS_GRADIENTS = (
    f"{HEAD}test_loss_and_gradients_are_the_naive_ones_for_any_micro_batch[4-regression]"
)
ITEMS_ONE = f"{TRAINING}test_items_of_one_group_are_drawn_into_one_step"
ROWS_CANNOT = f"{TRAINING}test_rows_that_cannot_be_trained_are_dropped_and_counted"
RATE_EVERY = f"{TRAINING}test_the_rate_of_every_schedule"
CHECKPOINTS = "tests/training/test_training_checkpoints.py::"
ENDS = "tests/models/test_ends.py::test_other_settings_and_a_pad_that_is_no_end_are_kept"
NEWEST = f"{CHECKPOINTS}test_the_newest_of_several_checkpoints_is_gone_on_with"
ANOTHER = f"{CHECKPOINTS}test_another_training_in_the_folder_is_refused_and_can_be_replaced"
RANKS_GET = f"{TRAINING}test_ranks_get_equally_many_micro_batches"


def _count_turns(original, self, item):
    return item.weight * len(item.predicted)


def _count_unpredicted(original, self, item):
    return item.weight * item.target_count


def _other_sides(original, self, pair, logprobs):
    count = len(pair.chosen)
    pair = replace(pair, chosen=pair.rejected, rejected=pair.chosen, reference=pair.reference[::-1])
    return original(self, pair, [*logprobs[count:], *logprobs[:count]])


def _values_from_the_front(original, rows, name, like):
    kept = [getattr(row, name)[: len(getattr(row, name)) - row.unpredicted] for row in rows]
    return like.new_tensor([value for values in kept for value in values])


def _returns_backwards(original, rows, name, like):
    values = original(rows, name, like)
    return values.flip(0) if name == "returns" else values


def _mean_over_rows(original, self, batch, splitter, families):
    loss, norm = original(
        self, replace(batch, counts=[1.0] * len(batch.counts)), splitter, families
    )
    return loss, norm


def _swapped_clips(s):
    return edited(clip_low=s.clip_high, clip_high=s.clip_low)(s)


def _token_level(mode):
    return mode.replace("sequence", "token")


def _oldest_checkpoint(original, folder):
    return min(folder.glob("checkpoint-*"), default=None)


FAULTS = (
    Fault(f"{T}losses:SFT.loss", negated, [LOSS]),
    Fault(f"{T}losses:SFT.loss", given(item=edited(weight=1.0)), [LOSS]),
    Fault(f"{T}losses:OnRows.count", around(_count_turns), [LOSS]),
    Fault(f"{T}losses:OnRows.count", around(_count_unpredicted), [FIRST]),
    # Preferences: both sides, their reference, label smoothing, the likelihood of the chosen side.
    Fault(f"{T}losses:DPO.loss", around(_other_sides), [MARGIN]),
    Fault(f"{T}losses:DPO.loss", given(item=edited(reference=(0.0, 0.0))), [MARGIN]),
    Fault(f"{T}losses:DPO.loss", given(item=edited(weight=1.0)), [MARGIN]),
    Fault(f"{T}losses:DPO.__init__", settings(beta=1.0), [MARGIN]),
    Fault(f"{T}losses:DPO.__init__", settings(label_smoothing=0.0), [DPO]),
    Fault(f"{T}losses:DPO.__init__", settings(nll_coef=lambda n: -n), [DPO]),
    Fault(f"{T}losses:DPO.__init__", settings(simpo_gamma=lambda gamma: -gamma), [OTHERS]),
    Fault(f"{T}losses:KTO.prepare_step", returns(None), [KTO]),
    Fault(f"{T}losses:_log_odds", around(lambda f, logprob: logprob), [OTHERS]),
    Fault(f"{T}losses:side_statistic", given(reduction="tokens"), [MARGIN]),
    Fault(
        f"{T}losses:side_statistic",
        given(reduction=lambda n: "none" if n == "tokens" else n),
        [MARGIN],
    ),
    Fault("coterie.record.rows:Pair.equal_sides", returns(False), [DROPPED]),
    Fault(f"{T}losses:logsigmoid", around(lambda f, x: f(-x)), [HEADS]),
    Fault(f"{T}losses:side_statistic", given(reduction="none"), [HEADS]),
    Fault(f"{T}losses:Classifier.loss", given(item=edited(success=lambda s: not s)), [HEADS]),
    Fault(
        f"{T}losses:Classifier.loss",
        given(read=lambda values: [one.flip(0) for one in values]),
        [HEADS],
    ),
    Fault(f"{T}reference:with_reference", given(reduction="none"), [DPO]),
    # The policy gradient: ratio, clips, means, divergence, entropy, importance.
    Fault(f"{T}losses:OnTokens.losses", negated, [FORMULA]),
    Fault(POLICY, settings(clip_low=0.999, clip_high=1e6), [FORMULA]),
    Fault(POLICY, given(settings=lambda s: edited(clip_high=s.clip_low)(s)), [FORMULA]),
    Fault(POLICY, settings(dual_clip=None), [CLIPS]),
    Fault(POLICY, settings(entropy_coef=lambda weight: -weight), [ENTROPY_GRADIENT]),
    Fault(POLICY, settings(importance_sampling_cap=math.inf), [IMPORTANCE]),
    Fault(
        POLICY,
        settings(importance_sampling=lambda kind: kind.replace("mask", "truncate")),
        [IMPORTANCE],
    ),
    Fault(POLICY, settings(importance_sampling=_token_level), [IMPORTANCE]),
    Fault(POLICY, settings(old_logprobs="behavior"), [IMPORTANCE]),
    Fault(POLICY, given(settings=_swapped_clips), [GSPO]),
    Fault(POLICY, given(settings=_swapped_clips), [CISPO]),
    Fault(f"{T}policy_gradient:sequence_ratio", around(lambda f, ratios: ratios.exp()), [GSPO]),
    Fault(
        f"{T}policy_gradient:sequence_ratio", around(lambda f, ratios: ratios.sum().exp()), [GSPO]
    ),
    Fault(POLICY, settings(distill_coef=lambda weight: -weight), [DISTILL]),
    Fault(f"{T}policy_gradient:PolicyGradient.temperature", returns(1.0), [RATIOS_ONE]),
    Fault(f"{T}policy_gradient:_check_distribution", returns(None), [ROWS_ANOTHER]),
    Fault(f"{T}policy_gradient:log_ratio", swap("above", "below"), [FORMULA]),
    Fault(
        f"{T}policy_gradient:log_ratio",
        around(lambda original, above, below: above - below),
        [RATIOS_WOULD],
    ),
    Fault(f"{T}policy_gradient:divergence", swap("logprobs", "reference"), [DIVERGENCE]),
    Fault(
        f"{T}policy_gradient:divergence",
        given(kind=lambda kind: "k3_forward" if kind == "k3" else kind),
        [DIVERGENCE],
    ),
    Fault(
        f"{T}policy_gradient:divergence",
        given(kind=lambda kind: "k3" if kind == "k3_forward" else kind),
        [DIVERGENCE],
    ),
    Fault(f"{T}policy_gradient:row_count", given(aggregation="token"), [MEANS]),
    Fault(f"{T}policy_gradient:row_scale", given(aggregation="token"), [MEANS]),
    Fault(f"{T}policy_gradient:row_count", given(row=edited(weight=1.0)), [MEANS]),
    Fault(
        f"{T}policy_gradient:path_tokens",
        around(lambda original, row: sum(map(len, row.predicted))),
        [MEANS],
    ),
    Fault(f"{T}policy_gradient:at_predicted", around(_values_from_the_front), [LOSS_FORMULA]),
    Fault(f"{T}losses:ValueLoss.__init__", settings(clip=1e9), [WHAT_MEASURED]),
    Fault(f"{T}losses:at_predicted", around(_returns_backwards), [LOSS_GRADIENT]),
    # Log-probs and tries.
    Fault(f"{M}logprobs:entropies", negated, [ENTROPIES_THOSE]),
    Fault(f"{M}logprobs:_all_logprobs", given(temperature=1.0), [BEHAVIOUR_LOGPROBS]),
    Fault(f"{M}logprobs:token_logprobs", given(parent_indices=lambda at: at + 1), [LOGPROBS_THOSE]),
    Fault(
        f"{M}adapters:token_values",
        given(from_parents=lambda from_parents: not from_parents),
        [LOSS_GRADIENTS],
    ),
    Fault(f"{M}prefix_trie:shared_length", result(lambda n: max(n - 1, 0)), [TRIES]),
    Fault(f"{M}prefix_trie:Trie.ancestors", result(lambda m: m | m.T), [ONCE]),
    Fault(f"{M}logprobs:_positions", result(lambda p: p * 0), [PACKED]),
    Fault(f"{M}logprobs:_mask", returns(None), [PACKED]),
    Fault(
        f"{M}prefix_trie:CostRule.cost",
        around(lambda original, self, group: group.nodes),
        [CHEAPER],
    ),
    Fault(f"{M}prefix_trie:CostRule.cost", result(lambda cost: -cost), [CHEAPER]),
    # A base in 4 bits.
    Fault(f"{T}memory:ModelShape.of", given(load_in_4bit=False), [IN_4_BITS]),
    Fault("coterie.runs.roles:Roles.source", given(merge=False), [FULL_BASE]),
    # Batches, steps, schedule, checkpoints.
    Fault(f"{T}batches:Order._of_epoch", given(epoch=0), [ORDER]),
    Fault(f"{T}batches:Order.steps", without_last, [ORDER]),
    Fault(
        f"{T}batches:Order.__init__", given(groups=lambda groups: [""] * len(groups)), [ITEMS_ONE]
    ),
    Fault(f"{T}batches:make_batch", given(max_length=lambda length: length - 1), [ROWS_CANNOT]),
    Fault(f"{T}trainer:Trainer._gradient", around(_mean_over_rows), [ADAMW]),
    Fault(f"{T}trainer:rate_at", given(step=lambda step: step + 1), [ADAMW]),
    Fault(f"{T}trainer:make_optimizer", settings(betas=(0.9, 0.999)), [ADAMW]),
    Fault(f"{T}trainer:make_optimizer", settings(weight_decay=0.01), [ADAMW]),
    Fault(f"{T}trainer:rounded", around(lambda original, exact: exact.bfloat16()), [ROUNDED]),
    Fault(f"{T}trainer:rate_at", settings(warmup_ratio=0.0), [RATE_EVERY]),
    Fault(f"{T}trainer:rate_at", settings(schedule="constant"), [RATE_EVERY]),
    Fault(f"{T}trainer:Trainer.leave_out", returns(None), [COUNTED]),
    Fault(
        f"{T}batches:rank_microbatches",
        around(
            lambda f, splitter, families, rank, ranks: splitter.microbatches(families, ranks)[rank]
        ),
        [RANKS_GET],
    ),
    Fault(f"{T}checkpoint:newest_checkpoint", around(_oldest_checkpoint), [NEWEST]),
    Fault(f"{M}saving:_write_ends", returns([]), [ENDS]),
    Fault(f"{M}saving:_write_ends", result(lambda ends: ends[::-1]), [ENDS]),
    Fault(f"{T}checkpoint:hash_items", returns(""), [ANOTHER]),
    Fault(f"{T}checkpoint:hash_tensors", returns(""), [ANOTHER]),
)
