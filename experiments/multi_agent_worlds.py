"""Worlds of a few turns, in which it can be enumerated what multi-agent reinforcement learning should learn.

All are played by ``tiny-exchange`` with the prompts of its own tasks. Only the number of words of a message counts: the
base writes at most :data:`SHORT` words with a probability of about a quarter.

* :class:`Lengths`: two agents with *one* prompt write at the same time; both succeed if ``left`` writes a short message
  and ``right`` a long one. Agents that share weights write both with the same probability p, so they succeed with
  p (1 - p) <= 1/4. Agents with their own weights can reach 1.
* :class:`FirstTurn`: one agent writes four messages, and only the first one counts: it should be short. Credit to whole
  paths adds the noise of the later messages.
* :class:`Trap`: a short first message pays 1 at once, and nothing later. After a long one, a long second pays 2. The
  reward of the first turn alone is a trap.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie import Ending, Message, Task
from coterie.environments import Grade, Pure, Transition
from coterie.environments.exchange import AGENTS, Exchange

SHORT = 8
"""Maximum number of words of a short message."""


def is_short(text: str) -> bool:
    return len(text.split()) <= SHORT


class World(Pure):
    """Tasks and first prompts of ``exchange``; each turn sees only the task."""

    metric = "success"
    agents: tuple[str, ...] = ("player",)
    turns = 1

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.actors = dict.fromkeys(self.agents, "agent")
        self.limits = {"turns": len(self.agents) * self.turns}

    def tasks(
        self, split: Any, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return list(self.exchange.tasks(split, count, seed, previous_counts))

    def next_actors(self, state: Any) -> tuple[str, ...]:
        return self.agents

    def observe(self, state: Any, actor: str) -> tuple[Message, ...]:
        """Return the first prompt of exchange's first agent, whoever acts."""
        messages = self.exchange.observe(replace(state, turns=()), AGENTS[0])
        # In exchange only Alice may see her facts. Here all agents see the same prompt.
        return tuple(Message.of(m.role, "".join(part.text for part in m.parts)) for m in messages)

    async def act(self, state: Any, taken: Any, session: Any, *, replayed: Any = ()) -> Transition:
        done = len(state.turns) == len(self.agents) * self.turns
        return Transition(end=Ending("over") if done else None, rewards=self.rewards(state.turns))

    def rewards(self, turns: Any) -> dict[str, float]:
        return {}


class Lengths(World):
    """Two agents with one prompt must write messages of different lengths."""

    name, agents = "lengths", ("left", "right")

    async def grade(self, state: Any, session: Any) -> Grade:
        left, right = (is_short(turn.text) for turn in state.turns)
        return Grade(float(left and not right))


class FirstTurn(World):
    """Only the first of four messages counts."""

    name, turns = "first-turn", 4

    async def grade(self, state: Any, session: Any) -> Grade:
        return Grade(float(is_short(state.turns[0].text)))


class Trap(World):
    """A short first message pays 1, two long ones pay 2."""

    name, turns = "trap", 2
    score_range = (0.0, 2.0)

    def rewards(self, turns: Any) -> dict[str, float]:
        lengths = [is_short(turn.text) for turn in turns]
        if lengths == [True]:
            return {"player": 1.0}
        return {"player": 2.0} if lengths == [False, False] else {}

    async def grade(self, state: Any, session: Any) -> Grade:
        first, second = (is_short(turn.text) for turn in state.turns)
        return Grade(1.0 if first else 0.0 if second else 2.0)
