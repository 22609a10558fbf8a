"""A few passages, and indexes of them, for tests of retrieval."""

from pathlib import Path

import pytest

from coterie.tools.retrieval.index import EncoderSettings, build_index
from tests.encoders import tiny_bert
from tests.row_files import jsonl

ROWS = [
    {"id": "w0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": "w1", "contents": '"Bergen"\nBergen is a city in Norway.\nIt rains there.'},
    {"id": "w2", "contents": '"Rome"\nRome is the capital of Italy.'},
    {"id": "w3", "contents": "A text without a title\nof two lines about Norway."},
    {"id": "w4", "contents": '"The "Fram""\nA ship of Norway.'},
]


def indexed(folder: Path) -> Path:
    assert build_index(jsonl(folder / "rows.jsonl", *ROWS), folder / "index") == len(ROWS)
    return folder / "index"


def encoded(folder: Path) -> Path:
    """The folder, with an encoder in ``bert`` and an index with its vectors in ``index``."""
    pytest.importorskip("faiss")
    encoder = EncoderSettings(model=str(tiny_bert(folder / "bert")), device="cpu", batch=2)
    rows = jsonl(folder / "rows.jsonl", *ROWS)
    assert build_index(rows, folder / "index", encoder=encoder) == len(ROWS)
    return folder
