"""A plug-in environment for tests: an agent is to say something with a letter in it, and may try again."""

from collections.abc import Sequence
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Grade, Observation, Pure, State, Transition
from coterie.environments.settings import EnvironmentSettings
from coterie.record.tree import Ending, Task
from coterie.record.turn import Message, Part, Speaker, Turn


class SayingSettings(EnvironmentSettings):
    letter: str = key("a", "What is to be in it.")
    turns: int = key(3, "Most tries.", ge=1)


class Saying(Pure):
    name, metric, actors = "saying", "said", {"speaker": "agent"}
    settings_type = SayingSettings

    def __init__(self, settings: SayingSettings) -> None:
        self.settings, self.limits = settings, {"turns": settings.turns}

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        first = sum(after) * 2 + (split == "heldout")
        return [Task(f"{n:04d}", {"place": n}) for n in range(first, first + 2 * count, 2)]

    def acting(self, state: State) -> tuple[str, ...]:
        return ("speaker",)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        asked = f"Say word {state.task.public['place']} with {self.settings.letter}."
        turns = (
            Message("assistant" if turn.speaker.kind == "agent" else "user", turn=turn.id)
            for turn in state.turns
        )
        return (Message.of("system", asked), *turns)

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        said = taken[-1].text
        if self.settings.letter in said:
            return Transition(answer=said, end=Ending("said"))
        return Transition(seen=(Observation(Speaker("environment", "saying"), (Part("no"),)),))

    async def grade(self, state: State, live: Any) -> Grade:
        return Grade(float(state.answer is not None))
