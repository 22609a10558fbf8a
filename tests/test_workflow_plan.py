"""Plans that models write: read as graphs, run as soon as they can, and where the order of tags breaks the rules."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from coterie.environments.workflow.plan import (
    BrokenPlan,
    Outcome,
    Plan,
    Shape,
    Task,
    parse_plan,
    run_plan,
    times,
)
from coterie.environments.workflow.trace import AgentKind, scan, violations
from coterie.tools.calls import ToolError, ToolUnavailable

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


A, B, C = Task("a", "a"), Task("b", "b({a})", ("a",)), Task("c", "c({a})", ("a",))
DIAMOND = Plan((Task("d", "{b}+{c}", ("b", "c")), A, B, C))


class Log:
    """Runs tasks, and remembers when each began and ended. A task waits for the moment of its name."""

    def __init__(self, slow: Sequence[str] = (), bad: Sequence[str] = ()) -> None:
        self.events: list[tuple[str, str]] = []
        self.slow, self.bad = slow, bad
        self.now = self.most = 0

    async def __call__(self, id_: str, text: str) -> str:
        self.events.append(("begin", id_))
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(50 if id_ in self.slow else 3):
            await asyncio.sleep(0)
        self.now -= 1
        self.events.append(("end", id_))
        if id_ in self.bad:
            raise ToolError("no such page")
        return f"[{text}]"

    def place(self, event: str, id_: str) -> int:
        return self.events.index((event, id_))


def play(plan: Plan, log: Log, width: int = 8, calls: int = 64) -> dict[str, Outcome]:
    found = asyncio.run(run_plan(plan, log, width=width, calls=calls))
    assert [one.id for one in found] == [task.id for task in plan.tasks]
    return {one.id: one for one in found}


def test_results_are_put_into_the_placeholders_of_tasks_that_wait() -> None:
    found = play(DIAMOND, Log())
    assert found["d"].text == "[[b([a])]+[c([a])]]"
    assert {one.state for one in found.values()} == {"done"}


def test_a_task_begins_before_a_slow_one_on_which_it_does_not_depend_has_ended() -> None:
    log = Log(slow=["slow"])
    play(Plan((Task("a", "x"), Task("slow", "x"), Task("b", "x", ("a",)))), log)
    assert log.place("begin", "b") < log.place("end", "slow")


def test_so_many_tasks_run_at_the_same_time_and_no_more() -> None:
    log = Log()
    play(Plan(tuple(Task(f"T{n}", "x") for n in range(9))), log, width=4)
    assert log.most == 4


def test_what_waits_for_a_failed_task_is_not_run_and_the_rest_is() -> None:
    log = Log(bad=["b"])
    plan = Plan((*DIAMOND.tasks, Task("e", "x", ("d",)), Task("f", "x")))
    found = play(plan, log)
    assert (found["b"].state, found["b"].text) == ("failed", "no such page")
    assert (found["d"].state, found["d"].text) == ("not run", "not run: b failed")
    assert found["e"].text == "not run: d was not run"
    assert found["c"].state == found["f"].state == "done"
    assert ("begin", "d") not in log.events


def test_tasks_beyond_the_budget_are_answered_as_not_run() -> None:
    log = Log()
    found = play(DIAMOND, log, calls=2)
    assert [one for event, one in log.events if event == "begin"] == ["a", "b"]
    assert found["c"].text == "not run: a plan has at most 2 calls"
    assert found["d"].text == "not run: c was not run"


def test_a_tool_that_is_away_ends_the_plan_and_leaves_nothing_running() -> None:
    ended: list[str] = []

    async def run(id_: str, text: str) -> str:
        if id_ == "a":
            await asyncio.sleep(0)
            raise ToolUnavailable("away")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(id_)
            raise
        return ""

    async def check() -> None:
        plan = Plan((Task("a", "x"), Task("b", "x")))
        with pytest.raises(ToolUnavailable):
            await run_plan(plan, run, width=8, calls=64)
        assert ended == ["b"]

    asyncio.run(check())


def test_serial_time_is_the_sum_and_critical_time_the_longest_chain() -> None:
    found = times(DIAMOND, {"a": 1.0, "b": 2.0, "c": 5.0, "d": 0.5})
    assert (found.serial, found.critical) == (8.5, 6.5)
    assert times(DIAMOND, {}).critical == 0


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
