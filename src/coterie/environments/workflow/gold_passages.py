"""Checks that search results contain the gold passages of a trace.

Thoughts state gold facts. If no result contains them, an agent trained on these thoughts learns to hallucinate.
"""

from collections.abc import Iterable

from coterie.datasets.rows import QuestionRow
from coterie.tools.retrieval.tool import titles_in


def gold_titles(row: QuestionRow) -> tuple[str, ...]:
    """Return the titles of the gold passages of a row."""
    return tuple(dict.fromkeys(_plain(one.title) for one in row.passages if one.gold))


def has_passages(results: Iterable[str], titles: Iterable[str]) -> bool:
    """Return True if results of ``tools.retrieval.tool`` contain passages with all titles."""
    all_titles = {_plain(title) for result in results for title in titles_in(result)}
    return all_titles.issuperset(map(_plain, titles))


def _plain(title: str) -> str:
    return " ".join(title.split())
