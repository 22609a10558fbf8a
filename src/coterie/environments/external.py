"""Programs that are started elsewhere, which open and end their sessions by HTTP.

    POST /sessions             {"task_id": ..., "task": ...}, both optional; returns id, base_url, api_key, models
    POST /sessions/ID/result   {"reward": 1.0, "rewards": {"planner": 0.5}, "result": "..."}; the reward is required

A session is an episode. The second request returns when the episode is in the record, or tells why it failed.
"""

import asyncio
import json
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie.config.settings import ScoreRange, key
from coterie.config.user_code import as_number
from coterie.datasets.catalogue import Split
from coterie.environments.gateway import Gateway, GatewaySession, key_of, or_refusal, read_body
from coterie.environments.openai_api import RequestError, read_object
from coterie.environments.program import ModelCalls, ModelCallSettings, RunningProgram, read_reward
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.record.store import Store
from coterie.record.tree import Task
from coterie.record.turn import digest


class ExternalSettings(ModelCallSettings):
    """Settings of programs that are started elsewhere."""

    reward_range: ScoreRange = key(
        (0.0, 1.0), "Lowest and highest reward, which are scaled to 0 and 1."
    )
    sessions: int = key(256, "Sessions that are answered at a time; further ones wait.", ge=1)


class External(ModelCalls):
    """Programs that are started elsewhere and ask the gateway of ``coterie gateway``."""

    settings_type = ExternalSettings
    name, version, metric = "external", "1", "reward"
    needs: tuple[type, ...] = ()

    def tasks(self, split: Split, count: int, seed: int, previous_counts: Any = ()) -> list[Task]:
        """Raise ``UserError``, since programs bring their tasks."""
        raise UserError("`external` has no tasks of its own", "use: coterie gateway model=MODEL")

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[RunningProgram]:
        """Take the oldest session of a task that is not answered yet."""
        visit = shared[Visits].waiting[task.id].popleft()
        program = RunningProgram(visit.session, shared, self.settings.seconds, visit.result)
        try:
            yield program
        finally:
            await program.close()


@dataclass(eq=False)
class Visit:
    """An open session of a program that runs elsewhere."""

    task: Task
    sample: int
    session: GatewaySession
    result: asyncio.Future[Any]
    """Result that the program sends; cancelled if the session fails before."""
    recorded: asyncio.Future[str | None]
    """Failure of the episode; ``None`` once it is in the record."""


class Visits:
    """Sessions of programs that run elsewhere, and the routes that open and end them.

    Args:
        gateway: Gateway that answers their model calls.
        store: Record, which may have earlier episodes.
        stage: Name of the episodes' stage.
        environment: Environment of the episodes.
        begin: Plays the episode of a new session.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        stage: str,
        environment: External,
        begin: Callable[[Visit], None],
    ) -> None:
        self.key = secrets.token_urlsafe(18)
        """Key with which sessions are opened."""
        self.waiting = defaultdict[str, deque[Visit]](deque)
        """Sessions that no episode has taken yet, by task."""
        self._gateway, self._store = gateway, store
        self._environment, self._begin = environment, begin
        self._tasks = {id_: store.task(id_) for id_ in store.task_ids()}
        self._counts = Counter(task for task, _ in store.finished_keys(0, stage))
        self._open, self._ended = dict[str, Visit](), dict[str, str]()
        for prefix in ("/sessions", "/v1/sessions"):
            for path, function in ((prefix, self._enter), (prefix + "/{id}/result", self._leave)):
                gateway.app.routes.append(Route(path, or_refusal(function), methods=["POST"]))

    def close(self, visit: Visit, failure: str | None) -> None:
        """Close the session of a recorded episode."""
        id_, how = visit.session.api_key, "its result is recorded"
        if failure:
            how = f"it failed: {failure}"
        elif visit.result.cancelled():
            turns = self._environment.settings.turns
            how = f"it has reached environment.turns={turns} or the context, and scores 0"
        self._gateway.close_session(visit.session, f": {how}")
        del self._open[id_]
        self._ended[id_] = how
        visit.recorded.set_result(failure)

    async def _enter(self, request: Request) -> Response:
        if key_of(request) != self.key:
            problem = "the API key is not the one that `coterie gateway` printed"
            raise RequestError(problem, 401, "invalid_api_key")
        task = self._task(await _read(request, "task_id", "task"))
        try:
            self._store.put_tasks([task])
        except UserError as error:
            raise RequestError(f"{error.what}; {error.todo}") from error
        self._tasks[task.id] = task
        session = self._gateway.open_session(self._environment.actors)
        result, recorded = (asyncio.get_running_loop().create_future() for _ in range(2))
        visit = Visit(task, self._counts[task.id], session, result, recorded)
        self._counts[task.id] += 1
        self._open[session.api_key] = visit
        self.waiting[task.id].append(visit)
        self._begin(visit)
        names = {"models": session.models, "task_id": task.id}
        urls = {"base_url": session.base_url, "api_key": session.api_key}
        return JSONResponse({"id": session.api_key, **urls, **names})

    def _task(self, body: Mapping[str, Any]) -> Task:
        """Return the task of a new session: that of an earlier session with its id, or with its content."""
        id_, content = body.get("task_id"), body.get("task")
        if not isinstance(id_, str | int | None) or not 1 <= len(str(id_)) <= 200:
            raise RequestError("task_id must be a text of 1 to 200 characters, or a number")
        public = content if isinstance(content, dict) else {"question": content}
        if content is None:
            public = {}
        if id_ is None:
            text = json.dumps(public, sort_keys=True) if public else secrets.token_hex(8)
            id_ = digest("task", text)
        task = self._tasks.get(str(id_))
        if task is not None and public and task.public != public:
            problem = f"the task {id_} has another content than in an earlier session"
            raise RequestError(f"{problem}; give it another task_id", 409)
        return task or Task(str(id_), public)

    async def _leave(self, request: Request) -> Response:
        id_, given_key = request.path_params["id"], key_of(request)
        if given_key not in (id_, self.key):
            raise RequestError("the API key is not the key of this session", 401, "invalid_api_key")
        body = await _read(request, "reward", "rewards", "result")
        visit = self._open.get(id_)
        if visit is not None and visit.result.done():
            await asyncio.shield(visit.recorded)
        if id_ in self._ended:
            raise RequestError(f"the session has ended: {self._ended[id_]}", 409)
        if visit is None:
            raise RequestError(f"there is no session {id_}; POST /sessions opens one", 404)
        if as_number(body.get("reward")) is None:
            raise RequestError('reward must be a finite number, such as {"reward": 1.0}')
        result = {"reward": body["reward"], "rewards": body.get("rewards")}
        result |= {"answer": body["result"]} if body.get("result") is not None else {}
        try:
            read_reward(result, self._environment.settings, self._environment.actors)
        except UserError as error:
            raise RequestError(f"{error.what}; {error.todo}") from error
        visit.result.set_result(result)
        # The program may hang up without waiting.
        if (failure := await asyncio.shield(visit.recorded)) is not None:
            raise RequestError(f"the episode failed: {failure}", 422)
        return JSONResponse({"recorded": True, "task_id": visit.task.id, "sample": visit.sample})


async def _read(request: Request, *names: str) -> dict[str, Any]:
    """Return the object in a request's body, which has only these keys. Raises ``RequestError``."""
    body = read_object(await read_body(request) or b"{}")
    if body.keys() - set(names):
        raise RequestError(f"the body must be an object with the keys {', '.join(names)}")
    return body
