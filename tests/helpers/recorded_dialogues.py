"""Two agents of a random model talk through the real in-process engine, and everything is recorded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.record.tree import TURNS, Outcome, Tree
from coterie.record.turn import Message, Part, Request, Sample, Speaker, make_turn

AGENTS = ("Alice", "Bob")


@dataclass
class Played:
    """A dialogue and, for each call, exactly what the engine received and returned."""

    tree: Tree
    leaf: str
    calls: list[tuple[str, tuple[int, ...], Completion]] = field(default_factory=list)


def opening_messages(agent: str) -> tuple[Message, ...]:
    """The first messages of an agent: a system prompt of which one part is for it alone."""
    own = Part(f"Only {agent} knows: the river is blue.", audience=frozenset({agent}))
    system = Message("system", (Part(f"You are {agent}. "), own))
    return system, Message.of("user", "Share facts.")


def play_exchange(
    engine: InProcessEngine,
    sampling: Callable[[int], Sampling],
    turns: int = 6,
    seed: int = 0,
    say: Callable[[str], tuple[Part, ...]] = lambda text: (Part(text, source="sampled"),),
) -> Played:
    """Talk for some turns; ``sampling`` gives each turn's settings and ``say`` makes its parts."""
    tree = Tree("task", "rollout", 0)
    played = Played(tree, tree.root)
    messages = {agent: opening_messages(agent) for agent in AGENTS}
    ids: dict[str, tuple[int, ...]] = dict.fromkeys(AGENTS, ())
    last: dict[str, str | None] = dict.fromkeys(AGENTS)

    async def step(number: int) -> None:
        agent, other = AGENTS[number % 2], AGENTS[1 - number % 2]
        shown, own, settings = messages[agent], last[agent], sampling(number)
        prompt = engine.loaded.renderer.render(shown, tree, agent)
        (said,) = await engine.sample(prompt, [seed + number], settings)
        played.calls.append((agent, prompt, said))
        before = shown[: shown.index(Message("assistant", turn=own)) + 1] if own else ()
        request = Request.make(agent, played.leaf, own, prompt, shown, ids[agent], before)
        sample = Sample(
            request.id, said.ids, said.logprobs, said.finish, engine.policy, engine.version, said.seed,
            settings.temperature, settings.top_p,
        )  # fmt: skip
        turn = make_turn(played.leaf, Speaker("agent", agent), say(said.text), sample=sample)
        tree.add(turn, request)
        played.leaf, last[agent], ids[agent] = turn.id, turn.id, prompt + said.ids
        messages[agent] += (Message("assistant", turn=turn.id),)
        messages[other] += (Message("user", turn=turn.id),)

    async def talk() -> None:
        for number in range(turns):
            await step(number)

    asyncio.run(talk())
    tree.end(Outcome(played.leaf, 0, TURNS, None, 0.0))
    return played
