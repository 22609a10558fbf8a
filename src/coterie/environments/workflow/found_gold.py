"""Whether a search found what an expert's trace rests on.

Thoughts say what the gold says. Where no result says it too, an agent that is trained on them learns to make things up.
"""

from collections.abc import Iterable

from coterie.datasets.rows import QuestionRow
from coterie.tools.retrieval.tool import titles_in


def gold_titles(row: QuestionRow) -> tuple[str, ...]:
    """Titles of the passages that a row's answer rests on."""
    return tuple(dict.fromkeys(_plain(one.title) for one in row.passages if one.gold))


def found_gold(results: Iterable[str], titles: Iterable[str]) -> bool:
    """Return True if the passages in results (``tools.retrieval.tool.format_passages``) include all titles."""
    found = {_plain(title) for result in results for title in titles_in(result)}
    return found.issuperset(map(_plain, titles))


def _plain(title: str) -> str:
    return " ".join(title.split())
