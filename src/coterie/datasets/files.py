"""Read rows from files, each validated; and add lines to JSONL files that are continued after a process was killed.

Formats: ``.jsonl`` (an object a line), ``.json`` (a list of objects), ``.parquet``, and tables of text with names in
the first line (``.csv``, ``.tsv``). All but Parquet may be compressed (``.gz``).
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from pydantic import ValidationError

from coterie.config.folders import make_folder, reason_of
from coterie.config.plain import wrong_at
from coterie.config.text import read_json
from coterie.datasets.rows import SetRow
from coterie.errors import UserError
from coterie.progress import Progress, Silent

R = TypeVar("R", bound=SetRow)
TABLES = {".csv": ",", ".tsv": "\t"}
"""What stands between two cells."""
SUFFIXES = (".jsonl", ".gz", ".json", ".parquet", *TABLES)
PARQUET_BATCH = 256
ENCODING = "utf-8-sig"
"""UTF-8, with or without the mark that some editors put first."""
SHOWN = 3
"""Faults of one row that an error names."""


def read_rows(file: Path, row: type[R], progress: Progress | None = None) -> Iterator[R]:
    """All rows of a file, in its order. A broken one is a ``UserError`` with file and line, and so is a
    file without any."""
    for place, raw in numbered(file, progress, row.columns):
        yield _checked(raw, row, f"{file}, {place}")


def numbered(
    file: Path, progress: Progress | None = None, columns: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the values of a file of any format, each with its place, such as ``line 3`` or ``row 3``.

    Raises ``UserError`` as :func:`read_rows`. ``columns`` are those that are read of a parquet file.
    """
    if not file.is_file():
        where = f"{file} is a folder, not a file" if file.is_dir() else f"there is no file {file}"
        raise UserError(where, "check the path")
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} is of an unknown format", f"give one of {', '.join(SUFFIXES)}")
    counted = "line" if _kind(file) == ".jsonl" else "row"
    number, progress = 0, progress or Silent()
    try:
        for number, raw in _raw(file, progress, columns):
            yield f"{counted} {number}", raw
            progress.advance(1)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "save it as UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is broken: {error}", "compress it again") from error
    if not number:
        raise UserError(f"{file} is empty", "give a file with rows, or get it again")


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
    kind = _kind(file)
    if kind == ".parquet":
        yield from _parquet(file, progress, columns)
    elif kind in TABLES:
        yield from _table(file, progress)
    elif kind == ".json":
        with _open(file) as opened:
            items = _parsed(opened.read(), str(file))
        if not isinstance(items, list):
            raise UserError(f"{file} holds no list of rows", "give a JSON list, or JSONL")
        progress.start(len(items), file.name)
        yield from enumerate(items, 1)
    else:
        with _open(file) as opened:
            progress.start(sum(1 for line in opened if line.strip()), file.name)
        yield from _lines(file)


def _kind(file: Path) -> str:
    """Return the suffix of a file's format; a compressed file without one is JSONL."""
    kind = Path(file.stem).suffix if file.suffix == ".gz" else file.suffix
    return kind if kind in (".json", ".parquet", *TABLES) else ".jsonl"


def _open(file: Path, newline: str | None = None) -> TextIO:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding=ENCODING, newline=newline)
    return file.open(encoding=ENCODING, newline=newline)


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
    with _open(file) as opened:
        progress.start(max(0, sum(1 for line in opened if line.strip()) - 1), file.name)
    quoting, number = _quoting(file), 1
    with _open(file, newline="") as opened:
        try:
            for row in _cells(file, opened, quoting):
                if None in row:
                    raise csv.Error("it has more cells than the first line has names")
                yield number, row
                number += 1
        except csv.Error as error:
            raise UserError(
                f"{file}, row {number} is broken: {error}", "correct or remove it"
            ) from error


def _cells(file: Path, opened: TextIO, quoting: Literal[0, 3]) -> "csv.DictReader[str]":
    return csv.DictReader(opened, delimiter=TABLES[_kind(file)], strict=True, quoting=quoting)


def _quoting(file: Path) -> Literal[0, 3]:
    """Return how cells are quoted: in a TSV file quotes are text unless all its rows are whole with quoting."""
    if _kind(file) == ".csv":
        return csv.QUOTE_MINIMAL
    try:
        with _open(file, newline="") as opened:
            rows = _cells(file, opened, csv.QUOTE_MINIMAL)
            is_whole = all(None not in row and None not in row.values() for row in rows)
    except csv.Error:
        is_whole = False
    return csv.QUOTE_MINIMAL if is_whole else csv.QUOTE_NONE


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
                for place, one in enumerate(batch.schema):
                    if one.type == pyarrow.float32():  # 0.1, and not 0.10000000149011612
                        exact = batch.column(place).cast("string").cast("float64")
                        batch = batch.set_column(place, one.name, exact)
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} can't be read as parquet: {error}", "get it again") from error


def resume_lines(file: Path) -> bool:
    """Cut half a line off the end of a file, or make its folder; whether it has lines.

    Raises ``UserError`` for a name that does not end in ``.jsonl``, and a place that can't be written to.
    """
    if file.suffix != ".jsonl":
        raise UserError(f"{file} can't be added to", "give a file whose name ends in .jsonl")
    make_folder(file.parent)
    if not file.exists():
        return False
    try:
        with file.open("r+b") as opened:
            written = opened.read()
    except OSError as error:
        raise UserError(
            f"{file} can't be added to: {reason_of(error)}", "give another file"
        ) from error
    whole = written[: written.rfind(b"\n") + 1]
    if whole != written:
        file.write_bytes(whole)
    return bool(whole.strip())


def append_line(file: Path, fields: Mapping[str, Any]) -> None:
    """Add one object; it is on disk when this returns."""
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        opened.write(json.dumps(fields, ensure_ascii=False) + "\n")
