"""TRL's trainers on our rows and pairs: the other side of parity tests and of benchmarks.

The tokens, masks, order and reference log-probs are ours; everything else is TRL's. Rows are given in
the order in which our plan takes them, so that both sides take the same steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from coterie.record.rows import LabeledTrajectory, Pair, Row
from coterie.training.losses import DPOSettings

SIDES = ("chosen", "rejected")
LOSSES = {"none": "sigmoid", "tokens": "sigmoid_norm"}


class InOrder:
    """A trainer that takes prepared rows in the order given and remembers its losses."""

    losses: list[float]

    def _prepare_dataset(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset

    def _get_train_sampler(self, dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(dataset)

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        """The loss of a micro-batch, noted."""
        loss = super().compute_loss(*arguments, **named)  # type: ignore[misc]
        self.losses.append(float(loss.detach()))
        return loss


class Pairs(InOrder, DPOTrainer):
    """DPO on our pairs, with the reference log-probs that they bring."""

    def _precompute_ref_logps(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


class Sides(InOrder, KTOTrainer):
    """KTO on our sides of pairs, with the mismatched completions and reference log-probs that they bring."""

    def _precompute_ref_logps(self, dataset: Dataset, *_: Any, **__: Any) -> Dataset:
        return dataset


class Rows(InOrder, SFTTrainer):
    """SFT on our rows."""


def arguments(folder: Path, batch: int, accumulate: int, rate: float, steps: int) -> dict[str, Any]:
    """What both trainers are told: plain AdamW at a constant rate, float32, no extras."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulate,
        "learning_rate": rate,
        "max_steps": steps,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": False,
        "use_cpu": not torch.cuda.is_available(),
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
        "max_length": None,
    }


def dpo_trainer(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    objective: DPOSettings,
    options: dict[str, Any],
) -> Pairs:
    """DPO with our stored reference log-probs (sums: TRL normalises them), so that no reference runs."""
    kind = "ipo" if objective.kind == "ipo" else LOSSES[objective.reduction]
    kinds, weights = [kind], [1.0]
    if objective.nll_coef:
        kinds, weights = [*kinds, "sft"], [1.0, objective.nll_coef]
    config = DPOConfig(
        **options,
        beta=objective.beta,
        loss_type=kinds,
        loss_weights=weights,
        precompute_ref_log_probs=True,
    )
    trainer = Pairs(
        model=model,
        args=config,
        train_dataset=Dataset.from_list([_pair(pair) for pair in pairs]),
        processing_class=tokenizer,
        data_collator=collate,
    )
    trainer.losses = []
    return trainer


def kto_trainer(
    model: Any,
    tokenizer: Any,
    sides: Sequence[LabeledTrajectory],
    objective: DPOSettings,
    options: dict[str, Any],
) -> Sides:
    """KTO, whose divergence TRL takes over the ranks' batches of a step."""
    config = KTOConfig(
        **options,
        beta=objective.beta,
        precompute_ref_log_probs=True,
        train_sampling_strategy="sequential",
    )
    trainer = Sides(
        model=model,
        args=config,
        train_dataset=Dataset.from_list([_side(side) for side in sides]),
        processing_class=tokenizer,
        data_collator=collate_sides,
    )
    trainer.losses = []
    return trainer


def sft_trainer(model: Any, tokenizer: Any, rows: Sequence[Row], options: dict[str, Any]) -> Rows:
    """SFT on targets only."""
    examples = [{"input_ids": list(row.ids), "labels": _labels(row)} for row in rows]
    trainer = Rows(
        model=model,
        args=SFTConfig(**options, dataset_kwargs={"skip_prepare_dataset": True}),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
    )
    trainer.losses = []
    return trainer


def _pair(pair: Pair) -> dict[str, Any]:
    assert pair.reference is not None
    (chosen,), (rejected,) = pair.chosen, pair.rejected
    return {
        "chosen_ids": list(chosen.ids),
        "rejected_ids": list(rejected.ids),
        "chosen_mask": [int(target) for target in chosen.mask],
        "rejected_mask": [int(target) for target in rejected.mask],
        "ref_chosen_logps": pair.reference[0],
        "ref_rejected_logps": pair.reference[1],
    }


def _side(side: LabeledTrajectory) -> dict[str, Any]:
    assert side.reference is not None
    (row,), (mismatched,) = side.rows, side.mismatched
    return {
        "label": side.success,
        "ids": list(row.ids),
        "mask": [int(target) for target in row.mask],
        "KL_ids": list(mismatched.ids),
        "KL_mask": [int(target) for target in mismatched.mask],
        "ref_logps": side.reference[0],
        "ref_KL_logps": side.reference[1],
    }


def collate_sides(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """TRL's batch of sides with their mismatched completions."""
    batch: dict[str, Any] = {"label": torch.tensor([example["label"] for example in examples])}
    for prefix in ("", "KL_"):
        rows = [(example[f"{prefix}ids"], example[f"{prefix}mask"]) for example in examples]
        width = max(len(ids) for ids, _ in rows)
        padding = [[0] * (width - len(ids)) for ids, _ in rows]
        padded = list(zip(rows, padding, strict=True))
        batch[f"{prefix}input_ids"] = torch.tensor([ids + rest for (ids, _), rest in padded])
        batch[f"{prefix}attention_mask"] = torch.tensor(
            [[1] * len(ids) + rest for (ids, _), rest in padded]
        )
        batch[f"{prefix}completion_mask"] = torch.tensor(
            [mask + rest for (_, mask), rest in padded]
        )
        batch[f"ref_{prefix}logps"] = torch.tensor([e[f"ref_{prefix}logps"] for e in examples])
    return batch


def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """TRL's batch of pairs (chosen sides, then rejected ones), with a mask of several turns."""
    sides = [(e[f"{side}_ids"], e[f"{side}_mask"]) for side in SIDES for e in examples]
    width = max(len(ids) for ids, _ in sides)

    def padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])

    return {
        "input_ids": padded([ids for ids, _ in sides]),
        "attention_mask": padded([[1] * len(ids) for ids, _ in sides]),
        "completion_mask": padded([mask for _, mask in sides]),
        "ref_chosen_logps": torch.tensor([e["ref_chosen_logps"] for e in examples]),
        "ref_rejected_logps": torch.tensor([e["ref_rejected_logps"] for e in examples]),
    }


def _labels(row: Row) -> list[int]:
    return [token if target else -100 for token, target in zip(row.ids, row.mask, strict=True)]
