"""Right answers as secrets of a task, readable by graders."""

import json

from coterie.datasets.rows import QuestionRow
from coterie.trajectories.task import Secret, Task

GRADER = "grader"
"""The only role that may read a gold answer."""


def secret_answers(row: QuestionRow) -> dict[str, Secret]:
    """Return the right answer of a row and its aliases (if any) as secrets for graders."""
    aliases: tuple[str, ...] = getattr(row, "aliases", ())
    readers = frozenset({GRADER})
    answer = Secret(row.answer, name="answer", readers=readers)
    if not aliases:
        return {"answer": answer}
    text = json.dumps(aliases, ensure_ascii=False)
    return {"answer": answer, "aliases": Secret(text, name="aliases", readers=readers)}


def gold_answer(task: Task) -> str:
    """Return the right answer of a task, for graders and reports."""
    return task.secrets["answer"].reveal(GRADER)


def question_of(task: Task) -> str:
    """Return the question of a task, or all its public fields, for reports."""
    question = task.public.get("question")
    return (
        str(question)
        if question
        else ", ".join(f"{name}: {one}" for name, one in task.public.items())
    )


def known_answers(task: Task) -> tuple[str, ...]:
    """Return the right answers of a task, for reports; it may have none."""
    return tuple(gold_answers(task)) if "answer" in task.secrets else ()


def gold_answers(task: Task) -> list[str]:
    """Return the right answer of a task and its aliases, for graders."""
    aliases = task.secrets.get("aliases")
    return [gold_answer(task), *(json.loads(aliases.reveal(GRADER)) if aliases else ())]
