"""The data sets that coterie knows: source, licence, splits and type of row.

To add one, write its row in ``datasets.rows`` and an entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from coterie.datasets.code_rows import CodeRow
from coterie.datasets.context_rows import CbtRow, TriviaRow
from coterie.datasets.problem_rows import ChoiceRow, MathRow
from coterie.datasets.rows import Gsm8kRow, HotpotRow, QuestionRow, TwoWikiRow
from coterie.errors import UserError, did_you_mean

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
    first: int | None = None
    """How many of them are the split, from the first on; all if ``None``."""


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
    """The commit of it that is taken; ``main`` where none is pinned."""
    train: UpstreamSplit
    heldout: UpstreamSplit
    licence: str
    licence_url: str
    citation: str
    without: str | None = None
    """The data set whose questions are taken out of this one's training rows."""

    def upstream(self, split: Split) -> UpstreamSplit:
        """The split of upstream that serves as ``split``."""
        return self.train if split == "train" else self.heldout


def _shards(path: str, count: int = 1) -> tuple[str, ...]:
    """The hub's names of a split's files: ``CN/train`` as ``CN/train-00000-of-00001.parquet``."""
    return tuple(f"{path}-{index:05d}-of-{count:05d}.parquet" for index in range(count))


_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
"""Folders of MATH on the hub."""


_ALL = (
    DataSet(
        name="hotpot_qa",
        what="two-hop questions, ten paragraphs each",
        row=HotpotRow,
        repo="hotpotqa/hotpot_qa",
        revision="1908d6afbbead072334abe2965f91bd2709910ab",
        train=UpstreamSplit(
            "train",
            _shards("distractor/train", 2),
            90447,
        ),
        heldout=UpstreamSplit("validation", _shards("distractor/validation"), 7405),
        licence="CC BY-SA 4.0",
        licence_url="https://creativecommons.org/licenses/by-sa/4.0/",
        citation="Yang et al. 2018, HotpotQA: A Dataset for Diverse, Explainable Multi-hop "
        "Question Answering",
    ),
    DataSet(
        name="2wiki",
        what="multi-hop questions, ten paragraphs each",
        row=TwoWikiRow,
        repo="xanhho/2WikiMultihopQA",
        revision="612bc5039a457880d9e7d84c3b0a4cf154b70e4f",
        train=UpstreamSplit("train", ("train.parquet",), 167454),
        heldout=UpstreamSplit("dev", ("dev.parquet",), 12576),
        licence="Apache-2.0",
        licence_url="https://github.com/Alab-NII/2wikimultihop/blob/main/LICENSE",
        citation="Ho et al. 2020, Constructing A Multi-hop QA Dataset for Comprehensive Evaluation "
        "of Reasoning Steps",
    ),
    DataSet(
        name="trivia_qa",
        what="trivia with snippets of a web search",
        row=TriviaRow,
        repo="mandarjoshi/trivia_qa",
        revision="0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
        train=UpstreamSplit("train", _shards("rc/train", 26), 138384),
        heldout=UpstreamSplit("validation", _shards("rc/validation", 4), 17944),
        licence="Apache-2.0, questions and snippets: their sites'",
        licence_url="https://nlp.cs.washington.edu/triviaqa/",
        citation="Joshi et al. 2017, TriviaQA: A Large Scale Distantly Supervised Challenge Dataset "
        "for Reading Comprehension",
    ),
    DataSet(
        name="cbt",
        what="the missing noun on a page of a book",
        row=CbtRow,
        repo="cam-cst/cbt",
        revision="e91ed131e95b8ac63bdbaea446216033157c74c9",
        train=UpstreamSplit("train", _shards("CN/train"), 120769),
        heldout=UpstreamSplit("test", _shards("CN/test"), 2500),
        licence="GFDL 1.3",
        licence_url="https://www.gnu.org/licenses/fdl-1.3.html",
        citation="Hill et al. 2016, The Goldilocks Principle: Reading Children's Books with Explicit "
        "Memory Representations",
    ),
    DataSet(
        name="gsm8k",
        what="school word problems with solutions",
        row=Gsm8kRow,
        repo="openai/gsm8k",
        revision="e53f048856ff4f594e959d75785d2c2d37b678ee",
        train=UpstreamSplit("train", _shards("main/train"), 7473),
        heldout=UpstreamSplit("test", _shards("main/test"), 1319),
        licence="MIT",
        licence_url="https://github.com/openai/grade-school-math/blob/master/LICENSE",
        citation="Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems",
    ),
    DataSet(
        name="math",
        what="competition mathematics with solutions",
        row=MathRow,
        repo="EleutherAI/hendrycks_math",
        revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
        train=UpstreamSplit(
            "train", tuple(file for one in _SUBJECTS for file in _shards(f"{one}/train")), 7500
        ),
        heldout=UpstreamSplit(
            "test", tuple(file for one in _SUBJECTS for file in _shards(f"{one}/test")), 5000
        ),
        licence="MIT",
        licence_url="https://github.com/hendrycks/math/blob/main/LICENSE",
        citation="Hendrycks et al. 2021, Measuring Mathematical Problem Solving With the MATH Dataset",
    ),
    DataSet(
        name="arc_c",
        what="hard questions of school science, with options",
        row=ChoiceRow,
        repo="allenai/ai2_arc",
        revision="210d026faf9955653af8916fad021475a3f00453",
        train=UpstreamSplit("train", _shards("ARC-Challenge/train"), 1119),
        heldout=UpstreamSplit("test", _shards("ARC-Challenge/test"), 1172),
        licence="CC BY-SA 4.0",
        licence_url="https://creativecommons.org/licenses/by-sa/4.0/",
        citation="Clark et al. 2018, Think you have Solved Question Answering? Try ARC, the AI2 "
        "Reasoning Challenge",
    ),
    DataSet(
        name="mmlu",
        what="57 subjects of school and study, with options",
        row=ChoiceRow,
        repo="cais/mmlu",
        revision="c30699e8356da336a370243923dbaf21066bb9fe",
        train=UpstreamSplit("auxiliary_train", _shards("all/auxiliary_train"), 99842),
        heldout=UpstreamSplit("test", _shards("all/test"), 14042),
        licence="MIT",
        licence_url="https://github.com/hendrycks/test/blob/master/LICENSE",
        citation="Hendrycks et al. 2021, Measuring Massive Multitask Language Understanding",
        without="arc_c",
    ),
    DataSet(
        name="colbench_code",
        what="vague requests for Python functions, with tests",
        row=CodeRow,
        repo="facebook/collaborative_agent_bench",
        revision="main",
        train=UpstreamSplit("train", ("backend_tasks/train.jsonl",), 10000),
        heldout=UpstreamSplit("test", ("backend_tasks/test.jsonl",), 10000, first=1000),
        licence="other (CC-BY-NC in places)",
        licence_url="https://huggingface.co/datasets/facebook/collaborative_agent_bench",
        citation="Zhou et al. 2025, SWEET-RL: Training Multi-Turn LLM Agents on Collaborative "
        "Reasoning Tasks",
    ),
)

CATALOGUE: Mapping[str, DataSet] = MappingProxyType({entry.name: entry for entry in _ALL})


def find(name: str) -> DataSet:
    """The data set of that name; ``UserError`` if there is none."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no data set {name!r}",
            f"{did_you_mean(name, CATALOGUE)}known sets: {', '.join(CATALOGUE)} (`coterie data list`)",
        )
    return CATALOGUE[name]
