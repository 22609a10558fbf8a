"""Chain of thought, multi-agent debate and AutoForm: prompts, turns, ends, and the command."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from coterie.environments.baselines import by_method
from coterie.environments.dialogue import Dialogue
from coterie.environments.discussion import Debate
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import State
from coterie.environments.qa_metrics import gold_answer
from coterie.environments.registry import BUILT_IN, PACKAGED
from coterie.environments.settings import Method
from coterie.errors import UserError
from coterie.record.tree import LENGTH, TURNS, Ending, Task
from tests.conftest import Cli
from tests.helpers import play_scripts as talking
from tests.helpers.packaged_environments import packaged_coding, packaged_dialogue

CODING = ("persona", "colbench_code")
PLANNED = (*BUILT_IN["plan_ground"].datasets, "problems", "shop")
ACTING = ("sums", "babyai", "encyclopedia")
DESIGNED = ("pages", "websight")
TALKS = tuple(name for name in PACKAGED if name not in (*CODING, *PLANNED, *ACTING, *DESIGNED))


def environment(name: str, method: Method = "dialogue") -> Dialogue:
    played = by_method(packaged_dialogue(name), method)
    assert isinstance(played, Dialogue)
    return played


def prompt(played: Dialogue, task: Task, agent: str) -> str:
    parts = played.system_parts(task, agent)
    assert all(part.visible_to(agent) for part in parts)
    return "".join(part.text for part in parts)


def talk(played: Dialogue, lines: Sequence[str], truncated: bool = False) -> State:
    (task,) = played.tasks("heldout", 1, 0)
    return asyncio.run(talking.play_messages(played, task, lines, truncated=truncated))[0]


def heard(played: Dialogue, lines: Sequence[str], agent: str) -> list[list[tuple[str, str]]]:
    """Return role and text of what an agent sees before each of its messages, without its system prompt."""
    (task,) = played.tasks("heldout", 1, 0)
    _, prompts = asyncio.run(talking.play_messages(played, task, lines))
    return [one.messages for one in prompts if one.actor == agent]


def test_chain_of_thought_is_one_message_of_an_agent_with_all_notes() -> None:
    alone = environment("hotpot_qa", "cot")
    for task in alone.tasks("heldout", 48, 0):
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        text = prompt(alone, task, "Alice")
        assert all(text.count(f"- {note}\n") == 1 for own in notes.values() for note in own)
        assert str(task.public["question"]) in text
        assert not any(part.source.startswith("secret:") for part in alone.solo_parts(task, ""))
    alone = environment("gsm8k", "cot")
    state = talk(alone, [r"2 + 3 = 5, so \boxed{5}"])
    assert (state.answer, state.end) == ("5", Ending("answered"))
    assert talk(alone, ["I give up"]).end == TURNS
    assert talk(alone, [r"\boxed{5} and on and on"], truncated=True).end == LENGTH


def test_alone_in_the_exchange_one_agent_has_all_facts_and_answers() -> None:
    alone, own = by_method(Exchange(), "cot"), Exchange()
    for task in alone.tasks("heldout", 20, 0):
        facts: dict[str, list[list[str]]] = task.public["facts"]  # type: ignore[assignment]
        first, second = (prompt(alone, task, agent).splitlines() for agent in alone.agents)
        all_facts = [f"- {s} {r}: {v}" for agent in own.agents for s, r, v in facts[agent]]
        *head, question = (prompt(own, task, "Alice").splitlines()[i] for i in (0, 1, -1))
        assert first == [*head, *all_facts, question]
        assert second == [*prompt(own, task, "Bob").splitlines()[:2], question]
    state = talk(alone, ["Mia pet > ?", "<A>cat</A>"])
    assert (state.answer, state.end) == (None, None)
    state = talk(alone, ["Mia pet > ?", "<A>cat</A>", "Mia pet > dog; <A>dog</A>"])
    assert (state.answer, state.end) == ("dog", Ending("answered"))
    assert talk(alone, ["Mia pet > ?"] * 8).end == TURNS


@pytest.mark.parametrize(
    "lines, answer, end",
    [((r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{2.0}"), "2", Ending("agreed")),
     ((r"\boxed{1}", r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"), "3", Ending("answered")),
     ((r"\boxed{1}", "none", "none", "none"), "1", Ending("answered")),
     (("none", "none", "none", "none"), None, TURNS)],
)  # fmt: skip
def test_a_debate_ends_after_two_rounds_with_a_vote(
    lines: Sequence[str], answer: str | None, end: Ending
) -> None:
    debate = environment("gsm8k", "mad")
    state = talk(debate, lines)
    assert (state.answer, state.end) == (answer, end)
    one, two, *_ = lines
    assert heard(debate, lines, "Alice") == [[], [("assistant", one), ("user", two)]]
    assert heard(debate, lines, "Bob") == [[], [("assistant", two), ("user", one)]]


@pytest.mark.parametrize("name", TALKS)
def test_tasks_scores_and_marks_are_the_benchmarks_own(name: str) -> None:
    own = packaged_dialogue(name)
    tasks, state = own.tasks("heldout", 3, 0), State(own.tasks("heldout", 1, 0)[0], 0)
    for method in ("cot", "cot_sc", "mad", "autoform"):
        played = by_method(own, method)
        assert isinstance(played, Dialogue)
        assert played.tasks("heldout", 3, 0) == tasks
        for task in tasks:
            assert played.score(task, gold_answer(task)) == 1
            assert played.score(task, None) == 0
        for text in (r"so \boxed{7}", "so <A>seven</A>", "so"):
            assert played.answer(text) == own.answer(text)
    for agent in own.agents:
        (system,) = played.observe(state, agent)
        assert "choose a short form" in system.parts[0].text
        assert system.parts[1:] == own.observe(state, agent)[0].parts


@pytest.mark.parametrize("method, ks", [("cot_sc", [1, 2, 3]), ("mad", [])])
def test_the_command_plays_methods(cli: Cli, method: str, ks: list[int]) -> None:
    overrides = ["policy=tiny-exchange", "tasks=3", "max_tokens=64", "engine.device=cpu"]
    result = cli(
        "evaluate", "exchange", *overrides, f"method={method}", *(["samples=3"] if ks else [])
    )
    assert result.code == 0, result.err
    rows = json.loads(result.out.splitlines()[-1])["rows"]
    assert [row.get("k") for row in rows] == (ks or [None])
    assert all(row["method"] == method and row["n"] == 3 and row["tokens"] > 0 for row in rows)


@pytest.mark.parametrize("method", ["cot", "mad", "autoform"])
def test_a_method_replaces_the_turns_of_a_dialogue_and_nothing_else(method: Method) -> None:
    class Own(Debate):
        def next_actors(self, state: State) -> tuple[str, ...]:
            return ("Bob",)

        def score(self, task: Task, answer: str | None) -> float:
            return 0.25

    own = environment("arc_c")
    own.__class__ = Own
    played = by_method(own, method)
    assert isinstance(played, Own) and played.formats == () != own.formats
    assert played.score(Task("t", {}), "x") == 0.25
    first = "Bob" if method == "autoform" else "Alice"
    assert played.next_actors(State(Task("t", {}), 0))[0] == first


@pytest.mark.parametrize("name", CODING)
def test_the_only_baseline_of_coding_is_to_answer_at_once(name: str) -> None:
    own = packaged_coding(name)
    alone = by_method(own, "cot")
    assert alone.max_turns == 1
    assert alone.tasks("heldout", 2, 0) == own.tasks("heldout", 2, 0)
    with pytest.raises(UserError, match="method=mad does not support"):
        by_method(own, "mad")
