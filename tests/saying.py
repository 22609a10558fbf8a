"""A plug-in environment for tests: an agent is to say something with a letter in it, and may try again."""

from collections.abc import Sequence
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Grade, Observation, State, Transition
from coterie.environments.pure import Pure
from coterie.environments.settings import EnvironmentSettings
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Message, Part, Speaker, Turn


class SayingSettings(EnvironmentSettings):
    letter: str = key("a", "What is to be in it.")
    turns: int = key(3, "Most tries.", ge=1)
    word: str = key("", "What tasks have besides their place.")
    first: int = key(0, "Place of the first task.", ge=0)
    swapped: bool = key(False, "Whether what is held out is trained on, and the other way round.")


class Saying(Pure):
    name, metric, actors = "saying", "said", {"speaker": "agent"}
    settings_type = SayingSettings

    def __init__(self, settings: SayingSettings) -> None:
        self.settings, self.limits = settings, {"turns": settings.turns}

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        odd = (split == "heldout") != self.settings.swapped
        first = (self.settings.first + sum(drawn)) * 2 + odd
        places, word = range(first, first + 2 * count, 2), self.settings.word
        return [Task(f"{n:04d}", {"place": n, "word": word}) for n in places]

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
