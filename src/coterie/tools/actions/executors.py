"""Executors of action lines: their base class, mathematics, and web pages.

In mathematics ``expressions`` evaluates calculations, sympy solves equations and inequalities in another process
(``solver_worker``) with a time limit, and the sandbox runs Python.

On a web page an action selects the candidate whose text matches its words best. Nothing is clicked: the value of an
action is an operation on an element, which :func:`score` compares with the gold operation.
"""

import asyncio
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

from rapidfuzz import fuzz

from coterie.tools.actions.expressions import (
    CONSTANTS,
    NoValue,
    Number,
    Unreadable,
    calculate,
    format_number,
    read,
)
from coterie.tools.actions.grammar import DOMAINS, MAX_ACTIONS, Action
from coterie.tools.line_process import LineProcess
from coterie.tools.sandbox.pool import Sandbox

SECONDS = 300.0
"""Time limit for all actions of a text. Includes waiting for other actions, so it is high; each tool has its own
limit."""
MAX_VALUE = 8000
"""Characters of a value; longer values are truncated."""

_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")


class Failed(Exception):
    """An action failed. The message is for the model that wrote it."""


@dataclass(frozen=True, slots=True)
class Executed:
    """Results of running actions."""

    values: Mapping[str, str]
    """New results by name, including results before an error."""
    answer: str | None
    """Value of ``Output``, else of the highest ``R``; ``None`` after an error."""
    error: str | None = None
    """Why an action failed; later actions did not run."""


class Executor(ABC):
    """Base class that runs the actions of one domain."""

    variables: tuple[str, ...] = ()
    """Variables that are not results, such as ``Env``."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        """Time limit for all actions of one :meth:`run`."""

    @abstractmethod
    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """Run one action with the results so far; return its value. Raises :class:`Failed`."""

    async def run(self, actions: Sequence[Action], values: Mapping[str, str]) -> Executed:
        """Run the actions; stop at the first failure or at the time limit.

        ``values`` are the results of earlier steps. Failures of actions are returned, not raised.
        """
        if not actions:
            return Executed({}, None, "there is no action")
        if len(actions) > MAX_ACTIONS:
            what = f"there are {len(actions)} actions, and {MAX_ACTIONS} are allowed"
            return Executed({}, None, what)
        new: dict[str, str] = {}
        deadline = asyncio.get_running_loop().time() + self.seconds
        for action in actions:
            known = {**values, **new}
            used = [name for argument in action.arguments for name in argument.variables]
            try:
                if missing := [name for name in used if name not in {*known, *self.variables}]:
                    raise Failed(f"{missing[0]} has no value")
                async with asyncio.timeout_at(deadline):
                    new[action.result] = (await self.do(action, known))[:MAX_VALUE]
            except Failed as error:
                return Executed(new, None, f"{action.result} = {action.tool}: {error}")
            except TimeoutError:
                why = f"it takes more than {self.seconds:g} seconds"
                return Executed(new, None, f"{action.result} = {action.tool}: {why}")
        return Executed(new, answer_of(new))


def answer_of(values: Mapping[str, str]) -> str | None:
    """Return the value of ``Output``, else of the highest ``R``, else ``None``."""
    if "Output" in values:
        return values["Output"]
    ranks = {int(name[1:]): name for name in values if name[:1] == "R" and name[1:].isdecimal()}
    return values[ranks[max(ranks)]] if ranks else None


def words_of(text: str) -> list[str]:
    """Return the lowercase words and numbers of a text, without a plural ``s``."""
    words = _WORD.findall(text.lower())
    return [
        one[:-1] if len(one) > 3 and one.endswith("s") and one[-2] != "s" else one for one in words
    ]


def word_f1(first: str, second: str) -> float:
    """Return the F1 of the word multisets of two texts, in [0, 1]; 0 if one has no words."""
    a, b = words_of(first), words_of(second)
    if not a or not b:
        return 0.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def rank(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts that share a word with the query, best first, ties in order.

    A word in ``n`` of the ``N`` texts has the weight ``ln(1 + N / n)``, once per text.
    """
    sets = [set(words_of(text)) for text in texts]
    counts = Counter(word for one in sets for word in one)
    weights = {
        word: math.log(1 + len(sets) / counts[word]) for word in words_of(query) if counts[word]
    }
    scores = [sum(weight for word, weight in weights.items() if word in one) for one in sets]
    return sorted(
        (at for at, score in enumerate(scores) if score), key=lambda at: (-scores[at], at)
    )


SOLVER_SECONDS = 5.0
_SOLVER = LineProcess(Path(__file__).with_name("solver_worker.py"), "sympy")
_RATIONAL = re.compile(r"-?\d{1,4300}(?:/\d{1,4300})?")
_NUMBER = re.compile(r"-?\d{1,400}(?:\.\d{1,400}|/\d{1,400})?")
_RESULT = re.compile(r"R\d{1,4}|Output")
_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
_SAID = re.compile(r"(?:^|[,;])\s*([A-Za-z_]\w{0,63})\s*=\s*([^=,;<>]{1,60})(?=$|[,;])")
_IS = re.compile(r"[A-Za-z_]\w{0,63} ?= ?([^=,;]{1,100})")
_SIMPLE = re.compile(r"\w+(?:\.\w+)?")
_PIECE = re.compile(r'"[^"]*"|\'[^\']*\'|.', re.DOTALL)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AND = re.compile(r"\band\b")
_SOURCE = '''
import ast, contextlib, fractions, io

def _parsed(text):
    """The program; a line may spell line ends as two signs, and may stand in quotes."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = ast.parse(text.replace("\\\\n", "\\n"))
    body = tree.body
    if len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        if isinstance(body[0].value.value, str):
            return ast.parse(body[0].value.value)
    return tree

def _ran(text, names):
    tree = _parsed(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    space = {"__name__": "__main__", **names}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "<code>", "exec"), space)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<code>", "eval"), space)
    if value is None:
        for name in ("answer", "result", "output"):
            if value is None and not out.getvalue():
                value = space.get(name)
    if value is None:
        value = out.getvalue().strip()
    if isinstance(value, fractions.Fraction):
        value = str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)
'''


class MathsExecutor(Executor):
    """Executor of the domain ``maths``. Without a sandbox, ``Code`` fails."""

    def __init__(self, sandbox: Sandbox | None = None, *, seconds: float = SECONDS) -> None:
        super().__init__(seconds=seconds)
        self.sandbox = sandbox

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """See ``Executor``."""
        text = action.rest(0)
        if DOMAINS["maths"].tool(action.tool) is None:
            raise Failed("there is no such tool")
        if not action.arguments:
            raise Failed("it is given nothing")
        try:
            match action.tool:
                case "Calculator":
                    return evaluate(text, values)
                case "SetEquation":
                    if not read(text, values.get).relations:
                        raise Failed("it states no equation")
                    return _substitute(text, values)
                case "SolveEquation":
                    return await solve_equations(_pieces(text, values), values)
                case "SolveInequality":
                    return await solve_inequalities(_pieces(text, values), values)
                case "Count":
                    return str(
                        len(members(_value(text, values) if _RESULT.fullmatch(text) else text))
                    )
                case "Code":
                    return await run_code(self.sandbox, text, values)
            return _substitute(text, values)  # Define
        except (Unreadable, NoValue) as error:
            raise Failed(str(error)) from error


def evaluate(text: str, values: Mapping[str, str]) -> str:
    """Return the value of a calculation, which may use names that earlier results assign (``x = 3``).

    Raises ``Unreadable`` or ``NoValue``.
    """
    return format_number(calculate(text, values.get, {**CONSTANTS, **_assignments(values)}))


def members(text: str) -> list[str]:
    """Return the members of a list such as ``[1, 2, 3]`` or ``a, b``; empty for ``no solution``."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "{}", "()"):
        text = text[1:-1]
    if not text.strip() or text == "no solution":
        return []
    return split(text)


def split(text: str) -> list[str]:
    """Split at commas and semicolons outside of brackets and quotes; drop empty pieces."""
    pieces = [""]
    depth = 0
    for piece in _PIECE.findall(text):
        depth = max(0, depth + (piece in "([{") - (piece in ")]}"))
        if piece in ",;" and not depth:
            pieces.append("")
        else:
            pieces[-1] += piece
    return [one.strip() for one in pieces if one.strip()]


def _assignments(values: Mapping[str, str]) -> dict[str, Number]:
    """Return the names that earlier results assign a number to; the last assignment counts."""
    numbers: dict[str, Number] = {}
    for value in values.values():
        for name, text in _SAID.findall(value[:1000]):
            try:
                numbers[name] = calculate(text)
            except (Unreadable, NoValue):
                continue
    return numbers


def _pieces(text: str, values: Mapping[str, str]) -> list[str]:
    """Split statements at commas, semicolons and ``and``; replace a result's name by its statements."""
    pieces = [
        one
        for piece in split(_AND.sub(";", _THOUSANDS.sub("", text)))
        for one in (split(_value(piece, values)) if _RESULT.fullmatch(piece) else [piece])
    ]
    if not pieces:
        raise Unreadable("it is given nothing")
    return pieces


def _value(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise NoValue(f"{name} has no value")
    return values[name]


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace names of results by their values, in brackets; of ``x = 5`` take the right side."""
    return re.sub(
        r"\b(?:R\d{1,4}|Output)\b",
        lambda name: values.get(name[0], name[0]) if name[0] == text else _inner(name[0], values),
        text,
    )


def _inner(name: str, values: Mapping[str, str]) -> str:
    value = values.get(name, name)
    if equation := _IS.fullmatch(value):
        value = equation[1]
    return value if _SIMPLE.fullmatch(value) else f"({value})"


# -- equations and inequalities -----------------------------------------------------------------


async def solve_equations(texts: Sequence[str], values: Mapping[str, str]) -> str:
    """Return the real solutions of a system of equations; an expression without a relation is set to 0.

    One unknown: ``7``, or ``-2, 2``. Several: ``x = 3, y = 4``, with ``;`` between solutions. The last text may name
    the unknown to solve for. Raises ``Unreadable`` or ``NoValue``.
    """
    unknown = None
    if len(texts) > 1 and _NAME.fullmatch(texts[-1]) and not _RESULT.fullmatch(texts[-1]):
        *texts, unknown = texts
    reply = await _ask_solver("equations", texts, values, unknown)
    solutions: list[dict[str, str]] = reply["solutions"]
    if all(len(one) == 1 for one in solutions):
        numbers = [value for one in solutions for value in one.values()]
        return ", ".join(map(_number, dict.fromkeys(numbers)))
    return "; ".join(
        ", ".join(f"{name} = {_number(value)}" for name, value in one.items()) for one in solutions
    )


async def solve_inequalities(texts: Sequence[str], values: Mapping[str, str]) -> str:
    """Return the range in which all hold: ``(-2, 2]``, unions with ``U``, points as ``{3}``, or ``no solution``.

    Raises ``Unreadable`` or ``NoValue``.
    """
    reply = await _ask_solver("inequalities", texts, values, None)
    return " U ".join(map(_piece, reply["pieces"])) or "no solution"


async def _ask_solver(
    ask: str, texts: Sequence[str], values: Mapping[str, str], unknown: str | None
) -> dict[str, Any]:
    read_texts = [read(text, values.get) for text in texts]
    statements = [(one.sides, one.relations) for one in read_texts]
    question = json.dumps({"ask": ask, "statements": statements, "unknown": unknown})
    line = await asyncio.to_thread(_SOLVER.ask, question, SOLVER_SECONDS)
    if line is None:
        raise NoValue(
            f"it takes more than {SOLVER_SECONDS:g} seconds, or too much memory, to solve"
        )
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise NoValue(reply["error"])
    return reply


def _piece(piece: dict[str, Any]) -> str:
    if "only" in piece:
        return f"{{{_number(piece['only'])}}}"
    left, right = piece["open"]
    ends = f"{_number(piece['from'])}, {_number(piece['to'])}"
    return f"{'(' if left else '['}{ends}{')' if right else ']'}"


def _number(text: str) -> str:
    """Format a number; return other text unchanged."""
    if _RATIONAL.fullmatch(text):
        return format_number(Fraction(text))
    if text in ("inf", "-inf"):
        return text.replace("inf", "oo")
    try:
        return format_number(float(text))
    except ValueError:
        return text


# -- Python -------------------------------------------------------------------------------------


async def run_code(sandbox: Sandbox | None, text: str, values: Mapping[str, str]) -> str:
    """Return the value of a program's last expression, else of ``answer``, ``result`` or ``output``, else its output.

    The program has the ``values`` as variables, numeric ones as numbers. Raises :class:`Failed`.
    """
    if sandbox is None:
        raise Failed("there is no sandbox to run it in")
    names = ", ".join(f"{name!r}: {_literal(value)}" for name, value in values.items())
    (result,) = await sandbox.run(_SOURCE, [f"_ran({text!r}, {{{names}}})"])
    if not result.ok:
        raise Failed(result.reason)
    text = _text(result.value)
    if not text:
        raise Failed("the program ends without a value, and prints nothing")
    return text


def _text(value: bool | int | float | str) -> str:
    if isinstance(value, bool | str):
        return str(value)
    try:
        return format_number(Fraction(value) if isinstance(value, int) else value)
    except NoValue as error:
        raise Failed(str(error)) from error


def _literal(value: str) -> str:
    if not _NUMBER.fullmatch(value):
        return repr(value)
    try:
        number = Fraction(value)
        return str(number.numerator) if number.denominator == 1 else repr(float(number))
    except (ZeroDivisionError, OverflowError):
        return repr(value)


CANDIDATES = 50
"""Number of leading candidates that are considered."""
Kind = Literal["CLICK", "TYPE", "SELECT"]
_TAGS: Mapping[str, frozenset[str]] = {
    "TYPE": frozenset({"input", "textarea", "searchbox", "textbox", "combobox"}),
    "SELECT": frozenset({"select", "option", "listbox", "combobox"}),
}
_TAG_WEIGHT = 0.1
"""Weight of a tag that suits the operation; a full match of words has 1."""
_LETTER_WEIGHT = 0.5
"""Weight of the similarity of letters."""
_LEAST = 0.25
_OPERATION = re.compile(r"(CLICK|TYPE|SELECT) \[([^\]\n]*)\](?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Element:
    """Candidate element. Candidates are ordered by a ranker."""

    id: str
    """Id without ``]``."""
    tag: str
    text: str
    """Text, label and placeholder."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation on an element."""

    kind: Kind
    element: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind} [{self.element}] {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class Gold:
    """Gold operation of a step."""

    elements: frozenset[str]
    kind: Kind
    value: str = ""


@dataclass(frozen=True, slots=True)
class StepScore:
    """Score of a step."""

    element: bool
    operation: bool
    """True if the kind and the value are correct."""

    @property
    def success(self) -> bool:
        """Step success of Deng et al. 2023: element and operation are correct."""
        return self.element and self.operation


class WebExecutor(Executor):
    """Executor of the domain ``web``. Each value is an operation as text (:func:`read_operation`)."""

    variables = ("Env",)

    def __init__(self, candidates: Sequence[Element], *, seconds: float = SECONDS) -> None:
        super().__init__(seconds=seconds)
        self.candidates = tuple(candidates[:CANDIDATES])

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """See ``Executor``."""
        return str(choose(action, self.candidates))


def choose(action: Action, candidates: Sequence[Element]) -> Operation:
    """Return the operation of an action. Raises :class:`Failed` if no element matches."""
    if action.tool not in get_args(Kind):
        raise Failed("there is no such tool")
    kind: Kind = action.tool  # type: ignore[assignment]
    by_label = {one.label: one.text for one in action.arguments}
    query, value = by_label.get("query", "").strip(), by_label.get("text", "").strip()
    if not query:
        raise Failed("it names no element")
    if kind != "CLICK" and not value:
        raise Failed("it names no text")
    scores = [_fit(kind, query, one) for one in candidates]
    best = max(range(len(scores)), key=lambda at: (scores[at], -at), default=None)
    if best is None or scores[best] < _LEAST:
        raise Failed("no element of the page fits")
    return Operation(kind, candidates[best].id, "" if kind == "CLICK" else value)


def read_operation(text: str) -> Operation | None:
    """Parse a value of a ``WebExecutor``; ``None`` for other text."""
    match = _OPERATION.fullmatch(text)
    return Operation(match[1], match[2], match[3] or "") if match else None  # type: ignore[arg-type]


def score(done: Operation | None, gold: Gold) -> StepScore:
    """Compare an operation with the gold one; values ignore case and spacing. ``None`` is wrong."""
    if done is None:
        return StepScore(False, False)
    same = done.value.casefold().split() == gold.value.casefold().split()
    correct = done.kind == gold.kind and (same or gold.kind == "CLICK")
    return StepScore(done.element in gold.elements, correct)


def _fit(kind: str, query: str, element: Element) -> float:
    """Score a candidate by common words, then similarity of letters, then the tag."""
    text = element.text[:500]
    words = (
        word_f1(query, f"{text} {element.tag}")
        if element.tag in query.lower()
        else word_f1(query, text)
    )
    letters = fuzz.ratio(query.casefold(), text.casefold()) / 100
    return (
        words
        + _LETTER_WEIGHT * letters
        + _TAG_WEIGHT * (element.tag.lower() in _TAGS.get(kind, ()))
    )
