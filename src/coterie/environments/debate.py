"""Debate on a problem: one agent solves, the others look for mistakes.

Optima's second setting (arXiv 2410.08115, section 4.1; three agents: table 7). Only the solver answers. The dialogue
ends when it repeats its answer after the critics' messages.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.problems import ChoiceRow
from coterie.datasets.rows import QuestionRow
from coterie.environments.answers import (
    boxed_answer,
    boxed_number,
    gold_answers,
    marked_answer,
    option_of,
    same_text,
    same_words,
    secret_answers,
)
from coterie.environments.mathematics import same_mathematics
from coterie.environments.numbers import same_number
from coterie.environments.settings import RowTasks
from coterie.environments.talk import (
    DEBATE_FORMATS,
    LENGTH_RULE,
    NAMES,
    Talk,
    TalkSettings,
    answer_rule,
    named,
    others,
    solo_prompt,
)
from coterie.record.tree import Task
from coterie.record.turn import Part


class Subject(NamedTuple):
    """Subject of a debate: prompt of the solver, and parser and comparison of its answers."""

    skill: str
    ending: str
    example: str
    read: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    """Comparison of a reference or an earlier answer (first) with an answer (second)."""
    formats: tuple[str, ...] = ()


NO_MISTAKE = "I found no mistake."
EVERY = "End every message"

SubjectName = Literal["arithmetic", "mathematics", "choice", "text"]
SUBJECTS: Mapping[SubjectName, Subject] = {
    "arithmetic": Subject(
        "arithmetic",
        answer_rule(EVERY, "a number without a unit", "1250", r"\boxed{1250}"),
        "1250",
        boxed_number,
        same_number,
    ),
    "mathematics": Subject(
        "mathematics",
        answer_rule(EVERY, "in LaTeX", "three sevenths", r"\boxed{\frac{3}{7}}"),
        r"\frac{3}{7}",
        boxed_answer,
        same_mathematics,
    ),
    "choice": Subject(
        "answering questions with options",
        answer_rule(
            EVERY,
            "the text of the option that you choose, word for word",
            "the option `a full moon`",
            "<A>a full moon</A>",
        ),
        "a full moon",
        marked_answer,
        same_text,
        DEBATE_FORMATS,
    ),
    "text": Subject(
        "answering questions",
        answer_rule(EVERY, "a name or a few words", "Lake Geneva", "<A>Lake Geneva</A>"),
        "Lake Geneva",
        marked_answer,
        same_words,
        DEBATE_FORMATS,
    ),
}


class DebateSettings(TalkSettings):
    """Settings of the debate."""

    subject: SubjectName = key(
        "text",
        "Type of answers, which determines their comparison: numbers (`arithmetic`), `mathematics`, options "
        "(`choice`), or a few words (`text`).",
    )


class Debate(RowTasks, Talk):
    """A solver and its critics."""

    metric = "exact match"
    settings_type = DebateSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)

    def __init__(self, settings: DebateSettings, rows: Rows) -> None:
        self.name = rows.name
        self.subject = SUBJECTS[settings.subject]
        self.example = self.subject.example
        self.agents: tuple[str, ...] = NAMES[: settings.agents]
        self.max_turns = settings.turns
        self.formats: tuple[str, ...] = settings.pool(self.subject.formats)
        self.format_agents: tuple[str, ...] = self.agents[:1]
        self.rows = rows

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        role, rules = self._solver() if agent == self.agents[0] else self._critic(agent)
        own = frozenset({agent})
        return (
            Part(f"{role}Rules:\n{rules}", audience=own, source="task"),
            Part(f"\n\nProblem: {task.public['question']}", source="task"),
        )

    def answer(self, text: str) -> str | None:
        return self.subject.read(text)

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the answer, spelled like the matching option if the problem has options."""
        answer = self.answer(text)
        return None if answer is None else option_of(answer, _options(task))

    def same(self, first: str, second: str) -> bool:
        return self.subject.same(first, second)

    def score(self, task: Task, answer: str | None) -> float:
        if answer is None:
            return 0.0
        golds = gold_answers(task)
        if self.subject is SUBJECTS["choice"]:  # files of the released code name no options
            answer = option_of(answer, _options(task) or golds)
        return float(any(self.subject.same(gold, answer) for gold in golds))

    def similarity(self, answer: str, other: str) -> float:
        return float(self.subject.same(other, answer))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return solo_prompt(str(task.public["question"]), self.subject.ending)

    def _solver(self) -> tuple[str, str]:
        solver, *critics = self.agents
        read, point = ("reads", "points") if len(critics) == 1 else ("read", "point")
        return (
            f"You are {solver}, and you are good at {self.subject.skill}. Solve the problem below. {named(critics)} "
            f"{read} your messages and {point} out mistakes.\n",
            "- Solve the problem step by step.\n"
            "- If you are told of a mistake, check that step. Correct it if it is wrong, and give your answer again.\n"
            f"{LENGTH_RULE}{self.subject.ending}",
        )

    def _critic(self, agent: str) -> tuple[str, str]:
        solver, *critics = self.agents
        more = others(agent, critics)
        also = f", as {named(more)} does," if more else ""
        return (
            f"You are {agent}. {solver} solves the problem below. You read the solution{also} and look for mistakes.\n",
            "- Check the solution step by step. Name each mistake and say how to correct it.\n"
            "- Do not give an answer to the problem yourself.\n"
            f"{LENGTH_RULE}"
            f"- If there is no mistake, reply with this sentence only:\n{NO_MISTAKE}",
        )

    def task_of(self, row: QuestionRow) -> Task:
        public: dict[str, object] = {"question": problem_text(row)}
        if isinstance(row, ChoiceRow):
            public["options"] = list(row.choices)
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))


def _options(task: Task) -> list[str]:
    return task.public.get("options", [])  # type: ignore[return-value]


def problem_text(row: QuestionRow) -> str:
    if not isinstance(row, ChoiceRow):
        return row.question
    return f"{row.question}\nOptions: {' | '.join(' '.join(one.split()) for one in row.choices)}"
