"""Grammar of action lines such as ``R1 = Calculator(48 / 2); R2 = Calculator(R1 + 48)``, and the tools of each domain.

An action is ``RESULT = Tool(arguments)``. Actions are separated by ``;`` or line ends outside of brackets and quotes.
Arguments are separated by commas outside of inner brackets and quotes. A label (``Query: ...``) makes an argument free
text, which continues over commas to the next label or the end. A ``'`` opens a quote only if no letter precedes it and
the quote is closed on the same line, so apostrophes are text.

A model writes the text, so parsing never raises, and its time is linear in the length.

Names of domains and tools follow Yin et al. 2024. Results are named ``R1``, ``R2``, ... in any order, or ``Output``.
Each name is set once before it is used.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from coterie.errors import UserError, did_you_mean

MAX_CHARACTERS = 4000
"""Limit on the length of a text; a longer one is a single problem."""

MAX_ACTIONS = 32

_SPACES = re.compile(r"[\s;]*")
_HEADER = re.compile(
    r"(?P<result>[A-Za-z_]\w{0,63})[ \t]*=[ \t]*(?P<tool>[A-Za-z_]\w{0,63})[ \t]*\("
)
_BEGINS = re.compile(r"[;\n]\s{0,80}(?=(?:R\d{1,4}|Output)[ \t]*=[ \t]*[A-Za-z_]\w*[ \t]*\()")
_SEPARATOR = re.compile(r"[;\n]")
_TAIL = re.compile(r"[ \t\r.]*(?=[;\n]|\Z)")
_MARK = re.compile(r'"[^"\n]*"|(?<![\w)\]}])\'[^\'\n]*\'(?!\w)|[()\[\]{},]')
_LABEL = re.compile(r"(query|question|text)[ \t]*:\s*", re.IGNORECASE)
_RESULT = re.compile(r"\bR\d{1,4}\b")
_NAME = r"(?:R\d{1,4}|Env|Output)"
_NAMES_ONLY = re.compile(rf"\[?\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\]?")
_OPENERS = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument of an action."""

    text: str
    label: str
    """Lowercase label; empty for none."""
    variables: tuple[str, ...]
    """Results (``R3``) that it names, each once; ``Env`` and ``Output`` only if the argument has no other text."""
    start: int
    stop: int
    """Range of characters in the whole text, including the label; ``stop`` is exclusive."""


@dataclass(frozen=True, slots=True)
class Action:
    """Call of a tool, with the name of its result."""

    result: str
    tool: str
    arguments: tuple[Argument, ...]
    text: str
    start: int
    stop: int

    def rest(self, place: int) -> str:
        """Return the text of all arguments from index ``place`` on, with their commas."""
        arguments = self.arguments[place:]
        if not arguments:
            return ""
        begin = arguments[0].stop - len(arguments[0].text)
        return self.text[begin - self.start : arguments[-1].stop - self.start]


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a text, with its range of characters; ``stop`` is exclusive."""

    what: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """Actions in order, and problems by position."""

    actions: tuple[Action, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def parse(text: str) -> Parsed:
    """Parse a text that a model wrote, without raising. An empty text has no actions and no problems."""
    if len(text) > MAX_CHARACTERS:
        what = f"the text has {len(text):,} characters, and {MAX_CHARACTERS:,} are allowed"
        return Parsed((), (Problem(what, 0, len(text)),))
    return _Reader(text).read()


@dataclass(frozen=True, slots=True)
class _Marks:
    """Positions of brackets and commas outside of quotes."""

    closing: dict[int, int]
    commas: dict[int, list[int]]
    """Commas directly inside of each opening bracket."""
    unmatched: list[int]
    """Unmatched brackets, in order."""


def _marks(text: str, begins: list[int]) -> _Marks:
    marks = _Marks({}, {}, [])
    stack: list[int] = []
    open_now = dict.fromkeys("([{", 0)
    for at, sign in _signs(text, begins):
        if sign in open_now:
            stack.append(at)
            open_now[sign] += 1
        elif sign == ",":
            if stack:
                marks.commas.setdefault(stack[-1], []).append(at)
        elif not open_now[_OPENERS[sign]]:
            marks.unmatched.append(at)
        else:
            while True:
                opened = stack.pop()
                open_now[text[opened]] -= 1
                if text[opened] == _OPENERS[sign]:
                    break
                marks.unmatched.append(opened)
            marks.closing[opened] = at
    marks.unmatched.extend(stack)
    marks.unmatched.sort()
    return marks


def _signs(text: str, begins: list[int]) -> Iterator[tuple[int, str]]:
    """Yield brackets and commas outside of quotes. A quote that spans the next action is text, such as inches."""
    at = 0
    while mark := _MARK.search(text, at):
        at = mark.end()
        if len(mark[0]) == 1:
            yield mark.start(), mark[0]
        elif bisect_left(begins, mark.start()) < bisect_left(begins, mark.end()):
            at = mark.start() + 1


class _Reader:
    """Parser of one text, action by action."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.begins = [separator.start() for separator in _BEGINS.finditer(text)]
        """Separators after which an action begins even if brackets are open."""
        self.marks = _marks(text, self.begins)
        self.actions: list[Action] = []
        self.problems: list[Problem] = []

    def read(self) -> Parsed:
        at = self._skip(0)
        while at < len(self.text):
            header = _HEADER.match(self.text, at)
            at = self._skip(self._action(header) if header else self._not_an_action(at))
        ordered = sorted(self.problems, key=lambda one: (one.start, one.stop))
        return Parsed(tuple(self.actions), tuple(ordered))

    def _skip(self, at: int) -> int:
        spaces = _SPACES.match(self.text, at)
        return spaces.end() if spaces else at

    def _problem(self, what: str, start: int, stop: int) -> None:
        self.problems.append(Problem(what, start, stop))

    def _not_an_action(self, at: int) -> int:
        separator = _SEPARATOR.search(self.text, at)
        stop = separator.start() if separator else len(self.text)
        self._problem("not an action: write `R1 = Tool(arguments)`", at, stop)
        return stop

    def _action(self, header: re.Match[str]) -> int:
        """Parse one action; return where the next may begin."""
        opened = header.end() - 1
        closed = self.marks.closing.get(opened)
        if closed is None:
            place = bisect_left(self.begins, opened)
            stop = self.begins[place] if place < len(self.begins) else len(self.text)
            self._problem("`(` is not closed", opened, stop)
            return stop
        start, stop = header.start(), closed + 1
        self._brackets(opened, closed)
        self.actions.append(
            Action(
                header["result"],
                header["tool"],
                self._arguments(opened, closed),
                self.text[start:stop],
                start,
                stop,
            )
        )
        return self._tail(stop)

    def _tail(self, at: int) -> int:
        if tail := _TAIL.match(self.text, at):
            return tail.end()
        following = self._skip(at)
        if _HEADER.match(self.text, following):
            self._problem("`;` is missing between two actions", at, following)
            return following
        separator = _SEPARATOR.search(self.text, at)
        stop = separator.start() if separator else len(self.text)
        self._problem("text after the end of an action", at, stop)
        return stop

    def _brackets(self, opened: int, closed: int) -> None:
        """Report unmatched brackets within an action."""
        unmatched = self.marks.unmatched
        for at in unmatched[bisect_left(unmatched, opened) : bisect_left(unmatched, closed)]:
            state = "opened" if self.text[at] in _OPENERS else "closed"
            self._problem(f"`{self.text[at]}` is not {state}", at, at + 1)

    def _arguments(self, opened: int, closed: int) -> tuple[Argument, ...]:
        if not self.text[opened + 1 : closed].strip():
            return ()
        commas = [at for at in self.marks.commas.get(opened, ()) if at < closed]
        edges = [opened, *commas, closed]
        pieces: list[tuple[int, int]] = []
        in_label = False
        for before, after in pairwise(edges):
            start, stop = self._strip(before + 1, after)
            has_label = _LABEL.match(self.text, start, stop) is not None
            if in_label and not has_label:
                pieces[-1] = (pieces[-1][0], stop)
                continue
            in_label = has_label
            pieces.append((start, stop))
            if start == stop:
                self._problem("an argument is empty", before, after)
        return tuple(self._argument(*piece) for piece in pieces)

    def _strip(self, start: int, stop: int) -> tuple[int, int]:
        piece = self.text[start:stop]
        start += len(piece) - len(piece.lstrip())
        return start, max(start, start + len(piece.strip()))

    def _argument(self, start: int, stop: int) -> Argument:
        label = _LABEL.match(self.text, start, stop)
        text = self.text[label.end() if label else start : stop]
        only = not label and _NAMES_ONLY.fullmatch(text)
        names = re.findall(_NAME, text) if only else _RESULT.findall(text)
        return Argument(
            text, label[1].lower() if label else "", tuple(dict.fromkeys(names)), start, stop
        )


Kind = Literal["results", "text"]
"""``results``: names of results, such as ``R1`` or ``[R1, R2]``, or ``Env``; ``text``: anything."""

_RESULT_NAME = re.compile(r"R[1-9]\d{0,3}|Output")


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a tool."""

    name: str
    kind: Kind = "text"
    label: str = ""
    """Label before the argument, such as ``Query``, in any case; empty for none."""
    more: bool = False
    """True if it takes all further text, including commas. Only for the last parameter."""


@dataclass(frozen=True, slots=True)
class ActionTool:
    """Tool that actions may call."""

    name: str
    parameters: tuple[Parameter, ...]
    does: str

    @property
    def fewest(self) -> int:
        """Minimum number of arguments."""
        return len(self.parameters)

    @property
    def most(self) -> int | None:
        """Maximum number of arguments; ``None``: no limit."""
        return None if self.parameters[-1].more else self.fewest

    @property
    def signature(self) -> str:
        """Signature such as ``QA([results], Question: question)``."""
        names = [f"{one.label}: {one.name}" if one.label else one.name for one in self.parameters]
        return f"{self.name}({', '.join(names)})"


@dataclass(frozen=True, slots=True)
class Domain:
    """Set of tools."""

    name: str
    tools: tuple[ActionTool, ...]
    variables: tuple[str, ...] = ()
    """Variables that exist before the first action."""

    def tool(self, name: str) -> ActionTool | None:
        """Return the tool with this name, or ``None``."""
        return next((one for one in self.tools if one.name == name), None)


def _text(name: str, parameter: str, does: str) -> ActionTool:
    return ActionTool(name, (Parameter(parameter, more=True),), does)


def _about(name: str, does: str) -> ActionTool:
    return ActionTool(
        name, (Parameter("result", kind="results"), Parameter("words", label="Query")), does
    )


_CALCULATOR = _text(
    "Calculator", "expression", "works out a calculation; it may name earlier results"
)
_CODE = _text("Code", "Python", "runs Python and gives its last value, or what it prints")
_CLICK = (
    Parameter("Env or the last result", kind="results"),
    Parameter("which element", label="QUERY"),
)
_TYPE = (*_CLICK, Parameter("text", label="TEXT"))
_EQUATIONS = "equations or results, then the unknown"
_ANSWER = (Parameter("[results]", kind="results"), Parameter("question", label="Question"))
_FEATURES = "tells the features and options of the items found that the words are about"
_PARAGRAPHS = "finds the paragraphs about something among the pages that were found"
_MATHS = Domain(
    "maths",
    (
        _CALCULATOR,
        _text("SetEquation", "equation", "states an equation"),
        _text("SolveEquation", _EQUATIONS, "solves one equation, or several together"),
        _text("Count", "list", "counts the members of a list"),
        _text(
            "SolveInequality",
            "inequalities or results",
            "gives the range in which inequalities hold",
        ),
        _CODE,
        _text("Define", "text", "keeps a text or a value under a name"),
    ),
)
_COMPLEX_QA = Domain(
    "complex_qa",
    (
        _text("KnowledgeQuery", "title or words", "finds pages on a subject"),
        _about("ParagraphRetrieve", _PARAGRAPHS),
        ActionTool("QA", _ANSWER, "answers a question from earlier results"),
        _CALCULATOR,
        _CODE,
    ),
)
_WEB = Domain(
    "web",
    (
        ActionTool("CLICK", _CLICK, "clicks an element of the page"),
        ActionTool("TYPE", _TYPE, "types a text into an element"),
        ActionTool("SELECT", _TYPE, "selects an option of an element"),
    ),
    ("Env",),
)
_SHOP = Domain(
    "shop",
    (
        _text("Search", "words", "finds items"),
        _about("FeatureRetrieve", _FEATURES),
        _about("Pick", "opens the item found that fits the words best"),
        _about("Click", "clicks an option of the open item, or Buy Now"),
    ),
)
DOMAINS: Mapping[str, Domain] = {one.name: one for one in (_MATHS, _COMPLEX_QA, _WEB, _SHOP)}


def find_domain(name: str) -> Domain:
    """Return a domain by name. Raises ``UserError`` for an unknown name."""
    if name not in DOMAINS:
        raise UserError(
            f"there is no domain {name!r} of actions",
            f"{did_you_mean(name, DOMAINS)}the domains are {', '.join(DOMAINS)}",
        )
    return DOMAINS[name]


def describe(domain: str) -> str:
    """Describe the tools of a domain for a prompt, one per line. Raises ``UserError`` for an unknown domain."""
    return "\n".join(f"- {one.signature}: {one.does}" for one in find_domain(domain).tools)


def check(text: str, domain: str, known: Iterable[str] = ()) -> Parsed:
    """Parse a text and report problems of its actions, without running them.

    ``known`` are the results of earlier steps. Raises ``UserError`` only for an unknown domain.
    """
    tools = find_domain(domain)
    parsed = parse(text)
    problems = list(parsed.problems)
    if not parsed.actions and not problems:
        problems.append(Problem("there is no action", 0, len(text)))
    for action in parsed.actions[MAX_ACTIONS : MAX_ACTIONS + 1]:
        what = f"there are {len(parsed.actions)} actions, and {MAX_ACTIONS} are allowed"
        problems.append(Problem(what, action.start, len(text)))
    names = {*known, *tools.variables}
    for action in parsed.actions:
        problems += _names(action, names)
        problems += _use(action, tools)
        names.add(action.result)
    return Parsed(parsed.actions, tuple(sorted(problems, key=lambda one: (one.start, one.stop))))


def _names(action: Action, known: set[str]) -> Iterator[Problem]:
    """Yield problems with names of results that are set or used."""
    stop = action.start + len(action.result)
    if not _RESULT_NAME.fullmatch(action.result):
        yield Problem(
            f"{action.result} is not the name of a result: take R1, R2, ...", action.start, stop
        )
    elif action.result in known:
        yield Problem(f"{action.result} is set a second time", action.start, stop)
    for argument in action.arguments:
        for name in argument.variables:
            if name not in known:
                yield Problem(f"{name} is used before it is set", argument.start, argument.stop)


def _use(action: Action, domain: Domain) -> Iterator[Problem]:
    tool = domain.tool(action.tool)
    if tool is None:
        names = [one.name for one in domain.tools]
        hint = did_you_mean(action.tool, names)
        what = f"there is no tool {action.tool}: {hint}the tools are {', '.join(names)}"
        yield Problem(what, action.start, action.stop)
        return
    count = len(action.arguments)
    if count < tool.fewest or (tool.most is not None and count > tool.most):
        yield Problem(
            f"{tool.name} takes {_number(tool)}, not {count}: {tool.signature}",
            action.start,
            action.stop,
        )
        return
    for parameter, argument in zip(tool.parameters, action.arguments, strict=False):
        yield from _argument(tool, parameter, argument)


def _argument(tool: ActionTool, parameter: Parameter, argument: Argument) -> Iterator[Problem]:
    start, stop = argument.start, argument.stop
    if argument.label != parameter.label.lower() and (parameter.label or parameter.kind != "text"):
        form = f"with `{parameter.label}:`" if parameter.label else "without a label"
        yield Problem(f"{tool.name} takes this argument {form}: {tool.signature}", start, stop)
    elif parameter.kind == "results" and not argument.variables:
        yield Problem(f"{tool.name} takes the name of a result here: {tool.signature}", start, stop)
    elif parameter.label and not argument.text.strip():
        yield Problem(f"nothing stands after `{parameter.label}:`", start, stop)


def _number(tool: ActionTool) -> str:
    least = "at least " * (tool.most is None)
    return f"{least}{tool.fewest} argument{'s' * (tool.fewest != 1)}"
