"""What the lines of Lumos' two files say: a dialogue in which a task is planned, or its subgoals are grounded."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from coterie.config.plain import wrong_at
from coterie.datasets.lumos_lines import NAMES, LumosLine
from coterie.datasets.lumos_text import (
    GO_ON,
    PLAN_GIVEN,
    STEP_GIVEN,
    STOP,
    actions,
    asked,
    newest,
    result,
    subgoals,
)
from coterie.datasets.plan_rows import Domain
from coterie.datasets.reading import numbered
from coterie.datasets.rows import LeftOut
from coterie.errors import UserError

TWICE = "has an id that is there before"
NO_ACTIONS = "has a subgoal without actions"
NOT_ENDED = "has a plan without an end"
STEPS_MISSING = "lacks lines of some of its steps"
NOT_TURNS = "has no turns of user and assistant, one after the other"
UNREADABLE = "can't be taken apart"
SHOWN = 3
"""Lines that an error names."""
DOMAINS: dict[str, Domain] = {name: domain for domain, name in NAMES.items()}


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """A line of a file."""

    line: LumosLine
    where: str
    """File, line and id, for people."""

    @property
    def says(self) -> list[str]:
        """What the assistant says."""
        return [one.content for one in self.line.said if one.role == "assistant"]


@dataclass(frozen=True, slots=True)
class Planned:
    """What a line of a plan file says."""

    at: NumberedLine
    task: str
    description: str
    """Of the environment at the start; empty if none is given."""
    subgoals: tuple[str, ...]
    results: tuple[str, ...]
    """What each subgoal comes to; none where all are planned at once."""


@dataclass(frozen=True, slots=True)
class Grounded:
    """What a line of a ground file says."""

    at: NumberedLine
    task: str
    given: tuple[str, ...]
    """The subgoals as they are given, each with its number; of all at once, without."""
    actions: tuple[tuple[str, ...], ...]
    """Those of each subgoal; of all at once, a single group."""
    whole: bool
    """Whether all are given at once."""


H = TypeVar("H", Planned, Grounded)


def read_lines(file: Path) -> list[NumberedLine]:
    """All lines of a file. Raises ``UserError`` for a broken one, by file and line."""
    return [read_line(number, raw, file) for number, raw in numbered(file)]


def read_line(number: int, raw: object, file: Path) -> NumberedLine:
    """A line of a file. Raises ``UserError`` for a broken one, and for one of an unknown set."""
    where = f"{file.name}, line {number}"
    try:
        line = LumosLine.model_validate(raw)
    except ValidationError as error:
        raise UserError(
            f"{file}, line {number} is broken: {'; '.join(map(wrong_at, error.errors()[:SHOWN]))}",
            "correct or remove it; a line has dataset, id and messages",
        ) from error
    if line.dataset not in DOMAINS:
        raise UserError(
            f"{file}, line {number} is of the unknown set {line.dataset!r}",
            f"give lines of {', '.join(DOMAINS)}",
        )
    return NumberedLine(line, f"{where} ({line.id})")


def is_unrolled(lines: Sequence[NumberedLine]) -> bool:
    """Whether a plan file has a line for each step: then first ones have one turn, and others more."""
    return len(lines[0].line.said) == 2 and any(len(one.line.said) > 2 for one in lines)


def rolled(lines: Iterable[NumberedLine], left_out: list[LeftOut]) -> list[NumberedLine]:
    """The last line of each dialogue, which has all of it, under the dialogue's id."""
    dialogues: dict[str, list[tuple[int, NumberedLine]]] = defaultdict(list)
    for one in lines:
        base, _, step = one.line.id.rpartition("_")
        if not base or not step.isdecimal():
            left_out.append(LeftOut("has an id without a step at its end", one.where))
            continue
        dialogues[base].append((int(step), one))
    found = []
    for base, steps in dialogues.items():
        numbers = sorted(number for number, _ in steps)
        last = max(steps, key=lambda step: step[0])[1]
        start = numbers[0] if numbers[0] in (0, 1) else 0
        if numbers != list(range(start, start + len(last.says))):
            left_out.append(LeftOut(STEPS_MISSING, f"{last.where}"))
        else:
            found.append(NumberedLine(last.line.model_copy(update={"id": base}), last.where))
    return found


def parsed(
    lines: Iterable[NumberedLine], parse: Callable[[NumberedLine], H], left_out: list[LeftOut]
) -> list[H]:
    """What can be taken apart; of lines with one id, the first."""
    found: dict[str, H] = {}
    for one in lines:
        roles = [message.role for message in one.line.said]
        try:
            if roles != ["user", "assistant"] * (len(roles) // 2) or not roles:
                raise Fault(NOT_TURNS)
            if one.line.id in found:
                raise Fault(TWICE)
            found[one.line.id] = parse(one)
        except Fault as fault:
            left_out.append(LeftOut(str(fault), one.where))
        except ValueError as error:
            left_out.append(LeftOut(UNREADABLE, f"{one.where} {error}:"))
    return list(found.values())


class Fault(Exception):
    """Why a line makes no row."""


def planned(at: NumberedLine) -> Planned:
    """A line of a plan file. Raises ``Fault``, or ``ValueError`` for a text that can't be taken apart."""
    said = at.line.said
    first = asked(said[0].content)
    results: tuple[str, ...] = ()
    if len(said) == 2:
        texts = subgoals(at.says[0])
    else:
        *turns, end = at.says
        if end.strip().casefold().rstrip(".") != STOP.casefold().rstrip("."):
            raise Fault(NOT_ENDED)
        texts = []
        for number, text in enumerate(turns, 1):
            texts += subgoals(text.strip().removeprefix(GO_ON).strip(), number)
        if len(texts) != len(turns):
            raise ValueError("has several subgoals in one turn")
        results = tuple(result(one.content) for one in said[2::2])
    return Planned(at, first.task, first.description, tuple(texts), results)


def grounded(at: NumberedLine) -> Grounded:
    """A line of a ground file. Raises ``Fault``, or ``ValueError`` for a text that can't be taken apart."""
    said = at.line.said
    first = asked(said[0].content)
    if not first.subgoals:
        raise ValueError(f"has no {STEP_GIVEN!r}")
    whole = PLAN_GIVEN in said[0].content
    given = tuple(subgoals(first.subgoals)) if whole else (first.subgoals,)
    given += tuple(one.content.partition(STEP_GIVEN)[2].strip() for one in said[2::2])
    groups, last = [], 0
    for text in at.says:
        group = tuple(actions(text, last))
        if not group:
            raise Fault(NO_ACTIONS)
        last = newest(group[-1]) or last
        groups.append(group)
    return Grounded(at, first.task, given, tuple(groups), whole)
