"""A chat model's reply as a row: read, tidied, and compared with the rows there are; nothing is run.

The signature that ends a description is written anew from the reference, so it is whole and true.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rapidfuzz import fuzz, process

from coterie.config.plain import wrong_at
from coterie.config.text import whole
from coterie.datasets.code_rows import SENTENCE, CodeRow
from coterie.datasets.rows import Text, question_key

NEAR = 85.0
"""Similarity in percent (the same words in any order are 100) from which two requests are one."""
NEAR_CODE = 92.0
"""The same for the characters of two references."""
QUOTED = 30
"""Characters of the reference that give it away where a description has them too."""
_FENCE = re.compile(r"^\s*```\w*\n(.*?)\n?\s*```\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RefusedDraft:
    """Why a reply was not kept."""

    kind: str
    """For counting, such as ``no JSON``."""
    why: str


class Draft(BaseModel):
    """The object that a model is asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    problem_description: Text
    ground_truth: Text
    test_cases: Annotated[dict[str, Text], Field(min_length=1)]


def read_reply(text: str) -> CodeRow | RefusedDraft:
    """The row that a reply holds."""
    fields = _object(text)
    if fields is None:
        return RefusedDraft("no JSON", "there is no object with `ground_truth`")
    try:
        draft = Draft.model_validate(fields)
    except ValidationError as error:
        return RefusedDraft("incomplete", wrong_at(error.errors()[0]))
    return _row(draft)


def near(row: CodeRow, known: Sequence[CodeRow]) -> RefusedDraft | None:
    """Whether a row asks nearly the same as another one, or has nearly the same reference."""
    questions = [_opening(other.question).lower() for other in known]
    asked = process.extractOne(
        _opening(row.question).lower(), questions, scorer=fuzz.token_sort_ratio, score_cutoff=NEAR
    )
    if asked is not None:
        return RefusedDraft("near another", f"asks nearly what row {asked[2] + 1} asks")
    answers = [other.answer for other in known]
    code = process.extractOne(row.answer, answers, scorer=fuzz.ratio, score_cutoff=NEAR_CODE)
    if code is not None:
        return RefusedDraft("near another", f"has nearly the reference of row {code[2] + 1}")
    return None


def _object(text: str) -> dict[str, Any] | None:
    """The first JSON object with a reference in a text, whatever stands before and after it."""
    decoder = json.JSONDecoder(strict=False)
    for brace in re.finditer(r"\{", text):
        try:
            fields = whole(decoder.raw_decode(text, brace.start())[0])
        except (ValueError, RecursionError):
            continue
        if "ground_truth" in fields:
            return dict(fields)
    return None


def _row(draft: Draft) -> CodeRow | RefusedDraft:
    fenced = _FENCE.match(draft.ground_truth)
    source = (fenced[1] if fenced else draft.ground_truth).strip()
    calls = tuple(call.strip() for call in draft.test_cases.values())
    head = _head(source, calls)
    if isinstance(head, RefusedDraft):
        return head
    opening = _opening(draft.problem_description)
    if not opening:
        return RefusedDraft("incomplete", "problem_description: nothing but a signature")
    match = SequenceMatcher(None, opening, source, autojunk=False).find_longest_match()
    if match.size >= QUOTED:
        quoted = opening[match.a : match.a + match.size]
        return RefusedDraft("gives the answer away", f"the description quotes {quoted!r}")
    question = f"{opening}{SENTENCE} {head}"
    return CodeRow(id=question_key(question), question=question, answer=source, tests=calls)


def _opening(description: str) -> str:
    """A description without its signature."""
    return description.partition(SENTENCE)[0].strip()


def _head(source: str, calls: Sequence[str]) -> str | RefusedDraft:
    """The signature of the function of ``source`` that every test calls."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = ast.parse(source).body
            trees = [ast.parse(call, mode="eval") for call in calls]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return RefusedDraft("no Python", str(error))
    named = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    for name, node in reversed(named.items()):
        if all(name in _names(tree) for tree in trees):
            return f"def {name}({ast.unparse(node.args)})"
    return RefusedDraft("no Python", "no function of the reference is called by every test")


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
