"""An environment with a simulated user: a customer has a wish that the seller must ask for.
coterie run rl/grpo environment=examples/errand.py:Errand user_simulator=smollm2"""

from coterie import Ending, Message, Secret, Task
from coterie.environments import Grade, PersonSettings, Pure, Transition


class Customer:  # the script that plays the person if no model does
    name = "script:errand"

    async def reply(self, task, transcript, seed):
        color = task.secrets["wish"].reveal("customer").split()[0]
        return f"{color}, please." if "color" in transcript[-1][1] else "What do you mean?"


class Errand(Pure):
    settings_type, name, metric, script = PersonSettings, "errand", "sold", Customer()
    actors, limits = {"seller": "agent", "customer": "person"}, {"turns:seller": 4}
    user_prompt = "You want a {item}: {wish} Tell only what the seller asks for.\n\n{transcript}"

    def __init__(self, settings):
        self.on_leak = settings.on_leak

    def tasks(self, split, count, seed, previous_counts=()):
        # Even numbers are trained on, odd ones held out.
        start = sum(previous_counts)
        return [self.task(2 * (start + n) + (split == "heldout")) for n in range(count)]

    def task(self, n):
        wish = f"{('red', 'blue', 'black')[n % 3]} only, to go with my shoes."
        secret = Secret(wish, name="wish", readers=frozenset({"customer", "grader"}))
        return Task(f"coat-{n}", {"item": f"coat of size {n}"}, {"wish": secret})

    def next_actors(self, state):
        return ("customer",) if len(state.turns) % 2 else ("seller",)

    def observe(self, state, actor):
        rules = f"A customer wants a {state.task.public['item']}. Ask, then write SOLD: COLOR."
        roles = ["assistant" if turn.speaker.name == actor else "user" for turn in state.turns]
        said = [Message(role, turn=t.id) for role, t in zip(roles, state.turns, strict=True)]
        return said if actor == "customer" else [Message.of("user", rules), *said]

    async def act(self, state, taken, session, *, replayed=()):
        sold = "SOLD:" in taken[-1].text and taken[-1].speaker.name == "seller"
        return Transition(answer=taken[-1].text, end=Ending("sold")) if sold else Transition()

    async def grade(self, state, session):
        color = state.task.secrets["wish"].reveal("grader").split()[0]
        return Grade(float(f"SOLD: {color}" in (state.answer or "")))
