"""TRL's GRPO trainer on our rows: the other side of parity tests and of benchmarks of the policy gradient.

Tokens, masks, order, advantages, old and reference log-probs are ours; the loss, its means and the steps are TRL's.
What TRL would sample comes from the data set instead, so nothing is generated.
"""

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer

from bench.trl_side import InOrder
from coterie.record.rows import Row
from coterie.training.policy_gradient import PolicyGradientSettings

LOSSES = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}


class Sampled(InOrder, GRPOTrainer):
    """GRPO on rows that were sampled before."""

    def get_train_dataloader(self) -> Any:
        """Of single batches, not of those of a generation."""
        return Trainer.get_train_dataloader(self)

    def _prepare_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = Trainer._prepare_inputs(self, batch)
        return found


def grpo_trainer(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    objective: PolicyGradientSettings,
    options: dict[str, Any],
    batch: int,
) -> Sampled:
    """A trainer of ``rows``, a path each, ``batch`` of them a step (of all ranks), in the order given."""
    options = {name: value for name, value in options.items() if name != "max_length"}
    is_cispo = objective.kind == "cispo"
    config = GRPOConfig(
        **options,
        num_generations=2,
        loss_type="cispo" if is_cispo else LOSSES[objective.aggregation],
        importance_sampling_level="sequence" if objective.kind == "gspo" else "token",
        max_completion_length=objective.length_constant or 64,
        epsilon=objective.clip_low,
        epsilon_high=objective.clip_high + is_cispo,  # of CISPO it is the weight itself
        delta=objective.dual_clip,
        temperature=objective.temperature,
        entropy_coef=objective.entropy_coef,
        use_bias_correction_kl=objective.kl_estimator == "k3",
        beta=0.0,
    )
    examples = []
    for start in range(0, len(rows), batch):
        step = rows[start : start + batch]
        total = sum(row.target_count for row in step)
        examples += [_example(row, objective, total) for row in step]
    trainer = Sampled(
        model=model,
        reward_funcs=_no_reward,
        args=config,
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
    )
    trainer.beta = (
        objective.kl_coef
    )  # given with the rows; of a beta above 0 TRL would load a reference
    trainer.use_vllm = (
        objective.importance_sampling != "off"
    )  # the weight of a token counts there alone
    trainer.data_collator = collate
    trainer.losses = []
    return trainer


def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """TRL's batch: prompts padded on the left, what follows on the right, and a mask of what was sampled in it."""
    prompts = [example["prompt_ids"] for example in examples]
    width = max(map(len, prompts))
    left = torch.tensor([[0] * (width - len(ids)) + ids for ids in prompts])
    seen = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])

    def right(name: str) -> torch.Tensor:
        found = [example[name] for example in examples]
        longest = max(map(len, found))
        return torch.tensor([[*one, *[0] * (longest - len(one))] for one in found])

    batch = {name: right(name) for name in examples[0] if isinstance(examples[0][name], list)}
    return {
        **batch,
        "prompt_ids": left,
        "prompt_mask": seen,
        "advantages": batch["advantages"].float(),
        "num_items_in_batch": torch.tensor(examples[0]["step_tokens"], dtype=torch.float32),
    }


def _example(row: Row, objective: PolicyGradientSettings, step_tokens: int) -> dict[str, Any]:
    first, mask = row.targets[0].start, row.mask

    def spread(values: Sequence[float] | None) -> list[float]:
        """One for each token after the prompt; 0 where it was not sampled."""
        each = iter(values or [0.0] * row.target_count)
        return [next(each) if target else 0.0 for target in mask[first:]]

    old = row.logprobs if objective.old_logprobs == "behavior" else row.old
    log_weights = torch.tensor(spread(row.old)) - torch.tensor(spread(row.logprobs))
    level, _, bound = objective.importance_sampling.partition("_")
    if level == "sequence":
        log_weights = log_weights.sum().expand_as(log_weights)
    weights, cap = log_weights.exp(), objective.importance_sampling_cap
    weights = weights * (weights <= cap) if bound == "mask" else weights.clamp(max=cap)
    return {
        "prompt_ids": list(row.ids[:first]),
        "completion_ids": list(row.ids[first:]),
        "completion_mask": [1] * (len(row.ids) - first),
        "tool_mask": [int(target) for target in mask[first:]],
        "advantages": spread(row.advantages),
        "old_per_token_logps": spread(old),
        "ref_per_token_logps": spread(row.reference),
        "importance_sampling_ratio": weights.tolist(),
        "step_tokens": step_tokens,
    }


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)
