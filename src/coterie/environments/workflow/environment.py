"""Questions for an agent that plans, calls tools and answers (GAP), and its prompts.

    coterie evaluate mhqa dataset=2wiki tools.config=tools.yaml policy=RUN

The run provides the tools (``tools=``), and results continue the agent's message. Answers are scored by exact match
and F1, and optionally by a model.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from coterie.config.folders import read_json
from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.engines.chat_model import ChatModel, ChatModelSettings, open_chat
from coterie.engines.endpoint import Utterance
from coterie.environments.answers import f1, gold_answers, normalize_answer, secret_answers
from coterie.environments.protocol import WELL_FORMED, Grade, Openers, State
from coterie.environments.workflow.agent import AgentSettings, WorkflowAgent
from coterie.environments.workflow.expert import gold_titles, has_passages, trace_of
from coterie.environments.workflow.trace import (
    AgentKind,
    Several,
    Trace,
    final_answer,
    matches,
    overlap,
)
from coterie.record.tree import Task
from coterie.record.turn import digest

PlanForm = Literal["tasks", "graph", "none"]

_BEGINNING: Mapping[AgentKind, str] = {
    "mhqa": "You answer questions by searching an encyclopedia. Search even where you think that you know the answer.",
    "web": "You answer questions by searching the web and reading pages.",
}
SHORT: Mapping[AgentKind, str] = {
    "mhqa": "Plan, search the encyclopedia, and answer the question.",
    "web": "Plan, search the web, read pages, and answer the question.",
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
    "graph": (
        "- <graph>...</graph>: a plan that is carried out for you. A node is a call of a tool. It waits for the nodes "
        "in `depends`, and {id} in its text stands for the result of one of them. Nodes that wait for nothing run at "
        "the same time.\n"
        '<graph><node id="s1">wiki_search("first thing to find")</node> '
        '<node id="s2" depends="s1">wiki_search("a fact about {s1}")</node></graph>\n'
    ),
    "none": "",
}
_REFLECTIONS: Mapping[AgentKind, str] = {
    "mhqa": "- <reflection>...</reflection>: only when the results show that your plan is wrong. Then plan anew.\n",
    "web": (
        "- <reflection>...</reflection>: whether the results agree with each other, whether the tools help, and "
        "whether you are getting closer, each good, fair or poor. If one is poor, plan anew.\n"
        "- <suggested_answer>...</suggested_answer>: an answer that you have yet to check.\n"
        "- <double_check>...</double_check>: how sure the suggested answer is, from 1 to 4. From 3 on give it as your "
        "answer; below 3 plan anew.\n"
    ),
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


def instructions(agent: AgentKind, plans: PlanForm, *, example: bool = False) -> str:
    """Return the system prompt, without the tools; ``example`` adds a trajectory with a list of tasks."""
    work = _TAGS.format(plan=_PLANS[plans], reflection=_REFLECTIONS[agent])
    rule = "Answer with as few words as possible; several answers are divided by |."
    text = f"\nThis is an example.\n{_EXAMPLE}" if example else ""
    return f"{_BEGINNING[agent]}\n{work}{rule}{text}"


TRIES = 2
NOBODY = "nobody"
_OBJECT = re.compile(r"\{[^{}]*\}")
_ALONE = re.compile(r"\W*(correct|incorrect|yes|no)\W*", re.IGNORECASE)
_RIGHT, _WRONG = ("correct", "yes", "true"), ("incorrect", "no", "false")
_RULES = (
    "You check the answer of a student. Compare it with the right answers. It is correct if it means the same as one "
    "of them, however it is worded; further correct details do no harm. It is incorrect if it contradicts them, leaves "
    "out what was asked for, or gives several answers of which one is wrong. Do not answer the question yourself.\n"
    'Reply with JSON and nothing else: {"reason": "a few words", "judgement": "correct"} or '
    '{"reason": "a few words", "judgement": "incorrect"}'
)


class JudgeSettings(ChatModelSettings):
    """Settings of the judge."""

    model: str = key(
        NOBODY,
        "`nobody` (no judge), a model that coterie loads, or, with `url`, the name of a model there.",
        source="GAP: GPT-4.1 mini; AFM: Qwen2.5-72B-Instruct",
        min_length=1,
    )
    max_tokens: int = key(256, "Maximum tokens of a judgement.", ge=1)

    @property
    def judges(self) -> bool:
        return self.model != NOBODY


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
        messages = [Utterance("system", _RULES), Utterance("user", prompt)]
        for number in range(TRIES):
            seed = int(digest(question, answer, number)[:8], 16) % 2**31
            reply = await self.chat.ask(messages, seed)
            if (is_right := read_judgement(reply.text)) is not None:
                return float(is_right)
        return None


def read_judgement(reply: str) -> bool | None:
    """Parse a judgement: JSON, also within text or a fence, or a single word; else ``None``."""
    for source in reversed(_OBJECT.findall(reply)):
        try:
            word = str(read_json(source).get("judgement")).strip().lower()
        except ValueError:
            continue
        if word in (*_RIGHT, *_WRONG):
            return word in _RIGHT
    alone = _ALONE.fullmatch(reply)
    return alone[1].lower() in _RIGHT if alone else None


@asynccontextmanager
async def open_judge(settings: JudgeSettings) -> AsyncIterator[AnswerJudge]:
    async with open_chat(settings) as chat:
        yield AnswerJudge(chat)


Score = Literal["em", "f1", "judge"]


class WorkflowSettings(AgentSettings):
    """Settings of prompts, answers and scores."""

    plans: PlanForm = key(
        "tasks",
        "Form of plans in the prompt: a list of `tasks`, whose calls the agent makes itself; a `graph`, which is run "
        "for the agent; or `none`. Plans of both forms are always parsed.",
        source="GAP's code: tasks; its paper: graph",
    )
    score: Score = key(
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
        self._train: dict[str, QuestionRow] = {}
        self._configure(settings, rows.name)

    def _configure(self, settings: WorkflowSettings, name: str) -> None:
        self.name = name
        self.settings = settings
        self.metric = {"em": "exact match", "f1": "F1", "judge": "judged right"}[settings.score]
        self.needs = (AnswerJudge,) if settings.judge.judges else ()

    def task_of(self, row: QuestionRow) -> Task:
        """Return a question, its type and its secret answers."""
        public = {"question": row.question, "type": str(getattr(row, "type", ""))}
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))

    def openers(self, logs: Path) -> Openers:
        judge = self.settings.judge
        return {AnswerJudge: partial(open_judge, judge)} if judge.judges else {}

    def instructions(self) -> str:
        """Return the system prompt; the tools are appended if it is not terse."""
        if self.settings.prompt == "closed":
            return CLOSED
        if self.terse:
            return SHORT[self.kind]
        return instructions(self.kind, self.settings.plans, example=self.settings.shots > 0)

    def read(self, text: str) -> str | None:
        return final_answer(text, lenient=self.settings.lenient)

    async def grade(self, state: State, live: Any) -> Grade:
        """Compute exact match, F1 and the judgement."""
        golds, answer = gold_answers(state.task), state.answer
        several = self.settings.several
        em, f1_ = matches(answer, golds, several), overlap(answer, golds, several)
        metrics: dict[str, float | int | str] = {
            "em": em, "f1": f1_, WELL_FORMED: float(answer is not None),
        }  # fmt: skip
        if not self.settings.judge.judges:
            return Grade({"em": em, "f1": f1_}[self.settings.score], metrics)
        judge: AnswerJudge = live[AnswerJudge]
        right = await judge.right(str(state.task.public["question"]), golds, answer)
        metrics["judged" if right is not None else "unreadable_judgements"] = (
            1.0 if right is None else right
        )
        score = {"em": em, "f1": f1_, "judge": right}[self.settings.score]
        return Grade(score, metrics)

    def same(self, first: str, second: str) -> bool:
        """Return True if the answers are equal, ignoring case, articles and punctuation."""
        return normalize_answer(first) == normalize_answer(second)

    def similarity(self, answer: str, other: str) -> float:
        """Return the F1 of the answers if that is the score, else 1 for equal answers and 0 for others."""
        if self.settings.score == "f1":
            return f1(answer, [other])
        return super().similarity(answer, other)

    def row(self, task: Task) -> QuestionRow:
        if not self._train:
            self._train = {self.task_of(row).id: row for row in self.rows.split("train")}
        return self._train[task.id]

    def trace(self, task: Task) -> Trace:
        """Return the trace of an expert who knows the gold facts of a training task. Raise ``NoTrace`` without one."""
        return trace_of(self.row(task))

    def grounded(self, task: Task, results: Sequence[str]) -> bool:
        """Return True if the results contain the gold passages of a training task."""
        return has_passages(results, gold_titles(self.row(task)))


class Mhqa(Workflow):
    """Multi-hop questions about an encyclopedia."""

    kind = "mhqa"


class Web(Workflow):
    """Questions that need a web search."""

    kind = "web"
