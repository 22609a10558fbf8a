"""The data sets that coterie knows: source, licence, splits and type of row.

To add one, write its row in ``datasets.rows`` and an entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from coterie.datasets.rows import Gsm8kRow, HotpotRow, QuestionRow
from coterie.errors import UserError

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")


@dataclass(frozen=True, slots=True)
class UpstreamSplit:
    """One split as upstream has it."""

    name: str
    """Its name on the hub."""
    files: tuple[str, ...]
    """Its files in the hub's repository."""
    rows: int
    """How many rows they hold."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set."""

    name: str
    what: str
    """One line for a table."""
    row: type[QuestionRow]
    repo: str
    """Its repository on the Hugging Face hub."""
    revision: str
    """The commit of it that is taken."""
    train: UpstreamSplit
    heldout: UpstreamSplit
    licence: str
    licence_url: str
    citation: str

    def upstream(self, split: Split) -> UpstreamSplit:
        """The split of upstream that serves as ``split``."""
        return self.train if split == "train" else self.heldout


_ALL = (
    DataSet(
        name="hotpot_qa",
        what="two-hop questions, ten paragraphs each",
        row=HotpotRow,
        repo="hotpotqa/hotpot_qa",
        revision="1908d6afbbead072334abe2965f91bd2709910ab",
        train=UpstreamSplit(
            "train",
            (
                "distractor/train-00000-of-00002.parquet",
                "distractor/train-00001-of-00002.parquet",
            ),
            90447,
        ),
        heldout=UpstreamSplit(
            "validation", ("distractor/validation-00000-of-00001.parquet",), 7405
        ),
        licence="CC BY-SA 4.0",
        licence_url="https://creativecommons.org/licenses/by-sa/4.0/",
        citation="Yang et al. 2018, HotpotQA: A Dataset for Diverse, Explainable Multi-hop "
        "Question Answering",
    ),
    DataSet(
        name="gsm8k",
        what="school word problems with solutions",
        row=Gsm8kRow,
        repo="openai/gsm8k",
        revision="e53f048856ff4f594e959d75785d2c2d37b678ee",
        train=UpstreamSplit("train", ("main/train-00000-of-00001.parquet",), 7473),
        heldout=UpstreamSplit("test", ("main/test-00000-of-00001.parquet",), 1319),
        licence="MIT",
        licence_url="https://github.com/openai/grade-school-math/blob/master/LICENSE",
        citation="Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems",
    ),
)

CATALOGUE: Mapping[str, DataSet] = MappingProxyType({entry.name: entry for entry in _ALL})


def find(name: str) -> DataSet:
    """The data set of that name; ``UserError`` if there is none."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no data set {name!r}",
            f"known sets: {', '.join(CATALOGUE)} (`coterie data list`)",
        )
    return CATALOGUE[name]
