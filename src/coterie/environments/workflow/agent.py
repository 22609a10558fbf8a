"""Agents that plan, call tools and answer: measures of trajectories, execution of graphs, and the base environment.

    <graph><node id="s1">wiki_search("director of Film A")</node>
    <node id="s2" depends="s1">wiki_search("birthplace of {s1}")</node></graph>

This is the form of GAP's paper. GAP's models are trained on another form, in which the plan is a list of tasks and the
agent itself makes the calls of a level as tags.

:class:`WorkflowAgent` defines the actor, the prompt, the ending and the tools. Subclasses define tasks, answers and
grades (``environment``: questions; ``code``: programs and mathematics).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Literal, Protocol

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.protocol import (
    VIOLATIONS,
    ActorKind,
    Environment,
    Grade,
    Pure,
    State,
    Transition,
    agents_of,
)
from coterie.environments.settings import EnvironmentSettings, draw
from coterie.environments.talk import ANSWERED
from coterie.environments.with_tools import WithTools, with_tools
from coterie.environments.workflow.plan import (
    BrokenPlan,
    Outcome,
    Plan,
    PlanLimits,
    parse_plan,
    run_plan,
    times,
)
from coterie.environments.workflow.plan import Task as PlanTask
from coterie.environments.workflow.trace import AgentKind, scan, violations
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Ending, Task
from coterie.record.turn import Finish, Message, Part, Tool, ToolCall, ToolResult, Turn, call_id
from coterie.tools.calls import NativeCalls, ToolError, ToolSource
from coterie.tools.registry import Toolbox, ToolsSettings
from coterie.tools.tags import OBSERVATION, Tags, inside

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

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Return the messages with the tools in the system prompt, unless it is terse."""
        return tuple(messages) if self.terse else super(PlanTags, self).with_tools(messages, tools)

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

    def _call(self, number: int, task: PlanTask) -> ToolCall:
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


AGENT = "agent"
NO_ANSWER = Ending("no answer")
ANSWER = "answer"


class AgentSettings(EnvironmentSettings):
    """Settings of prompts and answers."""

    lenient: bool = key(
        False,
        "Accept answers outside their tag, for models without training on the format.",
    )
    prompt: Literal["full", "short", "closed"] = key(
        "full",
        "Content of the prompt: the format and the tools (`full`); one line, for a model that is trained on the format "
        "(`short`); or a request to answer from memory, for an agent without tools (`closed`, with tools=[]).",
    )


class WorkflowAgent(Pure, ABC):
    """Base class for an agent with tools."""

    kind: AgentKind
    """Kind of agent, which determines the rules for the order of tags."""
    graphs = True
    name: str
    metric: str
    settings: AgentSettings
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent"})
    limits: Mapping[str, int] = MappingProxyType({"turns": 1})
    """Limit of answers; messages with calls do not count."""

    rows: Rows

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split, or fewer if the data set has fewer."""
        return [self.task_of(row) for row in draw(self.rows, split, count, seed, after)]

    @abstractmethod
    def task_of(self, row: QuestionRow) -> Task:
        """Return a row as a task."""

    @abstractmethod
    def instructions(self) -> str:
        """Return the system prompt; the tools are appended if it is not terse."""

    @abstractmethod
    def read(self, text: str) -> str | None:
        """Return the answer in a message, or ``None``."""

    @abstractmethod
    async def grade(self, state: State, live: Any) -> Grade: ...

    def request(self, task: Task) -> str:
        return f"Question: {task.public['question']}"

    @property
    def terse(self) -> bool:
        """True if the prompt omits the format and the tools."""
        return self.settings.prompt != "full"

    def acting(self, state: State) -> tuple[str, ...]:
        return (AGENT,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        return (
            Message("system", (Part(self.instructions(), source="task"),)),
            Message("user", (Part(self.request(state.task), source="task"),)),
            *(Message("assistant", turn=turn.id) for turn in state.turns),
        )

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End with an answer, without one, or with a truncated message."""
        turn = turns[-1]
        answer = self.read(turn.text)
        if answer is None:
            return Transition(end=LENGTH if turn.truncated else NO_ANSWER)
        return Transition(answer=answer, end=ANSWERED)

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the answer in a message, for votes and baselines."""
        return self.read(text)

    def with_tools(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment:
        """Return this environment with tools and execution of graphs.

        Raises:
            UserError: the prompt is for an agent without tools.
        """
        if self.settings.prompt == "closed":
            raise UserError(
                f"environment.prompt=closed requests answers from memory, but there are tools: {list(settings.use)}",
                "add tools=[], or use environment.prompt=short",
            )
        if isinstance(syntax, Tags):
            syntax = PlanTags(
                syntax.calls,
                ANSWER,
                syntax.observation,
                syntax.inline,
                terse=self.terse,
                graphs=self.graphs,
            )
        return with_tools(self, sources, settings, syntax, WithPlans)
