"""Planner and grounder: what they are shown, what becomes of actions, what a path is worth, at once and by steps."""

import asyncio
import json
from collections.abc import Mapping, Sequence

import pytest

from coterie.environments.plan_ground import (
    GOLD,
    GROUNDER,
    PLANNER,
    PlanGround,
    gold,
    is_done,
    plan_text,
    subgoals_in,
)
from coterie.environments.protocol import WELL_FORMED, Grade, Shared, State
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.tools.retrieval import build_index
from coterie.tools.sandbox.pool import Sandbox
from tests.played import environment_of
from tests.talking import talk_out

SET = "tests/plans.py:Plans"


def environment(form: str = "onetime", *words: str) -> PlanGround:
    found = environment_of(SET, f"environment.form={form}", *words)
    assert isinstance(found, PlanGround)
    return found


def played(
    world: PlanGround, task: Task, lines: Mapping[str, Sequence[str]], *, truncated: bool = False
) -> tuple[State, Grade]:
    """The end of an episode in which each says its lines."""
    left = {name: list(some) for name, some in lines.items()}

    async def play() -> tuple[State, Grade]:
        async with Sandbox() as sandbox:
            return await talk_out(
                world, task, lambda prompt: left[prompt.agent].pop(0),
                truncated=truncated, shared=Shared(sandbox),
            )  # fmt: skip

    return asyncio.run(play())


def seen(world: PlanGround, state: State, actor: str) -> list[tuple[str, str]]:
    turns = {turn.id: turn.text for turn in state.turns}
    return [
        (m.role, turns[m.turn] if m.turn else "".join(part.text for part in m.parts))
        for m in world.see(state, actor)
    ]


def test_right_actions_for_a_right_plan_are_worth_1():
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    right = gold(task)
    state, grade = played(world, task, {PLANNER: [right.plan], GROUNDER: [right.actions]})
    assert (grade.score, grade.metrics[WELL_FORMED], grade.metrics["subgoals"]) == (1.0, 1.0, 2)
    assert state.end is not None and not state.end.truncated


@pytest.mark.parametrize(
    ("actions", "formed"),
    [
        ("R1 = Calculator(1 + 1)", 1.0),
        ("R1 = Calculator(1 / 0)", 0.0),
        ("R1 = Guess(7)", 0.0),
        ("I think it is 7", 0.0),
        ("R1 = Calculator(" + "9" * 10_000, 0.0),
        ("R1 = Calculator(9^9^9^9)", 0.0),
    ],
)
def test_other_actions_are_worth_0_and_are_outcomes(actions, formed):
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    _, grade = played(world, task, {PLANNER: ["Subgoal 1: guess"], GROUNDER: [actions]})
    assert (grade.score, grade.metrics[WELL_FORMED]) == (0.0, formed)


def test_an_empty_plan_is_the_end_and_so_is_one_that_is_cut_off():
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    state, grade = played(world, task, {PLANNER: [" "], GROUNDER: []})
    assert (len(state.turns), grade.score) == (1, 0.0)
    state, grade = played(world, task, {PLANNER: ["Subgoal 1: x"], GROUNDER: []}, truncated=True)
    assert (len(state.turns), grade.score) == (1, 0.0)
    assert state.end is not None and state.end.truncated


def test_the_grounder_sees_tools_task_and_plan_and_the_planner_no_tools():
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    right = gold(task)
    state, _ = played(world, task, {PLANNER: [right.plan], GROUNDER: [right.actions]})
    system, plan, own = seen(world, state, GROUNDER)
    assert "Calculator" in system[1] and str(task.public["question"]) in system[1]
    assert plan == ("user", right.plan)
    assert own == ("assistant", right.actions)
    shown = seen(world, state, PLANNER)
    assert len(shown) == 3, "no actions"
    (_, told), (_, asked), said = shown
    assert "Calculator" not in told + asked and str(task.public["question"]) in asked
    assert said == ("assistant", right.plan)


def test_what_is_right_is_a_secret_of_graders_and_critics():
    task = environment().tasks("train", 1, 0)[0]
    assert task.secrets[GOLD].readers == {"grader"}
    assert gold(task).actions not in str(task)
    assert "R1" not in str(task.public)


def test_step_by_step_each_result_is_told_to_the_planner_alone():
    world = environment("iterative")
    task = world.tasks("heldout", 1, 0)[0]
    first, second = gold(task).steps
    lines = {
        PLANNER: [plan_text([first.subgoal]), plan_text([second.subgoal], 2), "Done."],
        GROUNDER: [first.actions[0], second.actions[0]],
    }
    state, grade = played(world, task, lines)
    assert grade.score == 1.0
    shown = seen(world, state, PLANNER)
    assert ("user", f"Subgoal 1 gave: {first.result}") in shown
    assert ("user", f"Subgoal 2 gave: {second.result}") in shown
    assert [role for role, _ in seen(world, state, GROUNDER)] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert not any("gave" in text for _, text in seen(world, state, GROUNDER))


def test_step_by_step_turns_are_limited():
    world = environment("iterative", "environment.turns=4")
    task = world.tasks("heldout", 1, 0)[0]
    lines = {
        PLANNER: ["Subgoal 1: a"] * 9,
        GROUNDER: [f"R{n} = Calculator({n})" for n in range(1, 9)],
    }
    state, grade = played(world, task, lines)
    assert state.end is not None and state.end.truncated
    assert grade.score == 0.0


def test_training_tasks_by_steps_are_single_steps_after_the_right_ones():
    world = environment("iterative")
    tasks = world.tasks("train", 60, 0)
    steps = sorted((t for t in tasks if t.id.startswith("p3/")), key=lambda task: task.id)
    assert [task.id for task in steps] == ["p3/1", "p3/2", "p3/3"]
    first, second, stop = steps
    assert gold(first).plan.startswith("Subgoal 1:") and gold(second).plan.startswith("Subgoal 2:")
    assert gold(stop).done and gold(stop).plan == "Done."
    _, grade = played(
        world, second, {PLANNER: [gold(second).plan], GROUNDER: [gold(second).actions]}
    )
    assert grade.score == 1.0, "earlier results are known"
    _, grade = played(world, stop, {PLANNER: ["Done."], GROUNDER: []})
    assert grade.score == 1.0
    _, grade = played(world, stop, {PLANNER: ["Find the pens."], GROUNDER: []})
    assert grade.score == 0.0, "who says anything at all does not stop"
    _, grade = played(
        world, stop, {PLANNER: ["Subgoal 3: more"], GROUNDER: ["R3 = Calculator(R2 + 1)"]}
    )
    assert grade.score == 0.0
    shown = seen(world, State(second, 0), GROUNDER)
    assert [role for role, _ in shown] == ["system", "user", "assistant"]
    assert shown[1][1] == gold(first).plan


def test_tasks_of_both_splits_are_disjoint():
    world = environment()
    train, heldout = world.tasks("train", 50, 0), world.tasks("heldout", 50, 0)
    assert len(train) == len(heldout) == 20
    assert not {task.id for task in train} & {task.id for task in heldout}


def test_questions_are_answered_from_pages(tmp_path):
    pages = tmp_path / "pages.jsonl"
    rows = [
        {"title": "Peru", "text": "Lima is the capital of Peru."},
        {"title": "Norway", "text": "Oslo is the capital of Norway."},
    ]
    pages.write_text("\n".join(map(json.dumps, rows)))
    build_index(pages, tmp_path / "index")
    world = environment_of("tests/plans.py:Questions", f"environment.corpus={tmp_path / 'index'}")
    assert isinstance(world, PlanGround)
    task = world.tasks("heldout", 1, 0)[0]
    right = gold(task)
    _, grade = played(world, task, {PLANNER: [right.plan], GROUNDER: [right.actions]})
    assert (grade.score, world.metric) == (1.0, "exact match")
    nowhere = "R1 = KnowledgeQuery(Chess)"
    _, grade = played(world, task, {PLANNER: ["Subgoal 1: chess"], GROUNDER: [nowhere]})
    assert grade.score == 0.0


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("Questions", (), "environment.corpus=FOLDER"),
        ("Questions", ("environment.corpus=nowhere",), "not an index of pages|no index"),
        ("Plans", ("environment.corpus=nowhere",), "no pages to search"),
    ],
)
def test_pages_that_are_missing_or_not_wanted_are_refused(name, words, says):
    with pytest.raises(UserError, match=says):
        environment_of(f"tests/plans.py:{name}", *words)


def test_subgoals_are_read_as_they_are_written():
    plan = plan_text(["find a; then b", "add c"])
    assert plan == "Subgoal 1: find a; then b; Subgoal 2: add c"
    assert subgoals_in(plan) == ["find a; then b", "add c"]
    assert subgoals_in("no plan") == []
    assert is_done("Done.") and not is_done("Subgoal 3: stop")
    assert is_done(" done") and not is_done("Done. Subgoal 3: stop")
    assert not is_done("") and not is_done("Find the pens.")
