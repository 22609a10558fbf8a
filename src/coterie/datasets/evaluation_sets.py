"""The catalogue's sets that agents are tested on and never trained: the web, mathematics, programming contests."""

from collections.abc import Sequence

from coterie.datasets.answer_rows import ExamRow
from coterie.datasets.contest_rows import CodeContestsRow, LiveCodeRow
from coterie.datasets.data_set import DataSet, Repository, UpstreamSplit
from coterie.datasets.rows import QuestionRow
from coterie.datasets.web_rows import BrowseCompRow, GaiaRow, HleRow, OlympiadRow, WebWalkerRow

_HUB = "https://huggingface.co/datasets"


def _only(
    name: str,
    what: str,
    row: type[QuestionRow],
    rows: int,
    licence: tuple[str, str],
    citation: str,
    repos: Sequence[tuple[str, str, str]] = (),
    packaged: bool = False,
) -> DataSet:
    """A set of one split; ``repos`` are (name, revision, file)."""
    return DataSet(
        name=name,
        what=what,
        row=row,
        repos=tuple(Repository(one, revision, (), (file,)) for one, revision, file in repos),
        train=None,
        heldout=UpstreamSplit("test", rows),
        licence=licence[0],
        licence_url=licence[1],
        citation=citation,
        packaged=packaged,
    )


EVALUATION_SETS = (
    _only(
        "math500",
        "500 problems of MATH's test split",
        ExamRow,
        500,
        ("MIT", "https://github.com/openai/prm800k/blob/main/LICENSE"),
        "Lightman et al. 2023, Let's Verify Step by Step",
        [("HuggingFaceH4/MATH-500", "main", "test.jsonl")],
    ),
    _only(
        "aime24",
        "competition mathematics of 2024",
        ExamRow,
        30,
        ("MAA's, problems", f"{_HUB}/HuggingFaceH4/aime_2024"),
        "Mathematical Association of America 2024, American Invitational Mathematics Examination",
    ),
    _only(
        "aime25",
        "competition mathematics of 2025",
        ExamRow,
        30,
        ("MAA's, problems", f"{_HUB}/math-ai/aime25"),
        "Mathematical Association of America 2025, American Invitational Mathematics Examination",
    ),
    _only(
        "amc23",
        "competition mathematics of 2023, easier",
        ExamRow,
        40,
        ("MAA's, problems", f"{_HUB}/math-ai/amc23"),
        "Mathematical Association of America 2023, American Mathematics Competitions 12",
    ),
    _only(
        "webwalkerqa",
        "what stands deep in web sites",
        WebWalkerRow,
        680,
        ("Apache-2.0", f"{_HUB}/callanwu/WebWalkerQA"),
        "Wu et al. 2025, WebWalker: Benchmarking LLMs in Web Traversal",
        [("callanwu/WebWalkerQA", "main", "data/main-00000-of-00001.jsonl")],
        packaged=True,
    ),
    _only(
        "gaia",
        "tasks for assistants, three levels",
        GaiaRow,
        165,
        ("gated", f"{_HUB}/gaia-benchmark/GAIA"),
        "Mialon et al. 2023, GAIA: a benchmark for General AI Assistants",
        [("gaia-benchmark/GAIA", "main", "2023/validation/metadata.jsonl")],
    ),
    _only(
        "hle",
        "questions of experts",
        HleRow,
        2500,
        ("MIT, gated", f"{_HUB}/cais/hle"),
        "Phan et al. 2025, Humanity's Last Exam",
        [("cais/hle", "main", "data/test-00000-of-00001.parquet")],
    ),
    _only(
        "browsecomp",
        "short answers that are hard to find",
        BrowseCompRow,
        1266,
        ("MIT", "https://github.com/openai/simple-evals"),
        "Wei et al. 2025, BrowseComp: A Simple Yet Challenging Benchmark for Browsing Agents",
    ),
    _only(
        "olympiadbench",
        "problems of mathematical olympiads",
        OlympiadRow,
        674,
        ("Apache-2.0", "https://github.com/OpenBMB/OlympiadBench"),
        "He et al. 2024, OlympiadBench: A Challenging Benchmark for Promoting AGI with Olympiad-Level Bilingual "
        "Multimodal Scientific Problems",
        [
            (
                "Hothan/OlympiadBench",
                "91184b52131e7fc9455fef848035173aea8cc01a",
                "OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
            )
        ],
    ),
    _only(
        "livecodebench",
        "programming contests by date, with tests",
        LiveCodeRow,
        400,
        ("problems: their sites'", f"{_HUB}/livecodebench/code_generation_lite"),
        "Jain et al. 2024, LiveCodeBench: Holistic and Contamination Free Evaluation of Large Language Models for Code",
        [("livecodebench/code_generation_lite", "main", "test.jsonl")],
    ),
    _only(
        "code_contests",
        "programming contests, with tests",
        CodeContestsRow,
        165,
        ("CC BY 4.0", "https://github.com/google-deepmind/code_contests"),
        "Li et al. 2022, Competition-Level Code Generation with AlphaCode",
    ),
)
