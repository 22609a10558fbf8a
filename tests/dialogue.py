"""Two agents of a random model talk through the real in-process engine, and everything is recorded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Completion, Sampling
from coterie.record.tree import TURNS, Outcome, Tree
from coterie.record.turn import Message, Part, Request, Sample, Speaker, Turn, make_turn

AGENTS = ("Alice", "Bob")


@dataclass
class AgentContext:
    """What one agent has seen so far."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...] = ()
    turn: str | None = None


@dataclass
class Played:
    """A dialogue and, for each call, exactly what the engine received and returned."""

    tree: Tree
    leaf: str
    calls: list[tuple[str, tuple[int, ...], Completion]] = field(default_factory=list)


def opening(agent: str) -> tuple[Message, ...]:
    """The first messages of an agent: a system prompt of which one part is for it alone."""
    own = Part(f"Only {agent} knows: the river is blue.", audience=frozenset({agent}))
    return (
        Message("system", (Part(f"You are {agent}. "), own)),
        Message.of("user", "Share facts."),
    )


def play(
    engine: InProcessEngine,
    sampling: Callable[[int], Sampling],
    turns: int = 6,
    seed: int = 0,
    say: Callable[[str], tuple[Part, ...]] = lambda text: (Part(text, source="sampled"),),
) -> Played:
    """Talk for some turns; ``sampling`` gives each turn's settings and ``say`` makes its parts."""
    return asyncio.run(_play(engine, sampling, turns, seed, say))


async def _play(
    engine: InProcessEngine,
    sampling: Callable[[int], Sampling],
    turns: int,
    seed: int,
    say: Callable[[str], tuple[Part, ...]],
) -> Played:
    tree = Tree("task", "rollout", 0)
    played = Played(tree, tree.root)
    contexts = {agent: AgentContext(opening(agent)) for agent in AGENTS}
    for number in range(turns):
        agent, other = AGENTS[number % 2], AGENTS[1 - number % 2]
        context = contexts[agent]
        prompt = engine.loaded.renderer.render(context.messages, tree, agent)
        settings = sampling(number)
        (said,) = await engine.sample(prompt, [seed + number], settings)
        played.calls.append((agent, prompt, said))
        before = (
            ()
            if context.turn is None
            else context.messages[: context.messages.index(_own(context)) + 1]
        )
        request = Request.make(
            agent, played.leaf, context.turn, prompt, context.messages, context.ids, before
        )
        turn = _turn(engine, played.leaf, agent, request.id, said, settings, say(said.text))
        tree.add(turn, request)
        played.leaf, context.turn, context.ids = turn.id, turn.id, prompt + said.ids
        context.messages += (Message("assistant", turn=turn.id),)
        contexts[other].messages += (Message("user", turn=turn.id),)
    tree.end(Outcome(played.leaf, 0, TURNS, None, 0.0))
    return played


def _own(context: AgentContext) -> Message:
    return Message("assistant", turn=context.turn)


def _turn(
    engine: InProcessEngine,
    parent: str,
    agent: str,
    request: str,
    said: Completion,
    settings: Sampling,
    parts: tuple[Part, ...],
) -> Turn:
    sample = Sample(
        request, said.ids, said.logprobs, said.finish, engine.policy, engine.version, said.seed,
        settings.temperature, settings.top_p,
    )  # fmt: skip
    return make_turn(parent, Speaker("agent", agent), parts, sample=sample)
