"""Agents that plan, call tools and answer: measures of trajectories, execution of graphs, and the base environment.

    <graph><node id="s1">wiki_search("director of Film A")</node>
    <node id="s2" depends="s1">wiki_search("birthplace of {s1}")</node></graph>

This is the form of GAP's paper. GAP's models are trained on another form, in which the plan is a list of tasks and the
agent itself makes the calls of a level as tags.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Literal

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
)
from coterie.environments.settings import EnvironmentSettings, draw
from coterie.environments.talk import ANSWERED
from coterie.environments.with_tools import WithTools, with_tools
from coterie.environments.workflow.plan import (
    BrokenPlan,
    Plan,
    Shape,
    parse_plan,
    run_plan,
    times,
)
from coterie.environments.workflow.plan import Task as PlanTask
from coterie.environments.workflow.trace import AgentKind, scan, violations
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Ending, Task
from coterie.record.turn import Finish, Message, Part, Tool, ToolCall, ToolResult, Turn, call_id
from coterie.tools.calls import OBSERVATION, NativeCalls, Tags, ToolError, ToolSource, inside
from coterie.tools.registry import Toolbox, ToolsSettings

_GRAPH, _GRAPH_ENDS = "<graph", "</graph>"
Round = tuple[Turn, tuple[ToolResult, ...]]


def graph_of(text: str) -> Plan | None:
    """Return the graph at the end of a message, or ``None``.

    Raises:
        BrokenPlan: the graph is invalid.
    """
    source = _graph_text(text)
    return parse_plan(source) if source else None


def graph_or_none(text: str) -> Plan | None:
    """Return the graph at the end of a message, or ``None`` for a missing or invalid graph."""
    with suppress(BrokenPlan):
        return graph_of(text)
    return None


def _graph_text(text: str) -> str:
    if not text.rstrip().endswith(_GRAPH_ENDS) or _GRAPH not in text:
        return ""
    return text[text.rindex(_GRAPH) :]


def measures(turns: Sequence[Turn], actor: str, kind: AgentKind) -> dict[str, float | int]:
    """Return metrics of the plans and calls of a trajectory.

    * ``plans``, ``broken_plans``: number of valid and invalid plans.
    * ``tasks``, ``levels``, ``plan_width``: size of the first valid plan.
    * ``width``: maximum number of calls in a message.
    * ``early_calls``: calls made before the tasks that they depend on can be done.
    * ``serial_seconds``, ``critical_seconds``: time of all calls in sequence, and with independent calls in parallel.
    """
    by_turn = [_plans(turn.text) for turn in turns if turn.speaker.name == actor]
    plans = [plan for valid, _ in by_turn for plan in valid]
    rounds: list[Round] = [
        (turn, after.results)
        for turn, after in pairwise(turns)
        if turn.speaker.name == actor and after.results
    ]
    shape = plans[0].shape if plans else Shape(0, 0, 0)
    text = "".join(turn.whole_text or _observation(turn) for turn in turns)
    return {
        "plans": len(plans),
        "broken_plans": sum(broken for _, broken in by_turn),
        "tasks": shape.tasks,
        "levels": shape.levels,
        "plan_width": shape.width,
        "width": max((len(results) for _, results in rounds), default=0),
        "early_calls": early_calls(rounds),
        VIOLATIONS: len(violations(text, kind)),
        "serial_seconds": round(sum(one.seconds for _, some in rounds for one in some), 6),
        "critical_seconds": round(sum(_critical(turn.text, some) for turn, some in rounds), 6),
    }


def early_calls(rounds: Sequence[Round]) -> int:
    """Count calls in excess of the tasks that can be ready: in round r of a plan, the tasks of its first r levels.

    A plan applies from its own message to the next plan. The count is a lower bound, because a task without a call
    allows another call, and calls that did not run are ignored.
    """
    applied: list[tuple[Plan, bool, list[int]]] = []
    for turn, results in rounds:
        if plans := _plans(turn.text)[0]:
            applied.append((plans[-1], graph_or_none(turn.text) is None, []))
        if applied:
            applied[-1][2].append(sum(not one.error or one.seconds > 0 for one in results))
    return sum(
        calls_before_their_turn(plan, counts) for plan, by_tags, counts in applied if by_tags
    )


def calls_before_their_turn(plan: Plan, counts: Sequence[int]) -> int:
    """Count the early calls of a plan (see :func:`early_calls`); ``counts`` are the numbers of calls by message."""
    ready = list(accumulate(map(len, plan.levels)))[:-1]  # the last level is not limited
    excess = (so_far - most for so_far, most in zip(accumulate(counts), ready, strict=False))
    return max(0, max(excess, default=0))


def _critical(text: str, results: Sequence[ToolResult]) -> float:
    """Return the seconds with all independent calls in parallel."""
    seconds, graph = [one.seconds for one in results], graph_or_none(text)
    if graph is None or len(graph.tasks) != len(seconds):
        return max(seconds, default=0.0)
    return times(graph, dict(zip(graph.by_id, seconds, strict=True))).critical


def _plans(text: str) -> tuple[list[Plan], int]:
    """Return the valid plans of a message, and the number of invalid ones."""
    sources = [one.body for one in scan(text)[0] if one.name == "plan" and one.closed]
    if graph := _graph_text(text):
        sources.append(graph)
    plans: list[Plan] = []
    for source in sources:
        with suppress(BrokenPlan):
            plans.append(parse_plan(source))
    return plans, len(sources) - len(plans)


def _observation(turn: Turn) -> str:
    tag = OBSERVATION
    return "".join(f"<{tag}>{inside(one.text, tag)}</{tag}>" for one in turn.results)


BOUND = 400


@dataclass(frozen=True, slots=True)
class PlanTags(Tags):
    """Syntax of calls as tags or graphs at the end of a message."""

    terse: bool = False
    """True if prompts omit the tools, for an agent that is trained on the format."""
    graphs: bool = True

    def __post_init__(self) -> None:
        super(PlanTags, self).__post_init__()
        if self.graphs:
            object.__setattr__(self, "stop", (*self.stop, _GRAPH_ENDS))

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        """Return the messages with the tools in the system prompt, unless it is terse."""
        return tuple(messages) if self.terse else super(PlanTags, self).with_tools(messages, tools)

    def parse(self, text: str, finish: Finish) -> tuple[ToolCall, ...]:
        """Return the calls of a message: the tasks of its final graph, or its tags."""
        try:
            plan = graph_of(text) if self.graphs else None
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


class WithPlans(WithTools):
    """Environment with tools that runs graphs and measures plans."""

    environment: "WorkflowAgent"

    async def results(
        self, toolbox: Toolbox, calls: Sequence[ToolCall], turn: Turn
    ) -> tuple[ToolResult, ...]:
        """Run a final graph by its schedule, or other calls in parallel.

        Results of a graph are in its order, each with the name of its task. If a call has side effects, all calls of
        the graph run in sequence.
        """
        plan = self._graph(turn) if len(calls) > 1 else None
        if plan is None:
            return await super().results(toolbox, calls, turn)
        by_task = dict(zip(plan.by_id, calls, strict=True))
        ran: dict[str, ToolResult] = {}
        syntax = self.syntax
        assert isinstance(syntax, PlanTags), "only PlanTags has graphs"

        async def run(id_: str, text: str) -> str:
            call = by_task[id_]
            if not call.error:
                call = replace(call, arguments=syntax.arguments(call.name, text))
            call = replace(call, id=call_id(0))
            (ran[id_],) = await toolbox.run([call], self.offered, turn.whole_text)
            if ran[id_].error:
                raise ToolError(ran[id_].text)
            return " ".join(ran[id_].text.split())[:BOUND]

        limits = toolbox.limits
        width = 1 if any(map(self.changes, calls)) else limits.width
        outcomes = await run_plan(plan, run, width=width, calls=limits.max_calls)
        results = []
        for one in outcomes:
            text, left_out = one.text, 0
            if one.id in ran:
                text, left_out = ran[one.id].text, ran[one.id].left_out
            result = ToolResult(
                by_task[one.id].id,
                f"{one.id}: {text}",
                one.state != "done",
                one.began,
                one.seconds,
                left_out,
            )
            results.append(result)
        return tuple(results)

    def refuses_repeats(self, turn: Turn) -> bool:
        """Return False for calls of a graph, whose results others need and whose arguments are not bound yet."""
        return self._graph(turn) is None and super().refuses_repeats(turn)

    def _graph(self, turn: Turn) -> Plan | None:
        """Return the final graph of a turn, or ``None`` for a missing or invalid graph."""
        graphs = isinstance(self.syntax, PlanTags) and self.syntax.graphs
        return graph_or_none(turn.text) if graphs else None

    async def grade(self, state: State, live: object) -> Grade:
        grade = await super().grade(state, live)
        how = measures(state.turns, AGENT, self.environment.kind)
        return replace(grade, metrics={**grade.metrics, **how})


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

    rows: Rows

    def __init__(self, settings: Any, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name

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

    @abstractmethod
    def same(self, first: str, second: str) -> bool:
        """Return True if two answers are equal."""

    def similarity(self, answer: str, other: str) -> float:
        return float(self.same(answer, other))

    def with_tools(
        self, sources: Sequence[ToolSource], settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Environment:
        """Return this environment with tools and execution of graphs."""
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
