"""A training of a value head on several ranks, for its test: ``python -m tests.heads_side FOLDER``."""

import sys
from pathlib import Path

from coterie.models.adapters import add_head
from coterie.training.losses import Regression
from coterie.training.trainer import train
from tests.training_models import SETTINGS, some_pairs, tiny_llama


def main(folder: Path) -> None:
    model = tiny_llama(tie_word_embeddings=False)  # its vocabulary projection gets no gradient
    add_head(model)
    train(model, some_pairs(), SETTINGS, folder, objective=Regression())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
