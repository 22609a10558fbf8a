"""A training under FSDP2, for its test: ``python -m tests.fsdp2_side METHOD FOLDER STOP_AT``."""

import contextlib
import sys
from pathlib import Path

from torch.distributed.tensor import DTensor

from coterie.record.rows import Pair
from coterie.training.losses import DPO, DPOSettings
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import train
from tests.training_models import SETTINGS, some_pairs, tiny_llama

OBJECTIVE = DPOSettings(beta=0.5, nll=0.2)


class Stop(Exception):
    """Ends a training in its middle."""


class Stopping(DPO):
    """DPO that ends the training, on all ranks, at some micro-batch."""

    def __init__(self, stop_at: int) -> None:
        super().__init__(OBJECTIVE)
        self.left = stop_at

    def losses(self, items, logprobs):
        """Those of DPO, until it is time."""
        self.left -= 1
        if self.left == 0:
            raise Stop
        return super().losses(items, logprobs)


def settings(method: str) -> TrainingSettings:
    settings = {**SETTINGS.model_dump(), "method": method, "save_every_steps": 1}
    if method == "lora":
        settings["lora_r"] = 4
    return TrainingSettings(**settings)


def pairs() -> list[Pair]:
    """With made-up reference log-probs."""
    found = some_pairs()
    return [
        Pair(pair.chosen, pair.rejected, (-20.0 - n, -21.0), pair.weight, pair.group)
        for n, pair in enumerate(found)
    ]


def main(method: str, folder: Path, stop_at: int) -> None:
    """Train on the pairs, to the end or not, and note what was sharded."""
    model = tiny_llama()
    with contextlib.suppress(Stop):
        train(model, pairs(), settings(method), folder, objective=Stopping(stop_at))
    sharded = [name for name, weight in model.named_parameters() if isinstance(weight, DTensor)]
    (folder / "sharded.txt").write_text("\n".join(sharded))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
