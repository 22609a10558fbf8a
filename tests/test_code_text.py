"""Marks in an agent's message: where thoughts end, where the answer begins and ends, and which part of it is code."""

import pytest

from coterie.environments.coding import MARKER, answer_in, code_of, visible

DOCUMENTED = (
    'def f(x):\n    """Gives x.\n\n    ```python\n    OUTPUT: 1\n    ```\n'
    f"    {MARKER} isn't meant here.\n"
    f'    """\n    y = "OUTPUT: {MARKER} ```"  # OUTPUT: {MARKER} ```\n    return x'
)
"""Code with all marks, where they are none."""
QUOTED = "def f():\n    '''OUTPUT: x'''\n    return 'OUTPUT: y'"
FENCED = f"```python\nx = '{MARKER}'\n```\nIs it so?"


@pytest.mark.parametrize(
    ("text", "seen", "answer"),
    [
        ("Which number?", "Which number?", None),
        ("hm OUTPUT: Which number?", "Which number?", None),
        ("hm OUTPUT: Which? OUTPUT: other", "Which?", None),
        (f"{MARKER} code", f"{MARKER} code", "code"),
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
        ("def f(): pass", "def f(): pass"),
        ("Here:\n```python\ndef f(): pass\n```\nbye", "def f(): pass"),
        ("``` x ```python\ny\n```", "y"),
        ("```python\nunclosed", "unclosed"),
        ("```text\nlike so:\n``` and\n``` Python3 \nx\n```", "x"),
        ("```f(x)```", "f(x)"),
        ("", ""),
        (
            "Here's it:\n```python\nx = '```'  # ```\ny = 1\n```\nIt's done",
            "x = '```'  # ```\ny = 1",
        ),
        (f"```python\n{DOCUMENTED}\n```\nThat's all.", DOCUMENTED),
        (f"It's what you're after:\n```\n{DOCUMENTED}\n```", DOCUMENTED),
        (DOCUMENTED, DOCUMENTED),
    ],
)
def test_code_of_an_answer(answer: str, code: str) -> None:
    assert code_of(answer) == code


def test_a_message_of_nothing_but_quotes_is_read_at_once() -> None:
    for piece in ("'", '"', '"""', "\\'", "#", "```", MARKER, "'''\\"):
        visible(piece * 3000)
        code_of(piece * 3000)
