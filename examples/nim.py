"""An environment with a session, a pile of stones: the agent and a rival take one to three in turn.
coterie evaluate examples/nim.py:Nim policy=smollm2"""

from contextlib import asynccontextmanager, nullcontext

from coterie import Ending, Message, Part, Speaker, Task
from coterie.environments import Grade, Observation, OneAgent, Pure, Transition


class Pile:  # a session: it changes during an episode
    def __init__(self, left):
        self.left = left

    def fork(self):  # a copy for another branch; None where a copy is impossible
        return nullcontext(Pile(self.left))


class Nim(OneAgent, Pure):
    name, metric, pure, max_sessions, limits = "nim", "won", False, 16, {"turns": 12}

    def tasks(self, split, count, seed, previous_counts=()):
        # Even numbers are trained on, odd ones held out.
        numbers = [2 * (sum(previous_counts) + n) + (split == "heldout") for n in range(count)]
        return [Task(f"nim-{n}", {"stones": 9 + n}) for n in numbers]

    @asynccontextmanager
    async def open(self, task, seed, shared):
        yield Pile(task.public["stones"])

    def observe(self, state, actor):
        rules = f"{state.task.public['stones']} stones. Take 1, 2 or 3; the last one wins."
        roles = ["assistant" if turn.speaker.name == actor else "user" for turn in state.turns]
        said = [Message(role, turn=t.id) for role, t in zip(roles, state.turns, strict=True)]
        return [Message.of("user", rules), *said]

    async def act(self, state, taken, pile, *, replayed=()):
        number = taken[-1].text.strip()
        pile.left -= min(pile.left, int(number) if number in ("1", "2", "3") else 1)
        rival = pile.left % 4 or min(1, pile.left)
        pile.left -= rival
        seen = Observation(Speaker("environment", "rival"), (Part(f"I take {rival}."),))
        end = None if pile.left else Ending("lost" if rival else "won")
        return Transition(seen=(seen,), answer=None if rival else "won", end=end)

    async def grade(self, state, pile):
        return Grade(float(state.answer == "won"))
