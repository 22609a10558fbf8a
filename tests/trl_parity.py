"""One side of the parity tests: five steps by TRL or by us, on one rank or under ``accelerate launch``.

    python -m tests.trl_parity SIDE FOLDER

Writes ``FOLDER/KIND/model.safetensors`` and ``losses.json`` for each kind of training.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors.torch import save_file

from bench.trl_side import arguments, dpo_trainer, sft_trainer
from coterie.models.loading import LoadedModel
from coterie.training.batches import Order, usable
from coterie.training.dpo import DPO, DPOSettings
from coterie.training.loop import train
from coterie.training.reference import with_reference
from coterie.training.settings import TrainingSettings
from coterie.training.sft import SFT
from coterie.trajectories.row import Row
from tests.templates import model as make
from tests.training_models import some_pairs

STEPS, ROWS = 5, 4
RATE = 2e-4
"""AdamW moves a weight whose gradient is nothing but rounding as far as any other: this far a step."""
SETTINGS = TrainingSettings(
    learning_rate=RATE, schedule="constant", warmup_ratio=0.0, batch_rows=ROWS, max_steps=STEPS,
    tokens_per_microbatch=4096, save_every_seconds=None, mixed_precision="no", threads=1,
)  # fmt: skip
OBJECTIVES = {
    "dpo": DPOSettings(beta=0.5),
    "dpo-normalised": DPOSettings(beta=2.0, normalise="tokens"),
    "dpo-nll": DPOSettings(beta=0.5, nll=0.3),
}
KINDS = ("sft", *OBJECTIVES)


def rows() -> list[Row]:
    """Multi-turn rows of sibling branches, so that ours has something to pack."""
    pairs = some_pairs(10, vocabulary=290)
    return [row for pair in pairs for row in (*pair.chosen, *pair.rejected)]


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
    else:
        objective = DPO(OBJECTIVES[kind])
        reference = start_model(4).model
        pairs = [replace(pair, weight=1.0) for pair in some_pairs(8, vocabulary=290)]
        stored = folder / f"reference-{state.process_index}"
        normalise = OBJECTIVES[kind].normalise if side == "ours" else "none"  # TRL's are sums
        items = with_reference(reference, pairs, SETTINGS, stored, normalise=normalise)
    if side == "ours":
        train(policy, items, SETTINGS, folder / "train", objective=objective)
        lines = (folder / "train" / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines]
    else:
        groups = usable(items, objective, 1024).groups
        order = [i for step in Order(groups, 0, ROWS).steps(0, STEPS) for i in step]
        ranks = state.num_processes
        batch = 1 if kind == "dpo-nll" else ROWS // ranks
        options = arguments(folder, batch, ROWS // ranks // batch, RATE, STEPS)
        chosen = [items[i] for i in order]
        if kind == "sft":
            trainer = sft_trainer(policy, tokenizer, chosen, options)
        else:
            trainer = dpo_trainer(policy, tokenizer, chosen, OBJECTIVES[kind], options)
        trainer.train()
        parts = len(trainer.losses) // STEPS
        losses = [sum(trainer.losses[i * parts : (i + 1) * parts]) / parts for i in range(STEPS)]
        losses = mean_over_ranks(losses)
    if state.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        weights = {n: w.detach().cpu().clone() for n, w in policy.named_parameters()}
        save_file(weights, folder / "model.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    (Path(sys.argv[2]) / "ranks.txt").write_text(str(PartialState(cpu=True).num_processes))
    for kind_ in KINDS:
        main(sys.argv[1], kind_, Path(sys.argv[2]) / kind_)
    PartialState().destroy_process_group()  # a process that ends with gloo's threads running aborts
