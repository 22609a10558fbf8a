"""The texts in the messages of Lumos' files: a task, numbered subgoals, actions, the words between two turns.

Formats: https://github.com/allenai/lumos. Instructions around a task are not read, so they may be of any wording.
"""

import re
from typing import NamedTuple

from coterie.datasets.plan_rows import one_line

STOP = "Yes, I will stop planning."
GO_ON = "No, I will keep planning."
PLAN_GIVEN = "Subgoals to be grounded:"
STEP_GIVEN = "Subgoal to be grounded:"
NO_DESCRIPTION = "None"

_TASK = re.compile(r"^Task:", re.MULTILINE)
_DESCRIPTION = re.compile(r";?\s*Initial Environment Description:")
_GROUNDED = re.compile(r"\s*Subgoals? to be grounded:")
_SUBGOAL = re.compile(r"(?:^|(?<=[;.?!\s]))\s*Subgoal\s+(\d+):\s*")
_ACTION = re.compile(r";\s*(?=(?:R\d+(?:\s*,\s*R\d+)*|Output)\s*=)")
_OUTPUT = re.compile(r"\bOutput\b(?=\s*=)")
_NAMES = re.compile(r"(R\d+(?:\s*,\s*R\d+)*)\s*=")
_RESULT = re.compile(
    r"The executed result for Subgoal\s+(\d+) is (.*)\. Should we stop planning\?\s*$", re.S
)


class Asked(NamedTuple):
    """What a first message asks."""

    task: str
    description: str
    """Empty if none is given."""
    subgoals: str
    """Of a message that asks for actions: what follows ``Subgoal(s) to be grounded:``; otherwise empty."""


def asked(text: str) -> Asked:
    """The parts of a first message, whatever instruction stands before them. Raises ``ValueError`` without a task."""
    found = _TASK.search(text) or re.search("Task:", text)
    if found is None:
        raise ValueError("has no 'Task:'")
    rest = text[found.end() :]
    description = subgoals = ""
    if given := _GROUNDED.search(rest):
        rest, subgoals = rest[: given.start()], rest[given.end() :]
    elif described := _DESCRIPTION.search(rest):
        rest, description = rest[: described.start()], rest[described.end() :]
        description = description.strip().removesuffix(".")
        description = "" if description.casefold() == NO_DESCRIPTION.casefold() else description
    if not rest.strip():
        raise ValueError("has an empty task")
    return Asked(rest.strip(), description.strip(), subgoals.strip())


def subgoals(text: str, first: int = 1) -> list[str]:
    """Of ``Subgoal 1: ...; Subgoal 2: ...``, each without its number.

    A later ``Subgoal 1:`` is a part of the text that it stands in. Raises ``ValueError`` for a text that does not begin
    with subgoal ``first``, and for a number that is left out.
    """
    starts: list[re.Match[str]] = []
    for found in _SUBGOAL.finditer(text):
        number = int(found[1])
        if number == first + len(starts):
            starts.append(found)
        elif number > first + len(starts) and text[: found.start()].rstrip().endswith(";"):
            raise ValueError(f"has Subgoal {number} where Subgoal {first + len(starts)} should be")
    if not starts or text[: starts[0].start()].strip():
        raise ValueError(f"does not begin with 'Subgoal {first}:'")
    ends = [found.start() for found in starts[1:]] + [len(text)]
    parts = [text[found.end() : end] for found, end in zip(starts, ends, strict=True)]
    texts = [one_line(part.rstrip().removesuffix(";")) for part in parts[:-1]] + [
        one_line(parts[-1])
    ]
    if not all(texts):
        raise ValueError("has a subgoal without text")
    return texts


def actions(text: str, last: int = 0) -> list[str]:
    """The actions of ``R1 = ...; R2 = ...``.

    ``Output`` becomes the next name, as upstream does it; ``last`` is the number of the newest name before the text.
    """
    done = []
    for part in _ACTION.split(text):
        action = one_line(part).removesuffix(";").rstrip()
        if not action:
            continue
        action = _OUTPUT.sub(f"R{last + 1}", action) if action.startswith("Output") else action
        last = newest(action) or last
        done.append(action)
    return done


def newest(action: str) -> int:
    """The number of the name that an action's result gets; 0 if it gets none."""
    names = _NAMES.match(action)
    return int(names[1].rsplit("R", 1)[1]) if names else 0


def result(text: str) -> str:
    """What a message says that a subgoal came to; empty if it says nothing of it, as on the web."""
    found = _RESULT.search(text)
    return found[2].strip() if found else ""
