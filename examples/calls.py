"""An environment whose agents may call the tools that a run brings.
coterie evaluate examples/calls.py:Products 'environment.tools=[examples/tool.py:multiply]' policy=smollm2"""

from coterie.environments.protocol import Grade, Transition
from coterie.environments.tooled import Tooled
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Ending
from coterie.trajectories.turn import Message


class Products(Tooled):
    name, metric = "products", "right"
    actors, limits = {"clerk": "agent"}, {"turns": 4, "calls": 4}

    def tasks(self, split, count, seed, drawn=()):  # even numbers are trained on, odd ones held out
        numbers = [2 * (sum(drawn) + n) + (split == "heldout") for n in range(count)]
        return [Task(f"{n}", {"question": f"{n} * 17 = ?", "product": n * 17}) for n in numbers]

    def acting(self, state):
        return ("clerk",)

    def see(self, state, actor):
        ask = Message.of("system", f"{state.task.public['question']}\n{self.taught()}")
        turns = [(t.id, "user" if t.speaker.kind == "tool" else "assistant") for t in state.turns]
        return (ask, *(Message(role, turn=id_) for id_, role in turns))

    async def act(self, state, taken, live, *, recorded=()):
        seen = await self.called(taken[-1])
        answer = self.tags.answered(taken[-1].text)
        return Transition(seen=seen, answer=answer, end=None if seen else Ending("answered"))

    async def grade(self, state, live):
        return Grade(float(state.answer == str(state.task.public["product"])))
