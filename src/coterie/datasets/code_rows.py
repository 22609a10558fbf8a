"""Typed rows of programming tasks: ColBench's Backend Programming, LiveCodeBench and CodeContests.

LiveCodeBench has its private tests as base64 of a zlib stream of a pickle. A pickle can run code when it is read, so it
is never read: those rows keep their public tests and say what they lack. Copies with JSON in its place are read.
"""

import base64
import binascii
import io
import json
import re
import tokenize
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from coterie.config.text import read_json
from coterie.datasets.answers import AnswerRow, Layout, as_text
from coterie.datasets.rows import Frozen, QuestionRow, question_key

SENTENCE = "The signature of the function is:"
"""With what a description ends, upstream glues it on without a space; the signature follows."""
_NAME = re.compile(r"def\s+(\w+)\s*\(")


class CodeRow(QuestionRow):
    """A request for a Python function, which one who knows the reference can make clear.

    ``question`` is upstream's ``problem_description``, ``answer`` its ``ground_truth``. Upstream has no
    id (a hash of the description is taken) and its tests are a dictionary or a list. A row without
    a reference or without tests is read, but not ``usable``.
    """

    answer: str
    """Source of the reference function: what only the person, the critic and the grader may see."""
    tests: tuple[str, ...]
    """Expressions that call it, ten in upstream; the values are what the reference gives."""

    @property
    def flaw(self) -> str:
        """An answer is graded by what the reference gives on the tests."""
        return "" if self.answer.strip() and self.tests else "has no reference, or no tests"

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "problem_description" not in value:
            return value
        text = value["problem_description"]
        return {
            "id": value.get("id") or (question_key(text) if isinstance(text, str) else "unknown"),
            "question": text,
            "answer": value.get("ground_truth") or "",
            "tests": value.get("test_cases") or (),
        }

    @field_validator("tests", mode="before")
    @classmethod
    def _calls(cls, value: Any) -> Any:
        """A dictionary's values in their order; a table of rows has ``None`` where a row lacks a name."""
        calls = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(calls, list | tuple):
            return [call for call in calls if call is not None]
        return calls


@dataclass(frozen=True, slots=True)
class Signature:
    """What a description says of how the function is to be called."""

    text: str
    """From ``def`` on, such as ``def total(prices, rate)``."""
    name: str
    """Of the function; empty if the text doesn't tell it."""
    whole: bool
    """Whether all brackets and quotes are closed. Upstream's are cut at their first colon."""


def signature(text: str) -> Signature | None:
    """The signature at the end of a description; ``None`` if it has none."""
    _, sentence, rest = text.rpartition(SENTENCE)
    rest = rest.strip()
    if not sentence or not rest:
        return None
    named = _NAME.match(rest)
    whole = named is not None and not rest.endswith("->") and _closed(rest)
    return Signature(rest, named[1] if named else "", whole)


def _closed(text: str) -> bool:
    depth = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.ERRORTOKEN and token.string in "\"'":
                return False
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
    except (tokenize.TokenError, SyntaxError):
        return False
    return depth == 0


MOST_TESTS = 256 * 2**20
"""Bytes of private tests, unpacked, that a row may have."""
NO_TESTS = "has no tests that can be read"
NO_OUTPUT = "has a test without an expected output"
NO_FUNCTION = "has tests that call a function, and does not name it"
NOT_JSON = "has a test that calls a function with what is not JSON"
SEALED = "private tests are a pickle, which is not read (it could run code): only the public ones are there"


class ContestTest(Frozen):
    """What a program is given, and what it must give."""

    input: str
    output: str
    kind: Literal["stdin", "functional"] = "stdin"
    """``functional``: a line of JSON for each argument, and the value as JSON."""
    public: bool = False

    @property
    def flaw(self) -> str:
        """Why no program can be tested by it; empty if one can be."""
        if not self.output.strip():
            return NO_OUTPUT
        if self.kind == "functional":
            try:
                for text in (*filter(str.strip, self.input.split("\n")), self.output):
                    read_json(text)
            except ValueError:
                return NOT_JSON
        return ""


class ContestRow(AnswerRow):
    """A problem and its tests; a right answer is whatever passes them."""

    answer: str = ""
    """A right program, where upstream gives one."""
    tests: tuple[ContestTest, ...] = ()
    starter: str = ""
    function: str = ""
    """The method to be called by functional tests."""
    platform: str = ""
    level: str = ""
    date: str = ""
    sealed: bool = False
    """Whether upstream has private tests that are not read."""

    @property
    def flaw(self) -> str:
        """A program is graded by all tests."""
        if not self.tests:
            return NO_TESTS
        if not self.function and any(test.kind == "functional" for test in self.tests):
            return NO_FUNCTION
        return next(filter(None, (test.flaw for test in self.tests)), "")

    @property
    def lack(self) -> str:
        """Private tests that are not read."""
        return SEALED if self.sealed else ""

    @field_validator("level", "platform", "date", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return as_text(value)


class LiveCodeRow(ContestRow):
    """LiveCodeBench's code generation."""

    layout: ClassVar[Layout] = Layout(
        question=("question", "question_content"),
        rest={
            "starter": ("starter", "starter_code"),
            "level": ("level", "difficulty"),
            "date": ("date", "contest_date"),
        },
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tests of both fields, and the function of ``metadata``."""
        if "tests" in raw or "public_test_cases" not in raw:
            return raw
        public = _json(raw["public_test_cases"], "public_test_cases")
        private, sealed = _private(raw.get("private_test_cases"))
        tests = [
            _test(one, shown) for shown, many in ((True, public), (False, private)) for one in many
        ]
        about = raw.get("metadata")
        about = _json(about, "metadata") if isinstance(about, str) and about else about or {}
        function = about.get("func_name") if isinstance(about, Mapping) else ""
        date = str(raw.get("contest_date") or "")
        known = {"tests": tests, "sealed": sealed, "function": function or "", "contest_date": date}
        return {**raw, **known}


class CodeContestsRow(ContestRow):
    """CodeContests: public, private and generated tests; of the solutions none is taken."""

    columns: ClassVar[tuple[str, ...] | None] = (
        "name", "description", "public_tests", "private_tests", "generated_tests", "difficulty", "source",
        "id", "question", "answer", "tests", "platform", "level",
    )  # fmt: skip
    layout: ClassVar[Layout] = Layout(
        id=("id", "name"),
        question=("question", "description"),
        rest={"level": ("level", "difficulty"), "platform": ("platform", "source")},
    )

    @classmethod
    def opened(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tests are two lists, of inputs and of outputs."""
        if "tests" in raw or "public_tests" not in raw:
            return raw
        tests: list[dict[str, Any]] = []
        for name in ("public_tests", "private_tests", "generated_tests"):
            many = raw.get(name) or {"input": [], "output": []}
            if not isinstance(many, Mapping) or not {"input", "output"} <= many.keys():
                raise ValueError(f"{name} has no lists 'input' and 'output'")
            if len(many["input"]) != len(many["output"]):
                raise ValueError(f"{name} has other numbers of inputs and outputs")
            tests += (
                {"input": given, "output": wanted, "public": name == "public_tests"}
                for given, wanted in zip(many["input"], many["output"], strict=True)
            )
        return {**raw, "tests": tests}


def _test(one: Any, public: bool) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise ValueError("a test is not an object")
    return {
        "input": one.get("input"),
        "output": one.get("output"),
        "kind": one.get("testtype") or "stdin",
        "public": public,
    }


def _json(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as error:
        raise ValueError(f"{name} is a text, but not JSON ({error})") from error


def _private(value: Any) -> tuple[list[Any], bool]:
    """Private tests that are JSON, plain or packed, and whether there are others, which are not read."""
    if not value:
        return [], False
    if not isinstance(value, str):
        return list(value), False
    try:
        found = read_json(value)
    except ValueError:
        found = _unpacked(value)
    return (found, False) if isinstance(found, list) else ([], True)


def _unpacked(text: str) -> Any:
    """What base64 of a zlib stream of JSON says; ``None`` for anything else."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), MOST_TESTS)
        found = json.loads(data) if stream.eof else None
        return json.loads(found) if isinstance(found, str) else found
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None
