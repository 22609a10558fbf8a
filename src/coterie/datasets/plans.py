"""Typed rows with a plan and its grounding: subgoals in words, and the actions that carry out each of them.

Worked solutions of GSM8K and decompositions of StrategyQA become plans here, Lumos' files in ``datasets.lumos``.

GSM8K annotates what a line computes: ``Natalia sold 48/2 = <<48/2=24>>24 clips in May.`` becomes the subgoal
``Natalia sold ? clips in May.`` with the action ``R1 = Calculator(48 / 2)``. The socratic files put a question before
each line (``How many clips in May? ** Natalia sold ...``), which then is the subgoal. Lines that compute nothing
have no actions and are left out.

A sub-question of StrategyQA that needs facts becomes three actions: ``KnowledgeQuery`` (what to look up),
``ParagraphRetrieve`` and ``QA``. One that only compares or joins earlier answers becomes one ``QA`` on them. ``#2``
stands for the answer to the second sub-question; it becomes words in the subgoal and the name of that answer in the
actions.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from coterie.config.plain import wrong_at
from coterie.datasets.problems import number, parsed, value
from coterie.datasets.rows import Gsm8kRow, QuestionRow, Text, question_key

Domain = Literal["maths", "complex_qa", "web", "shop"]


def one_line(text: str) -> str:
    """Text with single spaces for runs of white space, line ends included."""
    return " ".join(text.split())


def _line(text: str) -> str:
    if not text.strip() or len(text.splitlines()) > 1:
        raise ValueError("must be one line of text")
    return one_line(text)


Line = Annotated[str, AfterValidator(_line)]
"""One line that says something; models end a subgoal and a list of actions with a line end."""


class PageElement(BaseModel):
    """An element of a web page with which something can be done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(pattern=r"^[^\]\n]+$")]
    tag: str
    text: str
    """What it shows, its label, its placeholder."""


class ActionPage(BaseModel):
    """The page on which a web action is done, and what is right there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    elements: tuple[PageElement, ...]
    """Candidates; those that a ranker likes better stand first."""
    right: frozenset[str]
    """The id of the right element; of several that are right, all. A ranker may have left them out of ``elements``.
    Empty where the page has none: then no action is right."""
    kind: Literal["CLICK", "TYPE", "SELECT"]
    value: str = ""


class PlanStep(BaseModel):
    """One subgoal and its grounding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subgoal: Line
    """What is to be found or done, without a number in front."""
    actions: tuple[Line, ...] = Field(min_length=1)
    """Calls such as ``R2 = Calculator(R1 + 48)``, in the order in which they are run."""
    result: str = ""
    """What the last action gives; empty if that is not known."""
    pages: tuple[ActionPage, ...] = ()
    """Of the web: the page of each action. Without them it can't be told whether an action is right."""

    @model_validator(mode="after")
    def _page_of_each(self) -> Self:
        if self.pages and len(self.pages) != len(self.actions):
            raise ValueError(f"has {len(self.pages)} pages for {len(self.actions)} actions")
        return self


class PlanRow(QuestionRow):
    """A task with the steps that solve it. ``question`` is the task."""

    answer: str
    """The gold answer; of a web row, the last action. Empty where upstream doesn't tell it."""
    steps: tuple[PlanStep, ...] = Field(min_length=1)
    domain: Domain
    description: str = ""
    """What is known of the environment at the start; empty if nothing is."""
    aligned: bool = True
    """Whether it is known which actions belong to which subgoal. Lumos' one-time files do not tell it: where it
    can't be worked out, the last step has all actions that are left, and the row is good for whole plans only."""

    @property
    def subgoals(self) -> tuple[str, ...]:
        return tuple(step.subgoal for step in self.steps)

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(action for step in self.steps for action in step.actions)

    @field_validator("question", "answer", "description")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        return value.strip()

    @model_validator(mode="before")
    @classmethod
    def _one_of_two_files(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "messages" in value:
            raise ValueError(
                "it is a line of one of Lumos' two files: give a folder with both as dataset.source"
            )
        return value


class ConvertedRow(PlanRow):
    """A plan made of a worked solution. One that can't be made is read, and has no steps."""

    steps: tuple[PlanStep, ...] = ()
    left_out: str = ""
    """Why there is no plan; empty if there is one."""

    @property
    def flaw(self) -> str:
        """A row without a plan can't be used."""
        return self.left_out or ("" if self.steps else "has no plan")


_ANNOTATION = re.compile(r"<<([^<>]*)>>")
_SOCRATIC = " ** "
_TOKEN = re.compile(r"\d[\d.,]*|\.\d+|[^\W\d_]+|\s+|.")
_SIGNS = frozenset("+-*/x×÷–=$%()")
_TOTAL = re.compile(r"\s*\$?-?(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)?")
"""The number that upstream repeats after an annotation."""
_NUMERAL = re.compile(r"\d+(?:,\d+)*(?:\.\d+)?|\.\d+")

UNITS = 2
"""Words that may stand between two parts of a formula."""

NO_STEPS = "computes nothing"
BROKEN = "has a formula that can't be worked out"
OTHER_ANSWER = "its last action does not give the answer"


@dataclass
class _Results:
    """The actions of one solution so far, and what they give."""

    question: frozenset[Fraction]
    values: dict[str, Fraction] = field(default_factory=dict)
    stated: dict[str, Fraction] = field(default_factory=dict)
    """What the solution says that it gives, which may be rounded."""
    used: set[str] = field(default_factory=set)

    def add(self, formula: str, stated: Fraction) -> str:
        """The action for a formula. Raises ``ValueError`` for one that is no arithmetic."""
        linked = _Linked(self).visit(parsed(formula))
        name = f"R{len(self.values) + 1}"
        text = ast.unparse(linked)
        self.values[name] = value(text, self.values)
        self.stated[name] = stated
        return f"{name} = Calculator({text})"

    def named(self, found: Fraction) -> str | None:
        """The action whose result an operand is, the newest one first.

        A number that stands in the question too is taken for the question's if the result was used before.
        """
        for name in reversed(self.stated):
            if found in (self.stated[name], self.values[name]):
                if found in self.question and name in self.used:
                    return None
                self.used.add(name)
                return name
        return None


class _Linked(ast.NodeTransformer):
    """Puts names of results where their numbers stand."""

    def __init__(self, results: _Results) -> None:
        self.results = results

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            name = self.results.named(Fraction(repr(node.value)))
            if name is not None:
                return ast.Name(name, ast.Load())
        return node


class Gsm8kPlanRow(ConvertedRow):
    """GSM8K as plans. Upstream's rows, plain or socratic, are converted as they are read."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "steps" in given:
            return given
        try:
            return converted(Gsm8kRow.model_validate(given))
        except ValidationError as error:
            raise ValueError(wrong_at(error.errors()[0])) from error


def converted(row: Gsm8kRow) -> dict[str, Any]:
    """The fields of a :class:`Gsm8kPlanRow`; without steps, and with the reason, if no plan can be made."""
    known = {"id": row.id, "question": row.question, "answer": row.answer, "domain": "maths"}
    results = _Results(frozenset(_numbers(row.question)))
    try:
        steps = tuple(_steps(row.solution, results))
    except ValueError:
        return {**known, "left_out": BROKEN}
    if not steps:
        return {**known, "left_out": NO_STEPS}
    if list(results.values.values())[-1] != number(row.answer):
        return {**known, "left_out": OTHER_ANSWER}
    return {**known, "steps": steps}


def _steps(solution: str, results: _Results) -> Iterator[PlanStep]:
    for line in solution.splitlines():
        actions, result = [], ""
        for annotation in _ANNOTATION.findall(line):
            formula, equals, result = annotation.rpartition("=")
            stated = number(result)
            if not equals or stated is None:
                raise ValueError(f"{annotation!r} has no result")
            actions.append(results.add(formula, stated))
        if actions:
            yield PlanStep(
                subgoal=_subgoal(line, results), actions=tuple(actions), result=result.strip()
            )


def _subgoal(line: str, results: _Results) -> str:
    """A line without its formulas and without numbers that an action gives; of a socratic line, the question."""
    question, marker, _ = line.partition(_SOCRATIC)
    if marker and question.strip():
        return one_line(question)
    own = {number(one.rpartition("=")[2]) for one in _ANNOTATION.findall(line)}
    hidden = own | (set(results.stated.values()) - results.question)
    before, *after = _ANNOTATION.split(line)[::2]
    text = before
    for rest in after:
        total = _TOTAL.match(rest)
        text = f"{_without_formula(text)} ?{rest[total.end() if total else 0 :]}"
    text = _NUMERAL.sub(lambda one: "?" if number(one[0]) in hidden else one[0], text)
    return re.sub(r"\s+([.,;:!)])|(\()\s+", r"\1\2", one_line(text)).replace("??", "?")


def _without_formula(text: str) -> str:
    """A text without the formula at its end. Units may stand in it: ``she has 3 dozen eggs * 12 =``."""
    tokens = _TOKEN.findall(text.rstrip(" $"))
    keep, words = len(tokens), 0
    if not tokens or tokens[-1] != "=":
        return text.rstrip(" $")
    for place in range(keep - 1, -1, -1):
        token = tokens[place]
        if _NUMERAL.match(token) or token in _SIGNS:
            keep, words = place, 0
        elif not token.isspace():
            words += 1
            if words > UNITS or not token.isalpha():
                break
    return "".join(tokens[:keep]).rstrip()


def _numbers(text: str) -> Iterator[Fraction]:
    return (found for one in _NUMERAL.findall(text) if (found := number(one)) is not None)


_REFERENCE = re.compile(r"#(\d+)")
_PARAGRAPH = re.compile(r"-\d+$")
_JUDGES = re.compile(
    r"(?:are|can|could|did|do|does|has|have|is|was|were|will|would)\b", re.IGNORECASE
)
"""How a question begins whose answer is yes or no."""
_NAME = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][\w.-]*(?: (?:(?:of|the|de|and) )*[A-Z][\w.-]*)*")
"""Words with capitals that do not begin a sentence."""
OPERATION = "operation"
"""What upstream's evidence says of a sub-question that needs no facts."""

NO_PARTS = "has no sub-questions"
FORWARD = "a sub-question refers to an answer that is not there yet"
BRACKETS = "has a bracket that is not closed"


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class _Upstream:
    question: Text
    answer: bool
    qid: Text = ""
    term: str = ""
    decomposition: tuple[Text, ...] = ()
    evidence: tuple[Any, ...] = ()
    """For each of the people who were asked, for each sub-question, what they found."""


_READ = TypeAdapter(_Upstream)


class StrategyPlanRow(ConvertedRow):
    """StrategyQA as plans; ``answer`` is ``yes`` or ``no``. Upstream's rows are converted as they are read."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or "steps" in given:
            return given
        try:
            return _converted(_READ.validate_python(dict(given)))
        except ValidationError as error:
            raise ValueError(wrong_at(error.errors()[0])) from error


def _converted(row: _Upstream) -> dict[str, Any]:
    answer = "yes" if row.answer else "no"
    known = {
        "id": row.qid or question_key(row.question),
        "question": row.question,
        "answer": answer,
        "domain": "complex_qa",
    }
    parts = [one_line(part) for part in row.decomposition]
    if not parts:
        return {**known, "left_out": NO_PARTS}
    if any(part.count("(") != part.count(")") for part in parts):
        return {**known, "left_out": BRACKETS}
    steps: list[PlanStep] = []
    answers: list[str] = []
    for place, part in enumerate(parts):
        references = list(dict.fromkeys(int(found) for found in _REFERENCE.findall(part)))
        if any(not 1 <= one <= place for one in references):
            return {**known, "left_out": FORWARD}
        actions = _actions(part, references, answers, _topic(row, place), _count(steps))
        answers.append(f"R{_count(steps) + len(actions)}")
        result = answer if place == len(parts) - 1 else ""
        steps.append(PlanStep(subgoal=_in_words(part), actions=actions, result=result))
    return {**known, "steps": tuple(steps)}


def _count(steps: Sequence[PlanStep]) -> int:
    return sum(len(step.actions) for step in steps)


def _actions(
    part: str, references: Sequence[int], answers: Sequence[str], topic: str | None, done: int
) -> tuple[str, ...]:
    """The actions of a sub-question. ``topic`` is what to look up, ``None`` if nothing is."""
    asked = _REFERENCE.sub(lambda found: answers[int(found[1]) - 1], part)
    known = [answers[one - 1] for one in references]
    if topic is None:
        return (f"R{done + 1} = QA([{', '.join(known)}], Question: {asked})",)
    topic = topic or (known[-1] if known else asked.rstrip("?"))
    page, paragraph, answer = (f"R{done + more}" for more in (1, 2, 3))
    context = ", ".join([*known, paragraph])
    return (
        f"{page} = KnowledgeQuery({topic})",
        f"{paragraph} = ParagraphRetrieve({page}, Query: {asked})",
        f"{answer} = QA([{context}], Question: {asked})",
    )


def _topic(row: _Upstream, place: int) -> str | None:
    """What to look up for a sub-question: the page where people found the answer, or what it names.

    Empty if neither tells it, ``None`` if nothing is to be looked up.
    """
    part = row.decomposition[place]
    told = next((one[place] for one in row.evidence if len(one) > place), None)
    pages = [_PARAGRAPH.sub("", page) for page in _leaves(told) if _PARAGRAPH.search(page)]
    if pages:
        return one_line(pages[0]).replace("(", "").replace(")", "")
    names = sorted(_NAME.findall(part), key=len)
    if OPERATION in _leaves(told):
        return None
    if _REFERENCE.search(part) and _JUDGES.match(part) and not names:
        return None
    if row.term and row.term.casefold() in part.casefold():
        return one_line(row.term).replace("(", "").replace(")", "")
    return names[-1].rstrip(".") if names else ""


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return (
        [leaf for one in value for leaf in _leaves(one)] if isinstance(value, list | tuple) else []
    )


def _in_words(part: str) -> str:
    def name(found: re.Match[str]) -> str:
        return f"the answer to Subgoal {found[1]}"

    text = _REFERENCE.sub(name, part)
    return text[:1].upper() + text[1:]
