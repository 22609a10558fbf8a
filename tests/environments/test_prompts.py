"""What prompts ask for is what is read: the example that each one shows, with a right answer in its place, scores 1."""

import asyncio
import json
import re

import pytest

from coterie.environments.baselines import by_method
from coterie.environments.coding import Coding, coding_task, functions
from coterie.environments.collaboration import MARKER, REFERENCE
from coterie.environments.dialogue import Dialogue
from coterie.environments.discussion import NO_MISTAKE, Debate
from coterie.environments.persona import Persona
from coterie.environments.protocol import AGENT, WELL_FORMED, Grade, Shared, State
from coterie.environments.qa_metrics import gold_answer
from coterie.environments.registry import BUILT_IN
from coterie.environments.settings import Method
from coterie.environments.user_simulator import PERSON
from coterie.record.tree import Task
from coterie.rewards.critics import Situation, judge_question, read_verdict
from coterie.runs.benchmark import store_name
from coterie.tools.sandbox.pool import Sandbox
from tests.conftest import Cli
from tests.helpers.packaged_environments import (
    packaged_coding,
    packaged_dialogue,
    packaged_environment,
    packaged_settings,
)
from tests.helpers.play_scripts import play_dialogue

METHODS: tuple[Method, ...] = ("dialogue", "cot", "mad", "autoform")
DOUBLE = "def double(x):\n    return 2 * x"
TASK = coding_task("t", "I need double.", DOUBLE, [f"double({n})" for n in range(5)])


def prompt(environment: Dialogue | Coding, task: Task, agent: str) -> str:
    return "".join(part.text for part in environment.system_parts(task, agent))


def form(environment: Dialogue, task: Task, agent: str) -> str:
    """The line that ends the rules of an agent, before its question."""
    rules, *_ = re.split(r"\n(?=(?:Question|Problem): )", prompt(environment, task, agent))
    return rules.rstrip().splitlines()[-1]


def as_shown(environment: Dialogue, task: Task, agent: str, answer: str | None) -> str:
    """Steps, and the line that ends the rules of an agent, with this answer in place of the example."""
    line = form(environment, task, agent)
    example = environment.answer(line)
    if answer is None or example is None:  # the line as it is; a critic's has no answer
        return f"Some steps.\n{line}"
    assert line.count(example) == 1
    return f"Some steps.\n{line.replace(example, answer)}"


async def ended(
    environment: Dialogue, task: Task, answer: str | None, *, truncated: bool = False
) -> tuple[State, Grade]:
    """The end of a dialogue whose agents write what their prompts show."""
    return await play_dialogue(
        environment,
        task,
        lambda asked: as_shown(environment, task, asked.agent, answer),
        truncated=truncated,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("agents", [2, 3])
@pytest.mark.parametrize(
    "name", (*BUILT_IN["information_exchange"].datasets, *BUILT_IN["debate"].datasets)
)
def test_a_right_answer_in_the_form_of_the_prompt_scores_1(
    name: str, agents: int, method: Method
) -> None:
    environment = by_method(packaged_environment(name, f"environment.agents={agents}"), method)
    assert isinstance(environment, Dialogue)

    async def play() -> None:
        for task in environment.tasks("heldout", 2, 0):
            state, grade = await ended(environment, task, gold_answer(task))
            assert grade == Grade(1.0, {WELL_FORMED: 1.0}), state
            _, copied = await ended(environment, task, None)
            assert copied == Grade(0.0, {WELL_FORMED: 0.0}), "the example is not an answer"

    asyncio.run(play())


def test_what_a_critic_is_shown_or_a_message_that_is_cut_off_is_no_answer() -> None:
    for name in BUILT_IN["debate"].datasets:
        debate = packaged_environment(name, "environment.agents=3")
        assert isinstance(debate, Debate)
        (task,) = debate.tasks("heldout", 1, 0)
        assert {form(debate, task, critic) for critic in debate.agents[1:]} == {NO_MISTAKE}
        assert debate.answer(NO_MISTAKE) is None
    environment = packaged_dialogue("gsm8k")
    (task,) = environment.tasks("heldout", 1, 0)
    state, grade = asyncio.run(ended(environment, task, gold_answer(task), truncated=True))
    assert len(state.turns) == 1 and grade == Grade(0.0, {WELL_FORMED: 0.0})


def answered(
    runner: asyncio.Runner, sandbox: Sandbox, environment: Coding, task: Task, text: str
) -> Grade:
    """The grade of an agent that says this and nothing more; it has one message."""
    environment.max_turns = 1
    said = play_dialogue(environment, task, lambda _: text, shared=Shared(sandbox))
    state, grade = runner.run(said)
    assert [turn.speaker.name for turn in state.turns] == [PERSON, AGENT]
    return grade


def shown(environment: Coding, task: Task) -> tuple[str, str]:
    """The answer at the end of a prompt, and the function in it."""
    text = prompt(environment, task, AGENT)
    answer = text[text.rindex(MARKER) :]
    assert text[: -len(answer)].endswith("\n"), "the marker stands on a line of its own"
    fenced = re.fullmatch(rf"{MARKER}\n```python\n(.+)\n```", answer, re.DOTALL)
    assert fenced
    return answer, fenced[1]


@pytest.mark.parametrize("mode", ["module", "legacy"])
@pytest.mark.parametrize("alone", [False, True])
def test_a_right_function_in_the_form_of_the_prompt_scores_1(
    runner: asyncio.Runner, sandbox: Sandbox, alone: bool, mode: str
) -> None:
    backend = packaged_coding("colbench_code", f"environment.grading={mode}")
    environment = by_method(backend, "cot" if alone else "dialogue")
    assert isinstance(environment, Coding)
    for task in environment.tasks("heldout", 2, 0):
        answer, function = shown(environment, task)
        assert functions(function)
        right = answer.replace(function, task.secrets[REFERENCE].reveal("grader"))
        grade = answered(runner, sandbox, environment, task, right)
        assert (grade.score, grade.metrics[WELL_FORMED]) == (1.0, 1.0)
        copied = answered(runner, sandbox, environment, task, answer)
        assert (copied.score, copied.metrics[WELL_FORMED]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "score", "formed"),
    [
        (f"{MARKER}\n```python\n{DOUBLE}\n```", 1, 1),
        (f"I know.\n{MARKER}\n```\nTWO = 2\n{DOUBLE}\n```\nThat is it.", 1, 1),
        (f"{MARKER} def double(x):", 0, 0),  # the signature alone
        (f"{MARKER}\n```python\ndef double(x):\n```", 0, 0),
        (f'{MARKER}\n```python\ndef double(x):\n    """Doubles."""\n    ...\n```', 0, 0),
        (f"{MARKER}\n```python\ndef triple(x):\n    return 3 * x\n```", 0, 0),
        (f"{MARKER}\n```python\n{DOUBLE} +\n```", 0, 0),
        (f"{MARKER}\n```python\n{DOUBLE}", 1, 0),  # the block is open
        (f"{MARKER}\n{DOUBLE}", 1, 0),
        (f"```python\n{DOUBLE}\n```", 1, 0),  # no marker; the last message counts all the same
        (f"{MARKER}\n```python\ndef double(x):\n    return 3 * x\n```", 0, 1),
        (f"{MARKER}\n```python\n{'(' * 10_000}\n```", 0, 0),
    ],
)  # fmt: skip
def test_the_form_of_a_function_is_not_its_score(
    runner: asyncio.Runner, sandbox: Sandbox, text: str, score: int, formed: int
) -> None:
    grade = answered(runner, sandbox, packaged_coding("colbench_code"), TASK, text)
    assert (grade.score, grade.metrics[WELL_FORMED]) == (score, formed)


def test_the_micro_world_asks_for_no_block_and_a_judge_is_read_as_it_is_shown(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    grade = answered(runner, sandbox, Persona(), TASK, f"{MARKER}\n{DOUBLE}")
    assert (grade.score, grade.metrics[WELL_FORMED]) == (1, 1)
    rules = judge_question(Situation("k", "task", "reference"), "one", "two")[0].text.splitlines()
    assert [read_verdict(line) for line in rules if len(line) == 1] == ["A", "B"]


def test_evaluations_show_well_formed_answers_and_cut_off_messages(cli: Cli) -> None:
    words = ["evaluate", "exchange", "policy=tiny-exchange", "tasks=12", "engine.device=cpu"]
    for limit in (96, 20):
        result = cli(*words, f"max_tokens={limit}")
        assert "well formed" in result.out and "cut off" in result.out
        (row,) = json.loads(result.out.splitlines()[-1])["rows"]
        assert row["well_formed"] > 0.8 if limit == 96 else row["well_formed"] < 1
        assert row["cut_off"] == 0 if limit == 96 else 0 < row["cut_off"] < 1


def test_dialogues_under_other_prompts_are_not_read_for_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = packaged_settings("gsm8k")
    names = [asyncio.run(store_name(settings, "m")) for _ in range(2)]
    monkeypatch.setattr("coterie.environments.discussion.LENGTH_RULE", "- Take your time.\n")
    assert len({*names, asyncio.run(store_name(settings, "m"))}) == 2
