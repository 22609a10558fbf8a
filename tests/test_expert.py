"""An expert's traces of real and of written rows: what it says when, and which rows it refuses."""

from collections.abc import Sequence
from typing import Any

import pytest

from coterie.datasets.load import load_rows
from coterie.datasets.rows import HotpotRow, MusiqueRow, QuestionRow, TwoWikiRow
from coterie.environments import expert
from coterie.environments.expert import (
    NoTrace,
    Step,
    gold_titles,
    has_passages,
    make_trace,
    says,
    spelling_in,
    trace_of,
    words,
)
from coterie.environments.traces import Trace, parse_plan, violations
from coterie.tools.calls import Tag, Tags
from coterie.tools.retrieval import Passage
from coterie.tools.search import NOTHING, format_passages

TAGS = Tags({"wiki_search": Tag("query", "|")}, inline=True)
SETS = ("2wiki", "hotpot_qa", "musique")


def outcome(row: QuestionRow) -> Trace | str:
    try:
        return trace_of(row)
    except NoTrace as error:
        return str(error)


def queries(row: QuestionRow) -> list[list[str]] | str:
    """What is searched, level by level; or why nothing is."""
    found = outcome(row)
    return found if isinstance(found, str) else [[one.text for one in lv] for lv in found.levels]


def plan(row: QuestionRow) -> list[tuple[str, tuple[str, ...]]] | str:
    """Tasks and what they wait for; or why there are none."""
    found = outcome(row)
    return found if isinstance(found, str) else [(one.text, one.after) for one in found.plan.tasks]


def wiki(
    kind: str, question: str, answer: str, *facts: tuple[str, str, str], titles: Sequence[str] = ()
) -> TwoWikiRow:
    """A row of 2Wiki."""
    titles = titles or [subject for subject, _, _ in facts] or ["A"]
    return TwoWikiRow.model_validate(
        {
            "id": "r", "type": kind, "question": question, "answer": answer, "evidences": list(facts),
            "context": [[title, ["A text."]] for title in titles],
            "supporting_facts": [[title, 0] for title in titles],
        }
    )  # fmt: skip


def hotpot(kind: str, question: str, answer: str, **pages: str) -> HotpotRow:
    """A row of HotpotQA; underscores in the names of pages are spaces."""
    texts = {name.replace("_", " "): text for name, text in pages.items()}
    return HotpotRow.model_validate(
        {
            "id": "r", "type": kind, "question": question, "answer": answer,
            "context": [[title, [text]] for title, text in texts.items()],
            "supporting_facts": [[title, 0] for title in texts],
        }
    )  # fmt: skip


def musique(question: str, answer: str, *hops: tuple[str, str], **rest: Any) -> MusiqueRow:
    """A row of MuSiQue."""
    listed = [{"question": asked, "answer": found} for asked, found in hops]
    return MusiqueRow.model_validate(
        {"id": "r", "question": question, "answer": answer, "hops": listed, **rest}
    )


BRIDGE = wiki(
    "bridge_comparison",
    "Which film has the director born later, Burma Convoy or Old St. Paul'S (Film)?", "Burma Convoy",
    ("Burma Convoy", "director", "Noel M. Smith"),
    ("Old St. Paul's (film)", "director", "Wilfred Noy"),
    ("Noel M. Smith", "date of birth", "May 22, 1895"),
    ("Wilfred Noy (director)", "date of birth", "24 December 1883"),
)  # fmt: skip
CHAIN = wiki(
    "compositional", "Where was the director of film Shadows Unseen born?", "Salsomaggiore Terme",
    ("Abuso di potere", "director", "Camillo Bazzoni"),
    ("Camillo Bazzoni", "place of birth", "Salsomaggiore Terme"),
    titles=("Shadows Unseen", "Camillo Bazzoni"),
)  # fmt: skip
SIDES = wiki(
    "comparison", "Were Joe Gallivan and John Loone from the same country?", "no",
    ("Joe Gallivan", "country of citizenship", "American"),
    ("John Loone", "country of citizenship", "Australian"),
)  # fmt: skip


def rows(name: str) -> list[QuestionRow]:
    splits: tuple[Any, ...] = ("train", "heldout")
    return [row for split in splits for row in load_rows(name, split, "sample")]


@pytest.mark.parametrize(("name", "least"), [("2wiki", 0.9), ("hotpot_qa", 0.7), ("musique", 0.7)])
def test_most_rows_that_ship_have_a_trace_that_the_prompts_rules_allow(
    name: str, least: float
) -> None:
    found = [one for row in rows(name) if isinstance(one := outcome(row), Trace)]
    assert len(found) >= least * len(rows(name))
    for trace in found:
        for form in ("parallel", "sequential"):
            *calls, last = trace.messages(form)
            text = "".join(f"{one}<observation>x</observation>" for one in calls) + last
            assert violations(text, "mhqa") == []
            assert TAGS.find_answer(last) == trace.answer
        assert parse_plan(trace.messages("parallel")[0]) == trace.plan
        for message, level in zip(trace.messages("parallel"), trace.levels, strict=False):
            assert message.endswith("</wiki_search>")
            made = [call.arguments for call in TAGS.parse(message, "stop_string")]
            assert [says(one, query.text) for one, query in zip(made, level, strict=True)]


@pytest.mark.parametrize("name", SETS)
def test_before_anything_is_found_only_the_question_speaks(name: str) -> None:
    for row in rows(name):
        if isinstance(trace := outcome(row), Trace):
            first = trace.messages("parallel")[0]
            assert says(row.question, row.answer) or not says(first, row.answer), row.id
            later = [one.text for level in trace.levels[1:] for one in level]
            unasked = [one for one in later if not says(row.question, one)]
            assert not [one for one in unasked if says(first, one)], row.id


def test_a_comparison_of_two_chains_is_two_branches_and_a_task_without_a_search() -> None:
    assert plan(BRIDGE) == [
        ("director of Burma Convoy", ()),
        ("director of Old St. Paul'S (Film)", ()),
        ("date of birth of {T1}", ("T1",)),
        ("date of birth of {T2}", ("T2",)),
        ("compare {T3} and {T4}", ("T3", "T4")),
    ]
    assert queries(BRIDGE) == [
        ["Burma Convoy directed by", "Old St. Paul'S (Film) directed by"],
        ["Noel M. Smith born", "Wilfred Noy born"],
    ]
    found = outcome(BRIDGE)
    assert isinstance(found, Trace)
    assert "The director of Burma Convoy is Noel M. Smith." in found.messages("parallel")[1]
    assert len(found.messages("sequential")) == 5


def test_a_chain_searches_one_after_the_other_under_the_name_that_the_question_has() -> None:
    assert plan(CHAIN) == [
        ("director of Shadows Unseen", ()),
        ("place of birth of {T1}", ("T1",)),
    ]
    assert queries(CHAIN) == [["Shadows Unseen directed by"], ["Camillo Bazzoni born"]]
    assert queries(SIDES) == [["Joe Gallivan", "John Loone"]]


OTHER_ANSWER, UNCLEAR = expert.OTHER_ANSWER, expert.UNCLEAR
SAYS_MORE = "a hop names what the question does not"
AGE = "Who was born {}, Ann Low or Bob High?"
BORN = (("Ann Low", "date of birth", "May 22, 1895"), ("Bob High", "date of birth", "24 May 1895"))


def test_two_pages_that_the_question_names_are_searched_at_once() -> None:
    row = hotpot("comparison", "Are Sutera and Rhodotypos both shrubs?", "no",
                 Sutera="Sutera is a town.", Rhodotypos="Rhodotypos is a shrub.")  # fmt: skip
    assert queries(row) == [["Sutera", "Rhodotypos"]]
    assert plan(row)[-1] == ("compare {T1} and {T2}", ("T1", "T2"))
    found = outcome(row)
    assert isinstance(found, Trace)
    assert "Sutera is a town. Rhodotypos is a shrub." in found.messages("parallel")[-1]


def test_a_bridge_is_crossed_from_the_page_that_the_question_names() -> None:
    pages = {
        "Tom_Hall": "Tom Hall played Hamlet.",
        "The_Deep_Sea": "The Deep Sea is a film with Tom Hall.",
    }
    row = hotpot("bridge", "The actor of The Deep Sea played which role?", "Hamlet", **pages)
    assert queries(row) == [["The Deep Sea actor played role"], ["Tom Hall"]]
    assert plan(row)[1] == ("what {T1} says of the question", ("T1",))
    found = outcome(row)
    assert isinstance(found, Trace)
    assert "The Deep Sea leads to Tom Hall." in found.messages("sequential")[1]


# -- MuSiQue --------------------------------------------------------------------------------------

DIAMOND = musique(
    "Who played for both the club of Adam Hammill and the club of Eva Berg?", "Mido",
    ("Adam Hammill >> member of sports team", "Barnsley"),
    ("Eva Berg >> member of sports team", "Ajax"),
    ("who has played for #2 and #1 ?", "Mido"),
)  # fmt: skip


def test_hops_wait_for_those_that_they_name() -> None:
    assert plan(DIAMOND) == [
        ("team of Adam Hammill", ()),
        ("team of Eva Berg", ()),
        ("who has played for {T2} and {T1}", ("T2", "T1")),
    ]
    assert queries(DIAMOND) == [
        ["Adam Hammill team", "Eva Berg team"],
        ["who has played for Ajax and Barnsley"],
    ]
    found = outcome(DIAMOND)
    assert isinstance(found, Trace)
    last = found.messages("parallel")[-1]
    assert "Who has played for Ajax and Barnsley: Mido." in last


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (QuestionRow(id="1", question="Who?", answer="B"), "rows of this kind"),
        (wiki("comparison", "Who is older, A or B?", "A"), "no evidences"),
        (wiki("other", "Who is A?", "B", ("A", "is", "B")), "its type is none"),
        (wiki("compositional", "Who is its father?", "B", ("A", "father", "B")), "what a fact is about"),
        (wiki("inference", "Who is Ann Low's aunt?", "C", ("Ann Low", "mother", "B"), ("D", "sibling", "C")), "follow"),
        (wiki("compositional", "Who is Ann Low's father?", "C", ("Ann Low", "father", "B")), OTHER_ANSWER),
        (wiki("comparison", AGE.format("later"), "Ann Low", *BORN), OTHER_ANSWER),
        (wiki("comparison", AGE.format("first"), "Bob High", *BORN), OTHER_ANSWER),
        (wiki("comparison", AGE.format("there"), "Ann Low", *BORN), UNCLEAR),
        (wiki("comparison", AGE.format("first"), "Ann Low", BORN[0], ("Bob High", "date of birth", "1895")), UNCLEAR),
        (wiki("comparison", "Are Ann Low and Bob High from the same country?", "no",
              ("Ann Low", "country", "Peru"), ("Bob High", "country", "Peru")), OTHER_ANSWER),
        (hotpot("bridge", "Who?", "B", A="A text of B."), "two pages"),
        (hotpot("bridge", "Who is in Up?", "Zed", Up="Of Bob.", Bob="A man."), "not in the pages"),
        (hotpot("comparison", "Which is older, Up or the other?", "Up", Up="1.", Down="2."), "what it compares"),
        (hotpot("bridge", "Who is in Up?", "Zed", Up="A film.", Bob="Not Zed."), "neither page names"),
        (hotpot("bridge", "Who is in Up?", "Zed", Up="Zed and Bob.", Bob="A man."), "page that comes first"),
        (musique("Who?", "A"), "no decomposition"),
        (musique("Whose son is Ann?", "B", ("#2 >> child", "B"), ("Ann >> son", "C")), "a later one"),
        (musique("Whose son is Ann?", "B", ("Ann >> son", "C"), ("Ann >> father", "B")), "leads nowhere"),
        (musique("Whose son is Ann?", "B", ("Ann >> father", "C")), "what the last hop finds"),
        (musique("Whose daughter is she?", "B", ("Ann >> father", "B")), SAYS_MORE),
        (musique("Who plays in Family Guy?", "B", ("who plays in american dad", "B"),
                 paragraphs=[{"title": "t", "text": "In American Dad a family plays.", "gold": True}]), SAYS_MORE),
        (musique("Who led in the year?", "B", ("who led in 1950", "B")), SAYS_MORE),
        (musique("Who is Ann?", "B", ("who is {Ann}", "B")), expert.UNPLANNED),
    ],
)  # fmt: skip
def test_rows_that_come_to_nothing_say_why(row: QuestionRow, reason: str) -> None:
    found = outcome(row)
    assert isinstance(found, str) and reason in found


@pytest.mark.parametrize(
    "made",
    [
        [Step("films of Ann", "films of Ann like Up", "Up", "It is Up.")],
        [Step("films of Ann like Up", "films of Ann", "Up", "It is Up.")],
        [
            Step("films of Ann", "films of Ann with Bob", "Eva", "It is Eva."),
            Step("films of {T1}", "films of Eva", "Bob", "It is Bob.", ("T1",)),
            Step("films of {T2}", "films of Bob", "Up", "It is Up.", ("T2",)),
        ],
    ],
)
def test_what_is_not_known_yet_is_not_said(made: list[Step]) -> None:
    with pytest.raises(NoTrace, match=expert.LEAK):
        make_trace("Which films has Ann made?", "Up", made)


def test_what_the_question_or_an_earlier_level_has_may_be_said() -> None:
    made = [
        Step("films of Ann", "Ann and Bob", "Bob", "It is Bob."),
        Step("films of {T1}", "Bob, not Up", "Up", "It is Up.", ("T1",)),
    ]
    found = make_trace("Which film of Ann and Bob is it, Up or Down?", "Up", made)
    assert [one.text for level in found.levels for one in level] == ["Ann and Bob", "Bob, not Up"]


def test_nobody_asks_the_same_twice() -> None:
    made = [Step("a {b}", "Ann", "1", "1."), Step("c", "ann", "2", "2.")]
    with pytest.raises(NoTrace, match=expert.UNPLANNED):
        make_trace("Ann?", "3", made)
    with pytest.raises(NoTrace, match=expert.TWICE):
        make_trace("Ann?", "3", [Step("a", "Ann", "1", "1."), made[1]])


def test_names_are_found_whatever_their_case_accents_and_signs() -> None:
    question = 'Who sang of "the charm of la boheme", Émile (1920 Film) and A.P.J. Kalam?'
    assert spelling_in(question, "The Charm of La Bohème") == "the charm of la boheme"
    assert spelling_in(question, "Emile (1920 film)") == "Émile (1920 Film)"
    assert spelling_in(question, "A. P. J. Kalam") == "A.P.J. Kalam"
    assert spelling_in("the it film It", "it") == "It"
    assert spelling_in(question, "Charm of Boheme") == spelling_in(question, "?") == ""
    assert words("O'Leary's Bohème") == ("o", "leary", "s", "boheme")


def test_gold_was_found_if_all_its_pages_are_in_some_result() -> None:
    one, two = Passage("1", '"Up  (film)"\nA film.'), Passage("2", '"The "Fram""\nA ship.')
    other = Passage("3", '"Up"\nDoc 1 (Title: "Down") is not a title.')
    assert has_passages(
        [format_passages([other, one]), format_passages([two])], ["Up (film)", 'The "Fram"']
    )
    assert not has_passages([format_passages([other, one])], ["Up (film)", 'The "Fram"'])
    assert not has_passages([format_passages([other, one]), NOTHING], ["Up (film)", "Down"])
    assert gold_titles(CHAIN) == ("Shadows Unseen", "Camillo Bazzoni")
