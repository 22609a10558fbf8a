"""Typed rows of programming tasks: ColBench's Backend Programming, LiveCodeBench and CodeContests.

LiveCodeBench stores private tests as base64 of a zlib stream of a pickle. Reading a pickle can run code, so these rows
only have their public tests, and ``lack`` reports the rest. Copies with JSON instead of a pickle are read fully.
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

from coterie.config.folders import read_json
from coterie.datasets.answers import AnswerRow, Layout, as_text
from coterie.datasets.rows import Frozen, QuestionRow, question_key

SENTENCE = "The signature of the function is:"
"""Text before the signature in a description. Upstream appends it without a space."""
_NAME = re.compile(r"def\s+(\w+)\s*\(")


class CodeRow(QuestionRow):
    """Request for a Python function, which a user with the reference can clarify.

    ``question`` is upstream's ``problem_description``, ``answer`` its ``ground_truth``. The id is a hash of the
    description. Tests are a dictionary or a list. A row without a reference or tests is read but not ``usable``.
    """

    answer: str
    """Source of the reference function, visible only to the user, the critic and the grader."""
    tests: tuple[str, ...]
    """Expressions that call the function (ten in upstream). The reference gives their expected values."""

    @property
    def flaw(self) -> str:
        """Grading needs the reference and its results on the tests."""
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
        """Convert a dictionary into its values. Tables have ``None`` for missing names."""
        calls = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(calls, list | tuple):
            return [call for call in calls if call is not None]
        return calls


@dataclass(frozen=True, slots=True)
class Signature:
    """Function signature in a description."""

    text: str
    """Text from ``def``, such as ``def total(prices, rate)``."""
    name: str
    """Name of the function; empty if unknown."""
    whole: bool
    """True if all brackets and quotes are closed. Upstream cuts signatures at the first colon."""


def signature(text: str) -> Signature | None:
    """Return the signature at the end of a description; ``None`` without one."""
    _, sentence, rest = text.rpartition(SENTENCE)
    rest = rest.strip()
    if not sentence or not rest:
        return None
    match = _NAME.match(rest)
    whole = match is not None and not rest.endswith("->") and _is_closed(rest)
    return Signature(rest, match[1] if match else "", whole)


def _is_closed(text: str) -> bool:
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
"""Maximum bytes of the decompressed private tests of a row."""
NO_TESTS = "has no readable tests"
NO_OUTPUT = "has a test without an expected output"
NO_FUNCTION = "has tests of a function without a name"
NOT_JSON = "has a function test that is not JSON"
SEALED = "has private tests in a pickle, which is not read because it could run code; only public tests are available"


class ContestTest(Frozen):
    """Input and expected output of a program."""

    input: str
    output: str
    kind: Literal["stdin", "functional"] = "stdin"
    """``functional``: arguments as one line of JSON each, and the result as JSON."""
    public: bool = False

    @property
    def flaw(self) -> str:
        """Reason why the test is unusable; empty if it is usable."""
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
    """Problem with tests, which all right programs pass."""

    answer: str = ""
    """Right program, if upstream has one."""
    tests: tuple[ContestTest, ...] = ()
    starter: str = ""
    function: str = ""
    """Method that functional tests call."""
    platform: str = ""
    level: str = ""
    date: str = ""
    sealed: bool = False
    """True if upstream has private tests that are not read."""

    @property
    def flaw(self) -> str:
        """Reason why the tests are unusable; empty if all are usable."""
        if not self.tests:
            return NO_TESTS
        if not self.function and any(test.kind == "functional" for test in self.tests):
            return NO_FUNCTION
        return next(filter(None, (test.flaw for test in self.tests)), "")

    @property
    def lack(self) -> str:
        """Message about private tests that are not read."""
        return SEALED if self.sealed else ""

    @field_validator("level", "platform", "date", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        return as_text(value)


class LiveCodeRow(ContestRow):
    """LiveCodeBench, code generation."""

    layout: ClassVar[Layout] = Layout(
        question=("question", "question_content"),
        rest={
            "starter": ("starter", "starter_code"),
            "level": ("level", "difficulty"),
            "date": ("date", "contest_date"),
        },
    )

    @classmethod
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect tests from both fields and the function from ``metadata``."""
        if "tests" in raw or "public_test_cases" not in raw:
            return raw
        public = _json(raw["public_test_cases"], "public_test_cases")
        private, sealed = _private(raw.get("private_test_cases"))
        tests = [
            _test(one, is_public)
            for is_public, many in ((True, public), (False, private))
            for one in many
        ]
        about = raw.get("metadata")
        about = _json(about, "metadata") if isinstance(about, str) and about else about or {}
        function = about.get("func_name") if isinstance(about, Mapping) else ""
        date = str(raw.get("contest_date") or "")
        known = {"tests": tests, "sealed": sealed, "function": function or "", "contest_date": date}
        return {**raw, **known}


class CodeContestsRow(ContestRow):
    """CodeContests: problems with public, private and generated tests, without solutions."""

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
    def normalize(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Collect tests from parallel lists of inputs and outputs."""
        if "tests" in raw or "public_tests" not in raw:
            return raw
        tests: list[dict[str, Any]] = []
        for name in ("public_tests", "private_tests", "generated_tests"):
            many = raw.get(name) or {"input": [], "output": []}
            if not isinstance(many, Mapping) or not {"input", "output"} <= many.keys():
                raise ValueError(f"{name} has no lists 'input' and 'output'")
            if len(many["input"]) != len(many["output"]):
                raise ValueError(f"{name} has different numbers of inputs and outputs")
            tests += (
                {"input": text, "output": output, "public": name == "public_tests"}
                for text, output in zip(many["input"], many["output"], strict=True)
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
    """Return private tests in plain or compressed JSON, and True if there are others, which are not read."""
    if not value:
        return [], False
    if not isinstance(value, str):
        return list(value), False
    try:
        tests = read_json(value)
    except ValueError:
        tests = _decompress(value)
    return (tests, False) if isinstance(tests, list) else ([], True)


def _decompress(text: str) -> Any:
    """Parse base64 of a zlib stream of JSON; ``None`` for anything else."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), MOST_TESTS)
        value = json.loads(data) if stream.eof else None
        return json.loads(value) if isinstance(value, str) else value
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None
