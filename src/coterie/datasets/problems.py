"""Typed rows of MATH, other mathematics, SVAMP and multiple-choice sets; options, boxed answers and arithmetic."""

import ast
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import add, mul, sub, truediv
from typing import Any, ClassVar

from pydantic import Field, model_validator

from coterie.datasets.columns import is_empty, peek
from coterie.datasets.rows import (
    ANSWER_KEYS,
    IMAGE,
    AnswerRow,
    Keys,
    Label,
    QuestionRow,
    Raw,
    as_text,
    kind_of,
    parsed_json,
    question_key,
    with_options,
)

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(\{)?")
_BARE = re.compile(r"[-+]?[\d.\\][^\s$]*|[a-zA-Z](?=\s*(?:\$|\Z))")
"""Content of a box without braces: a number, a command, or a letter at the end of the formula."""


def boxed_answer(text: str) -> str | None:
    r"""Return the stripped content of the last non-empty box with matching braces; ``None`` without a box.

    Unclosed boxes are ignored. ``\fbox{...}`` and ``\boxed 5``, which occur in MATH's solutions, count as boxes.
    """
    boxes = list(_BOX.finditer(text))
    ends = _ends(text) if boxes else {}
    # The last box is the answer; earlier ones often mark intermediate results.
    contents = (_content(text, box, ends) for box in reversed(boxes))
    return next(filter(None, contents), None)


def _content(text: str, box: re.Match[str], ends: Mapping[int, int]) -> str | None:
    if box[1] is None:
        bare = _BARE.match(text, box.end())
        return bare[0] if bare else None
    end = ends.get(box.start(1))
    return None if end is None else text[box.end() : end].strip()


def _ends(text: str) -> dict[int, int]:
    """Match all braces in one pass, since a text may open thousands. Return closing by opening positions."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for brace in re.finditer(r"\\.|[{}]", text, re.DOTALL):  # \{ is a symbol, not a brace
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
"""Largest exponent, and the maximum number of digits of its base."""


def number(text: str) -> Fraction | None:
    """Parse a number such as ``1,200``, ``$3.50`` or ``1/3``; ``None`` for other text."""
    text = text.strip().rstrip(".")
    try:
        if _NUMBER.fullmatch(text):
            return Fraction(text.replace(",", "").replace("$", ""))
        return Fraction(text) if "/" in text else None
    except (ValueError, ZeroDivisionError):
        return None


def parse_formula(formula: str) -> ast.Expression:
    """Parse a formula as a Python expression. Raise ``ValueError`` for other text."""
    # Python parses neither percentages nor leading zeros, which upstream's formulas have.
    text = _ZEROS.sub("", _PERCENT.sub(r"(\1 / 100)", formula.strip()))
    try:
        return ast.parse(text, mode="eval")
    # A very long or deeply nested text exhausts the parser, and is no formula either.
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{formula!r} is not a formula") from error


def value(formula: str, results: Mapping[str, Fraction] | None = None) -> Fraction:
    """Compute a formula. ``results`` are the values of its names.

    Raises ``ValueError`` for text that is not arithmetic, an unknown name, a division by zero, and an exponent that is
    not an integer from 0 to 64.
    """
    return _value(parse_formula(formula).body, results or {})


def _value(node: ast.expr, results: Mapping[str, Fraction]) -> Fraction:
    # Only arithmetic is evaluated, because a model may have written the formula. Fractions are
    # exact.
    match node:
        case ast.Constant(value=int() | float() as constant) if not isinstance(constant, bool):
            return Fraction(repr(constant))
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
    # A tower of powers would take unbounded time and memory.
    is_small = len(str(base)) <= MOST
    if exponent.denominator != 1 or not 0 <= exponent <= MOST or not is_small:
        raise ValueError(f"the power {base} ** {exponent} is not worked out")
    return base ** int(exponent)


LETTERS = "ABCDEFGHIJ"
EMPTY = "its answer is empty"


class MathRow(QuestionRow):
    r"""MATH: a competition problem and its solution, whose last ``\boxed{...}`` is the answer.

    Rows may have an explicit ``answer``, with or without a solution.
    """

    answer: str
    """Answer as LaTeX; empty in one row of upstream."""
    solution: str = ""

    @property
    def flaw(self) -> str:
        return "" if self.answer.strip() else EMPTY

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "problem" not in raw:
            return raw
        problem, solution, answer = raw["problem"], raw.get("solution") or "", raw.get("answer")
        if answer is None and isinstance(solution, str):
            answer = boxed_answer(solution) or ""
            # Upstream has a solution with an empty box, which is a flaw; a solution without any box
            # is an error.
            if "\\boxed" not in solution and not answer:
                raise ValueError(r"its solution has no \boxed{answer}")
        values = {"question": problem, "answer": answer, "solution": solution}
        return {"id": question_key(problem), **values}


class ExamRow(AnswerRow, MathRow):
    """Mathematics problem with an answer as LaTeX and an optional solution, as in MATH-500 and OlympiadBench."""

    keys: ClassVar[Mapping[str, Keys]] = {
        **ANSWER_KEYS,
        "level": ("level", "difficulty"),
        "subject": ("subject", "subfield"),
    }
    answer: str
    subject: Label = ""
    level: Label = ""
    image: bool = False

    @property
    def flaw(self) -> str:
        return IMAGE if self.image else EMPTY * (not self.answer.strip())

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        """Join several final values (OlympiadBench) into one answer, and keep the first solution."""
        final, solution = raw.get("final_answer"), raw.get("solution")
        if isinstance(final, list | tuple):
            final = ", ".join(str(as_text(part)) for part in final)
        if isinstance(solution, list | tuple):
            solution = next(iter(solution), "")
        # Some sets have the images of a problem in columns such as `image_1`.
        image = raw.get("image") or any(raw[name] for name in raw if name.startswith("image_"))
        values = {"final_answer": final, "solution": solution, "image": bool(image)}
        return super().normalize({**raw, **values})


class SvampRow(QuestionRow):
    """SVAMP: short word problems with misleading numbers and wording.

    Upstream's ``Body`` is the story and ``Question`` the question; the answer is a number.
    """

    equation: str = ""

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "Body" not in raw:
            return raw
        body, question, answer = (raw[name] for name in ("Body", "Question", "Answer"))
        result = number(str(answer))
        if result is None:
            raise ValueError(f"its Answer {answer!r} is not a number")
        body, question = body.strip(), question.strip()
        story = f"{body} {question}"
        if not body.endswith((".", "?", "!")):  # some stories end in the middle of a sentence
            story = f"{body.rstrip(',')}, {question[:1].lower()}{question[1:]}"
        return {
            "id": raw.get("ID"),
            "question": story,
            # Upstream writes integers as `8.0`.
            "answer": str(result) if result.denominator == 1 else str(float(result)),
            "equation": str(raw.get("Equation", "")).strip(),
        }


# -- questions with options ------------------------------------------------------------------------

OPTION_KEYS = (
    "answerkey", "answer_key", "answer_idx", "answer_index", "correct_option", "correct_choice", "correct", "cop",
    "correct_answer", "correct answer", "correct_answer_id", "label", "answer", "target", "gold",
)  # fmt: skip
"""Usual names of the column that says which option is right."""
ORDERS = LETTERS, "0123456789", "123456789"
_WRONG = re.compile(r"(distractor|incorrect[ _]answer)s?[ _]?\d*", re.IGNORECASE)
_OPTION = re.compile(r"(?:(op|option|choice|sol|answer|ending)_?([a-j]|\d)|([A-J]))", re.IGNORECASE)
"""Column of one option, such as ``opa``, ``option1``, ``answerA``, ``sol2``, ``ending0`` or ``A``."""
_INDEX = re.compile(r"[A-J]|\d")
_LETTERED = re.compile(r"\(?([A-J]) ?[).:]\s*(\S.*)", re.DOTALL)
"""Option that begins with its letter, such as ``A) 21``."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a question."""

    values: tuple[Any, ...]
    """Options in the order in which they are shown."""
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    in_columns: bool = False
    """True for a column for each option. Its labels are texts; a number counts the options from 0."""

    @property
    def texts(self) -> tuple[str, ...]:
        texts = tuple(map(as_text, self.values))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"its {', '.join(self.columns)} are not texts")
        return texts

    def right(self, value: Any, column: str) -> str:
        """Return the right option, which a column gives as a label, an index or a text.

        Raises ``ValueError`` for any other value.
        """
        text, is_number = str(as_text(value)).strip(), isinstance(value, int | float)
        label, index = text.strip("(). ").upper(), -1
        # Types are compared too, because `True == 1` in Python.
        same = [type(option) is type(value) and option == value for option in self.values]
        # A number in a set with a column for each option is an index and not a label.
        if label in self.labels and not (self.in_columns and is_number):
            index = self.labels.index(label)
        elif any(same):
            index = same.index(True)
        elif text.isdecimal() and not isinstance(value, bool):
            # A text counts from 0 in HellaSwag, and from 1 in SIQA, whose options are the columns answerA to answerC.
            index = int(text) - (self.in_columns and not is_number)
        if not 0 <= index < len(self.values):
            raise ValueError(f"its {column} {value!r} is none of the options in {self.columns}")
        return self.texts[index]


def read_options(row: Raw, question: str) -> Options | None:
    """Return the options of a row in any of the published forms; ``None`` without options."""
    # Of columns that differ only in case, the first one counts.
    filled = {name.lower(): name for name in reversed([*row]) if not is_empty(peek(row, name))}
    right = filled.get("correct_answer") or filled.get("correct answer")
    wrong = [name for name in filled.values() if _WRONG.fullmatch(name)]
    if right and wrong:  # GPQA, SciQ: without an order of their own
        values = [row[right]]
        # The names were collected in reverse order.
        for name in reversed(wrong):
            values += row[name] if isinstance(row[name], list) else [row[name]]
        # The order depends only on the question, so it is equal in every run and does not reveal
        # the answer.
        random.Random(question_key(question)).shuffle(values)
        return Options(tuple(values), columns=(right, *wrong))
    lists = ["choices", "choice", "options", "endings"]
    # A list called `answers` holds options only if another column marks the right one.
    marks = [peek(row, filled[key]) for key in OPTION_KEYS if key in filled]
    is_marked = right or ("answer" not in filled and any(map(_INDEX.fullmatch, map(str, marks))))
    if is_marked and isinstance(peek(row, filled.get("answers", "")), list):
        lists.append("answers")  # ReClor, QuAIL; otherwise all of them are right
    for name in (filled[name] for name in lists if name in filled):
        return _listed(parsed_json(row[name], f"its {name}"), name)
    # Options with a column each share a prefix, such as `option_a` to `option_d`.
    families = defaultdict[str, dict[str, str]](dict)
    for name in filled.values():
        if (match := _OPTION.fullmatch(name)) and (match[1] or name.isupper()):
            families[(match[1] or "").lower()][(match[2] or match[3]).upper()] = name
    for family in families.values():
        labels = "".join(sorted(family))
        # A gap in the letters or digits shows that the columns are no options.
        if len(labels) > 1 and any(order.startswith(labels) for order in ORDERS):
            columns = tuple(family[label] for label in labels)
            return Options(tuple(row[name] for name in columns), tuple(labels), columns, True)
    return None


def _listed(value: Any, column: str) -> Options:
    """Return options in one column: texts, texts with labels, or texts by label."""
    labels: Iterable[Any] = LETTERS
    # A list of objects with texts and labels becomes two parallel lists, the form of ARC.
    if isinstance(value, list) and all(isinstance(item, dict) and "text" in item for item in value):
        value = {name: [item.get(name) for item in value] for name in ("text", "label")}
    if isinstance(value, dict):
        texts, names = value.get("text"), value.get("label")
        # Else the keys are labels. Parquet adds a null for each label that only other rows have.
        by_label = {name: text for name, text in value.items() if text is not None}
        value, labels = (texts, names) if texts and names else ([*by_label.values()], by_label)
    if not isinstance(value, list | tuple):
        raise ValueError(f"its {column} is {kind_of(value)}, not a list of options")
    # Letters in front of the options are labels and no part of the texts, if they count from A.
    lettered = [_LETTERED.fullmatch(text) if isinstance(text, str) else None for text in value]
    if all(lettered) and [match and match[1] for match in lettered] == [*LETTERS[: len(value)]]:
        value = [match and match[2] for match in lettered]
    return Options(tuple(value), tuple(str(label).upper() for label in labels), (column,))


def usual_name(row: Raw, names: Keys) -> str:
    """Return the first of usual names, in any case, that a row has with a value, else without, else the first one."""
    columns = {name.lower(): name for name in reversed([*row])}
    present = [columns[name] for name in names if name in columns]
    filled = (name for name in present if not is_empty(peek(row, name)))
    return next(filled, present[0] if present else names[0])


class ChoiceRow(QuestionRow):
    """Multiple-choice question; ``answer`` is the text of the right option.

    ARC has options as ``{text, label}`` and an ``answerKey``. MMLU has a list of options and the index or letter of the
    right option; the id is a hash of question and options.
    """

    answer: str
    """Text of the right option; empty in a few rows of upstream."""
    choices: tuple[str, ...] = Field(min_length=2)

    @property
    def key(self) -> str:
        """Hash of the question and its options in any order, since options differ for equal questions."""
        return _key(self.question, self.choices)

    @property
    def shown_question(self) -> str:
        return with_options(self.question, self.choices)

    @property
    def flaw(self) -> str:
        return "" if self.answer.strip() else EMPTY

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if set(raw) == {"train"} and isinstance(raw["train"], Mapping):
            raw = raw["train"]  # rows of MMLU's auxiliary_train are nested
        question, column = str(raw.get("question")), usual_name(raw, OPTION_KEYS)
        options = read_options(raw, question)
        if options is None or ("id" in raw and "answerKey" not in raw):  # our own form
            return raw
        right, texts = options.right(raw.get(column), column), options.texts
        return {"id": _key(question, texts), **raw, "choices": texts, "answer": right}

    @model_validator(mode="after")
    def _answerable(self) -> "ChoiceRow":
        if self.answer not in self.choices:
            raise ValueError(f"its answer {self.answer!r} is not among the choices")
        return self


def _key(question: str, choices: Iterable[str]) -> str:
    return question_key("\n".join((question, *sorted(choices))))
