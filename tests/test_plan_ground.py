"""Planner and grounder: what they are shown, what becomes of actions, what a path is worth, and rows of other sets."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from coterie.environments.plan_domains import pages_of
from coterie.environments.plan_ground import (
    GROUNDER,
    PLANNER,
    PlanGround,
    gold,
    is_done,
    plan_text,
    subgoals_in,
)
from coterie.environments.protocol import WELL_FORMED, Grade, Shared, State, openers_of
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.runs.items import open_actors
from coterie.tools.actions.questions import ChatReader, FewPages
from coterie.tools.sandbox.pool import Sandbox
from tests.played import environment_of
from tests.talking import talk_out
from tests.test_endpoint import says, service

SET = "tests/plans.py:Plans"


def environment(form: str = "onetime", *words: str) -> PlanGround:
    found = environment_of(SET, f"environment.form={form}", *words)
    assert isinstance(found, PlanGround)
    return found


@pytest.fixture
def played(runner: asyncio.Runner, sandbox: Sandbox) -> Callable[..., tuple[State, Grade]]:
    """The end of an episode in which each says its lines."""

    def play(
        world: PlanGround,
        task: Task,
        lines: Mapping[str, Sequence[str]],
        *,
        truncated: bool = False,
    ) -> tuple[State, Grade]:
        left = {name: list(some) for name, some in lines.items()}
        return runner.run(
            talk_out(
                world, task, lambda prompt: left[prompt.agent].pop(0),
                truncated=truncated, shared=Shared(sandbox),
            )
        )  # fmt: skip

    return play


def played_alone(
    world: PlanGround, task: Task, lines: Mapping[str, Sequence[str]]
) -> tuple[State, Grade]:
    """The end of an episode in a sandbox of its own."""
    left = {name: list(some) for name, some in lines.items()}

    async def play() -> tuple[State, Grade]:
        async with Sandbox() as sandbox:
            shared = Shared(sandbox)
            return await talk_out(
                world, task, lambda prompt: left[prompt.agent].pop(0), shared=shared
            )

    return asyncio.run(play())


def seen(world: PlanGround, state: State, actor: str) -> list[tuple[str, str]]:
    turns = {turn.id: turn.text for turn in state.turns}
    return [
        (m.role, turns[m.turn] if m.turn else "".join(part.text for part in m.parts))
        for m in world.see(state, actor)
    ]


def test_right_actions_for_a_right_plan_are_worth_1(played):
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
def test_other_actions_are_worth_0_and_are_outcomes(played, actions, formed):
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    _, grade = played(world, task, {PLANNER: ["Subgoal 1: guess"], GROUNDER: [actions]})
    assert (grade.score, grade.metrics[WELL_FORMED]) == (0.0, formed)


def test_an_empty_plan_is_the_end_and_so_is_one_that_is_cut_off(played):
    world = environment()
    task = world.tasks("heldout", 1, 0)[0]
    state, grade = played(world, task, {PLANNER: [" "], GROUNDER: []})
    assert (len(state.turns), grade.score) == (1, 0.0)
    state, grade = played(world, task, {PLANNER: ["Subgoal 1: x"], GROUNDER: []}, truncated=True)
    assert (len(state.turns), grade.score) == (1, 0.0)
    assert state.end is not None and state.end.truncated


def test_the_grounder_sees_tools_task_and_plan_and_the_planner_no_tools(played):
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


def test_step_by_step_each_result_is_told_to_the_planner_alone(played):
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


def test_step_by_step_turns_are_limited(played):
    world = environment("iterative", "environment.turns=4")
    task = world.tasks("heldout", 1, 0)[0]
    lines = {
        PLANNER: ["Subgoal 1: a"] * 9,
        GROUNDER: [f"R{n} = Calculator({n})" for n in range(1, 9)],
    }
    state, grade = played(world, task, lines)
    assert state.end is not None and state.end.truncated
    assert grade.score == 0.0


def test_training_tasks_by_steps_are_single_steps_after_the_right_ones(played):
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


def test_subgoals_are_read_as_they_are_written():
    plan = plan_text(["find a; then b", "add c"])
    assert plan == "Subgoal 1: find a; then b; Subgoal 2: add c"
    assert subgoals_in(plan) == ["find a; then b", "add c"]
    assert subgoals_in("no plan") == []
    assert is_done("Done.") and not is_done("Subgoal 3: stop")
    assert is_done(" done") and not is_done("Done. Subgoal 3: stop")
    assert not is_done("") and not is_done("Find the pens.")


CONTEXT = [
    ["Peru", ["Peru is a country.", " Its capital is Lima."]],
    ["Norway", ["Norway is a country in the north.", " The capital of Norway is Oslo."]],
    ["Empty", [" "]],
]


def hotpot(folder: Path, count: int = 2) -> Path:
    """Rows of HotpotQA, about other countries in each split."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "heldout"):
        rows = [
            {"_id": f"{split}{n}", "question": f"What is the {split} capital of Norway ({n})?", "answer": "Oslo",
             "context": CONTEXT, "supporting_facts": [["Norway", 1]]}
            for n in range(count)
        ]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def world(name: str, *words: str) -> PlanGround:
    found = environment_of(name, "environment=plan_ground", *words)
    assert isinstance(found, PlanGround)
    return found


@pytest.mark.parametrize("name", ["gsm8k", "svamp"])
def test_word_problems_without_plans_are_played_by_their_answers(played, name: str) -> None:
    where = world(name)
    task = where.tasks("heldout", 1, 0)[0]
    assert (where.domain.name, where.metric) == ("maths", "success")
    assert not gold(task).steps and not gold(task).done
    answer = task.secrets["answer"].reveal("grader")
    for said, score in ((answer, 1.0), (f"{answer} + 1", 0.0)):
        lines = {PLANNER: ["Subgoal 1: x"], GROUNDER: [f"R1 = Calculator({said})"]}
        assert played(where, task, lines)[1].score == score
    _, grade = played(where, task, {PLANNER: ["Done."], GROUNDER: ["I don't know"]})
    assert grade.score == 0.0, "no plan is not a right one"


def test_rows_without_plans_are_not_trained_on() -> None:
    where = world("gsm8k")
    with pytest.raises(UserError, match="no plans to train on"):
        where.tasks("train", 1, 0)
    assert where.scored_tasks(5, 0) == []
    assert len(world("gsm8k", "environment.form=iterative").tasks("heldout", 3, 0)) == 3


LOOK = (
    "R1 = KnowledgeQuery(Norway); R2 = ParagraphRetrieve(R1, Query: capital of Norway); "
    "R3 = QA([R2], Question: What is the capital of Norway?)"
)


def test_questions_are_answered_from_the_pages_that_come_with_them(played, tmp_path: Path) -> None:
    where = world("hotpot_qa", f"dataset.source={hotpot(tmp_path / 'rows')}")
    task = where.tasks("heldout", 1, 0)[0]
    assert where.metric == "exact match" and where.needs == (Sandbox,)
    assert pages_of(task) == [
        ("Peru", "Peru is a country. Its capital is Lima."),
        ("Norway", "Norway is a country in the north. The capital of Norway is Oslo."),
    ]
    assert played(where, task, {PLANNER: ["Subgoal 1: x"], GROUNDER: [LOOK]})[1].score == 1.0
    other = LOOK.replace("Norway", "Peru")
    assert played(where, task, {PLANNER: ["Subgoal 1: x"], GROUNDER: [other]})[1].score == 0.0


def test_a_few_pages_are_searched_by_their_words() -> None:
    pages = FewPages([("Oslo", "A town."), ("Lima", "A town by the sea."), ("Sea", "Salt.")])
    assert [one.title for one in pages.pages("salt sea", 5)] == ["Sea", "Lima"]
    assert [one.title for one in pages.search("salt sea", 1, pages=[0, 1])] == ["Lima"]
    assert len(pages) == 3 and pages.first(2).title == pages.paragraph(2).title == "Sea"
    assert pages.pages("zebra", 3) == []


def test_a_chat_model_reads_where_one_is_named(tmp_path: Path) -> None:
    """Behind an endpoint, opened with the cast, asked with the passages that were found."""

    fine = {
        "choices": [{"message": {"content": "Answer: Oslo"}, "finish_reason": "stop", "index": 0}]
    }

    async def play(where: PlanGround, task: Task, shared: Shared) -> Grade:
        lines = {PLANNER: ["Subgoal 1: x"], GROUNDER: [LOOK]}
        return (await talk_out(where, task, lambda p: lines[p.agent].pop(0), shared=shared))[1]

    async def whole(words: Sequence[str]) -> Grade:
        where = world("hotpot_qa", *words)
        assert where.needs == (Sandbox, ChatReader)
        task = where.tasks("heldout", 1, 0)[0]
        async with open_actors(where, tmp_path, openers={Sandbox: Sandbox}) as actors:
            assert ChatReader in actors.shared
            return await play(where, task, actors.shared)

    with service(says(200, fine)) as server:
        words = [f"dataset.source={hotpot(tmp_path / 'rows')}",
                 f"environment.reader.url={server.url}", "environment.reader=reads"]  # fmt: skip
        assert asyncio.run(whole(words)).score == 1.0
    assert len(server.bodies) == 1
    body = server.bodies[0]
    assert body["model"] == "reads"
    asked = body["messages"][-1]["content"]
    assert "The capital of Norway is Oslo." in asked and "What is the capital of Norway?" in asked


def test_readers_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    rows = f"dataset.source={hotpot(tmp_path / 'rows')}"
    with pytest.raises(UserError, match="nobody/nothing"):
        world("hotpot_qa", rows, "environment.reader=nobody/nothing")
    with pytest.raises(UserError, match="NO_SUCH_KEY"):
        world("hotpot_qa", rows, "environment.reader=x", "environment.reader.url=http://127.0.0.1:9/v1",
              "environment.reader.key_variable=NO_SUCH_KEY")  # fmt: skip
    with pytest.raises(UserError, match="pages to search"):
        world("gsm8k", "environment.reader=tiny-exchange")
    assert openers_of(world("gsm8k"), tmp_path) == {}
