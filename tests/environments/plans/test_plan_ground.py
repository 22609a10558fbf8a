"""Planner and grounder: prompts, actions, scores, and rows of other data sets."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from coterie.environments.plans.domains import ChatReader, pages_of
from coterie.environments.plans.plan_ground import (
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
from coterie.runs.work_items import open_actors
from coterie.tools.sandbox.pool import Sandbox
from tests.engines.test_endpoint import says, service
from tests.helpers.packaged_environments import packaged_environment
from tests.helpers.play_scripts import play_dialogue
from tests.helpers.write_rows import write_jsonl


def world(name: str = "tests/helpers/plans.py:Plans", *overrides: str) -> PlanGround:
    environment = packaged_environment(name, "environment=plan_ground", *overrides)
    assert isinstance(environment, PlanGround)
    return environment


def played_alone(
    world: PlanGround,
    task: Task,
    lines: Mapping[str, Sequence[str]],
    *,
    truncated: bool = False,
) -> tuple[State, Grade]:
    """Return the end of an episode in which each says its lines and no action runs a program."""
    left = {name: list(texts) for name, texts in lines.items()}
    episode = play_dialogue(
        world, task, lambda prompt: left[prompt.agent].pop(0),
        truncated=truncated, shared=Shared(Sandbox()),
    )  # fmt: skip
    return asyncio.run(episode)


def seen(world: PlanGround, state: State, actor: str) -> list[tuple[str, str]]:
    turns = {turn.id: turn.text for turn in state.turns}
    return [
        (m.role, turns[m.turn] if m.turn else "".join(part.text for part in m.parts))
        for m in world.observe(state, actor)
    ]


@pytest.mark.parametrize(
    ("actions", "formed"),
    [
        ("R1 = Calculator(1 + 1)", 1.0),
        ("R1 = Calculator(1 / 0)", 0.0),
        ("R1 = Guess(7)", 0.0),
        ("I think it is 7", 0.0),
        ("R1 = Calculator(" + "9" * 10_000, 0.0),
    ],
)
def test_other_actions_are_worth_0_and_are_outcomes(actions, formed):
    plans = world()
    task = plans.tasks("heldout", 1, 0)[0]
    lines = {PLANNER: ["Subgoal 1: guess"], GROUNDER: [actions]}
    _, grade = played_alone(plans, task, lines)
    assert (grade.score, grade.metrics[WELL_FORMED]) == (0.0, formed)


def test_an_empty_or_truncated_plan_is_the_end():
    plans = world()
    task = plans.tasks("heldout", 1, 0)[0]
    for plan, truncated in ((" ", False), ("Subgoal 1: x", True)):
        state, grade = played_alone(plans, task, {PLANNER: [plan]}, truncated=truncated)
        assert (len(state.turns), grade.score) == (1, 0.0)
        assert state.end is not None and state.end.truncated == truncated


def test_the_grounder_sees_tools_task_and_plan_and_the_planner_no_tools():
    plans = world()
    task = plans.tasks("heldout", 1, 0)[0]
    right = gold(task)
    lines = {PLANNER: [right.plan], GROUNDER: [right.actions]}
    state, grade = played_alone(plans, task, lines)
    assert (grade.score, grade.metrics[WELL_FORMED], grade.metrics["subgoals"]) == (1.0, 1.0, 2)
    assert state.end is not None and not state.end.truncated
    system, *turns = seen(plans, state, GROUNDER)
    assert "Calculator" in system[1] and str(task.public["question"]) in system[1]
    assert turns == [("user", right.plan), ("assistant", right.actions)]
    (_, system_text), (_, question), *turns = seen(plans, state, PLANNER)
    assert "Calculator" not in system_text + question
    assert str(task.public["question"]) in question
    assert turns == [("assistant", right.plan)]


def test_step_by_step_the_planner_alone_sees_results_and_turns_are_limited():
    plans = world(
        "tests/helpers/plans.py:Plans", "environment.form=iterative", "environment.turns=6"
    )
    task = plans.tasks("heldout", 1, 0)[0]
    first, second = gold(task).steps
    lines = {
        PLANNER: [plan_text([first.subgoal]), plan_text([second.subgoal], 2), "Done."],
        GROUNDER: [first.actions[0], second.actions[0]],
    }
    state, grade = played_alone(plans, task, lines)
    assert grade.score == 1.0
    shown = seen(plans, state, PLANNER)
    assert ("user", f"Subgoal 1 gave: {first.result}") in shown
    assert ("user", f"Subgoal 2 gave: {second.result}") in shown
    shown = seen(plans, state, GROUNDER)
    assert [role for role, _ in shown] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert not any("gave" in text for _, text in shown)
    lines = {
        PLANNER: ["Subgoal 1: a"] * 9,
        GROUNDER: [f"R{n} = Calculator({n})" for n in range(1, 9)],
    }
    state, grade = played_alone(plans, task, lines)
    assert state.end is not None and state.end.truncated and grade.score == 0.0


def test_training_tasks_by_steps_are_single_steps_after_the_right_ones():
    plans = world("tests/helpers/plans.py:Plans", "environment.form=iterative")
    tasks = plans.tasks("train", 60, 0)
    steps = sorted((t for t in tasks if t.id.startswith("p3/")), key=lambda task: task.id)
    assert [task.id for task in steps] == ["p3/1", "p3/2", "p3/3"]
    first, second, stop = steps
    assert gold(first).plan.startswith("Subgoal 1:") and gold(second).plan.startswith("Subgoal 2:")
    assert gold(stop).done and gold(stop).plan == "Done."
    for task, plan, actions, score in (
        (second, gold(second).plan, gold(second).actions, 1.0),  # earlier results are known
        (stop, "Done.", "", 1.0),
        (stop, "Find the pens.", "", 0.0),
        (stop, "Subgoal 3: more", "R3 = Calculator(R2 + 1)", 0.0),
    ):
        assert played_alone(plans, task, {PLANNER: [plan], GROUNDER: [actions]})[1].score == score
    shown = seen(plans, State(second, 0), GROUNDER)
    assert [role for role, _ in shown] == ["system", "user", "assistant"]
    assert shown[1][1] == gold(first).plan


def test_subgoals_are_read_as_they_are_written():
    plan = plan_text(["find a; then b", "add c"])
    assert plan == "Subgoal 1: find a; then b; Subgoal 2: add c"
    assert subgoals_in(plan) == ["find a; then b", "add c"] and subgoals_in("no plan") == []
    for text in ("Done.", " done"):
        assert is_done(text)
    for text in ("Subgoal 3: stop", "Done. Subgoal 3: stop", "", "Find the pens."):
        assert not is_done(text)


def hotpot(folder: Path) -> str:
    """Write a row of HotpotQA in each split."""
    for split in ("train", "heldout"):
        context = [
            ["Peru", ["Peru is a country.", " Its capital is Lima."]],
            ["Norway", ["Norway is a country in the north.", " The capital of Norway is Oslo."]],
            ["Empty", [" "]],
        ]
        question = f"What is the {split} capital of Norway?"
        row = {"_id": split, "question": question, "answer": "Oslo"}
        row |= {"context": context, "supporting_facts": [["Norway", 1]]}
        write_jsonl(folder / f"{split}.jsonl", row)
    return f"dataset.source={folder}"


@pytest.mark.parametrize("name", ["gsm8k", "svamp"])
def test_word_problems_without_plans_are_played_by_their_answers_and_not_trained_on(name: str):
    plans = world(name)
    task = plans.tasks("heldout", 1, 0)[0]
    assert (plans.domain.name, plans.metric) == ("maths", "success")
    assert not gold(task).steps and not gold(task).done
    answer = task.secrets["answer"].reveal("grader")
    for text, score in ((answer, 1.0), (f"{answer} + 1", 0.0)):
        lines = {PLANNER: ["Subgoal 1: x"], GROUNDER: [f"R1 = Calculator({text})"]}
        assert played_alone(plans, task, lines)[1].score == score
    _, grade = played_alone(plans, task, {PLANNER: ["Done."], GROUNDER: ["I don't know"]})
    assert grade.score == 0.0, "no plan is not a right one"
    with pytest.raises(UserError, match="no plans to train on"):
        plans.tasks("train", 1, 0)
    assert plans.scored_tasks(5, 0) == []
    assert len(world(name, "environment.form=iterative").tasks("heldout", 3, 0)) == 3


LOOK = (
    "R1 = KnowledgeQuery(Norway); R2 = ParagraphRetrieve(R1, Query: capital of Norway); "
    "R3 = QA([R2], Question: What is the capital of Norway?)"
)


def test_questions_are_answered_from_the_pages_that_come_with_them(tmp_path: Path) -> None:
    questions = world("hotpot_qa", hotpot(tmp_path))
    task = questions.tasks("heldout", 1, 0)[0]
    assert questions.metric == "exact match" and questions.needs == (Sandbox,)
    assert pages_of(task) == [
        ("Peru", "Peru is a country. Its capital is Lima."),
        ("Norway", "Norway is a country in the north. The capital of Norway is Oslo."),
    ]
    for actions, score in ((LOOK, 1.0), (LOOK.replace("Norway", "Peru"), 0.0)):
        lines = {PLANNER: ["Subgoal 1: x"], GROUNDER: [actions]}
        assert played_alone(questions, task, lines)[1].score == score


def test_a_chat_model_of_an_endpoint_reads_the_passages(tmp_path: Path) -> None:
    choice = {"message": {"content": "Answer: Oslo"}, "finish_reason": "stop", "index": 0}

    async def play(questions: PlanGround) -> Grade:
        assert questions.needs == (Sandbox, ChatReader)
        lines = {PLANNER: ["Subgoal 1: x"], GROUNDER: [LOOK]}
        task = questions.tasks("heldout", 1, 0)[0]
        async with open_actors(questions, tmp_path, openers={Sandbox: Sandbox}) as actors:
            result = play_dialogue(
                questions, task, lambda p: lines[p.agent].pop(0), shared=actors.shared
            )
            return (await result)[1]

    with service(says(200, {"choices": [choice]})) as server:
        reader = (f"environment.reader.url={server.url}", "environment.reader=reads")
        assert asyncio.run(play(world("hotpot_qa", hotpot(tmp_path), *reader))).score == 1.0
    (body,) = server.bodies
    assert body["model"] == "reads"
    prompt = body["messages"][-1]["content"]
    assert "The capital of Norway is Oslo." in prompt and "What is the capital of Norway?" in prompt
