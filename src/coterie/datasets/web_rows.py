"""Rows of GAIA, HLE, WebWalkerQA, BrowseComp and of contests of mathematics, as each of them has them."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from itertools import cycle
from typing import Any, ClassVar

from coterie.datasets.answer_rows import ExamRow, Layout, WebRow

HIDDEN = "?"
"""GAIA's answer to the questions of its test split."""


class GaiaRow(WebRow):
    """GAIA: tasks for assistants of three levels; some come with a file."""

    layout: ClassVar[Layout] = Layout(
        id=("id", "task_id"), rest={"level": ("level", "Level"), "file": ("file", "file_name")}
    )

    @property
    def flaw(self) -> str:
        """The answers of its test split are not public."""
        return "has no public answer" if self.answer.strip() == HIDDEN else super().flaw


class HleRow(WebRow):
    """Humanity's Last Exam: questions of experts of many subjects."""

    columns: ClassVar[tuple[str, ...] | None] = (
        "id", "question", "answer", "answer_type", "category", "raw_subject", "image",
    )  # fmt: skip
    layout: ClassVar[Layout] = Layout(
        rest={"subject": ("subject", "category"), "kind": ("kind", "answer_type")}
    )


class WebWalkerRow(WebRow):
    """WebWalkerQA: questions about what stands deep in a web site."""

    layout: ClassVar[Layout] = Layout(
        rest={
            "subject": ("subject", "info.domain"),
            "level": ("level", "info.Level"),
            "kind": ("kind", "info.type"),
        }
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The site is the first of the pages, those with the answer follow."""
        if "pages" in raw or not isinstance(raw.get("root_url"), str):
            return raw
        info = raw.get("info")
        sources = info.get("source_website") if isinstance(info, Mapping) else None
        return {**raw, "pages": [raw["root_url"], *(sources or ())]}


class BrowseCompRow(WebRow):
    """BrowseComp: short answers that are hard to find.

    Question and answer are published encrypted, so that they don't get into training data: base64 of the text XOR the
    SHA-256 of the row's ``canary``, repeated.
    """

    layout: ClassVar[Layout] = Layout(rest={"subject": ("subject", "problem_topic")})

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row decrypted; raises ``ValueError`` if its canary isn't the key."""
        canary = raw.get("canary")
        if not isinstance(canary, str):
            return raw
        texts = {name: raw[name] for name in ("problem", "question", "answer") if name in raw}
        return {**raw, **{name: decrypted(text, canary) for name, text in texts.items()}}


class OlympiadRow(ExamRow):
    """OlympiadBench: problems of olympiads; several values that are asked for stand in one answer."""

    layout: ClassVar[Layout] = Layout(
        rest={"level": ("level", "difficulty"), "subject": ("subject", "subfield")}
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The list of final answers is one answer, the list of solutions' first is the solution."""
        raw = dict(raw)
        final, solution = raw.get("final_answer"), raw.get("solution")
        if isinstance(final, list | tuple):
            raw["final_answer"] = ", ".join(map(str, final))
        if isinstance(solution, list | tuple):
            raw["solution"] = next(iter(solution), "")
        if raw.get("solution") is None:
            raw.pop("solution", None)
        images = [name for name in raw if name.startswith("image_") and raw[name]]
        return {**raw, "image": bool(raw.get("image") or images)}


def decrypted(text: Any, canary: str) -> str:
    """A text of BrowseComp. Raises ``ValueError`` for what is not a text under that canary."""
    key = hashlib.sha256(canary.encode()).digest()
    try:
        sealed = base64.b64decode(text, validate=True)
        return bytes(one ^ other for one, other in zip(sealed, cycle(key), strict=False)).decode()
    except (binascii.Error, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError("it can't be decrypted by its canary") from error
