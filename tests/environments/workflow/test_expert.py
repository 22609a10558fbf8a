"""Expert traces of packaged and handmade rows: plans, queries, facts, and reasons of rejections."""

from typing import Any

import pytest

from coterie.datasets.load import load_rows
from coterie.datasets.rows import HotpotRow, MusiqueRow, QuestionRow, TwoWikiRow
from coterie.environments.workflow import expert
from coterie.environments.workflow.expert import (
    NoTrace,
    Step,
    contains_name,
    gold_titles,
    has_passages,
    make_trace,
    spelling_in,
    trace_of,
    words,
)
from coterie.environments.workflow.plan_graph import Trace, parse_plan, violations
from coterie.tools.calls import Tag, Tags
from coterie.tools.retrieval import Passage
from coterie.tools.search import NOTHING, format_passages

TAGS = Tags({"wiki_search": Tag("query", "|")}, inline=True)


def plan(trace: Trace) -> list[tuple[str, tuple[str, ...]]]:
    """Return the tasks and their dependencies."""
    return [(one.text, one.after) for one in trace.plan.tasks]


def queries(trace: Trace) -> list[list[str]]:
    return [[one.text for one in level] for level in trace.levels]


def wiki(
    kind: str, question: str, answer: str, *facts: tuple[str, str, str], titles: Any = ()
) -> TwoWikiRow:
    titles = titles or [subject for subject, _, _ in facts] or ["A"]
    return TwoWikiRow.model_validate(
        {
            "id": "r", "type": kind, "question": question, "answer": answer, "evidences": list(facts),
            "context": [[title, ["A text."]] for title in titles],
            "supporting_facts": [[title, 0] for title in titles],
        }
    )  # fmt: skip


def hotpot(kind: str, question: str, answer: str, **pages: str) -> HotpotRow:
    """Return a row; underscores in the names of pages are spaces."""
    texts = {name.replace("_", " "): text for name, text in pages.items()}
    return HotpotRow.model_validate(
        {
            "id": "r", "type": kind, "question": question, "answer": answer,
            "context": [[title, [text]] for title, text in texts.items()],
            "supporting_facts": [[title, 0] for title in texts],
        }
    )  # fmt: skip


def musique(question: str, answer: str, *hops: tuple[str, str], **rest: Any) -> MusiqueRow:
    listed = [{"question": hop, "answer": found} for hop, found in hops]
    return MusiqueRow.model_validate(
        {"id": "r", "question": question, "answer": answer, "hops": listed, **rest}
    )


CHAIN = wiki(
    "compositional", "Where was the director of film Shadows Unseen born?", "Salsomaggiore Terme",
    ("Abuso di potere", "director", "Camillo Bazzoni"),
    ("Camillo Bazzoni", "place of birth", "Salsomaggiore Terme"),
    titles=("Shadows Unseen", "Camillo Bazzoni"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "least"), [("2wiki", 0.9), ("hotpot_qa", 0.7), ("musique", 0.7)])
def test_most_packaged_rows_have_a_trace_that_the_format_allows(name: str, least: float) -> None:
    splits: Any = ("train", "heldout")
    rows = [row for split in splits for row in load_rows(name, "sample").rows[split]]
    traces: list[tuple[QuestionRow, Trace]] = []
    for row in rows:
        try:
            traces.append((row, trace_of(row)))
        except NoTrace:
            continue
    assert len(traces) >= least * len(rows)
    for row, trace in traces:
        for form in ("parallel", "sequential"):
            *calls, last = trace.messages(form)
            text = "".join(f"{one}<observation>x</observation>" for one in calls) + last
            assert violations(text, "mhqa") == []
            assert last.endswith(f"<answer>{trace.answer}</answer>")
        messages = trace.messages("parallel")
        assert parse_plan(messages[0]) == trace.plan
        for message, level in zip(messages, trace.levels, strict=False):
            assert message.endswith("</wiki_search>")
            parsed = [call.arguments for call in TAGS.parse(message, "stop_string")]
            assert [
                contains_name(one, query.text) for one, query in zip(parsed, level, strict=True)
            ]
        # The first message has neither the answer nor a later query, unless the question says it.
        later = [one.text for level in trace.levels[1:] for one in level]
        for text in (row.answer, *later):
            assert contains_name(row.question, text) or not contains_name(messages[0], text), row.id


def test_traces_of_2wiki_search_chains_and_branches_under_the_names_of_the_question() -> None:
    trace = trace_of(
        wiki(
            "bridge_comparison",
            "Which film has the director born later, Burma Convoy or Old St. Paul'S (Film)?", "Burma Convoy",
            ("Burma Convoy", "director", "Noel M. Smith"),
            ("Old St. Paul's (film)", "director", "Wilfred Noy"),
            ("Noel M. Smith", "date of birth", "May 22, 1895"),
            ("Wilfred Noy (director)", "date of birth", "24 December 1883"),
        )
    )  # fmt: skip
    assert plan(trace) == [
        ("director of Burma Convoy", ()),
        ("director of Old St. Paul'S (Film)", ()),
        ("date of birth of {T1}", ("T1",)),
        ("date of birth of {T2}", ("T2",)),
        ("compare {T3} and {T4}", ("T3", "T4")),
    ]
    assert queries(trace) == [
        ["Burma Convoy directed by", "Old St. Paul'S (Film) directed by"],
        ["Noel M. Smith born", "Wilfred Noy born"],
    ]
    assert "The director of Burma Convoy is Noel M. Smith." in trace.messages("parallel")[1]
    assert len(trace.messages("sequential")) == 5
    trace = trace_of(CHAIN)
    assert plan(trace) == [
        ("director of Shadows Unseen", ()),
        ("place of birth of {T1}", ("T1",)),
    ]
    assert queries(trace) == [["Shadows Unseen directed by"], ["Camillo Bazzoni born"]]
    trace = trace_of(
        wiki(
            "comparison", "Were Joe Gallivan and John Loone from the same country?", "no",
            ("Joe Gallivan", "country of citizenship", "American"),
            ("John Loone", "country of citizenship", "Australian"),
        )
    )  # fmt: skip
    assert queries(trace) == [["Joe Gallivan", "John Loone"]]


def test_traces_of_hotpot_search_two_sides_or_cross_a_bridge() -> None:
    pages = {"Sutera": "Sutera is a town.", "Rhodotypos": "Rhodotypos is a shrub."}
    question = "Are Sutera and Rhodotypos both shrubs?"
    trace = trace_of(hotpot("comparison", question, "no", **pages))
    assert queries(trace) == [["Sutera", "Rhodotypos"]]
    assert plan(trace)[-1] == ("compare {T1} and {T2}", ("T1", "T2"))
    assert "Sutera is a town. Rhodotypos is a shrub." in trace.messages("parallel")[-1]
    pages = {
        "Tom_Hall": "Tom Hall played Hamlet.",
        "The_Deep_Sea": "The Deep Sea is a film with Tom Hall.",
    }
    question = "The actor of The Deep Sea played which role?"
    trace = trace_of(hotpot("bridge", question, "Hamlet", **pages))
    assert queries(trace) == [["The Deep Sea actor played role"], ["Tom Hall"]]
    assert plan(trace)[1] == ("what {T1} says of the question", ("T1",))
    assert "The Deep Sea leads to Tom Hall." in trace.messages("sequential")[1]


def test_traces_of_musique_search_hops_after_the_hops_that_they_name() -> None:
    trace = trace_of(
        musique(
            "Who played for both the club of Adam Hammill and the club of Eva Berg?", "Mido",
            ("Adam Hammill >> member of sports team", "Barnsley"),
            ("Eva Berg >> member of sports team", "Ajax"),
            ("who has played for #2 and #1 ?", "Mido"),
        )
    )  # fmt: skip
    assert plan(trace) == [
        ("team of Adam Hammill", ()),
        ("team of Eva Berg", ()),
        ("who has played for {T2} and {T1}", ("T2", "T1")),
    ]
    assert queries(trace) == [
        ["Adam Hammill team", "Eva Berg team"],
        ["who has played for Ajax and Barnsley"],
    ]
    last = trace.messages("parallel")[-1]
    assert "Who has played for Ajax and Barnsley: Mido." in last


OTHER_ANSWER, UNCLEAR = expert.OTHER_ANSWER, expert.UNCLEAR
SAYS_MORE = "a hop names what the question does not"
AGE = "Who was born {}, Ann Low or Bob High?"
BORN = (("Ann Low", "date of birth", "May 22, 1895"), ("Bob High", "date of birth", "24 May 1895"))


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
def test_rejected_rows_have_a_reason(row: QuestionRow, reason: str) -> None:
    with pytest.raises(NoTrace, match=reason):
        trace_of(row)


def step(task: str, query: str, result: str, *after: str) -> Step:
    return Step(task, query, result, f"It is {result}.", after)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([step("films of Ann", "films of Ann like Up", "Up")], expert.LEAK),
        ([step("films of Ann like Up", "films of Ann", "Up")], expert.LEAK),
        ([step("films of Ann", "films of Ann with Bob", "Eva"), step("films of {T1}", "films of Eva", "Bob", "T1"),
          step("films of {T2}", "films of Bob", "Up", "T2")], expert.LEAK),
        ([step("a {b}", "Ann", "1")], expert.UNPLANNED),
        ([step("a", "Ann", "1"), step("c", "ann", "2")], expert.TWICE),
    ],
)  # fmt: skip
def test_traces_neither_say_what_is_unknown_nor_repeat_a_query(
    steps: list[Step], reason: str
) -> None:
    with pytest.raises(NoTrace, match=reason):
        make_trace("Which films has Ann made?", "Up", steps)


def test_a_trace_may_say_what_the_question_or_an_earlier_level_says() -> None:
    steps = [
        step("films of Ann", "Ann and Bob", "Bob"),
        step("films of {T1}", "Bob, not Up", "Up", "T1"),
    ]
    trace = make_trace("Which film of Ann and Bob is it, Up or Down?", "Up", steps)
    assert queries(trace) == [["Ann and Bob"], ["Bob, not Up"]]


def test_names_are_found_whatever_their_case_accents_and_signs() -> None:
    question = 'Who sang of "the charm of la boheme", Émile (1920 Film) and A.P.J. Kalam?'
    assert spelling_in(question, "The Charm of La Bohème") == "the charm of la boheme"
    assert spelling_in(question, "Emile (1920 film)") == "Émile (1920 Film)"
    assert spelling_in(question, "A. P. J. Kalam") == "A.P.J. Kalam"
    assert spelling_in("the it film It", "it") == "It"
    assert spelling_in(question, "Charm of Boheme") == spelling_in(question, "?") == ""
    assert words("O'Leary's Bohème") == ("o", "leary", "s", "boheme")


def test_all_gold_pages_must_be_in_some_result() -> None:
    one, two = Passage("1", '"Up  (film)"\nA film.'), Passage("2", '"The "Fram""\nA ship.')
    other = Passage("3", '"Up"\nDoc 1 (Title: "Down") is not a title.')
    first, titles = format_passages([other, one]), ["Up (film)", 'The "Fram"']
    assert has_passages([first, format_passages([two])], titles)
    assert not has_passages([first], titles)
    assert not has_passages([first, NOTHING], ["Up (film)", "Down"])
    assert gold_titles(CHAIN) == ("Shadows Unseen", "Camillo Bazzoni")
