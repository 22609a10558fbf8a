"""The ``sums`` micro-world: word problems for an agent with Python that a tiny model can solve in one short cell.

    Ann has 3 boxes with 14 pens in each. Ann gives 5 pens away. How many pens has Ann?    3 * 14 - 5
    Ann has 3 boxes with 14 pens in all. Ann gives 5 pens away. How many pens has Ann?     14 - 5

Half of the problems are traps: they state the total, so the habit of multiplying leads to a wrong program.

A hash of a problem's canonical key (its owner, thing, and the numbers of its answer) decides its split, so no key is in
two splits.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.rows import QuestionRow
from coterie.environments.python_maths import SUBJECTS, AnsweringSettings, PythonMaths, as_task
from coterie.environments.settings import MicroSplit, check_split, split_of_key
from coterie.record.tree import Task

PROMPT = "Count with Python, then answer."
WRONG = "Wrong."
CHECK = "Check."
OWNERS = (
    "Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Ray",
)  # fmt: skip
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")
BOXES = ("boxes", "bags")
MOST = 99
"""The largest number in a problem, a program or its result."""
NUMBERS = [(n, m) for n in range(2, 8) for m in range(11, 45) if n * m <= MOST - 9]
CHANGES = range(2, 10)
TRAPS = 0.5
OTHERS = 0.3
Sign = Literal["+", "-"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    owner: str
    box: str
    thing: str
    boxes: int
    count: int
    trap: bool
    sign: Sign
    change: int
    other: str
    """An irrelevant fact, or ""."""

    def program_of(self, *, times: bool) -> str:
        """Return the program of an agent that multiplies, which is wrong for a trap, or not."""
        first = f"{self.boxes} * {self.count}" if times else f"{self.count}"
        return f"{first} {self.sign} {self.change}"

    def answer_of(self, *, times: bool) -> int:
        first = self.boxes * self.count if times else self.count
        return first + self.change if self.sign == "+" else first - self.change

    @property
    def program(self) -> str:
        return self.program_of(times=not self.trap)

    @property
    def answer(self) -> int:
        return self.answer_of(times=not self.trap)


def canonical_key(problem: Problem) -> str:
    """Return the identity of a problem across splits."""
    return f"{problem.owner}|{problem.thing}|{problem.program}|{problem.boxes}"


def problem_text(problem: Problem) -> str:
    owner, thing = problem.owner, problem.thing
    many = "all" if problem.trap else "each"
    first = f"{owner} has {problem.boxes} {problem.box} with {problem.count} {thing} in {many}."
    then = {"+": f"gets {problem.change} {thing} more", "-": f"gives {problem.change} {thing} away"}
    facts = [first, problem.other, f"{owner} {then[problem.sign]}."]
    return " ".join([*filter(None, facts), f"How many {thing} has {owner}?"])


def generate(split: MicroSplit, count: int, seed: int, traps: float = TRAPS) -> list[Problem]:
    """Return ``count`` problems of a split. The result is deterministic, and a larger count extends a smaller one."""
    check_split(split)
    rng = random.Random(f"sums/{split}/{seed}/{traps}")
    problems: list[Problem] = []
    seen: set[str] = set()
    while len(problems) < count:
        problem = _draw(f"{split}-{seed}-{len(problems)}", traps, rng)
        name = canonical_key(problem)
        if split_of_key(name) == split and name not in seen:
            seen.add(name)
            problems.append(problem)
    return problems


def _draw(name: str, traps: float, rng: random.Random) -> Problem:
    owner, (thing, another) = rng.choice(OWNERS), rng.sample(THINGS, 2)
    boxes, count = rng.choice(NUMBERS)
    return Problem(
        name,
        owner,
        rng.choice(BOXES),
        thing,
        boxes,
        count,
        trap=rng.random() < traps,
        sign=rng.choice(("+", "-")),
        change=rng.choice(CHANGES),
        other=f"{owner} has {rng.choice(CHANGES)} {another}." if rng.random() < OTHERS else "",
    )


class SumsSettings(AnsweringSettings):
    """Settings of the micro-world."""

    steps: int = key(6, "Maximum messages of the agent.", ge=1)


class Sums(PythonMaths):
    """Word problems for one agent with a Python session."""

    name = "sums"
    settings_type = SumsSettings
    row_types = ()
    wrong = WRONG
    check = CHECK

    def __init__(self, settings: SumsSettings | None = None) -> None:
        self._answering(settings or SumsSettings(), SUBJECTS["numbers"])

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split."""
        start = sum(after) if split == "train" else 0
        return [sums_task(one) for one in generate(split, start + count, seed)[start:]]

    def system_prompt(self, task: Task) -> str:
        """Return the short prompt that the tiny model knows."""
        return PROMPT

    def problem(self, task: Task) -> str:
        return str(task.public["question"])


def sums_task(problem: Problem) -> Task:
    row = QuestionRow(
        id=problem.problem_id, question=problem_text(problem), answer=str(problem.answer)
    )
    return as_task(row, f"sums-{row.id}")
