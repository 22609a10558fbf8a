"""Passages on disk, indexed by words (BM25) or by vectors, and their search.

A corpus may have tens of millions of passages, so passages are not kept as objects. A folder has the passages as JSON
lines, the offset of each line, and the index. All files are memory-mapped.
"""

import hashlib
import importlib.util
import json
import mmap
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from coterie.config.folders import check_new_folder, expanded, whole_folder
from coterie.config.settings import Settings, key
from coterie.datasets.files import numbered
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.record.turn import digest

PASSAGES, OFFSETS, PAGES = "passages.jsonl", "offsets.npy", "pages.npy"
MANIFEST, VECTORS = "manifest.json", "vectors.faiss"
FORM = 2
MAX_CHARACTERS = 2000
"""Limit on a paragraph; a longer one is split."""
SAMPLE = 1 << 16
"""Bytes at each end of a large file that enter its hash."""
ROW = 'a row is {"id": "7", "contents": "\\"Oslo\\"\\nOslo is a city."} or {"title": "Oslo", "text": "Oslo is a city."}'
Places = NDArray[np.int64]
Scores = NDArray[np.float32]


class EncoderSettings(Settings):
    """Sentence encoder, and the format of its input."""

    model: str = key(..., "A folder or a hub name, such as intfloat/e5-base-v2.", min_length=1)
    query_prefix: str = key("query: ", "Prefix of a query.", source="E5")
    passage_prefix: str = key("passage: ", "Prefix of a passage.", source="E5")
    max_tokens: int = key(
        256, "Tokens of a text; longer texts are truncated.", source="Search-R1", ge=8
    )
    device: str = key(
        "auto",
        "Device: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`. Half precision on a GPU.",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    )
    batch: int = key(64, "Texts in a batch.", ge=1)

    def identity(self) -> str:
        """Return a hash of the model's content and the settings. Raises ``UserError`` if it is not a model."""
        from coterie.models.loading import identity  # loads torch

        numbers = (self.query_prefix, self.passage_prefix, str(self.max_tokens))
        return digest(identity(self.model), *numbers)


class SearchSettings(Settings):
    """Settings of a search."""

    search: Literal["bm25", "dense"] = key("bm25", "Search by words (BM25) or by vectors.")
    vectors: str | None = key(
        None,
        "For `search: dense`: a FAISS index of inner products with one vector for each passage, such as e5_Flat.index "
        "of Wiki-18; default: the vectors of the folder.",
    )
    encoder: EncoderSettings | None = key(
        None,
        "For `search: dense`: the encoder (`model`, `query_prefix`, `max_tokens`, ...); default: the encoder of the "
        "folder's vectors.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.search != "dense" and (self.vectors is not None or self.encoder is not None):
            raise ValueError("vectors and encoder are for `search: dense`")
        if self.vectors is not None and self.encoder is None:
            raise ValueError("vectors needs its encoder; add `encoder: {model: NAME}`")
        return self


class IndexSettings(SearchSettings):
    """Settings of a search in an index."""

    index: str = key(..., "Folder of an index (`coterie data index`).", min_length=1)

    @property
    def folder(self) -> Path:
        return expanded(self.index)


# -- passages ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """Unit of text that a search returns."""

    id: str
    contents: str
    """Title in quotes on the first line, then the text; or only a text."""

    @property
    def title(self) -> str:
        first, line_end, _ = self.contents.partition("\n")
        return first[1:-1] if line_end and _quoted(first) else ""

    @property
    def text(self) -> str:
        first, line_end, rest = self.contents.partition("\n")
        return rest if line_end and _quoted(first) else self.contents


class Passages:
    """Sequence of the passages of a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._offsets: NDArray[np.int64] = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / PASSAGES).open("rb") as file:
            self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if int(self._offsets[-1]) != len(self._rows):
            raise UserError(f"{folder} is damaged: {PASSAGES} has changed", "build the index again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, place: int) -> Passage:
        if not 0 <= place < len(self):
            raise IndexError(place)
        row = json.loads(self._rows[int(self._offsets[place]) : int(self._offsets[place + 1])])
        return Passage(row["id"], row["contents"])

    def __iter__(self) -> Iterator[Passage]:
        return map(self.__getitem__, range(len(self)))


def read_rows(file: Path, progress: Progress) -> Iterator[tuple[int, Passage]]:
    """Yield the passages of a file of rows (``datasets.files``), each with the number of its row, from 0.

    A row with ``contents`` is one passage. A row with ``title`` and ``text`` is a page, whose text is split at line
    ends into paragraphs. Raises ``UserError`` for a bad row, with its line, and for an unreadable file.
    """
    for page, (place, row) in enumerate(numbered(file, progress)):
        where = f"{file}, {place}"
        if not isinstance(row, dict):
            raise _bad(where)
        for passage in _passages(row, page, where):
            yield page, passage


def _quoted(line: str) -> bool:
    return len(line) >= 2 and line[0] == line[-1] == '"'


def _passages(row: dict[str, Any], page: int, where: str) -> Iterator[Passage]:
    """Yield the passages of a row. Its id is the row's id or number; paragraphs are numbered from 0."""
    id_ = str(row.get("id", page))
    if "contents" in row:
        yield Passage(id_, _text(row["contents"], where))
        return
    title, text = row.get("title"), _text(row.get("text"), where)
    if not isinstance(title, str):
        raise _bad(where)
    title = " ".join(title.split())
    pieces = list(_paragraphs(text))
    for count, piece in enumerate(pieces):
        own = id_ if len(pieces) == 1 else f"{id_}-{count}"
        yield Passage(own, f'"{title}"\n{piece}')


def _paragraphs(text: str) -> Iterator[str]:
    for line in text.splitlines():
        line = " ".join(line.split())
        for begin in range(0, len(line), MAX_CHARACTERS):
            yield line[begin : begin + MAX_CHARACTERS]


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _bad(where)
    return value


def _bad(where: str) -> UserError:
    return UserError(
        f"{where}, is not a row with `contents`, or with the texts `title` and `text`",
        ROW,
    )


# -- by words -----------------------------------------------------------------------------------


class Bm25:
    """Open BM25 index (package ``bm25s``). Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._index = need_bm25s().BM25.load(str(folder), mmap=True, show_progress=False)

    def scores(self, query: str) -> Scores:
        """Return the score of each passage for a query; 0 without a common word."""
        words = known_words(self._index, query)
        if not words:
            return np.zeros(int(self._index.scores["num_docs"]), dtype=np.float32)
        scores: Scores = self._index.get_scores(words)
        return scores

    def search(self, query: str, count: int) -> tuple[Places, Scores]:
        """Return indices and scores of the best passages that share a word with the query, best first."""
        scores = self.scores(query)
        places = best(scores, count)
        return places, scores[places]


def known_words(index: Any, query: str) -> list[str]:
    """Return the words of a query that are in a BM25 index."""
    (words,) = need_bm25s().tokenize([query], return_ids=False, show_progress=False)
    return [one for one in words if one in index.vocab_dict]


def best(scores: Scores, count: int, among: Places | None = None) -> Places:
    """Return the indices of the highest positive scores, highest first, ties in order; ``among`` restricts them."""
    places = np.flatnonzero(scores) if among is None else among[scores[among] > 0]
    if count < len(places):
        values = scores[places]
        places = places[values >= np.partition(values, len(values) - count)[len(values) - count]]
    return places[np.lexsort((places, -scores[places]))][:count]


def need_bm25s() -> Any:
    """Return the package ``bm25s``. Raises ``UserError`` if it is missing."""
    try:
        import bm25s
    except ImportError as error:
        raise UserError(
            "searching passages needs the package bm25s", "pip install -e '.[retrieval]'"
        ) from error
    return bm25s


def _need_faiss() -> None:
    if importlib.util.find_spec("faiss") is None:
        raise UserError("searching by vectors needs the package faiss", "pip install -e '.[dense]'")


# -- the folder ---------------------------------------------------------------------------------


class VectorSource(BaseModel):
    """Encoder of a folder's vectors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    encoder: EncoderSettings
    identity: str
    """Hash of the encoder (``EncoderSettings.identity``)."""


class Manifest(BaseModel):
    """Manifest of an index folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    form: int
    passages: int
    pages: int
    content: str
    """Hash of all passages in order."""
    bm25: bool
    vectors: VectorSource | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder. Raises ``UserError`` if it is not an index."""
        try:
            manifest = cls.model_validate_json((folder / MANIFEST).read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{folder} is not an index of pages, or has an older format",
                "build one: coterie data index FILE.jsonl FOLDER",
            ) from error
        if manifest.form != FORM:
            raise UserError(
                f"{folder} has format {manifest.form}, not {FORM}", "build the index again"
            )
        return manifest


def build_index(
    file: Path,
    folder: Path,
    *,
    bm25: bool = True,
    encoder: EncoderSettings | None = None,
    progress: Progress | None = None,
) -> int:
    """Index a file (:func:`read_rows`); return the number of passages.

    An ``encoder`` adds vectors. Raises ``UserError`` for an unreadable file, a bad row, an existing folder, and a
    missing package or model.
    """
    check_new_folder(folder, "give another folder, or remove it")
    with whole_folder(folder) as new:
        return fill_index(new, file, bm25=bm25, encoder=encoder, progress=progress or Silent())


def fill_index(
    new: Path, file: Path, *, bm25: bool, encoder: EncoderSettings | None, progress: Progress
) -> int:
    """Build an index like :func:`build_index`, in an empty folder of the caller."""
    if bm25:
        need_bm25s()
    loaded: Any = None
    if encoder is not None:
        _need_faiss()
        from coterie.tools.retrieval.vectors import Encoder  # loads torch

        loaded = Encoder(encoder)
    offsets, pages, content = array("q", [0]), array("q"), hashlib.sha256()

    def contents() -> Iterator[str]:
        with (new / PASSAGES).open("wb") as out:
            for page, one in read_rows(file, progress):
                fields = {"id": one.id, "contents": one.contents}
                row = (json.dumps(fields, ensure_ascii=False) + "\n").encode()
                out.write(row)
                content.update(row)
                offsets.append(offsets[-1] + len(row))
                pages.append(page)
                yield one.contents

    tokens: Any = None
    if bm25:
        tokens = need_bm25s().tokenize(contents(), show_progress=False)
    else:
        deque(contents(), 0)
    if not pages:
        raise UserError(f"{file} has no text", "give rows with `contents`, or `title` and `text`")
    np.save(new / OFFSETS, np.frombuffer(offsets, np.int64))
    np.save(new / PAGES, np.frombuffer(pages, np.int64))
    if bm25:
        if not tokens.vocab:
            raise UserError("no passage has a searchable word", "build the index with vectors only")
        index = need_bm25s().BM25()
        index.index(tokens, show_progress=False)
        index.save(str(new), show_progress=False)
    source = None
    if encoder is not None:
        from coterie.tools.retrieval.vectors import build_vectors

        build_vectors(Passages(new), loaded, new / VECTORS, progress)
        place = expanded(encoder.model)
        model = str(place.absolute()) if place.is_dir() else encoder.model
        absolute = encoder.model_copy(update={"model": model})
        source = VectorSource(encoder=absolute, identity=encoder.identity())
    manifest = Manifest(
        form=FORM,
        passages=len(pages),
        pages=pages[-1] + 1,
        content=content.hexdigest(),
        bm25=bm25,
        vectors=source,
    )
    (new / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return manifest.passages


# -- search -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hit:
    """Passage with its score for a query."""

    passage: Passage
    score: float


class Retriever:
    """Open index; ``search`` returns indices of passages. Thread-safe."""

    def __init__(
        self,
        passages: Passages,
        search: Callable[[Sequence[str], int], list[tuple[Places, Scores]]],
    ) -> None:
        self._passages, self._search = passages, search

    def search(self, queries: Sequence[str], count: int) -> list[list[Hit]]:
        """Return at most ``count`` passages for each query, best first."""
        return [
            [
                Hit(self._passages[int(place)], float(score))
                for place, score in zip(places, scores, strict=True)
            ]
            for places, scores in self._search(queries, count)
        ]


def check_index(settings: IndexSettings) -> str:
    """Return a hash of the content that search results depend on, independent of paths.

    Raises ``UserError`` if the index can't be searched, checked without loading large files.
    """
    manifest = Manifest.read(settings.folder)
    if settings.search == "bm25":
        need_bm25s()
        if not manifest.bm25:
            raise UserError(
                f"{settings.index} has no BM25 index",
                "set `search: dense`, or build the index again",
            )
        return digest(manifest.content, "bm25")
    _need_faiss()
    encoder, file = _encoder(settings, manifest), _vectors(settings)
    if not file.is_file():
        raise UserError(f"there is no file {file}", "give the FAISS index of the corpus")
    return digest(manifest.content, encoder.identity(), sampled_hash(file))


def open_retriever(settings: IndexSettings) -> Retriever:
    """Open an index. Raises ``UserError`` like :func:`check_index`, and for parts that do not match."""
    manifest = Manifest.read(settings.folder)
    passages = Passages(settings.folder)
    if settings.search == "bm25":
        words = Bm25(settings.folder)
        return Retriever(passages, lambda queries, count: [words.search(q, count) for q in queries])
    _need_faiss()
    from coterie.tools.retrieval.vectors import Encoder, VectorIndex  # loads torch

    index = VectorIndex(_vectors(settings), len(passages))
    encoder = Encoder(_encoder(settings, manifest))
    index.check_width(encoder)
    return Retriever(passages, lambda queries, count: index.search(encoder.queries(queries), count))


def sampled_hash(file: Path) -> str:
    """Return a hash of a large file's size and both of its ends."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(SAMPLE)
        stream.seek(max(0, size - SAMPLE))
        return hashlib.sha256(b"%d " % size + head + stream.read()).hexdigest()


def _vectors(settings: IndexSettings) -> Path:
    file = settings.vectors
    return settings.folder / VECTORS if file is None else expanded(file)


def _encoder(settings: IndexSettings, manifest: Manifest) -> EncoderSettings:
    """Return the encoder. Raises ``UserError`` if it did not make the folder's vectors."""
    if settings.vectors is not None and settings.encoder is not None:
        return settings.encoder
    source = manifest.vectors
    if source is None:
        raise UserError(
            f"{settings.index} has no vectors",
            "build the index again with --dense MODEL, or give `vectors` and `encoder`",
        )
    encoder = settings.encoder or source.encoder
    if encoder.identity() != source.identity:
        raise UserError(
            f"the vectors of {settings.index} are not from {encoder.model} with these settings",
            f"use their encoder, {source.encoder.model}, or build the index again",
        )
    return encoder
