"""The ``persona`` environment: functions with hidden choices, and a scripted user who knows them."""

import json
from collections.abc import Sequence

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.coding import Coding, coding_task
from coterie.environments.persona.choices import CHOICES
from coterie.environments.persona.prompts import SYSTEM_PROMPT
from coterie.environments.persona.tasks import MAX_TURNS, PersonaTask, generate_tasks
from coterie.environments.persona.user_simulator import scripted_reply
from coterie.environments.settings import CodingSettings
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.turn import Part

HIDDEN = "choices"
"""Name of the secret with the choices, a JSON list of (kind, number)."""
_CHOICES = {(choice.kind, choice.number): choice for some in CHOICES.values() for choice in some}


class ScriptedUserSimulator:
    """A scripted user, who tells a choice if the agent asks for it alone."""

    name = "script:persona"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        hidden = json.loads(task.secrets[HIDDEN].reveal(PERSON))
        return scripted_reply(
            [_CHOICES[kind, number] for kind, number in hidden], transcript[-1][1]
        )


class PersonaSettings(CodingSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Maximum turns of the agent.", ge=1)


class Persona(Coding):
    """Micro-world of the recipe ``sweet_rl``."""

    name = "persona"
    settings_type = PersonaSettings
    fenced = False
    script: UserSimulator | None = ScriptedUserSimulator()

    def __init__(self, settings: PersonaSettings | None = None) -> None:
        super().__init__(settings or PersonaSettings())

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return tasks of a split. The splits are disjoint (see ``tasks``)."""
        start = sum(after) if split == "train" else 0
        return [as_task(task) for task in generate_tasks(split, start + count, seed)[start:]]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the short prompt that the packaged model knows."""
        return (Part(SYSTEM_PROMPT, source="task"),)


def as_task(task: PersonaTask) -> Task:

    hidden = json.dumps([(choice.kind, choice.number) for choice in task.choices])
    secret = Secret(hidden, name=HIDDEN, readers=frozenset({PERSON}))
    return coding_task(task.task_id, task.opening, task.reference, task.calls, {HIDDEN: secret})
