"""Tasks of a NeMo Gym resources server: one agent that calls the server's tools, and the server's own verification.

    coterie evaluate nemo_gym environment.url=http://127.0.0.1:8000 environment.rows=train.jsonl policy=smollm2

A session is a cookie jar: ``/seed_session`` with the row, a request for each call, ``/verify`` with all messages.
Sessions can't be copied, so branches are replayed. The package ``nemo-gym`` is not needed.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel

from coterie.config.folders import expanded, sha256
from coterie.config.settings import PathText, ScoreRange, ServerUrl, key
from coterie.datasets.catalogue import Split
from coterie.datasets.files import numbered
from coterie.engines.protocol import EngineError
from coterie.environments.bridges.server_client import (
    EnvironmentServerError,
    Finite,
    ServerClient,
    ask_now,
)
from coterie.environments.protocol import (
    AGENT,
    Grade,
    Observation,
    OneAgent,
    Replayed,
    Shared,
    State,
    Transition,
)
from coterie.environments.settings import EnvironmentSettings, draw_rows, split_of_key
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, LENGTH, Task
from coterie.record.turn import Message, Role, Speaker, Tool, Turn, digest
from coterie.tools.calls import (
    CallLimits,
    Function,
    NativeCalls,
    Tag,
    Tags,
    ToolError,
    ToolUnavailable,
    check_tools,
    run_calls,
)

SECONDS = 120.0
REPLY_BYTES = 4 << 20
"""Maximum size of a reply: ``/verify`` returns the row and all messages. Texts for the policy are cut."""
UNAVAILABLE = (429, 502, 503, 504)
"""Statuses of a server or its proxy that no arguments of a call can cause. As in NeMo Gym, agents see all others."""
SERVER = Speaker("tool", "resources server")
ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


class NemoGymSettings(EnvironmentSettings):
    """Settings of tasks that a NeMo Gym resources server verifies."""

    url: ServerUrl = key("http://127.0.0.1:8000", "Address of the resources server.")
    rows: PathText = key("", "File of the tasks (JSONL), such as train.jsonl or example.jsonl.")
    heldout: PathText = key(
        "", "File of held-out tasks; empty: a quarter of `rows`, drawn by a hash."
    )
    steps: int = key(10, "Maximum messages of the agent.", ge=1)
    calls: Literal["native", "tags"] = key(
        "native", "Syntax of calls: the model's chat template, or tags."
    )
    score_range: ScoreRange = key(
        (0.0, 1.0), "Lowest and highest reward, which are scaled to 0 and 1."
    )

    def identity(self) -> str:
        """Hash the keys without places; the version has the files' content."""
        return digest(self.model_dump_json(exclude={"name", "url", "rows", "heldout"}))


class OpenAPI(BaseModel):
    """Routes of a server."""

    paths: dict[str, Any]


class Verdict(BaseModel):
    """Reply to ``/verify``."""

    reward: Finite


@dataclass(frozen=True, slots=True)
class Row:
    """A task."""

    values: Mapping[str, Any]
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class ServerSession(Replayed):
    """A session on the server."""

    server: ServerClient

    def function(self, name: str) -> Function:
        async def call(arguments: Mapping[str, Any]) -> str:
            """Return the server's reply, which may be an error that the agent is told."""
            try:
                status, body = await self.server.request("POST", f"/{name}", json=dict(arguments))
            except EnvironmentServerError as error:
                raise ToolUnavailable(str(error)) from error
            text = body.decode(errors="replace")
            if status in UNAVAILABLE:
                raise ToolUnavailable(str(self.server.failure(f"/{name}", status, body)))
            if status >= 300:
                raise ToolError(text)
            return text

        return call


class NemoGym(OneAgent):
    """The tasks of one file on one server."""

    name = "nemo_gym"
    metric = "reward"
    settings_type = NemoGymSettings
    needs: tuple[type, ...] = ()
    pure = False
    max_sessions = 64

    def __init__(self, settings: NemoGymSettings) -> None:
        self.settings, self.score_range = settings, settings.score_range
        self.limits: Mapping[str, int] = MappingProxyType({"turns": settings.steps})
        if not settings.rows:
            raise UserError("environment=nemo_gym needs tasks", "add environment.rows=FILE.jsonl")
        self.files = [expanded(file) for file in (settings.rows, settings.heldout) if file]
        self.paths = self._paths()
        names = {tool.name for row in self._rows.values() for tool in row.tools}
        self.version = f"1 {digest(sorted(self.paths), [sha256(file) for file in self.files])}"
        tags = Tags(dict.fromkeys(sorted(names), Tag()), answer=None)
        self.syntax: Tags | NativeCalls = NativeCalls() if settings.calls == "native" else tags
        routes = {path.removeprefix("/") for path in self.paths}
        if (unknown := names - routes) and not any(path.startswith("/{") for path in self.paths):
            raise UserError(
                f"the server at {settings.url} lacks tools that the tasks name: {', '.join(sorted(unknown))}",
                "correct environment.url or environment.rows",
            )

    def _paths(self) -> list[str]:
        """Return the server's paths. Raises ``UserError`` unless it is a resources server."""
        try:
            paths = [*ask_now(self.settings.url, "/openapi.json", OpenAPI, SECONDS).paths]
            if not {"/seed_session", "/verify"} <= {*paths}:
                raise EnvironmentServerError("it has no /seed_session or /verify")
        except EngineError as error:
            raise UserError(
                f"no NeMo Gym resources server answers at {self.settings.url}: {error}",
                "start one, or correct environment.url",
            ) from error
        return paths

    @cached_property
    def _rows(self) -> dict[str, Row]:
        """The tasks by id, with held-out rows of a file of their own last. Raises ``UserError`` for a broken row."""
        rows: dict[str, Row] = {}
        for file in self.files:
            for where, values in numbered(file):
                try:
                    row = _row(values)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    raise UserError(
                        f"{file}, {where} is no task of NeMo Gym that can be played: {error!r}",
                        "correct it: responses_create_params has input, messages of texts, and tools",
                    ) from error
                check_tools(row.tools)
                rows[digest(values)[:16]] = row
        return rows

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        questions = {name: _text(row.messages) for name, row in self._rows.items()}
        ids, prompts = self._heldout
        split_tasks = [
            Task(name, {"question": text})
            for name, text in questions.items()
            if (name in ids if split == "heldout" else text not in prompts)
        ]
        return draw_rows(split_tasks, split, count, seed, previous_counts)

    @cached_property
    def _heldout(self) -> tuple[set[str], set[str]]:
        """The ids of held-out tasks, and their prompts, which no training task has."""
        texts = {name: _text(row.messages) for name, row in self._rows.items()}
        if self.settings.heldout:
            ids = {digest(values)[:16] for _, values in numbered(self.files[1])}
        else:
            ids = {name for name, text in texts.items() if split_of_key(text) == "heldout"}
        return ids, {texts[name] for name in ids}

    @asynccontextmanager
    async def open(self, task: Task, seed: int, shared: Shared) -> AsyncIterator[ServerSession]:
        async with ServerClient(self.settings.url, SECONDS, REPLY_BYTES) as server:
            yield ServerSession(server)

    async def begin(self, task: Task, session: ServerSession) -> Transition:
        values = self._rows[task.id].values
        await session.server.ask("POST", "/seed_session", dict[str, Any], json=values)
        return Transition()

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return self._rows[state.task.id].tools

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        row = self._rows[state.task.id]
        prompt = self.syntax.with_tools(row.messages, row.tools) if row.tools else row.messages
        turns = (
            Message("assistant" if turn.speaker.name == AGENT else self.syntax.role, turn=turn.id)
            for turn in state.turns
        )
        return (*prompt, *turns)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: ServerSession,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        turn, tools = turns[-1], self._rows[state.task.id].tools
        if not turn.calls:
            return Transition(answer=turn.text, end=LENGTH if turn.truncated else ANSWERED)
        functions = {tool.name: session.function(tool.name) for tool in tools}
        results = await run_calls(turn.calls, tools, functions, CallLimits())
        return Transition(seen=(Observation(SERVER, results=results),))

    async def grade(self, state: State, session: ServerSession) -> Grade:
        """Return the reward of ``/verify``."""
        row, output = self._rows[state.task.id].values, [*_output(state.turns)]
        header = {"id": state.task.id, "created_at": 0, "model": "policy", "object": "response"}
        choice = {"parallel_tool_calls": True, "tool_choice": "auto"}
        tools = row["responses_create_params"].get("tools") or []
        response = {**header, **choice, "tools": tools, "output": output}
        body = {**row, "response": response}
        reward = (await session.server.ask("POST", "/verify", Verdict, json=body)).reward
        low, high = self.score_range
        if not low <= reward <= high:
            raise EngineError(
                f"the reward of {self.settings.url} is {reward}: declare its range, environment.score_range=[LOW,HIGH]"
            )
        results = [result for turn in state.turns for result in turn.results]
        errors = sum(result.error for result in results)
        return Grade(reward, {"calls": len(results), "call_errors": errors})


def _row(values: Mapping[str, Any]) -> Row:
    request = values["responses_create_params"]
    content = request["input"]
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if request.get("instructions"):
        items = [{"role": "system", "content": request["instructions"]}, *items]
    messages = tuple(Message.of(_role(item["role"]), _content(item["content"])) for item in items)
    tools = tuple(
        Tool(
            tool["name"],
            tool.get("description") or "",
            tool.get("parameters") or {"type": "object", "properties": {}},
            alone=True,  # calls of one session run in order
        )
        for tool in request.get("tools") or ()
    )
    return Row(values, messages, tools)


def _role(name: str) -> Role:
    return ROLES["system" if name == "developer" else name]


def _content(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join(part.text for message in messages for part in message.parts)


def _output(turns: Sequence[Turn]) -> Iterator[dict[str, Any]]:
    """Yield the items of a dialogue after its prompt, as a response of OpenAI's API has them."""
    last_id = ""
    for turn in turns:
        for result in turn.results:
            output = {"call_id": f"{last_id}-{result.call_id}", "output": result.text}
            yield {"type": "function_call_output", **output}
        if turn.speaker.name != AGENT:
            continue
        last_id = turn.id[:16]
        for call in turn.calls:
            names = {"call_id": f"{last_id}-{call.id}", "name": call.name}
            yield {"type": "function_call", **names, "arguments": call.arguments}
        if not turn.calls:
            text = {"type": "output_text", "text": turn.text, "annotations": []}
            message = {"id": last_id, "role": "assistant", "status": "completed", "content": [text]}
            yield {"type": "message", **message}
