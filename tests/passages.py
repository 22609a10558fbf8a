"""A few passages as rows of a file, for tests of retrieval."""

import gzip
import json
from pathlib import Path
from typing import Any

ROWS = [
    {"id": "w0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": "w1", "contents": '"Bergen"\nBergen is a city in Norway.\nIt rains there.'},
    {"id": "w2", "contents": '"Rome"\nRome is the capital of Italy.'},
    {"id": "w3", "contents": "A text without a title\nof two lines about Norway."},
    {"id": "w4", "contents": '"The "Fram""\nA ship of Norway.'},
]


def written(file: Path, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text)
    return file
