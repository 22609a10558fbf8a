"""Tools of each domain, and a checker of action lines.

Names of domains and tools follow Yin et al. 2024. Results are named ``R1``, ``R2``, ... in any order, or ``Output``.
Each name is set once before it is used.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.errors import UserError, did_you_mean
from coterie.tools.actions.grammar import MAX_ACTIONS, Action, Argument, Parsed, Problem, parse

Kind = Literal["results", "text"]
"""``results``: names of results, such as ``R1`` or ``[R1, R2]``, or ``Env``; ``text``: anything."""

_RESULT = re.compile(r"R[1-9]\d{0,3}|Output")


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
    if not _RESULT.fullmatch(action.result):
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
