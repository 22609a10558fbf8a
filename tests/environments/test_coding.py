"""Backend programming: marks in messages, who sees what, when it ends, and how answers are graded."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coterie.datasets.code_rows import CodeRow
from coterie.engines.protocol import EngineError
from coterie.environments.baselines import by_method
from coterie.environments.code_blocks import code_of
from coterie.environments.coding import TESTS, Coding, coding_task, compared, hidden_calls
from coterie.environments.collaboration import (
    MARKER,
    REFERENCE,
    answer_in,
    transcript,
    visible,
)
from coterie.environments.persona import HIDDEN, Persona, PersonaSettings
from coterie.environments.protocol import AGENT, WELL_FORMED, Shared, State
from coterie.environments.user_simulator import PERSON, TranscriptLine, cut_reply, fill_prompt
from coterie.record.tree import TURNS, Ending, Task
from coterie.record.turn import PrivilegeError
from coterie.rollout.episodes import Driver, Episode
from coterie.rollout.samplers import UserSampler
from coterie.tools.sandbox.pool import Sandbox
from tests.helpers.converse import Says, converse
from tests.helpers.packaged_environments import packaged_coding

REFERENCE_CODE = "def double(x):\n    return 2 * x"
CALLS = [f"double({n})" for n in range(10)]


class Parrot:
    """A user who counts its replies."""

    name = "script:parrot"

    def __init__(self, reply: str = "") -> None:
        self.text = reply
        self.transcripts: list[Sequence[TranscriptLine]] = []
        self.seeds: list[int] = []

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        self.transcripts.append(transcript)
        self.seeds.append(seed)
        return self.text or f"Reply {len(self.transcripts)}."


def a_task(reference: str = REFERENCE_CODE, calls: Sequence[str] = CALLS) -> Task:
    return coding_task(
        "t", "I need double. The signature of the function is: def double(x)", reference, calls
    )


Play = Callable[..., tuple[State, Any]]


@pytest.fixture
def play(runner: asyncio.Runner, sandbox: Sandbox) -> Play:
    def run(
        environment: Coding, task: Task, texts: Sequence[str], user: Parrot | None = None
    ) -> tuple[State, Any]:
        return runner.run(converse(environment, task, texts, Shared(sandbox), user or Parrot()))

    return run


def test_thoughts_stay_out_of_the_history_and_of_the_persons_sight(play: Play) -> None:
    environment, task, user = Persona(), a_task(), Parrot()
    state, _ = play(environment, task, ["my thoughts OUTPUT: Which number?"], user)
    shown = environment.observe(state, AGENT)
    assert [message.role for message in shown] == ["system", "user", "assistant", "user"]
    assert [part.text for part in shown[2].parts] == ["Which number?"]
    assert transcript(state.turns)[1] == (AGENT, "Which number?")
    assert user.transcripts == [[(PERSON, environment.request(task)), (AGENT, "Which number?")]]


def test_a_dialogue_ends_with_an_answer_or_with_the_last_turn(play: Play) -> None:
    environment: Coding = Persona()
    task = a_task()
    state, grade = play(environment, task, ["Which?", f"{MARKER}\n{REFERENCE_CODE}"])
    assert state.end == Ending("answered") and grade.score == 1.0
    assert grade.metrics["turns"] == 2 and grade.metrics["fraction"] == 1.0
    assert grade.metrics["leaks"] == 0, "the answer itself is none"
    assert grade.metrics[WELL_FORMED] == 1.0
    environment = Persona(PersonaSettings(turns=3))
    state, grade = play(environment, task, ["Which?", "And?", REFERENCE_CODE])
    assert state.end == TURNS and grade.score == 1.0
    assert grade.metrics[WELL_FORMED] == 0.0, "the marker is missing"
    state, grade = play(by_method(Persona(), "cot"), task, [REFERENCE_CODE])
    assert state.end == TURNS and grade.score == 1.0


def test_the_fraction_of_tests_and_why_each_failed_are_kept(play: Play) -> None:
    half = f"{MARKER}\ndef double(x):\n    return 2 * x if x < 5 else [][x]"
    _, grade = play(Persona(), a_task(), [half])
    assert (grade.score, grade.metrics["fraction"]) == (0.0, 0.5)
    results = json.loads(str(grade.metrics["results"]))
    assert [one["passed"] for one in results] == [True] * 5 + [False] * 5
    assert results[1]["gave"] == "2" and "IndexError" in results[9]["why"]
    _, grade = play(Persona(), a_task(), [MARKER])
    assert grade.score == 0.0 and grade.metrics["why"] == "no code"


@pytest.mark.parametrize(
    ("code", "fraction"),
    [
        ("def two():\n    return 2\n\ndef double(x):\n    return two() * x", 0.0),
        ("import math\n\ndef double(x):\n    return math.prod([2, x])", 0.0),
        # recursion alone passes a call that does not recurse
        ("def double(x):\n    return 2 + double(x - 1) if x else 0", 0.1),
        (f"{REFERENCE_CODE}\n# no sudo needed", 0.0),
    ],
)
def test_the_legacy_grader_fails_helpers_and_refuses_words(
    play: Play, code: str, fraction: float
) -> None:
    answer = [f"{MARKER}\n{code}"]
    assert play(Persona(), a_task(), answer)[1].score == 1.0
    legacy = Persona(PersonaSettings(grading="legacy"))
    assert play(legacy, a_task(), answer)[1].metrics["fraction"] == fraction


def test_what_a_person_draws_is_of_the_sample_and_of_the_place_of_its_turn(
    runner: asyncio.Runner, sandbox: Sandbox
) -> None:
    async def seeds(sample: int, *utterances: str) -> list[int]:
        user = Parrot()
        agent = Says([*utterances, f"{MARKER}\n{REFERENCE_CODE}"])
        samplers = {AGENT: agent, PERSON: UserSampler(user)}
        driver = Driver(Persona(), samplers, seed=0, shared=Shared(sandbox))
        async with driver.play_all([Episode(a_task(), sample, 0, "s")]) as playing:
            assert [one.failure async for one in playing] == [None]
        return user.seeds

    first = runner.run(seeds(0, "Which?", "Why?"))
    assert first == runner.run(seeds(0, "Which?", "Why?"))
    assert len({*first, *runner.run(seeds(1, "How?"))}) == 3


def test_a_reference_that_fails_its_tests_is_a_recorded_failure(play: Play) -> None:
    with pytest.raises(EngineError, match="its reference fails on `double\\(0\\)`"):
        play(Persona(), a_task("def double(x):\n    return 1 / x"), [f"{MARKER} x"])


def test_tests_that_hold_their_verdict_are_taken_apart() -> None:
    assert compared("f(2) == 4") == "f(2)"
    assert compared("4 == f(2)[0]") == "f(2)[0]"
    assert compared("sorted(f(2)) == list([1, 2])") == "sorted(f(2))"
    assert compared("f(1) == f(2)") == "(f(1), f(2))" == compared("f(1) == 1 == f(2)")
    assert compared("f(1) == 2 and 4 == f(2)") == "(f(1), f(2))"
    for whole in (
        "f([1, 2], key=lambda x: x > 2)", "abs(f(2) - 4) < 0.1", "f(1) == 2 or f(2) == 4", "f(1) == 2 and f(2)", "f(",
        "1 == 1", "not f(1) == 2",
    ):  # fmt: skip
        assert compared(whole) == whole


def test_replies_are_cut_at_a_sentence() -> None:
    assert cut_reply("One. Two. Three.", 10) == "One. Two."
    assert cut_reply("Costs 3.50 in all. More.", 20) == "Costs 3.50 in all."
    assert cut_reply("word " * 20, 20) == "word word word…"
    assert cut_reply("Times 3. Multiply by 3.14 and then", 23) == "Times 3."
    assert cut_reply("A sentence. And a pie", 400, unfinished=True) == "A sentence."
    assert cut_reply("No sentence at a", 400, unfinished=True) == "No sentence at…"


def test_quotes_of_the_reference_are_counted(play: Play) -> None:
    lines = [
        "def total(prices):",
        "    found = [p for p in prices if p > 2]",
        "    return sum(found)",
    ]
    reference = "\n".join(lines)
    task = a_task(reference, ["total([1, 2, 3])", "total([])"])
    quotes = [
        lines[1], "\r\n\t".join(lines), "> ".join(["", *(f"{one}\n" for one in lines)]), " ".join(reference.split()),
        "`found=[p for p in prices if p>2]`", r"    found = \[p for p in prices if p \> 2\]\n    return",
        reference.upper(), reference.replace(" ", "\u00a0"), "It adds up prices\u200b over " + "\u200b".join(lines[1]),
    ]  # fmt: skip
    plain = ["It adds up what is more than two.", "prices: the prices; found: those found"]
    for reply in (*quotes, *plain):
        leaks = int(reply in quotes)
        for rule, score in (("keep", 1), ("fail", 0), ("drop", None)):
            environment = Persona(PersonaSettings(on_leak=rule))
            _, grade = play(environment, task, ["How?", f"{MARKER} {reference}"], Parrot(reply))
            assert grade.metrics["leaks"] == leaks, reply
            assert grade.score == (score if leaks else 1), reply


def test_secrets_are_for_those_who_may_read_them() -> None:
    task = a_task()
    assert hidden_calls(task) == CALLS
    for name, reader in ((REFERENCE, AGENT), (TESTS, PERSON), (TESTS, "critic")):
        with pytest.raises(PrivilegeError):
            task.secrets[name].reveal(reader)
    more = {"transcript": "You: Hello", "max_characters": "400"}
    prompt = fill_prompt(Coding.user_prompt, task, PERSON, more)
    assert REFERENCE_CODE in prompt and prompt.endswith("\nYou: Hello")
    persona = Persona().tasks("train", 1, 0)[0]
    for name in (REFERENCE, TESTS, HIDDEN):
        with pytest.raises(PrivilegeError):
            persona.secrets[name].reveal(AGENT)


def test_values_are_compared_by_type_too_if_so_set(play: Play) -> None:
    answer = [f"{MARKER}\ndef double(x):\n    return 2.0 * x"]
    for strict, score in ((False, 1.0), (True, 0.0)):
        environment = Persona(PersonaSettings(strict=strict))
        assert play(environment, a_task(), answer)[1].score == score


ALWAYS = (
    "class A(int):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
    "def double(x):\n    return A(-1)"
)


def test_a_comparison_in_a_test_does_not_ask_the_answer(play: Play) -> None:
    calls = ["double(1) == 2", "double(1) == 2 and double(2) == 4", "double(1) == double(1) == 2"]
    row = CodeRow(id="r", question="q", answer=REFERENCE_CODE, tests=tuple(calls))
    environment = packaged_coding("colbench_code")
    for answer, fraction in ((ALWAYS, 0.0), (REFERENCE_CODE, 1.0)):
        _, grade = play(environment, environment.task_of(row), [f"{MARKER}\n{answer}"])
        assert grade.metrics["fraction"] == fraction


DOCUMENTED = (
    'def f(x):\n    """Gives x.\n\n    ```python\n    OUTPUT: 1\n    ```\n'
    f"    {MARKER} isn't meant here.\n"
    f'    """\n    y = "OUTPUT: {MARKER} ```"  # OUTPUT: {MARKER} ```\n    return x'
)
"""Code with all marks in literals, where they do not count."""
QUOTED = "def f():\n    '''OUTPUT: x'''\n    return 'OUTPUT: y'"
FENCED = f"```python\nx = '{MARKER}'\n```\nIs it so?"


@pytest.mark.parametrize(
    ("text", "seen", "answer"),
    [
        ("hm OUTPUT: Which number?", "Which number?", None),
        ("hm OUTPUT: Which? OUTPUT: other", "Which?", None),
        (f"hm OUTPUT: {MARKER} code", f"{MARKER} code", "code"),
        (f"{MARKER} thoughts OUTPUT: code", f"{MARKER} code", "code"),
        (f"{MARKER} f()  # OUTPUT: 3", f"{MARKER} f()  # OUTPUT: 3", "f()  # OUTPUT: 3"),
        (f"{MARKER}\n{DOCUMENTED}", f"{MARKER}\n{DOCUMENTED}", DOCUMENTED),
        (f"hm OUTPUT: {MARKER}\n{DOCUMENTED}\n{MARKER}", f"{MARKER}\n{DOCUMENTED}\n{MARKER}", DOCUMENTED),
        ("It's what you don't want. OUTPUT: Don't I?", "Don't I?", None),
        (f'I say "{MARKER}" now: x', f'I say "{MARKER}" now: x', '" now: x'),
        (FENCED, FENCED, None),
        (QUOTED, QUOTED, None),
    ],
)  # fmt: skip
def test_marker_and_thoughts(text: str, seen: str, answer: str | None) -> None:
    assert visible(text) == seen
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("Here:\n```python\ndef f(): pass\n```\nbye", "def f(): pass"),
        ("``` x ```python\ny\n```", "y"),
        ("```python\nunclosed", "unclosed"),
        ("```text\nlike so:\n``` and\n``` Python3 \nx\n```", "x"),
        ("```f(x)```", "f(x)"),
        ("It's:\n```python\nx = '```'  # ```\ny = 1\n```\nIt's done", "x = '```'  # ```\ny = 1"),
        (f"```python\n{DOCUMENTED}\n```\nThat's all.", DOCUMENTED),
        (f"It's what you're after:\n```\n{DOCUMENTED}\n```", DOCUMENTED),
        (DOCUMENTED, DOCUMENTED),
    ],
)
def test_code_of_an_answer(answer: str, code: str) -> None:
    assert code_of(answer) == code
