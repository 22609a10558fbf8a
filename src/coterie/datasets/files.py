"""Read validated rows from files, and append lines to JSONL files that can be resumed after a crash.

Formats: ``.jsonl`` (an object per line), ``.json`` (a list of objects), ``.parquet``, and text tables with a header
(``.csv``, ``.tsv``). All but Parquet may be compressed (``.gz``).
"""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from pydantic import ValidationError

from coterie.config.folders import make_folder, read_json, reason_of
from coterie.config.resolve import wrong_at
from coterie.datasets.rows import SetRow
from coterie.errors import UserError
from coterie.progress import Progress, Silent

R = TypeVar("R", bound=SetRow)
TABLES = {".csv": ",", ".tsv": "\t"}
"""Delimiters by suffix."""
SUFFIXES = (".jsonl", ".gz", ".json", ".parquet", *TABLES)
PARQUET_BATCH = 256
ENCODING = "utf-8-sig"
"""UTF-8 with or without a byte order mark."""
SHOWN = 3
"""Number of problems of a row in an error."""


def read_rows(file: Path, row: type[R], progress: Progress | None = None) -> Iterator[R]:
    """Yield the rows of a file in order. Raise ``UserError`` with file and line for a broken row or an empty file."""
    for place, raw in numbered(file, progress, row.columns):
        yield _checked(raw, row, f"{file}, {place}")


def numbered(
    file: Path, progress: Progress | None = None, columns: tuple[str, ...] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the values of a file of any format, each with its position, such as ``line 3`` or ``row 3``.

    Raises ``UserError`` like :func:`read_rows`. ``columns`` selects columns of a parquet file.
    """
    if not file.is_file():
        where = f"{file} is a folder, not a file" if file.is_dir() else f"there is no file {file}"
        raise UserError(where, "check the path")
    if file.suffix not in SUFFIXES:
        raise UserError(f"{file} has an unknown format", f"give one of {', '.join(SUFFIXES)}")
    unit = "line" if _kind(file) == ".jsonl" else "row"
    number, progress = 0, progress or Silent()
    try:
        for number, raw in _raw(file, progress, columns):
            yield f"{unit} {number}", raw
            progress.advance(1)
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}", "save it as UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{file} is broken: {error}", "compress it again") from error
    if not number:
        raise UserError(f"{file} is empty", "give a file with rows or download it again")


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
    """Yield unvalidated objects with the numbers of their lines or rows, from 1."""
    kind = _kind(file)
    if kind == ".parquet":
        yield from _parquet(file, progress, columns)
    elif kind in TABLES:
        yield from _table(file, progress)
    elif kind == ".json":
        with _open(file) as opened:
            items = _parsed(opened.read(), str(file))
        if not isinstance(items, list):
            raise UserError(f"{file} is not a list of rows", "give a JSON list or JSONL")
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
        raise UserError(f"{where} is broken: not JSON ({error})", "correct or remove it") from error


def _table(file: Path, progress: Progress) -> Iterator[tuple[int, Any]]:
    """Yield rows of text; missing cells are ``None``."""
    with _open(file) as opened:
        progress.start(max(0, sum(1 for line in opened if line.strip()) - 1), file.name)
    quoting, number = _quoting(file), 1
    with _open(file, newline="") as opened:
        try:
            for row in _cells(file, opened, quoting):
                if None in row:
                    raise csv.Error("it has more cells than the header")
                yield number, row
                number += 1
        except csv.Error as error:
            raise UserError(
                f"{file}, row {number} is broken: {error}", "correct or remove it"
            ) from error


def _cells(file: Path, opened: TextIO, quoting: Literal[0, 3]) -> "csv.DictReader[str]":
    return csv.DictReader(opened, delimiter=TABLES[_kind(file)], strict=True, quoting=quoting)


def _quoting(file: Path) -> Literal[0, 3]:
    """Return the quoting of cells. Quotes in a TSV file are text unless all rows are complete with quoting."""
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
                for place, column in enumerate(batch.schema):
                    if column.type == pyarrow.float32():  # 0.1, and not 0.10000000149011612
                        exact = batch.column(place).cast("string").cast("float64")
                        batch = batch.set_column(place, column.name, exact)
                for item in batch.to_pylist():
                    number += 1
                    yield number, item
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{file} can't be read as parquet: {error}", "download it again") from error


def resume_lines(file: Path) -> bool:
    """Remove an incomplete last line of a file, or create its folder. Return True if the file has lines.

    Raises ``UserError`` if the name does not end in ``.jsonl`` or the file is not writable.
    """
    if file.suffix != ".jsonl":
        raise UserError(f"can't append to {file}", "give a file whose name ends in .jsonl")
    make_folder(file.parent)
    if not file.exists():
        return False
    try:
        with file.open("r+b") as opened:
            content = opened.read()
    except OSError as error:
        raise UserError(
            f"can't append to {file}: {reason_of(error)}", "give another file"
        ) from error
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        file.write_bytes(whole)
    return bool(whole.strip())


def append_line(file: Path, fields: Mapping[str, Any]) -> None:
    """Append an object as a line."""
    with file.open("a", encoding="utf-8", newline="\n") as opened:
        opened.write(json.dumps(fields, ensure_ascii=False) + "\n")
