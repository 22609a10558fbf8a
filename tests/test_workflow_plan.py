"""Plans that models write, read as graphs."""

import random

import pytest

from coterie.environments.workflow.plan import BrokenPlan, Plan, Shape, Task, parse_plan

TRAINED = """<plan>
T1: Find the founder of Quill & Sons
- Dependencies: none
T2: Find the river of Norhaven
- Dependencies: none
T3: Compare both
- Dependencies: T1, T2
</plan>"""
GRAPH = """<plan><graph><node id="s1">search("founder of Quill & Sons")</node>
<node id="s2">search("a river")</node> <node id="s3" depends="s1, s2">compare("{s1} or {s2}")</node></graph></plan>"""


def outcome(text: str) -> str:
    """What is wrong with a plan; empty if nothing."""
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


def test_the_xml_form_is_read_with_tools_and_placeholders() -> None:
    assert outcome(GRAPH) == ""
    plan = parse_plan(GRAPH)
    assert edges(plan) == {"s1": (), "s2": (), "s3": ("s1", "s2")}
    assert plan.tasks[0] == Task("s1", "founder of Quill & Sons", (), "search")
    assert plan.tasks[2].bound({"s1": "Ada", "s2": "the {s1}"}) == "Ada or the {s1}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t1: a\nt2 : b\n   * dependencies : t1", {"T1": (), "T2": ("T1",)}),
        ("- **T1:** a\n- **T2:** b\n  - **Dependencies:** T1", {"T1": (), "T2": ("T1",)}),
        ("T1: a\n\nT2: b", {"T1": (), "T2": ()}),
        ("T1: a - Dependencies: none\nT2: b (depends on: T1)", {"T1": (), "T2": ("T1",)}),
        ("T1: a\nT2: b\nT3: c\n- Dependencies: T1 and T2.", {"T1": (), "T2": (), "T3": ("T1", "T2")}),
        ("T1: a\n- Dependencies: T2\nT2: b\n- Dependencies: N/A", {"T1": ("T2",), "T2": ()}),
        ("Well.\nT01: é 東京\n- Dependencies:\n\n", {"T1": ()}),
        ("T1: a\n- Dependencies: [T2, T2]\nT2: b", {"T1": ("T2",), "T2": ()}),
        ('<graph><node id="a" depends="none">x</node></graph>', {"a": ()}),
        ('<graph><node id="b" depends="a">x {a}</node><node id="a">y</node></graph>', {"b": ("a",), "a": ()}),
    ],
)  # fmt: skip
def test_odd_spellings_are_read(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert outcome(text) == ""
    assert edges(parse_plan(text)) == expected


def test_a_description_goes_on_in_the_next_line_and_ends_at_its_dependencies() -> None:
    plan = parse_plan("T1: find the\n  old mill\n- Dependencies: none\nand this is prose")
    assert plan.tasks[0].text == "find the old mill"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "there are no tasks", ""),
        ("I will search first.", "there are no tasks", ""),
        ("T1: a\nT1: b", "used twice", "T1"),
        ("T1: a\n- Dependencies: T1", "waits for itself", "T1"),
        ("T1: a\n- Dependencies: T7", "'T7', which is not a task", "T1"),
        ("T1: a\n- Dependencies: the first", "not the id of a task", "T1"),
        ("T1: a\n- Dependencies: none\n- Dependencies: none", "second list", "T1"),
        ("- Dependencies: none\nT1: a", "before the first task", "line 1"),
        ("T1: a\n- Dependencies: T2\nT2: b\n- Dependencies: T1", "wait for each other", "T"),
        ("T1: a\nT2: who is {t1}?", "{T1} is not one", "T2"),
        ("<graph>", "not closed", ""),
        ("<graph></graph>", "there are no tasks", ""),
        ('<graph><node id="a">1 < 2</node></graph>', "not XML", "line 1"),
        ('<graph><node id="a"><node id="b">x</node></node></graph>', "can't stand here", "a"),
        ("<graph><node>x</node></graph>", "can't be the id", ""),
        ('<graph><node id="a">x</node><node id="b">{a}</node></graph>', "{a} is not one", "b"),
        ('<graph><node id="a">{zz}</node></graph>', "{zz} is not one", "a"),
        ('<graph><node id="a">\x00</node></graph>', "not XML", "line 1"),
    ],
)
def test_what_is_no_plan_says_what_and_where(text: str, what: str, where: str) -> None:
    with pytest.raises(BrokenPlan) as caught:
        parse_plan(text)
    assert what in caught.value.what
    assert caught.value.where.startswith(where) and bool(caught.value.where) == bool(where)


def test_an_entity_is_text_and_is_never_expanded() -> None:
    bomb = '<!DOCTYPE graph [<!ENTITY e "boom">]><graph><node id="a">&e;&amp;</node></graph>'
    assert parse_plan(bomb).tasks[0].text == "&e;&"


@pytest.mark.parametrize(
    "text",
    [
        "T1: " + " " * 100_000,
        " " * 100_000,
        "T1: a\n- Dependencies: " + "T1 " * 33_000,
        "dependencies " * 8000,
        "T1: " + "{" * 100_000,
        "T1:" * 33_000,
        "\n".join(f"T{n}: task {n}\n- Dependencies: T{n - 1}" for n in range(2, 3500)),
        "<graph>" + '<node id="' * 10_000 + "</graph>",
        "<graph>" + "&" * 100_000 + "</graph>",
        "\ud800<graph>" + "<node>" * 15_000 + "</graph>",
        '<graph><node id="a">s(' + "(" * 100_000 + "</node></graph>",
    ],
)
def test_a_large_odd_text_is_a_plan_or_a_short_error(text: str) -> None:
    assert len(outcome(text)) < 500


def test_the_levels_of_random_graphs_are_right() -> None:
    draw = random.Random(3)
    for _ in range(50):
        names = [f"T{n}" for n in range(draw.randrange(1, 40))]
        draw.shuffle(names)
        made = {
            name: tuple(draw.sample(names[:n], draw.randrange(min(n, 3) + 1)))
            for n, name in enumerate(names)
        }
        shown = sorted(names, key=lambda _: draw.random())
        text = "\n".join(f"{name}: x\n- Dependencies: {', '.join(made[name]) or 'none'}" for name in shown)  # fmt: skip
        plan = parse_plan(text)
        assert edges(plan) == {name: made[name] for name in shown}
        level = {name: number for number, names_ in enumerate(plan.levels) for name in names_}
        for name, waits in made.items():
            assert level[name] == 1 + max((level[one] for one in waits), default=-1)
