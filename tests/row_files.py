"""Rows written to JSONL files, for tests."""

import gzip
import json
from pathlib import Path
from typing import Any


def jsonl(file: Path, *rows: dict[str, Any]) -> Path:
    """A line for each row; compressed if the name ends in ``.gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file
