"""Information exchange on real questions: each agent holds a part of the context.

Optima's first setting (arXiv 2410.08115, section 4.1). Both agents have the same instructions and
different notes; they must tell each other what they hold, and end by marking the same answer.
"""

from typing import Literal

from coterie.datasets.rows import HotpotRow, QuestionRow
from coterie.environments.answers import f1
from coterie.environments.contexts import deal_paragraphs
from coterie.environments.dialogue import GRADER, Split, gold_answer
from coterie.environments.extraction import marked_answer
from coterie.environments.formats import FORMATS
from coterie.environments.rows import Rows
from coterie.environments.solo import solo_prompt
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.turn import Part

Context = Literal["paragraph", "first_sentence"]


class InformationExchange:
    """Two agents exchange what they know of a question (see ``environments.dialogue``)."""

    agents: tuple[str, ...] = ("Alice", "Bob")
    max_turns = 10
    metric = "F1"
    formats = FORMATS
    format_agents = agents

    def __init__(self, name: str, source: str, context: Context) -> None:
        self.name = name
        self.context = context
        self._rows = Rows(name, source)

    def tasks(self, split: Split, count: int, seed: int, iteration: int = 0) -> list[Task]:
        """Tasks of one split of the data set, as many as it has at most."""
        rows = self._rows.draw(split, count, seed, iteration)
        return [self._task(row) for row in rows]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The agent's role and notes (which its partner may not see), the rules, the question."""
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        own = frozenset({agent})
        partner = next(name for name in self.agents if name != agent)
        return (
            Part(
                f"You are {agent}. {partner} and you answer one question together. Each of you "
                "has notes that the other can't see.\nYour notes:\n",
                audience=own,
                source="task",
            ),
            *(Part(f"- {note}\n", audience=own, source="task") for note in notes[agent]),
            Part(
                "Rules:\n"
                "- Tell your partner what bears on the question and ask for what you lack; think "
                "step by step.\n"
                "- Rely on the notes of you two only.\n"
                "- Tokens are dear: no small talk, as few words as your partner can understand.\n"
                "- Once you know, write <A>answer</A> with nothing but the answer in it. The talk "
                "is over when both of you have marked the same answer.\n",
                source="task",
            ),
            Part(f"Question: {task.public['question']}", source="task"),
        )

    def answer(self, text: str) -> str | None:
        """What stands in the last ``<A>...</A>``."""
        return marked_answer(text)

    def score(self, task: Task, answer: str | None) -> float:
        """F1 of the answer's words, the best over all right answers."""
        return f1(answer, [gold_answer(task)])

    def similarity(self, answer: str, other: str) -> float:
        """F1 of their words."""
        return f1(answer, [other])

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """All notes, each once, and the question."""
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        everything = dict.fromkeys(note for held in notes.values() for note in held)
        ending = "End each message with <A>answer</A> with nothing but the answer in it."
        return solo_prompt(str(task.public["question"]), ending, everything)

    def _task(self, row: QuestionRow) -> Task:
        assert isinstance(row, HotpotRow), "information exchange needs a context to deal out"
        id_ = f"{self.name}-{row.id}"
        notes = deal_paragraphs(
            row, self.agents, key=id_, first_sentence=self.context == "first_sentence"
        )
        answer = Secret(row.answer, name="answer", readers=frozenset({GRADER}))
        return Task(id_, {"question": row.question, "notes": notes}, {"answer": answer})
