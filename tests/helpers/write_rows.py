"""Rows written to files, and the real rows of this machine, for tests."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

FLOAT = pyarrow.float32()


def write_jsonl(file: Path, *rows: Any) -> Path:
    """A line for each row; compressed if the name ends in ``.gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


def write_parquet(file: Path, *rows: dict[str, Any]) -> Path:
    """A Parquet file with numbers of single precision."""
    made = pyarrow.Table.from_pylist(list(rows))
    single = [one.with_type(FLOAT) if one.type == "double" else one for one in made.schema]
    parquet.write_table(made.cast(pyarrow.schema(single)), file)
    return file
