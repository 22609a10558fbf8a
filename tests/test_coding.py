"""Backend programming: what is said, who sees what, when it ends, and what an answer is worth."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from coterie.engines.protocol import EngineError
from coterie.environments.code_text import MARKER, code_of
from coterie.environments.coding import (
    AGENT,
    TESTS,
    Coding,
    SingleTurn,
    coding_task,
    hidden_calls,
)
from coterie.environments.colbench.environment import compared
from coterie.environments.dialogue import Grade, begin, graded, messages, step
from coterie.environments.person import PERSON, REFERENCE, Said, cut_reply, overlap, role
from coterie.environments.persona.environment import HIDDEN, Persona
from coterie.environments.registry import DataSettings, coding_environment
from coterie.environments.services import Services
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.sandbox.settings import SandboxSettings
from coterie.trajectories.task import Task
from coterie.trajectories.turn import Part, PrivilegeError, Speaker, make_turn

REFERENCE_CODE = "def double(x):\n    return 2 * x"
CALLS = [f"double({n})" for n in range(10)]


class Parrot:
    """A person who says how often it was asked."""

    name = "script:parrot"

    def __init__(self) -> None:
        self.heard: list[Sequence[Said]] = []

    async def reply(self, task: Task, said: Sequence[Said], seed: int) -> str:
        self.heard.append(said)
        return f"Reply {len(self.heard)}."


def a_task(reference: str = REFERENCE_CODE, calls: Sequence[str] = CALLS) -> Task:
    return coding_task(
        "t", "I need double. The signature of the function is: def double(x)", reference, calls
    )


def play(
    world: Coding, task: Task, utterances: Sequence[str], *, grade: bool = True
) -> tuple[object, Grade | None]:
    """The state after these utterances of the agent, and its grade."""

    async def run() -> tuple[object, Grade | None]:
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            services = Services(Parrot(), sandbox)
            state = begin(world, task, "root")
            for text in utterances:
                assert state.end is None
                parent = state.turns[-1].id
                turn = make_turn(parent, Speaker("agent", AGENT), [Part(text)])
                state = await step(world, state, turn, cut=False, services=services)
            found = await graded(world, state, services) if state.end and grade else None
            return state, found

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "seen", "answer"),
    [
        ("Which number?", "Which number?", None),
        ("hm OUTPUT: Which number?", "Which number?", None),
        ("hm OUTPUT: Which? OUTPUT: other", "Which?", None),
        (f"{MARKER} code", f"{MARKER} code", "code"),
        (f"I know. {MARKER} code {MARKER} more", f"I know. {MARKER} code {MARKER} more", "code"),
        (f"hm OUTPUT: {MARKER} code", f"{MARKER} code", "code"),
        (f"{MARKER} thoughts OUTPUT: code", f"{MARKER} code", "code"),
        (f"{MARKER} f()  # OUTPUT: 3", f"{MARKER} f()  # OUTPUT: 3", "f()  # OUTPUT: 3"),
    ],
)
def test_marker_and_thoughts(text: str, seen: str, answer: str | None) -> None:
    world = Persona()
    assert world.visible(text) == seen
    assert world.answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("Here:\n```python\ndef f(): pass\n```\nbye", "def f(): pass"),
        ("```\ndef f(): pass\n```", "def f(): pass"),
        ("``` x ```python\ny\n```", "y"),
        ("```python\nunclosed", "unclosed"),
        ("```py\nx\n```", "x"),
        ("```text\nlike so:\n``` and\n``` Python3 \nx\n```", "x"),
        ("```f(x)```", "f(x)"),
        ("", ""),
    ],
)
def test_code_of_an_answer(answer: str, code: str) -> None:
    assert code_of(answer) == code


def test_thoughts_stay_out_of_the_history_and_of_the_persons_sight() -> None:
    world, task = Persona(), a_task()
    state, _ = play(world, task, ["my thoughts OUTPUT: Which number?"])
    shown = messages(world, state, AGENT)  # type: ignore[arg-type]
    assert [message.role for message in shown] == ["system", "user", "assistant", "user"]
    assert shown[2].parts[0].text == "Which number?"
    assert world.transcript(state.turns)[1] == (AGENT, "Which number?")  # type: ignore[attr-defined]


def test_a_dialogue_ends_with_an_answer_or_with_the_last_turn() -> None:
    world: Coding = Persona()
    task = a_task()
    state, grade = play(world, task, ["Which?", f"{MARKER}\n{REFERENCE_CODE}"])
    assert state.end == "answered" and grade.score == 1.0  # type: ignore[attr-defined, union-attr]
    assert grade.metrics["turns"] == 2 and grade.metrics["fraction"] == 1.0  # type: ignore[union-attr]
    world = coding_environment("persona", DataSettings(turns=3))
    state, grade = play(world, task, ["Which?", "And?", REFERENCE_CODE])
    assert state.end == "turn_limit" and grade.score == 1.0  # type: ignore[attr-defined, union-attr]
    state, grade = play(SingleTurn(Persona()), task, [REFERENCE_CODE])
    assert state.end == "turn_limit" and grade.score == 1.0  # type: ignore[attr-defined, union-attr]


def test_the_fraction_of_tests_and_why_each_failed_are_kept() -> None:
    half = f"{MARKER}\ndef double(x):\n    return 2 * x if x < 5 else [][x]"
    _, grade = play(Persona(), a_task(), [half])
    assert grade is not None and (grade.score, grade.metrics["fraction"]) == (0.0, 0.5)
    results = json.loads(str(grade.metrics["results"]))
    assert [one["passed"] for one in results] == [True] * 5 + [False] * 5
    assert results[1]["gave"] == "2" and "IndexError" in results[9]["why"]
    _, grade = play(Persona(), a_task(), [MARKER])
    assert grade is not None and grade.score == 0.0 and grade.metrics["why"] == "no code"


HELPERS = {
    "helper": "def two():\n    return 2\n\ndef double(x):\n    return two() * x",
    "import": "import math\n\ndef double(x):\n    return math.prod([2, x])",
    "recursion": "def double(x):\n    return 2 + double(x - 1) if x else 0",
    "constant": "TWO = 2\n\ndef double(x):\n    return TWO * x",
}


@pytest.mark.parametrize("name", HELPERS)
def test_what_passes_as_a_module_fails_as_in_the_legacy_grader(name: str) -> None:
    said = [f"{MARKER}\n{HELPERS[name]}"]
    _, modern = play(Persona("module"), a_task(), said)
    _, legacy = play(Persona("legacy"), a_task(), said)
    assert modern is not None and legacy is not None
    assert modern.score == 1.0
    # recursion alone passes a call that does not recurse
    assert legacy.metrics["fraction"] == (0.1 if name == "recursion" else 0.0)


def test_legacy_refuses_words_wherever_they_stand() -> None:
    said = [f"{MARKER}\n{REFERENCE_CODE}\n# no sudo needed"]
    assert play(Persona("module"), a_task(), said)[1].score == 1.0  # type: ignore[union-attr]
    assert play(Persona("legacy"), a_task(), said)[1].score == 0.0  # type: ignore[union-attr]


def test_a_reference_that_fails_its_tests_is_a_recorded_failure() -> None:
    with pytest.raises(EngineError, match="its reference fails on `double\\(0\\)`"):
        play(Persona(), a_task("def double(x):\n    return 1 / x"), [f"{MARKER} x"])


def test_tests_that_hold_their_verdict_are_taken_apart() -> None:
    assert compared("f(2) == 4") == "f(2)"
    assert compared("4 == f(2)[0]") == "f(2)[0]"
    assert compared("sorted(f(2)) == list([1, 2])") == "sorted(f(2))"
    for whole in (
        "f([1, 2], key=lambda x: x > 2)", "abs(f(2) - 4) < 0.1", "f(1) == f(2)", "f(1) == 1 == f(2)",
        "f(1) == 2 and f(2) == 4", "f(",
    ):  # fmt: skip
        assert compared(whole) == whole


def test_replies_are_cut_at_a_sentence() -> None:
    assert cut_reply("One. Two. Three.", 10) == "One. Two."
    assert cut_reply("Costs 3.50 in all. More.", 20) == "Costs 3.50 in all."
    assert cut_reply("word " * 20, 20) == "word word word…"
    assert cut_reply("  short ", 20) == "short"
    assert cut_reply("Times 3. Multiply by 3.14 and then", 23) == "Times 3."
    assert cut_reply("A sentence. And a pie", 400, unfinished=True) == "A sentence."
    assert cut_reply("No sentence at a", 400, unfinished=True) == "No sentence at…"
    assert cut_reply("", 400, unfinished=True) == ""


def test_what_a_reply_quotes_of_the_reference_is_counted() -> None:
    assert overlap("It is: return 2 * x, I think", REFERENCE_CODE) == len("return 2 * x") + 1
    reference = "def total(prices):\n    return sum(price for price in prices if price > 2)"

    class Quoting(Parrot):
        async def reply(self, task: Task, said: Sequence[Said], seed: int) -> str:
            return "return sum(price for price in prices if price > 2)"

    async def run() -> Grade:
        world, task = Persona(), a_task(reference, ["total([1, 2, 3])", "total([])"])
        async with Sandbox(SandboxSettings(workers=1)) as sandbox:
            services = Services(Quoting(), sandbox)
            state = begin(world, task, "root")
            for text in ("How?", f"{MARKER} {reference}"):
                turn = make_turn(state.turns[-1].id, Speaker("agent", AGENT), [Part(text)])
                state = await step(world, state, turn, cut=False, services=services)
            return await graded(world, state, services)

    assert asyncio.run(run()).metrics["leaks"] == 1


def test_secrets_are_for_those_who_may_read_them() -> None:
    task = a_task()
    assert hidden_calls(task) == CALLS
    for name, reader in ((REFERENCE, AGENT), (TESTS, PERSON), (TESTS, "critic")):
        with pytest.raises(PrivilegeError):
            task.secrets[name].reveal(reader)
    assert REFERENCE_CODE in role(task, [(PERSON, "Hello"), (AGENT, "Which?")], 400)
    persona = Persona().tasks("train", 1, 0)[0]
    for name in (REFERENCE, TESTS, HIDDEN):
        with pytest.raises(PrivilegeError):
            persona.secrets[name].reveal(AGENT)
