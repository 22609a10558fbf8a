"""Small environments and scripted samplers, for tests of the driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.environments.protocol import (
    ActorKind,
    Grade,
    Observation,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.record.tree import Ending, Task
from coterie.record.turn import Message, Part, Speaker, Tool, Turn, make_turn
from coterie.rollout.samplers import AgentContext, Prompt, Response
from coterie.tools.calls import CallLimits, Tag, Tags, run_calls

GAME = Speaker("environment", "game")
TOOLS = Speaker("tool", "tools")


@dataclass
class Script:
    """A sampler that says what a function of the prompt gives; it remembers what it was shown."""

    say: Callable[[Prompt], str]
    shown: list[tuple[str, ...]] | None = field(default_factory=list)
    truncated: bool = False

    async def respond(self, prompt: Prompt, context: AgentContext) -> Response:
        if self.shown is not None:
            turns = prompt.tree.turns
            self.shown.append(
                tuple(turns[m.turn].text if m.turn else m.parts[0].text for m in prompt.messages)
            )
        await asyncio.sleep(0)
        text = self.say(prompt)
        for end in prompt.stop:
            if end in text:
                text = text[: text.index(end)] + end
        turn = make_turn(
            prompt.parent, Speaker("agent", prompt.agent), [Part(text, source="script")],
            author="script", draw=prompt.draw, truncated=self.truncated,
        )  # fmt: skip
        return Response(turn, None, len(text))


class Base:
    """What most games of the tests have in common."""

    name = "game"
    version = "1"
    actors: Mapping[str, ActorKind] = {"agent": "agent"}
    limits: Mapping[str, int] = {"turns": 8}
    needs: tuple[type, ...] = ()
    pure = True
    max_sessions = 4
    syntax: Syntax | None = None
    metric = "reached"

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        return [Task(f"{split}-{number}", {"target": 6}) for number in range(count)]

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        raise AssertionError("a pure environment opens nothing")

    async def begin(self, task: Task, session: Any) -> Transition:
        return Transition()

    def next_actors(self, state: State) -> tuple[str, ...]:
        return tuple(self.actors)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system = Message.of("system", f"You are {actor}.")
        return (system, *(Message("user", turn=turn.id) for turn in state.turns))

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return ()

    async def grade(self, state: State, session: Any) -> Grade:
        return Grade(float(state.answer == "done"))


class Rounds(Base):
    """Two players act at the same time; the game ends after so many rounds."""

    actors: Mapping[str, ActorKind] = {"Ann": "agent", "Ben": "person"}

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds
        self.limits = {"turns": 2 * rounds + 4}

    async def act(self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any) -> Transition:
        number = (state.data if isinstance(state.data, int) else 0) + 1
        said = Observation(GAME, (Part(f"round {number} is over"),))
        end = Ending("over") if number == self.rounds else None
        return Transition(number, (said,), "done", end, {turn.speaker.name: 0.5 for turn in taken})


@dataclass
class Counter:
    """A session: a number that acts raise. ``open`` counts those that are live."""

    game: "Counting"
    number: int = 0

    def fork(self) -> AbstractAsyncContextManager["Counter"] | None:
        return self.game.session(self.number) if self.game.forks else None


class Counting(Base):
    """An agent raises a number that lives in a session, until the target is met."""

    pure = False
    limits: Mapping[str, int] = {"turns": 6, "turns:agent": 6}

    def __init__(self, *, forks: bool = True) -> None:
        self.forks = forks
        self.live = self.most = self.acts = 0
        self.hang: set[str] = set()

    @asynccontextmanager
    async def session(self, number: int = 0) -> AsyncIterator[Counter]:
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            yield Counter(self, number)
        finally:
            self.live -= 1

    def open(self, task: Task, seed: int, shared: Shared) -> AbstractAsyncContextManager[Any]:
        return self.session()

    async def begin(self, task: Task, session: Counter) -> Transition:
        return Transition(seen=(Observation(GAME, (Part(f"reach {task.public['target']}"),)),))

    async def act(
        self, state: State, taken: tuple[Turn, ...], session: Any, **_: Any
    ) -> Transition:
        self.acts += 1
        text = taken[0].text
        if text in self.hang:
            await asyncio.sleep(60)
        session.number += int(text)
        said = Observation(GAME, (Part(f"now {session.number}"),))
        over = session.number >= int(str(state.task.public["target"]))
        answer, end = ("done", Ending("reached")) if over else (None, None)
        return Transition(session.number, (said,), answer, end, {"agent": float(text)})


class Asking(Base):
    """An agent with tools that are written as tags."""

    syntax: Syntax | None = Tags({"look": Tag("what", "|"), "push": Tag("what")})
    limits: Mapping[str, int] = {"turns": 4, "calls": 12}

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        return (Tool("look", "Looks.", schema), Tool("push", "Pushes.", schema, alone=True))

    async def act(self, state: State, taken: tuple[Turn, ...], *_: Any, **__: Any) -> Transition:
        (turn,) = taken
        if not turn.calls:
            return Transition(answer=turn.text, end=Ending("answered"))

        async def look(given: Mapping[str, Any]) -> str:
            await asyncio.sleep(0.001 * (9 - int(given["what"])))
            return f"{given['what']} is there"

        tools, functions = self.tools(state, "agent"), {"look": look, "push": look}
        results = await run_calls(turn.calls, tools, functions, CallLimits(seconds=5))
        return Transition(seen=(Observation(TOOLS, results=results),))
