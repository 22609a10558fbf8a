"""The other data sets of Optima as environments: deals, questions, answers, two agents and three."""

import asyncio
from pathlib import Path

import pytest

from coterie.datasets.load import load_rows
from coterie.datasets.rows import CbtRow, Paragraph, SupportingFact, TriviaRow, TwoWikiRow
from coterie.environments.answers import gold_answers
from coterie.environments.formats import DEBATE_FORMATS, EXCHANGE_FORMATS
from coterie.environments.information_exchange import deal, deal_parts, deal_snippets
from coterie.environments.protocol import State
from coterie.environments.registry import EXCHANGES, SUBJECTS, content, make_environment
from coterie.environments.talk import Talk
from coterie.record.tree import LENGTH, TURNS, Ending, Secret, Task
from coterie.record.turn import PrivilegeError
from coterie.rollout.episodes import first_prompts
from tests import talking
from tests.played import played, talk_in

TWO, THREE = ("Alice", "Bob"), ("Alice", "Bob", "Carol")
SETS = (*EXCHANGES, *SUBJECTS)


# Deals


def wiki(*facts: str) -> TwoWikiRow:
    return TwoWikiRow(
        id="w",
        question="?",
        answer="a",
        context=tuple(
            Paragraph(title=title, sentences=(f"{title} one.", f"{title} two."))
            for title in ("P", "Q", "R", "S", "T", "U")
        ),
        supporting_facts=tuple(SupportingFact(title=title, sentence=0) for title in facts),
    )


def titles(notes: list[str]) -> str:
    return "".join(note[0] for note in notes)


def test_2wikis_facts_go_round_in_their_order() -> None:
    for key in ("a", "b", "c"):
        two = deal(wiki("S", "P", "R", "Q"), TWO, key=key)
        assert [titles(two[agent]).replace("T", "").replace("U", "") for agent in TWO] == [
            "RS",
            "PQ",
        ]
        three = deal(wiki("S", "P", "R", "Q"), THREE, key=key)
        found = [titles(three[agent]).replace("T", "").replace("U", "") for agent in THREE]
        assert found == ["QS", "P", "R"], (
            "S, P, R, and Q to the first again; in the context's order"
        )
        for dealt in (two, three):
            assert sorted("".join(map(titles, dealt.values()))) == list("PQRSTU")
    both = deal(wiki("P", "P"), TWO, key="a")
    assert all("P" in titles(notes) for notes in both.values()), "it supports twice: both have it"


def test_snippets_are_shuffled_and_dealt_in_turn() -> None:
    snippets = [f"s{n}" for n in range(7)]
    two, three = (deal_snippets(snippets, agents, key="k") for agents in (TWO, THREE))
    assert [len(notes) for notes in two.values()] == [4, 3]
    assert [len(notes) for notes in three.values()] == [3, 2, 2]
    for dealt in (two, three):
        assert sorted(note for notes in dealt.values() for note in notes) == snippets
        assert all(notes == sorted(notes) for notes in dealt.values())
    assert two == deal_snippets(snippets, TWO, key="k")
    assert len({str(deal_snippets(snippets, TWO, key=str(n))) for n in range(20)}) > 10


def test_a_page_is_cut_into_halves_or_thirds() -> None:
    page = [str(n) for n in range(20)]
    assert deal_parts(page, TWO) == {"Alice": page[:10], "Bob": page[10:]}
    parts = deal_parts(page, THREE)
    assert [len(part) for part in parts.values()] == [6, 7, 7]
    assert [line for part in parts.values() for line in part] == page


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("agents", [TWO, THREE])
def test_every_sample_row_is_dealt_whole(name: str, agents: tuple[str, ...]) -> None:
    for row in load_rows(name, "train", "sample"):
        dealt = deal(row, agents, key=row.id)
        held = {note for notes in dealt.values() for note in notes}
        if isinstance(row, TriviaRow | CbtRow):
            assert held == set(row.snippets if isinstance(row, TriviaRow) else row.sentences)
        else:
            assert isinstance(row, TwoWikiRow) or name == "hotpot_qa"
            assert len(held) == len(row.context)  # type: ignore[attr-defined]


# What agents are told


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("agents", [2, 3])
def test_nobody_is_shown_anothers_notes_or_a_secret(name: str, agents: int) -> None:
    environment = talk_in(name, f"environment.agents={agents}")
    assert environment.agents == THREE[:agents]
    for task in environment.tasks("heldout", 5, 0):
        notes: dict[str, list[str]] = task.public.get("notes", {})  # type: ignore[assignment]
        for agent in environment.agents:
            parts = environment.system_parts(task, agent)
            assert all(part.visible_to(agent) for part in parts)
            assert not any(part.source.startswith("secret") for part in parts)
            shown = "".join(part.text for part in parts)
            for other in set(notes) - {agent}:
                assert not any(
                    f"- {note}\n" in shown for note in set(notes[other]) - set(notes[agent])
                )


def test_only_the_solver_gets_a_format_and_mathematics_has_no_pool() -> None:
    assert len(set(EXCHANGE_FORMATS)) >= 20 and len(set(DEBATE_FORMATS)) >= 20
    for name in SETS:
        environment = talk_in(name, "environment.agents=3")
        pool = EXCHANGE_FORMATS if name in EXCHANGES else DEBATE_FORMATS
        assert environment.formats == (() if name in ("gsm8k", "svamp", "math") else pool)
        prompts = first_prompts(environment, environment.tasks("heldout", 1, 0)[0], "in verse")
        asked = [
            agent
            for agent in environment.agents
            if "in verse" in prompts[agent].messages[0].parts[-1].text
        ]
        assert asked == list(environment.agents if name in EXCHANGES else ("Alice",))


def test_what_tasks_are_made_of_is_hashed(tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text("- in verse\n")
    words = ((), ("environment.agents=3",), (f"environment.format_pool_file={pool}",),
             ("environment.turns=4",))  # fmt: skip
    found = [hashed(*some) for some in words]
    assert len(set(found)) == 4
    moved = pool.rename(tmp_path / "moved.yaml")
    assert hashed(f"environment.format_pool_file={moved}") == found[2], "the content counts"
    moved.write_text("- in prose\n")
    assert hashed(f"environment.format_pool_file={moved}") != found[2]


def hashed(*words: str) -> str:
    own = played("cbt", *words)
    return content(own, make_environment(own))


# Answers


def task(*golds: str) -> Task:
    readers = frozenset({"grader"})
    secrets = {"answer": Secret(golds[0], name="answer", readers=readers)}
    if golds[1:]:
        text = str(list(golds[1:])).replace("'", '"')
        secrets["aliases"] = Secret(text, name="aliases", readers=readers)
    return Task("t", {"question": "?"}, secrets)


@pytest.mark.parametrize(
    "name, golds, given, score",
    [
        ("trivia_qa", ("Saturn", "planet Saturn"), "the planet saturn", 1.0),
        ("trivia_qa", ("Ringed giant", "planet Saturn"), "Saturn moon", 0.5),
        ("trivia_qa", ("Saturn",), None, 0.0), ("2wiki", ("Free Guy",), "Guy", 2 / 3),
        ("cbt", ("dog",), "the dog", 1.0), ("arc_c", ("Light energy.",), "light  ENERGY.", 1.0),
        ("arc_c", ("Light energy.",), "B", 0.0), ("mmlu", ("0,1",), "0, 1", 0.0),
        ("mmlu", ("True, False",), "true, false", 1.0), ("mmlu", ("4",), None, 0.0),
        ("math", (r"\frac{1}{2}",), "0.5", 1.0), ("math", ("(1,2)",), r"\left( 1, 2 \right)", 1.0),
        ("math", ("x^2+12x+27",), "(x+3)(x+9)", 1.0), ("math", ("5",), "6", 0.0),
        ("math", ("5",), None, 0.0), ("math", (r"2+\sqrt{7}",), r"\sqrt7+2", 1.0),
        ("gsm8k", ("18",), "18.00", 1.0), ("gsm8k", ("18",), "19", 0.0), ("gsm8k", ("18",), "many", 0.0),
        ("gsm8k", ("1000",), "1,000", 1.0), ("gsm8k", ("18",), None, 0.0),
    ],
)  # fmt: skip
def test_scores(name: str, golds: tuple[str, ...], given: str | None, score: float) -> None:
    assert talk_in(name).score(task(*golds), given) == pytest.approx(score)


def test_aliases_are_secrets_and_count() -> None:
    environment = talk_in("trivia_qa")
    row = next(row for row in load_rows("trivia_qa", "heldout", "sample") if len(row.aliases) > 1)  # type: ignore[attr-defined]
    found = next(t for t in environment.tasks("heldout", 100, 0) if t.id == f"trivia_qa-{row.id}")
    assert gold_answers(found) == [row.answer, *row.aliases]  # type: ignore[attr-defined]
    assert environment.score(found, row.aliases[1]) == 1.0  # type: ignore[attr-defined]
    with pytest.raises(PrivilegeError):
        found.secrets["aliases"].reveal("Alice")


def genes() -> Task:
    """A task of the kind that ARC has: options that differ in their case."""
    public = {"question": "?", "options": ["only SS", "only Ss", "Light energy"]}
    return Task("t", public, task("only Ss").secrets)


def test_options_that_differ_in_their_case_are_different_answers() -> None:
    environment = talk_in("arc_c")
    assert environment.score(genes(), "only  Ss") == 1.0
    for other in ("only SS", "only ss", "ONLY SS"):
        assert environment.score(genes(), other) == 0.0
    for said, end in (
        (("<A>only SS</A>", "no", "<A>only Ss</A>"), None),
        (("<A>only SS</A>", "no", "<A>only ss</A>"), None),
        (("<A>only SS</A>", "no", "<A>only SS</A>"), "agreed"),
        (("<A>light energy</A>", "no", "<A>LIGHT energy</A>"), "agreed"),
    ):
        state = talk(environment, *said, about=genes())
        assert state.end == (end and Ending(end)), said
    assert state.answer == "Light energy", "as the task spells it"
    assert environment.similarity("only SS", "only Ss") == 0.0, "two votes"


def talk(
    environment: Talk, *said: str, about: Task | None = None, truncated: bool = False
) -> State:
    """The state after these messages; each is checked to be asked for."""
    notes: dict[str, list[str]] = {agent: [] for agent in environment.agents}
    about = about or Task("t", {"question": "?", "notes": notes}, {})
    state, _ = asyncio.run(talking.talk(environment, about, said, truncated=truncated))
    return state


def test_the_same_answer_again_ends_a_talk() -> None:
    maths, science, book = (
        talk_in(name, "environment.agents=3") for name in ("math", "arc_c", "cbt")
    )
    ends = [
        (maths, (r"\boxed{\frac{1}{2}}", "no", "no", r"\boxed{0.5}"), "agreed"),
        (maths, (r"\boxed{\frac{1}{2}}", "no", "no", r"\boxed{0.6}"), None),
        (science, ("<A>Light energy</A>", "no", "no", "<A>Light  energy</A>"), "agreed"),
        (book, ("<A>dog</A>", "<A>cat</A>", "<A>dog</A>"), None),
        (book, ("hm", "<A>dog</A>", "<A>dog</A>"), "agreed"),
    ]
    for environment, said, end in ends:
        assert talk(environment, *said).end == (end and Ending(end)), said
    debate = talk_in("gsm8k")
    assert talk(debate, r"\boxed{1,000}", "no", r"still \boxed{1000.0}").answer == "1000"
    assert talk(debate, "on and on", truncated=True).end == LENGTH
    assert talk(debate, *map(str, range(10))).end == TURNS
