"""Right answers as secrets of a task, and their reading by graders."""

import json

from coterie.datasets.rows import QuestionRow
from coterie.trajectories.task import Secret, Task

GRADER = "grader"
"""The only role that may read a gold answer."""


def secret_answers(row: QuestionRow) -> dict[str, Secret]:
    """The right answer of a row and its aliases, if rows of its type have some, which only a grader may read."""
    aliases: tuple[str, ...] = getattr(row, "aliases", ())
    readers = frozenset({GRADER})
    answer = Secret(row.answer, name="answer", readers=readers)
    if not aliases:
        return {"answer": answer}
    text = json.dumps(aliases, ensure_ascii=False)
    return {"answer": answer, "aliases": Secret(text, name="aliases", readers=readers)}


def gold_answer(task: Task) -> str:
    """The right answer of a task, for graders and reports."""
    return task.secrets["answer"].reveal(GRADER)


def question_of(task: Task) -> str:
    """What a task asks, for reports: its question, or all that is public of it."""
    asked = task.public.get("question")
    return str(asked) if asked else ", ".join(f"{name}: {one}" for name, one in task.public.items())


def known_answers(task: Task) -> tuple[str, ...]:
    """All right answers of a task, for reports; none where the environment knows none beforehand."""
    return tuple(gold_answers(task)) if "answer" in task.secrets else ()


def gold_answers(task: Task) -> list[str]:
    """All right answers of a task, for graders: the answer itself and its aliases."""
    aliases = task.secrets.get("aliases")
    return [gold_answer(task), *(json.loads(aliases.reveal(GRADER)) if aliases else ())]
