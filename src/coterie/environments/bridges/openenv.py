"""Environments of OpenEnv servers (extra ``openenv``), played over their WebSocket protocol.

    coterie evaluate openenv environment.url=http://127.0.0.1:8000 policy=smollm2

A connection is a session: a ``reset`` with the task's seed, a ``step`` for each action. Sessions can't be copied, so
branches are replayed, and a branch whose observations differ fails. The package ``openenv`` is not needed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field

from coterie.config.settings import ScoreRange, ServerUrl, key
from coterie.datasets.catalogue import Split
from coterie.engines.endpoint import quote
from coterie.engines.protocol import EngineError, EngineGone, run_now
from coterie.environments.acting import Acting, ActingSettings, observation
from coterie.environments.bridges.server_client import (
    CLOSE_SECONDS,
    REPLY_BYTES,
    EnvironmentServerError,
    Finite,
    ask_now,
    check_type,
    parse_json,
)
from coterie.environments.protocol import AGENT, Grade, Replayed, Shared, State, Transition
from coterie.environments.settings import game_seeds
from coterie.errors import UserError
from coterie.record.tree import Ending, Task
from coterie.record.turn import digest

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import WebSocketException
except ImportError as error:
    raise UserError(
        "environment=openenv needs the package websockets", "pip install -e '.[openenv]'"
    ) from error

Expected = TypeVar("Expected", bound=BaseModel)
SECONDS = 120.0
"""Timeout of a request."""
FRAMES = 10_000
"""Maximum frames of a reply, with the pings before it."""
LOST = "the connection to the OpenEnv server is lost"
DONE = Ending("done")


class OpenEnvSettings(ActingSettings):
    """Settings of an environment that an OpenEnv server plays."""

    url: ServerUrl = key("http://127.0.0.1:8000", "Address of the OpenEnv server.")
    reset: dict[str, Any] = key({}, "Other arguments of `reset` than the seed.")
    instructions: str = key("", "Beginning of the system prompt, such as the rules.")
    score: Literal["sum", "last", "max"] = key("sum", "The score of a dialogue, of its rewards.")
    score_range: ScoreRange = key(
        (0.0, 1.0), "Lowest and highest score, which are scaled to 0 and 1."
    )
    sessions: int = key(
        1, "Number of sessions at a time (the server's `max_concurrent_envs`).", ge=1
    )

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"name", "url", "sessions"}))


class Reply(BaseModel):
    """Message of the server."""

    type: str
    data: dict[str, Any]


class ActionFields(BaseModel):
    """Schema of an action."""

    properties: dict[str, dict[str, Any]] = {}


class ActionSchema(BaseModel):
    """Reply to ``/schema``."""

    action: ActionFields


class StepReply(BaseModel):
    """Data of the reply to ``reset`` and ``step``."""

    observation: dict[str, Any]
    reward: Finite | bool | None  # OpenEnv's own types allow a bool, 0 or 1
    done: bool

    @property
    def text(self) -> str:
        """The only text of the observation, or JSON."""
        content = {name: item for name, item in self.observation.items() if name != "metadata"}
        only = next(iter(content.values())) if len(content) == 1 else None
        return only if isinstance(only, str) else json.dumps(content, ensure_ascii=False)


class ServerState(BaseModel):
    """Data of the reply to ``state``."""

    step_count: int = Field(0, ge=0, le=2**53)


class FieldError(BaseModel):
    """A fault of a field of an action."""

    loc: list[str | int]
    msg: str


class ServerFailure(BaseModel):
    """Data of an error."""

    message: str | None = None
    code: str | None = None
    errors: list[FieldError] = []


class InvalidAction(EnvironmentServerError):
    """The server refuses an action, which the agent is told."""


class Connection(Replayed):
    """A session on the server."""

    def __init__(self, socket: Any, url: str) -> None:
        self._socket = socket
        self.url = url

    async def ask(
        self, kind: str, data: dict[str, Any] | None, expected: type[Expected]
    ) -> Expected:
        """Return the data of a reply. Raises ``EnvironmentServerError``."""
        try:
            self._socket.frames = 0
            async with asyncio.timeout(SECONDS):
                with contextlib.suppress(WebSocketException):  # its last message says why it closed
                    await self._socket.send(message(kind, data))
                text = await self._socket.recv(decode=False)
        except (OSError, WebSocketException) as error:
            why = f"{LOST}: {type(error).__name__} {quote(str(error))}"
            raise EnvironmentServerError(f"{self.url}: {why}") from error
        reply = parse_json(self.url, Reply, text)
        if reply.type != "error":
            return check_type(self.url, expected, reply.data, reply.data)
        failure = check_type(self.url, ServerFailure, reply.data, reply.data)
        if failure.code == "VALIDATION_ERROR":
            faults = (f"{'.'.join(map(str, fault.loc))}: {fault.msg}" for fault in failure.errors)
            raise InvalidAction("; ".join(faults))
        text = f"{quote(failure.message or 'no message')} ({quote(failure.code or 'no code')})"
        raise EnvironmentServerError(f"{self.url}: {text}")

    async def close(self) -> None:
        """Wait until the server has ended the session, so that it has room for the next one."""
        with contextlib.suppress(OSError, WebSocketException):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.send(message("close"))
                await self._socket.wait_closed()


class BoundedSocket(ClientConnection):
    """WebSocket that ends at too many frames: pings are answered without limit, also if the server never reads."""

    frames = 0
    """Number of frames since the last request."""

    def process_event(self, event: Any) -> None:
        self.frames += 1
        if self.frames > FRAMES:
            self.transport.abort()
        super().process_event(event)


class Connect(connect):
    """Connection attempt that follows no redirect, since it may lead to any host."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


@asynccontextmanager
async def open_session(url: str) -> AsyncIterator[Connection]:
    """Open a session; its end is waited for. Raises ``EngineGone`` if nothing listens."""
    try:
        # The limit of size applies to the unpacked message.
        socket = await Connect(
            url, max_size=REPLY_BYTES, max_queue=2, proxy=None, create_connection=BoundedSocket
        )
    except (OSError, WebSocketException) as error:
        raise EngineGone(f"no OpenEnv server answers at {url}: {quote(str(error))}") from error
    connection = Connection(socket, url)
    try:
        yield connection
    finally:
        await connection.close()
        socket.transport.abort()  # the socket's own close waits without limit for a server that does not read


def message(kind: str, data: dict[str, Any] | None = None) -> str:
    return json.dumps({"type": kind} | ({} if data is None else {"data": data}))


@cache
def check_sessions(url: str, sessions: int, reset: str) -> None:
    """Open the sessions that a run may open. Raises ``UserError`` if the server refuses one. Once for each process.

    ``reset`` is the JSON of the arguments of a reset, since arguments of a cached function must be hashable.
    """

    async def check() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(sessions):
                session = await stack.enter_async_context(open_session(url))
                await session.ask("reset", json.loads(reset), StepReply)

    try:
        run_now(check())
    except EngineError as error:
        raise UserError(
            f"the server at {url} can't open {sessions} sessions of environment=openenv: {error}",
            "lower environment.sessions, raise the server's max_concurrent_envs, or correct environment.reset",
        ) from error


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of the steps."""

    values: tuple[float, ...] = ()


class OpenEnv(Acting):
    """The environment of one server, which is queried for its schema when this object is made."""

    name = "openenv"
    metric = "reward"
    settings_type = OpenEnvSettings
    has_answers = False

    def __init__(self, settings: OpenEnvSettings) -> None:
        super().__init__(settings.steps)
        self.settings, self.score_range = settings, settings.score_range
        self.max_sessions = settings.sessions
        self.socket_url = settings.url.replace("http", "ws", 1) + "/ws"
        try:
            schema, about = (
                ask_now(settings.url, path, dict[str, Any], SECONDS)
                for path in ("/schema", "/metadata")
            )
            action = check_type(f"{settings.url}/schema", ActionSchema, schema, schema).action
        except EngineError as error:
            raise UserError(
                f"no OpenEnv server answers: {error}",
                "start one (uvicorn server.app:app in its folder), or correct environment.url",
            ) from error
        self.fields = {
            name: field for name, field in action.properties.items() if name != "metadata"
        }
        is_text = [field.get("type") for field in self.fields.values()] == ["string"]
        self.text_field = next(iter(self.fields)) if is_text else None
        self.about = ": ".join(str(about[key]) for key in ("name", "description") if about.get(key))
        self.version = f"1 {digest(json.dumps([schema, about], sort_keys=True))}"

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        seeds = game_seeds(self.name, split, seed).draw(split, count, previous_counts)
        tasks = [Task(f"{split}-{seed}-{number}", {"seed": value}) for number, value in seeds]
        # Here and not in `__init__`, because a reset needs the seed of a task. The plan of a run draws
        # tasks, so a server with too few sessions stops it before anything is sampled.
        if tasks:
            reset = json.dumps(self._reset(tasks[0]))
            check_sessions(self.socket_url, self.max_sessions, reset)
        return tasks

    def _reset(self, task: Task) -> dict[str, Any]:
        return {**self.settings.reset, "seed": task.public["seed"]}

    def system_prompt(self, task: Task) -> str:
        if self.text_field is None:
            rule = f"An action is a JSON object with these fields: {json.dumps(self.fields)}"
        else:
            rule = f"An action is a text: {self.fields[self.text_field].get('description') or self.text_field}"
        beginning = self.settings.instructions or f"You act in an environment. {self.about}"
        return f"{beginning}\n{rule}\n{self.form.action_instructions}"

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Connection]:
        async with open_session(self.socket_url) as session:
            yield session

    async def begin(self, task: Task, session: Connection) -> Transition:
        reply = await session.ask("reset", self._reset(task), StepReply)
        return Transition(Rewards(), observation(reply.text), end=DONE if reply.done else None)

    async def do(self, state: State, action: str, session: Connection) -> Transition:
        assert isinstance(state.data, Rewards)
        try:
            content = {self.text_field: action} if self.text_field else dict(json.loads(action))
            reply = await session.ask("step", content, StepReply)
        except (ValueError, TypeError, RecursionError) as error:
            why = f"It is not a JSON object: {error}"
            return Transition(state.data, observation(f"Your action is refused. {why}"))
        except InvalidAction as error:
            return Transition(state.data, observation(f"Your action is refused. {error}"))
        reward = float(reply.reward or 0)
        rewards = Rewards((*state.data.values, reward))
        end = DONE if reply.done else None
        return Transition(rewards, observation(reply.text), end=end, rewards={AGENT: reward})

    async def grade(self, state: State, session: Connection) -> Grade:
        """Score the rewards. Raises ``EngineError`` for a score outside of ``environment.score_range``."""
        assert isinstance(state.data, Rewards)
        values, (low, high) = state.data.values or (0.0,), self.score_range
        score = {"sum": sum(values), "last": values[-1], "max": max(values)}[self.settings.score]
        if not low <= score <= high:
            raise EngineError(
                f"the score of {self.settings.url} is {score:g}: declare its range, "
                "environment.score_range=[LOW,HIGH], or choose environment.score"
            )
        steps = (await session.ask("state", None, ServerState)).step_count
        return Grade(score, {"done": float(state.end == DONE), "steps": steps})
