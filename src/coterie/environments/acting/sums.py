"""The ``sums`` micro-world: word problems for an agent with Python, which a tiny model can solve in one short cell.

    Ann has 3 boxes with 14 pens in each. Ann gives 5 pens away. How many pens has Ann?    3 * 14 - 5
    Ann has 3 boxes with 14 pens in all. Ann gives 5 pens away. How many pens has Ann?     14 - 5

Half of the problems are traps: what is told of is told of in all, so a habit of multiplying gives a wrong program.

What is disjoint between the splits: the *canonical key* of a problem, which is all that its answer depends on, and who
has what. A hash of it decides the split.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.rows import QuestionRow
from coterie.environments.acting.python_maths import (
    SUBJECTS,
    AnsweringSettings,
    PythonMaths,
    as_task,
)
from coterie.environments.acting.syntax import written_action, written_answer
from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Role

PROMPT = "Count with Python, then answer."
WRONG = "Wrong."
CHECK = "Check."
OWNERS = (
    "Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Ray",
)  # fmt: skip
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")
BOXES = ("boxes", "bags")
MOST = 99
"""The largest number in a problem, in a program or in what it gives."""
NUMBERS = [(n, m) for n in range(2, 8) for m in range(11, 45) if n * m <= MOST - 9]
"""How many boxes, and how many things."""
CHANGES = range(2, 10)
TRAPS = 0.5
"""How often things are told of in all."""
OTHERS = 0.3
"""How often a fact is told that does not count."""
Sign = Literal["+", "-"]
Dialogue = list[tuple[Role, str]]
"""Who says what, from the prompt to the last answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    """Unique within (split, seed)."""
    owner: str
    box: str
    thing: str
    boxes: int
    count: int
    trap: bool
    sign: Sign
    change: int
    other: str
    """A fact that does not count, or nothing."""

    @property
    def program(self) -> str:
        return self._calculated(times=not self.trap)

    @property
    def habit(self) -> str:
        """The calculation of who always multiplies: wrong for a trap."""
        return self._calculated(times=True)

    @property
    def answer(self) -> int:
        return self._value(times=not self.trap)

    @property
    def wrong_answer(self) -> int:
        return self._value(times=True)

    def _calculated(self, *, times: bool) -> str:
        first = f"{self.boxes} * {self.count}" if times else f"{self.count}"
        return f"{first} {self.sign} {self.change}"

    def _value(self, *, times: bool) -> int:
        first = self.boxes * self.count if times else self.count
        return first + self.change if self.sign == "+" else first - self.change


def canonical_key(problem: Problem) -> str:
    """What makes two problems the same across splits."""
    return f"{problem.owner}|{problem.thing}|{problem.program}|{problem.boxes}"


def problem_text(problem: Problem) -> str:
    owner, thing = problem.owner, problem.thing
    many = "all" if problem.trap else "each"
    first = f"{owner} has {problem.boxes} {problem.box} with {problem.count} {thing} in {many}."
    then = {"+": f"gets {problem.change} {thing} more", "-": f"gives {problem.change} {thing} away"}
    facts = [first, problem.other, f"{owner} {then[problem.sign]}."]
    return " ".join([*filter(None, facts), f"How many {thing} has {owner}?"])


def generate(split: MicroSplit, count: int, seed: int, traps: float = TRAPS) -> list[Problem]:
    """``count`` problems of one split. Equal arguments give equal problems, and a larger count extends a smaller one.

    Raises ``ValueError`` for a split that there is not.
    """
    check_split(split)
    rng = random.Random(f"sums/{split}/{seed}/{traps}")
    found: list[Problem] = []
    seen: set[str] = set()
    while len(found) < count:
        problem = _draw(f"{split}-{seed}-{len(found)}", traps, rng)
        name = canonical_key(problem)
        if split_of_key(name) == split and name not in seen:
            seen.add(name)
            found.append(problem)
    return found


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


# -- plays, which a model is pre-trained on ----------------------------------------------------


def right_play(problem: Problem, rng: random.Random) -> Dialogue:
    """A dialogue with the right program; ``rng`` says how it is written."""
    return [*_told(problem), *_counted(problem.program, problem.answer, rng)]


def habit_play(problem: Problem, rng: random.Random) -> Dialogue:
    """A dialogue of who always multiplies; for a trap it ends with a wrong answer."""
    return [*_told(problem), *_counted(problem.habit, problem.wrong_answer, rng)]


def corrected_play(problem: Problem, rng: random.Random) -> Dialogue:
    """A dialogue on a trap: the wrong program, a wrong answer, and both corrected when it is told so.

    Raises ``ValueError`` for a problem that is no trap.
    """
    if not problem.trap:
        raise ValueError(f"{problem.problem_id} is not a trap, so its habit is right")
    again = _counted(problem.program, problem.answer, rng)
    return [*habit_play(problem, rng), ("user", WRONG), *again]


def _told(problem: Problem) -> Dialogue:
    return [("system", PROMPT), ("user", problem_text(problem))]


def _counted(program: str, value: int, rng: random.Random) -> Dialogue:
    cell = rng.choice((f"print({program})", program, f"x = {program}\nprint(x)"))
    said = [written_action(cell), str(value), written_answer(str(value))]
    roles: tuple[Role, ...] = ("assistant", "user", "assistant")
    return list(zip(roles, said, strict=True))


# -- the environment ---------------------------------------------------------------------------


class SumsSettings(AnsweringSettings):
    """Settings of the micro-world."""

    steps: int = key(6, "Most messages of the agent.", ge=1)


class Sums(PythonMaths):
    """The micro-world of Python sessions."""

    name = "sums"
    settings_type = SumsSettings
    row_types = ()
    wrong = WRONG
    check = CHECK

    def __init__(self, settings: SumsSettings | None = None) -> None:
        self.shown_shots = 0
        self._answering(settings or SumsSettings(), SUBJECTS["numbers"])

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; train and held-out are disjoint by construction."""
        start = sum(drawn) if split == "train" else 0
        return [sums_task(one) for one in generate(split, start + count, seed)[start:]]

    def told(self, task: Task) -> str:
        """The few words that a tiny model knows."""
        return PROMPT

    def problem(self, task: Task) -> str:
        return str(task.public["question"])


def sums_task(problem: Problem) -> Task:
    """The record's form of a problem."""
    row = QuestionRow(
        id=problem.problem_id, question=problem_text(problem), answer=str(problem.answer)
    )
    return as_task(row, f"sums-{row.id}")
