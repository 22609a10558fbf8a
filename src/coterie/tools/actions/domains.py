"""The tools of each domain, and what is wrong with an action line that uses them.

Domains and names of tools are those of Yin et al. 2024. Results are called ``R1``, ``R2``, ... in any order and with
gaps, or ``Output``; each name is set once, and used only after that.
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
    """What a tool takes in one place."""

    name: str
    kind: Kind = "text"
    label: str = ""
    """What is to stand before it, such as ``Query``; any case counts. Empty: nothing."""
    more: bool = False
    """Whether what follows, commas included, belongs to it too. Only a tool's last parameter."""


@dataclass(frozen=True, slots=True)
class ActionTool:
    """A tool that actions may name."""

    name: str
    parameters: tuple[Parameter, ...]
    does: str

    @property
    def fewest(self) -> int:
        """Arguments that it needs."""
        return len(self.parameters)

    @property
    def most(self) -> int | None:
        """Arguments that it takes; ``None``: any number."""
        return None if self.parameters[-1].more else self.fewest

    @property
    def signature(self) -> str:
        """Such as ``QA([results], Question: question)``."""
        shown = [f"{one.label}: {one.name}" if one.label else one.name for one in self.parameters]
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Domain:
    """Tools that belong together."""

    name: str
    tools: tuple[ActionTool, ...]
    given: tuple[str, ...] = ()
    """Variables that are there before the first action."""

    def tool(self, name: str) -> ActionTool | None:
        """The tool of this name, if there is one."""
        return next((one for one in self.tools if one.name == name), None)


def _text(name: str, shown: str, does: str) -> ActionTool:
    return ActionTool(name, (Parameter(shown, more=True),), does)


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
    """The domain of a name; raises ``UserError`` for a name that none has."""
    if name not in DOMAINS:
        raise UserError(
            f"there is no domain {name!r} of actions",
            f"{did_you_mean(name, DOMAINS)}the domains are {', '.join(DOMAINS)}",
        )
    return DOMAINS[name]


def described(domain: str) -> str:
    """The tools of a domain for a prompt, a line for each; raises ``UserError`` for an unknown domain."""
    return "\n".join(f"- {one.signature}: {one.does}" for one in find_domain(domain).tools)


def check(text: str, domain: str, known: Iterable[str] = ()) -> Parsed:
    """Read a text, and add what is wrong with its actions; nothing is run.

    ``known`` are the results of earlier steps. Raises ``UserError`` for an unknown domain, and never for the text.
    """
    tools = find_domain(domain)
    parsed = parse(text)
    problems = list(parsed.problems)
    if not parsed.actions and not problems:
        problems.append(Problem("there is no action", 0, len(text)))
    for action in parsed.actions[MAX_ACTIONS : MAX_ACTIONS + 1]:
        what = f"there are {len(parsed.actions)} actions, and {MAX_ACTIONS} are allowed"
        problems.append(Problem(what, action.start, len(text)))
    there = {*known, *tools.given}
    for action in parsed.actions:
        problems += _names(action, there)
        problems += _use(action, tools)
        there.add(action.result)
    return Parsed(parsed.actions, tuple(sorted(problems, key=lambda one: (one.start, one.stop))))


def _names(action: Action, there: set[str]) -> Iterator[Problem]:
    """Wrong names of results, set and used."""
    stop = action.start + len(action.result)
    if not _RESULT.fullmatch(action.result):
        yield Problem(
            f"{action.result} is not the name of a result: take R1, R2, ...", action.start, stop
        )
    elif action.result in there:
        yield Problem(f"{action.result} is set a second time", action.start, stop)
    for argument in action.arguments:
        for name in argument.variables:
            if name not in there:
                yield Problem(f"{name} is used before it is set", argument.start, argument.stop)


def _use(action: Action, domain: Domain) -> Iterator[Problem]:
    tool = domain.tool(action.tool)
    if tool is None:
        names = [one.name for one in domain.tools]
        hint = did_you_mean(action.tool, names)
        what = f"there is no tool {action.tool}: {hint}the tools are {', '.join(names)}"
        yield Problem(what, action.start, action.stop)
        return
    given = len(action.arguments)
    if given < tool.fewest or (tool.most is not None and given > tool.most):
        yield Problem(
            f"{tool.name} takes {_number(tool)}, not {given}: {tool.signature}",
            action.start,
            action.stop,
        )
        return
    for parameter, argument in zip(tool.parameters, action.arguments, strict=False):
        yield from _argument(tool, parameter, argument)


def _argument(tool: ActionTool, parameter: Parameter, argument: Argument) -> Iterator[Problem]:
    start, stop = argument.start, argument.stop
    if argument.label != parameter.label.lower() and (parameter.label or parameter.kind != "text"):
        wanted = f"with `{parameter.label}:`" if parameter.label else "without a label"
        yield Problem(f"{tool.name} takes this argument {wanted}: {tool.signature}", start, stop)
    elif parameter.kind == "results" and not argument.variables:
        yield Problem(f"{tool.name} takes the name of a result here: {tool.signature}", start, stop)
    elif parameter.label and not argument.text.strip():
        yield Problem(f"nothing stands after `{parameter.label}:`", start, stop)


def _number(tool: ActionTool) -> str:
    least = "at least " * (tool.most is None)
    return f"{least}{tool.fewest} argument{'s' * (tool.fewest != 1)}"
