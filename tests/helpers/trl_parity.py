"""One side of the parity tests: five steps by TRL or by us, on one rank or under ``accelerate launch``.

    python -m tests.helpers.trl_parity SIDE FOLDER

Writes ``FOLDER/KIND/model.safetensors``, the first step's ``gradients.safetensors``, ``bounds.safetensors`` (how far
rounding may move each weight) and ``losses.json`` for each kind of training.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors.torch import save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bench.trl_grpo_side import grpo_trainer
from bench.trl_side import arguments, dpo_trainer, kto_trainer, sft_trainer
from coterie.models.loading import LoadedModel
from coterie.record.rows import Row
from coterie.training.batches import Order, make_batch
from coterie.training.losses import DPO, KTO, SFT, DPOSettings
from coterie.training.policy_gradient import PolicyGradient, PolicyGradientSettings
from coterie.training.reference import row_logprobs, unpair_with_reference, with_reference
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.helpers.compare_weights import weight_bounds
from tests.helpers.template_models import make_model as make
from tests.helpers.training_models import make_pairs

STEPS, ROWS = 5, 4
RATE = 2e-4
SETTINGS = TrainingSettings(
    learning_rate=RATE, schedule="constant", warmup_ratio=0.0, batch_size=ROWS, max_steps=STEPS,
    tokens_per_microbatch=4096, save_every_seconds=None, mixed_precision="no", threads=1,
)  # fmt: skip
OBJECTIVES = {
    "dpo": DPOSettings(beta=0.5),
    "dpo-normalised": DPOSettings(beta=2.0, reduction="tokens"),
    "dpo-nll": DPOSettings(beta=0.5, nll_coef=0.3),
    "ipo": DPOSettings(kind="ipo", beta=0.5, reduction="tokens"),
    "kto": DPOSettings(kind="kto", beta=0.5),
}
GRPO = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence"}
DAPO = {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token"}
POLICIES = {
    "grpo": PolicyGradientSettings(**GRPO, kl_coef=0.04, kl_estimator="k3_forward"),
    "grpo-turns": PolicyGradientSettings(
        **GRPO, kl_coef=0.04, kl_estimator="k3_forward", temperature=0.7
    ),
    "dapo": PolicyGradientSettings(**DAPO, dual_clip=1.5),
    "dapo-turns": PolicyGradientSettings(
        **DAPO,
        kl_coef=0.04,
        temperature=0.7,
        old_logprobs="recomputed",
        importance_sampling="token_truncate",
        importance_sampling_cap=1.1,
    ),
    "gspo-turns": PolicyGradientSettings(
        kind="gspo",
        clip_low=0.05,
        clip_high=0.1,
        aggregation="sequence",
        old_logprobs="recomputed",
        importance_sampling="sequence_truncate",
        importance_sampling_cap=1.1,
    ),
    "cispo-turns": PolicyGradientSettings(
        kind="cispo",
        clip_low=1.0,
        clip_high=0.28,
        old_logprobs="recomputed",
        importance_sampling="sequence_mask",
        importance_sampling_cap=1.5,
    ),
    "dr-grpo-turns": PolicyGradientSettings(
        clip_high=0.28, aggregation="constant", length_constant=50
    ),
}
"""Paths of one turn, and of several with what was seen between them masked. Without an entropy bonus: TRL takes its
mean over a micro-batch, so it depends on how a step is split."""
KINDS = ("sft", *OBJECTIVES, *POLICIES)


def rows() -> list[Row]:
    """Multi-turn rows of sibling branches, so that ours has something to pack."""
    pairs = make_pairs(10, vocabulary=290)
    return [row for pair in pairs for row in (*pair.chosen, *pair.rejected)]


def sampled_rows(turns: bool, temperature: float) -> list[Row]:
    """Rows that were sampled by a model some way off, each with an advantage of its own."""
    random = torch.Generator().manual_seed(5)
    found = []
    for number, row in enumerate(rows()):
        last = row.targets if turns else row.targets[-1:]
        last = tuple(replace(target, temperature=temperature) for target in last)
        row = replace(
            row, targets=last, weight=1.0, path_tokens=sum(t.stop - t.start for t in last)
        )
        with torch.no_grad():
            (own,) = row_logprobs(start_model().model, [row], None, temperature)

        def near(distance: float, own: torch.Tensor = own) -> tuple[float, ...]:
            return tuple((own + torch.randn(len(own), generator=random) * distance).tolist())

        advantages = ((number % 5 - 2) / 2 + 0.1,) * len(own)
        found.append(
            replace(
                row, logprobs=near(0.3), old=near(0.3), reference=near(0.2), advantages=advantages
            )
        )
    return found


@contextmanager
def first_gradient(model: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """What the gradients (clipped) were before the first step of any optimiser."""
    found: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        if not found:
            named = model.named_parameters()
            found.update({n: w.grad.clone() for n, w in named if w.grad is not None})

    hook = register_optimizer_step_pre_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def start_model(seed: int = 3) -> LoadedModel:
    """What is trained (or, of another seed, the reference)."""
    return make("chatml", seed=seed)


def mean_over_ranks(losses: list[float]) -> list[float]:
    """Mean over ranks of each step's loss."""
    found: list[list[float]] = gather_object([losses])
    return [sum(step) / len(step) for step in zip(*found, strict=True)]


def main(side: str, kind: str, folder: Path) -> None:
    """Train and write what came out."""
    state = PartialState(cpu=True)
    loaded = start_model()
    policy, tokenizer = loaded.model, loaded.tokenizer
    if kind == "sft":
        objective, items = SFT(), rows()
    elif kind in POLICIES:
        objective = PolicyGradient(POLICIES[kind])
        items = sampled_rows("turns" in kind, POLICIES[kind].temperature)
    else:
        is_kto = kind == "kto"
        objective = KTO(OBJECTIVES[kind]) if is_kto else DPO(OBJECTIVES[kind])
        reference = start_model(4).model
        pairs = [replace(pair, weight=1.0) for pair in make_pairs(8, vocabulary=290)]
        stored = folder / f"reference-{state.process_index}"
        reduction = OBJECTIVES[kind].reduction if side == "ours" else "none"  # TRL's are sums
        compute = unpair_with_reference if is_kto else with_reference
        items = compute(reference, pairs, SETTINGS, stored, reduction=reduction)
    if side == "ours":
        with first_gradient(policy) as gradients, weight_bounds(policy) as bounds:
            train(policy, items, SETTINGS, folder / "train", objective=objective)
        lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
    else:
        groups = make_batch(items, objective, 1024).groups
        order = [i for step in Order(groups, 0, ROWS).steps(0, STEPS) for i in step]
        ranks = state.num_processes
        batch = 1 if kind in ("dpo-nll", "dapo-turns") else ROWS // ranks
        options = arguments(folder, batch, ROWS // ranks // batch, RATE, STEPS)
        chosen = [items[i] for i in order]
        if kind == "sft":
            trainer = sft_trainer(policy, tokenizer, chosen, options)
        elif kind in POLICIES:
            trainer = grpo_trainer(policy, tokenizer, chosen, POLICIES[kind], options, ROWS)
        elif kind == "kto":
            trainer = kto_trainer(policy, tokenizer, chosen, OBJECTIVES[kind], options)
        else:
            trainer = dpo_trainer(policy, tokenizer, chosen, OBJECTIVES[kind], options)
        with first_gradient(policy) as gradients, weight_bounds(policy) as bounds:
            trainer.train()
        parts = len(trainer.losses) // STEPS
        over = 1 if kind in POLICIES else parts  # GRPO's are of a whole step already
        losses = [sum(trainer.losses[i * parts : (i + 1) * parts]) / over for i in range(STEPS)]
        losses = mean_over_ranks(losses)
    if state.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {n: w.detach().cpu().clone() for n, w in policy.named_parameters()}
        save_file(weights, folder / "model.safetensors")
        save_file(gradients, folder / "gradients.safetensors")
        save_file(bounds, folder / "bounds.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    (Path(sys.argv[2]) / "ranks.txt").write_text(str(PartialState(cpu=True).num_processes))
    for kind_ in KINDS:
        main(sys.argv[1], kind_, Path(sys.argv[2]) / kind_)
    PartialState().destroy_process_group()  # a process that ends with gloo's threads running aborts
