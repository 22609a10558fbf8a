"""The data sets that coterie knows: source, licence, splits and type of row.

To add one, write its row in ``datasets.rows`` and an entry here.
"""

from collections.abc import Mapping
from types import MappingProxyType

from coterie.datasets.code_rows import CodeRow
from coterie.datasets.context_rows import CbtRow, TriviaRow
from coterie.datasets.data_set import SPLITS, DataSet, Repository, Split, UpstreamSplit, shards
from coterie.datasets.evaluation_sets import EVALUATION_SETS
from coterie.datasets.plan_sets import PLAN_SETS
from coterie.datasets.problem_rows import ChoiceRow, MathRow, SvampRow
from coterie.datasets.question_sets import QUESTION_SETS
from coterie.datasets.rows import Gsm8kRow, HotpotRow, TwoWikiRow
from coterie.errors import UserError, did_you_mean

__all__ = ["CATALOGUE", "SPLITS", "DataSet", "Repository", "Split", "find"]

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
        repos=(
            Repository(
                "hotpotqa/hotpot_qa",
                "1908d6afbbead072334abe2965f91bd2709910ab",
                shards("distractor/train", 2),
                shards("distractor/validation"),
            ),
        ),
        train=UpstreamSplit("train", 90447),
        heldout=UpstreamSplit("validation", 7405),
        licence="CC BY-SA 4.0",
        licence_url="https://creativecommons.org/licenses/by-sa/4.0/",
        citation="Yang et al. 2018, HotpotQA: A Dataset for Diverse, Explainable Multi-hop "
        "Question Answering",
    ),
    DataSet(
        name="2wiki",
        what="multi-hop questions, ten paragraphs each",
        row=TwoWikiRow,
        repos=(
            Repository(
                "xanhho/2WikiMultihopQA",
                "612bc5039a457880d9e7d84c3b0a4cf154b70e4f",
                ("train.parquet",),
                ("dev.parquet",),
            ),
        ),
        train=UpstreamSplit("train", 167454),
        heldout=UpstreamSplit("dev", 12576),
        licence="Apache-2.0",
        licence_url="https://github.com/Alab-NII/2wikimultihop/blob/main/LICENSE",
        citation="Ho et al. 2020, Constructing A Multi-hop QA Dataset for Comprehensive Evaluation "
        "of Reasoning Steps",
    ),
    DataSet(
        name="trivia_qa",
        what="trivia with snippets of a web search",
        row=TriviaRow,
        repos=(
            Repository(
                "mandarjoshi/trivia_qa",
                "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
                shards("rc/train", 26),
                shards("rc/validation", 4),
            ),
        ),
        train=UpstreamSplit("train", 138384),
        heldout=UpstreamSplit("validation", 17944),
        licence="Apache-2.0, questions and snippets: their sites'",
        licence_url="https://nlp.cs.washington.edu/triviaqa/",
        citation="Joshi et al. 2017, TriviaQA: A Large Scale Distantly Supervised Challenge Dataset "
        "for Reading Comprehension",
    ),
    DataSet(
        name="cbt",
        what="the missing noun on a page of a book",
        row=CbtRow,
        repos=(
            Repository(
                "cam-cst/cbt",
                "e91ed131e95b8ac63bdbaea446216033157c74c9",
                shards("CN/train"),
                shards("CN/test"),
            ),
        ),
        train=UpstreamSplit("train", 120769),
        heldout=UpstreamSplit("test", 2500),
        licence="GFDL 1.3",
        licence_url="https://www.gnu.org/licenses/fdl-1.3.html",
        citation="Hill et al. 2016, The Goldilocks Principle: Reading Children's Books with Explicit "
        "Memory Representations",
    ),
    DataSet(
        name="gsm8k",
        what="school word problems with solutions",
        row=Gsm8kRow,
        repos=(
            Repository(
                "openai/gsm8k",
                "e53f048856ff4f594e959d75785d2c2d37b678ee",
                shards("main/train"),
                shards("main/test"),
            ),
        ),
        train=UpstreamSplit("train", 7473),
        heldout=UpstreamSplit("test", 1319),
        licence="MIT",
        licence_url="https://github.com/openai/grade-school-math/blob/master/LICENSE",
        citation="Cobbe et al. 2021, Training Verifiers to Solve Math Word Problems",
    ),
    DataSet(
        name="svamp",
        what="short word problems, made to mislead",
        row=SvampRow,
        repos=(Repository("ChilleD/SVAMP", "main", shards("data/train"), shards("data/test")),),
        train=UpstreamSplit("train", 700),
        heldout=UpstreamSplit("test", 300),
        licence="MIT",
        licence_url="https://github.com/arkilpatel/SVAMP/blob/main/LICENSE",
        citation="Patel et al. 2021, Are NLP Models really able to Solve Simple Math Word Problems?",
    ),
    DataSet(
        name="math",
        what="competition mathematics with solutions",
        row=MathRow,
        repos=(
            Repository(
                "EleutherAI/hendrycks_math",
                "21a5633873b6a120296cce3e2df9d5550074f4a3",
                tuple(file for one in _SUBJECTS for file in shards(f"{one}/train")),
                tuple(file for one in _SUBJECTS for file in shards(f"{one}/test")),
            ),
        ),
        train=UpstreamSplit("train", 7500),
        heldout=UpstreamSplit("test", 5000),
        licence="MIT",
        licence_url="https://github.com/hendrycks/math/blob/main/LICENSE",
        citation="Hendrycks et al. 2021, Measuring Mathematical Problem Solving With the MATH Dataset",
    ),
    DataSet(
        name="arc_c",
        what="hard questions of school science, with options",
        row=ChoiceRow,
        repos=(
            Repository(
                "allenai/ai2_arc",
                "210d026faf9955653af8916fad021475a3f00453",
                shards("ARC-Challenge/train"),
                shards("ARC-Challenge/test"),
            ),
        ),
        train=UpstreamSplit("train", 1119),
        heldout=UpstreamSplit("test", 1172),
        licence="CC BY-SA 4.0",
        licence_url="https://creativecommons.org/licenses/by-sa/4.0/",
        citation="Clark et al. 2018, Think you have Solved Question Answering? Try ARC, the AI2 "
        "Reasoning Challenge",
    ),
    DataSet(
        name="mmlu",
        what="57 subjects of school and study, with options",
        row=ChoiceRow,
        repos=(
            Repository(
                "cais/mmlu",
                "c30699e8356da336a370243923dbaf21066bb9fe",
                shards("all/auxiliary_train"),
                shards("all/test"),
            ),
        ),
        train=UpstreamSplit("auxiliary_train", 99842),
        heldout=UpstreamSplit("test", 14042),
        licence="MIT",
        licence_url="https://github.com/hendrycks/test/blob/master/LICENSE",
        citation="Hendrycks et al. 2021, Measuring Massive Multitask Language Understanding",
        without="arc_c",
    ),
    DataSet(
        name="colbench_code",
        what="vague requests for Python functions, with tests",
        row=CodeRow,
        repos=(
            Repository(
                "facebook/collaborative_agent_bench",
                "main",
                ("backend_tasks/train.jsonl",),
                ("backend_tasks/test.jsonl",),
            ),
        ),
        train=UpstreamSplit("train", 10000),
        heldout=UpstreamSplit("test", 10000, first=1000),
        licence="other (CC-BY-NC in places)",
        licence_url="https://huggingface.co/datasets/facebook/collaborative_agent_bench",
        citation="Zhou et al. 2025, SWEET-RL: Training Multi-Turn LLM Agents on Collaborative "
        "Reasoning Tasks",
    ),
)

CATALOGUE: Mapping[str, DataSet] = MappingProxyType(
    {entry.name: entry for entry in _ALL + QUESTION_SETS + PLAN_SETS + EVALUATION_SETS}
)


def find(name: str) -> DataSet:
    """The data set of that name; ``UserError`` if there is none."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no data set {name!r}",
            f"{did_you_mean(name, CATALOGUE)}known sets: {', '.join(CATALOGUE)} (`coterie data list`)",
        )
    return CATALOGUE[name]
