"""The ``problems`` micro-world: tasks, wordings, the environment, what the packaged model knows."""

import asyncio
import random
from dataclasses import replace

import pytest

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.environments.plan_ground import (
    GROUNDER,
    PLANNER,
    UNREADABLE,
    actions_text,
    gold,
    plan_text,
)
from coterie.environments.problems import (
    TOTAL,
    Fact,
    Problem,
    Problems,
    ProblemsSettings,
    actions,
    as_task,
    brief,
    clear,
    generate,
    problem_text,
    results,
    right_subgoals,
    subgoals,
)
from coterie.environments.protocol import Shared, State
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load, load_renderer
from coterie.record.tree import Tree
from coterie.rollout.recorded_turns import WrittenTurn, write_path
from coterie.tools.actions.grammar import check
from coterie.tools.sandbox.pool import Sandbox
from scripts.tiny.problems import grounder_row

PROBLEMS = generate("heldout", 300, 1)
ANN = Fact("Ann", "pens", 12, "+", 3)
BOB = Fact("Bob", "cups", 20, "-", 5)
BESIDE = Fact("Bob", "hats", 30, "*", 2)
SMALL = Problem("small", (ANN, BOB), (BESIDE, ANN, BOB))


def test_a_problem_is_told_and_solved():
    assert problem_text(SMALL) == (
        "Bob's hats are 30 * 2. Ann's pens are 12 + 3. Bob's cups are 20 - 5. "
        "How many are Ann's pens and Bob's cups together?"
    )
    assert actions(SMALL) == [
        "R1 = Calculator(12 + 3)",
        "R2 = Calculator(20 - 5)",
        "R3 = Calculator(R1 + R2)",
    ]
    assert results(SMALL) == ["15", "15", "30"]


def test_careful_plans_are_brief_only_where_that_means_one_thing():
    rng = random.Random(0)
    assert subgoals(SMALL, 1.0, rng, careful=True) == [brief(ANN), clear(BOB), TOTAL]
    assert subgoals(SMALL, 1.0, rng, careful=False) == [brief(ANN), brief(BOB), TOTAL]
    assert subgoals(SMALL, 0.0, rng, careful=False) == [clear(ANN), clear(BOB), TOTAL]
    for problem in PROBLEMS:
        for fact, said in zip(problem.parts, right_subgoals(problem)[:-1], strict=True):
            assert said == clear(fact) or not problem.is_ambiguous(fact)


@pytest.fixture
def played(runner: asyncio.Runner, sandbox: Sandbox):
    """The state after a plan and actions that were written, and its grade."""

    async def play(environment: Problems, task, plan: str, said: str):
        shared = Shared(sandbox)
        tree = Tree(task.id, "test", 0)
        path = write_path(
            environment,
            task,
            tree,
            [WrittenTurn(PLANNER, plan, "test"), WrittenTurn(GROUNDER, said, "test")],
            dict.fromkeys((PLANNER, GROUNDER), renderer()),
        )
        state = State(task, 0, turns=(path[0],))
        done = await environment.act(state, (path[0],), shared)
        state = State(task, 0, turns=tuple(path), data=done.data)
        done = await environment.act(state, (path[1],), shared)
        state = replace(state, data=done.data, answer=done.answer, end=done.end)
        return state, await environment.grade(state, shared)

    return lambda *given: runner.run(play(*given))


def renderer() -> ChatRenderer:
    return load_renderer("tiny-problems")[0]


def test_actions_run_and_the_answer_is_compared(played):
    environment, task = Problems(), as_task(SMALL)
    plan = plan_text(right_subgoals(SMALL))
    assert gold(task).plan == plan
    state, grade = played(environment, task, plan, actions_text(actions(SMALL)))
    assert (state.answer, grade.score) == ("30", 1.0)
    _, grade = played(
        environment,
        task,
        plan,
        "R1 = Calculator(12 + 3); R2 = Calculator(30 * 2); R3 = Calculator(R1 + R2)",
    )
    assert grade.score == 0.0
    state, grade = played(environment, task, plan, "R1 = Calculator(12 / 0)")
    assert (state.end, grade.score) == (UNREADABLE, 0.0)
    counted = actions_text(actions(SMALL)).replace("Calculator", "Count")
    state, grade = played(environment, task, plan, counted)
    assert (state.end, grade.score) == (UNREADABLE, 0.0), "there is no tool but the calculator"


def test_far_tasks_are_worded_differently():
    (far,) = Problems(ProblemsSettings(far=True)).tasks("heldout", 1, 3)
    assert str(far.public["question"]).startswith("For ")


def share_readable_for_right_plans(model: str) -> float:
    """How often a model's actions for right plans can be read, greedily."""
    said = grounded(model, PROBLEMS[:40])
    return sum(not check(one, "maths").problems for one in said) / len(said)


def grounded(model: str, problems: list[Problem]) -> list[str]:
    """A model's actions for right plans, greedily."""
    loaded = load(model)
    engine = InProcessEngine(loaded, policy=model, version="0")

    async def say() -> list[str]:
        sampling = Sampling(0.0, 1.0, 80, (), 60.0)
        rows = [grounder_row(p, loaded.tokenizer, plan_text(right_subgoals(p))) for p in problems]
        found = await asyncio.gather(
            *(engine.sample(row.ids[: row.targets[0].start], [0], sampling) for row in rows)
        )
        return [one.text for (one,) in found]

    return asyncio.run(say())


def test_the_packaged_grounder_understands_right_plans():
    said = grounded("tiny-problems", PROBLEMS[:60])
    right = [actions_text(actions(problem)) for problem in PROBLEMS[:60]]
    assert sum(map(str.__eq__, said, right)) / 60 > 0.8
    assert share_readable_for_right_plans("tiny-problems") > 0.95
