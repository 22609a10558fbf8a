"""An environment that makes its own tasks: an agent guesses a number, and is told when it is wrong.
coterie run optima/isft environment=examples/environment.py:Guess environment.most=20"""

from coterie import Ending, Message, Secret, Task, key
from coterie.environments import EnvironmentSettings, Grade, Pure, Transition


class GuessSettings(EnvironmentSettings):
    most: int = key(9, "The largest number.", ge=1)


class Guess(Pure):
    settings_type, name, metric = GuessSettings, "guess", "found"
    actors, limits = {"player": "agent"}, {"turns": 4}

    def __init__(self, settings):
        self.most = settings.most

    def tasks(self, split, count, seed, previous_counts=()):
        # Even places are trained on, odd ones held out.
        places = [2 * (sum(previous_counts) + n) + (split == "heldout") for n in range(count)]
        return [Task(f"place-{n}", {"place": n}, {"number": self.number(n)}) for n in places]

    def number(self, place):  # a secret is never part of an agent's prompt
        text = str(place % (self.most + 1))
        return Secret(text, name="number", readers=frozenset({"grader"}))

    def next_actors(self, state):
        return ("player",)

    def observe(self, state, actor):
        no = [(Message("assistant", turn=t.id), Message.of("user", "No.")) for t in state.turns]
        return (Message.of("system", f"Guess a number from 0 to {self.most}."), *sum(no, ()))

    async def act(self, state, taken, session, *, replayed=()):
        right = taken[-1].text.strip() == state.task.secrets["number"].reveal("grader")
        return Transition(answer="found", end=Ending("found")) if right else Transition()

    async def grade(self, state, session):
        return Grade(float(state.answer is not None))
