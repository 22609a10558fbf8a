"""The ``persona`` micro-world as an environment: functions with hidden choices, a scripted person who knows them."""

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
"""The secret that holds the choices, a JSON list of (kind, number)."""
_KNOWN = {(choice.kind, choice.number): choice for some in CHOICES.values() for choice in some}


class ScriptedUserSimulator:
    """Tells one choice to who asks for it alone."""

    name = "script:persona"

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        hidden = json.loads(task.secrets[HIDDEN].reveal(PERSON))
        return scripted_reply([_KNOWN[kind, number] for kind, number in hidden], transcript[-1][1])


class PersonaSettings(CodingSettings):
    """Settings of the micro-world."""

    turns: int = key(MAX_TURNS, "Most turns of the agent.", ge=1)


class Persona(Coding):
    """The micro-world of ``sweet_rl``."""

    name = "persona"
    settings_type = PersonaSettings
    fenced = False
    script: UserSimulator | None = ScriptedUserSimulator()

    def __init__(self, settings: PersonaSettings | None = None) -> None:
        super().__init__(settings or PersonaSettings())

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; train and held-out are disjoint by construction (see ``tasks``)."""
        start = sum(drawn) if split == "train" else 0
        return [as_task(task) for task in generate_tasks(split, start + count, seed)[start:]]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """The few words that the packaged model knows."""
        return (Part(SYSTEM_PROMPT, source="task"),)


def as_task(task: PersonaTask) -> Task:
    """The record's form of a task."""
    hidden = json.dumps([(choice.kind, choice.number) for choice in task.choices])
    secret = Secret(hidden, name=HIDDEN, readers=frozenset({PERSON}))
    return coding_task(task.task_id, task.opening, task.reference, task.calls, {HIDDEN: secret})
