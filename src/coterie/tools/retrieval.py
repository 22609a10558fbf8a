"""Indexes of passages: search by words (BM25) or by vectors.

A corpus may have tens of millions of passages, so an index folder has JSON lines, their offsets and the index, all
memory-mapped. A vector is the normalized mean of the last hidden states over a text's tokens; defaults follow E5.
"""

import hashlib
import importlib
import json
import mmap
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from coterie.config.folders import atomic_folder, check_new, expanded, home, new_folder, sha256
from coterie.config.settings import Settings, key
from coterie.datasets.files import numbered
from coterie.errors import UserError
from coterie.progress import Progress, Silent
from coterie.record.turn import digest

PASSAGES, OFFSETS, PAGES = "passages.jsonl", "offsets.npy", "pages.npy"
MANIFEST, VECTORS = "manifest.json", "vectors.faiss"
FORM: Literal[3] = 3
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
    max_tokens: int = key(256, "Tokens of a text, which is truncated.", source="Search-R1", ge=8)
    device: str = key("auto", "`auto`, `cpu`, `cuda`, `cuda:1`; half precision on a GPU.")
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


BY_WORDS = SearchSettings()


# -- passages ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passage:
    """Unit of text that a search returns."""

    id: str
    contents: str
    """Title in quotes on the first line, then the text; or only a text."""

    @property
    def title(self) -> str:
        return self._split()[0]

    @property
    def text(self) -> str:
        return self._split()[1]

    def _split(self) -> tuple[str, str]:
        first_line, line_end, rest = self.contents.partition("\n")
        if line_end and len(first_line) >= 2 and first_line[0] == first_line[-1] == '"':
            return first_line[1:-1], rest
        return "", self.contents


class Passages:
    """Sequence of the passages of a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._offsets: Places = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / PASSAGES).open("rb") as file:
            self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if int(self._offsets[-1]) != len(self._rows):
            raise UserError(f"{folder} is damaged: {PASSAGES} has changed", "build the index again")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row = json.loads(self._rows[int(self._offsets[index]) : int(self._offsets[index + 1])])
        return Passage(row["id"], row["contents"])


def read_rows(file: Path, progress: Progress) -> Iterator[tuple[int, Passage]]:
    """Yield the passages of a file of rows (``datasets.files``), each with the number of its row, from 0.

    A row with ``contents`` is one passage. A row with ``title`` and ``text`` is a page, whose text is split at line
    ends into paragraphs, numbered from 0. Raises ``UserError`` for a bad row, with its line, and for a bad file.
    """
    for page, (position, row) in enumerate(numbered(file, progress)):
        is_page = isinstance(row, dict) and "contents" not in row
        text = row.get("text" if is_page else "contents") if isinstance(row, dict) else None
        title = row.get("title") if is_page else ""
        if not isinstance(text, str) or not text.strip() or not isinstance(title, str):
            raise UserError(
                f"{file}, {position}, is not a row with `contents`, or with the texts `title` and `text`",
                ROW,
            )
        id_ = str(row.get("id", page))
        if not is_page:
            yield page, Passage(id_, text)
            continue
        title = " ".join(title.split())
        lines = (" ".join(line.split()) for line in text.splitlines())
        pieces = [
            line[begin : begin + MAX_CHARACTERS]
            for line in lines
            for begin in range(0, len(line), MAX_CHARACTERS)
        ]
        for count, piece in enumerate(pieces):
            # A page of one paragraph keeps the id of its row.
            passage_id = id_ if len(pieces) == 1 else f"{id_}-{count}"
            yield page, Passage(passage_id, f'"{title}"\n{piece}')


# -- by words -----------------------------------------------------------------------------------


def load_words(folder: Path) -> Any:
    """Open the BM25 index (package ``bm25s``) of a folder."""
    return need_bm25s().BM25.load(str(folder), mmap=True, show_progress=False)


def word_scores(index: Any, query: str) -> Scores:
    """Return the score of each passage in a BM25 index; 0 without a common word. Thread-safe."""
    words = known_words(index, query)
    if not words:
        return np.zeros(int(index.scores["num_docs"]), dtype=np.float32)
    scores: Scores = index.get_scores(words)
    return scores


def known_words(index: Any, query: str) -> list[str]:
    """Return the words of a query that are in a BM25 index."""
    (words,) = need_bm25s().tokenize([query], return_ids=False, show_progress=False)
    return [word for word in words if word in index.vocab_dict]


def best(scores: Scores, count: int, among: Places | None = None) -> Places:
    """Return the indices of the highest positive scores, highest first, ties in order; ``among`` restricts them."""
    indices = np.flatnonzero(scores) if among is None else among[scores[among] > 0]
    # Only scores from the count-th highest on, with its ties, have to be sorted.
    if count < len(indices):
        values = scores[indices]
        indices = indices[values >= np.partition(values, len(values) - count)[len(values) - count]]
    # The last key is the first criterion: the score, then the position.
    return indices[np.lexsort((indices, -scores[indices]))][:count]


def need(package: str, extra: str) -> Any:
    """Return a package. Raises ``UserError`` if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"the package {package} is missing", f"pip install -e '.[{extra}]'"
        ) from error


need_bm25s, need_faiss = partial(need, "bm25s", "retrieval"), partial(need, "faiss", "dense")


# -- by vectors ---------------------------------------------------------------------------------


class Encoder:
    """Loaded sentence encoder. Raises ``UserError`` for a model that can't be loaded."""

    def __init__(self, settings: EncoderSettings) -> None:
        import torch
        from transformers import AutoModel

        from coterie.models import loading

        self.settings = settings
        source = loading.resolve(settings.model)
        auto = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(auto if settings.device == "auto" else settings.device)
        self._tokenizer = loading.load_tokenizer(source)
        loading.check_safetensors(source)
        dtype = torch.float16 if self._device.type == "cuda" else torch.float32
        # Vectors are means of states, so weights of a pooler may be unused.
        model = loading.with_weights(AutoModel, source, unused="pooler.", dtype=dtype)
        if (context := loading.context_length(model.config)) is not None:
            loading.check_context(context, settings.max_tokens, source)
        self._model: Any = model.eval().to(device=self._device)

    def queries(self, texts: Sequence[str]) -> Scores:
        return self._encode([self.settings.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Scores:
        return self._encode([self.settings.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> Scores:
        size = self.settings.batch
        parts = [self._batch(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
        return np.concatenate(parts)

    def _batch(self, texts: Sequence[str]) -> Scores:
        import torch

        inputs = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.settings.max_tokens,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            # N texts, T tokens, D dimensions: states (N, T, D), mask (N, T, 1), vectors (N, D).
            states = self._model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"].unsqueeze(-1).float()
            means = (states * mask).sum(1) / mask.sum(1)
            vectors: Scores = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
        return vectors


def _build_vectors(passages: Passages, encoder: Encoder, file: Path, progress: Progress) -> None:
    """Encode passages into a flat FAISS index of inner products, built in memory (float32)."""
    faiss = need_faiss()
    step = encoder.settings.batch
    progress.start(len(passages), "encoding")
    index: Any = None
    for begin in range(0, len(passages), step):
        indices = range(begin, min(begin + step, len(passages)))
        vectors = encoder.passages([passages[index].contents for index in indices])
        # The first batch shows the number of dimensions.
        if index is None:
            index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        progress.advance(len(indices))
    faiss.write_index(index, str(file))


def _open_vectors(file: Path, count: int) -> Any:
    """Open a FAISS index of ``count`` passages, memory-mapped if FAISS can. Raises ``UserError`` if it does not fit."""
    faiss = need_faiss()
    try:
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise UserError(
            f"{file} can't be read as a FAISS index: {str(error).rpartition(': ')[2]}",
            "download it again, or join all of its parts",
        ) from error
    if index.ntotal != count:
        raise UserError(
            f"{file} has {index.ntotal:,} vectors, and the corpus {count:,} passages",
            "give the index of this corpus, and build the corpus from rows with `contents`, which are not split",
        )
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise UserError(f"{file} does not use inner products", "build it with METRIC_INNER_PRODUCT")
    return index


# -- the folder ---------------------------------------------------------------------------------


class Manifest(BaseModel):
    """Manifest of an index folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    form: Literal[3]
    passages: int
    pages: int
    content: str
    """Hash of all passages in order."""
    bm25: bool
    encoder: EncoderSettings | None = None
    encoder_identity: str = ""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of a folder. Raises ``UserError`` if it is not an index."""
        try:
            return cls.model_validate_json((folder / MANIFEST).read_bytes())
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{folder} is not an index of pages, or has another format",
                "build one: coterie data index FILE.jsonl FOLDER",
            ) from error


def build_index(
    file: Path,
    folder: Path,
    *,
    bm25: bool = True,
    encoder: EncoderSettings | None = None,
    progress: Progress | None = None,
) -> int:
    """Index a file (:func:`read_rows`); return the number of passages. An ``encoder`` adds vectors."""
    check_new(folder, "give another folder, or remove it")
    with atomic_folder(folder) as new:
        return _fill_index(new, file, bm25, encoder, progress or Silent())


def _fill_index(
    new: Path, file: Path, bm25: bool, encoder: EncoderSettings | None, progress: Progress
) -> int:
    # Missing packages are reported before the file is read.
    if bm25:
        need_bm25s()
    if encoder is not None:
        need_faiss()
        loaded = Encoder(encoder)
    # Compact arrays of 64-bit integers, since there may be tens of millions of passages.
    offsets, pages, content = array("q", [0]), array("q"), hashlib.sha256()

    # Tokenization consumes this generator, so the rows are written in the same pass.
    def contents() -> Iterator[str]:
        with (new / PASSAGES).open("wb") as out:
            for page, passage in read_rows(file, progress):
                fields = {"id": passage.id, "contents": passage.contents}
                row = (json.dumps(fields, ensure_ascii=False) + "\n").encode()
                out.write(row)
                content.update(row)
                offsets.append(offsets[-1] + len(row))
                pages.append(page)
                yield passage.contents

    if bm25:
        tokens = need_bm25s().tokenize(contents(), show_progress=False)
        if not tokens.vocab:
            raise UserError("no passage has a searchable word", "build the index with vectors only")
        index = need_bm25s().BM25()
        index.index(tokens, show_progress=False)
        index.save(str(new), show_progress=False)
    else:
        # Without an index of words, only write the rows.
        deque(contents(), 0)
    np.save(new / OFFSETS, np.frombuffer(offsets, np.int64))
    np.save(new / PAGES, np.frombuffer(pages, np.int64))
    identity = ""
    if encoder is not None:
        identity = encoder.identity()
        _build_vectors(Passages(new), loaded, new / VECTORS, progress)
        # The index may be opened from another working folder.
        folder = expanded(encoder.model)
        model = str(folder.absolute()) if folder.is_dir() else encoder.model
        encoder = encoder.model_copy(update={"model": model})
    manifest = Manifest(
        form=FORM,
        passages=len(pages),
        pages=pages[-1] + 1,
        content=content.hexdigest(),
        bm25=bm25,
        encoder=encoder,
        encoder_identity=identity,
    )
    (new / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return manifest.passages


def index_of(path: Path) -> Path:
    """Return the index of a folder, or of a file, which is indexed on first use."""
    if not path.is_file():
        return path
    # The name holds the content and the format, so a changed file is indexed again.
    target = home() / "indexes" / f"{sha256(path)}-{FORM}"
    if not target.is_dir():
        with new_folder(target) as new:
            _fill_index(new, path, True, None, Silent())
    return target


# -- search -------------------------------------------------------------------------------------


class Retriever:
    """Open index. Thread-safe. Raises ``UserError`` like :func:`check_index`, and for parts that do not match."""

    def __init__(self, folder: Path, settings: SearchSettings = BY_WORDS) -> None:
        manifest = Manifest.read(folder)
        self._passages = Passages(folder)
        self._words = load_words(folder) if settings.search == "bm25" else None
        if self._words is None:
            need_faiss()
            self._vectors = _open_vectors(_vector_file(folder, settings), len(self._passages))
            self._encoder = Encoder(_encoder(folder, settings, manifest))
            # One query shows the size of the encoder's vectors.
            width = self._encoder.queries(["x"]).shape[1]
            if width != self._vectors.d:
                raise UserError(
                    f"the index has vectors of size {self._vectors.d}, but its encoder has size {width}",
                    "give the encoder of the index",
                )

    def search(self, queries: Sequence[str], count: int) -> list[list[tuple[Passage, float]]]:
        """Return at most ``count`` passages with scores for each query; by words, only ones with a common word."""
        if self._words is not None:
            all_scores = (word_scores(self._words, query) for query in queries)
            pairs = [[(index, s[index]) for index in best(s, count)] for s in all_scores]
        else:
            vectors = self._encoder.queries(queries)
            scores, indices = self._vectors.search(vectors, min(count, len(self._passages)))
            pairs = [list(zip(*pair, strict=True)) for pair in zip(indices, scores, strict=True)]
        # FAISS fills missing results with -1.
        return [
            [(self._passages[int(index)], float(score)) for index, score in pair if index >= 0]
            for pair in pairs
        ]


def check_index(folder: Path, settings: SearchSettings = BY_WORDS) -> str:
    """Return a hash of what search results depend on. Raises ``UserError`` if the index can't be searched."""
    manifest = Manifest.read(folder)
    if settings.search == "bm25":
        need_bm25s()
        if not manifest.bm25:
            raise UserError(
                f"{folder} has no BM25 index", "set `search: dense`, or build the index again"
            )
        return digest(manifest.content, "bm25")
    need_faiss()
    encoder, file = _encoder(folder, settings, manifest), _vector_file(folder, settings)
    if not file.is_file():
        raise UserError(f"there is no file {file}", "give the FAISS index of the corpus")
    # An index may have tens of gigabytes, so only its size and both ends are hashed.
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(SAMPLE)
        stream.seek(max(0, size - SAMPLE))
        sample = hashlib.sha256(b"%d " % size + head + stream.read()).hexdigest()
    return digest(manifest.content, encoder.identity(), sample)


def _vector_file(folder: Path, settings: SearchSettings) -> Path:
    return folder / VECTORS if settings.vectors is None else expanded(settings.vectors)


def _encoder(folder: Path, settings: SearchSettings, manifest: Manifest) -> EncoderSettings:
    """Return the encoder. Raises ``UserError`` if it did not make the folder's vectors."""
    if settings.vectors is not None and settings.encoder is not None:
        return settings.encoder
    if manifest.encoder is None:
        raise UserError(
            f"{folder} has no vectors",
            "build the index again with --dense MODEL, or give `vectors` and `encoder`",
        )
    encoder = settings.encoder or manifest.encoder
    if encoder.identity() != manifest.encoder_identity:
        raise UserError(
            f"the vectors of {folder} are not from {encoder.model} with these settings",
            f"use their encoder, {manifest.encoder.model}, or build the index again",
        )
    return encoder
