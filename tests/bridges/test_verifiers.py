"""Tasksets of verifiers, made by ``vf-init``: rewards, metrics, splits, and refusals."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="make test-bridges has the package")

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Grade, Shared, State
from coterie.record.tree import LENGTH, Task
from tests.conftest import Cli, refused
from tests.helpers.converse import converse
from tests.helpers.packaged_environments import packaged_environment

LOAD = """
        import itertools
        numbers = itertools.count() if self.config.endless else range(self.config.num_tasks)
        for n in numbers:
            prompt = f"What is {n} + 1?"
            if n % 2:
                prompt = [vf.UserMessage(content="Sums."), vf.AssistantMessage(content="Go on."),
                          vf.UserMessage(content=prompt)]
            yield TASK(DATA(prompt=prompt, system_prompt="Calculate.", right=n + 1), self.config.task)
"""
REWARDS = """
    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        assert [m.role for m in trace.messages][-2:] == ["user", "assistant"]
        return float(trace.last_reply == str(self.data.right))

    @vf.reward(weight=0.25)
    async def short(self, task, trace) -> float:
        return float(len(trace.assistant_messages[-1].content) < 10 and not trace.is_truncated)

    @vf.metric
    async def length(self, trace) -> float:
        return len(trace.last_reply) + trace.num_turns / 10
"""


@pytest.fixture
def taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a taskset that ``vf-init`` wrote, completed, which can be imported as ``adding``."""
    vf_init = [sys.executable, "-m", "verifiers.v1.cli.init", "adding", "--path", str(tmp_path)]
    subprocess.run(vf_init, check=True, capture_output=True)
    file = tmp_path / "adding/adding/taskset.py"
    text = file.read_text()
    body = text.index("    @vf.reward"), text.index("class AddingConfig")
    text = f"{text[: body[0]]}{REWARDS}\n\n{text[body[1] :]}"
    text = text.replace("num_tasks: int = 5", "num_tasks: int = 40\n    endless: bool = False")
    text = text.partition("        raise NotImplementedError(")[0]
    text += LOAD.replace("TASK", "AddingTask").replace("DATA", "AddingData")
    text = text.replace('answer."""\n', 'answer."""\n    right: int = 0\n', 1)
    file.write_text(text)
    monkeypatch.syspath_prepend(str(file.parents[1]))
    for name in [one for one in sys.modules if one.partition(".")[0] == "adding"]:
        monkeypatch.delitem(sys.modules, name)
    return file


def tasks(split: Split, count: int, *overrides: str) -> list[Task]:
    return packaged_environment("verifiers", "environment.taskset=adding", *overrides).tasks(
        split, count, 0
    )


def play(number: int, reply: str, *overrides: str) -> tuple[State, Grade]:
    environment = packaged_environment("verifiers", "environment.taskset=adding", *overrides)
    all_tasks = [*environment.tasks("train", 40, 0), *environment.tasks("heldout", 40, 0)]
    (task,) = [one for one in all_tasks if one.id == f"adding-{number}"]
    state, grade = asyncio.run(converse(environment, task, [reply], Shared()))
    assert grade is not None
    return state, grade


def test_a_reply_has_the_rewards_and_metrics_of_its_task(taskset: Path) -> None:
    _, grade = play(4, "5")
    assert (grade.score, grade.metrics) == (1, {"right": 1, "short": 1, "length": 1.1})
    _, grade = play(4, "It is 5, I would say.")
    assert (grade.score, grade.metrics["short"]) == (0, 0)
    _, grade = play(4, "6", "environment.score_range=[-0.25,0.75]")
    assert grade.score == 0.5


def test_a_prompt_has_all_its_messages_and_settings_reach_the_taskset(taskset: Path) -> None:
    environment = packaged_environment(
        "verifiers", "environment.taskset=adding", "environment.config={num_tasks: 6}"
    )
    every = [*environment.tasks("train", 9, 0), *environment.tasks("heldout", 9, 0)]
    assert sorted(task.id for task in every) == [f"adding-{n}" for n in range(6)]
    state, _ = play(3, "4")
    messages = environment.observe(State(state.task, 0), "agent")
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1].parts[0].text == "What is 3 + 1?"


def test_a_reply_that_was_cut_off_is_a_truncated_trace(taskset: Path) -> None:
    environment = packaged_environment("verifiers", "environment.taskset=adding")
    (task,) = environment.tasks("heldout", 1, 0)
    number = int(task.id.partition("-")[2])
    state = State(task, 0, answer=str(number + 1), end=LENGTH)
    assert asyncio.run(environment.grade(state, Shared())).score == 0.75


def test_splits_share_no_prompt_and_an_endless_taskset_is_read_in_part(taskset: Path) -> None:
    overrides = ("environment.config={endless: true}", "environment.most=200")
    train, heldout = tasks("train", 500, *overrides), tasks("heldout", 500, *overrides)
    assert len(train) + len(heldout) == 200 and 30 < len(heldout) < 70
    prompts = [str(task.public["messages"]) for task in (*train, *heldout)]
    assert len(set(prompts)) == 200


def test_a_reward_that_fails_or_leaves_its_range_is_refused_before_the_run(
    taskset: Path, cli: Cli
) -> None:
    words = ("evaluate", "verifiers", "environment.taskset=adding", "policy=tiny-acts", "tasks=2")
    text = taskset.read_text()
    taskset.write_text(
        text.replace("return float(trace.last_reply ==", "return 1 / 0 + float(3 ==")
    )
    assert "division by zero" in refused(cli, *words)
    forget()
    taskset.write_text(text.replace("weight=0.25", "weight=3"))
    assert "environment.score_range" in refused(cli, *words)


def test_the_command_evaluates_and_trains_on_a_taskset(taskset: Path, cli: Cli) -> None:
    overrides = ("environment.taskset=adding", "engine.device=cpu")
    result = cli(
        "evaluate", "verifiers", *overrides, "policy=tiny-acts", "tasks=3", "max_tokens=16"
    )
    assert result.code == 0 and '"right"' in result.out, result.err
    short = (
        "rollout.tasks=2",
        "rollout.rollouts_per_task=2",
        "rollout.max_tokens=8",
        "steps.count=1",
    )
    run = ("run", "rl/grpo", "environment=verifiers", *overrides, "model=tiny-acts", *short)
    planned = cli(*run, "evaluate.tasks=2", "train.max_length=128", "--dry-run")
    assert planned.code == 0, planned.err


def forget() -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "adding"]:
        del sys.modules[name]
