"""The other data sets of Optima as environments: deals, questions, answers, two agents and three."""

import asyncio
import json
from pathlib import Path

import pytest

from coterie.datasets.load import load_rows
from coterie.datasets.rows import Paragraph, SupportingFact, TriviaRow, TwoWikiRow
from coterie.environments.dialogue import Dialogue
from coterie.environments.discussion import (
    DEBATE_FORMATS,
    EXCHANGE_FORMATS,
    Deal,
    deal,
    deal_parts,
    deal_snippets,
)
from coterie.environments.protocol import State
from coterie.environments.qa_metrics import gold_answers, secret_answers
from coterie.environments.registry import BUILT_IN, content, make_environment
from coterie.record.tree import LENGTH, TURNS, Ending, Task
from coterie.record.turn import PrivilegeError
from coterie.rollout.episodes import first_prompts
from tests.helpers import play_scripts as talking
from tests.helpers.packaged_environments import packaged_dialogue, packaged_settings

TWO, THREE = ("Alice", "Bob"), ("Alice", "Bob", "Carol")
EXCHANGES, SUBJECTS = (BUILT_IN[name].datasets for name in ("information_exchange", "debate"))
SETS = (*EXCHANGES, *SUBJECTS)


# Deals


def wiki(*facts: str) -> TwoWikiRow:
    return TwoWikiRow(
        id="w",
        question="?",
        answer="a",
        context=tuple(Paragraph(title=title, sentences=(f"{title} one.",)) for title in "PQRSTU"),
        supporting_facts=tuple(SupportingFact(title=title, sentence=0) for title in facts),
    )


def titles(notes: Deal) -> list[str]:
    return ["".join(note[0] for note in one) for one in notes.values()]


def test_supporting_facts_of_2wiki_are_dealt_in_turn_in_their_order() -> None:
    for key in ("a", "b", "c"):
        for agents, supporting in ((TWO, ["RS", "PQ"]), (THREE, ["QS", "P", "R"])):
            dealt = titles(deal(wiki("S", "P", "R", "Q"), agents, key=key))
            assert [one.replace("T", "").replace("U", "") for one in dealt] == supporting
            assert sorted("".join(dealt)) == list("PQRSTU")
    both = titles(deal(wiki("P", "P"), TWO, key="a"))
    assert all("P" in one for one in both), "it supports twice: both have it"


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


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("agents", [2, 3])
def test_nobody_is_shown_anothers_notes_or_a_secret(name: str, agents: int) -> None:
    environment = packaged_dialogue(name, f"environment.agents={agents}")
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
        environment = packaged_dialogue(name, "environment.agents=3")
        pool = EXCHANGE_FORMATS if name in EXCHANGES else DEBATE_FORMATS
        assert environment.formats == (() if name in ("gsm8k", "svamp", "math") else pool)
        prompts = first_prompts(environment, environment.tasks("heldout", 1, 0)[0], "in verse")
        lasts = {agent: prompts[agent].messages[0].parts[-1].text for agent in THREE}
        readers = [agent for agent, text in lasts.items() if "in verse" in text]
        assert readers == list(THREE if name in EXCHANGES else THREE[:1])


FORMATS = ("Write initials.", "Draw boxes.", "Write in\u2028verse.")


def test_a_file_replaces_the_packaged_pool(tmp_path: Path) -> None:
    lines, items = tmp_path / "a.jsonl", tmp_path / "b.yaml"
    rows = ({"index": n, "format": one} for n, one in enumerate(FORMATS))
    lines.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    items.write_text(
        f"# ours\n- {FORMATS[0]}\n- format: {FORMATS[1]}\n- {json.dumps(FORMATS[2])}\n"
    )
    for file in (lines, items):
        for name in ("exchange", "2wiki", "math", "arc_c"):
            assert (
                packaged_dialogue(name, f"environment.format_pool_file={file}").formats == FORMATS
            )


def test_the_settings_and_formats_of_tasks_are_hashed(tmp_path: Path) -> None:
    def hashed(*overrides: str) -> str:
        own = packaged_settings("cbt", *overrides)
        return content(own, make_environment(own))

    pool = tmp_path / "pool.yaml"
    pool.write_text("- in verse\n")
    file = f"environment.format_pool_file={pool}"
    overrides = ((), ("environment.agents=3",), (file,), ("environment.turns=4",))
    hashes = [hashed(*some) for some in overrides]
    assert len(set(hashes)) == 4
    moved = pool.rename(tmp_path / "moved.yaml")
    assert hashed(f"environment.format_pool_file={moved}") == hashes[2], "the content counts"
    moved.write_text("- in prose\n")
    assert hashed(f"environment.format_pool_file={moved}") != hashes[2]


# Answers


def task(answer: str, *aliases: str, **public: object) -> Task:
    row = TriviaRow.model_construct(answer=answer, aliases=aliases)
    return Task("t", {"question": "?", **public}, secret_answers(row))


@pytest.mark.parametrize(
    "name, golds, given, score",
    [
        ("trivia_qa", ("Ringed giant", "planet Saturn"), "Saturn moon", 0.5), ("trivia_qa", ("Saturn",), None, 0.0),
        ("cbt", ("dog",), "the dog", 1.0), ("arc_c", ("Light energy.",), "light  ENERGY.", 1.0),
        ("arc_c", ("Light energy.",), "B", 0.0), ("mmlu", ("0,1",), "0, 1", 0.0), ("mmlu", ("4",), None, 0.0),
        ("math", (r"\frac{1}{2}",), "0.5", 1.0), ("math", ("5",), None, 0.0),
        ("gsm8k", ("18",), "18.00", 1.0), ("gsm8k", ("18",), "19", 0.0), ("gsm8k", ("18",), None, 0.0),
    ],
)  # fmt: skip
def test_scores(name: str, golds: tuple[str, ...], given: str | None, score: float) -> None:
    assert packaged_dialogue(name).score(task(*golds), given) == pytest.approx(score)


def test_aliases_are_secrets_and_count() -> None:
    environment = packaged_dialogue("trivia_qa")
    row = next(
        row for row in load_rows("trivia_qa", "sample").rows["heldout"] if len(row.aliases) > 1
    )  # type: ignore[attr-defined]
    (own,) = (t for t in environment.tasks("heldout", 100, 0) if t.id == f"trivia_qa-{row.id}")
    assert gold_answers(own) == [row.answer, *row.aliases]  # type: ignore[attr-defined]
    assert environment.score(own, row.aliases[1]) == 1.0  # type: ignore[attr-defined]
    with pytest.raises(PrivilegeError):
        own.secrets["aliases"].reveal("Alice")


def test_options_that_differ_in_their_case_are_different_answers() -> None:
    """As ARC has them, for genes."""
    environment = packaged_dialogue("arc_c")
    genes = task("only Ss", options=["only SS", "only Ss", "Light energy"])
    assert environment.score(genes, "only  Ss") == 1.0
    for other in ("only SS", "only ss", "ONLY SS"):
        assert environment.score(genes, other) == 0.0
    for lines, end in (
        (("<A>only SS</A>", "no", "<A>only Ss</A>"), None),
        (("<A>only SS</A>", "no", "<A>only ss</A>"), None),
        (("<A>only SS</A>", "no", "<A>only SS</A>"), "agreed"),
        (("<A>light energy</A>", "no", "<A>LIGHT energy</A>"), "agreed"),
    ):
        state = talk(environment, *lines, about=genes)
        assert state.end == (end and Ending(end)), lines
    assert state.answer == "Light energy", "as the task spells it"
    assert environment.similarity("only SS", "only Ss") == 0.0, "two votes"


def talk(
    environment: Dialogue, *lines: str, about: Task | None = None, truncated: bool = False
) -> State:
    notes: dict[str, list[str]] = {agent: [] for agent in environment.agents}
    about = about or Task("t", {"question": "?", "notes": notes}, {})
    state, _ = asyncio.run(talking.play_messages(environment, about, lines, truncated=truncated))
    return state


def test_the_same_answer_again_ends_a_talk() -> None:
    maths, science, book = (
        packaged_dialogue(name, "environment.agents=3") for name in ("math", "arc_c", "cbt")
    )
    ends = [
        (maths, (r"\boxed{\frac{1}{2}}", "no", "no", r"\boxed{0.5}"), "agreed"),
        (maths, (r"\boxed{\frac{1}{2}}", "no", "no", r"\boxed{0.6}"), None),
        (science, ("<A>Light energy</A>", "no", "no", "<A>Light  energy</A>"), "agreed"),
        (book, ("<A>dog</A>", "<A>cat</A>", "<A>dog</A>"), None),
        (book, ("hm", "<A>dog</A>", "<A>dog</A>"), "agreed"),
    ]
    for environment, lines, end in ends:
        assert talk(environment, *lines).end == (end and Ending(end)), lines
    debate = packaged_dialogue("gsm8k")
    assert talk(debate, r"\boxed{1,000}", "no", r"still \boxed{1000.0}").answer == "1000"
    assert talk(debate, "on and on", truncated=True).end == LENGTH
    assert talk(debate, *map(str, range(10))).end == TURNS
