"""How problems, subgoals and actions of the ``problems`` micro-world are written."""

import random

from coterie.environments.problems.tasks import Fact, Problem, Wording, canonical_key

PLANNER_PROMPT = "Plan."
GROUNDER_PROMPT = "Act."
"""What both are told, before the problem: the few words that the packaged model knows."""
TOTAL = "add all"
"""The last subgoal."""
CAREFUL_BRIEFS = 0.95
"""How often a careful plan is brief where it may be."""
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
