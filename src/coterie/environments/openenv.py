"""Environments of OpenEnv servers (extra ``openenv``), played over their WebSocket protocol.

    coterie evaluate openenv environment.url=http://127.0.0.1:8000 policy=smollm2

A connection is a session: a ``reset`` with the task's seed, a ``step`` for each action. Sessions can't be copied, so
branches are replayed, and a branch whose observations differ fails. The package ``openenv`` is not needed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import httpx2
from pydantic import field_validator

from coterie.config.settings import key, server_url
from coterie.datasets.catalogue import Split
from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.acting import Acting, ActingSettings, saying
from coterie.environments.protocol import AGENT, Grade, Shared, State, Transition, server_reward
from coterie.environments.settings import MicroSplit, distinct, series, split_random
from coterie.errors import UserError
from coterie.record.tree import Ending, Task
from coterie.record.turn import digest

try:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import ClientConnection
    from websockets.sync.client import connect as connect_now
except ImportError as error:
    raise UserError(
        "environment=openenv needs the package websockets", "pip install -e '.[openenv]'"
    ) from error

SEEDS = 2**31
SECONDS = 120.0
"""Timeout of a request."""
LOST = "the connection to the OpenEnv server is lost"
MESSAGE = 100 * 2**20
"""Maximum size of a message, in bytes."""
DONE = Ending("done")


@series
def seeds(split: MicroSplit, seed: int) -> Iterator[int]:
    """Yield the seeds of a split. Splits share none, since a hash of the seed decides its split."""
    rng = split_random(split, f"openenv/{split}/{seed}")
    return distinct(split, lambda _: rng.randrange(SEEDS), str, str)


class OpenEnvSettings(ActingSettings):
    """Settings of an environment that an OpenEnv server plays."""

    url: str = key("http://127.0.0.1:8000", "Address of the OpenEnv server.")
    reset: dict[str, Any] = key({}, "Other arguments of `reset` than the seed.")
    instructions: str = key("", "Beginning of the system prompt, such as the rules.")
    score: Literal["sum", "last", "max"] = key("sum", "The score of a dialogue, of its rewards.")
    score_range: tuple[float, float] = key(
        (0.0, 1.0), "Lowest and highest score, which are scaled to 0 and 1."
    )
    sessions: int = key(
        1, "Number of sessions at a time (the server's `max_concurrent_envs`).", ge=1
    )

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        server_url(url)
        return url.rstrip("/")

    def identity(self) -> str:
        return digest(self.model_dump_json(exclude={"name", "url", "sessions"}))


class OpenEnvError(EngineError):
    """A server that does not answer, or answers with an error; only its own branch fails."""


class Connection:
    """A session on the server."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def fork(self) -> None:
        """Return None, so branches are replayed."""

    async def ask(self, kind: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the data of a reply. Raises :class:`OpenEnvError`."""
        try:
            with contextlib.suppress(WebSocketException):  # its last message says why it closed
                await self._socket.send(message(kind, data))
            return observed(await asyncio.wait_for(self._socket.recv(), SECONDS))
        except (OSError, WebSocketException) as error:
            raise OpenEnvError(f"{LOST}: {type(error).__name__} {error}") from error

    async def close(self) -> None:
        """Wait until the server has ended the session, so that it has room for the next one."""
        with contextlib.suppress(OSError, WebSocketException):
            await self._socket.send(message("close"))
            await asyncio.wait_for(self._socket.wait_closed(), SECONDS)


def _close_now(socket: ClientConnection) -> None:
    with contextlib.suppress(OSError, WebSocketException):
        socket.send(message("close"))
        list(socket)


def message(kind: str, data: dict[str, Any] | None = None) -> str:
    return json.dumps({"type": kind} | ({} if data is None else {"data": data}))


def observed(text: str | bytes) -> dict[str, Any]:
    """Return the data of a reply. Raises :class:`OpenEnvError` unless an error says that the action is invalid."""
    try:
        reply = json.loads(text)
        data: dict[str, Any] = dict(reply["data"])
        if reply["type"] != "error":
            return data
        if data.get("code") == "VALIDATION_ERROR":
            errors = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in data["errors"])
            return {"invalid": "; ".join(errors)}
    except (ValueError, KeyError, TypeError) as error:
        raise OpenEnvError(f"not a message of OpenEnv: {str(text)[:300]}") from error
    raise OpenEnvError(f"the OpenEnv server: {data.get('message')} ({data.get('code')})")


@cache
def check_sessions(url: str, sessions: int, reset: str) -> None:
    """Open the sessions that a run may open. Raises ``UserError`` if the server refuses one. Once for each process."""
    try:
        with ExitStack() as stack:
            for _ in range(sessions):
                socket = stack.enter_context(connect_now(url, max_size=MESSAGE, proxy=None))
                stack.callback(_close_now, socket)
                with contextlib.suppress(WebSocketException):  # its last message says why it closed
                    socket.send(reset)
                if "observation" not in (reply := observed(socket.recv(SECONDS))):
                    raise OpenEnvError(f"the reply to reset is {json.dumps(reply)[:300]}")
    except (OSError, WebSocketException, OpenEnvError) as error:
        raise UserError(
            f"the server at {url} can't open {sessions} sessions of environment=openenv: {error}",
            "lower environment.sessions, raise the server's max_concurrent_envs, or correct environment.reset",
        ) from error


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of the steps."""

    values: tuple[float, ...] = ()


class OpenEnv(Acting):
    """The environment of one server."""

    name = "openenv"
    metric = "reward"
    settings_type = OpenEnvSettings
    has_answers = False

    def __init__(self, settings: OpenEnvSettings) -> None:
        super().__init__(settings.steps)
        self.settings, self.score_range = settings, settings.score_range
        self.max_sessions = settings.sessions
        self.socket_url = settings.url.replace("http", "ws", 1) + "/ws"
        schema, about = self._get("schema"), self._get("metadata")
        properties: dict[str, Any] = schema["action"].get("properties", {})
        self.fields = {name: one for name, one in properties.items() if name != "metadata"}
        is_text = [one.get("type") for one in self.fields.values()] == ["string"]
        self.text_field = next(iter(self.fields)) if is_text else None
        self.about = ": ".join(str(about[one]) for one in ("name", "description") if about.get(one))
        self.version = f"1 {digest(json.dumps([schema, about], sort_keys=True))}"

    def _get(self, path: str) -> dict[str, Any]:
        url = f"{self.settings.url}/{path}"
        try:
            response = httpx2.get(url, timeout=SECONDS, trust_env=False, follow_redirects=True)
            content: Any = response.raise_for_status().json()
            if not isinstance(content, dict) or (path == "schema" and "action" not in content):
                raise ValueError("not the reply of an OpenEnv server")
        except (httpx2.HTTPError, ValueError) as error:
            raise UserError(
                f"no OpenEnv server answers at {url}: {str(error).partition(chr(10))[0]}",
                "start one (uvicorn server.app:app in its folder), or correct environment.url",
            ) from error
        return content

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        start = sum(after) if split == "train" else 0
        values = seeds(split, seed)[start : start + count]
        tasks = [Task(f"{split}-{seed}-{start + n}", {"seed": one}) for n, one in enumerate(values)]
        if tasks:
            first = message("reset", self._reset(tasks[0]))
            check_sessions(self.socket_url, self.max_sessions, first)
        return tasks

    def _reset(self, task: Task) -> dict[str, Any]:
        return {**self.settings.reset, "seed": task.public["seed"]}

    def system_prompt(self, task: Task) -> str:
        if self.text_field is None:
            what = f"An action is a JSON object with these fields: {json.dumps(self.fields)}"
        else:
            what = f"An action is a text: {self.fields[self.text_field].get('description') or self.text_field}"
        beginning = self.settings.instructions or f"You act in an environment. {self.about}"
        return f"{beginning}\n{what}\n{self.form.action_instructions}"

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[Connection]:
        try:
            opened = await connect(self.socket_url, max_size=MESSAGE, proxy=None)
        except OSError as error:
            raise EngineGone(f"no OpenEnv server answers at {self.socket_url}: {error}") from error
        async with opened as socket:
            connection = Connection(socket)
            try:
                yield connection
            finally:
                await connection.close()

    async def begin(self, task: Task, live: Connection) -> Transition:
        reply = await live.ask("reset", self._reset(task))
        return Transition(Rewards(), saying(_text(reply)), end=DONE if reply.get("done") else None)

    async def do(self, state: State, action: str, live: Connection) -> Transition:
        assert isinstance(state.data, Rewards)
        try:
            content = {self.text_field: action} if self.text_field else dict(json.loads(action))
            reply = await live.ask("step", content)
        except (ValueError, TypeError) as error:
            reply = {"invalid": f"It is not a JSON object: {error}"}
        if "invalid" in reply:
            return Transition(state.data, saying(f"Your action is refused. {reply['invalid']}"))
        reward = server_reward(self.settings.url, reply.get("reward") or 0)
        rewards = Rewards((*state.data.values, reward))
        end = DONE if reply.get("done") else None
        return Transition(rewards, saying(_text(reply)), end=end, rewards={AGENT: reward})

    async def grade(self, state: State, live: Connection) -> Grade:
        """Score the rewards. Raises :class:`OpenEnvError` for a score outside of ``environment.score_range``."""
        assert isinstance(state.data, Rewards)
        values, (low, high) = state.data.values or (0.0,), self.score_range
        score = {"sum": sum(values), "last": values[-1], "max": max(values)}[self.settings.score]
        if not low <= score <= high:
            raise OpenEnvError(
                f"the score is {score:g}: declare its range, environment.score_range=[LOW,HIGH], or choose "
                "environment.score"
            )
        server = await live.ask("state")
        done = float(state.end == DONE)
        return Grade(score, {"done": done, "steps": int(server.get("step_count") or 0)})


def _text(reply: dict[str, Any]) -> str:
    """Return an observation: its only text, or JSON."""
    content = {name: one for name, one in reply["observation"].items() if name != "metadata"}
    only = next(iter(content.values())) if len(content) == 1 else None
    return only if isinstance(only, str) else json.dumps(content, ensure_ascii=False)
