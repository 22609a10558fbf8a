"""Plan rows of Lumos' two files, joined by id: the plans, and the actions that ground them.

Both forms are read, at once and step by step, and the latter also with a line for each step. Upstream numbered the
lines of each file after it had left some out, so a line whose id does not fit is looked for by its task.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.datasets.lumos_dialogues import (
    DOMAINS,
    NO_ACTIONS,
    SHOWN,
    Grounded,
    H,
    Planned,
    grounded,
    is_unrolled,
    parsed,
    planned,
    read_line,
    read_lines,
    rolled,
)
from coterie.datasets.lumos_text import PLAN_GIVEN, STEP_GIVEN
from coterie.datasets.plan_rows import PlanRow, PlanStep, one_line
from coterie.datasets.reading import numbered
from coterie.datasets.rows import LeftOut
from coterie.errors import UserError
from coterie.progress import Progress

NO_PARTNER = "has no line of its id, or of its task, in the other file"
OTHER_TASK = "has another task than the line of its id in the other file"
OTHER_NUMBER = "has another number of subgoals than its line in the other file"
OTHER_SUBGOALS = "has other subgoals than its line in the other file"
JOINED = 0.5
"""The least share of the longer file's dialogues that must join for two files to belong together."""
_PREPARING = ("KnowledgeQuery", "ParagraphRetrieve", "SetEquation", "Define")
"""Tools whose action is followed by another one of the same subgoal."""


def read_lumos(plan: Path, ground: Path) -> list[PlanRow]:
    """The rows of a plan file and a ground file, in the order of the plans.

    Raises ``UserError`` for a broken line (by file and line), and for lines that do not join or can't be read (how
    many, and the first three).
    """
    rows, left_out, _ = _joined(plan, ground)
    if left_out:
        shown = "; ".join(f"{one.where} {one.reason}" for one in left_out[:SHOWN])
        raise UserError(
            f"{len(left_out):,} lines of {plan.name} and {ground.name} make no row, {len(rows):,} rows are "
            f"whole: {shown}" + "; ..." * (len(left_out) > SHOWN),
            "correct or remove them, or `coterie data prepare` (--from PLAN --from GROUND), which drops them",
        )
    return rows


def join(files: Sequence[Path], progress: Progress) -> Iterator[PlanRow | LeftOut]:
    """The rows of a plan file and a ground file, given in any order, and what makes no row.

    Raises ``UserError`` for a broken line, for other files than these two, and if less than half of the lines join.
    """
    plan, ground = _told_apart(files)
    progress.start(2, "joining plans and actions")
    rows, left_out, most = _joined(plan, ground)
    progress.advance(2)
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
    """Lines by their task, if no other line has it."""
    counts = Counter(one_line(one.task) for one in lines)
    return {one_line(one.task): one for one in lines if counts[one_line(one.task)] == 1}


def _row(plan: Planned, ground: Grounded) -> PlanRow | LeftOut:
    """The row of two lines that belong together."""
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
