"""The catalogue's sets of questions on an encyclopedia that have no paragraphs to deal out, and MuSiQue."""

from coterie.datasets.answer_rows import AnswerRow
from coterie.datasets.data_set import DataSet, Repository, UpstreamSplit
from coterie.datasets.musique import MusiqueRow

_FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
"""Where the sets lie with the divisions that agents with a search engine are usually trained and tested on."""

QUESTION_SETS = (
    DataSet(
        name="nq",
        what="questions to a search engine",
        row=AnswerRow,
        repos=(
            Repository(
                _FLASHRAG,
                "87aab18c372ee7714a7288c7d660423c7ee96dde",
                ("nq/train.jsonl",),
                ("nq/test.jsonl",),
            ),
        ),
        train=UpstreamSplit("train", 79168),
        heldout=UpstreamSplit("test", 3610),
        licence="CC BY-SA 3.0",
        licence_url="https://github.com/google-research-datasets/natural-questions",
        citation="Kwiatkowski et al. 2019, Natural Questions: a Benchmark for Question Answering Research",
    ),
    DataSet(
        name="popqa",
        what="facts about things known and unknown",
        row=AnswerRow,
        repos=(Repository(_FLASHRAG, "main", (), ("popqa/test.jsonl",)),),
        train=None,
        heldout=UpstreamSplit("test", 14267),
        licence="MIT",
        licence_url="https://github.com/AlexTMallen/adaptive-retrieval/blob/main/LICENSE",
        citation="Mallen et al. 2023, When Not to Trust Language Models: Investigating Effectiveness of Parametric "
        "and Non-Parametric Memories",
    ),
    DataSet(
        name="musique",
        what="questions of two to four hops, 20 paragraphs",
        row=MusiqueRow,
        repos=(
            Repository(
                "dgslibisey/MuSiQue",
                "main",
                ("musique_ans_v1.0_train.jsonl",),
                ("musique_ans_v1.0_dev.jsonl",),
            ),
        ),
        train=UpstreamSplit("train", 19938),
        heldout=UpstreamSplit("dev", 2417),
        licence="CC BY 4.0",
        licence_url="https://github.com/StonyBrookNLP/musique",
        citation="Trivedi et al. 2022, MuSiQue: Multihop Questions via Single-hop Question Composition",
    ),
    DataSet(
        name="bamboogle",
        what="two-hop questions that no page answers",
        row=AnswerRow,
        repos=(Repository(_FLASHRAG, "main", (), ("bamboogle/test.jsonl",)),),
        train=None,
        heldout=UpstreamSplit("test", 125),
        licence="MIT",
        licence_url="https://github.com/ofirpress/self-ask",
        citation="Press et al. 2023, Measuring and Narrowing the Compositionality Gap in Language Models",
    ),
)
