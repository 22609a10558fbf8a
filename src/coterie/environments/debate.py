"""Debate on real problems: one agent solves, the others look for mistakes.

Optima's second setting (arXiv 2410.08115, section 4.1; three agents: table 7). Only the solver gives
answers; the talk is over when it gives the same answer again after the critics have spoken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.datasets.problem_rows import ChoiceRow
from coterie.datasets.rows import QuestionRow
from coterie.environments.agents import named, others
from coterie.environments.dialogue import Split, gold_answer, secret_answers
from coterie.environments.equality import option_of, same_text
from coterie.environments.extraction import boxed_answer, boxed_number, marked_answer
from coterie.environments.mathematics import same_mathematics
from coterie.environments.numbers import same_number
from coterie.environments.rows import Rows
from coterie.environments.solo import solo_prompt
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Part


@dataclass(frozen=True, slots=True)
class Subject:
    """What a debate is about: what the solver is told, how its answers are read and compared."""

    skill: str
    """What the solver is said to be good at."""
    ending: str
    """How it must give its answer."""
    read: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    """Whether an answer (second) is the same as the right one, or as the one before it (first)."""


ARITHMETIC = Subject(
    "arithmetic",
    "End each message with \\boxed{number}: your answer, a number with no unit.",
    boxed_number,
    same_number,
)
MATHEMATICS = Subject(
    "mathematics",
    "End each message with \\boxed{answer}: your answer and nothing else, in LaTeX.",
    boxed_answer,
    same_mathematics,
)
CHOICE = Subject(
    "answering questions with options",
    "End each message with <A>answer</A>: the text of the option that you choose, word for word.",
    marked_answer,
    same_text,
)


class Debate:
    """A solver and its critics (see ``environments.dialogue``)."""

    max_turns = 10
    metric = "exact match"

    def __init__(
        self,
        name: str,
        source: str,
        subject: Subject,
        agents: Sequence[str],
        formats: Sequence[str],
    ) -> None:
        self.name = name
        self.subject = subject
        self.agents: tuple[str, ...] = tuple(agents)
        self.formats: tuple[str, ...] = tuple(formats)
        self.format_agents: tuple[str, ...] = self.agents[:1]
        self._rows = Rows(name, source)

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        rows = self._rows.draw(split, count, seed, drawn)
        return [self._task(row) for row in rows]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The agent's role, and the problem."""
        role = self._solver() if agent == self.agents[0] else self._critic(agent)
        return (
            Part(role, audience=frozenset({agent}), source="task"),
            Part(f"\nProblem: {task.public['question']}", source="task"),
        )

    def answer(self, text: str) -> str | None:
        r"""What stands in the last ``\boxed{...}`` or ``<A>...</A>``."""
        return self.subject.read(text)

    def option(self, task: Task, answer: str) -> str:
        """The option that an answer names, where the problem has options, as it is spelled there."""
        return option_of(answer, _options(task))

    def same(self, first: str, second: str) -> bool:
        """Whether two answers are equal as numbers, as mathematics, or as texts."""
        return self.subject.same(first, second)

    def score(self, task: Task, answer: str | None) -> float:
        """Whether the answer is the same as the right one, 0 or 1."""
        if answer is None:
            return 0.0
        gold = gold_answer(task)
        if self.subject is CHOICE:  # files of the released code name no options
            answer = option_of(answer, _options(task) or [gold])
        return float(self.subject.same(gold, answer))

    def similarity(self, answer: str, other: str) -> float:
        """Whether the two answers are the same, 0 or 1."""
        return float(self.subject.same(other, answer))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The problem."""
        return solo_prompt(str(task.public["question"]), self.subject.ending)

    def _solver(self) -> str:
        solver, *critics = self.agents
        read = "reads" if len(critics) == 1 else "read"
        return (
            f"You are {solver} and good at {self.subject.skill}. {named(critics)} {read} your work "
            "and may find mistakes in it; mend them.\n"
            "- Go step by step.\n"
            f"- {self.subject.ending}"
        )

    def _critic(self, agent: str) -> str:
        solver, *critics = self.agents
        readers = named([*others(agent, critics), "you"])
        return (
            f"You are {agent}. {solver} solves a problem; {readers} read the work and look for "
            "mistakes.\n"
            "- Go through it step by step; name each mistake and say how to mend it.\n"
            "- Never state the answer yourself.\n"
            "- Tokens are dear: as few words as can be understood. If all is right, say only that."
        )

    def _task(self, row: QuestionRow) -> Task:
        public: dict[str, object] = {"question": asked(row)}
        if isinstance(row, ChoiceRow):
            public["options"] = list(row.choices)
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))


def _options(task: Task) -> list[str]:
    """The options of a problem; none where it has none, or its file does not name them."""
    return task.public.get("options", [])  # type: ignore[return-value]


def asked(row: QuestionRow) -> str:
    """The problem as agents are asked it: with its options, if it has some, in a last line."""
    if not isinstance(row, ChoiceRow):
        return row.question
    return f"{row.question}\nOptions: {' | '.join(' '.join(one.split()) for one in row.choices)}"
