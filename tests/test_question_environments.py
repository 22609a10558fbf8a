"""Information exchange on HotpotQA and debate on GSM8K, with the rows that ship with coterie."""

import asyncio
from pathlib import Path

import pytest

from coterie.datasets.load import load_rows
from coterie.datasets.rows import HotpotRow
from coterie.environments.information_exchange import deal_paragraphs
from coterie.environments.protocol import State
from coterie.environments.talk import FORMAT_SOURCE, Talk
from coterie.record.tree import LENGTH, TURNS, Ending, Secret, Task
from coterie.rollout.episodes import first_prompts
from tests import talking
from tests.conftest import Cli
from tests.played import talk_in
from tests.templates import model

SETS = ("hotpot_qa", "gsm8k")


@pytest.fixture(params=SETS)
def environment(request: pytest.FixtureRequest) -> Talk:
    return talk_in(request.param)


def hotpot_rows() -> list[HotpotRow]:
    return [row for row in load_rows("hotpot_qa", "train", "sample") if isinstance(row, HotpotRow)]


def test_the_splits_share_no_question(environment: Talk) -> None:
    train, heldout = (environment.tasks(split, 1000, 0) for split in ("train", "heldout"))  # type: ignore[arg-type]
    assert len(train) == 52 and len(heldout) == 48
    questions = {str(task.public["question"]) for task in train}
    assert not questions & {str(task.public["question"]) for task in heldout}
    assert len({task.id for task in [*train, *heldout]}) == 100


def test_equal_seeds_deal_equal_notes_and_every_paragraph_is_somebodys() -> None:
    for row in hotpot_rows():
        deal = deal_paragraphs(row, ("Alice", "Bob"), key=row.id)
        assert deal == deal_paragraphs(row, ("Alice", "Bob"), key=row.id)
        assert {text for texts in deal.values() for text in texts} == {
            f"{p.title}: {''.join(p.sentences).strip()}" for p in row.context
        }
        titles = {fact.title for fact in row.supporting_facts}
        for agent in ("Alice", "Bob"):  # two supporting titles or more: each agent gets one
            assert any(text.split(":")[0] in titles or any(text.startswith(t) for t in titles)
                       for text in deal[agent]), row.id  # fmt: skip


def test_only_first_sentences_where_that_is_asked_for() -> None:
    row = hotpot_rows()[0]
    short = deal_paragraphs(row, ("Alice", "Bob"), key=row.id, first_sentence=True)
    firsts = {f"{p.title}: {p.sentences[0].strip()}" for p in row.context}
    assert {text for texts in short.values() for text in texts} == firsts


def test_no_agent_is_shown_the_others_notes_or_the_answer() -> None:
    environment = talk_in("hotpot_qa")
    for task in environment.tasks("heldout", 48, 0):
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        for agent, partner in (("Alice", "Bob"), ("Bob", "Alice")):
            parts = environment.system_parts(task, agent)
            shown = "".join(part.text for part in parts)
            assert all(part.visible_to(agent) for part in parts)
            assert not any(note in shown for note in set(notes[partner]) - set(notes[agent]))
            assert not any(part.source.startswith("secret:") for part in parts)


def test_only_the_solver_of_a_debate_is_asked_for_a_format() -> None:
    environment = talk_in("gsm8k")
    prompts = first_prompts(environment, environment.tasks("heldout", 1, 0)[0], "in verse")
    for agent, wanted in (("Alice", True), ("Bob", False)):
        (system,) = prompts[agent].messages
        assert any(part.source == FORMAT_SOURCE for part in system.parts) == wanted


def test_the_critic_of_a_debate_is_told_to_give_no_answer() -> None:
    environment = talk_in("gsm8k")
    (task,) = environment.tasks("heldout", 1, 0)
    solver, critic = (
        "".join(part.text for part in environment.system_parts(task, agent))
        for agent in environment.agents
    )
    assert "Do not give an answer" in critic and "Do not give an answer" not in solver
    assert r"\boxed{" in solver and r"\boxed{" not in critic


def test_both_agents_of_an_exchange_are_asked_for_the_format() -> None:
    environment = talk_in("hotpot_qa")
    assert len(set(environment.formats)) >= 20
    (task,) = environment.tasks("heldout", 1, 0)
    prompts = first_prompts(environment, task, environment.formats[0])
    for agent in environment.agents:
        (system,) = prompts[agent].messages
        assert any(part.source == FORMAT_SOURCE for part in system.parts)


def talk(*said: str, truncated: bool = False) -> State:
    environment, task = talk_in("gsm8k"), Task("t", {"question": "?"}, {})
    state, _ = asyncio.run(talking.talk(environment, task, said, truncated=truncated))
    return state


def test_a_debate_ends_when_the_solver_stays_with_its_answer() -> None:
    state = talk(r"so \boxed{1,000}", "you forgot one", r"still \boxed{1000.0}")
    assert (state.end, state.answer) == (Ending("agreed"), "1000")
    state = talk(r"so \boxed{3}", "you forgot one", r"then \boxed{4}")
    assert (state.end, state.answer) == (None, "4")
    assert talk("on and on", truncated=True).end == LENGTH
    assert talk(*map(str, range(10))).end == TURNS


@pytest.mark.parametrize(
    "gold, given, score", [("18", "18", 1.0), ("18", "18.00", 1.0), ("18", "19", 0.0), ("18", None, 0.0),
                           ("18", "many", 0.0), ("1000", "1,000", 1.0)],
)  # fmt: skip
def test_a_debates_score_compares_numbers(gold: str, given: str | None, score: float) -> None:
    secret = Secret(gold, name="answer", readers=frozenset({"grader"}))
    task = Task("t", {"question": "?"}, {"answer": secret})
    assert talk_in("gsm8k").score(task, given) == score


def large(folder: Path) -> Path:
    """A random model whose context takes the published settings."""
    made = model("chatml", context=16384)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def test_an_unknown_data_set_is_refused(cli: Cli) -> None:
    said = cli("run", "optima/isft", "dataset=hotpotqa")
    assert said.code == 2
    assert "hotpot_qa" in said.err


def test_a_run_on_real_rows_goes_through_every_stage(cli: Cli, tmp_path: Path) -> None:
    """A random model: nothing is learned, but every stage runs and its dialogues are recorded."""
    words = [
        "dataset=gsm8k", "dataset.source=sample", f"model={large(tmp_path / 'large')}", "iterations=2",
        "rollout.tasks=2", "rollout.samples=2", "rollout.max_tokens=12", "evaluate.tasks=2",
        "select.threshold=-100", "train.epochs=1", "train.tokens_per_microbatch=4096",
    ]  # fmt: skip
    said = cli("run", "optima/isft", *words, "--folder", "run")
    assert said.code == 0, said.err
    assert Path("run/report.html").stat().st_size > 1000
