"""Message formats of acting agents: DensePolicy's, ReAct's, and thoughts with an answer."""

import asyncio

import pytest

from coterie.environments.acting import (
    BOTH,
    CUT,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    FIRST_ANSWER,
    NEITHER,
    NOT_ENDED,
    Move,
    read,
)
from coterie.environments.baselines import REACT, THOUGHTS, by_method, read_react, read_thoughts
from coterie.environments.games.babyai import BabyAI
from coterie.environments.plans.python_maths import PythonMaths, Sums
from coterie.environments.protocol import State
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import Part, Speaker, make_turn

NOTHING = "nothing"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Thought: so\nAction:\n  x = 1\n  y = 2\nEnd Action\nmore", Move("action", "  x = 1\n  y = 2")),
        ("Action: turn left\nEnd Action", Move("action", "turn left")),
        ("Thought: all is said\nAnswer:\n 42 ", Move("answer", "42")),
        ("Action:\nprint('Answer: 1')\nEnd Action", Move("action", "print('Answer: 1')")),
        ("Action:\nx\nEnd Action\nAnswer: 1", Move(NOTHING, note=BOTH)),
        ("Answer: 1\nAction:\nx\nEnd Action", Move(NOTHING, note=BOTH)),
        ("An Action: is not at the beginning of a line", Move(NOTHING, note=NEITHER)),
        ("Action:\nprint(1)", Move(NOTHING, note=NOT_ENDED)),
        ("Action:\n\nEnd Action", Move(NOTHING, note=EMPTY_ACTION)),
        ("Answer:  ", Move(NOTHING, note=EMPTY_ANSWER)),
        ("Action:\na\nEnd Action\nAction:\nb\nEnd Action", Move("action", "a", FIRST_ACTION)),
        ("Answer: 1\nAnswer: 2", Move("answer", "1", FIRST_ANSWER)),
    ],
)  # fmt: skip
def test_a_message_is_an_action_or_an_answer_or_does_nothing(text: str, expected: Move) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text, kind, content",
    [
        ("Action: Act[a = [1]\nb = a[0]]", "action", "a = [1]\nb = a[0]"),
        ("Thought: so\nAction: Finish[42]", "answer", "42"),
        ("Action: Act[one]\nAction: Finish[2]", "action", "one"),
        ("Action: Act[]", NOTHING, ""),
        ("Action: Act[open", NOTHING, ""),
        ("Answer: 42", NOTHING, ""),
    ],
)
def test_react_has_its_arguments_in_brackets(text: str, kind: str, content: str) -> None:
    move = read_react(text)
    assert (move.kind, move.content) == (kind, content)
    assert move.note or kind != NOTHING


def test_a_truncated_message_does_nothing() -> None:
    speaker, parts = Speaker("agent", "agent"), [Part("Answer: 42")]
    turn = make_turn("", speaker, parts, truncated=True)
    transition = asyncio.run(Sums().act(State(Task("t", {}), 0, turns=(turn,)), (turn,), None))
    assert [part.text for part in transition.seen[0].parts] == [CUT]
    assert transition.answer is None and transition.end is None


def test_baselines_play_the_same_tasks_in_another_form() -> None:
    assert read_thoughts("Thought: 6 * 7\nAnswer: 42") == Move("answer", "42")
    assert "can't act" in read_thoughts("Action:\nprint(1)\nEnd Action").note
    sums = Sums()
    react, thoughts = by_method(sums, "react"), by_method(sums, "cot")
    assert isinstance(react, PythonMaths) and react.form is REACT and sums.form is not REACT
    assert isinstance(thoughts, PythonMaths) and thoughts.form is THOUGHTS
    assert react.tasks("heldout", 3, 0) == sums.tasks("heldout", 3, 0)
    for environment, method in ((sums, "mad"), (BabyAI(), "cot")):
        with pytest.raises(UserError, match=f"method={method} does not support {environment.name}"):
            by_method(environment, method)
    assert "Act[" in by_method(BabyAI(), "react").system_prompt(BabyAI().tasks("heldout", 1, 0)[0])
