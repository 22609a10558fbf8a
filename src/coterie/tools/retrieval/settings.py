"""Settings of a search: which passages, and whether by words or by meaning."""

from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from coterie.config.folders import expanded
from coterie.config.settings import Settings, key
from coterie.trajectories.turn import digest


class EncoderSettings(Settings):
    """A sentence encoder, and how texts are given to it."""

    model: str = key(..., "A folder or a hub name, such as intfloat/e5-base-v2.", min_length=1)
    query_prefix: str = key("query: ", "What stands before a query.", source="E5")
    passage_prefix: str = key("passage: ", "What stands before a passage.", source="E5")
    max_tokens: int = key(256, "Tokens of a text; more are cut off.", source="Search-R1", ge=8)
    device: str = key(
        "auto",
        "Where it runs: `auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`. On a GPU in half precision.",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    )
    batch: int = key(64, "Texts that it reads at the same time.", ge=1)

    def identity(self) -> str:
        """A hash of what vectors depend on, wherever the model is. Raises ``UserError`` for what is not a model."""
        from coterie.models.loading import identity  # loads torch

        numbers = (self.query_prefix, self.passage_prefix, str(self.max_tokens))
        return digest(identity(self.model), *numbers)


class IndexSettings(Settings):
    """What is searched, and how."""

    index: str = key(..., "The folder that `coterie data index` made.", min_length=1)
    search: Literal["bm25", "dense"] = key("bm25", "By words (BM25), or by meaning (vectors).")
    vectors: str | None = key(
        None,
        "Of `search: dense`: a FAISS index of inner products with one vector for each passage, such as e5_Flat.index "
        "of Wiki-18; default: the vectors that the folder was made with.",
    )
    encoder: EncoderSettings | None = key(
        None,
        "Of `search: dense`: the encoder (`model`, `query_prefix`, `max_tokens`, ...); default: the one that the "
        "folder's vectors were made with.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.search != "dense" and (self.vectors is not None or self.encoder is not None):
            raise ValueError("vectors and encoder are for `search: dense`")
        if self.vectors is not None and self.encoder is None:
            raise ValueError(
                "vectors needs the encoder that they were made with (`encoder: {model: NAME}`)"
            )
        return self

    @property
    def folder(self) -> Path:
        """Of the passages."""
        return expanded(self.index)
