"""Plans that are run, each task as soon as it can."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from coterie.environments.workflow.plan import Outcome, Plan, Task, run_plan, times
from coterie.tools.calls import ToolError, ToolUnavailable

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


def test_random_graphs_run_each_task_once_and_after_those_it_waits_for() -> None:
    draw = random.Random(11)
    for _ in range(20):
        names = [f"n{n}" for n in range(draw.randrange(1, 30))]
        waits = {
            one: tuple(draw.sample(names[:n], draw.randrange(min(n, 3) + 1)))
            for n, one in enumerate(names)
        }
        shown = sorted(names, key=lambda _: draw.random())
        plan = Plan(tuple(Task(one, "x", waits[one]) for one in shown))
        log, width = Log(slow=draw.sample(names, len(names) // 3)), draw.randrange(1, 6)
        play(plan, log, width=width)
        assert log.most <= width
        assert sorted(one for event, one in log.events if event == "begin") == sorted(names)
        for one, before in waits.items():
            assert all(log.place("end", b) < log.place("begin", one) for b in before)


def test_serial_time_is_the_sum_and_critical_time_the_longest_chain() -> None:
    found = times(DIAMOND, {"a": 1.0, "b": 2.0, "c": 5.0, "d": 0.5})
    assert (found.serial, found.critical) == (8.5, 6.5)
    assert times(DIAMOND, {}).critical == 0
