"""Read plan rows from Lumos' two files: plans, and the actions that ground them. Lines are joined by id.

A line has the keys ``dataset``, ``id`` and ``messages`` (https://github.com/allenai/lumos). Dialogues have two forms.
In ``onetime`` files, one message requests the full plan or all actions. ``iterative`` files have one turn per subgoal,
and may be ``unrolled`` into one line per step. Instructions around a task are ignored, so their wording does not
matter. Upstream dropped lines before it numbered each file, so lines without a matching id are joined by task.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.config.resolve import wrong_at
from coterie.datasets.files import numbered
from coterie.datasets.plans import Domain, PlanRow, PlanStep, one_line
from coterie.datasets.rows import LeftOut, Text
from coterie.errors import UserError

NAMES: Mapping[Domain, str] = {"maths": "maths", "complex_qa": "complex_qa", "web": "web_agent"}
"""Upstream's names of the domains, in ``dataset``."""

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


class Request(NamedTuple):
    """Parts of a first message."""

    task: str
    description: str
    subgoals: str
    """Text after ``Subgoal(s) to be grounded:``; empty in a plan file."""


def parse_request(text: str) -> Request:
    """Parse a first message, with any instruction before the task. Raise ``ValueError`` without a task."""
    match = _TASK.search(text) or re.search("Task:", text)
    if match is None:
        raise ValueError("has no 'Task:'")
    rest = text[match.end() :]
    description = subgoals = ""
    if marker := _GROUNDED.search(rest):
        rest, subgoals = rest[: marker.start()], rest[marker.end() :]
    elif marker := _DESCRIPTION.search(rest):
        rest, description = rest[: marker.start()], rest[marker.end() :]
        description = description.strip().removesuffix(".")
        description = "" if description.casefold() == NO_DESCRIPTION.casefold() else description
    if not rest.strip():
        raise ValueError("has an empty task")
    return Request(rest.strip(), description.strip(), subgoals.strip())


def split_subgoals(text: str, first: int = 1) -> list[str]:
    """Split ``Subgoal 1: ...; Subgoal 2: ...`` into texts without numbers.

    A later ``Subgoal 1:`` is part of the surrounding text. Raises ``ValueError`` if the text does not begin with
    subgoal ``first`` or skips a number.
    """
    starts: list[re.Match[str]] = []
    for match in _SUBGOAL.finditer(text):
        number = int(match[1])
        if number == first + len(starts):
            starts.append(match)
        elif number > first + len(starts) and text[: match.start()].rstrip().endswith(";"):
            raise ValueError(f"has Subgoal {number} where Subgoal {first + len(starts)} should be")
    if not starts or text[: starts[0].start()].strip():
        raise ValueError(f"does not begin with 'Subgoal {first}:'")
    ends = [match.start() for match in starts[1:]] + [len(text)]
    parts = [text[match.end() : end] for match, end in zip(starts, ends, strict=True)]
    texts = [one_line(part.rstrip().removesuffix(";")) for part in parts[:-1]] + [
        one_line(parts[-1])
    ]
    if not all(texts):
        raise ValueError("has a subgoal without text")
    return texts


def split_actions(text: str, last: int = 0) -> list[str]:
    """Split ``R1 = ...; R2 = ...`` into actions.

    ``Output`` becomes the next name, as in upstream. ``last`` is the number of the last name before the text.
    """
    parts = []
    for part in _ACTION.split(text):
        action = one_line(part).removesuffix(";").rstrip()
        if not action:
            continue
        action = _OUTPUT.sub(f"R{last + 1}", action) if action.startswith("Output") else action
        last = last_number(action) or last
        parts.append(action)
    return parts


def last_number(action: str) -> int:
    """Return the number of the last name that an action assigns; 0 without a name."""
    names = _NAMES.match(action)
    return int(names[1].rsplit("R", 1)[1]) if names else 0


def parse_result(text: str) -> str:
    """Return the result of a subgoal in a message, or an empty text (as in web tasks)."""
    match = _RESULT.search(text)
    return match[2].strip() if match else ""


class Message(BaseModel):
    """Turn of a dialogue."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["system", "user", "assistant"]
    content: str


class LumosLine(BaseModel):
    """Line of a plan file or ground file."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    dataset: Text
    id: Text
    messages: tuple[Message, ...] = Field(min_length=2)

    @property
    def turns(self) -> list[Message]:
        return [message for message in self.messages if message.role != "system"]


TWICE = "has a duplicate id"
NO_ACTIONS = "has a subgoal without actions"
NOT_ENDED = "has a plan without an end"
STEPS_MISSING = "lacks lines of some of its steps"
NOT_TURNS = "has no alternating turns of user and assistant"
UNREADABLE = "can't be parsed"
SHOWN = 3
"""Number of lines in an error."""
DOMAINS: dict[str, Domain] = {name: domain for domain, name in NAMES.items()}


@dataclass(frozen=True, slots=True)
class NumberedLine:
    """Line of a file with its location."""

    line: LumosLine
    where: str
    """File, line and id."""

    @property
    def replies(self) -> list[str]:
        return [turn.content for turn in self.line.turns if turn.role == "assistant"]


@dataclass(frozen=True, slots=True)
class PlanLine:
    """Parsed line of a plan file."""

    at: NumberedLine
    task: str
    description: str
    """Description of the environment at the start; may be empty."""
    subgoals: tuple[str, ...]
    results: tuple[str, ...]
    """Result of each subgoal; empty in one-time plans."""


@dataclass(frozen=True, slots=True)
class GroundLine:
    """Parsed line of a ground file."""

    at: NumberedLine
    task: str
    subgoals: tuple[str, ...]
    """Subgoals of the requests: with their numbers in iterative files, without in one-time files."""
    actions: tuple[tuple[str, ...], ...]
    """Actions of each subgoal; a single group in one-time files."""
    whole: bool
    """True for one-time files."""


H = TypeVar("H", PlanLine, GroundLine)


def read_lines(file: Path) -> list[NumberedLine]:
    """Read all lines of a file. Raise ``UserError`` with file and line for a broken line."""
    return [read_line(place, raw, file) for place, raw in numbered(file)]


def read_line(place: str, raw: object, file: Path) -> NumberedLine:
    """Validate a line. Raise ``UserError`` if it is broken or belongs to an unknown data set."""
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
            f"use lines of {', '.join(DOMAINS)}",
        )
    return NumberedLine(line, f"{where} ({line.id})")


def is_unrolled(lines: Sequence[NumberedLine]) -> bool:
    """Return True if a plan file has a line per step: first steps have two messages, later ones more."""
    return len(lines[0].line.turns) == 2 and any(len(one.line.turns) > 2 for one in lines)


def merge_steps(lines: Iterable[NumberedLine], left_out: list[LeftOut]) -> list[NumberedLine]:
    """Keep the last line of each unrolled dialogue, which contains all steps, with the dialogue's id."""
    dialogues: dict[str, list[tuple[int, NumberedLine]]] = defaultdict(list)
    for one in lines:
        base, _, step = one.line.id.rpartition("_")
        if not base or not step.isdecimal():
            left_out.append(LeftOut("has an id that does not end in a step", one.where))
            continue
        dialogues[base].append((int(step), one))
    merged = []
    for base, steps in dialogues.items():
        numbers = sorted(number for number, _ in steps)
        last = max(steps, key=lambda step: step[0])[1]
        start = numbers[0] if numbers[0] in (0, 1) else 0
        if numbers != list(range(start, start + len(last.replies))):
            left_out.append(LeftOut(STEPS_MISSING, last.where))
        else:
            merged.append(NumberedLine(last.line.model_copy(update={"id": base}), last.where))
    return merged


def parse_lines(
    lines: Iterable[NumberedLine], parse: Callable[[NumberedLine], H], left_out: list[LeftOut]
) -> list[H]:
    """Parse lines. Append unparsable lines and duplicate ids to ``left_out``."""
    by_id: dict[str, H] = {}
    for one in lines:
        roles = [turn.role for turn in one.line.turns]
        try:
            if roles != ["user", "assistant"] * (len(roles) // 2) or not roles:
                raise Fault(NOT_TURNS)
            if one.line.id in by_id:
                raise Fault(TWICE)
            by_id[one.line.id] = parse(one)
        except Fault as fault:
            left_out.append(LeftOut(str(fault), one.where))
        except ValueError as error:
            left_out.append(LeftOut(UNREADABLE, f"{one.where} {error}:"))
    return list(by_id.values())


class Fault(Exception):
    """Reason why a line makes no row."""


def parse_plan(at: NumberedLine) -> PlanLine:
    """Parse a line of a plan file. Raise ``Fault``, or ``ValueError`` for unparsable text."""
    messages = at.line.turns
    request = parse_request(messages[0].content)
    results: tuple[str, ...] = ()
    if len(messages) == 2:
        texts = split_subgoals(at.replies[0])
    else:
        *turns, end = at.replies
        if end.strip().casefold().rstrip(".") != STOP.casefold().rstrip("."):
            raise Fault(NOT_ENDED)
        texts = []
        for number, text in enumerate(turns, 1):
            texts += split_subgoals(text.strip().removeprefix(GO_ON).strip(), number)
        if len(texts) != len(turns):
            raise ValueError("has several subgoals in one turn")
        results = tuple(parse_result(one.content) for one in messages[2::2])
    return PlanLine(at, request.task, request.description, tuple(texts), results)


def parse_ground(at: NumberedLine) -> GroundLine:
    """Parse a line of a ground file. Raise ``Fault``, or ``ValueError`` for unparsable text."""
    messages = at.line.turns
    request = parse_request(messages[0].content)
    if not request.subgoals:
        raise ValueError(f"has no {STEP_GIVEN!r}")
    whole = PLAN_GIVEN in messages[0].content
    subgoals = tuple(split_subgoals(request.subgoals)) if whole else (request.subgoals,)
    subgoals += tuple(one.content.partition(STEP_GIVEN)[2].strip() for one in messages[2::2])
    groups, last = [], 0
    for text in at.replies:
        group = tuple(split_actions(text, last))
        if not group:
            raise Fault(NO_ACTIONS)
        last = last_number(group[-1]) or last
        groups.append(group)
    return GroundLine(at, request.task, subgoals, tuple(groups), whole)


NO_PARTNER = "has no line with its id or task in the other file"
OTHER_TASK = "differs in its task from the line with its id in the other file"
OTHER_NUMBER = "differs in its number of subgoals from its line in the other file"
OTHER_SUBGOALS = "differs in its subgoals from its line in the other file"
JOINED = 0.5
"""Minimum share of the longer file's dialogues that must join."""
_PREPARING = ("KnowledgeQuery", "ParagraphRetrieve", "SetEquation", "Define")
"""Tools whose actions are not the last of their subgoal."""


def join(files: Sequence[Path]) -> Iterator[PlanRow | LeftOut]:
    """Yield the rows of a plan file and a ground file, in any order, and then the lines without a row.

    Raises ``UserError`` for a broken line, for files of other kinds, and if less than half of the lines join.
    """
    plan, ground = _classify(files)
    rows, left_out, most = _join(plan, ground)
    if len(rows) < JOINED * most:
        examples = "; ".join(f"{one.where} {one.reason}" for one in left_out[:SHOWN])
        raise UserError(
            f"only {len(rows):,} rows can be made of {plan.name} and {ground.name}; {len(left_out):,} lines "
            f"make none: {examples}",
            "give a plan file and a ground file of the same data set and form",
        )
    yield from rows
    yield from left_out


def _classify(files: Sequence[Path]) -> tuple[Path, Path]:
    """Return the plan file and the ground file, recognized by their first requests."""
    kinds: dict[bool, list[Path]] = {True: [], False: []}
    for file in files:
        first = read_line(*next(numbered(file)), file)
        text = "\n".join(turn.content for turn in first.line.turns[:1])
        kinds[PLAN_GIVEN in text or STEP_GIVEN in text].append(file)
    if [len(kinds[True]), len(kinds[False])] != [1, 1]:
        names = ", ".join(file.name for file in files)
        raise UserError(
            f"{len(kinds[False])} plan files and {len(kinds[True])} ground files are given ({names})",
            "give one of each: --from PLAN.jsonl --from GROUND.jsonl",
        )
    return kinds[False][0], kinds[True][0]


def _join(plan: Path, ground: Path) -> tuple[list[PlanRow], list[LeftOut], int]:
    """Return the rows, the lines without a row, and the number of dialogues of the longer file."""
    plan_lines, ground_lines = read_lines(plan), read_lines(ground)
    left_out: list[LeftOut] = []
    if is_unrolled(plan_lines):
        plan_lines = merge_steps(plan_lines, left_out)
        ground_lines = merge_steps(ground_lines, left_out)
    plans = parse_lines(plan_lines, parse_plan, left_out)
    grounds = parse_lines(ground_lines, parse_ground, left_out)
    rows = []
    for one, other in _pairs(plans, grounds, left_out):
        row = _row(one, other)
        if isinstance(row, LeftOut):
            left_out.append(row)
        else:
            rows.append(row)
    return rows, left_out, max(len(plan_lines), len(ground_lines))


def _pairs(
    plans: Sequence[PlanLine], grounds: Sequence[GroundLine], left_out: list[LeftOut]
) -> Iterator[tuple[PlanLine, GroundLine]]:
    """Pair lines with equal id and task, then lines with a task that occurs once in each file."""
    by_id = {one.at.line.id: one for one in grounds}
    partner: dict[str, GroundLine] = {}
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


def _row(plan: PlanLine, ground: GroundLine) -> PlanRow | LeftOut:
    where = f"{plan.at.where} with {ground.at.where}"
    if len(plan.subgoals) != len(ground.subgoals):
        return LeftOut(OTHER_NUMBER, where)
    for number, (ours, theirs) in enumerate(zip(plan.subgoals, ground.subgoals, strict=True), 1):
        expected = ours if ground.whole else f"Subgoal {number}: {ours}"
        if not one_line(theirs).startswith(expected):
            return LeftOut(OTHER_SUBGOALS, where)
    groups, aligned = (
        _group_actions(ground.actions[0], len(plan.subgoals))
        if ground.whole
        else (ground.actions, True)
    )
    if len(groups) != len(plan.subgoals):
        return LeftOut(NO_ACTIONS, where)
    line = plan.at.line
    results = plan.results if len(plan.results) == len(groups) else ("",) * len(groups)
    domain = DOMAINS[line.dataset]
    last = groups[-1][-1] if domain == "web" else results[-1]
    return PlanRow(
        id=line.id,
        question=plan.task,
        answer=last,
        steps=tuple(
            PlanStep(subgoal=subgoal, actions=group, result=result)
            for subgoal, group, result in zip(plan.subgoals, groups, results, strict=True)
        ),
        domain=domain,
        description=plan.description,
        aligned=aligned,
    )


def _group_actions(flat: Sequence[str], count: int) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Group the actions of a full plan by subgoal. Return the groups and True if the assignment is certain.

    It is certain if there is one action per subgoal, or if the tools show which actions end a subgoal. Too few actions
    give too few groups.
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
