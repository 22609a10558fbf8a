"""Data sets: catalog, typed rows, and readers of files and of the Hugging Face hub.

A data set of sums::

    class Sums:
        row, environment = QuestionRow, "debate"

        def rows(self, split):
            for n in range(90) if split == "train" else range(90, 100):
                yield QuestionRow(id=f"{n}", question=f"What is {n} + {n}?", answer=str(2 * n))
"""

from typing import TYPE_CHECKING

from coterie import lazy_exports

if TYPE_CHECKING:
    from coterie.datasets.catalogue import Split
    from coterie.datasets.load import DatasetSettings, Rows, load_rows
    from coterie.datasets.rows import QuestionRow
    from coterie.datasets.web_pages import text_of

__all__ = ["DatasetSettings", "QuestionRow", "Rows", "Split", "load_rows", "text_of"]
__getattr__, __dir__ = lazy_exports(__name__)
