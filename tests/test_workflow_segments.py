"""The tags of GAP's messages, and where their order breaks the rules."""

import pytest

from coterie.environments.workflow.trace import AgentKind, scan, violations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no tags < > </", []),
        ("<think>a é</think> b <plan>c</plan>", [("think", "a é", True), ("plan", "c", True)]),
        ("<think>a<plan>b</plan>", [("think", "a", False), ("plan", "b", True)]),
        ("<think>a", [("think", "a", False)]),
        ("<observation><answer>x</answer><think></observation>", [("observation", "<answer>x</answer><think>", True)]),
        ("<Think>a</Think><b>", []),
    ],
)  # fmt: skip
def test_segments_are_found(text: str, expected: list[tuple[str, str, bool]]) -> None:
    assert scan(text)[0] == expected


def test_a_large_text_of_tags_is_scanned_to_its_end() -> None:
    assert len(scan("<think>" * 50_000)[0]) == 50_000
    assert scan("</think>" * 50_000) == ([], 50_000)


T, SEEN = "<think>t</think>", "<observation>o</observation>"
PLAN, SEARCH, ANSWER = "<plan>p</plan>", "<wiki_search>q</wiki_search>", "<answer>a</answer>"
WEB, BACK = "<web_search>q</web_search>", "<reflection>r</reflection>"
MAYBE, CHECK = "<suggested_answer>s</suggested_answer>", "<double_check>4</double_check>"
CODE = "<code>\n```py\nprint(1)\n```\n</code>"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mhqa", T + PLAN + T + SEARCH + SEEN + T + ANSWER),
        ("mhqa", T + SEARCH * 2 + SEEN * 2 + T + BACK + T + PLAN + T + SEARCH + SEEN + T + ANSWER),
        ("web", T + PLAN + T + WEB + SEEN + T + BACK + T + MAYBE + T + CHECK + T + ANSWER),
        ("code", PLAN + T + CODE + SEEN + BACK + T + CODE + SEEN + BACK + T + ANSWER),
        ("mhqa", T + SEARCH + "<observation><answer></think></observation>" + T + ANSWER),
        ("mhqa", T + SEARCH),
    ],
)
def test_what_follows_the_rules_has_no_violations(kind: AgentKind, text: str) -> None:
    assert violations(text, kind) == []


@pytest.mark.parametrize(
    ("kind", "text", "faults"),
    [
        ("mhqa", SEARCH + SEEN + T + ANSWER, ["no think before it"]),
        ("mhqa", T + PLAN + T + ANSWER, ["wrong order"]),
        ("mhqa", T + SEARCH + T + ANSWER, ["call without an observation"]),
        ("mhqa", T + SEEN + T + SEARCH, ["observation without a call"]),
        ("mhqa", T + SEARCH + SEEN + T + ANSWER + T, ["after the answer"]),
        ("mhqa", T + WEB + SEEN + T + SEARCH, ["not of this agent"]),
        ("mhqa", "<think>a" + SEARCH, ["not closed"]),
        ("mhqa", T + "</plan>" + SEARCH, ["closed without being open"]),
        ("web", T + WEB + SEEN + T + ANSWER, ["wrong order"]),
        ("web", T + WEB + SEEN + T + MAYBE + T + WEB, ["wrong order"]),
        ("code", PLAN + T + CODE + SEEN + BACK + PLAN, ["wrong order"]),
        ("code", T + CODE, ["wrong order"]),
        ("code", PLAN + T + CODE + SEEN + T + ANSWER, ["wrong order"]),
        ("code", PLAN + T + "<code>1</code>" + SEEN + BACK + T + ANSWER, ["not between fences"]),
    ],
)
def test_each_violation_is_counted_once(kind: AgentKind, text: str, faults: list[str]) -> None:
    assert violations(text, kind) == faults
