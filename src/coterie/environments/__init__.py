"""Environments that agents act in. Each is a pure function of its state; tasks come from explicit seeds.

An environment of one agent and one turn::

    class Echo(OneAgent, Pure):
        name, metric = "echo", "repeated"
        actors, limits = {"agent": "agent"}, {"turns": 1}

        def tasks(self, split, count, seed, previous_counts=()):
            return [Task(f"{split}-{n}", {"word": f"word {n}"}) for n in range(count)]

        def observe(self, state, actor):
            return [{"role": "user", "content": f"Repeat: {state.task.public['word']}"}]

        async def act(self, state, turns, session, *, replayed=()):
            return Transition(answer=turns[-1].text, end=Ending("answered"))

        async def grade(self, state, session):
            return Grade(float(state.answer == state.task.public["word"]))
"""

from typing import TYPE_CHECKING

from coterie import lazy_exports

if TYPE_CHECKING:
    from coterie.environments.dialogue import Dialogue
    from coterie.environments.protocol import (
        ActorKind,
        Environment,
        Grade,
        Observation,
        OneAgent,
        Pure,
        Shared,
        State,
        Syntax,
        Transition,
        Votes,
    )
    from coterie.environments.settings import EnvironmentSettings, PersonSettings, draw

__all__ = [
    "ActorKind", "Dialogue", "Environment", "EnvironmentSettings", "Grade", "Observation", "OneAgent",
    "PersonSettings", "Pure", "Shared", "State", "Syntax", "Transition", "Votes", "draw",
]  # fmt: skip
__getattr__, __dir__ = lazy_exports(__name__)
