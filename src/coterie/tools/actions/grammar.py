"""Grammar of action lines such as ``R1 = Calculator(48 / 2); R2 = Calculator(R1 + 48)``, and the tools of each domain.

An action is ``RESULT = Tool(arguments)``. Actions are separated by ``;`` or line ends outside of brackets and quotes.
Arguments are separated by commas outside of inner brackets and quotes. A label (``Query: ...``) makes an argument free
text, which continues over commas to the next label or the end. A ``'`` opens a quote only if no letter precedes it and
the quote is closed on the same line, so apostrophes are text.

A model writes the text, so parsing never raises. Names of domains and tools follow Yin et al. 2024. Results are named
``R1``, ``R2``, ... in any order, or ``Output``. Each name is set once before it is used.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from coterie.errors import did_you_mean

MAX_CHARACTERS = 4000
"""Limit on the length of a text; a longer one is a single problem."""
MAX_ACTIONS = 32

_HEADER = re.compile(
    r"(?P<result>[A-Za-z_]\w{0,63})[ \t]*=[ \t]*(?P<tool>[A-Za-z_]\w{0,63})[ \t]*\("
)
_BEGINS = re.compile(r"[;\n](?=\s{0,80}(?:R\d{1,4}|Output)[ \t]*=[ \t]*[A-Za-z_]\w*[ \t]*\()")
"""Separator after which an action begins even within quotes and open brackets."""
_SPACES = re.compile(r"[\s;]*")
_REST = re.compile(r"[^;\n]*")
# Quoted text, or one bracket or comma. An apostrophe after a letter opens no quote.
_MARK = re.compile(r'"[^"\n]*"|(?<![\w)\]}])\'[^\'\n]*\'(?!\w)|[()\[\]{},]')
_LABEL = re.compile(r"(query|question|text)[ \t]*:\s*", re.IGNORECASE)
_RESULT = re.compile(r"\bR\d{1,4}\b")
_RESULT_NAME = re.compile(r"R[1-9]\d{0,3}|Output")
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
    """Position of its text in the action's text."""


@dataclass(frozen=True, slots=True)
class Action:
    """Call of a tool, with the name of its result."""

    result: str
    tool: str
    arguments: tuple[Argument, ...]
    text: str

    def rest(self, index: int) -> str:
        """Return the text of all arguments from ``index`` on, with their commas."""
        arguments = self.arguments[index:]
        return self.text[arguments[0].start : -1].rstrip() if arguments else ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Actions, and problems of the text."""

    actions: tuple[Action, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def parse(text: str) -> Parsed:
    """Parse a text that a model wrote, without raising. An empty text has no actions and no problems."""
    if len(text) > MAX_CHARACTERS:
        problem = f"the text has {len(text):,} characters, and {MAX_CHARACTERS:,} are allowed"
        return Parsed((), (problem,))
    actions: list[Action] = []
    problems: list[str] = []
    # Actions are separated first, so that an open bracket spoils only its own action.
    for piece in _BEGINS.split(text):
        _read(piece, actions, problems)
    return Parsed(tuple(actions), tuple(problems))


def _read(text: str, actions: list[Action], problems: list[str]) -> None:
    position = _end(_SPACES, text, 0)
    while position < len(text):
        header = _HEADER.match(text, position)
        if header is None:
            problems.append("not an action: write `R1 = Tool(arguments)`")
        else:
            commas, stop = _brackets(text, header.end(), problems)
            if not stop:
                problems.append("`(` is not closed")
                return
            pieces = _arguments(text, [header.end() - 1, *commas, stop - 1], problems)
            arguments = tuple(_argument(text, start, end, position) for start, end in pieces)
            actions.append(Action(header["result"], header["tool"], arguments, text[position:stop]))
            position = stop
        rest = _REST.match(text, position)
        # After an action there may be another one without a separator, or prose.
        if header and rest and rest[0].strip(" \t\r."):
            following = _end(_SPACES, text, position)
            if _HEADER.match(text, following):
                problems.append("`;` is missing between two actions")
                position = following
                continue
            problems.append("text after the end of an action")
        # Continue after the next separator.
        position = _end(_SPACES, text, _end(_REST, text, position))


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _brackets(text: str, position: int, problems: list[str]) -> tuple[list[int], int]:
    """Return the commas between arguments from ``position`` on, and the end of the closing bracket (0: none)."""
    commas, opened, unmatched = [], ["("], list[str]()
    for mark in _MARK.finditer(text, position):
        sign = mark[0]
        if sign in ("(", "[", "{"):
            opened.append(sign)
        elif sign == "," and len(opened) == 1:
            commas.append(mark.start())
        elif sign in _OPENERS and _OPENERS[sign] not in opened:
            unmatched.append(f"`{sign}` is not opened")
        elif sign in _OPENERS:
            # Inner brackets that were left open end here as well.
            while (last_opener := opened.pop()) != _OPENERS[sign]:
                unmatched.append(f"`{last_opener}` is not closed")
            # Problems of brackets only count if the action ends; otherwise that is the problem.
            if not opened:
                problems += unmatched
                return commas, mark.end()
    return commas, 0


def _arguments(text: str, edges: list[int], problems: list[str]) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    in_label = False
    # ``Tool()`` has no arguments, not an empty one.
    if len(edges) == 2 and not text[edges[0] + 1 : edges[1]].strip():
        return pieces
    for edge, stop in pairwise(edges):
        piece = text[edge + 1 : stop]
        start = stop - len(piece.lstrip())
        stop = start + len(piece.strip())
        has_label = _LABEL.match(text, start, stop) is not None
        # Text with a label continues over commas.
        if in_label and not has_label:
            pieces[-1] = (pieces[-1][0], stop)
            continue
        in_label = has_label
        pieces.append((start, stop))
        if start == stop:
            problems.append("an argument is empty")
    return pieces


def _argument(text: str, start: int, stop: int, action: int) -> Argument:
    label = _LABEL.match(text, start, stop)
    start = label.end() if label else start
    content = text[start:stop]
    # Within other text, ``Env`` and ``Output`` are ordinary words.
    only = not label and _NAMES_ONLY.fullmatch(content)
    names = re.findall(_NAME, content) if only else _RESULT.findall(content)
    variables = tuple(dict.fromkeys(names))
    return Argument(content, label[1].lower() if label else "", variables, start - action)


@dataclass(frozen=True, slots=True)
class ActionTool:
    """Tool that actions may call."""

    name: str
    parameters: tuple[str, ...]
    """One parameter is free text with commas. Of several, the first is results (``R1`` or ``[R1, R2]``, or ``Env``),
    and the others are texts with labels, such as ``Query: words``."""
    does: str

    @property
    def signature(self) -> str:
        """Signature such as ``QA([results], Question: question)``."""
        return f"{self.name}({', '.join(self.parameters)})"


_CALCULATOR = ActionTool(
    "Calculator", ("expression",), "works out a calculation; it may name earlier results"
)
_CODE = ActionTool("Code", ("Python",), "runs Python and gives its last value, or what it prints")
_ABOUT = ("result", "Query: words")
_CLICK = ("Env or the last result", "QUERY: which element")
_TYPE = (*_CLICK, "TEXT: text")
_SOLVE = "equations or results, then the unknown"
_FEATURES = "tells the features and options of the items found that the words are about"
_PARAGRAPHS = "finds the paragraphs about something among the pages that were found"
_RANGE = "gives the range in which inequalities hold"
DOMAINS: Mapping[str, tuple[ActionTool, ...]] = {
    "maths": (
        _CALCULATOR,
        ActionTool("SetEquation", ("equation",), "states an equation"),
        ActionTool("SolveEquation", (_SOLVE,), "solves one equation, or several together"),
        ActionTool("Count", ("list",), "counts the members of a list"),
        ActionTool("SolveInequality", ("inequalities or results",), _RANGE),
        _CODE,
        ActionTool("Define", ("text",), "keeps a text or a value under a name"),
    ),
    "complex_qa": (
        ActionTool("KnowledgeQuery", ("title or words",), "finds pages on a subject"),
        ActionTool("ParagraphRetrieve", _ABOUT, _PARAGRAPHS),
        ActionTool(
            "QA", ("[results]", "Question: question"), "answers a question from earlier results"
        ),
        _CALCULATOR,
        _CODE,
    ),
    "web": (
        ActionTool("CLICK", _CLICK, "clicks an element of the page"),
        ActionTool("TYPE", _TYPE, "types a text into an element"),
        ActionTool("SELECT", _TYPE, "selects an option of an element"),
    ),
    "shop": (
        ActionTool("Search", ("words",), "finds items"),
        ActionTool("FeatureRetrieve", _ABOUT, _FEATURES),
        ActionTool("Pick", _ABOUT, "opens the item found that fits the words best"),
        ActionTool("Click", _ABOUT, "clicks an option of the open item, or Buy Now"),
    ),
}


def describe(domain: str) -> str:
    """Describe the tools of a domain for a prompt, one per line."""
    return "\n".join(f"- {tool.signature}: {tool.does}" for tool in DOMAINS[domain])


def check_actions(text: str, domain: str, results: Iterable[str] = ()) -> Parsed:
    """Parse a text of a domain and report problems; ``results`` are earlier results."""
    tools = {tool.name: tool for tool in DOMAINS[domain]}
    parsed = parse(text)
    problems = list(parsed.problems)
    if not parsed.actions and not problems:
        problems.append("there is no action")
    if len(parsed.actions) > MAX_ACTIONS:
        problems.append(f"there are {len(parsed.actions)} actions, and {MAX_ACTIONS} are allowed")
    # Actions on web pages may refer to the page as ``Env``.
    names = {*results, *(("Env",) if domain == "web" else ())}
    for action in parsed.actions:
        # Names are added in order, so an action can only use earlier results.
        problems += _problems(action, names, tools)
        names.add(action.result)
    return Parsed(parsed.actions, tuple(problems))


def _problems(action: Action, results: set[str], tools: Mapping[str, ActionTool]) -> Iterator[str]:
    if not _RESULT_NAME.fullmatch(action.result):
        yield f"{action.result} is not the name of a result: take R1, R2, ..."
    elif action.result in results:
        yield f"{action.result} is set a second time"
    for argument in action.arguments:
        for name in argument.variables:
            if name not in results:
                yield f"{name} is used before it is set"
    tool = tools.get(action.tool)
    if tool is None:
        hint = did_you_mean(action.tool, tools)
        yield f"there is no tool {action.tool}: {hint}the tools are {', '.join(tools)}"
    elif not _fits(action.arguments, tool.parameters):
        yield f"{tool.name} takes other arguments: {tool.signature}"


def _fits(arguments: Sequence[Argument], parameters: Sequence[str]) -> bool:
    if len(parameters) == 1:
        return len(arguments) > 0
    labels = [
        parameter.partition(":")[0].lower() if ":" in parameter else "" for parameter in parameters
    ]
    return [argument.label for argument in arguments] == labels and all(
        argument.text.strip() if argument.label else argument.variables for argument in arguments
    )
