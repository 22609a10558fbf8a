"""Search by meaning: vectors of passages in a FAISS index, made by a sentence encoder.

A vector is the mean of the last hidden states over a text's tokens, of length 1; an inner product says how near two
texts are in meaning. Defaults are the conventions of E5 (Wang et al., 2022), with which the Wiki-18 index of Search-R1
was made.
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
from coterie.models.context import context_length
from coterie.models.loading import check_context, check_safetensors, load_tokenizer, resolve
from coterie.models.saved import with_weights
from coterie.progress import Progress
from coterie.tools.retrieval.index import EncoderSettings, Passages, Places, Scores

Vectors = NDArray[np.float32]


class Encoder:
    """An encoder that is loaded. Raises ``UserError`` for a model that can't be."""

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
        return self._encoded([self.settings.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        return self._encoded([self.settings.passage_prefix + text for text in texts])

    def _encoded(self, texts: Sequence[str]) -> Vectors:
        size = self.settings.batch
        parts = [self._batch(texts[begin : begin + size]) for begin in range(0, len(texts), size)]
        return np.concatenate(parts) if parts else np.zeros((0, self.width), np.float32)

    @torch.inference_mode()
    def _batch(self, texts: Sequence[str]) -> Vectors:
        given = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.settings.max_tokens,
            return_tensors="pt",
        ).to(self._device)
        states = self._model(**given).last_hidden_state.float()
        mask = given["attention_mask"].unsqueeze(-1).float()
        means = (states * mask).sum(1) / mask.sum(1)
        found: Vectors = torch.nn.functional.normalize(means, dim=-1).cpu().numpy()
        return found


def build_vectors(passages: Passages, encoder: Encoder, file: Path, progress: Progress) -> None:
    """Encode passages into a flat FAISS index of inner products; 4 bytes a number are in memory meanwhile."""
    index = faiss.IndexFlatIP(encoder.width)
    step = encoder.settings.batch
    progress.start(len(passages), "encoding")
    for begin in range(0, len(passages), step):
        places = range(begin, min(begin + step, len(passages)))
        index.add(encoder.passages([passages[place].contents for place in places]))
        progress.advance(len(places))
    faiss.write_index(index, str(file))


class VectorIndex:
    """A FAISS index that is open, and mapped into memory where FAISS can.

    ``count`` passages are what it is for. Raises ``UserError`` for a file that is not an index, has another
    number of passages, or does not compare by inner products.
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
                "give the index that was made of this corpus, and index rows with `contents`, which stay whole",
            )
        if self._index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(
                f"{file} does not compare by inner products", "make it with METRIC_INNER_PRODUCT"
            )

    def check_width(self, encoder: Encoder) -> None:
        """Refuse (``UserError``) an encoder whose vectors are of another length."""
        if encoder.width != self.width:
            raise UserError(
                f"{self.file} has vectors of {self.width} numbers, and {encoder.settings.model} makes {encoder.width}",
                "give the encoder that the index was made with",
            )

    def search(self, queries: Vectors, count: int) -> list[tuple[Places, Scores]]:
        """For each query: places and scores of the nearest passages, nearest first, equal ones in their order."""
        scores, places = self._index.search(queries, min(count, self._index.ntotal))
        return [
            _ordered(row[row >= 0], own[row >= 0]) for row, own in zip(places, scores, strict=True)
        ]


def _ordered(places: Places, scores: Scores) -> tuple[Places, Scores]:
    order = np.lexsort((places, -scores))
    return places[order], scores[order]


def _reason(error: RuntimeError) -> str:
    return str(error).rpartition(": ")[2] or str(error)
