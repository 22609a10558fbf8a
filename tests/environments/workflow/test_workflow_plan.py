"""Plans that models write are parsed as graphs, and breaches of the order of tags are counted."""

import random

import pytest

from coterie.environments.workflow.plan_graph import (
    AgentKind,
    BrokenPlan,
    Plan,
    Shape,
    parse_plan,
    violations,
)

TRAINED = """<plan>
T1: Find the founder of Quill & Sons
- Dependencies: none
T2: Find the river of Norhaven
- Dependencies: none
T3: Compare both
- Dependencies: T1, T2
</plan>"""


def problem_of(text: str) -> str:
    """The problem of a plan; "" for a valid plan."""
    try:
        parse_plan(text)
    except BrokenPlan as error:
        return str(error)
    return ""


def edges(plan: Plan) -> dict[str, tuple[str, ...]]:
    return {task.id: task.after for task in plan.tasks}


def test_the_trained_form_is_read_as_a_graph() -> None:
    plan = parse_plan(TRAINED)
    assert edges(plan) == {"T1": (), "T2": (), "T3": ("T1", "T2")}
    assert plan.tasks[0].text == "Find the founder of Quill & Sons"
    assert plan.levels == (("T1", "T2"), ("T3",))
    assert plan.shape == Shape(tasks=3, levels=2, width=2)
    longer = parse_plan("T1: find the\n  old mill\n- Dependencies: none\nand this is prose")
    assert longer.tasks[0].text == "find the old mill"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t1: a\nt2 : b\n   * dependencies : t1", {"T1": (), "T2": ("T1",)}),
        ("- **T1:** a\n- **T2:** b\n  - **Dependencies:** T1", {"T1": (), "T2": ("T1",)}),
        ("T1: a - Dependencies: none\nT2: b (depends on: T1)", {"T1": (), "T2": ("T1",)}),
        ("T1: a\nT2: b\nT3: c\n- Dependencies: T1 and T2.", {"T1": (), "T2": (), "T3": ("T1", "T2")}),
        ("T1: a\n- Dependencies: T2\nT2: b\n- Dependencies: N/A", {"T1": ("T2",), "T2": ()}),
        ("Well.\nT01: é 東京\n- Dependencies:\n\n", {"T1": ()}),
        ("T1: a\n- Dependencies: [T2, T2]\nT2: b", {"T1": ("T2",), "T2": ()}),
    ],
)  # fmt: skip
def test_odd_spellings_are_plans(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert edges(parse_plan(text)) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I will search first.", "there are no tasks"),
        ("T1: a\nT1: b", "used twice"),
        ("T1: a\n- Dependencies: T1", "wait for each other"),
        ("T1: a\n- Dependencies: T7", "T1: a dependency is not a task"),
        ("T1: a\n- Dependencies: the first", "not the id of a task"),
        ("- Dependencies: none\nT1: a", "without a task"),
        ("T1: a\n- Dependencies: T2\nT2: b\n- Dependencies: T1", "wait for each other"),
        ("T1: a\nT2: who is {t1}?", "T2: a placeholder is not a dependency"),
    ],
)
def test_a_broken_plan_is_explained(text: str, problem: str) -> None:
    assert problem in problem_of(text)


def test_a_large_odd_text_is_a_plan_or_a_short_error() -> None:
    chain = "\n".join(f"T{n}: task {n}\n- Dependencies: T{n - 1}" for n in range(2, 3500))
    pieces = (" ", "T1:", "T1: {", "dependencies ", "T1: a\n- Dependencies: T1 ")
    for text in (chain, "T1: " + " " * 100_000, *(piece * 33_000 for piece in pieces)):
        assert len(problem_of(text)) < 500


def test_the_levels_of_random_graphs_are_right() -> None:
    draw = random.Random(3)
    for _ in range(50):
        names = [f"T{n}" for n in range(draw.randrange(1, 40))]
        draw.shuffle(names)
        after = {
            name: tuple(draw.sample(names[:n], draw.randrange(min(n, 3) + 1)))
            for n, name in enumerate(names)
        }
        order = draw.sample(names, len(names))
        lines = (f"{name}: x\n- Dependencies: {', '.join(after[name]) or 'none'}" for name in order)
        plan = parse_plan("\n".join(lines))
        assert edges(plan) == {name: after[name] for name in order}
        level = {name: number for number, row in enumerate(plan.levels) for name in row}
        for name, waits in after.items():
            assert level[name] == 1 + max((level[one] for one in waits), default=-1)


T, SEEN = "<think>t</think>", "<observation>o</observation>"
PLAN, SEARCH, ANSWER = "<plan>p</plan>", "<wiki_search>q</wiki_search>", "<answer>a</answer>"
WEB, BACK = "<web_search>q</web_search>", "<reflection>r</reflection>"
MAYBE, CHECK = "<suggested_answer>s</suggested_answer>", "<double_check>4</double_check>"
LOOK = "<visual_inspector>{}</visual_inspector>"
CODE = "<code>\n```py\nprint(1)\n```\n</code>"


@pytest.mark.parametrize(
    ("kind", "text", "faults"),
    [
        ("mhqa", T + PLAN + T + SEARCH + SEEN + T + ANSWER, []),
        (
            "mhqa",
            T + SEARCH * 2 + SEEN * 2 + T + BACK + T + PLAN + T + SEARCH + SEEN + T + ANSWER,
            [],
        ),
        ("web", T + PLAN + T + WEB + SEEN + T + BACK + T + MAYBE + T + CHECK + T + ANSWER, []),
        (
            "all_tools",
            T
            + PLAN
            + T
            + LOOK
            + SEEN
            + T
            + CODE
            + SEEN
            + T
            + WEB
            + SEEN
            + T
            + MAYBE
            + T
            + CHECK
            + T
            + ANSWER,
            [],
        ),
        ("all_tools", T + LOOK + SEEN + T + ANSWER, ["wrong order"]),
        ("all_tools", T + "<code>1</code>" + SEEN, ["not between fences"]),
        ("web", T + LOOK + SEEN + T + WEB, ["not of this agent"]),
        ("code", PLAN + T + CODE + SEEN + BACK + T + CODE + SEEN + BACK + T + ANSWER, []),
        ("mhqa", T + SEARCH + "<observation><answer></think></observation>" + T + ANSWER, []),
        ("mhqa", T + SEARCH, []),
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
