"""Typed rows of programming tasks: ColBench's Backend Programming, LiveCodeBench, CodeContests, Codeforces, HumanEval.

LiveCodeBench stores private tests as base64 of a zlib stream of a pickle of JSON text. Loading a pickle can run code,
so its opcodes are only parsed. Any other pickle is not read, and ``lack`` reports the missing tests.
"""

import ast
import base64
import binascii
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from coterie.config.folders import read_json
from coterie.config.settings import Settings, key
from coterie.datasets.rows import (
    ANSWER_KEYS,
    AnswerRow,
    Frozen,
    Keys,
    Label,
    QuestionRow,
    Raw,
    parsed_json,
    question_key,
)


class CodeRow(QuestionRow):
    """Request for a Python function, which a user with the reference can clarify.

    Upstream's tests are a dictionary or a list. A row without a reference or tests is read but not ``usable``.
    """

    answer: str
    """Source of the reference function, visible only to the user, the critic and the grader."""
    tests: tuple[str, ...]
    """Expressions that call the function (ten in upstream). The reference gives their expected values."""

    @property
    def flaw(self) -> str:
        return "" if self.answer.strip() and self.tests else "has no reference, or no tests"

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "problem_description" not in raw:
            return raw
        text = raw["problem_description"]
        return {
            "id": raw.get("id") or question_key(text),
            "question": text,
            "answer": raw.get("ground_truth") or "",
            "tests": raw.get("test_cases") or (),
        }

    @field_validator("tests", mode="before")
    @classmethod
    def _calls(cls, value: Any) -> Any:
        """Convert a dictionary into its values. Tables have ``None`` for missing names."""
        calls = list(value.values()) if isinstance(value, Mapping) else value
        return [call for call in calls if call is not None] if isinstance(calls, list) else calls


MOST_TESTS = 256 * 2**20
"""Maximum bytes of the decompressed private tests of a row."""
SEALED = "has private tests that are neither JSON nor a pickle of one text, so only its public tests are read"


STARTER = "Begin your program with this:\n```py\n{starter}\n```"


class ContestLimits(Settings):
    """Limits of a program on the tests of its row."""

    seconds: float = key(6.0, "CPU seconds of one test.", source="AFM: 6", gt=0)
    total_seconds: float = key(300.0, "Seconds of all tests.", source="AFM: 300 at most", gt=0)
    memory_mib: int = key(1024, "Memory of a program.", source="AFM: 5000", ge=64)


class ContestTest(Frozen):
    """Input and expected output of a program."""

    input: str
    output: str
    kind: Literal["stdin", "functional", "check"] = "stdin"
    """``functional``: arguments as one line of JSON each, and the result as JSON. ``check``: a Python source with
    ``check(candidate)``, and no output."""
    public: bool = False

    @property
    def flaw(self) -> str:
        if self.kind == "check":
            return "" if _is_python(self.input) else "has a test that is not Python"
        if not self.output.strip():
            return "has a test without an expected output"
        if self.kind == "functional":
            try:
                for text in (*filter(str.strip, self.input.split("\n")), self.output):
                    read_json(text)
            except ValueError:
                return "has a function test that is not JSON"
        return ""


class ContestRow(AnswerRow):
    """Problem with tests, which all right programs pass."""

    answer: str = ""
    """Right program, if upstream has one."""
    tests: tuple[ContestTest, ...] = ()
    starter: str = ""
    function: str = ""
    """Method that functional tests call; of a ``check``: expression of the candidate."""
    prelude: str = ""
    """Source before programs and ``check`` tests: imports and helper functions."""
    checker: str = ""
    """Python program that accepts or rejects outputs (Codeforces); empty if they are compared."""
    date: Label = ""
    sealed: bool = False
    """True if upstream has tests that are not read."""

    @property
    def flaw(self) -> str:
        if not self.tests:
            return "has no readable tests"
        if not self.function and any(test.kind != "stdin" for test in self.tests):
            return "has tests of a function without a name"
        if len({test.kind == "check" for test in self.tests}) > 1:
            return "has a check beside other tests"
        return next(filter(None, (test.flaw for test in self.tests)), "")

    @property
    def lack(self) -> str:
        return SEALED if self.sealed else ""


class LiveCodeRow(ContestRow):
    """LiveCodeBench, code generation."""

    keys: ClassVar[Mapping[str, Keys]] = {
        **ANSWER_KEYS,
        "question": ("question", "question_content"),
        "starter": ("starter", "starter_code"),
        "date": ("date", "contest_date"),
    }

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        """Collect tests from both fields and the function from ``metadata``."""
        if "tests" in raw or "public_test_cases" not in raw:
            return super().normalize(raw)
        public = parsed_json(raw["public_test_cases"], "public_test_cases")
        private = _private(raw.get("private_test_cases"))
        tests = [_test(test, True) for test in public] + [
            _test(test, False) for test in private or ()
        ]
        about = parsed_json(raw.get("metadata") or None, "metadata")
        function = about.get("func_name") if isinstance(about, Mapping) else ""
        columns = {"tests": tests, "sealed": private is None, "function": function or ""}
        return super().normalize(
            {**raw, **columns, "contest_date": str(raw.get("contest_date") or "")}
        )


class CodeContestsRow(ContestRow):
    """CodeContests: problems with public, private and generated tests, without solutions."""

    columns: ClassVar[Keys | None] = (
        "name", "description", "public_tests", "private_tests", "generated_tests", "id", "question", "answer", "tests",
    )  # fmt: skip
    keys: ClassVar[Mapping[str, Keys]] = {
        **ANSWER_KEYS,
        "id": ("id", "name"),
        "question": ("question", "description"),
    }

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "tests" in raw or "public_tests" not in raw:
            return super().normalize(raw)
        tests: list[dict[str, Any]] = []
        for name in ("public_tests", "private_tests", "generated_tests"):
            many = raw.get(name) or {"input": (), "output": ()}
            tests += (
                {"input": text, "output": output, "public": name == "public_tests"}
                for text, output in zip(many["input"], many["output"], strict=True)
            )
        return super().normalize({**raw, "tests": tests})


class CodeforcesRow(ContestRow):
    """Codeforces (``open-r1/codeforces``): problems with official tests, and checkers if several outputs are right."""

    obstacle: Label = ""
    """Reason why programs can't be graded, other than their tests."""

    @property
    def flaw(self) -> str:
        return self.obstacle or super().flaw

    @property
    def lack(self) -> str:
        return "has only some of its official tests" if self.sealed else ""

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "tests" in raw or "official_tests" not in raw:
            return super().normalize(raw)
        examples, checker = raw.get("examples") or (), raw.get("generated_checker") or ""
        example_texts = [
            f"Input:\n{example['input']}\nOutput:\n{example['output']}" for example in examples
        ]
        named = {name: raw.get(f"{name.lower()}_format") for name in ("Input", "Output")}
        named |= {"Examples": "\n".join(example_texts), "Note": raw.get("note")}
        texts = [f"{name}\n{text}" for name, text in named.items() if text]
        obstacles = {
            "is interactive": raw.get("interaction_format"),
            "has programs that read and write files": raw.get("input_mode") == "file",
            "has a checker that is not Python": not _is_python(checker),
        }
        columns = {
            "id": raw.get("id"),
            "question": "\n\n".join(
                filter(None, (raw.get("title"), raw.get("description"), *texts))
            ),
            "tests": [{**test, "public": test in examples} for test in raw["official_tests"] or ()],
            "checker": checker,
            "obstacle": next(filter(obstacles.get, obstacles), ""),
            "sealed": not raw.get("official_tests_complete"),
        }
        return super().normalize(columns)


_NODES = re.compile(r"\b(?:is_same_(?:list|tree)|(?:list|tree)_node)\b")


class HumanEvalRow(ContestRow):
    """HumanEval, and rows of verl whose ``ground_truth`` is JSON with such a test, as in Skywork's code data."""

    @property
    def flaw(self) -> str:
        if any(_NODES.search(test.input) for test in self.tests):
            return "has a test with lists or trees of nodes, which can't leave the program's jail"
        return super().flaw

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "test" in raw:
            prelude, name = raw["prompt"], raw["entry_point"]
            question = f"Complete the function `{name}`, and write all of it.\n\n{prelude}"
            solution = raw.get("canonical_solution")
            answer = prelude + solution if solution else ""
            test = {"test_code": raw["test"], "import_prefix": prelude, "entry_point": name}
            raw = {"id": raw["task_id"], "question": question, "answer": answer}
        elif "import_prefix" in str(raw.get("answer")):
            test = parsed_json(raw["answer"], "ground_truth")
            raw = {**raw, "answer": ""}
        else:
            return super().normalize(raw)
        columns = {"prelude": test["import_prefix"], "function": test["entry_point"]}
        tests = [{"input": test["test_code"], "output": "", "kind": "check"}]
        return super().normalize({**raw, **columns, "tests": tests})


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _test(test: Any, public: bool) -> dict[str, Any]:
    if not isinstance(test, Mapping):
        raise ValueError(f"a test is {test!r}, not an object with input and output")
    kind = test.get("testtype") or "stdin"
    return {
        "input": test.get("input"),
        "output": test.get("output"),
        "kind": kind,
        "public": public,
    }


def _private(value: Any) -> list[Any] | None:
    """Return private tests in plain or compressed JSON; ``None`` if there are others, which are not read."""
    tests = value or []
    if isinstance(tests, str):
        try:
            tests = read_json(tests)
        except ValueError:
            tests = _decompress(tests)
    return tests if isinstance(tests, list) else None


def _decompress(text: str) -> Any:
    """Parse base64 of a zlib stream of JSON, or of a pickle of JSON text; ``None`` for anything else."""
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), MOST_TESTS)
        value = json.loads(_pickled_text(data) or data) if stream.eof else None
        return json.loads(value) if isinstance(value, str) else value
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None


def _pickled_text(data: bytes) -> str | None:
    """Return the text of a pickle of one text, without executing its opcodes; ``None`` for anything else."""
    texts: list[str] = []
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                return texts[0] if len(texts) == 1 and position == len(data) - 1 else None
            if opcode.name in _TEXT_OPCODES:
                texts.append(str(argument))
            elif opcode.name not in _NO_EFFECT:
                return None
    except ValueError:  # not a pickle
        return None
    return None


_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_NO_EFFECT = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")
"""Opcodes that do nothing for a single text: the version, a length, and references to the text."""
