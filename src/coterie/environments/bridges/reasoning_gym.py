"""Tasks of the package ``reasoning-gym`` (extra ``reasoning-gym``), scored by their data set's own ``score_answer``.

    coterie evaluate reasoning_gym environment.dataset=countdown policy=smollm2

A child process (``reasoning_gym_worker``) makes and scores the tasks, because scorers may run for long on an agent's
text. A hash of a task's question decides its split.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import WELL_FORMED, Answers, Grade, State
from coterie.environments.qa_metrics import TEACHER, grader_secret
from coterie.environments.question import OneReply
from coterie.environments.settings import (
    EnvironmentSettings,
    distinct,
    package_version,
    series,
    split_of_key,
)
from coterie.errors import UserError, did_you_mean
from coterie.record.tree import Task
from coterie.record.turn import Message, Part
from coterie.tools.line_process import LineProcess

FIRST = 2**30
"""Upper bound of the number of the first task."""
MAKING, SCORING = 120.0, 20.0
"""Timeouts for making a task and for scoring an answer."""
FORMAT = "\n\nWrite the final answer, and nothing else, between <answer> and </answer>."
_WORKER = LineProcess(Path(__file__).with_name("reasoning_gym_worker.py"), "reasoning-gym")


class ReasoningGymSettings(EnvironmentSettings):
    """Settings of tasks of reasoning-gym."""

    dataset: str = key("chain_sum", "The data set of reasoning-gym.")
    config: dict[str, Any] = key({}, "Settings of the data set, such as `{max_terms: 3}`.")


def ask(dataset: str, config: str, item: int, **answer: str) -> dict[str, Any]:
    """Return a task, or the score of an answer. Raises ``UserError`` if the data set can't make tasks."""
    request = {"dataset": dataset, "config": json.loads(config), "item": item, **answer}
    reply: dict[str, Any] | None = _WORKER.ask(request, SCORING if answer else MAKING)
    reply = {"error": "the process ended, or took too long"} if reply is None else reply
    # A scorer that fails on an answer is no error of the settings; the answer scores 0.
    if "error" in reply and not answer:
        names = reply.get("known", [dataset])
        hint = "" if dataset in names else did_you_mean(dataset, names)
        raise UserError(
            f"reasoning-gym can't make tasks of {dataset!r} with {config}: {reply['error']}",
            f"{hint}correct environment.dataset or environment.config",
        )
    return reply


@series
def items(split: Split, dataset: str, config: str, seed: int) -> Iterator[Task]:
    """Yield the tasks of a split, without duplicates. Their ids are their numbers in the data set."""
    start = random.Random(f"reasoning-gym/{dataset}/{seed}").randrange(FIRST)
    numbers = itertools.count(start)

    def draw(_: int) -> Task | None:
        number = next(numbers)
        question, answer = ask(dataset, config, number)["item"]
        # No model is pre-trained on these tasks, so the share of the corpus belongs to training.
        if (split_of_key(question) == "heldout") != (split == "heldout"):
            return None
        public = {"question": question, "number": number}
        # Some data sets accept several answers and have only a scorer.
        secrets = grader_secret("answer", answer, TEACHER) if answer else {}
        return Task(f"{dataset}-{number}", public, secrets)

    return distinct(split, draw, lambda task: str(task.public["question"]))


class ReasoningGym(Answers, OneReply):
    """Questions of one data set."""

    name = "reasoning_gym"
    metric = "score_answer"
    settings_type = ReasoningGymSettings

    def __init__(self, settings: ReasoningGymSettings) -> None:
        self.dataset, self.config = settings.dataset, json.dumps(settings.config, sort_keys=True)
        self.version = f"1/reasoning-gym {package_version(self.name, 'reasoning-gym')}"

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        tasks = items(split, self.dataset, self.config, seed).draw(split, count, previous_counts)
        return [task for _, task in tasks]

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        prompt = Part(f"{state.task.public['question']}{FORMAT}", source="task")
        return (Message("user", (prompt,)), *(Message("assistant", turn=t.id) for t in state.turns))

    def answer(self, text: str) -> str | None:
        """Return the last marked answer, else the whole text."""
        return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()

    async def grade(self, state: State, session: Any) -> Grade:
        """Return the score of ``score_answer``; 0 if it fails on the answer or takes too long."""
        text, number = state.answer or "", int(str(state.task.public["number"]))
        answer = self.answer(text) or ""
        reply = await asyncio.to_thread(ask, self.dataset, self.config, number, answer=answer)
        marked = float("<answer>" in text and "</answer>" in text)
        metrics = {WELL_FORMED: marked, "scorer_failed": float("error" in reply)}
        return Grade(reply.get("score", 0.0), metrics)
