"""Worlds of AgentGym, played on its HTTP servers (https://github.com/WooooDyy/AgentGym).

Servers differ in routes, bodies and replies: ``assets/agentgym.yaml`` has a :class:`World` for each. A session can't be
copied, so branches are replayed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import yaml
from pydantic import Field, TypeAdapter, model_validator

from coterie.config.settings import Settings, key, server_url
from coterie.datasets.catalogue import Split
from coterie.engines.endpoint import quote
from coterie.engines.protocol import EngineError, run_now
from coterie.environments.acting import SOLVED, Acting, ActingSettings, observation
from coterie.environments.bridges.server_client import (
    CLOSE_SECONDS,
    EnvironmentServerError,
    Finite,
    ServerClient,
    check_type,
    parse_json,
)
from coterie.environments.protocol import Grade, Replayed, Shared, State, Transition
from coterie.environments.settings import draw_rows
from coterie.errors import UserError, did_you_mean
from coterie.record.tree import Ending, Task
from coterie.record.turn import digest

Value = TypeVar("Value")
Indices = tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]]
"""First index, and the index after the last one."""


class World(Settings):
    """Tasks of a world, and bodies and replies of its server."""

    rules: str
    """Instructions for agents."""
    train: Indices
    heldout: Indices
    mixed: bool = False
    """Shuffle the indices before they are split, for servers that sort their tasks."""
    greeting: str = "ok"
    """Part of the reply to ``GET /``."""
    prefix: str = ""
    """Beginning of the routes, if a server has several worlds."""
    session: str = "id"
    """Key of the session's id in bodies. The reply to ``/create`` has the id under this key, or alone."""
    create: Mapping[str, Any] = {}
    index: str = "data_idx"
    reset: Mapping[str, Any] = {}
    """Body of ``/create``; key of the task's index in the body of ``/reset``, and the body's other keys."""
    first: tuple[str, ...] = ("observation",)
    """Keys of the first observation in the reply to ``/reset``. Without any, ``GET /observation`` returns it."""
    words: str = ""
    """Route of a list of words for the end of the first observation."""
    action: str = "{}"
    """Template of the action that is sent."""
    text: str = "observation"
    done: str = "done"
    """Keys of the reply to ``/step``: observation, and end of the episode."""
    score: Literal["last", "sum", "score", "end"] = "last"
    """Score of an episode: its last reward, the sum of its rewards, the last value of ``score``, or the reward of the
    step that ends it."""
    best: float = 1.0
    success: float | None = 1.0
    """Highest score, and minimum share of it for a success, or None if a high score does not show one. Only an episode
    that the server ends succeeds."""
    closes: bool = False
    """True if there is a route ``/close``. Sessions of other servers are used again."""
    sessions: int = 64
    """Maximum number of open sessions."""
    serial: bool = False
    """Create and reset sessions one at a time, for a server whose threads share random numbers."""


_FILE = files("coterie") / "assets" / "agentgym.yaml"
WORLDS: Mapping[str, World] = TypeAdapter(dict[str, World]).validate_python(
    yaml.safe_load(_FILE.read_text("utf-8"))
)
SECONDS = 300.0
"""Timeout of a request, as in AgentGym."""
TRIES = 8
"""Tries of a request while the server is busy."""
FAILED = Ending("failed")
"""The server ended the episode without success."""
DONE = Ending("done")
"""The server ended the episode, in a world without a known success."""
NO_ID = -1
"""Id of a session that a server does not know."""
NOTHING = "There is nothing to see."


class AgentGymSettings(ActingSettings):
    """Settings of AgentGym."""

    world: str = key("babyai", f"World: {', '.join(f'`{name}`' for name in WORLDS)}.")
    url: str = key("http://127.0.0.1:36001", "Address of the world's server.")
    train: Indices | None = key(
        None,
        "First index of the training tasks, and the index after the last one. Default: the world's.",
    )
    heldout: Indices | None = key(None, "The same of the held-out tasks.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        server_url(self.url)
        if (self.train is None) != (self.heldout is None):
            raise ValueError("train and heldout: give both, or none")
        if self.train and self.heldout and {*range(*self.train)} & {*range(*self.heldout)}:
            raise ValueError(f"train={self.train} and heldout={self.heldout} share tasks")
        return self

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"name", "url"}))


@dataclass(eq=False, slots=True)
class GymSession(Replayed):
    """A session on a server, the session of a branch."""

    server: ServerClient
    world: World
    id: int = NO_ID
    failed: bool = False
    """True after an error. The session is not used again."""

    async def create(self) -> None:
        reply = await self._ask("POST", "/create", dict(self.world.create))
        id_ = reply.get(self.world.session) if isinstance(reply, dict) else reply
        self.id = self._expect(int, id_, reply)

    async def reset(self, index: int) -> str:
        """Begin a task and return the first observation. Raises ``EnvironmentServerError``."""
        world = self.world
        reply = await self._post("/reset", {world.index: index, **world.reset})
        if not world.first:
            reply = {"": await self._get("/observation")}
        texts = [self._text(reply, name) for name in world.first or [""]]
        if texts == ["TimeoutError"]:
            raise EnvironmentServerError(f"{self.server.url} did not reset in time")
        if world.words:
            words = await self._get(world.words)
            texts.append(f"Words: {', '.join(self._expect(list[str], words, words))}")
        return "\n".join(texts)

    async def step(self, action: str) -> tuple[str, float, bool]:
        """Carry out an action and return its observation, its reward, and True if the episode ends.

        Raises ``EnvironmentServerError``.
        """
        world = self.world
        reply = await self._post("/step", {"action": world.action.format(action)})
        text = self._text(reply, world.text)
        value = reply.get("score" if world.score == "score" else "reward")
        return (
            text,
            self._expect(Finite, value, reply),
            self._expect(bool, reply.get(world.done), reply),
        )

    async def close(self) -> None:
        with suppress(EngineError):  # the server has ended, or lost the session
            await self._post("/close", {}, CLOSE_SECONDS)

    def _text(self, reply: Any, name: str) -> str:
        """Return an observation, with the possible actions if the server lists them apart."""
        text = self._expect(str, reply.get(name) if isinstance(reply, dict) else None, reply)
        actions = reply.get("available_actions")
        if not actions:
            return text or NOTHING
        return f"{text}\nPossible actions: {', '.join(self._expect(list[str], actions, reply))}"

    def _expect(self, expected_type: type[Value], value: object, reply: object) -> Value:
        return check_type(self.server.url, expected_type, value, reply)

    async def _post(self, route: str, body: Mapping[str, Any], seconds: float | None = None) -> Any:
        return await self._ask("POST", route, {self.world.session: self.id, **body}, seconds)

    async def _get(self, route: str) -> Any:
        return await self._ask("GET", route, {self.world.session: self.id})

    async def _ask(
        self, method: str, route: str, values: Mapping[str, Any], seconds: float | None = None
    ) -> Any:
        """Return the JSON of a reply. Raises ``EnvironmentServerError``, and ``EngineGone`` without a server.

        Only a request that a busy server rejected is sent again: another may have been carried out.
        """
        path = f"{self.world.prefix}{route}"
        content = {"json" if method == "POST" else "params": values}
        try:
            status, body = await self.server.request(
                method, path, seconds=seconds, tries=TRIES, **content
            )
            reply = parse_json(f"{self.server.url}{path}", Any, body) if status == 200 else None
            if reply is None or (isinstance(reply, dict) and "error" in reply):
                raise self.server.failure(path, status, body)
        except BaseException:  # also of a cancelled request, which may be carried out
            self.failed = True
            raise
        return reply


@asynccontextmanager
async def connect(url: str, world: World) -> AsyncIterator[GymSession]:
    """Open a client of a server, whose session is not created yet."""
    async with ServerClient(url.rstrip("/").removesuffix(world.prefix), SECONDS) as server:
        yield GymSession(server, world)


@cache
def check_server(url: str, name: str, index: int) -> None:
    """Begin a task. Raises ``UserError`` if the server does not answer as the world's server does."""
    world = WORLDS[name]

    async def begin() -> None:
        async with connect(url, world) as session:
            try:
                says = quote((await session.server.request("GET", "/"))[1])
            except EngineError as error:
                says = f"no answer ({error})"
            if world.greeting not in says:
                raise UserError(
                    f"no AgentGym server of {name} is at {url}: {says}",
                    "start it (docs/howto/agentgym.md), or correct environment.url or environment.world",
                )
            try:
                await session.create()
                await session.reset(index)
            except EngineError as error:
                raise UserError(
                    f"AgentGym can't begin task {index} of {name}: {error}",
                    "correct environment.train and heldout (indices), environment.url or environment.world",
                ) from error
            if world.closes:
                await session.close()

    run_now(begin())


class Progress(NamedTuple):
    """Number of actions, and the score so far."""

    actions: int
    score: float


class AgentGym(Acting):
    """One world of AgentGym."""

    name = "agentgym"
    metric = "score"
    settings_type = AgentGymSettings
    has_answers = False

    def __init__(self, settings: AgentGymSettings | None = None) -> None:
        self.settings = settings or AgentGymSettings()
        super().__init__(self.settings.steps)
        name = self.settings.world
        if name not in WORLDS:
            raise UserError(
                f"AgentGym has no world {name!r}",
                f"{did_you_mean(name, WORLDS)}known: {', '.join(WORLDS)}",
            )
        self.world = WORLDS[name]
        self.max_sessions = self.world.sessions
        self.version = digest(self.world.model_dump_json())
        self._sessions: dict[int, GymSession] = {}
        self._idle: list[int] = []
        """Sessions that can't be closed, to use again."""
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()

    def indices(self, split: Split) -> Sequence[int]:
        """Return the server's indices of the tasks of a split."""
        chosen, world = getattr(self.settings, split), self.world
        if chosen is not None:
            return range(*chosen)
        start, stop = world.train if split == "train" else world.heldout
        order = list(range(max(world.train[1], world.heldout[1]) if world.mixed else 0))
        random.Random("agentgym").shuffle(order)
        return order[start:stop] or range(start, stop)

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        every, name = self.indices(split), self.settings.world
        indices = draw_rows(every, split, count, seed, previous_counts)
        if not indices:
            raise UserError(
                f"AgentGym has no {split} tasks of {name}",
                "give indices, such as environment.train=[0,10] environment.heldout=[10,20]",
            )
        check_server(self.settings.url, name, max(every))
        return [Task(f"{name}-{index}", {"index": index}) for index in indices]

    def system_prompt(self, task: Task) -> str:
        return f"{self.world.rules}\n{self.form.action_instructions}"

    def _serial(self) -> AbstractAsyncContextManager[None]:
        loop = asyncio.get_running_loop()
        return self._locks.setdefault(loop, asyncio.Lock()) if self.world.serial else nullcontext()

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[GymSession]:
        async with connect(self.settings.url, self.world) as session:
            if self._idle:
                session.id = self._idle.pop()
            else:
                async with self._serial():
                    await session.create()
            if stale := self._sessions.get(session.id):  # the server has restarted, or is full
                stale.id, stale.failed = NO_ID, True
            self._sessions[session.id] = session
            try:
                yield session
            finally:
                self._sessions.pop(session.id, None)
                if self.world.closes:
                    await session.close()
                elif not session.failed:
                    self._idle.append(session.id)

    async def begin(self, task: Task, session: GymSession) -> Transition:
        async with self._serial():
            text = await session.reset(int(str(task.public["index"])))
        return Transition(Progress(0, 0.0), observation(text))

    async def do(self, state: State, action: str, session: GymSession) -> Transition:
        progress, world = cast(Progress, state.data), self.world
        action = action.strip().removeprefix("```").removesuffix("```").strip()
        text, reward, done = await session.step(action)
        score = reward if done or world.score != "end" else 0.0
        score += progress.score if world.score == "sum" else 0.0
        end, share = None, world.success
        if done:
            end = DONE if share is None else SOLVED if score >= share * world.best else FAILED
        seen = () if end else observation(text)
        return Transition(Progress(progress.actions + 1, score), seen, end=end)

    async def grade(self, state: State, session: GymSession) -> Grade:
        """Score from 0 to 1. ``success`` is 1 if the server ended the episode with a high enough score, and missing in
        worlds whose score does not show it."""
        progress = cast(Progress, state.data)
        score = min(max(progress.score / self.world.best, 0.0), 1.0)
        has_success = self.world.success is not None
        success = {"success": float(state.end == SOLVED)} if has_success else {}
        return Grade(score, {**success, "actions": progress.actions})
