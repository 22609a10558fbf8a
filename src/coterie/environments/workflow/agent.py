"""Agents that plan, call tools and answer (GAP): questions, prompts, scores, and measures of trajectories.

    coterie evaluate mhqa dataset=2wiki tools.config=tools.yaml policy=RUN

The run provides the tools (``tools=``), and results continue the agent's message. Answers are scored by exact match
and F1, and optionally by a model.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import model_validator

from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.engines.chat_model import ChatModel, JudgeSettings, ask_judge, json_objects, open_as
from coterie.environments.protocol import (
    AGENT,
    VIOLATIONS,
    WELL_FORMED,
    Answers,
    Grade,
    OneAgent,
    Openers,
    Pure,
    State,
    Transition,
)
from coterie.environments.qa_metrics import f1, gold_answers, normalize_answer, secret_answers
from coterie.environments.settings import EnvironmentSettings, RowTasks
from coterie.environments.workflow.expert import gold_titles, has_passages, trace_of
from coterie.environments.workflow.plan_graph import (
    AgentKind,
    BrokenPlan,
    Plan,
    Several,
    Shape,
    Trace,
    final_answer,
    matches,
    overlap,
    parse_plan,
    scan,
    violations,
)
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, LENGTH, Ending, Task
from coterie.record.turn import Message, Part, Tool, ToolResult, Turn
from coterie.tools.calls import NativeCalls, Tags
from coterie.tools.registry import ToolsSettings

NO_ANSWER = Ending("no answer")
Round = tuple[Turn, tuple[ToolResult, ...]]


def measures(turns: Sequence[Turn], actor: str, kind: AgentKind) -> dict[str, float | int]:
    """Return metrics of the plans and calls of a trajectory.

    * ``plans``, ``broken_plans``: number of valid and invalid plans.
    * ``tasks``, ``levels``, ``plan_width``: size of the first valid plan.
    * ``width``: maximum number of calls in a message.
    * ``early_calls``: calls made before the tasks that they depend on can be done.
    * ``serial_seconds``, ``critical_seconds``: time of all calls in sequence, and with the calls of a message in
      parallel.
    """
    by_turn = [_plans(turn.text) for turn in turns if turn.speaker.name == actor]
    plans = [plan for valid, _ in by_turn for plan in valid]
    # Results directly follow the message with their calls.
    rounds: list[Round] = [
        (turn, next_turn.results)
        for turn, next_turn in pairwise(turns)
        if turn.speaker.name == actor and next_turn.results
    ]
    seconds = [[result.seconds for result in results] for _, results in rounds]
    shape = plans[0].shape if plans else Shape(0, 0, 0)
    # The whole trajectory, with results in the form in which the agent saw them.
    text = "".join(turn.whole_text or Tags({}).show(turn.results) for turn in turns)
    return {
        "plans": len(plans),
        "broken_plans": sum(broken for _, broken in by_turn),
        "tasks": shape.tasks,
        "levels": shape.levels,
        "plan_width": shape.width,
        "width": max(map(len, seconds), default=0),
        "early_calls": early_calls(rounds),
        VIOLATIONS: len(violations(text, kind)),
        "serial_seconds": round(sum(map(sum, seconds)), 6),
        "critical_seconds": round(sum(map(max, seconds)), 6),
    }


def early_calls(rounds: Sequence[Round]) -> int:
    """Count calls in excess of the tasks that can be ready: in round r of a plan, the tasks of its first r levels.

    A plan applies from its own message to the next plan. The count is a lower bound, because a task without a call
    allows another call, and calls that did not run are ignored.
    """
    applied: list[tuple[Plan, list[int]]] = []
    for turn, results in rounds:
        if plans := _plans(turn.text)[0]:
            # The last plan of a message replaces the earlier ones.
            applied.append((plans[-1], []))
        if applied:
            # A call with an error that took no time was refused and did not run.
            applied[-1][1].append(sum(not result.error or result.seconds > 0 for result in results))
    return sum(calls_before_their_turn(plan, counts) for plan, counts in applied)


def calls_before_their_turn(plan: Plan, counts: Sequence[int]) -> int:
    """Count the early calls of a plan (see :func:`early_calls`); ``counts`` are the numbers of calls by message."""
    ready = list(accumulate(map(len, plan.levels)))[:-1]  # the last level is not limited
    excess = (so_far - limit for so_far, limit in zip(accumulate(counts), ready, strict=False))
    return max(0, max(excess, default=0))


def _plans(text: str) -> tuple[list[Plan], int]:
    sources = [
        segment.body for segment in scan(text)[0] if segment.name == "plan" and segment.closed
    ]
    plans: list[Plan] = []
    for source in sources:
        with suppress(BrokenPlan):
            plans.append(parse_plan(source))
    return plans, len(sources) - len(plans)


class TerseTags(Tags):
    """Tags without a description of the tools in the prompt, for an agent that is trained on the format."""

    def with_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
        return tuple(messages)


class AgentSettings(EnvironmentSettings):
    """Settings of prompts and answers."""

    lenient: bool = key(
        False, "Accept answers outside their tag, for models without training on the format."
    )
    prompt: Literal["full", "short", "closed"] = key(
        "full",
        "Content of the prompt: the format and the tools (`full`); one line, for a model that is trained on the format "
        "(`short`); or a request to answer from memory, for an agent without tools (`closed`, with tools=[]).",
    )


class WorkflowAgent(RowTasks, OneAgent, Answers, Pure, ABC):
    """Base class for an agent with tools."""

    kind: AgentKind
    """Kind of agent, which determines the rules for the order of tags."""
    short: str
    """System prompt of one line, for a model that is trained on the format."""
    full: str
    """System prompt that describes the format."""
    metric: str
    settings: AgentSettings
    limits: Mapping[str, int] = MappingProxyType({"turns": 1})

    def __init__(self, settings: Any, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name

    def instructions(self) -> str:
        """Return the system prompt; the tools are appended if it is not terse."""
        return self.short if self.terse else self.full

    @abstractmethod
    async def grade(self, state: State, session: Any) -> Grade: ...

    def request(self, task: Task) -> str:
        return f"Question: {task.public['question']}"

    @property
    def terse(self) -> bool:
        """True if the prompt omits the format and the tools."""
        return self.settings.prompt != "full"

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        return (
            Message("system", (Part(self.instructions(), source="task"),)),
            Message("user", (Part(self.request(state.task), source="task"),)),
            *(Message("assistant", turn=turn.id) for turn in state.turns),
        )

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """End with an answer, without one, or with a truncated message."""
        turn = turns[-1]
        answer = self.answer(turn.text)
        if answer is None:
            return Transition(end=LENGTH if turn.truncated else NO_ANSWER)
        return Transition(answer=answer, end=ANSWERED)

    def turn_metrics(self, turns: Sequence[Turn]) -> dict[str, float | int]:
        return measures(turns, AGENT, self.kind)

    def tool_syntax(
        self, settings: ToolsSettings, syntax: Tags | NativeCalls
    ) -> Tags | NativeCalls:
        """Return the syntax of calls and answers. Terse prompts do not describe the tools."""
        if self.settings.prompt == "closed":
            raise UserError(
                f"environment.prompt=closed requests answers from memory, but there are tools: {list(settings.use)}",
                "add tools=[], or use environment.prompt=short",
            )
        if not isinstance(syntax, Tags):
            return syntax
        kind = TerseTags if self.terse else Tags
        return kind(syntax.calls, "answer", syntax.observation, syntax.inline)


PlanForm = Literal["tasks", "none"]

_BEGINNING: Mapping[AgentKind, str] = {
    "mhqa": "You answer questions by searching an encyclopedia. Search even where you think that you know the answer.",
    "web": "You answer questions by searching the web and reading pages.",
    "all_tools": (
        "You answer questions by searching the web, reading pages, running programs and looking at pictures. Let a "
        "program compute, and look at each picture that the question is about. A program stands between fences:\n"
        "<code>\n```py\nprint(6 * 7)\n```\n</code>"
    ),
}
CLOSED = (
    "Answer the question from what you know, in as few words as possible, and write nothing else: "
    "<answer>your answer</answer>"
)
"""Prompt of agents without tools, which neither plan nor think."""
_TAGS = (
    "Write your work in these tags, and nothing outside of them:\n"
    "- <think>...</think>: your thoughts. Think before each of the other tags.\n"
    "{plan}"
    "{reflection}"
    "After a call you are shown its results in <observation>...</observation>. Never write an observation yourself.\n"
)
_PLANS: Mapping[PlanForm, str] = {
    "tasks": (
        "- <plan>...</plan>: before your first call, the tasks of the question. Two lines for each: its id and what "
        "it is to find, then the tasks that it has to wait for.\n"
        "T1: first fact\n- Dependencies: none\nT2: second fact\n- Dependencies: none\n"
        "T3: what follows from both\n- Dependencies: T1, T2\n"
        "Make the calls of tasks that wait for nothing at the same time, in one message. When you have their results, "
        "go on with the tasks that waited for them. Plan only what you have to look up.\n"
    ),
    "none": "",
}
_CHECKED_ANSWERS = (
    "- <reflection>...</reflection>: whether the results agree with each other, whether the tools help, and "
    "whether you are getting closer, each good, fair or poor. If one is poor, plan anew.\n"
    "- <suggested_answer>...</suggested_answer>: an answer that you have yet to check.\n"
    "- <double_check>...</double_check>: how sure the suggested answer is, from 1 to 4. From 3 on give it as your "
    "answer; below 3 plan anew.\n"
)
_REFLECTIONS: Mapping[AgentKind, str] = {
    "mhqa": "- <reflection>...</reflection>: only when the results show that your plan is wrong. Then plan anew.\n",
    "web": _CHECKED_ANSWERS,
    "all_tools": _CHECKED_ANSWERS,
}

_EXAMPLE = """\
Question: Were the bands Low Tide and Glass Harbour founded in the same town?
<think>This takes 3 tasks in 2 levels.</think>
<plan>
T1: where the band Low Tide was founded
- Dependencies: none
T2: where the band Glass Harbour was founded
- Dependencies: none
T3: whether that is the same town
- Dependencies: T1, T2
</plan>
<think>Next: T1, T2.</think>
<wiki_search>Low Tide band founded in|Glass Harbour band founded in</wiki_search>
<observation>
Low Tide is a folk band that was founded in Bergen in 1998.
</observation>
<observation>
Glass Harbour is a rock band from England, founded in Leeds in 2004.
</observation>
<think>Low Tide was founded in Bergen. Glass Harbour was founded in Leeds. So I know the answer.</think>
<answer>no</answer>"""


_RULE = "Answer with as few words as possible; several answers are divided by |."
_ALONE = re.compile(r"\W*(correct|incorrect|yes|no)\W*", re.IGNORECASE)
_RIGHT, _WRONG = ("correct", "yes", "true"), ("incorrect", "no", "false")
_RULES = (
    "You check the answer of a student. Compare it with the right answers. It is correct if it means the same as one "
    "of them, however it is worded; further correct details do no harm. It is incorrect if it contradicts them, leaves "
    "out what was asked for, or gives several answers of which one is wrong. Do not answer the question yourself.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "judgement": "correct"} or '
    '{"reason": "a few words", "judgement": "incorrect"}'
)


class AnswerJudge:
    """A chat model that judges answers."""

    def __init__(self, chat: ChatModel) -> None:
        self.chat = chat

    async def right(self, question: str, golds: Sequence[str], answer: str | None) -> float | None:
        """Return 1.0 for a right answer, 0.0 for a wrong or missing answer, ``None`` if no judgement can be parsed."""
        if answer is None:
            return 0.0
        listed = "\n".join(f"- {gold}" for gold in golds)
        prompt = f"Question: {question}\nRight answers:\n{listed}\nThe student's answer: {answer}"
        is_right = await ask_judge(self.chat, _RULES, prompt, read_judgement, question, answer)
        return None if is_right is None else float(is_right)


def read_judgement(reply: str) -> bool | None:
    """Parse a judgement: JSON, also within text or a fence, or a single word; else ``None``."""
    for judgment in json_objects(reply):
        word = str(judgment.get("judgement")).strip().lower()
        if word in (*_RIGHT, *_WRONG):
            return word in _RIGHT
    alone = _ALONE.fullmatch(reply)
    return alone[1].lower() in _RIGHT if alone else None


class WorkflowSettings(AgentSettings):
    """Settings of prompts, answers and scores."""

    plans: PlanForm = key(
        "tasks",
        "Plans that the prompt requests: a list of `tasks`, or `none`. Plans are always parsed.",
    )
    score: Literal["em", "f1", "judge"] = key(
        "em",
        "Score of an answer: exact match (`em`), `f1`, or the judgement of `judge`.",
        source="GAP: em; AFM's web agent: judge",
    )
    several: Several = key(
        "all",
        "Which of several answers (separated by |) must be right: `all`, or the `first`.",
        source="GAP's code: all in training, first in evaluation",
    )
    shots: int = key(0, "Number of example trajectories in the prompt.", ge=0, le=1)
    judge: JudgeSettings = JudgeSettings()

    @model_validator(mode="after")
    def _check_judge(self) -> Self:
        if self.score == "judge" and not self.judge.judges:
            raise ValueError("score=judge needs judge.model=NAME (and judge.url=URL for a server)")
        return self


class Workflow(WorkflowAgent):
    """Questions for one agent with tools. Subclasses define the kind of agent."""

    settings_type = WorkflowSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)
    settings: WorkflowSettings

    def __init__(self, settings: WorkflowSettings, rows: Rows) -> None:
        self.rows = rows
        self._configure(settings, rows.name)

    def _configure(self, settings: WorkflowSettings, name: str) -> None:
        self.settings, self.name = settings, name
        self.metric = {"em": "exact match", "f1": "F1", "judge": "judged right"}[settings.score]
        self.needs = (AnswerJudge,) if settings.judge.judges else ()

    def task_of(self, row: QuestionRow) -> Task:
        public = {"question": row.question, "type": str(getattr(row, "type", ""))}
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))

    def openers(self, logs: Path) -> Openers:
        judge = self.settings.judge
        return {AnswerJudge: partial(open_as, AnswerJudge, judge)} if judge.judges else {}

    def instructions(self) -> str:
        return CLOSED if self.settings.prompt == "closed" else super().instructions()

    @property
    def full(self) -> str:  # type: ignore[override]
        """Return the system prompt, without the tools, and with an example if ``shots`` is 1."""
        plan, reflection = _PLANS[self.settings.plans], _REFLECTIONS[self.kind]
        example = f"\nThis is an example.\n{_EXAMPLE}" if self.settings.shots else ""
        return f"{_BEGINNING[self.kind]}\n{_TAGS.format(plan=plan, reflection=reflection)}{_RULE}{example}"

    def answer(self, text: str) -> str | None:
        return final_answer(text, lenient=self.settings.lenient)

    async def grade(self, state: State, session: Any) -> Grade:
        golds, answer, several = gold_answers(state.task), state.answer, self.settings.several
        scores: dict[str, float | None] = {
            "em": matches(answer, golds, several),
            "f1": overlap(answer, golds, several),
        }
        metrics: dict[str, Any] = {**scores, WELL_FORMED: float(answer is not None)}
        if self.settings.judge.judges:
            judge: AnswerJudge = session[AnswerJudge]
            right = await judge.right(str(state.task.public["question"]), golds, answer)
            metrics |= {"unreadable_judgements": 1.0} if right is None else {"judged": right}
            scores["judge"] = right
        return Grade(scores[self.settings.score], metrics)

    def same(self, first: str, second: str) -> bool:
        return normalize_answer(first) == normalize_answer(second)

    def similarity(self, answer: str, other: str) -> float:
        if self.settings.score == "f1":
            return f1(answer, [other])
        return super().similarity(answer, other)

    @cached_property
    def _train(self) -> dict[str, QuestionRow]:
        return {self.task_of(row).id: row for row in self.rows.split("train")}

    def trace(self, task: Task) -> Trace:
        """Return the trace of an expert who knows the gold facts of a training task. Raise ``NoTrace`` without one."""
        return trace_of(self._train[task.id])

    def grounded(self, task: Task, results: Sequence[str]) -> bool:
        """Return True if the results contain the gold passages of a training task."""
        return has_passages(results, gold_titles(self._train[task.id]))


class Mhqa(Workflow):
    """Multi-hop questions about an encyclopedia."""

    kind = "mhqa"
    short = "Plan, search the encyclopedia, and answer the question."


class Web(Workflow):
    """Questions that need a web search."""

    kind = "web"
    short = "Plan, search the web, read pages, and answer the question."


class AllTools(Workflow):
    """Questions, also about pictures (``file_name`` of a user's rows), for an agent with all tools of AFM and GAP."""

    kind = "all_tools"
    short = "Plan, use the tools, and answer the question."

    def task_of(self, row: QuestionRow) -> Task:
        task, picture = super().task_of(row), getattr(row, "raw", {}).get("file_name")
        return replace(task, public={**task.public, "picture": picture}) if picture else task

    def request(self, task: Task) -> str:
        picture = task.public.get("picture")
        return super().request(task) + (f"\nPicture: {picture}" if picture else "")
