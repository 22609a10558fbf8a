"""Wrapper of a planning agent with tools that runs graphs, each call as soon as its dependencies are done.

    <graph><node id="s1">wiki_search("director of Film A")</node>
    <node id="s2" depends="s1">wiki_search("birthplace of {s1}")</node></graph>

This is the form of GAP's paper. GAP's models are trained on another form, in which the plan is a list of tasks and the
agent itself makes the calls of a level as tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coterie.environments.protocol import Environment, Grade, State
from coterie.environments.traits import agents_of
from coterie.environments.with_tools import WithTools
from coterie.environments.workflow.measures import graph_of, graph_or_none, measures
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task
from coterie.environments.workflow.schedule import Outcome, PlanLimits, run_plan
from coterie.environments.workflow.segments import AgentKind
from coterie.tools.calls import ToolError
from coterie.tools.registry import Toolbox
from coterie.tools.tags import Tags
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
from coterie.trajectories.turn import Finish, Message, Turn

BOUND = 400
"""Maximum characters of a result in the text of a dependent task."""


@dataclass(frozen=True, slots=True)
class PlanTags(Tags):
    """Syntax of calls as tags or graphs at the end of a message."""

    terse: bool = False
    """True if prompts omit the tools, for an agent that is trained on the format."""
    graphs: bool = True

    def __post_init__(self) -> None:
        super(PlanTags, self).__post_init__()
        if self.graphs:
            object.__setattr__(self, "stop", (*self.stop, "</graph>"))

    def with_tools(self, shown: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Return the messages with the tools in the system prompt, unless it is terse."""
        return tuple(shown) if self.terse else super(PlanTags, self).with_tools(shown, tools)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """Return the calls of a message: the tasks of its final graph, or its tags."""
        if not self.graphs:
            return super(PlanTags, self).parse(text, finish)
        try:
            plan = graph_of(text)
        except BrokenPlan as error:
            return (
                ToolCall(call_id(0), "graph", "{}", f"not run: the graph can't be read: {error}"),
            )
        if plan is None:
            return super(PlanTags, self).parse(text, finish)
        return tuple(self._call(number, task) for number, task in enumerate(plan.tasks))

    def _call(self, number: int, task: Task) -> ToolCall:
        name = task.tool or (next(iter(self.calls)) if len(self.calls) == 1 else "")
        if name not in self.calls:
            known = ", ".join(self.calls)
            wrong = f"not run: {name or task.text[:40]!r} is not a tool; there is {known}"
            return ToolCall(call_id(number), name or "graph", "{}", wrong)
        return ToolCall(call_id(number), name, self.arguments(name, task.text))


class Planning(Environment, Protocol):
    """An environment of one agent that plans."""

    @property
    def kind(self) -> AgentKind:
        """Kind of agent, which determines the rules for the order of tags."""
        ...


class WithPlans(WithTools):
    """Environment with tools that runs graphs and measures plans."""

    environment: Planning

    async def results(
        self, toolbox: Toolbox, calls: Sequence[ToolCall], turn: Turn
    ) -> tuple[ToolResult, ...]:
        """Run a final graph by its schedule, or other calls in parallel."""
        plan = self._graph(turn) if len(calls) > 1 else None
        if plan is None:
            return await super().results(toolbox, calls, turn)
        return await _run_graph(plan, calls, toolbox, self, turn)

    def refuses_repeats(self, turn: Turn) -> bool:
        """Return False for calls of a graph, whose results others need and whose arguments are not bound yet."""
        return self._graph(turn) is None and super().refuses_repeats(turn)

    def _graph(self, turn: Turn) -> Plan | None:
        """Return the final graph of a turn, or ``None`` for a missing or invalid graph."""
        graphs = isinstance(self.syntax, PlanTags) and self.syntax.graphs
        return graph_or_none(turn.text) if graphs else None

    async def grade(self, state: State, live: object) -> Grade:
        grade = await super().grade(state, live)
        (agent,) = agents_of(self.environment)
        how = measures(state.turns, agent, self.environment.kind)
        return replace(grade, metrics={**grade.metrics, **how})


async def _run_graph(
    plan: Plan, calls: Sequence[ToolCall], toolbox: Toolbox, environment: WithPlans, turn: Turn
) -> tuple[ToolResult, ...]:
    """Run the calls of a plan. Return results in the plan's order, each with the name of its task.

    If a call has side effects, all calls run in sequence.
    """
    by_task = dict(zip((task.id for task in plan.tasks), calls, strict=True))
    ran: dict[str, ToolResult] = {}
    syntax = environment.syntax
    assert isinstance(syntax, PlanTags), "only PlanTags has graphs"

    async def run(id_: str, text: str) -> str:
        call = by_task[id_]
        if not call.error:
            call = replace(call, arguments=syntax.arguments(call.name, text))
        (result,) = await toolbox.run(
            [replace(call, id=call_id(0))], environment.offered, turn.whole_text
        )
        ran[id_] = result
        if result.error:
            raise ToolError(result.text)
        return " ".join(result.text.split())[:BOUND]

    alone = any(environment.changes(call) for call in calls)
    width = 1 if alone else toolbox.limits.width
    limits = PlanLimits(width=width, calls=toolbox.limits.max_calls)
    outcomes = await run_plan(plan, run, limits)
    return tuple(_result(by_task[one.id].id, one, ran.get(one.id)) for one in outcomes)


def _result(id_: str, outcome: Outcome, result: ToolResult | None) -> ToolResult:
    text = outcome.text if result is None else result.text
    left_out = 0 if result is None else result.left_out
    failed = outcome.state != "done"
    return ToolResult(
        id_, f"{outcome.id}: {text}", failed, outcome.began, outcome.seconds, left_out
    )
