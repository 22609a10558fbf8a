"""Rows of one file, in upstream's formats or the canonical one, each validated.

Formats: ``.jsonl`` (an object a line; also ``.jsonl.gz``), ``.json`` (a list of objects), ``.parquet``, and tables of
text with names in the first line (``.csv``, ``.tsv``).
"""

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import ValidationError

from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.datasets.rows import SetRow
from coterie.errors import UserError
from coterie.progress import Progress

R = TypeVar("R", bound=SetRow)
TABLES = {".csv": ",", ".tsv": "\t"}
"""What stands between two cells."""
SUFFIXES = (".jsonl", ".gz", ".json", ".parquet", *TABLES)
PARQUET_BATCH = 256
ENCODING = "utf-8-sig"
"""UTF-8, with or without the mark that some editors put first."""
SHOWN = 3
"""Faults of one row that an error names."""


def read_rows(file: Path, row: type[R], progress: Progress) -> Iterator[R]:
    """All rows of a file, in its order. A broken one is a ``UserError`` with file and line, and so is a
    file without any."""
    if not file.is_file():
        where = f"{file} is a folder, not a file" if file.is_dir() else f"there is no file {file}"
        raise UserError(where, "check the path")
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} is of an unknown format", f"give one of {', '.join(SUFFIXES)}")
    counted = "line" if file.suffix in (".jsonl", ".gz") else "row"
    number = 0
    try:
        for number, raw in _raw(file, progress, row.columns):
            yield _checked(raw, row, f"{file}, {counted} {number}")
            progress.advance(1)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "save it as UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is broken: {error}", "compress it again") from error
    if not number:
        raise UserError(f"{file} is empty", "give a file with rows, or get it again")


def numbered(file: Path) -> Iterator[tuple[int, Any]]:
    """The values of a JSONL file, each with its line. Raises ``UserError`` as :func:`read_rows`."""
    if not file.is_file():
        raise UserError(f"there is no file {file}", "check the path")
    try:
        found = list(_lines(file))
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "save it as UTF-8") from error
    if not found:
        raise UserError(f"{file} is empty", "give a file with rows")
    yield from found


def count_lines(file: Path) -> int:
    """The rows of a JSONL file. Raises ``UserError`` if it can't be read."""
    try:
        with file.open("rb") as opened:
            return sum(1 for line in opened if line.strip())
    except OSError as error:
        raise UserError(f"{file} can't be read: {error.strerror}", "check the path") from error


def read_places(file: Path, row: type[R], places: Collection[int]) -> dict[int, R]:
    """The rows of a JSONL file at these places (the first row is 0); the others are not looked at.

    Raises ``UserError`` with the line of a broken one.
    """
    found: dict[int, R] = {}
    with file.open("rb") as opened:
        lines = ((number, line) for number, line in enumerate(opened, 1) if line.strip())
        for place, (number, line) in enumerate(lines):
            if place in places:
                where = f"{file}, line {number}"
                try:
                    text = line.decode(ENCODING)
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{where} is not UTF-8 text: {error}", "save it as UTF-8"
                    ) from error
                found[place] = _checked(_parsed(text, where), row, where)
    return found


def _checked(raw: Any, row: type[R], where: str) -> R:
    try:
        return row.model_validate(raw)
    except ValidationError as error:
        raise UserError(
            f"{where} is broken: {'; '.join(map(wrong_at, error.errors()[:SHOWN]))}",
            f"correct or remove it; a row of this set has {', '.join(row.model_fields)}",
        ) from error


def _raw(
    file: Path, progress: Progress, columns: tuple[str, ...] | None
) -> Iterator[tuple[int, Any]]:
    """Numbered objects, not yet validated; lines and rows count from 1."""
    if file.suffix == ".parquet":
        yield from _parquet(file, progress, columns)
    elif file.suffix in TABLES:
        yield from _table(file, progress)
    elif file.suffix == ".json":
        items = _parsed(file.read_text(encoding=ENCODING), str(file))
        if not isinstance(items, list):
            raise UserError(f"{file} holds no list of rows", "give a JSON list, or JSONL")
        progress.start(len(items), file.name)
        yield from enumerate(items, 1)
    else:
        with _open(file) as opened:
            progress.start(sum(1 for line in opened if line.strip()), file.name)
        yield from _lines(file)


def _open(file: Path) -> TextIO:
    """Open a JSONL file, which may be compressed."""
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding=ENCODING)
    return file.open(encoding=ENCODING)


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    with _open(file) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _parsed(line, f"{file}, line {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise UserError(f"{where} is broken: no JSON ({error})", "correct or remove it") from error


def _table(file: Path, progress: Progress) -> Iterator[tuple[int, Any]]:
    """Rows of texts; a cell that is not there is ``None``."""
    progress.start(max(0, count_lines(file) - 1), file.name)
    number = 1
    with file.open(encoding=ENCODING, newline="") as opened:
        rows = csv.DictReader(opened, delimiter=TABLES[file.suffix], strict=True)
        try:
            for row in rows:
                if None in row:
                    raise csv.Error("it has more cells than the first line has names")
                yield number, row
                number += 1
        except csv.Error as error:
            raise UserError(
                f"{file}, row {number} is broken: {error}", "correct or remove it"
            ) from error


def _parquet(
    file: Path, progress: Progress, columns: tuple[str, ...] | None
) -> Iterator[tuple[int, Any]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as table:
            progress.start(table.metadata.num_rows, file.name)
            number = 0
            for batch in table.iter_batches(batch_size=PARQUET_BATCH, columns=columns):
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} can't be read as parquet: {error}", "get it again") from error
