"""A post office: an agent reads who lives where, and names a city (docs/howto/first-hour.md)."""

import random

from coterie import Grade, Pure, Task, Transition
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Message

NAMES = ("Nora", "Omar", "Ines", "Hugo", "Mira", "Theo")
CITIES = ("Dublin", "Lisbon", "Oslo", "Cairo", "Lima", "Rome")


class Letters(Pure):
    name, metric = "letters", "delivered"
    actors, limits = {"clerk": "agent"}, {"turns": 1}

    def tasks(self, split, count, seed, after=()):
        rng, found = random.Random(f"{seed} {split}"), []
        while len(found) < sum(after) + count:
            people, cities = rng.sample(NAMES, 3), rng.sample(CITIES, 3)
            facts = " ".join(f"{a} lives in {b}." for a, b in zip(people, cities, strict=True))
            who = rng.randrange(3)
            asked = {"facts": facts, "question": f"Where does {people[who]} live?"}
            if (cities[0] < cities[1]) == (split == "train"):  # so no task is in both splits
                found.append(Task(f"{split}-{len(found)}", {**asked, "city": cities[who]}))
        return found[sum(after) :]

    def acting(self, state):
        return ("clerk",)

    def see(self, state, actor):
        asked = state.task.public
        return (Message.of("system", asked["facts"]), Message.of("user", asked["question"]))

    async def act(self, state, taken, live, *, recorded=()):
        return Transition(answer=taken[-1].text, end=Ending("said"))

    async def grade(self, state, live):
        named = [city for city in CITIES if city in state.answer]
        return Grade(float(named == [state.task.public["city"]]))
