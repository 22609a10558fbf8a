"""Typed rows of MATH, SVAMP and multiple-choice sets (ARC, MMLU); boxed answers, and arithmetic with fractions."""

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any

from pydantic import Field, model_validator

from coterie.datasets.rows import QuestionRow, from_verl, question_key

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE = re.compile(r"[-+]?[\d.\\][^\s$]*|[a-zA-Z](?=\s*(?:\$|\Z))")
"""What stands in a box without braces: a number, a command, or a letter that ends the formula."""


def boxed_answer(text: str) -> str | None:
    r"""The content of the last box that has some, braces matched, stripped; ``None`` if there is none.

    A box that is never closed, as in talk about the box, is none and hides none. ``\fbox{...}`` is a
    box too, and so is ``\boxed 5`` (MATH's own solutions have both).
    """
    boxes = list(_BOX.finditer(text))
    ends = _ends(text) if boxes else {}
    return next((found for box in reversed(boxes) if (found := _content(text, box, ends))), None)


def _content(text: str, box: re.Match[str], ends: Mapping[int, int]) -> str | None:
    if box[1] is None:
        bare = _BARE.match(text, box.end())
        return bare[0] if bare else None
    end = ends.get(box.start(1))
    return None if end is None else text[box.end() : end].strip()


def _ends(text: str) -> dict[int, int]:
    """Where each brace that is closed is closed; found at once, for a text may open thousands."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):  # \{ is a sign, not a brace
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            ends[opened.pop()] = brace.start()
    return ends


_NUMBER = re.compile(r"[-+]?\$?(\d[\d,]*\.?\d*|\.\d+)")
_PERCENT = re.compile(r"(\d+\.?\d*|\.\d+)\s*%")
_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.Div: truediv,
}
MOST = 64
"""The largest exponent, and the largest number of digits that a base may have with one."""


def number(text: str) -> Fraction | None:
    """The number that a text is, such as ``1,200``, ``$3.50`` or ``1/3``; ``None`` if it is not one."""
    text = text.strip().rstrip(".")
    try:
        if _NUMBER.fullmatch(text):
            return Fraction(text.replace(",", "").replace("$", ""))
        return Fraction(text) if "/" in text else None
    except (ValueError, ZeroDivisionError):
        return None


def parsed(formula: str) -> ast.Expression:
    """A formula as a tree of Python. Raises ``ValueError`` if it is none."""
    text = _ZEROS.sub("", _PERCENT.sub(r"(\1 / 100)", formula.strip()))
    try:
        return ast.parse(text, mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{formula!r} is not a formula") from error


def value(formula: str, results: Mapping[str, Fraction] | None = None) -> Fraction:
    """What a formula comes to. ``results`` are the values of its names.

    Raises ``ValueError`` for what is no arithmetic, a name without a value, a division by zero and an exponent that is
    not a whole number from 0 to 64.
    """
    return _value(parsed(formula).body, results or {})


def _value(node: ast.expr, results: Mapping[str, Fraction]) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as found) if not isinstance(found, bool):
            return Fraction(repr(found))
        case ast.Name(id=name) if name in results:
            return results[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, results)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, results)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, results), _value(right, results))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            try:
                return _OPERATORS[type(op)](_value(left, results), _value(right, results))
            except ZeroDivisionError as error:
                raise ValueError(f"{ast.unparse(node)} divides by zero") from error
    raise ValueError(f"{ast.unparse(node)} is no arithmetic of known numbers")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    small = len(str(base)) <= MOST
    if exponent.denominator != 1 or not 0 <= exponent <= MOST or not small:
        raise ValueError(f"the power {base} ** {exponent} is not worked out")
    return base ** int(exponent)


LETTERS = "ABCDEFGHIJ"
EMPTY = "its answer is empty"


class MathRow(QuestionRow):
    r"""MATH: a competition problem and its worked solution, whose last ``\boxed{...}`` is the answer.

    Upstream calls the question ``problem`` and has no id (a hash of the question is taken). Copies
    that state the ``answer`` are read as well, with or without a solution.
    """

    answer: str
    """As LaTeX; upstream has a problem whose box is empty."""
    solution: str = ""

    @property
    def flaw(self) -> str:
        """Nobody can give an empty answer."""
        return "" if self.answer.strip() else EMPTY

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        value = from_verl(value)
        if not isinstance(value, Mapping) or "problem" not in value:
            return value
        problem, solution = value["problem"], value.get("solution") or ""
        answer = value.get("answer")
        if answer is None and isinstance(solution, str):
            answer = boxed_answer(solution) or ""
            if "\\boxed" not in solution and not answer:
                raise ValueError(r"its solution has no \boxed{answer}")
        id_ = question_key(problem) if isinstance(problem, str) else "unknown"
        return {"id": id_, "question": problem, "answer": answer, "solution": solution}


class SvampRow(QuestionRow):
    """SVAMP: a short word problem, whose numbers and wording tempt to a wrong operation.

    Upstream has the story as ``Body`` and what is asked as ``Question``; the answer is a number.
    """

    equation: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "Body" not in value:
            return value
        body, asked, answer = (value.get(name) for name in ("Body", "Question", "Answer"))
        if not isinstance(body, str) or not isinstance(asked, str):
            raise ValueError("expected texts 'Body' and 'Question'")
        found = number(str(answer))
        if found is None:
            raise ValueError(f"its Answer {answer!r} is not a number")
        return {
            "id": value.get("ID"),
            "question": _story(body.strip(), asked.strip()),
            "answer": str(found) if found.denominator == 1 else str(float(found)),
            "equation": str(value.get("Equation", "")).strip(),
        }


def _story(body: str, asked: str) -> str:
    """A story and its question; many a story ends in the middle of a sentence."""
    if body.endswith((".", "?", "!")):
        return f"{body} {asked}"
    return f"{body.rstrip(',')}, {asked[:1].lower()}{asked[1:]}"


class ChoiceRow(QuestionRow):
    """A question with options, of which one is right; ``answer`` is that option's text.

    Upstream's ARC has options as ``{text, label}`` and an ``answerKey``; MMLU has a list, and the
    place of the right one as a number or a letter, and no id (a hash of question and options is taken).
    """

    answer: str
    """The text of the right option; a few of upstream's are empty."""
    choices: tuple[str, ...] = Field(min_length=2)

    @property
    def key(self) -> str:
        """Of the question and its options in any order: the same stem is asked with others."""
        return _key(self.question, self.choices)

    @property
    def flaw(self) -> str:
        """Nobody can give an empty answer."""
        return "" if self.answer.strip() else EMPTY

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        if set(value) == {"train"} and isinstance(value["train"], Mapping):
            value = value["train"]  # so MMLU's configuration auxiliary_train has them
        if "answerKey" in value:
            return _arc(value)
        if "id" not in value and isinstance(value.get("choices"), list | tuple):
            return _mmlu(value)
        return value

    @model_validator(mode="after")
    def _answerable(self) -> "ChoiceRow":
        if self.answer not in self.choices:
            raise ValueError(f"its answer {self.answer!r} is not among the choices")
        return self


def _arc(value: Mapping[str, Any]) -> dict[str, Any]:
    question: Any = value.get("question")
    choices: Any = value.get("choices")
    if isinstance(question, Mapping):  # AI2's own files
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, list) and all(isinstance(one, Mapping) for one in choices):
        choices = {name: [one.get(name) for one in choices] for name in ("text", "label")}
    if not isinstance(choices, Mapping) or not {"text", "label"} <= choices.keys():
        raise ValueError("expected choices with 'text' and 'label'")
    texts, labels, right = list(choices["text"]), list(choices["label"]), value["answerKey"]
    if len(texts) != len(labels) or right not in labels:
        raise ValueError(f"answerKey {right!r} is not among the labels {labels}")
    known = {"choices": texts, "answer": texts[labels.index(right)]}
    rest = {name: value[name] for name in ("id", "_id") if name in value}
    return rest | known | ({} if question is None else {"question": question})


def _mmlu(value: Mapping[str, Any]) -> dict[str, Any]:
    question, choices, right = value.get("question"), list(value["choices"]), value.get("answer")
    if isinstance(right, str) and right in LETTERS and len(right) == 1:
        right = LETTERS.index(right)
    if not isinstance(right, int) or isinstance(right, bool) or not 0 <= right < len(choices):
        raise ValueError(f"answer {right!r} is neither a letter nor a number of a choice")
    whole = isinstance(question, str) and all(isinstance(one, str) for one in choices)
    id_ = _key(str(question), choices) if whole else "unknown"
    return {**value, "id": id_, "choices": choices, "answer": choices[right]}


def _key(question: str, choices: Any) -> str:
    return question_key("\n".join((question, *sorted(choices))))
