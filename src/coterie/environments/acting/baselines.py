"""Other forms for the same tasks, as baselines: ReAct, and a chain of thought without actions.

* ``react``: ReAct (Yao et al. 2023, "ReAct: Synergizing Reasoning and Acting in Language Models"): a thought, then an
  action with its argument in brackets.
* ``cot``: chain of thought: the agent thinks and answers; what it hears of an answer is as in the environment.
"""

import re

from coterie.environments.acting.syntax import (
    ANSWER,
    CUT,
    EMPTY_ACTION,
    EMPTY_ANSWER,
    FIRST_ACTION,
    Form,
    Move,
    read,
)

ACT, FINISH = "Act", "Finish"
NO_ACTION = (
    f"There is no action in your message. Write `Action: {ACT}[...]` or `Action: {FINISH}[...]`."
)
ANSWER_ONLY = f"You can't act here. Think, then write `{ANSWER}` with your answer."

_ACTIONS = re.compile(rf"^[ \t]*Action:[ \t]*({ACT}|{FINISH})\[", re.MULTILINE)


def read_react(text: str, cut: bool = False) -> Move:
    """What a message in ReAct's form does. An action reaches to the bracket before the next one, or the last one."""
    if cut:
        return Move("nothing", note=CUT)
    marks = list(_ACTIONS.finditer(text))
    if not marks:
        return Move("nothing", note=NO_ACTION)
    end = marks[1].start() if len(marks) > 1 else len(text)
    inside, bracket, _ = text[marks[0].end() : end].rpartition("]")
    if not bracket:
        return Move("nothing", note=NO_ACTION)
    note = FIRST_ACTION if len(marks) > 1 else ""
    if marks[0][1] == ACT:
        content = inside.strip("\n").rstrip()
        return Move("action", content, note) if content else Move("nothing", note=EMPTY_ACTION)
    answer = inside.strip()
    return Move("answer", answer, note) if answer else Move("nothing", note=EMPTY_ANSWER)


def read_thoughts(text: str, cut: bool = False) -> Move:
    """The answer of a message; it can do nothing else."""
    move = read(text, cut)
    return move if move.kind == "answer" or cut else Move("nothing", note=ANSWER_ONLY)


REACT = Form(
    "Write a thought, then one action:\nThought: <what you think>\n"
    f"Action: {ACT}[<what you do>]\nWhen you know the answer, write in place of that:\n"
    f"Action: {FINISH}[<your answer>]",
    f"Write a thought, then one action:\nThought: <what you think>\nAction: {ACT}[<action>]",
    read_react,
)
THOUGHTS = Form(
    f"Think step by step. Then write your answer:\n{ANSWER} <your answer>",
    "",
    read_thoughts,
    acts=False,
)
