"""Chain of thought, multi-agent debate and AutoForm: prompts, who hears what, ends, and the command."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from coterie.environments.answers import gold_answer
from coterie.environments.baselines import Method, by_method, single_agent
from coterie.environments.discussion import Debate
from coterie.environments.exchange import Exchange
from coterie.environments.protocol import State
from coterie.environments.registry import CODING, NAMES, PLANS, WEB
from coterie.environments.talk import Talk
from coterie.errors import UserError
from coterie.record.tree import LENGTH, TURNS, Ending, Task
from tests import talking
from tests.conftest import Cli
from tests.played import coding_in, talk_in

PLANNED = (*PLANS, *WEB, "problems", "shop")
"""Played by a planner and a grounder."""
ACTING = ("sums", "babyai", "encyclopedia")
"""Played by one agent that acts."""
TALKS = tuple(name for name in NAMES if name not in (*CODING, *PLANNED, *ACTING))


def environment(name: str, method: Method = "dialogue") -> Talk:
    played = by_method(talk_in(name), method)
    assert isinstance(played, Talk)
    return played


def prompt(played: Talk, task: Task, agent: str) -> str:
    parts = played.system_parts(task, agent)
    assert all(part.visible_to(agent) for part in parts)
    return "".join(part.text for part in parts)


def talk(played: Talk, said: Sequence[str], truncated: bool = False) -> State:
    """The state after these messages; each is checked to be asked for."""
    (task,) = played.tasks("heldout", 1, 0)
    state, _ = asyncio.run(talking.talk(played, task, said, truncated=truncated))
    return state


def heard(played: Talk, said: Sequence[str], agent: str) -> list[list[tuple[str, str]]]:
    """Role and text of what an agent is shown before each of its messages, besides its system prompt."""
    (task,) = played.tasks("heldout", 1, 0)
    _, found = asyncio.run(talking.talk(played, task, said))
    return [one.messages for one in found if one.actor == agent]


def test_a_single_agent_holds_every_note_once_and_not_the_answer() -> None:
    alone = single_agent(environment("hotpot_qa"))
    for task in alone.tasks("heldout", 48, 0):
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        text = prompt(alone, task, "Alice")
        assert all(text.count(f"- {note}\n") == 1 for held in notes.values() for note in held)
        assert str(task.public["question"]) in text
        assert "<A>Lake Geneva</A>" in text and "step by step" in text
        assert not any(part.source.startswith("secret:") for part in alone.solo_parts(task, ""))


def test_chain_of_thought_is_one_message() -> None:
    alone = environment("gsm8k", "cot")
    state = talk(alone, [r"2 + 3 = 5, so \boxed{5}"])
    assert (state.answer, state.end) == ("5", Ending("answered"))
    assert talk(alone, ["I give up"]).end == TURNS
    assert talk(alone, [r"\boxed{5} and on and on"], truncated=True).end == LENGTH


def test_alone_in_the_micro_world_means_all_facts_in_one_hand_and_its_own_prompt() -> None:
    alone, own = single_agent(Exchange()), Exchange()
    for task in alone.tasks("heldout", 20, 0):
        facts: dict[str, list[list[str]]] = task.public["facts"]  # type: ignore[assignment]
        first, second = (prompt(alone, task, agent).splitlines() for agent in alone.agents)
        dealt = [f"- {s} {r}: {v}" for agent in own.agents for s, r, v in facts[agent]]
        *head, question = (prompt(own, task, "Alice").splitlines()[i] for i in (0, 1, -1))
        assert first == [*head, *dealt, question]
        head = prompt(own, task, "Bob").splitlines()[:2]
        assert second == [*head, question]


def test_in_the_micro_world_only_the_holder_of_the_facts_answers() -> None:
    alone = single_agent(Exchange())
    state = talk(alone, ["Mia pet > ?", "<A>cat</A>"])
    assert (state.answer, state.end) == (None, None)
    state = talk(alone, ["Mia pet > ?", "<A>cat</A>", "Mia pet > dog; <A>dog</A>"])
    assert (state.answer, state.end) == ("dog", Ending("answered"))
    assert talk(alone, ["Mia pet > ?"] * 8).end == TURNS


def test_in_a_debate_the_first_answers_are_given_alone() -> None:
    debate = environment("gsm8k", "mad")
    one, two, three, four = (rf"{word} \boxed{{{word}}}" for word in ("1", "2", "3", "4"))
    said = (one, two, three, four)
    assert heard(debate, said, "Alice") == [[], [("assistant", one), ("user", two)]]
    assert heard(debate, said, "Bob") == [[], [("assistant", two), ("user", one)]]


@pytest.mark.parametrize(
    "said, answer, end",
    [((r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{2.0}"), "2", Ending("agreed")),
     ((r"\boxed{1}", r"\boxed{2}", r"\boxed{3}", r"\boxed{2}"), "3", Ending("answered")),
     ((r"\boxed{1}", "none", "none", "none"), "1", Ending("answered")),
     (("none", "none", "none", "none"), None, TURNS)],
)  # fmt: skip
def test_a_debate_ends_after_two_rounds_with_a_vote(
    said: Sequence[str], answer: str | None, end: Ending
) -> None:
    state = talk(environment("gsm8k", "mad"), said)
    assert (state.answer, state.end) == (answer, end)


def test_three_agents_of_a_debate_outvote_the_first() -> None:
    base = environment("gsm8k")
    base.agents = ("Alice", "Bob", "Carol")
    said = ["a", "b", "c", r"\boxed{1}", r"\boxed{2}", r"\boxed{2.0}"]
    debate = by_method(base, "mad")
    assert isinstance(debate, Talk)
    assert talk(debate, said).answer == "2"
    first, second = heard(debate, said, "Bob")
    assert first == [] and second == [("assistant", "b"), ("user", "a"), ("user", "c")]


def test_all_agents_choose_a_format_of_their_own() -> None:
    for name in TALKS:
        own, choosing = environment(name), environment(name, "autoform")
        state = State(own.tasks("heldout", 1, 0)[0], 0)
        for agent in own.agents:
            (system,) = choosing.see(state, agent)
            assert "choose a short form" in system.parts[0].text
            assert system.parts[1:] == own.see(state, agent)[0].parts


@pytest.mark.parametrize("method", ["cot", "cot_sc", "mad", "autoform"])
@pytest.mark.parametrize("name", TALKS)
def test_tasks_scores_and_marks_are_the_benchmarks_own(name: str, method: Method) -> None:
    own, played = environment(name), environment(name, method)
    tasks = played.tasks("heldout", 3, 0)
    assert [task.id for task in tasks] == [task.id for task in own.tasks("heldout", 3, 0)]
    for task in tasks:
        assert played.score(task, gold_answer(task)) == 1
        assert played.score(task, None) == 0
    for text in (r"so \boxed{7}", "so <A>seven</A>", "so"):
        assert played.answer(text) == own.answer(text)


@pytest.mark.parametrize(
    "method, ks", [("cot", []), ("cot_sc", [1, 2, 3]), ("mad", []), ("autoform", [])]
)
def test_the_command_plays_every_method(cli: Cli, method: str, ks: list[int]) -> None:
    words = ["policy=tiny-exchange", "tasks=3", "max_tokens=64", "engine.device=cpu"]
    said = cli("evaluate", "exchange", *words, f"method={method}", *(["samples=3"] if ks else []))
    assert said.code == 0, said.err
    rows = json.loads(said.out.splitlines()[-1])["rows"]
    assert [row.get("k") for row in rows] == (ks or [None])
    assert all(row["method"] == method and row["n"] == 3 and row["tokens"] > 0 for row in rows)


@pytest.mark.parametrize("method", ["cot", "mad", "autoform"])
def test_a_method_replaces_how_the_dialogue_goes_and_nothing_else(method: Method) -> None:
    class Own(Debate):
        def acting(self, state: State) -> tuple[str, ...]:
            return ("Bob",)

        def score(self, task: Task, answer: str | None) -> float:
            return 0.25

    own = environment("arc_c")
    own.__class__ = Own
    played = by_method(own, method)
    assert isinstance(played, Own) and played.formats == () != own.formats
    assert played.score(Task("t", {}), "x") == 0.25
    first = "Bob" if method == "autoform" else "Alice"
    assert played.acting(State(Task("t", {}), 0))[0] == first


@pytest.mark.parametrize("name", CODING)
def test_where_functions_are_written_the_only_baseline_is_to_answer_at_once(name: str) -> None:
    environment = coding_in(name)
    alone = by_method(environment, "cot")
    assert alone.max_turns == 1
    assert [task.id for task in alone.tasks("heldout", 2, 0)] == [
        task.id for task in environment.tasks("heldout", 2, 0)
    ]
    with pytest.raises(UserError, match="method=mad does not support"):
        by_method(environment, "mad")
