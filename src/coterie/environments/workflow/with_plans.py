"""A planning agent with tools: a graph that it writes is carried out, each call as soon as what it waits for is there.

    <graph><node id="s1">wiki_search("director of Film A")</node>
    <node id="s2" depends="s1">wiki_search("birthplace of {s1}")</node></graph>

This is the form of GAP's paper. In the form that its models are trained on, the plan is a list of tasks and the agent
makes the calls of a level by itself, as tags; so it is too where a graph can't be read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coterie.environments.protocol import Environment, Grade, State
from coterie.environments.traits import agents_of
from coterie.environments.with_tools import WithTools
from coterie.environments.workflow.measures import graph_of, graph_or_none, measures
from coterie.environments.workflow.plan import BrokenPlan, Plan, Task
from coterie.environments.workflow.schedule import Outcome, PlanLimits, run_as_soon_as_possible
from coterie.environments.workflow.segments import AgentKind
from coterie.tools.run import ToolError
from coterie.tools.tags import Tags
from coterie.tools.toolbox import Toolbox
from coterie.trajectories.calls import Tool, ToolCall, ToolResult, call_id
from coterie.trajectories.turn import Finish, Message, Turn

BOUND = 400
"""Characters of a result that stand in the text of a task that waits for it."""


@dataclass(frozen=True, slots=True)
class PlanTags(Tags):
    """Tags, and graphs: a message ends with either."""

    terse: bool = False
    """Whether prompts say nothing of the tools, to an agent that was trained on the form."""
    graphs: bool = True

    def __post_init__(self) -> None:
        super(PlanTags, self).__post_init__()
        if self.graphs:
            object.__setattr__(self, "stop", (*self.stop, "</graph>"))

    def with_tools(self, shown: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Messages whose system prompt teaches the tools, where they are taught."""
        return tuple(shown) if self.terse else super(PlanTags, self).with_tools(shown, tools)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """The calls of a message: the tasks of the graph that it ends with, or its tags."""
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
        """By which rules the order of its tags is judged."""
        ...


class WithPlans(WithTools):
    """Also runs graphs, and measures plans."""

    environment: Planning

    async def results(
        self, toolbox: Toolbox, calls: Sequence[ToolCall], turn: Turn
    ) -> tuple[ToolResult, ...]:
        """Of the graph that a message ends with, by its schedule; of other calls side by side."""
        plan = self._graph(turn) if len(calls) > 1 else None
        if plan is None:
            return await super().results(toolbox, calls, turn)
        return await _carried_out(plan, calls, toolbox, self, turn)

    def refuses_repeats(self, turn: Turn) -> bool:
        """Not those of a graph: others wait for their results, and what they ask is known only when it is bound."""
        return self._graph(turn) is None and super().refuses_repeats(turn)

    def _graph(self, turn: Turn) -> Plan | None:
        """The graph that a turn ends with; ``None`` for none, or for one that can't be read."""
        graphs = isinstance(self.syntax, PlanTags) and self.syntax.graphs
        return graph_or_none(turn.text) if graphs else None

    async def grade(self, state: State, live: object) -> Grade:
        found = await super().grade(state, live)
        (agent,) = agents_of(self.environment)
        how = measures(state.turns, agent, self.environment.kind)
        return replace(found, metrics={**found.metrics, **how})


async def _carried_out(
    plan: Plan, calls: Sequence[ToolCall], toolbox: Toolbox, environment: WithPlans, turn: Turn
) -> tuple[ToolResult, ...]:
    """The results of a plan's calls, in the plan's order; each names its task.

    Where one of them changes something, they run one after the other.
    """
    by_task = dict(zip((task.id for task in plan.tasks), calls, strict=True))
    ran: dict[str, ToolResult] = {}
    syntax = environment.syntax
    assert isinstance(syntax, PlanTags), "only these have graphs"

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
    found = await run_as_soon_as_possible(plan, run, limits)
    return tuple(_result(by_task[one.id].id, one, ran.get(one.id)) for one in found)


def _result(id_: str, outcome: Outcome, result: ToolResult | None) -> ToolResult:
    text = outcome.text if result is None else result.text
    left_out = 0 if result is None else result.left_out
    failed = outcome.state != "done"
    return ToolResult(
        id_, f"{outcome.id}: {text}", failed, outcome.began, outcome.seconds, left_out
    )
