"""Catalogue of data sets: where each lies on the Hugging Face hub, and the type that converts its rows.

To add a set, write the type of its rows (``datasets.rows`` and its neighbors) and an entry here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from coterie.datasets.answers import (
    AnswerRow,
    BrowseCompRow,
    ExamRow,
    GaiaRow,
    HleRow,
    MusiqueRow,
    OlympiadRow,
    WebWalkerRow,
)
from coterie.datasets.code_rows import CodeContestsRow, CodeRow, LiveCodeRow
from coterie.datasets.lumos import join
from coterie.datasets.plans import Gsm8kPlanRow, PlanRow, StrategyPlanRow
from coterie.datasets.problems import ChoiceRow, MathRow, SvampRow
from coterie.datasets.rows import (
    CbtRow,
    Gsm8kRow,
    HotpotRow,
    LeftOut,
    QuestionRow,
    TriviaRow,
    TwoWikiRow,
)
from coterie.errors import UserError, did_you_mean

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
NEWEST = "main"
"""Revision of repositories without a pinned commit."""


@dataclass(frozen=True, slots=True)
class Repository:
    """Files of one data repository of the Hugging Face hub."""

    name: str
    revision: str
    train: tuple[str, ...] = ()
    heldout: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """One data set of tasks."""

    name: str
    what: str
    row: type[QuestionRow]
    licence: str
    train: int | None
    """Number of published training rows; ``None`` for an evaluation-only set."""
    heldout: int | None
    """Number of published held-out rows; ``None`` if a share of the training rows is held out."""
    repos: tuple[Repository, ...] = ()
    """Empty for sets that are not on the hub."""
    packaged: bool = True
    """True if sample rows ship with coterie."""
    first: int | None = None
    """Number of first published rows in the held-out split; ``None`` for all."""
    without: str | None = None
    """Name of the set whose questions are dropped from the training rows."""
    join: Callable[[Sequence[Path]], Iterator[QuestionRow | LeftOut]] | None = None
    """Function that joins several files into rows; ``None`` if each file has complete rows."""
    url: str = ""
    """URL of the files of a set that is not on the hub."""

    @property
    def splits(self) -> tuple[Split, ...]:
        return SPLITS if self.train is not None else ("heldout",)


def _shards(path: str, count: int = 1) -> tuple[str, ...]:
    """Return the names of a split's files on the hub: ``CN/train-00000-of-00001.parquet`` for ``CN/train``."""
    return tuple(f"{path}-{index:05d}-of-{count:05d}.parquet" for index in range(count))


def _two(name: str, revision: str, train: str, heldout: str) -> tuple[Repository]:
    return (Repository(name, revision, (train,), (heldout,)),)


def _test(name: str, file: str, revision: str = NEWEST) -> tuple[Repository]:
    return (Repository(name, revision, (), (file,)),)


def _gsm8k(folder: str) -> tuple[Repository]:
    train, heldout = _shards(f"{folder}/train"), _shards(f"{folder}/test")
    return (Repository("openai/gsm8k", "e53f048856ff4f594e959d75785d2c2d37b678ee", train, heldout),)


def _lumos(upstream: str, plan: str, ground: str) -> tuple[Repository, Repository]:
    plans, grounds = (f"lumos_{upstream}_{kind}_iterative" for kind in ("plan", "ground"))
    return (
        Repository(f"ai2lumos/{plans}", plan, (f"{plans}.jsonl",)),
        Repository(f"ai2lumos/{grounds}", ground, (f"{grounds}.jsonl",)),
    )


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
_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
"""Splits on which agents with a search engine are usually trained and tested."""
_MAA = "MAA's, problems"

_QUESTIONS = (
    DataSet(
        "hotpot_qa",
        "two-hop questions, ten paragraphs each",
        HotpotRow,
        "CC BY-SA 4.0",
        train=90447,
        heldout=7405,
        repos=(
            Repository(
                "hotpotqa/hotpot_qa",
                "1908d6afbbead072334abe2965f91bd2709910ab",
                _shards("distractor/train", 2),
                _shards("distractor/validation"),
            ),
        ),
    ),
    DataSet(
        "2wiki",
        "multi-hop questions, ten paragraphs each",
        TwoWikiRow,
        "Apache-2.0",
        train=167454,
        heldout=12576,
        repos=_two(
            "xanhho/2WikiMultihopQA",
            "612bc5039a457880d9e7d84c3b0a4cf154b70e4f",
            "train.parquet",
            "dev.parquet",
        ),
    ),
    DataSet(
        "trivia_qa",
        "trivia with snippets of a web search",
        TriviaRow,
        "Apache-2.0, questions and snippets: their sites'",
        train=138384,
        heldout=17944,
        repos=(
            Repository(
                "mandarjoshi/trivia_qa",
                "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f",
                _shards("rc/train", 26),
                _shards("rc/validation", 4),
            ),
        ),
    ),
    DataSet(
        "cbt",
        "the missing noun on a page of a book",
        CbtRow,
        "GFDL 1.3",
        train=120769,
        heldout=2500,
        repos=(
            Repository(
                "cam-cst/cbt",
                "e91ed131e95b8ac63bdbaea446216033157c74c9",
                _shards("CN/train"),
                _shards("CN/test"),
            ),
        ),
    ),
    DataSet(
        "gsm8k",
        "school word problems with solutions",
        Gsm8kRow,
        "MIT",
        train=7473,
        heldout=1319,
        repos=_gsm8k("main"),
    ),
    DataSet(
        "svamp",
        "short word problems, made to mislead",
        SvampRow,
        "MIT",
        train=700,
        heldout=300,
        repos=(Repository("ChilleD/SVAMP", NEWEST, _shards("data/train"), _shards("data/test")),),
    ),
    DataSet(
        "math",
        "competition mathematics with solutions",
        MathRow,
        "MIT",
        train=7500,
        heldout=5000,
        repos=(
            Repository(
                "EleutherAI/hendrycks_math",
                "21a5633873b6a120296cce3e2df9d5550074f4a3",
                tuple(file for one in _SUBJECTS for file in _shards(f"{one}/train")),
                tuple(file for one in _SUBJECTS for file in _shards(f"{one}/test")),
            ),
        ),
    ),
    DataSet(
        "arc_c",
        "hard questions of school science, with options",
        ChoiceRow,
        "CC BY-SA 4.0",
        train=1119,
        heldout=1172,
        repos=(
            Repository(
                "allenai/ai2_arc",
                "210d026faf9955653af8916fad021475a3f00453",
                _shards("ARC-Challenge/train"),
                _shards("ARC-Challenge/test"),
            ),
        ),
    ),
    DataSet(
        "mmlu",
        "57 subjects of school and study, with options",
        ChoiceRow,
        "MIT",
        train=99842,
        heldout=14042,
        repos=(
            Repository(
                "cais/mmlu",
                "c30699e8356da336a370243923dbaf21066bb9fe",
                _shards("all/auxiliary_train"),
                _shards("all/test"),
            ),
        ),
        without="arc_c",
    ),
    DataSet(
        "colbench_code",
        "vague requests for Python functions, with tests",
        CodeRow,
        "other (CC-BY-NC in places)",
        train=10000,
        heldout=10000,
        repos=_two(
            "facebook/collaborative_agent_bench",
            NEWEST,
            "backend_tasks/train.jsonl",
            "backend_tasks/test.jsonl",
        ),
        first=1000,
    ),
    DataSet(
        "nq",
        "questions to a search engine",
        AnswerRow,
        "CC BY-SA 3.0",
        train=79168,
        heldout=3610,
        repos=_two(
            _FLASHRAG,
            "87aab18c372ee7714a7288c7d660423c7ee96dde",
            "nq/train.jsonl",
            "nq/test.jsonl",
        ),
    ),
    DataSet(
        "popqa",
        "facts about things known and unknown",
        AnswerRow,
        "MIT",
        train=None,
        heldout=14267,
        repos=_test(_FLASHRAG, "popqa/test.jsonl"),
    ),
    DataSet(
        "musique",
        "questions of two to four hops, 20 paragraphs",
        MusiqueRow,
        "CC BY 4.0",
        train=19938,
        heldout=2417,
        repos=_two(
            "dgslibisey/MuSiQue",
            NEWEST,
            "musique_ans_v1.0_train.jsonl",
            "musique_ans_v1.0_dev.jsonl",
        ),
    ),
    DataSet(
        "bamboogle",
        "two-hop questions that no page answers",
        AnswerRow,
        "MIT",
        train=None,
        heldout=125,
        repos=_test(_FLASHRAG, "bamboogle/test.jsonl"),
    ),
)

_PLANS = (
    DataSet(
        "gsm8k_plans",
        "word problems with plans and calculations",
        Gsm8kPlanRow,
        "MIT",
        train=7473,
        heldout=1319,
        repos=_gsm8k("main"),
    ),
    DataSet(
        "gsm8k_socratic",
        "the same, planned in questions",
        Gsm8kPlanRow,
        "MIT",
        train=7473,
        heldout=1319,
        repos=_gsm8k("socratic"),
    ),
    DataSet(
        "strategyqa_plans",
        "yes or no questions, taken apart",
        StrategyPlanRow,
        "MIT",
        train=2290,
        heldout=None,
        repos=(Repository("tasksource/strategy-qa", NEWEST, ("strategyQA_train.json",)),),
    ),
    DataSet(
        "lumos_maths",
        "mathematics with plans and tool calls",
        PlanRow,
        "Apache-2.0",
        train=19400,
        heldout=None,
        repos=_lumos("maths", NEWEST, "4b050683c6bd589c93a77c7deda7e65d0e1871e4"),
        join=join,
    ),
    DataSet(
        "lumos_complex_qa",
        "multi-hop questions with plans",
        PlanRow,
        "Apache-2.0",
        train=19000,
        heldout=None,
        repos=_lumos(
            "complex_qa",
            "3827bc9a62dbae9c1e3786199508e81283c3bc11",
            "e19c7c55e192f4479d379b50f2412e2454cec289",
        ),
        join=join,
    ),
    DataSet(
        "lumos_web",
        "errands on web pages with plans",
        PlanRow,
        "Apache-2.0",
        train=1010,
        heldout=None,
        repos=_lumos(
            "web_agent",
            "9abd3d0a2cdd165c3e4637558c7452d52d8d7bf2",
            "a74f09b67a203df8fbde58b669a79d505e545cff",
        ),
        join=join,
    ),
)


def _evaluation(
    name: str,
    what: str,
    row: type[QuestionRow],
    rows: int,
    licence: str,
    repos: tuple[Repository, ...] = (),
    url: str = "",
    packaged: bool = False,
) -> DataSet:
    return DataSet(
        name, what, row, licence, train=None, heldout=rows, repos=repos, packaged=packaged, url=url
    )


_EVALUATION = (
    _evaluation(
        "math500",
        "500 problems of MATH's test split",
        ExamRow,
        500,
        "MIT",
        _test("HuggingFaceH4/MATH-500", "test.jsonl"),
    ),
    _evaluation(
        "aime24",
        "competition mathematics of 2024",
        ExamRow,
        30,
        _MAA,
        url="https://huggingface.co/datasets/HuggingFaceH4/aime_2024",
    ),
    _evaluation(
        "aime25",
        "competition mathematics of 2025",
        ExamRow,
        30,
        _MAA,
        url="https://huggingface.co/datasets/math-ai/aime25",
    ),
    _evaluation(
        "amc23",
        "competition mathematics of 2023, easier",
        ExamRow,
        40,
        _MAA,
        url="https://huggingface.co/datasets/math-ai/amc23",
    ),
    _evaluation(
        "webwalkerqa",
        "what stands deep in web sites",
        WebWalkerRow,
        680,
        "Apache-2.0",
        _test("callanwu/WebWalkerQA", "data/main-00000-of-00001.jsonl"),
        packaged=True,
    ),
    _evaluation(
        "gaia",
        "tasks for assistants, three levels",
        GaiaRow,
        165,
        "gated",
        _test("gaia-benchmark/GAIA", "2023/validation/metadata.jsonl"),
    ),
    _evaluation(
        "hle",
        "questions of experts",
        HleRow,
        2500,
        "MIT, gated",
        _test("cais/hle", "data/test-00000-of-00001.parquet"),
    ),
    _evaluation(
        "browsecomp",
        "short answers that are hard to find",
        BrowseCompRow,
        1266,
        "MIT",
        url="https://github.com/openai/simple-evals",
    ),
    _evaluation(
        "olympiadbench",
        "problems of mathematical olympiads",
        OlympiadRow,
        674,
        "Apache-2.0",
        _test(
            "Hothan/OlympiadBench",
            "OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
            "91184b52131e7fc9455fef848035173aea8cc01a",
        ),
    ),
    _evaluation(
        "livecodebench",
        "programming contests by date, with tests",
        LiveCodeRow,
        400,
        "problems: their sites'",
        _test("livecodebench/code_generation_lite", "test.jsonl"),
    ),
    _evaluation(
        "code_contests",
        "programming contests, with tests",
        CodeContestsRow,
        165,
        "CC BY 4.0",
        url="https://github.com/google-deepmind/code_contests",
    ),
)

CATALOGUE: Mapping[str, DataSet] = MappingProxyType(
    {entry.name: entry for entry in _QUESTIONS + _PLANS + _EVALUATION}
)


def find(name: str) -> DataSet:
    """Return a data set by name. Raise ``UserError`` if it is unknown."""
    if name not in CATALOGUE:
        raise UserError(
            f"there is no data set {name!r}",
            f"{did_you_mean(name, CATALOGUE)}known sets: {', '.join(CATALOGUE)} (`coterie data list`)",
        )
    return CATALOGUE[name]
