"""The ``problems`` micro-world as an environment: a planner and a grounder on word problems that it makes."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.environments.micro_splits import MicroSplit, check_split, split_of_key
from coterie.environments.numbers import same_number
from coterie.environments.plan_ground.environment import PLANNER, PlanGround, asked, whole_task
from coterie.environments.protocol import Shared
from coterie.environments.settings import EnvironmentSettings
from coterie.tools.actions.executor import Executed
from coterie.tools.actions.grammar import Action
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.shown import format_value
from coterie.trajectories.task import Task

# Word problems of the ``problems`` micro-world: a total of quantities, each of which has to be worked out.
#
# A quantity is somebody's number of something, such as Bob's pens. The question names those that are added up. An owner
# among them may have others, which do not count. Then a subgoal that names the owner alone can mean any of them: it is
# ambiguous.
#
# What is disjoint between the splits: the *canonical key* of a problem, i.e. the quantities that are added up, with
# their numbers. A hash of it decides the split.

Wording = Literal["near", "far"]
"""How problems are told: in the words of training tasks, or in others."""
Sign = Literal["+", "-", "*"]
SIGNS: tuple[Sign, ...] = ("+", "-", "*")
OWNERS = (
    "Ann", "Bob", "Cal", "Dee", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim", "Kay", "Leo", "Mia", "Ned", "Pam", "Ray",
)  # fmt: skip
THINGS = ("pens", "cups", "hats", "keys", "maps", "nuts", "pots", "rugs")
AMBIGUOUS = 0.3
"""How often an owner who counts has quantities that do not."""
MORE = 2
OTHERS = (1, 2)
"""How many owners there are besides, each entry equally often drawn."""
FIRSTS, SECONDS = range(11, 60), range(2, 10)
PARTS = (2, 3)
"""How many quantities are added up, each entry equally often drawn."""
FAR_PARTS = (4,)
MAX_VALUE = 2000
"""Characters of what a line gives."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What is told of somebody's number of something: a calculation."""

    owner: str
    thing: str
    first: int
    sign: Sign
    second: int

    @property
    def calculation(self) -> str:
        return f"{self.first} {self.sign} {self.second}"

    @property
    def value(self) -> int:
        return {
            "+": self.first + self.second,
            "-": self.first - self.second,
            "*": self.first * self.second,
        }[self.sign]


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem."""

    problem_id: str
    """Unique within (split, seed, wording)."""
    parts: tuple[Fact, ...]
    """What is added up, in the order of the question."""
    told: tuple[Fact, ...]
    wording: Wording = "near"

    @property
    def answer(self) -> int:
        return sum(fact.value for fact in self.parts)

    def is_ambiguous(self, part: Fact) -> bool:
        return sum(fact.owner == part.owner for fact in self.told) > 1


def canonical_key(problem: Problem) -> str:
    """What makes two problems the same across splits: what is added up (not the wording, nor what else is told)."""
    return ";".join(f"{fact.owner}|{fact.thing}|{fact.calculation}" for fact in problem.parts)


def generate(
    split: MicroSplit,
    count: int,
    seed: int,
    parts: tuple[int, ...] = PARTS,
    wording: Wording = "near",
    ambiguous: float = AMBIGUOUS,
) -> list[Problem]:
    """``count`` problems of one split. Equal arguments give equal problems, and a larger count extends a smaller one.

    Raises ``ValueError`` for a split that there is not.
    """
    check_split(split)
    rng = random.Random(f"problems/{split}/{seed}/{parts}/{wording}/{ambiguous}")
    found: list[Problem] = []
    seen: set[str] = set()
    while len(found) < count:
        name = f"{split}-{wording}-{seed}-{len(found)}"
        problem = _draw(name, rng.choice(parts), wording, ambiguous, rng)
        key = canonical_key(problem)
        if split_of_key(key) == split and key not in seen:
            seen.add(key)
            found.append(problem)
    return found


def facts(rng: random.Random) -> list[Fact]:
    owners = rng.sample(OWNERS, rng.randint(3, 6))
    return [_fact(owner, rng.choice(THINGS), rng) for owner in owners]


def _draw(name: str, count: int, wording: Wording, ambiguous: float, rng: random.Random) -> Problem:
    owners = rng.sample(OWNERS, count + rng.choice(OTHERS))
    told: list[Fact] = []
    for place, owner in enumerate(owners):
        more = MORE if place < count and rng.random() < ambiguous else 0
        told += [_fact(owner, thing, rng) for thing in rng.sample(THINGS, 1 + more)]
    firsts = [next(fact for fact in told if fact.owner == owner) for owner in owners[:count]]
    return Problem(name, tuple(firsts), tuple(rng.sample(told, len(told))), wording)


def _fact(owner: str, thing: str, rng: random.Random) -> Fact:
    return Fact(owner, thing, rng.choice(FIRSTS), rng.choice(SIGNS), rng.choice(SECONDS))


PLANNER_PROMPT = "Plan."
GROUNDER_PROMPT = "Act."
"""What both are told, before the problem: the few words that the packaged model knows."""
TOTAL = "add all"
CAREFUL_BRIEFS = 0.95
_FACTS: dict[Wording, str] = {
    "near": "{owner}'s {thing} are {calculation}.",
    "far": "For {owner}'s {thing} take {calculation}.",
}
_QUESTIONS: dict[Wording, str] = {
    "near": "How many are {parts} together?",
    "far": "Count {parts}.",
}


def problem_text(problem: Problem) -> str:
    *most, last = (f"{fact.owner}'s {fact.thing}" for fact in problem.parts)
    question = _QUESTIONS[problem.wording].format(parts=f"{', '.join(most)} and {last}")
    return " ".join([*(fact_text(fact, problem.wording) for fact in problem.told), question])


def clear(fact: Fact) -> str:
    return f"find {fact.owner}'s {fact.thing}"


def brief(fact: Fact) -> str:
    """A subgoal that says whose alone."""
    return f"find {fact.owner}'s"


def subgoals(problem: Problem, briefs: float, rng: random.Random, *, careful: bool) -> list[str]:
    """A plan in which as large a share of subgoals is brief; with care only those that can't mean something else."""
    found = []
    for fact in problem.parts:
        may = not (careful and problem.is_ambiguous(fact))
        found.append(brief(fact) if may and rng.random() < briefs else clear(fact))
    return [*found, TOTAL]


def right_subgoals(problem: Problem) -> list[str]:
    """The plan that comes with a problem: as brief as it can be without meaning something else, in most places."""
    rng = random.Random(f"problems/plan/{canonical_key(problem)}")
    return subgoals(problem, CAREFUL_BRIEFS, rng, careful=True)


def actions(problem: Problem) -> list[str]:
    """The calculations that carry the plan out, one for each subgoal."""
    found = [f"R{n} = Calculator({fact.calculation})" for n, fact in enumerate(problem.parts, 1)]
    total = " + ".join(f"R{n}" for n in range(1, len(found) + 1))
    return [*found, f"R{len(found) + 1} = Calculator({total})"]


def results(problem: Problem) -> list[str]:
    return [*(str(fact.value) for fact in problem.parts), str(problem.answer)]


def fact_text(fact: Fact, wording: Wording) -> str:
    return _FACTS[wording].format(owner=fact.owner, thing=fact.thing, calculation=fact.calculation)


TOOL = "Calculator"


class SandboxCalculator:
    """A domain whose only tool is a calculator. What a model calculates is Python, and runs where Python may."""

    name = "maths"
    needs: tuple[type, ...] = (Sandbox,)
    metric = "success"

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        for action in actions:
            if action.tool != TOOL:
                return Executed({}, None, f"there is no tool but {TOOL}: {action.text[:80]}")
        lines = [f"{action.result} = {action.rest(0).strip()}" for action in actions]
        names = [action.result for action in actions]
        found = await shared[Sandbox].run("\n".join(lines), names)
        new: dict[str, str] = {}
        for name, result in zip(names, found, strict=True):
            if not result.ok:
                return Executed(new, None, f"{name}: {result.reason}")
            assert result.wire is not None
            tag, content = result.wire
            new[name] = content if tag == "str" else format_value(result.wire, MAX_VALUE)
        return Executed(new, new[names[-1]])

    def same(self, gold: str, given: str) -> bool:
        return same_number(gold, given)


class ProblemsSettings(EnvironmentSettings):
    """Settings of the micro-world."""

    far: bool = key(False, "Problems are told in other words, and have one more part.")


class Problems(PlanGround):
    """The micro-world of ``moat``."""

    name = "problems"
    settings_type = ProblemsSettings
    row_types = ()
    form = "onetime"
    max_turns = 2

    def __init__(self, settings: ProblemsSettings | None = None) -> None:
        settings = settings or ProblemsSettings()
        self.domain = SandboxCalculator()
        self.needs, self.metric = self.domain.needs, self.domain.metric
        self.far = settings.far

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; train and held-out are disjoint by construction (see ``tasks``)."""
        start = sum(drawn) if split == "train" else 0
        told = (FAR_PARTS, "far") if self.far else (PARTS, "near")
        return [as_task(one) for one in generate(split, start + count, seed, *told)[start:]]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Held-out tasks; all have right actions."""
        return self.tasks("heldout", count, seed)

    def told(self, task: Task, actor: str) -> str:
        """The few words that the packaged model knows."""
        return PLANNER_PROMPT if actor == PLANNER else f"{GROUNDER_PROMPT} {asked(task)}"


def as_task(problem: Problem) -> Task:
    """The record's form of a problem, with a careful plan."""
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
