"""Critic of actions: a chat model accepts them, or writes corrected subgoals and actions in two lines."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from coterie.engines.endpoint import Utterance

Verdict = Literal["accepted", "corrected", "unreadable"]
Chat = Callable[[list[Utterance]], Awaitable[str]]
"""Chat model: messages -> reply. Raises ``EngineError``."""
ACCEPTED = "ACCEPT"
_LINE = r"^[^\w\n]*corrected {}[^\w\n:]*:[^\w\n]*\n{{0,3}}(?!\W*corrected )(.+)$"
_SUBGOALS = re.compile(_LINE.format("subgoals"), re.IGNORECASE | re.MULTILINE)
_ACTIONS = re.compile(_LINE.format("actions"), re.IGNORECASE | re.MULTILINE)
_REFUSED = re.compile(rf"(\bnot|n't|\bcannot|\bnever)\s+{ACCEPTED}\b", re.IGNORECASE)
_BEGIN, _END = "<think>", "</think>"
"""Thought marks. Some templates end with the first one, so replies begin inside the thought."""
_RULES = (
    "You check the actions that an agent wrote for the subgoals of a task.\n"
    f"- If carrying out the actions answers the task, reply with one word: {ACCEPTED}\n"
    "- Otherwise reply with two lines and nothing else:\n"
    "Corrected subgoals: Subgoal 1: ...; Subgoal 2: ...\n"
    "Corrected actions: R1 = Tool(...); R2 = Tool(...)\n"
    "- The actions may use these tools only."
)


@dataclass(frozen=True, slots=True)
class Correction:
    """Verdict of a critic, with its corrections."""

    verdict: Verdict
    subgoals: str = ""
    actions: str = ""


def question(task: str, subgoals: str, actions: str, tools: str) -> list[Utterance]:
    blocks = {"Tools": tools, "Task": task, "Subgoals": subgoals, "Actions": actions or "(none)"}
    text = "\n\n".join(f"## {title}\n{block}" for title, block in blocks.items())
    return [Utterance("system", _RULES), Utterance("user", text)]


def read_correction(reply: str) -> Correction:
    """Read a reply without its thoughts: both lines of a correction, or acceptance.

    A reply with both, with neither, or with half a correction is unreadable.
    """
    text = reply.rpartition(_END)[2].partition(_BEGIN)[0]
    subgoals, actions = _SUBGOALS.findall(text), _ACTIONS.findall(text)
    accepted = re.search(rf"\b{ACCEPTED}(ED)?\b", text) is not None
    if _REFUSED.search(text):
        accepted = False
    if accepted and not subgoals and not actions:
        return Correction("accepted")
    if accepted or not (subgoals and actions):
        return Correction("unreadable")
    return Correction("corrected", subgoals[-1].strip(), actions[-1].strip())
