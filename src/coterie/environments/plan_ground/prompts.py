"""What planner and grounder are told, and how plans and actions are written."""

import re
from collections.abc import Sequence

from coterie.environments.plan_ground.form import Form

DONE = "Done."
"""What the planner says, step by step, when the task is done."""
SUBGOAL = re.compile(r"Subgoal\s+(\d+)\s*:", re.IGNORECASE)
SAYS_DONE = re.compile(r"\W*done\b", re.IGNORECASE)
_ACTIONS = (
    "Write actions only, on one line, separated by `; `, such as `R1 = Tool(argument); R2 = Tool(R1, argument)`. "
    "Number the results R1, R2 and so on, and use earlier results by their names."
)


def planner_prompt(form: Form) -> str:
    if form == "onetime":
        return (
            "You are a planner. Break the task into subgoals, in the order in which they are to be done. Another agent "
            "turns them into actions, so say in each what it takes and what it gives. Write all of them on one line, "
            "such as `Subgoal 1: ...; Subgoal 2: ...`, and nothing else."
        )
    return (
        "You are a planner. Say one subgoal at a time, such as `Subgoal 1: ...`. Another agent turns it into actions, "
        f"and you are told what they gave. When the task is done, write `{DONE}`"
    )


def grounder_prompt(form: Form, tools: str, task: str) -> str:
    """The grounder's system prompt, which ends with the task."""
    what = "each subgoal of a plan" if form == "onetime" else "the subgoal that you are given"
    return (
        f"You turn {what} into actions for the task below. {_ACTIONS}\n\nTools:\n{tools}\n\n{task}"
    )


def task_text(question: str, description: str) -> str:
    around = f"\nAt the beginning: {description}" if description else ""
    return f"Task: {question}{around}"


def plan_text(subgoals: Sequence[str], first: int = 1) -> str:
    return "; ".join(f"Subgoal {n}: {one}" for n, one in enumerate(subgoals, first))


def actions_text(actions: Sequence[str]) -> str:
    return "; ".join(actions)


def result_text(subgoal: int, result: str) -> str:
    """What the planner is told of a subgoal that was carried out."""
    return f"Subgoal {subgoal} gave: {result}" if result else f"Subgoal {subgoal} is done."


def subgoals_in(plan: str) -> list[str]:
    """The subgoals of a plan, without their numbers; empty if it has none."""
    parts = SUBGOAL.split(plan)[2::2]
    return [found for part in parts if (found := part.strip().rstrip(";").strip())]


def is_done(text: str) -> bool:
    """Whether the planner stops: it begins by saying so, and no subgoal comes with it."""
    return SAYS_DONE.match(text) is not None and not subgoals_in(text)
