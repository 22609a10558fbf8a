"""Plug-in environments for tests: an agent guesses a number, or writes a text with a letter in it."""

from collections.abc import Sequence
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.protocol import Grade, Observation, Pure, State, Transition
from coterie.environments.settings import EnvironmentSettings
from coterie.record.tree import Ending, Task
from coterie.record.turn import Message, Part, Speaker, Turn


class GuessSettings(EnvironmentSettings):
    most: int = key(9, "The largest number.", ge=2, le=99)
    turns: int = key(3, "Most guesses.", ge=1)


class Guess(Pure):
    name, metric, actors = "guess", "found", {"player": "agent"}
    settings_type = GuessSettings

    def __init__(self, settings: GuessSettings) -> None:
        self.most, self.limits = settings.most, {"turns": settings.turns}

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        first = sum(previous_counts) * 2 + (split == "heldout")
        numbers = range(first, first + 2 * count, 2)
        return [Task(f"{split}-{n}", {"place": n, "number": n % self.most}) for n in numbers]

    def request(self, task: Task) -> str:
        return f"Guess a number up to {self.most}."

    def is_right(self, task: Task, text: str) -> bool:
        return text == str(task.public["number"])

    def next_actors(self, state: State) -> tuple[str, ...]:
        return ("player",)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        turns = (
            Message("assistant" if turn.speaker.kind == "agent" else "user", turn=turn.id)
            for turn in state.turns
        )
        return (Message.of("system", self.request(state.task)), *turns)

    async def act(self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any) -> Transition:
        text = taken[-1].text.strip()
        if self.is_right(state.task, text):
            return Transition(answer=text, end=Ending("found"))
        return Transition(seen=(Observation(Speaker("environment", "guess"), (Part("no"),)),))

    async def grade(self, state: State, session: Any) -> Grade:
        return Grade(float(state.answer is not None))


class LetterSettings(GuessSettings):
    letter: str = key("a", "A letter of right texts.")


class Letter(Guess):
    name, settings_type = "letter", LetterSettings

    def __init__(self, settings: LetterSettings) -> None:
        super().__init__(settings)
        self.letter = settings.letter

    def request(self, task: Task) -> str:
        return f"Say word {task.public['place']} with {self.letter}."

    def is_right(self, task: Task, text: str) -> bool:
        return self.letter in text
