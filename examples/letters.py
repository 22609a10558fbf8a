"""A post office: one agent reads who lives where, the other must name a city (docs/howto/first-hour.md)."""

import random

from coterie import Ending, Task
from coterie.environments import Grade, Pure, Transition

NAMES = ("Nora", "Omar", "Ines", "Hugo", "Mira", "Theo")
CITIES = ("Dublin", "Lisbon", "Oslo", "Cairo", "Lima", "Rome")


class Letters(Pure):
    name, metric = "letters", "delivered"
    actors, limits = {"reader": "agent", "clerk": "agent"}, {"turns": 2}

    def tasks(self, split, count, seed, previous_counts=()):
        rng, tasks = random.Random(f"{seed} {split}"), []
        while len(tasks) < sum(previous_counts) + count:
            people, cities = rng.sample(NAMES, 3), rng.sample(CITIES, 3)
            facts = " ".join(f"{a} lives in {b}." for a, b in zip(people, cities, strict=True))
            who = rng.randrange(3)
            public = {"facts": facts, "question": f"Where does {people[who]} live?"}
            if (cities[0] < cities[1]) == (split == "train"):  # so no task is in both splits
                tasks.append(Task(f"{split}-{len(tasks)}", {**public, "city": cities[who]}))
        return tasks[sum(previous_counts) :]

    def next_actors(self, state):
        return ("clerk",) if state.turns else ("reader",)

    def observe(self, state, actor):
        facts, question = state.task.public["facts"], state.task.public["question"]
        system, user = (question, state.turns[0].text) if state.turns else (facts, question)
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]

    async def act(self, state, taken, session, *, replayed=()):
        end = Ending("said") if taken[-1].speaker.name == "clerk" else None
        return Transition(answer=taken[-1].text, end=end)

    async def grade(self, state, session):
        return Grade(float([c for c in CITIES if c in state.answer] == [state.task.public["city"]]))
