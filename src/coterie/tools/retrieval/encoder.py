"""Sentence encoders: texts as vectors of length 1, whose inner product says how near they are in meaning.

A vector is the mean of the last hidden states over a text's tokens. Defaults are the conventions of E5 (Wang et al.,
2022), with which the Wiki-18 index of Search-R1 was made.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from coterie.models.context import context_length
from coterie.models.loading import check_context, check_safetensors, load_tokenizer, resolve
from coterie.models.saved import with_weights
from coterie.tools.retrieval.settings import EncoderSettings

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
        """Numbers in a vector."""
        return int(self._model.config.hidden_size)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Vectors of queries, (texts, width)."""
        return self._encoded([self.settings.query_prefix + text for text in texts])

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Vectors of passages, (texts, width)."""
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
