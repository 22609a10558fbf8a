"""Worlds that are played twice: natively, and as programs that ask the gateway."""

import json
from pathlib import Path
from typing import Any

from openai import OpenAI

from coterie.datasets.load import Rows
from coterie.datasets.rows import QuestionRow
from coterie.environments.exchange import (
    AGENTS,
    MAX_TURNS,
    Exchange,
    ExchangeSettings,
    as_task,
    generate_tasks,
)
from coterie.environments.qa_metrics import marked_answer, secret_answers
from coterie.environments.settings import RowTasks
from coterie.record.tree import Task
from coterie.record.turn import Part


def write_exchange(file: Path, count: int = 40) -> Path:
    """Write tasks of the micro-world as a file of questions, with the system prompts of both agents."""
    world, lines = Exchange(), []
    for task in map(as_task, generate_tasks("train", 0)[:count]):
        prompts = {
            agent: "".join(part.text for part in world.system_parts(task, agent))
            for agent in AGENTS
        }
        answer = task.secrets["answer"].reveal("grader")
        lines.append(
            json.dumps({"question": task.public["question"], "answer": answer, "prompts": prompts})
        )
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


class NativeExchange(RowTasks, Exchange):
    """The micro-world on the rows of a file."""

    settings_type = ExchangeSettings
    row_types = (QuestionRow,)

    def __init__(self, settings: ExchangeSettings, rows: Rows) -> None:
        super().__init__(settings)
        self.rows, self.name = rows, rows.name

    def task_of(self, row: Any) -> Task:
        public = {"question": row.question, "prompts": row.raw["prompts"]}
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        prompts: Any = task.public["prompts"]
        return (Part(prompts[agent]),)


def play_exchange(task: Any, session: Any) -> str:
    """The micro-world as a program with two models."""
    client = OpenAI(base_url=session.base_url, api_key=session.api_key)
    histories: dict[str, list[Any]] = {
        name: [{"role": "system", "content": prompt}] for name, prompt in task["prompts"].items()
    }
    previous: str | None = None
    for number in range(MAX_TURNS):
        name, partner = AGENTS[number % 2], AGENTS[(number + 1) % 2]
        reply = client.chat.completions.create(model=name, messages=histories[name])
        text = reply.choices[0].message.content or ""
        histories[name].append({"role": "assistant", "content": text})
        histories[partner].append({"role": "user", "content": text})
        answer = marked_answer(text)
        if reply.choices[0].finish_reason == "length":
            return ""
        if previous is not None and answer == previous:
            break
        previous = answer or previous
    return previous or ""
