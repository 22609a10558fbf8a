"""An environment whose questions are hard without a tool.
coterie evaluate examples/calls.py:Products 'tools=[examples/tool.py:multiply]' tools.calls=tags policy=smollm2"""

import re

from coterie import Ending, Message, Task
from coterie.environments import Grade, Pure, Transition


class Products(Pure):
    name, metric = "products", "right"
    actors, limits = {"clerk": "agent"}, {"turns": 1}

    def tasks(self, split, count, seed, previous_counts=()):
        # Even numbers are trained on, odd ones held out.
        numbers = [2 * (sum(previous_counts) + n) + (split == "heldout") for n in range(count)]
        return [Task(f"{n}", {"question": f"{n} * 17 = ?", "product": n * 17}) for n in numbers]

    def next_actors(self, state):
        return ("clerk",)

    def observe(self, state, actor):
        return (Message.of("user", f"{state.task.public['question']} End with the number."),)

    async def act(self, state, taken, session, *, replayed=()):
        return Transition(answer=taken[-1].text, end=Ending("answered"))

    async def grade(self, state, session):
        numbers = re.findall(r"[0-9]+", state.answer or "")
        return Grade(float(numbers[-1:] == [str(state.task.public["product"])]))
