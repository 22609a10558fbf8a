"""How an agent that acts writes what it does: DensePolicy's form, ReAct's, and thoughts with an answer alone."""

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
    write_action,
    write_answer,
)
from coterie.environments.babyai import BabyAI
from coterie.environments.baselines import REACT, THOUGHTS, by_method, read_react, read_thoughts
from coterie.environments.python_maths import PythonMaths, Sums
from coterie.errors import UserError

NOTHING = "nothing"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Action:\nprint(1)\nEnd Action", Move("action", "print(1)")),
        (
            "Thought: so\nAction:\n  x = 1\n  y = 2\nEnd Action\nmore",
            Move("action", "  x = 1\n  y = 2"),
        ),
        ("Action: turn left\nEnd Action", Move("action", "turn left")),
        ("Answer: 42", Move("answer", "42")),
        ("Thought: all is said\nAnswer:\n 42 ", Move("answer", "42")),
        ("Action:\nprint('Answer: 1')\nEnd Action", Move("action", "print('Answer: 1')")),
        ("Action:\nx\nEnd Action\nAnswer: 1", Move(NOTHING, note=BOTH)),
        ("Answer: 1\nAction:\nx\nEnd Action", Move(NOTHING, note=BOTH)),
        ("I think that 42 is right", Move(NOTHING, note=NEITHER)),
        ("", Move(NOTHING, note=NEITHER)),
        ("Action:\nprint(1)", Move(NOTHING, note=NOT_ENDED)),
        ("Action:\n\nEnd Action", Move(NOTHING, note=EMPTY_ACTION)),
        ("Answer:  ", Move(NOTHING, note=EMPTY_ANSWER)),
        ("Action:\na\nEnd Action\nAction:\nb\nEnd Action", Move("action", "a", FIRST_ACTION)),
        ("Answer: 1\nAnswer: 2", Move("answer", "1", FIRST_ANSWER)),
        ("An Action: is not at the beginning of a line", Move(NOTHING, note=NEITHER)),
    ],
)
def test_a_message_is_an_action_or_an_answer_or_does_nothing(text: str, expected: Move) -> None:
    assert read(text) == expected


def test_what_was_cut_off_does_nothing() -> None:
    for form in (read, read_react, read_thoughts):
        assert form("Answer: 42", True) == Move(NOTHING, note=CUT)


def test_what_is_written_is_read() -> None:
    assert read(write_action("a = 1\nb = 2", "let me see")) == Move("action", "a = 1\nb = 2")
    assert read(write_answer("42", "done")) == Move("answer", "42")


@pytest.mark.parametrize(
    "text, kind, content",
    [
        ("Thought: so\nAction: Act[print(x[0])]", "action", "print(x[0])"),
        ("Action: Act[a = [1]\nb = a[0]]", "action", "a = [1]\nb = a[0]"),
        ("Action: Finish[42]", "answer", "42"),
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


def test_thoughts_alone_can_only_answer() -> None:
    assert read_thoughts("Thought: 6 * 7\nAnswer: 42") == Move("answer", "42")
    refused = read_thoughts("Action:\nprint(1)\nEnd Action")
    assert refused.kind == NOTHING and "can't act" in refused.note


def test_baselines_play_the_same_tasks_in_another_form() -> None:
    sums = Sums()
    react, thoughts = by_method(sums, "react"), by_method(sums, "cot")
    assert isinstance(react, PythonMaths) and react.form is REACT and sums.form is not REACT
    assert isinstance(thoughts, PythonMaths) and thoughts.form is THOUGHTS
    assert react.tasks("heldout", 3, 0) == sums.tasks("heldout", 3, 0)
    with pytest.raises(UserError, match="method=mad does not support sums"):
        by_method(sums, "mad")
    with pytest.raises(UserError, match="method=cot does not support babyai"):
        by_method(BabyAI(), "cot")
    assert "Act[" in by_method(BabyAI(), "react").system_prompt(BabyAI().tasks("heldout", 1, 0)[0])
