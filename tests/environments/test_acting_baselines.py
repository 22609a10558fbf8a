"""Reflexion and code as policies: through the command with BabyAI, and in a PDDL game and sums."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.acting import CUT, ENVIRONMENT, SOLVED, Acting, write_action, write_answer
from coterie.environments.baselines import LESSONS, NO_PROGRAM, RAN, REFLECT, by_method
from coterie.environments.games.pddl import CHECK, PDDL, PDDLSettings
from coterie.environments.plans.python_maths import Sums
from coterie.environments.protocol import Environment, Grade, Shared, State
from coterie.environments.qa_metrics import gold_answer
from coterie.record.tree import TURNS, Ending, Task
from coterie.rollout.episodes import Driver, Episode, EpisodeResult
from coterie.rollout.samplers import Prompt
from coterie.tools.sandbox.pool import Sandbox
from tests.conftest import Cli
from tests.engines.test_endpoint import Answer, Service, says, service
from tests.environments.games.test_pddl import PLAN, write_game
from tests.helpers.run_python import QUICK
from tests.helpers.script_games import Script

SEEN = r"(?:ball|key|box)(?: (\d+) ahead)?(?: \d+ (left|right))?"
"""The object of level GoToObj in a view."""
PROGRAM = f"""I look for it, then I go there.
```python
import re
view = turn_left()
while True:
    seen = re.search(r"{SEEN}", view)
    if seen and seen[1]:
        view = move_forward()
    elif seen and seen[2] == "right":
        view = turn_right()
    else:
        view = turn_left()
```"""
LESSON = "I only turned. I will go to it."


def next_move(view: str) -> str:
    """Return the next move to the object."""
    seen = re.search(SEEN, view)
    if seen and seen[1]:
        return "move forward"
    return "turn right" if seen and seen[2] == "right" else "turn left"


def policy(say: Callable[[list[dict[str, str]]], str]) -> Answer:
    """Return a server that replies to the messages of a request."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        assert isinstance(handler.server, Service)
        body = json.loads(json.dumps(handler.server.bodies[-1]))
        message = {"content": say(body["messages"])}
        says(200, {"choices": [{"message": message, "finish_reason": "stop"}]})(handler)

    return answer


def evaluated(cli: Cli, answer: Answer, *overrides: str) -> dict[str, Any]:
    with service(answer) as server:
        own = (f"policy={server.url}", "endpoint.model=m", "endpoint.concurrency=1")
        result = cli("evaluate", "babyai", "environment.level=GoToObj", *own, *overrides)
    assert not result.code, result.err
    (row,) = json.loads(result.out.splitlines()[-1])["rows"]
    return dict(row)


def play(
    environment: Environment, say: Callable[[Prompt], str], task: Task, truncated: bool = False
) -> tuple[EpisodeResult, Ending, float | None, list[str]]:
    """Return the result, its ending and score, and what the environment said."""

    async def run() -> EpisodeResult:
        async with Sandbox(QUICK) as sandbox:
            script = Script(say, truncated=truncated)
            driver = Driver(environment, {"agent": script}, seed=0, shared=Shared(sandbox))
            async with driver.play_all([Episode(task, 0, 0, "test")]) as playing:
                return await anext(playing)

    result = asyncio.run(run())
    assert result.tree is not None, result.failure
    (outcome,) = result.tree.outcomes.values()
    turns = result.tree.path(outcome.leaf)
    texts = [turn.text for turn in turns if turn.speaker == ENVIRONMENT]
    return result, outcome.ending, outcome.score, texts


def variant(tmp_path: Path, method: Any, steps: int = 30, attempts: int = 3) -> tuple[Acting, Task]:
    game = PDDL(PDDLSettings(domain=str(write_game(tmp_path)), steps=steps))
    environment = by_method(game, method, attempts)
    assert isinstance(environment, PDDL)
    return environment, environment.tasks("heldout", 1, 0)[0]


def test_reflections_are_in_the_prompt_of_later_attempts_and_success_is_by_attempt(
    cli: Cli,
) -> None:
    prompts: list[list[str]] = []

    def say(messages: list[dict[str, str]]) -> str:
        system, *dialogue = (message["content"] for message in messages)
        prompts.append([system, *dialogue])
        if dialogue[-1].endswith(REFLECT):
            return LESSON
        return write_action(next_move(dialogue[-1]) if LESSON in system else "turn left")

    overrides = ("method=reflexion", "attempts=2", "environment.steps=12", "tasks=6")
    row = evaluated(cli, policy(say), *overrides)
    assert row["within_attempt_1"] < 0.5 and row["within_attempt_2"] == row["score"] == 1
    assert row["attempts"] == 2 - row["within_attempt_1"]
    begun = [dialogue for dialogue in prompts if len(dialogue) == 2]
    second = [dialogue for dialogue in begun if LESSONS in dialogue[0]]
    for system, first in second:
        assert system.endswith(f"{LESSONS}\n- {LESSON}")
        assert [system.partition(LESSONS)[0], first] in begun, "the same game begins again"
    assert len(second) == round(6 * (1 - row["within_attempt_1"]))
    assert {len(dialogue) for dialogue in prompts} == {*range(2, 27, 2)}, (
        "no turn of the first attempt"
    )


def test_each_attempt_has_all_steps_and_the_last_one_counts(tmp_path: Path) -> None:
    environment, task = variant(tmp_path, "reflexion", steps=3)
    lines = iter(["wait"] * 3 + ["why 1"] + [PLAN[0], "x", "x"] + ["why 2"] + ["y"] * 3)
    prompts: list[str] = []

    def say(prompt: Prompt) -> str:
        prompts.append("".join(part.text for part in prompt.messages[0].parts))
        line = next(lines)
        return line if line.startswith("why") else write_action(line)

    result, end, score, texts = play(environment, say, task)
    assert next(lines, None) is None and (end, score) == (TURNS, 0.0)
    assert [text.endswith(REFLECT) for text in texts].count(True) == 2
    assert prompts[-1].endswith("\n- why 1\n- why 2") and "why" not in prompts[3]
    metrics = {name: result.metrics[name] for name in ("attempts", "actions", "messages")}
    assert metrics == {"attempts": 3, "actions": 0, "messages": 11}
    assert {result.metrics[f"within_attempt_{t}"] for t in (1, 2, 3)} == {0.0}


def test_a_solved_attempt_is_the_last_one_whatever_its_score(tmp_path: Path) -> None:
    """As in AgentGym's BabyAI, which scores fewer steps higher."""

    class Slow(PDDL):
        async def grade(self, state: State, session: Any) -> Grade:
            return replace(await super().grade(state, session), score=0.9)

    environment = by_method(Slow(PDDLSettings(domain=str(write_game(tmp_path)))), "reflexion", 3)
    (task,) = environment.tasks("heldout", 1, 0)
    lines = iter(map(write_action, PLAN))
    result, end, score, _ = play(environment, lambda _: next(lines), task)
    assert (end, score) == (SOLVED, 0.9)
    assert (result.metrics["attempts"], result.metrics["within_attempt_1"]) == (1, 1)


def test_attempts_at_sums_have_sessions_of_their_own() -> None:
    environment = by_method(Sums(), "reflexion", 2)
    (task,) = environment.tasks("heldout", 1, 0)
    gold = gold_answer(task)
    first = [write_action("x = 7"), *[write_answer("-1")] * 5]
    lines = iter([*first, "Count.", write_action("print(x)"), write_answer(gold)])
    result, end, score, texts = play(environment, lambda _: next(lines), task)
    assert (end, score) == (SOLVED, 1.0) and "NameError" in texts[-1]
    assert (result.metrics["within_attempt_1"], result.metrics["within_attempt_2"]) == (0.0, 1.0)


def test_a_program_plays_a_game_by_what_it_sees(cli: Cli) -> None:
    prompts: list[str] = []

    def say(messages: list[dict[str, str]]) -> str:
        prompts.append(messages[0]["content"])
        return PROGRAM

    row = evaluated(cli, policy(say), "method=code_as_policy", "tasks=12", "environment.steps=30")
    assert row["score"] == 1 and row["moves"] > 3 and len(prompts) == 12
    assert "\nmove_forward()  # move forward\n" in prompts[0]


@pytest.mark.parametrize(
    ("text", "end", "actions", "last"),
    [
        (f"```python\nfor a in {PLAN!r}: globals()[a.split()[0]](*a.split()[1:])\n```", SOLVED, 4, ""),
        ("```python\nprint(drive('b', 'a'))\n1 / 0\n```", RAN, 0, "ZeroDivisionError: division by zero"),
        ("```python\ndrive('a')\n```", RAN, 0, "TypeError: drive takes 2 arguments, not 1"),
        ("```python\nwhile True:\n    try: check_valid_actions()\n    except: pass\n```", TURNS, 0, ""),
        ("```python\nwhile True: pass\n```", RAN, 0, "The cell took too long"),
        ("```python\nimport os; os._exit(0)\n```", RAN, 0, "ended the process"),
        ("drive('a', 'b')", RAN, 0, NO_PROGRAM),
    ],
)  # fmt: skip
def test_a_program_is_run_once_in_the_sandbox(
    tmp_path: Path, text: str, end: Ending, actions: int, last: str
) -> None:
    environment, task = variant(tmp_path, "code_as_policy", steps=6)
    result, ending, score, texts = play(environment, lambda _: text, task)
    assert (ending, score) == (end, float(end == SOLVED))
    assert (result.metrics["actions"], result.metrics["messages"]) == (actions, 1)
    assert len(texts) == 2 and last in texts[-1]
    assert texts[-1].count(f"> {CHECK}") == (6 if end == TURNS else 0)


def test_a_truncated_program_is_not_run(tmp_path: Path) -> None:
    environment, task = variant(tmp_path, "code_as_policy")
    text = "```python\ncheck_valid_actions()\n```"
    _, end, _, texts = play(environment, lambda _: text, task, truncated=True)
    assert end == RAN and texts[-1] == CUT
