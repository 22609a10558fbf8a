"""Agents that write programs and do mathematics: trajectories through the real driver, tool and sandbox."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.answers import GRADER
from coterie.environments.protocol import Environment, Shared, State
from coterie.environments.workflow_code import TESTS
from coterie.errors import UserError
from coterie.models.loading import load_renderer
from coterie.record.tree import Outcome
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.recorded_turns import ScriptedSampler
from coterie.runs.benchmark import BenchmarkSettings, benchmark_settings
from coterie.tools.registry import Toolbox
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.worker import SandboxSettings
from tests.row_files import jsonl
from tests.row_programs import EXAMS, LIVE, METHOD, RIGHT

pytestmark = pytest.mark.usefixtures("own_home")
FENCE = "```"
ADD = "a, b = map(int, input().split())\nprint(a + b)"
PLAN = "<plan>\nT1: read\n- Dependencies: none\nT2: add\n- Dependencies: T1\n</plan>"


def answer(program: str, language: str = "py") -> str:
    return f"<think>done</think><answer>\n{FENCE}{language}\n{program}\n{FENCE}\n</answer>"


def call(program: str, stdin: str) -> str:
    return f"<code>\n{FENCE}py\n{program}\n{FENCE}\n{FENCE}sh\n{stdin}\n{FENCE}\n</code>"


def made(
    dataset: str, folder: Path, *rows: dict[str, Any], words: Sequence[str] = ()
) -> Environment:
    file = jsonl(folder / "test.jsonl", *rows)
    given = [f"dataset.source={file}", *words]
    return benchmark_settings(BenchmarkSettings, dataset, given).build_environment()


def play(environment: Environment, *scripts: Sequence[str]) -> list[EpisodeResult]:
    """One dialogue of the first task for each script, all at the same time."""
    renderer, _ = load_renderer("tiny-exchange")

    async def work() -> list[EpisodeResult]:
        task, *_ = environment.tasks("heldout", 1, 0)
        found = {}
        async with AsyncExitStack() as stack:
            opened = environment.openers(Path())[Toolbox]()  # type: ignore[attr-defined]
            toolbox = await stack.enter_async_context(opened)
            needed = Sandbox in environment.needs
            own = [Sandbox(SandboxSettings(workers=2))] if needed else []
            shared = Shared(toolbox, *[await stack.enter_async_context(one) for one in own])
            for at, script in enumerate(scripts):
                sampler = ScriptedSampler(renderer, lambda _, said=script: said, "script")  # type: ignore[misc]
                driver = Driver(environment, {"agent": sampler}, seed=0, shared=shared)
                async with driver.play_all([Episode(task, at, 0, "rollout")]) as playing:
                    found[at] = await anext(playing)
        return [found[at] for at in range(len(scripts))]

    return asyncio.run(work())


def outcome(found: EpisodeResult) -> Outcome:
    assert found.failure is None and found.tree is not None, found.failure
    (one,) = found.tree.outcomes.values()
    return one


def test_an_agent_runs_a_program_sees_what_it_prints_and_answers_with_one(tmp_path: Path) -> None:
    environment = made("livecodebench", tmp_path, LIVE)
    (found,) = play(
        environment,
        [
            f"{PLAN}<think>try</think>{call(ADD, '20 22')}",
            f"<reflection>good</reflection>{answer(ADD)}",
        ],
    )
    assert found.tree is not None
    shown = [one.text for turn in found.tree.turns.values() for one in turn.results]
    assert len(shown) == 1 and "[EXECUTED]" in shown[0] and "42" in shown[0]
    assert (outcome(found).score, outcome(found).ending.reason) == (1.0, "answered")
    m = found.metrics
    assert (m["fraction"], m["tests"], m["outcome"], m["well_formed"]) == (1.0, 2, "passed", 1.0)
    assert (m["plans"], m["tasks"], m["levels"], m["rounds"], m["calls"]) == (1, 2, 2, 1, 1)
    assert (m["violations"], m["early_calls"], m["public_tests_only"]) == (0, 0, 0.0)


ENDS: dict[str, tuple[str, float | None, float, float]] = {
    "passed": (answer(ADD), 1.0, 1.0, 1.0),
    "wrong output": (answer("input()\nprint(3)"), 0.0, 0.5, 1.0),
    "too slow": (answer("while True: pass"), 0.0, 0.0, 1.0),
    "too much output": (answer("print('x' * 100_000_000)"), 0.0, 0.0, 1.0),
    "error": (answer("import os\nprint(open(os.listdir('/tmp')[0]).read())"), 0.0, 0.0, 1.0),
}  # fmt: skip
FORMS: dict[str, tuple[str, float | None, float, float]] = {
    "no program between fences": (f"<answer>{ADD}</answer>", 0.0, 0.0, 0.0),
    "more than one program": (
        f"<answer>{FENCE}py\nprint(3)\n{FENCE}\n{FENCE}py\n{ADD}\n{FENCE}</answer>", 0.0, 0.0, 0.0,
    ),
    "no answer": (f"{FENCE}py\n{ADD}\n{FENCE}", 0.0, 0.0, 0.0),
}  # fmt: skip


def test_every_way_to_end_has_a_recorded_outcome_and_hinders_no_other(tmp_path: Path) -> None:
    words = ["environment.limits.seconds=1", "environment.limits.total_seconds=20"]
    ends_as_told(made("livecodebench", tmp_path, LIVE, words=words), ENDS)


def test_an_answer_that_gives_no_program_says_why(tmp_path: Path) -> None:
    ends_as_told(made("livecodebench", tmp_path, LIVE), FORMS)


def ends_as_told(
    environment: Environment, ends: dict[str, tuple[str, float | None, float, float]]
) -> None:
    for (reason, (_, score, fraction, well)), found in zip(
        ends.items(), play(environment, *([said] for said, *_ in ends.values())), strict=True
    ):
        m = found.metrics
        told = (m["outcome"], outcome(found).score, m["fraction"], m["well_formed"])
        assert told == (reason, score, fraction, well), m
        assert "42" not in str(m.get("why", "")), "what was expected is not told"


def test_lenient_takes_the_last_program_and_code_without_fences(tmp_path: Path) -> None:
    environment = made("livecodebench", tmp_path, LIVE, words=["environment.lenient=true"])
    bare, several, without = (FORMS[name][0] for name in (
        "no program between fences", "more than one program", "no answer",
    ))  # fmt: skip
    for found in play(environment, [bare], [several], [without]):
        assert outcome(found).score == 1.0, found.metrics
    (found,) = play(environment, ["<think>I can't.</think>"])
    assert (outcome(found).answer, found.metrics["outcome"]) == (None, "no answer")


def test_a_method_is_asked_for_with_its_beginning_and_its_tests_call_it(tmp_path: Path) -> None:
    environment = made("livecodebench", tmp_path, METHOD)
    state = State(environment.tasks("heldout", 1, 0)[0], 0)
    system, user = environment.see(state, "agent")
    assert METHOD["starter_code"].strip() in user.parts[0].text
    assert "<code>code</code>" in system.parts[-1].text
    right = "class Solution:\n    def total(self, xs: List[int]) -> int:\n        return sum(xs)"
    (found,) = play(environment, [answer(right, "python")])
    assert outcome(found).score == 1.0
    (wrong,) = play(environment, [answer(right.replace("sum(xs)", "3"))])
    assert (outcome(wrong).score, wrong.metrics["fraction"]) == (0.0, 0.5)


def test_nobody_but_a_grader_reads_the_tests(tmp_path: Path) -> None:
    environment = made("livecodebench", tmp_path, LIVE)
    (task,) = environment.tasks("heldout", 1, 0)
    assert set(task.secrets) == {TESTS} and task.secrets[TESTS].readers == {GRADER}
    assert "40 2" not in str(task) and "42" in task.secrets[TESTS].reveal(GRADER)
    shown = environment.see(State(task, 0), "agent")
    text = "".join(part.text for message in shown for part in message.parts)
    assert "Read two numbers" in text and "42" not in text and "40 2" not in text


def test_what_is_graded_on_public_tests_alone_says_so(tmp_path: Path) -> None:
    environment = made("livecodebench", tmp_path, LIVE | {"private_test_cases": "eJxsealed"})
    (found,) = play(environment, [answer(ADD)])
    assert (outcome(found).score, found.metrics["tests"]) == (1.0, 1)
    assert found.metrics["public_tests_only"] == 1.0


@pytest.mark.parametrize(("change", "flaw"), [
    ({"public_test_cases": '[{"input": "1", "output": " "}]'}, "without an expected output"),
    ({"public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]'}, "function without a name"),
    (
        {"public_test_cases": '[{"input": "x", "output": "2", "testtype": "functional"}]',
         "metadata": '{"func_name": "f"}'},
        "not JSON",
    ),
    ({"public_test_cases": "[]", "private_test_cases": ""}, "no readable tests"),
])  # fmt: skip
def test_a_problem_that_can_not_be_graded_is_left_out_and_never_scored(
    change: dict[str, Any], flaw: str, tmp_path: Path
) -> None:
    environment = made("livecodebench", tmp_path, LIVE | change | {"question_id": "bad"}, LIVE)
    assert [one.id for one in environment.tasks("heldout", 9, 0)] == ["livecodebench-abc_1"]
    rows = environment.rows  # type: ignore[attr-defined]
    broken = rows.row.model_validate(LIVE | change)
    assert flaw in broken.flaw
    with pytest.raises(UserError, match=flaw):
        environment.task_of(broken)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", EXAMS)
def test_every_exam_is_played_from_a_file_and_compared_as_mathematics(
    name: str, tmp_path: Path
) -> None:
    environment = made(name, tmp_path, EXAMS[name])
    assert environment.syntax is not None and environment.syntax.stop == ("</code>", "</answer>")
    right, wrong, nothing = play(
        environment,
        [f"{PLAN}<think>x</think>{call('print(102 * 2)', '')}", f"<answer>{RIGHT[name]}</answer>"],
        [r"<answer>\boxed{999}</answer>"],
        ["<think>I don't know."],
    )
    assert (outcome(right).score, right.metrics["calls"]) == (1.0, 1)
    assert outcome(wrong).score == 0.0 and wrong.metrics["well_formed"] == 1.0
    assert (outcome(nothing).score, outcome(nothing).answer) == (0.0, None)
    assert environment.same(r"\frac12", "0.5") and environment.similarity("1", "2") == 0.0  # type: ignore[attr-defined]
