"""Phrases for relations of Wikidata in plans, thoughts and queries."""

from collections.abc import Mapping

_PHRASES: Mapping[str, str] = {
    "country of citizenship": "nationality",
    "country of origin": "country",
    "publication date": "release date",
    "inception": "date of founding",
    "founded by": "founder",
    "award received": "award",
    "educated at": "school",
    "screenwriter": "writer",
    "located in the administrative territorial entity": "region",
    "located on terrain feature": "terrain",
    "location of formation": "place of founding",
    "member of sports team": "team",
    "member of political party": "political party",
    "member of": "organization",
    "part of": "whole",
    "named after": "namesake",
    "shares border with": "neighbor",
    "capital of": "region with the capital",
    "cast member": "actor",
    "work location": "place of work",
    "position held": "position",
    "followed by": "successor",
    "contains administrative territorial entity": "district",
}
"""Natural names of relations with technical names in Wikidata."""
_WORDS: Mapping[str, str] = {
    "director": "directed by",
    "performer": "song by",
    "composer": "music composed by",
    "date of birth": "born",
    "place of birth": "born",
    "date of death": "died",
    "place of death": "died",
    "cause of death": "died",
    "country of citizenship": "",
    "country": "",
    "country of origin": "",
    "publication date": "released",
    "inception": "founded",
    "founded by": "founded by",
    "spouse": "married",
    "child": "children",
    "educated at": "educated",
    "employer": "worked",
    "located in the administrative territorial entity": "located in",
    "shares border with": "border",
    "member of sports team": "team",
}
"""Words that pages use for relations, for keyword search, which finds the wrong pages for ``date of birth``."""


def task_text(relation: str, of: str) -> str:
    """Return a task: ``director of Devotion``."""
    return f"{_phrase(relation)} of {of}"


def query_text(relation: str, of: str) -> str:
    """Return a query: ``Devotion directed by``."""
    plain = _plain(relation)
    return f"{of} {_WORDS.get(plain, _phrase(plain))}".strip()


def sentence(relation: str, of: str, value: str) -> str:
    """Return a sentence: ``The director of Devotion is Guido Brignone.``"""
    return f"The {task_text(relation, of)} is {value.rstrip('.')}."


def _phrase(relation: str) -> str:
    plain = _plain(relation)
    return _PHRASES.get(plain, plain)


def _plain(relation: str) -> str:
    return " ".join(relation.lower().split())
