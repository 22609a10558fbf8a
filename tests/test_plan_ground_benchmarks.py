"""Rows of other data sets played by a planner and a grounder: their tasks, their own pages, and who reads these."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.environments.plan_domains import pages_of
from coterie.environments.plan_ground import GROUNDER, PLANNER, PlanGround, gold
from coterie.environments.protocol import Grade, Shared, openers_of
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.runs.items import open_actors
from coterie.tools.actions.questions import ChatReader, FewPages
from coterie.tools.retrieval.index import build_index
from coterie.tools.sandbox.pool import Sandbox
from tests.played import environment_of
from tests.played import played as settings_of
from tests.talking import talk_out
from tests.test_endpoint import says, service
from tests.test_plan_ground import played

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
def test_word_problems_without_plans_are_played_by_their_answers(name: str) -> None:
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


def test_questions_are_answered_from_the_pages_that_come_with_them(tmp_path: Path) -> None:
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


def test_pages_of_a_corpus_stand_in_for_those_of_the_question(tmp_path: Path) -> None:
    pages = tmp_path / "pages.jsonl"
    pages.write_text(json.dumps({"title": "Chess", "text": "The capital of Norway is Bergen."}))
    build_index(pages, tmp_path / "index")
    words = (
        f"dataset.source={hotpot(tmp_path / 'rows')}",
        f"environment.corpus={tmp_path / 'index'}",
    )
    where = world("hotpot_qa", *words)
    task = where.tasks("heldout", 1, 0)[0]
    look = LOOK.replace("KnowledgeQuery(Norway)", "KnowledgeQuery(capital of Norway)")
    state, grade = played(where, task, {PLANNER: ["Subgoal 1: x"], GROUNDER: [look]})
    assert (state.answer, grade.score) == ("Bergen", 0.0)


def test_a_few_pages_are_searched_by_their_words() -> None:
    pages = FewPages([("Oslo", "A town."), ("Lima", "A town by the sea."), ("Sea", "Salt.")])
    assert [one.title for one in pages.pages("salt sea", 5)] == ["Sea", "Lima"]
    assert [one.title for one in pages.search("salt sea", 1, pages=[0, 1])] == ["Lima"]
    assert len(pages) == 3 and pages.first(2).title == pages.paragraph(2).title == "Sea"
    with pytest.raises(IndexError):
        pages.paragraph(-1)
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
    with pytest.raises(UserError, match="no passages to read"):
        world("gsm8k", "environment.reader=tiny-exchange")
    assert openers_of(world("gsm8k"), tmp_path) == {}


def test_results_depend_on_who_reads() -> None:
    def identity(*words: str) -> str:
        return settings_of("hotpot_qa", "environment=plan_ground", *words).environment.identity()

    model = identity("environment.reader=tiny-exchange")
    assert model != identity()
    assert model == identity("environment.reader=tiny-exchange", "environment.reader.timeout=7")
    assert model != identity("environment.reader=tiny-exchange", "environment.reader.max_tokens=7")
