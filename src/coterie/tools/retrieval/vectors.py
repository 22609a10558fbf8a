"""Vector search: vectors of passages from a sentence encoder, in a FAISS index.

A vector is the normalized mean of the last hidden states over a text's tokens. The inner product measures similarity.
Defaults follow E5 (Wang et al., 2022), the encoder of Search-R1's Wiki-18 index.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from coterie.errors import UserError
from coterie.models.loading import (
    check_context,
    check_safetensors,
    context_length,
    load_tokenizer,
    resolve,
    with_weights,
)
from coterie.progress import Progress
from coterie.tools.retrieval.index import EncoderSettings, Passages, Places, Scores

Vectors = NDArray[np.float32]


class Encoder:
    """Loaded sentence encoder. Raises ``UserError`` for a model that can't be loaded."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        source = resolve(settings.model)
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self._device = torch.device(device)
        self._tokenizer = load_tokenizer(source)
        check_safetensors(source)
        dtype = torch.float16 if self._device.type == "cuda" else torch.float32
        model = with_weights(AutoModel, source, unused="pooler.", dtype=dtype)
        if (context := context_length(model.config)) is not None:
            check_context(context, settings.max_tokens, source)
        self._model: Any = model.eval().to(device=self._device)

    @property
    def width(self) -> int:
        return int(self._model.config.hidden_size)

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self.settings.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._encode([self.settings.passage_prefix + text for text in texts])

    def _encode(self, texts: Sequence[str]) -> Vectors:
        size = self.settings.batch
        parts = [self._batch(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float32)

    @torch.inference_mode()
    def _batch(self, texts: Sequence[str]) -> Vectors:
        inputs = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.settings.max_tokens,
            return_tensors="pt",
        ).to(self._device)
        states = self._model(**inputs).last_hidden_state.float()
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        means = (states * mask).sum(1) / mask.sum(1)
        vectors: Vectors = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
        return vectors


def build_vectors(passages: Passages, encoder: Encoder, file: Path, progress: Progress) -> None:
    """Encode passages into a flat FAISS index of inner products, built in memory (float32)."""
    index = faiss.IndexFlatIP(encoder.width)
    step = encoder.settings.batch
    progress.start(len(passages), "encoding")
    for begin in range(0, len(passages), step):
        places = range(begin, min(begin + step, len(passages)))
        index.add(encoder.passages([passages[place].contents for place in places]))
        progress.advance(len(places))
    faiss.write_index(index, str(file))


class VectorIndex:
    """Open FAISS index, memory-mapped if FAISS can.

    ``count`` is the number of passages. Raises ``UserError`` for a file that is not an index, has another number of
    vectors, or does not use inner products.
    """

    def __init__(self, file: Path, count: int) -> None:
        try:
            self._index: Any = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UserError(
                f"{file} can't be read as a FAISS index: {_reason(error)}",
                "download it again, or join all of its parts",
            ) from error
        self.file, self.width = file, int(self._index.d)
        if self._index.ntotal != count:
            raise UserError(
                f"{file} has {self._index.ntotal:,} vectors, and the corpus {count:,} passages",
                "give the index of this corpus, and build the corpus from rows with `contents`, which are not split",
            )
        if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(
                f"{file} does not use inner products", "build it with METRIC_INNER_PRODUCT"
            )

    def check_width(self, encoder: Encoder) -> None:
        """Raise ``UserError`` for an encoder with another vector size."""
        if encoder.width != self.width:
            raise UserError(
                f"{self.file} has vectors of size {self.width}, but {encoder.settings.model} has size {encoder.width}",
                "give the encoder of the index",
            )

    def search(self, queries: Vectors, count: int) -> list[tuple[Places, Scores]]:
        """Return indices and scores of the nearest passages for each query, nearest first, ties in order."""
        scores, places = self._index.search(queries, min(count, self._index.ntotal))
        return [
            _sort(row[row >= 0], own[row >= 0]) for row, own in zip(places, scores, strict=True)
        ]


def _sort(places: Places, scores: Scores) -> tuple[Places, Scores]:
    order = np.lexsort((places, -scores))
    return places[order], scores[order]


def _reason(error: RuntimeError) -> str:
    return str(error).rpartition(": ")[2] or str(error)
