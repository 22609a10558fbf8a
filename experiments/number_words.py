"""Sums and products of one-digit numbers in varied words. Greedily, SmolLM2-135M solves more of them than it samples.

Held-out tasks have pairs of numbers and wordings that no training task has.
"""

import random
import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from coterie import Ending, Message, Secret, Task
from coterie.environments import Grade, Pure, Transition

WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "+": (
            "What is {a} plus {b}?",
            "Add {a} and {b}.",
            "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
            "There are {a} red {things} and {b} blue {things}. How many {things} are there?",
        ),
        "*": (
            "What is {a} times {b}?",
            "Multiply {a} by {b}.",
            "Each of {a} boxes holds {b} {things}. How many {things} are in the boxes?",
            "{name} buys {a} bags of {b} {things}. How many {things} does {name} buy?",
        ),
    },
    "heldout": {
        "+": (
            "What is the sum of {a} and {b}?",
            "{name} finds {a} {things} today and {b} {things} the next day. How many {things} does {name} find?",
        ),
        "*": (
            "What is the product of {a} and {b}?",
            "{name} fills {a} shelves with {b} {things} each. How many {things} does {name} need?",
        ),
    },
}
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Ida", "Jan", "Kim", "Leo", "Mia")
THINGS = ("apples", "books", "coins", "cups", "eggs", "keys", "nuts", "pens", "plates", "stamps")
REQUEST = "Reply with the number only."
_NUMBER = re.compile(r"\d+")


def split_of(a: int, b: int) -> str:
    """Return the split of a pair of numbers, whatever their order."""
    return "train" if crc32(f"{min(a, b)}, {max(a, b)}".encode()) % 4 else "heldout"


class NumberWords(Pure):
    """One agent answers with a number."""

    name, metric = "number-words", "solved"
    actors, limits = {"solver": "agent"}, {"turns": 1}

    def tasks(
        self, split: Any, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        start = sum(previous_counts)
        return [self.task(split, f"{split}-{seed}-{start + n}") for n in range(count)]

    def task(self, split: str, id_: str) -> Task:
        """Draw a task from its id. Every second one is a product."""
        draw = random.Random(id_)
        operator = "+*"[int(id_.rpartition("-")[2]) % 2]
        pairs = [(a, b) for a in range(2, 10) for b in range(2, 10) if split_of(a, b) == split]
        a, b = draw.choice(pairs)
        wording, name, things = map(draw.choice, (WORDINGS[split][operator], NAMES, THINGS))
        question = wording.format(a=a, b=b, name=name, things=things)
        answer = Secret(
            str(a * b if operator == "*" else a + b), name="answer", readers=frozenset({"grader"})
        )
        return Task(id_, {"question": question}, {"answer": answer})

    def next_actors(self, state: Any) -> tuple[str, ...]:
        return ("solver",)

    def observe(self, state: Any, actor: str) -> tuple[Message, ...]:
        return (Message.of("user", f"{state.task.public['question']} {REQUEST}"),)

    async def act(self, state: Any, taken: Any, session: Any, *, replayed: Any = ()) -> Transition:
        return Transition(end=Ending("answered"))

    async def grade(self, state: Any, session: Any) -> Grade:
        """Score 1 if the last number of the reply is right."""
        numbers = _NUMBER.findall(state.turns[0].text)
        return Grade(float(numbers[-1:] == [state.task.secrets["answer"].reveal("grader")]))
