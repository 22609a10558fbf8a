"""System prompts of GAP's code agents. The syntax of calls appends the description of the tool."""

from collections.abc import Mapping
from typing import Literal

Work = Literal["program", "mathematics"]
SHORT: Mapping[Work, str] = {
    "program": "Plan, run programs, and answer with the program that solves the problem.",
    "mathematics": "Plan, run programs, and answer the problem.",
}
"""Prompts of agents that are trained on the format."""
_BEGINNING: Mapping[Work, str] = {
    "program": "You solve a problem of a programming contest with a Python program. Try your program out before you "
    "answer.",
    "mathematics": "You solve a problem of mathematics. Let Python programs compute and check for you.",
}
_FENCE = "```"
_TAGS = f"""\
Write your work in these tags, and nothing outside of them:
- <plan>...</plan>: once, at the beginning, your tasks. Two lines for each: its id and what is to be done, then the \
tasks that it has to wait for.
T1: first step
- Dependencies: none
T2: next step
- Dependencies: T1
- <think>...</think>: your thoughts, before each program and before your answer.
- <code>...</code>: a whole Python program between fences. What it is to read from its standard input goes into a \
second block. It can use the standard library and numpy, and nothing else, and prints what you want to see.
<code>
{_FENCE}py
print(int(input()) + 1)
{_FENCE}
{_FENCE}sh
41
{_FENCE}
</code>
- <observation>...</observation>: what the program printed. You are shown it after each program; never write one \
yourself.
- <reflection>...</reflection>: after each observation, what it says of your work, and what you will change.
"""
_ANSWERS: Mapping[Work, str] = {
    "program": f"""\
- <answer>...</answer>: at the end, one whole Python program between fences, and nothing else:
<answer>
{_FENCE}py
your program
{_FENCE}
</answer>
It is run on hidden tests. Unless the problem names a function to be written, it reads standard input and prints the \
result.""",
    "mathematics": r"- <answer>\boxed{...}</answer>: at the end, your answer in LaTeX.",
}
STARTER = f"Begin your program with this:\n{_FENCE}py\n{{starter}}\n{_FENCE}"
"""Instruction for a solution with a given beginning."""


def instructions(work: Work) -> str:
    """Return the system prompt, without the tool."""
    return f"{_BEGINNING[work]}\n{_TAGS}{_ANSWERS[work]}"
