"""Executors of action lines: their base class, mathematics, and web pages.

In mathematics ``expressions`` evaluates calculations, sympy solves equations and inequalities in another process
(``solver_worker``) with a time limit, and the sandbox runs Python.

On a web page an action selects the candidate whose text matches its words best. Nothing is clicked: the value of an
action is an operation on an element, which :func:`score` compares with the gold operation.
"""

import ast
import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rapidfuzz import fuzz

from coterie.datasets.plans import PageElement
from coterie.tools.actions.expressions import (
    CONSTANTS,
    Failed,
    Number,
    calculate,
    format_number,
    parse,
    to_python,
)
from coterie.tools.actions.grammar import MAX_ACTIONS, Action
from coterie.tools.line_process import LineProcess
from coterie.tools.sandbox.pool import Sandbox

MAX_VALUE = 8000
"""Characters of a value; longer values are truncated."""
_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")
# A final ``s`` after three or more letters, but not ``ss``.
_PLURAL = re.compile(r"(?<=..[^s])s$")


@dataclass(frozen=True, slots=True)
class Executed:
    """Results of running actions."""

    values: Mapping[str, str]
    """New results by name, including results before an error."""
    answer: str | None
    """Value of ``Output``, else of the highest ``R``; ``None`` after an error."""
    error: str | None = None
    """Why an action failed; later actions did not run."""


SECONDS = 300.0
"""Time limit for all actions of a text, with waiting for other texts; each tool has a limit of its own."""


class Executor(ABC):
    """Base class that runs the actions of one domain."""

    @abstractmethod
    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """Run one action with the results so far; return its value. Raises :class:`Failed`."""

    async def run(self, actions: Sequence[Action], values: Mapping[str, str]) -> Executed:
        """Run actions with the results of earlier steps; return the first failure, after which nothing runs."""
        if not 0 < len(actions) <= MAX_ACTIONS:
            return Executed(
                {}, None, f"1 to {MAX_ACTIONS} actions are allowed, and there are {len(actions)}"
            )
        new: dict[str, str] = {}
        deadline = asyncio.get_running_loop().time() + SECONDS
        for action in actions:
            available = {**values, **new}
            used = [name for argument in action.arguments for name in argument.variables]
            try:
                if missing := [name for name in used if name not in available]:
                    raise Failed(f"{missing[0]} has no value")
                if not action.arguments:
                    raise Failed("it is given nothing")
                async with asyncio.timeout_at(deadline):
                    new[action.result] = (await self.do(action, available))[:MAX_VALUE]
            except (Failed, TimeoutError) as error:
                reason = str(error) or f"it takes more than {SECONDS:g} seconds"
                return Executed(new, None, f"{action.result} = {action.tool}: {reason}")
        return Executed(new, answer_of(new))


def answer_of(values: Mapping[str, str]) -> str | None:
    """Return the value of ``Output``, else of the highest ``R``, else ``None``."""
    if "Output" in values:
        return values["Output"]
    ranks = {int(name[1:]): name for name in values if name[:1] == "R" and name[1:].isdecimal()}
    return values[ranks[max(ranks)]] if ranks else None


def words_of(text: str) -> list[str]:
    """Return the lowercase words and numbers of a text, without a plural ``s``."""
    return [_PLURAL.sub("", word) for word in _WORD.findall(text.lower())]


def word_f1(text: str, second: str) -> float:
    """Return the F1 of the word multisets of two texts, in [0, 1]; 0 if one has no words."""
    a, b = words_of(text), words_of(second)
    if not a or not b:
        return 0.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def rank(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts that share a word with the query, best first, ties in order.

    A word in ``n`` of the ``N`` texts has the weight ``ln(1 + N / n)``, once per text.
    """
    sets = [set(words_of(text)) for text in texts]
    counts = Counter(word for word_set in sets for word in word_set)
    weights = {
        word: math.log(1 + len(sets) / counts[word]) for word in words_of(query) if counts[word]
    }
    scores = [
        sum(weight for word, weight in weights.items() if word in word_set) for word_set in sets
    ]
    return sorted(
        (index for index, score in enumerate(scores) if score),
        key=lambda index: (-scores[index], index),
    )


# -- mathematics --------------------------------------------------------------------------------

SOLVER_SECONDS = 5.0
_SOLVER = LineProcess(Path(__file__).with_name("solver_worker.py"), "sympy")
_NUMBER = re.compile(r"-?\d{1,400}(?:\.\d{1,400}|/\d{1,400})?")
_RESULT = re.compile(r"R\d{1,4}|Output")
_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
# Statements such as ``x = 3`` in a result like ``x = 3, y = 4``.
_SAID = re.compile(r"(?:^|[,;])\s*([A-Za-z_]\w{0,63})\s*=\s*([^=,;<>]{1,60})(?=$|[,;])")
_IS = re.compile(r"[A-Za-z_]\w{0,63} ?= ?([^=,;]{1,100})")
_SIMPLE = re.compile(r"\w+(?:\.\w+)?")
_PIECE = re.compile(r'"[^"]*"|\'[^\']*\'|.', re.DOTALL)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_AND = re.compile(r"\band\b")
# This program runs inside the sandbox.
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

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        text = action.rest(0)
        match action.tool:
            case "Calculator":
                return _evaluate(text, values)
            case "SetEquation" if not isinstance(parse(to_python(text, values.get)), ast.Compare):
                raise Failed("it states no equation")
            case "SetEquation" | "Define":
                return _substitute(text, values)
            case "SolveEquation" | "SolveInequality":
                return await _solve(action.tool, _pieces(text, values), values)
            case "Count":
                return str(len(members(_value(text, values))))
            case "Code":
                return await self._run_code(text, values)
        raise Failed("there is no such tool")

    async def _run_code(self, text: str, values: Mapping[str, str]) -> str:
        """Return the value of the last expression, else of ``answer``, ``result`` or ``output``, else the output.

        The program has the ``values`` as variables, numeric ones as numbers. Raises :class:`Failed`.
        """
        if self.sandbox is None:
            raise Failed("there is no sandbox to run it in")
        names = ", ".join(f"{name!r}: {_literal(value)}" for name, value in values.items())
        (result,) = await self.sandbox.run(_SOURCE, [f"_ran({text!r}, {{{names}}})"])
        if not result.ok:
            raise Failed(result.reason)
        value = result.value
        if value == "":
            raise Failed("the program ends without a value, and prints nothing")
        if isinstance(value, bool | str):
            return str(value)
        return format_number(Fraction(value) if isinstance(value, int) else value)


def _evaluate(text: str, values: Mapping[str, str]) -> str:
    """Return the value of a calculation; results may assign names (``x = 3``). Raises :class:`Failed`."""
    names: dict[str, Number] = dict(CONSTANTS)
    # A solution such as ``x = 3, y = 4`` gives its unknowns values for later calculations.
    for value in values.values():
        for name, formula in _SAID.findall(value[:1000]):
            with suppress(Failed):
                names[name] = calculate(formula)
    return format_number(calculate(text, values.get, names))


def members(text: str) -> list[str]:
    """Return the members of a list such as ``[1, 2, 3]`` or ``a, b``; empty for ``no solution``."""
    text = text.strip()
    if text[:1] + text[-1:] in ("[]", "{}", "()"):
        text = text[1:-1]
    return [] if text == "no solution" else split(text)


def split(text: str) -> list[str]:
    """Split at commas and semicolons outside of brackets and quotes; drop empty pieces."""
    pieces: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(text):
        depth = max(0, depth + (piece in "([{") - (piece in ")]}"))
        if piece in ",;" and not depth:
            pieces.append([])
        else:
            pieces[-1].append(piece)
    return [text for text in ("".join(piece).strip() for piece in pieces) if text]


def _pieces(text: str, values: Mapping[str, str]) -> list[str]:
    """Split statements at commas, semicolons and ``and``; replace a result's name by its statements."""
    # Commas between thousands separate nothing.
    pieces = split(_AND.sub(";", _THOUSANDS.sub("", text)))
    return [
        part
        for piece in pieces
        for part in (split(_value(piece, values)) if _RESULT.fullmatch(piece) else [piece])
    ]


def _value(text: str, values: Mapping[str, str]) -> str:
    """Return the value of a result, and other text as it is."""
    if not _RESULT.fullmatch(text):
        return text
    if text not in values:
        raise Failed(f"{text} has no value")
    return values[text]


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace names of results by their values, in brackets; of ``x = 5`` take the right side."""

    def value(name: re.Match[str]) -> str:
        value = values.get(name[0], name[0])
        if name[0] == text:
            return value
        if equation := _IS.fullmatch(value):
            value = equation[1]
        # Brackets keep the order of operations: R1 * 2, where R1 is 3 + 4.
        return value if _SIMPLE.fullmatch(value) else f"({value})"

    return re.sub(r"\b(?:R\d{1,4}|Output)\b", value, text)


async def _solve(tool: str, texts: Sequence[str], values: Mapping[str, str]) -> str:
    """Return the real solutions of a system of equations, or the range in which all inequalities hold.

    An expression without a relation is set to 0. The last text may name the unknown to solve for. Raises
    :class:`Failed`.
    """
    unknown = None
    if tool == "SolveEquation" and len(texts) > 1 and _NAME.fullmatch(texts[-1]):
        *texts, unknown = texts
    statements = [to_python(text, values.get) for text in texts]
    question = {"tool": tool, "statements": statements, "unknown": unknown}
    reply = await asyncio.to_thread(_SOLVER.ask, question, SOLVER_SECONDS)
    if reply is None:
        raise Failed(f"it takes more than {SOLVER_SECONDS:g} seconds, or too much memory, to solve")
    # Errors of the worker are messages for the model, which may correct its action.
    if "error" in reply:
        raise Failed(reply["error"])
    return str(reply["value"])


def _literal(value: str) -> str:
    if not _NUMBER.fullmatch(value):
        return repr(value)
    try:
        number = Fraction(value)
        return str(number.numerator) if number.denominator == 1 else repr(float(number))
    except (ZeroDivisionError, OverflowError):
        return repr(value)


# -- web pages ----------------------------------------------------------------------------------

CANDIDATES = 50
KINDS = ("CLICK", "TYPE", "SELECT")
_TAGS: Mapping[str, frozenset[str]] = {
    "TYPE": frozenset({"input", "textarea", "searchbox", "textbox", "combobox"}),
    "SELECT": frozenset({"select", "option", "listbox", "combobox"}),
}
_TAG_WEIGHT = 0.1
"""Weight of a tag that suits the operation; a full match of words has 1."""
_LETTER_WEIGHT = 0.5
_LEAST = 0.25
_OPERATION = re.compile(r"(CLICK|TYPE|SELECT) \[([^\]\n]*)\](?: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Gold:
    """Gold operation of a step."""

    elements: frozenset[str]
    kind: str
    value: str = ""


def choose(action: Action, candidates: Sequence[PageElement]) -> str:
    """Return the operation of an action, such as ``TYPE [13] Oslo``. Raises :class:`Failed` if no element matches."""
    kind = action.tool
    if kind not in KINDS:
        raise Failed("there is no such tool")
    texts = {argument.label: argument.text.strip() for argument in action.arguments}
    query, value = texts.get("query"), texts.get("text")
    if not query:
        raise Failed("it names no element")
    if kind != "CLICK" and not value:
        raise Failed("it names no text")
    scores = [_fit(kind, query, candidate) for candidate in candidates[:CANDIDATES]]
    # Of equal scores, the first element of the page counts.
    best = max(range(len(scores)), key=lambda index: (scores[index], -index), default=None)
    if best is None or scores[best] < _LEAST:
        raise Failed("no element of the page fits")
    operation = f"{kind} [{candidates[best].id}]"
    return operation if kind == "CLICK" else f"{operation} {value}"


def score(operation: str, gold: Gold) -> tuple[bool, bool]:
    """Return if the element and the operation are right; the step success of Deng et al. 2023 is both."""
    match = _OPERATION.fullmatch(operation)
    if match is None:
        return False, False
    same = (match[3] or "").casefold().split() == gold.value.casefold().split()
    is_right = match[1] == gold.kind and (same or gold.kind == "CLICK")
    return match[2] in gold.elements, is_right


def _fit(kind: str, query: str, element: PageElement) -> float:
    """Score a candidate by common words, then similarity of letters, then the tag."""
    text = element.text[:500]
    # A query such as ``search button`` also names the tag.
    words = word_f1(query, f"{text} {element.tag}" if element.tag in query.lower() else text)
    letters = fuzz.ratio(query.casefold(), text.casefold()) / 100
    has_tag = element.tag.lower() in _TAGS.get(kind, ())
    return words + _LETTER_WEIGHT * letters + _TAG_WEIGHT * has_tag
