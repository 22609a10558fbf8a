"""Typed rows with a plan and its grounding: subgoals in words, and the actions of each subgoal.

This module converts solutions of GSM8K and decompositions of StrategyQA into plans; ``datasets.plan_files`` reads the
files of Lumos and Mind2Web.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as validated

from coterie.config.resolve import wrong_at
from coterie.datasets.problems import number, parse_formula, value
from coterie.datasets.rows import Frozen, Gsm8kRow, QuestionRow, Raw, Text, question_key

Domain = Literal["maths", "complex_qa", "web", "shop"]


def one_line(text: str) -> str:
    """Replace each run of white space, including line ends, by a single space."""
    return " ".join(text.split())


def _line(text: str) -> str:
    if not text.strip() or len(text.splitlines()) > 1:
        raise ValueError("must be one line of text")
    return one_line(text)


TRIMMED = StringConstraints(strip_whitespace=True)
Line = Annotated[str, AfterValidator(_line)]
"""Non-blank line; models end a subgoal and a list of actions with a line end."""


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class PageElement:
    """Interactive element of a web page."""

    id: Annotated[str, StringConstraints(pattern=r"^[^\]\n]+$")]
    tag: str
    text: str
    """Its content, label and placeholder."""


class ActionPage(Frozen, extra="forbid"):
    """Page of a web action, with the right action."""

    elements: tuple[PageElement, ...]
    """Candidates, best first."""
    right: frozenset[str]
    """Ids of all right elements, which a ranker may have dropped from ``elements``. Empty if no action is right."""
    kind: Literal["CLICK", "TYPE", "SELECT"]
    value: str = ""


class PlanStep(Frozen, extra="forbid"):
    """Subgoal and its grounding."""

    subgoal: Line
    """Text without a number."""
    actions: tuple[Line, ...] = Field(min_length=1)
    """Calls such as ``R2 = Calculator(R1 + 48)``, in order of execution."""
    result: str = ""
    """Result of the last action; empty if unknown."""
    pages: tuple[ActionPage, ...] = ()
    """Page of each web action, required to grade actions."""

    @model_validator(mode="after")
    def _page_of_each(self) -> Self:
        if self.pages and len(self.pages) != len(self.actions):
            raise ValueError(f"has {len(self.pages)} pages for {len(self.actions)} actions")
        return self


class PlanRow(QuestionRow):
    """Task with the steps of its solution. ``question`` is the task."""

    question: Annotated[Text, TRIMMED]
    answer: Annotated[str, TRIMMED]
    """Gold answer, or the last action of a web row. Empty if upstream has no answer."""
    steps: tuple[PlanStep, ...] = Field(min_length=1)
    domain: Domain
    description: Annotated[str, TRIMMED] = ""
    """Description of the environment at the start; may be empty."""
    aligned: bool = True
    """True if the assignment of actions to subgoals is known.

    Lumos' one-time files do not contain it. If it can't be inferred, the last step has all remaining actions, and the
    row is usable for full plans only.
    """

    @property
    def subgoals(self) -> tuple[str, ...]:
        return tuple(step.subgoal for step in self.steps)

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(action for step in self.steps for action in step.actions)

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        if "messages" in raw:
            raise ValueError(
                "the file is only one of Lumos' two files: give a folder with both as dataset.source"
            )
        return raw


class ConvertedRow(PlanRow):
    """Plan converted from a solution. It has no steps if the conversion fails."""

    steps: tuple[PlanStep, ...] = ()
    left_out: str = ""
    """Reason why there is no plan; empty otherwise."""

    @property
    def flaw(self) -> str:
        return self.left_out or ("" if self.steps else "has no plan")

    @classmethod
    def convert(cls, raw: Raw) -> Raw:
        """Convert a published row, with a reason instead of steps if there is no plan."""
        return raw

    @classmethod
    def normalize(cls, raw: Raw) -> Raw:
        raw = super().normalize(raw)
        try:
            # Rows with steps are already in coterie's own form.
            return raw if "steps" in raw else cls.convert(raw)
        # Only the first fault of the nested model is named, so that the message stays short.
        except ValidationError as error:
            raise ValueError(wrong_at(error.errors()[0])) from error


_ANNOTATION = re.compile(r"<<([^<>]*)>>")
_SOCRATIC = " ** "
_TOKEN = re.compile(r"\d[\d.,]*|\.\d+|[^\W\d_]+|\s+|.")
_SIGNS = frozenset("+-*/x×÷–=$%()")
_TOTAL = re.compile(r"\s*\$?-?(?:\d+(?:,\d+)*(?:\.\d+)?|\.\d+)?")
"""Number that upstream repeats after an annotation."""
_NUMERAL = re.compile(r"\d+(?:,\d+)*(?:\.\d+)?|\.\d+")

UNITS = 2
"""Maximum number of words between two parts of a formula."""

NO_STEPS = "computes nothing"
BROKEN = "has a formula that can't be computed"
OTHER_ANSWER = "does not end with an action that gives the answer"


@dataclass
class _Results:
    """Actions of a solution so far and their results."""

    question: frozenset[Fraction]
    values: dict[str, Fraction] = field(default_factory=dict)
    stated: dict[str, Fraction] = field(default_factory=dict)
    """Results in the solution, which may be rounded."""
    used: set[str] = field(default_factory=set)

    def add(self, formula: str, stated: Fraction) -> str:
        """Return the action of a formula. Raise ``ValueError`` if it is not arithmetic."""
        # Numbers that equal earlier results become their names, so that actions build on each
        # other.
        linked = _Linker(self).visit(parse_formula(formula))
        name = f"R{len(self.values) + 1}"
        text = ast.unparse(linked)
        # The exact value is stored beside the stated one, which the solution may have rounded.
        self.values[name] = value(text, self.values)
        self.stated[name] = stated
        return f"{name} = Calculator({text})"

    def name_of(self, operand: Fraction) -> str | None:
        """Return the name of the latest action with this result, or ``None``.

        A number of the question is linked to a result only on its first use.
        """
        # Of several equal results, the latest is the most likely operand.
        for name in reversed(self.stated):
            if operand in (self.stated[name], self.values[name]):
                if operand in self.question and name in self.used:
                    return None
                self.used.add(name)
                return name
        return None


class _Linker(ast.NodeTransformer):
    """Transformer that replaces numbers by the names of results."""

    def __init__(self, results: _Results) -> None:
        self.results = results

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            # `repr` gives the decimal as written; the binary float is not exact.
            name = self.results.name_of(Fraction(repr(node.value)))
            if name is not None:
                return ast.Name(name, ast.Load())
        return node


class Gsm8kPlanRow(ConvertedRow):
    """GSM8K as plans, converted from upstream's plain or socratic rows.

    Upstream annotates computations: ``Natalia sold 48/2 = <<48/2=24>>24 clips in May.`` becomes the subgoal
    ``Natalia sold ? clips in May.`` with the action ``R1 = Calculator(48 / 2)``. In the socratic files, the question
    before each line (``How many clips in May? ** Natalia sold ...``) is the subgoal. Other lines are dropped.
    """

    @classmethod
    def convert(cls, raw: Raw) -> Raw:
        row = Gsm8kRow.model_validate(raw)
        values = {"id": row.id, "question": row.question, "answer": row.answer, "domain": "maths"}
        results = _Results(frozenset(_numbers(row.question)))
        try:
            steps = tuple(_steps(row.solution, results))
        except ValueError:
            return {**values, "left_out": BROKEN}
        if not steps:
            return {**values, "left_out": NO_STEPS}
        # A plan must compute the answer, else its actions do not solve the task.
        if list(results.values.values())[-1] != number(row.answer):
            return {**values, "left_out": OTHER_ANSWER}
        return {**values, "steps": steps}


def _steps(solution: str, results: _Results) -> Iterator[PlanStep]:
    for line in solution.splitlines():
        actions, result = [], ""
        for annotation in _ANNOTATION.findall(line):
            # In `48/2=24` the last equals sign separates the formula from its result.
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
    """Return the question of a socratic line, or else a line without formulas and computed numbers."""
    question, marker, _ = line.partition(_SOCRATIC)
    if marker and question.strip():
        return one_line(question)
    # Results of this line and of earlier ones are hidden, but numbers of the question stay.
    line_results = {number(text.rpartition("=")[2]) for text in _ANNOTATION.findall(line)}
    hidden = line_results | (set(results.stated.values()) - results.question)
    # Splitting by annotations alternates texts and formulas; only the texts are kept.
    beginning, *pieces = _ANNOTATION.split(line)[::2]
    text = beginning
    for rest in pieces:
        # Upstream repeats the result after the annotation, which would reveal it.
        total = _TOTAL.match(rest)
        text = f"{_without_formula(text)} ?{rest[total.end() if total else 0 :]}"
    text = _NUMERAL.sub(lambda match: "?" if number(match[0]) in hidden else match[0], text)
    # Removed formulas leave spaces before punctuation and inside parentheses.
    return re.sub(r"\s+([.,;:!)])|(\()\s+", r"\1\2", one_line(text)).replace("??", "?")


def _without_formula(text: str) -> str:
    """Remove the formula at the end of a text. It may contain units: ``she has 3 dozen eggs * 12 =``."""
    tokens = _TOKEN.findall(text.rstrip(" $"))
    keep, words = len(tokens), 0
    # Without an equals sign, the text before the annotation is no formula.
    if not tokens or tokens[-1] != "=":
        return text.rstrip(" $")
    # Walk back over numbers and signs. A few words in between are units.
    for index in range(keep - 1, -1, -1):
        token = tokens[index]
        if _NUMERAL.match(token) or token in _SIGNS:
            keep, words = index, 0
        elif not token.isspace():
            words += 1
            if words > UNITS or not token.isalpha():
                break
    return "".join(tokens[:keep]).rstrip()


def _numbers(text: str) -> Iterator[Fraction]:
    return (value for part in _NUMERAL.findall(text) if (value := number(part)) is not None)


_REFERENCE = re.compile(r"#(\d+)")
_PARAGRAPH = re.compile(r"-\d+$")
_JUDGES = re.compile(
    r"(?:are|can|could|did|do|does|has|have|is|was|were|will|would)\b", re.IGNORECASE
)
"""Beginning of a yes-or-no question."""
_NAME = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][\w.-]*(?: (?:(?:of|the|de|and) )*[A-Z][\w.-]*)*")
OPERATION = "operation"
"""Upstream's evidence for a sub-question that needs no facts."""

NO_PARTS = "has no sub-questions"
FORWARD = "has a sub-question that refers to a later answer"
BRACKETS = "has an unbalanced bracket"


class _StrategyQuestion(Frozen):
    question: Text
    answer: bool
    qid: Text = ""
    term: str = ""
    decomposition: tuple[Text, ...] = ()
    evidence: tuple[Any, ...] = ()
    """Evidence of each annotator for each sub-question."""


class StrategyPlanRow(ConvertedRow):
    """StrategyQA as plans, converted from upstream's rows; ``answer`` is ``yes`` or ``no``.

    A sub-question that needs facts becomes ``KnowledgeQuery`` (a topic), ``ParagraphRetrieve`` and ``QA``; one
    that only compares or combines earlier answers becomes one ``QA``. ``#2``, the answer to the second sub-question,
    becomes words in the subgoal and the name of the answer in actions.
    """

    @classmethod
    def convert(cls, raw: Raw) -> Raw:
        row = _StrategyQuestion.model_validate(raw)
        answer, id_ = "yes" if row.answer else "no", row.qid or question_key(row.question)
        values = {"id": id_, "question": row.question, "answer": answer, "domain": "complex_qa"}
        parts = [one_line(part) for part in row.decomposition]
        if not parts:
            return {**values, "left_out": NO_PARTS}
        # An unbalanced bracket would break the parsing of the call.
        if any(part.count("(") != part.count(")") for part in parts):
            return {**values, "left_out": BRACKETS}
        steps, answers, count = list[PlanStep](), list[str](), 0
        for index, part in enumerate(parts):
            references = list(dict.fromkeys(map(int, _REFERENCE.findall(part))))
            # Actions run in order, so a reference must point to an earlier answer.
            if any(not 1 <= reference <= index for reference in references):
                return {**values, "left_out": FORWARD}
            actions = _actions(part, references, answers, _topic(row, index), count)
            # The last action of a sub-question gives its answer.
            count += len(actions)
            answers.append(f"R{count}")
            text = _REFERENCE.sub(r"the answer to Subgoal \1", part)
            # Upstream has no answers of sub-questions, so only the last result is known.
            result = answer if index == len(parts) - 1 else ""
            subgoal = text[:1].upper() + text[1:]
            steps.append(PlanStep(subgoal=subgoal, actions=actions, result=result))
        return {**values, "steps": tuple(steps)}


def _actions(
    part: str, references: Sequence[int], answers: Sequence[str], topic: str | None, done: int
) -> tuple[str, ...]:
    """Return the actions of a sub-question. ``topic`` is ``None`` if there is nothing to look up."""
    question = _REFERENCE.sub(lambda match: answers[int(match[1]) - 1], part)
    inputs = [answers[reference - 1] for reference in references]
    if topic is None:
        return (f"R{done + 1} = QA([{', '.join(inputs)}], Question: {question})",)
    topic = topic or (inputs[-1] if inputs else question.rstrip("?"))
    page, paragraph, answer = (f"R{done + offset}" for offset in (1, 2, 3))
    context = ", ".join([*inputs, paragraph])
    return (
        f"{page} = KnowledgeQuery({topic})",
        f"{paragraph} = ParagraphRetrieve({page}, Query: {question})",
        f"{answer} = QA([{context}], Question: {question})",
    )


def _topic(row: _StrategyQuestion, index: int) -> str | None:
    """Return the topic to look up for a sub-question: the annotators' page, or a name in the sub-question.

    Empty without either; ``None`` if there is nothing to look up.
    """
    part = row.decomposition[index]
    # The first annotator who gave evidence for this sub-question counts.
    evidence = next(
        (annotation[index] for annotation in row.evidence if len(annotation) > index), None
    )
    # Evidence names a paragraph as a page with a number, such as `Emma Watson-3`.
    pages = [_PARAGRAPH.sub("", page) for page in _leaves(evidence) if _PARAGRAPH.search(page)]
    if pages:
        return _without_brackets(pages[0])
    names = sorted(_NAME.findall(part), key=len)
    if OPERATION in _leaves(evidence):
        return None
    # A yes-or-no question about earlier answers that names nothing only compares them.
    if _REFERENCE.search(part) and _JUDGES.match(part) and not names:
        return None
    if row.term and row.term.casefold() in part.casefold():
        return _without_brackets(row.term)
    # The longest name is the most specific one.
    return names[-1].rstrip(".") if names else ""


def _without_brackets(text: str) -> str:
    return re.sub(r"[()]", "", one_line(text))


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return (
        [leaf for part in value for leaf in _leaves(part)]
        if isinstance(value, list | tuple)
        else []
    )
