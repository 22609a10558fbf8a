"""What the trajectories of a planning agent are like: plans, rounds, width, and time as planned against one by one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from coterie.environments.protocol import VIOLATIONS
from coterie.environments.workflow.plan import BrokenPlan, Plan
from coterie.environments.workflow.schedule import times
from coterie.environments.workflow.segments import AgentKind, scan, violations
from coterie.environments.workflow.written import parse_plan
from coterie.tools.tags import OBSERVATION, inside
from coterie.trajectories.calls import ToolResult
from coterie.trajectories.turn import Turn

_PLAN, _GRAPH, _GRAPH_ENDS = "plan", "<graph", "</graph>"


@dataclass(frozen=True, slots=True)
class Round:
    """A message that called, and what came back."""

    turn: Turn
    results: tuple[ToolResult, ...]
    graph: Plan | None
    """The plan that was carried out, where the message ended with one."""

    @property
    def plan(self) -> Plan | None:
        """The last plan in the message that can be read."""
        return next(reversed(_readable(self.turn.text)[0]), None)

    @property
    def ran(self) -> int:
        """How many of its calls were run, whatever came of it."""
        return sum(not one.error or one.seconds > 0 for one in self.results)

    @property
    def critical(self) -> float:
        """Seconds, had all that waits for nothing run at the same time."""
        seconds = [one.seconds for one in self.results]
        if self.graph is None or len(self.graph.tasks) != len(seconds):
            return max(seconds, default=0.0)
        names = (task.id for task in self.graph.tasks)
        return times(self.graph, zip(names, seconds, strict=True)).critical


def graph_of(text: str) -> Plan | None:
    """The plan that a message ends with and that is to be carried out; ``None`` if it ends with none.

    Raises :class:`BrokenPlan`.
    """
    if not text.rstrip().endswith(_GRAPH_ENDS) or _GRAPH not in text:
        return None
    return parse_plan(text[text.rindex(_GRAPH) :])


def graph_or_none(text: str) -> Plan | None:
    """As :func:`graph_of`, but ``None`` also for a plan that can't be read."""
    try:
        return graph_of(text)
    except BrokenPlan:
        return None


def rounds_of(turns: Sequence[Turn], actor: str) -> tuple[Round, ...]:
    """The messages of an actor that called, with their results."""
    return tuple(
        Round(turn, after.results, graph_or_none(turn.text))
        for turn, after in pairwise(turns)
        if turn.speaker.name == actor and after.results
    )


def measures(turns: Sequence[Turn], actor: str, kind: AgentKind) -> dict[str, float | int]:
    """What the plans and the calls of a path are like.

    ``plans`` and ``broken_plans`` are counted; ``tasks``, ``levels`` and ``plan_width`` are those of the first plan
    that could be read; ``width`` is the most calls of a message; ``early_calls`` are those that were made before the
    tasks that they wait for can have been done; ``serial_seconds`` is the time of all calls one after the other, and
    ``critical_seconds`` the time that they take where all that waits for nothing runs at the same time.
    """
    found, broken = _plans(turns, actor)
    rounds = rounds_of(turns, actor)
    shape = found[0].shape if found else None
    text = "".join(turn.whole_text or _shown(turn) for turn in turns)
    return {
        "plans": len(found),
        "broken_plans": broken,
        "tasks": shape.tasks if shape else 0,
        "levels": shape.levels if shape else 0,
        "plan_width": shape.width if shape else 0,
        "width": max((len(one.results) for one in rounds), default=0),
        "early_calls": early_calls(rounds),
        VIOLATIONS: len(violations(text, kind)),
        "serial_seconds": round(sum(r.seconds for one in rounds for r in one.results), 6),
        "critical_seconds": round(sum(one.critical for one in rounds), 6),
    }


def early_calls(rounds: Sequence[Round]) -> int:
    """Calls that are more than the tasks whose turn it can have been: in round r of a plan those of its first r levels.

    A plan is followed from its own message to the next plan. A task that needs no call makes room for another one, and
    calls that were not run count for nothing, so this is the least number.
    """
    followed: list[tuple[Plan, bool, list[int]]] = []
    for one in rounds:
        if (plan := one.plan) is not None:
            followed.append((plan, one.graph is None, []))
        if followed:
            followed[-1][2].append(one.ran)
    return sum(calls_before_their_turn(plan, made) for plan, by_tags, made in followed if by_tags)


def calls_before_their_turn(plan: Plan, made: Sequence[int]) -> int:
    """As :func:`early_calls`, of one plan; ``made`` has how many calls were made, message by message."""
    ready = list(accumulate(map(len, plan.levels)))[
        :-1
    ]  # of the last level as many as the agent likes
    beyond = (so_far - most for so_far, most in zip(accumulate(made), ready, strict=False))
    return max(0, max(beyond, default=0))


def plans_of(text: str) -> Iterator[str]:
    yield from (one.body for one in scan(text).segments if one.name == _PLAN and one.closed)
    if text.rstrip().endswith(_GRAPH_ENDS) and _GRAPH in text:
        yield text[text.rindex(_GRAPH) :]


def _plans(turns: Sequence[Turn], actor: str) -> tuple[list[Plan], int]:
    every = [_readable(turn.text) for turn in turns if turn.speaker.name == actor]
    return [plan for plans, _ in every for plan in plans], sum(broken for _, broken in every)


def _readable(text: str) -> tuple[list[Plan], int]:
    found: list[Plan] = []
    broken = 0
    for written in plans_of(text):
        try:
            found.append(parse_plan(written))
        except BrokenPlan:
            broken += 1
    return found, broken


def _shown(turn: Turn) -> str:
    tag = OBSERVATION
    return "".join(f"<{tag}>{inside(one.text, tag)}</{tag}>" for one in turn.results)
