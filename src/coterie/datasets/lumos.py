"""Plan rows of Lumos' two files, joined by id: the plans, and the actions that ground them.

A line has the keys ``dataset``, ``id`` and ``messages`` (https://github.com/allenai/lumos). There are two forms of a
dialogue. At once (``onetime``): one message asks for the whole plan, or for all actions. Step by step (``iterative``):
a turn for each subgoal, also ``unrolled`` to a line for each step. Instructions around a task are not read, so they may
be of any wording. Upstream numbered the lines of each file after it had left some out, so a line whose id does not fit
is looked for by its task.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.config.plain import wrong_at
from coterie.datasets.files import numbered
from coterie.datasets.plans import Domain, PlanRow, PlanStep, one_line
from coterie.datasets.rows import LeftOut, Text
from coterie.errors import UserError

NAMES: Mapping[Domain, str] = {"maths": "maths", "complex_qa": "complex_qa", "web": "web_agent"}
"""What upstream calls the domains, under ``dataset``."""

STOP = "Yes, I will stop planning."
GO_ON = "No, I will keep planning."
PLAN_GIVEN = "Subgoals to be grounded:"
STEP_GIVEN = "Subgoal to be grounded:"
NO_DESCRIPTION = "None"

_TASK = re.compile(r"^Task:", re.MULTILINE)
_DESCRIPTION = re.compile(r";?\s*Initial Environment Description:")
_GROUNDED = re.compile(r"\s*Subgoals? to be grounded:")
_SUBGOAL = re.compile(r"(?:^|(?<=[;.?!\s]))\s*Subgoal\s+(\d+):\s*")
_ACTION = re.compile(r";\s*(?=(?:R\d+(?:\s*,\s*R\d+)*|Output)\s*=)")
_OUTPUT = re.compile(r"\bOutput\b(?=\s*=)")
_NAMES = re.compile(r"(R\d+(?:\s*,\s*R\d+)*)\s*=")
_RESULT = re.compile(
    r"The executed result for Subgoal\s+(\d+) is (.*)\. Should we stop planning\?\s*$", re.S
)


class Asked(NamedTuple):
    """What a first message asks."""

    task: str
    description: str
    subgoals: str
    """Of a message that asks for actions: what follows ``Subgoal(s) to be grounded:``; otherwise empty."""


def asked(text: str) -> Asked:
    """The parts of a first message, whatever instruction stands before them. Raises ``ValueError`` without a task."""
    found = _TASK.search(text) or re.search("Task:", text)
    if found is None:
        raise ValueError("has no 'Task:'")
    rest = text[found.end() :]
    description = subgoals = ""
    if given := _GROUNDED.search(rest):
        rest, subgoals = rest[: given.start()], rest[given.end() :]
    elif described := _DESCRIPTION.search(rest):
        rest, description = rest[: described.start()], rest[described.end() :]
        description = description.strip().removesuffix(".")
        description = "" if description.casefold() == NO_DESCRIPTION.casefold() else description
    if not rest.strip():
        raise ValueError("has an empty task")
    return Asked(rest.strip(), description.strip(), subgoals.strip())


def subgoals(text: str, first: int = 1) -> list[str]:
    """Of ``Subgoal 1: ...; Subgoal 2: ...``, each without its number.

    A later ``Subgoal 1:`` is a part of the text that it stands in. Raises ``ValueError`` for a text that does not begin
    with subgoal ``first``, and for a number that is left out.
    """
    starts: list[re.Match[str]] = []
    for found in _SUBGOAL.finditer(text):
        number = int(found[1])
        if number == first + len(starts):
            starts.append(found)
        elif number > first + len(starts) and text[: found.start()].rstrip().endswith(";"):
            raise ValueError(f"has Subgoal {number} where Subgoal {first + len(starts)} should be")
    if not starts or text[: starts[0].start()].strip():
        raise ValueError(f"does not begin with 'Subgoal {first}:'")
    ends = [found.start() for found in starts[1:]] + [len(text)]
    parts = [text[found.end() : end] for found, end in zip(starts, ends, strict=True)]
    texts = [one_line(part.rstrip().removesuffix(";")) for part in parts[:-1]] + [
        one_line(parts[-1])
    ]
    if not all(texts):
        raise ValueError("has a subgoal without text")
    return texts


def actions(text: str, last: int = 0) -> list[str]:
    """The actions of ``R1 = ...; R2 = ...``.

    ``Output`` becomes the next name, as upstream does it; ``last`` is the number of the newest name before the text.
    """
    done = []
    for part in _ACTION.split(text):
        action = one_line(part).removesuffix(";").rstrip()
        if not action:
            continue
        action = _OUTPUT.sub(f"R{last + 1}", action) if action.startswith("Output") else action
        last = newest(action) or last
        done.append(action)
    return done


def newest(action: str) -> int:
    """The number of the name that an action's result gets; 0 if it gets none."""
    names = _NAMES.match(action)
    return int(names[1].rsplit("R", 1)[1]) if names else 0


def result(text: str) -> str:
    """What a message says that a subgoal came to; empty if it says nothing of it, as on the web."""
    found = _RESULT.search(text)
    return found[2].strip() if found else ""


class Message(BaseModel):
    """One turn of a dialogue."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class LumosLine(BaseModel):
    """One line of a plan file or a ground file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    dataset: Text
    id: Text
    messages: tuple[Message, ...] = Field(min_length=2)

    @property
    def said(self) -> list[Message]:
        return [message for message in self.messages if message.role != "system"]


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


H = TypeVar("H", Planned, Grounded)


def read_lines(file: Path) -> list[NumberedLine]:
    """All lines of a file. Raises ``UserError`` for a broken one, by file and line."""
    return [read_line(place, raw, file) for place, raw in numbered(file)]


def read_line(place: str, raw: object, file: Path) -> NumberedLine:
    """A line of a file. Raises ``UserError`` for a broken one, and for one of an unknown set."""
    where = f"{file.name}, {place}"
    try:
        line = LumosLine.model_validate(raw)
    except ValidationError as error:
        raise UserError(
            f"{file}, {place} is broken: {'; '.join(map(wrong_at, error.errors()[:SHOWN]))}",
            "correct or remove it; a line has dataset, id and messages",
        ) from error
    if line.dataset not in DOMAINS:
        raise UserError(
            f"{file}, {place} is of the unknown set {line.dataset!r}",
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


NO_PARTNER = "has no line of its id, or of its task, in the other file"
OTHER_TASK = "has another task than the line of its id in the other file"
OTHER_NUMBER = "has another number of subgoals than its line in the other file"
OTHER_SUBGOALS = "has other subgoals than its line in the other file"
JOINED = 0.5
"""The least share of the longer file's dialogues that must join for two files to belong together."""
_PREPARING = ("KnowledgeQuery", "ParagraphRetrieve", "SetEquation", "Define")
"""Tools whose action is followed by another one of the same subgoal."""


def join(files: Sequence[Path]) -> Iterator[PlanRow | LeftOut]:
    """The rows of a plan file and a ground file, given in any order, and what makes no row.

    Raises ``UserError`` for a broken line, for other files than these two, and if less than half of the lines join.
    """
    plan, ground = _told_apart(files)
    rows, left_out, most = _joined(plan, ground)
    if len(rows) < JOINED * most:
        shown = "; ".join(f"{one.where} {one.reason}" for one in left_out[:SHOWN])
        raise UserError(
            f"only {len(rows):,} rows can be made of {plan.name} and {ground.name}, and {len(left_out):,} lines "
            f"make none: {shown}",
            "give a plan file and a ground file of the same set and form",
        )
    yield from rows
    yield from left_out


def _told_apart(files: Sequence[Path]) -> tuple[Path, Path]:
    """The plan file and the ground file, told by what their first lines ask for."""
    kinds: dict[bool, list[Path]] = {True: [], False: []}
    for file in files:
        first = read_line(*next(numbered(file)), file)
        text = "\n".join(one.content for one in first.line.said[:1])
        kinds[PLAN_GIVEN in text or STEP_GIVEN in text].append(file)
    if [len(kinds[True]), len(kinds[False])] != [1, 1]:
        names = ", ".join(file.name for file in files)
        raise UserError(
            f"{len(kinds[False])} plan files and {len(kinds[True])} ground files are given ({names})",
            "give one of each: --from PLAN.jsonl --from GROUND.jsonl",
        )
    return kinds[False][0], kinds[True][0]


def _joined(plan: Path, ground: Path) -> tuple[list[PlanRow], list[LeftOut], int]:
    """The rows, what makes none, and how many dialogues the longer file has."""
    plan_lines, ground_lines = read_lines(plan), read_lines(ground)
    left_out: list[LeftOut] = []
    if is_unrolled(plan_lines):
        plan_lines = rolled(plan_lines, left_out)
        ground_lines = rolled(ground_lines, left_out)
    plans = parsed(plan_lines, planned, left_out)
    grounds = parsed(ground_lines, grounded, left_out)
    rows = []
    for one, other in _pairs(plans, grounds, left_out):
        made = _row(one, other)
        if isinstance(made, LeftOut):
            left_out.append(made)
        else:
            rows.append(made)
    return rows, left_out, max(len(plan_lines), len(ground_lines))


def _pairs(
    plans: Sequence[Planned], grounds: Sequence[Grounded], left_out: list[LeftOut]
) -> Iterator[tuple[Planned, Grounded]]:
    """Plans with their grounds: those of the same id and task, then those of a task that each file has once."""
    by_id = {one.at.line.id: one for one in grounds}
    partner: dict[str, Grounded] = {}
    for plan in plans:
        ground = by_id.get(plan.at.line.id)
        if ground is not None and one_line(ground.task) == one_line(plan.task):
            partner[plan.at.line.id] = ground
    free = [one for one in grounds if one.at.line.id not in partner]
    alone = [one for one in plans if one.at.line.id not in partner]
    free_by_task, alone_by_task = _by_task(free), _by_task(alone)
    used = set(partner)
    for plan in alone:
        same = free_by_task.get(one_line(plan.task))
        if same is not None and one_line(plan.task) in alone_by_task:
            partner[plan.at.line.id] = same
            used.add(same.at.line.id)
    for plan in plans:
        if plan.at.line.id in partner:
            yield plan, partner[plan.at.line.id]
        else:
            other = plan.at.line.id in by_id and plan.at.line.id not in used
            left_out.append(LeftOut(OTHER_TASK if other else NO_PARTNER, plan.at.where))
    left_out += [LeftOut(NO_PARTNER, one.at.where) for one in free if one.at.line.id not in used]


def _by_task(lines: Sequence[H]) -> dict[str, H]:
    counts = Counter(one_line(one.task) for one in lines)
    return {one_line(one.task): one for one in lines if counts[one_line(one.task)] == 1}


def _row(plan: Planned, ground: Grounded) -> PlanRow | LeftOut:
    where = f"{plan.at.where} with {ground.at.where}"
    if len(plan.subgoals) != len(ground.given):
        return LeftOut(OTHER_NUMBER, where)
    for number, (ours, theirs) in enumerate(zip(plan.subgoals, ground.given, strict=True), 1):
        expected = ours if ground.whole else f"Subgoal {number}: {ours}"
        if not one_line(theirs).startswith(expected):
            return LeftOut(OTHER_SUBGOALS, where)
    dealt, aligned = (
        _dealt(ground.actions[0], len(plan.subgoals)) if ground.whole else (ground.actions, True)
    )
    if len(dealt) != len(plan.subgoals):
        return LeftOut(NO_ACTIONS, where)
    line = plan.at.line
    results = plan.results if len(plan.results) == len(dealt) else ("",) * len(dealt)
    domain = DOMAINS[line.dataset]
    last = dealt[-1][-1] if domain == "web" else results[-1]
    return PlanRow(
        id=line.id,
        question=plan.task,
        answer=last,
        steps=tuple(
            PlanStep(subgoal=subgoal, actions=group, result=came)
            for subgoal, group, came in zip(plan.subgoals, dealt, results, strict=True)
        ),
        domain=domain,
        description=plan.description,
        aligned=aligned,
    )


def _dealt(flat: Sequence[str], count: int) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """The actions of a whole plan by subgoal, and whether they are known to belong there; none if they are too few.

    They are told apart by their number if it is that of the subgoals; or by their tools, for a subgoal's last action is
    one that gives what was asked for.
    """
    if len(flat) <= count:
        return tuple((one,) for one in flat), len(flat) == count
    sizes = [0]
    for action in flat:
        sizes[-1] += 1
        if not action.partition("=")[2].strip().startswith(_PREPARING):
            sizes.append(0)
    if not sizes[-1] and len(sizes) == count + 1:
        return _cut(flat, sizes[:-1]), True
    return _cut(flat, [1] * (count - 1) + [len(flat) - count + 1]), False


def _cut(flat: Sequence[str], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    rest = iter(flat)
    return tuple(tuple(next(rest) for _ in range(size)) for size in sizes)
