"""Metrics of a planning agent's trajectories: plans, rounds, width, and parallel and serial time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from coterie.environments.protocol import VIOLATIONS
from coterie.environments.workflow.plan import BrokenPlan, Plan
from coterie.environments.workflow.plan_parser import parse_plan
from coterie.environments.workflow.schedule import times
from coterie.environments.workflow.segments import AgentKind, scan, violations
from coterie.tools.tags import OBSERVATION, inside
from coterie.trajectories.calls import ToolResult
from coterie.trajectories.turn import Turn

_PLAN, _GRAPH, _GRAPH_ENDS = "plan", "<graph", "</graph>"


@dataclass(frozen=True, slots=True)
class Round:
    """A message with calls, and their results."""

    turn: Turn
    results: tuple[ToolResult, ...]
    graph: Plan | None
    """The graph at the end of the message, which was run, or ``None``."""

    @property
    def plan(self) -> Plan | None:
        """The last valid plan in the message."""
        return next(reversed(_readable(self.turn.text)[0]), None)

    @property
    def ran(self) -> int:
        """Number of calls that ran, including failed ones."""
        return sum(not one.error or one.seconds > 0 for one in self.results)

    @property
    def critical(self) -> float:
        """Seconds with all independent calls in parallel."""
        seconds = [one.seconds for one in self.results]
        if self.graph is None or len(self.graph.tasks) != len(seconds):
            return max(seconds, default=0.0)
        names = (task.id for task in self.graph.tasks)
        return times(self.graph, zip(names, seconds, strict=True)).critical


def graph_of(text: str) -> Plan | None:
    """Return the graph at the end of a message, or ``None``.

    Raises:
        BrokenPlan: the graph is invalid.
    """
    if not text.rstrip().endswith(_GRAPH_ENDS) or _GRAPH not in text:
        return None
    return parse_plan(text[text.rindex(_GRAPH) :])


def graph_or_none(text: str) -> Plan | None:
    """Return the graph at the end of a message, or ``None`` for a missing or invalid graph."""
    try:
        return graph_of(text)
    except BrokenPlan:
        return None


def rounds_of(turns: Sequence[Turn], actor: str) -> tuple[Round, ...]:
    """Return the messages of an actor with calls, and their results."""
    return tuple(
        Round(turn, after.results, graph_or_none(turn.text))
        for turn, after in pairwise(turns)
        if turn.speaker.name == actor and after.results
    )


def measures(turns: Sequence[Turn], actor: str, kind: AgentKind) -> dict[str, float | int]:
    """Return metrics of the plans and calls of a trajectory.

    * ``plans``, ``broken_plans``: number of valid and invalid plans.
    * ``tasks``, ``levels``, ``plan_width``: size of the first valid plan.
    * ``width``: maximum number of calls in a message.
    * ``early_calls``: calls made before the tasks that they depend on can be done.
    * ``serial_seconds``, ``critical_seconds``: time of all calls in sequence, and with independent calls in parallel.
    """
    plans, broken = _plans(turns, actor)
    rounds = rounds_of(turns, actor)
    shape = plans[0].shape if plans else None
    text = "".join(turn.whole_text or _observation(turn) for turn in turns)
    return {
        "plans": len(plans),
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
    """Count calls in excess of the tasks that can be ready: in round r of a plan, the tasks of its first r levels.

    A plan applies from its own message to the next plan. The count is a lower bound, because a task without a call
    allows another call, and calls that did not run are ignored.
    """
    plans: list[tuple[Plan, bool, list[int]]] = []
    for one in rounds:
        if (plan := one.plan) is not None:
            plans.append((plan, one.graph is None, []))
        if plans:
            plans[-1][2].append(one.ran)
    return sum(calls_before_their_turn(plan, counts) for plan, by_tags, counts in plans if by_tags)


def calls_before_their_turn(plan: Plan, counts: Sequence[int]) -> int:
    """Count the early calls of a plan (see :func:`early_calls`); ``counts`` are the numbers of calls by message."""
    ready = list(accumulate(map(len, plan.levels)))[:-1]  # the last level is not limited
    excess = (so_far - most for so_far, most in zip(accumulate(counts), ready, strict=False))
    return max(0, max(excess, default=0))


def plans_of(text: str) -> Iterator[str]:
    yield from (one.body for one in scan(text).segments if one.name == _PLAN and one.closed)
    if text.rstrip().endswith(_GRAPH_ENDS) and _GRAPH in text:
        yield text[text.rindex(_GRAPH) :]


def _plans(turns: Sequence[Turn], actor: str) -> tuple[list[Plan], int]:
    every = [_readable(turn.text) for turn in turns if turn.speaker.name == actor]
    return [plan for plans, _ in every for plan in plans], sum(broken for _, broken in every)


def _readable(text: str) -> tuple[list[Plan], int]:
    plans: list[Plan] = []
    broken = 0
    for source in plans_of(text):
        try:
            plans.append(parse_plan(source))
        except BrokenPlan:
            broken += 1
    return plans, broken


def _observation(turn: Turn) -> str:
    tag = OBSERVATION
    return "".join(f"<{tag}>{inside(one.text, tag)}</{tag}>" for one in turn.results)
