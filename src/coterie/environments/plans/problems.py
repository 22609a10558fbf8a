"""The ``problems`` micro-world: a planner and a grounder on word problems that ask for a total of quantities.

An owner may have further quantities, which do not count: then a subgoal that names only the owner is ambiguous. Half of
the quantities are in words ("14 dozen", "half of 48"), which the packaged grounder misreads at times, whatever the plan
says. A hash of the quantities in the total decides the split.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.environments.plans.domains import Maths
from coterie.environments.plans.plan_ground import PLANNER, PlanGround, request, whole_task
from coterie.environments.plans.python_maths import OWNERS, THINGS
from coterie.environments.protocol import Shared
from coterie.environments.settings import (
    EnvironmentSettings,
    MicroSplit,
    distinct,
    series,
    split_random,
)
from coterie.record.tree import Task
from coterie.tools.actions.executors import Executed
from coterie.tools.actions.grammar import Action

Wording = Literal["near", "far"]
"""Wording of problems: the same as in training tasks, or different."""
Sign = Literal["+", "-", "*", "/"]
SIGNS: tuple[Sign, ...] = ("+", "-", "*")
IN_WORDS = 0.5
"""How often a quantity is in words: dozens, or half of a number."""
WORDS: tuple[tuple[Sign, int], ...] = (("*", 12), ("/", 2))
MISREADINGS = {"* 12": "* 10", "/ 2": "* 2"}
"""Right ends of calculations, and what the packaged grounder writes instead. No other calculation ends like these."""
AMBIGUOUS = 0.5
MORE = 2
OTHERS = (1, 2)
FIRSTS = range(12, 100, 2)
SECOND = 5
"""Second number of calculations that are not in words."""
PARTS = (2, 3)
FAR_PARTS = (4,)


@dataclass(frozen=True, slots=True)
class Fact:
    """A quantity of an owner, given as a calculation or in words."""

    owner: str
    thing: str
    first: int
    sign: Sign
    second: int

    @property
    def calculation(self) -> str:
        return f"{self.first} {self.sign} {self.second}"

    @property
    def words(self) -> str:
        in_words = {("*", 12): f"{self.first} dozen", ("/", 2): f"half of {self.first}"}
        return in_words.get((self.sign, self.second), self.calculation)

    @property
    def value(self) -> int:
        return {
            "+": self.first + self.second,
            "-": self.first - self.second,
            "*": self.first * self.second,
            "/": self.first // self.second,
        }[self.sign]


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    parts: tuple[Fact, ...]
    facts: tuple[Fact, ...]
    wording: Wording = "near"

    @property
    def answer(self) -> int:
        return sum(fact.value for fact in self.parts)

    def is_ambiguous(self, part: Fact) -> bool:
        return sum(fact.owner == part.owner for fact in self.facts) > 1


def canonical_key(problem: Problem) -> str:
    """Return the identity of a problem across splits: the quantities in the total."""
    return ";".join(f"{fact.owner}|{fact.thing}|{fact.calculation}" for fact in problem.parts)


@series
def generate(
    split: MicroSplit,
    seed: int,
    parts: tuple[int, ...] = PARTS,
    wording: Wording = "near",
    ambiguous: float = AMBIGUOUS,
) -> Iterator[Problem]:
    """Yield the problems of a split."""
    rng = split_random(split, f"problems/{split}/{seed}/{parts}/{wording}/{ambiguous}")

    def draw(number: int) -> Problem:
        name = f"{split}-{wording}-{seed}-{number}"
        return _draw(name, rng.choice(parts), wording, ambiguous, rng)

    return distinct(split, draw, canonical_key, canonical_key)


def _draw(name: str, count: int, wording: Wording, ambiguous: float, rng: random.Random) -> Problem:
    # The first owners are part of the total; the others are distractors.
    owners = rng.sample(OWNERS, count + rng.choice(OTHERS))
    quantities: list[tuple[str, str]] = []
    for index, owner in enumerate(owners):
        # With further quantities of an owner, a subgoal that names only the owner is ambiguous.
        distractors = MORE if index < count and rng.random() < ambiguous else 0
        quantities += [(owner, thing) for thing in rng.sample(THINGS, 1 + distractors)]
    all_facts = draw_facts(quantities, rng)
    firsts = [next(fact for fact in all_facts if fact.owner == owner) for owner in owners[:count]]
    # The order of the facts must not tell which of them count.
    return Problem(name, tuple(firsts), tuple(rng.sample(all_facts, len(all_facts))), wording)


def draw_facts(quantities: Sequence[tuple[str, str]], rng: random.Random) -> list[Fact]:
    """Draw a calculation for each owner and thing; all first numbers differ."""
    facts = []
    for (owner, thing), first in zip(quantities, rng.sample(FIRSTS, len(quantities)), strict=True):
        plain, word = (rng.choice(SIGNS), SECOND), rng.choice(WORDS)
        facts.append(Fact(owner, thing, first, *(word if rng.random() < IN_WORDS else plain)))
    return facts


PLANNER_PROMPT = "Plan."
GROUNDER_PROMPT = "Act."
"""Short system prompts that the packaged model knows."""
TOTAL = "add all"
CAREFUL_BRIEFS = 0.95
_FACTS: dict[Wording, str] = {
    "near": "{owner}'s {thing} are {words}.",
    "far": "For {owner}'s {thing} take {words}.",
}
_QUESTIONS: dict[Wording, str] = {"near": "How many are {parts} together?", "far": "Count {parts}."}


def problem_text(problem: Problem) -> str:
    *beginning, last_part = (f"{fact.owner}'s {fact.thing}" for fact in problem.parts)
    question = _QUESTIONS[problem.wording].format(parts=f"{', '.join(beginning)} and {last_part}")
    return " ".join([*(fact_text(fact, problem.wording) for fact in problem.facts), question])


def clear(fact: Fact) -> str:
    return f"find {fact.owner}'s {fact.thing}"


def brief(fact: Fact) -> str:
    return f"find {fact.owner}'s"


def subgoals(problem: Problem, briefs: float, rng: random.Random, *, careful: bool) -> list[str]:
    """Return a plan whose subgoals are brief with probability ``briefs``; if ``careful``, only unambiguous ones."""
    plan = []
    for fact in problem.parts:
        may = not (careful and problem.is_ambiguous(fact))
        plan.append(brief(fact) if may and rng.random() < briefs else clear(fact))
    return [*plan, TOTAL]


def right_subgoals(problem: Problem) -> list[str]:
    """Return the reference plan, which is mostly brief where that is unambiguous."""
    # The seed follows from the problem, so all runs train on the same plan.
    rng = random.Random(f"problems/plan/{canonical_key(problem)}")
    return subgoals(problem, CAREFUL_BRIEFS, rng, careful=True)


def actions(problem: Problem) -> list[str]:
    lines = [f"R{n} = Calculator({fact.calculation})" for n, fact in enumerate(problem.parts, 1)]
    total = " + ".join(f"R{n}" for n in range(1, len(lines) + 1))
    return [*lines, f"R{len(lines) + 1} = Calculator({total})"]


def results(problem: Problem) -> list[str]:
    return [*(str(fact.value) for fact in problem.parts), str(problem.answer)]


def fact_text(fact: Fact, wording: Wording) -> str:
    return _FACTS[wording].format(owner=fact.owner, thing=fact.thing, words=fact.words)


class Calculations(Maths):
    """Word problems with a calculator as the only tool."""

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        unknown = next((action for action in actions if action.tool != "Calculator"), None)
        if unknown is not None:
            return Executed({}, None, f"there is no tool but Calculator: {unknown.text[:80]}")
        return await super().run(actions, values, task, shared)


class ProblemsSettings(EnvironmentSettings):
    """Settings of the micro-world."""

    far: bool = key(False, "Word problems differently, with one more part.")


class Problems(PlanGround):
    """Micro-world of the recipe ``moat``."""

    name = "problems"
    settings_type = ProblemsSettings
    row_types = ()
    form = "onetime"
    max_turns = 2

    def __init__(self, settings: ProblemsSettings | None = None) -> None:
        settings = settings or ProblemsSettings()
        self.domain = Calculations()
        self.needs, self.metric = self.domain.needs, self.domain.metric
        self.far = settings.far

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        form = (FAR_PARTS, "far") if self.far else (PARTS, "near")
        problems = generate(split, seed, *form).draw(split, count, previous_counts)
        return [as_task(problem) for _, problem in problems]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        return self.tasks("heldout", count, seed)

    def system_prompt(self, task: Task, actor: str) -> str:
        return PLANNER_PROMPT if actor == PLANNER else f"{GROUNDER_PROMPT} {request(task)}"


def as_task(problem: Problem) -> Task:
    steps = [
        PlanStep(subgoal=subgoal, actions=(action,), result=value)
        for subgoal, action, value in zip(
            right_subgoals(problem), actions(problem), results(problem), strict=True
        )
    ]
    row = PlanRow(
        id=problem.problem_id,
        question=problem_text(problem),
        answer=str(problem.answer),
        steps=tuple(steps),
        domain="maths",
    )
    return whole_task(row)
