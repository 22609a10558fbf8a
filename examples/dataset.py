"""A data set: rows with a question and an answer, played in a debate.
coterie run optima/isft dataset=examples/dataset.py:Sums dataset.digits=2 model=smollm2"""

import random

from coterie import key
from coterie.datasets import DatasetSettings, QuestionRow


class SumsSettings(DatasetSettings):
    digits: int = key(2, "Digits of each number.", ge=1, le=9)
    count: int = key(100, "Rows of both splits together.", ge=2)


class Sums:
    settings_type = SumsSettings
    row = QuestionRow
    environment = "debate"

    def __init__(self, settings):
        rng, most = random.Random(0), 10**settings.digits - 1
        pairs = [(rng.randint(0, most), rng.randint(0, most)) for _ in range(settings.count)]
        self.pairs = list(dict.fromkeys(pairs))

    def rows(self, split):  # every fifth row is held out
        chosen = [pair for n, pair in enumerate(self.pairs) if (n % 5 == 0) == (split == "heldout")]
        for a, b in chosen:
            yield QuestionRow(id=f"{a}-{b}", question=f"What is {a} + {b}?", answer=str(a + b))
