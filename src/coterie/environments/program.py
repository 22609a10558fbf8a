"""Programs of users as environments: agents of any framework that asks models by OpenAI's protocol.

    coterie evaluate program dataset=mine.jsonl environment.agent=my_agent.py:run policy=tiny-sums

A program runs once for each episode. It gets the task and the address of a gateway, and each of its model calls is a
turn of the role that its ``model`` names. Its result is graded, or is the reward. See docs/howto/own-agent.md.
"""

import asyncio
import inspect
import json
import logging
import os
import shlex
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Self, TypeVar

from pydantic import field_validator, model_validator

from coterie.config.folders import sha256
from coterie.config.plugins import Kind, absolute_name, find, is_spec, last_line
from coterie.config.settings import key
from coterie.config.user_code import as_number
from coterie.datasets.load import Rows
from coterie.engines.child_guard import guarded
from coterie.engines.protocol import EngineError, cancel
from coterie.environments.gateway import Gateway, GatewaySession, PendingRequest, open_gateway
from coterie.environments.openai_api import RequestError
from coterie.environments.program_history import Prompted, read_history, reply_of, with_turns
from coterie.environments.protocol import (
    ActorKind,
    AnswersRequests,
    EnvironmentFault,
    Grade,
    Observation,
    Openers,
    Replayed,
    RequestWithdrawn,
    Shared,
    State,
    Syntax,
    Transition,
)
from coterie.environments.question import Question, QuestionSettings
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, CONTEXT, Task
from coterie.record.turn import Message, Part, Speaker, Tool, Turn, digest
from coterie.tools.calls import NativeCalls

logger = logging.getLogger(__name__)
AGENTS = Kind("agent", {})
GRACE = 2.0
"""Seconds that a process has to end before it is killed."""
OUTPUT = 8 * 2**20
"""Maximum size of a result, and of the kept output of a process."""
SHOWN = 1500
"""Characters of a program's output in an error."""
MAX_REFUSALS = 3
"""Requests in a row that may exceed the context; the program was told of each."""
GATEWAY = Speaker("environment", "gateway")
T = TypeVar("T")
_openings: dict[tuple[str, str], Transition] = {}
"""First requests of this process by program and task, so that reports and plans need not run programs again."""


class ModelCallSettings(EnvironmentSettings):
    """Settings of the roles that a program asks, and of its limits."""

    roles: tuple[str, ...] = key(
        ("agent",),
        "Names of the models that the program asks, each of which is a role.",
        min_length=1,
    )
    turns: int = key(32, "Maximum model calls of an episode.", ge=1)
    seconds: float = key(
        300.0,
        "Seconds that the program may take before its first model call and after each reply.",
        gt=0,
    )
    sessions: int = key(64, "Episodes that run at a time.", ge=1)

    @field_validator("roles")
    @classmethod
    def _distinct(cls, roles: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(roles)) < len(roles):
            raise ValueError("must be different names")
        return roles


class ProgramSettings(ModelCallSettings, QuestionSettings):
    """Settings of the program, its roles and its reward."""

    unhashed = frozenset({"name", "reward", "agent", "command", "sessions"})

    agent: str | None = key(
        None,
        "A function `path/file.py:NAME` of a task (a dict of the row's columns) and a session (`base_url`, `api_key`, "
        "`models`), plain or asynchronous. It returns the result.",
    )
    command: str | None = key(
        None,
        "A command, such as `python agent.py`. It gets OPENAI_BASE_URL, OPENAI_API_KEY, COTERIE_MODELS and "
        "COTERIE_TASK (a JSON file), and prints its result as the last line of its output.",
    )
    reward: str | None = key(
        None,
        "Reward of the result: `exact`, `f1`, `math`, or a function `path/file.py:NAME`, as for `question`. By "
        "default, the result is the reward.",
    )

    @field_validator("agent")
    @classmethod
    def _resolve(cls, name: str | None) -> str | None:
        if name is not None and not is_spec(name):
            raise ValueError(f"is no function; write path/file.py:NAME instead of {name!r}")
        return name and absolute_name(name)

    @field_validator("command")
    @classmethod
    def _resolve_files(cls, command: str | None) -> str | None:
        # The program runs in a folder of its own, so its files need absolute paths.
        words = shlex.split(command or "")
        words = [str(Path(w).absolute()) if Path(w).is_file() else w for w in words]
        return command and shlex.join(words)

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.name is not None and (self.agent is None) == (self.command is None):
            raise ValueError("needs environment.agent=FILE:NAME or .command='...', not both")
        return self


class RunningProgram(Replayed):
    """A program that has begun, and its model calls."""

    def __init__(
        self, session: GatewaySession, shared: Shared, seconds: float, ended: Awaitable[Any]
    ) -> None:
        self.session = session
        self.shared = shared
        self.pending: PendingRequest | None = None
        """The request that is answered next."""
        self.output: Callable[[], str] = lambda: ""
        self._seconds = seconds
        self._ended = asyncio.ensure_future(ended)
        self._ended.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        """Withdraw the request that is answered, since nobody will read the reply."""
        self.session.news.set()
        if self.pending is not None:
            self.pending.leave(0.0)

    async def next_request(self) -> PendingRequest | None:
        """Wait for the next request, or return None when the program has ended.

        Raises ``EnvironmentFault`` if it failed or takes too long.
        """
        try:
            async with asyncio.timeout(self._seconds):
                while not (self._ended.done() or self.session.waiting):
                    self.session.news.clear()
                    await self.session.news.wait()
        except TimeoutError as late:
            problem = f"did not call a model or end within {self._seconds:g} s"
            raise self.fault(f"{problem} (environment.seconds)") from late
        self.pending = None
        if not self._ended.done():
            self.pending = self.session.waiting.popleft()
        elif (error := self._ended.exception()) is not None:
            raise self.fault(f"failed: {error}") from error
        return self.pending

    @property
    def result(self) -> Any:
        return self._ended.result()

    def fault(self, problem: str) -> EnvironmentFault:
        output = self.output().strip()
        excerpt = f"; the end of its output: {output[-SHOWN:]}" if output else ""
        return EnvironmentFault(f"the program {_storable(problem[:SHOWN])}{excerpt}")

    async def close(self) -> None:
        await cancel([self._ended])


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """Data of an episode."""

    past: tuple[Prompted, ...]
    """Answered requests."""
    waiting: Prompted | None = None
    """The request that is answered next; ``None`` after the end."""
    new: int = 0
    """Number of the last observations, which the messages of ``waiting`` refer to."""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    refusals: int = 0
    result: Any = None


class ModelCalls(AnswersRequests):
    """Environment of a program, whose model calls are the turns of its roles and whose result has the reward."""

    pure = False
    syntax: Syntax | None = NativeCalls()
    settings: Any

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.actors: Mapping[str, ActorKind] = dict.fromkeys(settings.roles, "agent")
        self.limits: Mapping[str, int] = {"turns": settings.turns}
        self.max_sessions = settings.sessions
        self._said = set[str]()

    def openers(self, logs: Path) -> Openers:
        return {Gateway: open_gateway}

    async def begin(self, task: Task, session: RunningProgram) -> Transition:
        return await self._next(session, (), ())

    def next_actors(self, state: State) -> tuple[str, ...]:
        return (_waiting(state).actor,)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        return _prompt(state, state.turns).messages

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return _progress(state).tools

    def request_limits(self, state: State) -> tuple[tuple[str, ...], int | None]:
        return _waiting(state).stop, _progress(state).max_tokens

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: RunningProgram,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """Answer the request with the turn, and wait for the next request or the end of the program."""
        progress, turn, pending = _progress(state), turns[-1], session.pending
        assert pending is not None, "the turn answers a request"
        prompt = _prompt(state, state.turns[:-1])
        past = (*progress.past, replace(prompt, turn=turn))
        self._say_differences(pending, turn)
        if pending.answer(reply_of(turn, prompt.stop, state.prompt_tokens)):
            return await self._next(session, past, state.turns)
        # The request asks for several replies, which are siblings with one prompt.
        return Transition(replace(progress, past=past, waiting=prompt, new=0))

    async def deliver(self, session: RunningProgram, sampling: Awaitable[T]) -> T:
        assert session.pending is not None, "a request is answered"
        return await session.pending.deliver(sampling)

    async def refuse(self, state: State, session: RunningProgram, error: EngineError) -> Transition:
        """Answer a request that exceeds the context with OpenAI's error, so that the program can shorten it."""
        progress, problem, pending = _progress(state), str(error), session.pending
        assert pending is not None, "a request was refused"
        is_withdrawn = isinstance(error, RequestWithdrawn)
        status = (410, None) if is_withdrawn else (400, "context_length_exceeded")
        pending.refuse(RequestError(problem, *status))
        past, refusals, verb = progress.past, progress.refusals + 1, "refused"
        if is_withdrawn:
            if pending.replies:
                raise session.fault(
                    f"left a request for {pending.request.count} replies after some of them"
                )
            refusals, verb = 0, "withdrawn"
        parts = (Part(f"The request was {verb}: {problem}", source="environment"),)
        if refusals <= MAX_REFUSALS:
            transition = await self._next(session, past, state.turns, refusals)
        elif past:
            transition = Transition(Progress(past), end=CONTEXT)
        else:
            raise session.fault(f"asks for too much: {problem}")
        return replace(transition, seen=(Observation(GATEWAY, parts), *transition.seen))

    async def _next(
        self,
        session: RunningProgram,
        past: tuple[Prompted, ...],
        turns: tuple[Turn, ...],
        refusals: int = 0,
    ) -> Transition:
        if (pending := await session.next_request()) is not None:
            request = pending.request
            history = (request.model, request.messages, request.stop, past, turns)
            waiting, observations = read_history(*history)
            limits = (request.tools, request.max_tokens, refusals)
            return Transition(Progress(past, waiting, len(observations), *limits), observations)
        if not past:
            problem = "ended without a model call that got a reply"
            raise session.fault(f"{problem}; give its client the session's base_url and api_key")
        if session.result is None:
            raise session.fault("returned no result; return or print a text or a number")
        answer, _ = _read_result(session.result)
        return Transition(Progress(past, result=session.result), answer=answer, end=ANSWERED)

    async def grade(self, state: State, session: RunningProgram) -> Grade:
        """Return the result as the reward. A program that was cut off has no result, which scores 0."""
        result, counts = _progress(state).result, self._counts(state)
        if result is None:
            return Grade(0.0, counts)
        score, rewards = read_reward(result, self.settings, self.actors)
        return Grade(score, counts, rewards)

    def _counts(self, state: State) -> dict[str, float]:
        """Return the number of calls of each role, and warn of a role without any."""
        counts = {f"calls/{role}": 0.0 for role in self.actors}
        for turn in state.turns:
            if turn.sample is not None or turn.speaker.name in self.actors:
                counts[f"calls/{turn.speaker.name}"] += 1
        for role in [role for role in self.actors if not counts[f"calls/{role}"]]:
            self._say(f"role {role}", f"never asked the model {role!r} in task {state.task.id}")
        return counts

    def _say_differences(self, pending: PendingRequest, turn: Turn) -> None:
        """Warn once of settings of a request that have no effect."""
        request, sample = pending.request, turn.sample
        used = {} if sample is None else {"temperature": sample.temperature, "top_p": sample.top_p}
        for name, value in request.sampling.items():
            if (sampled := used.get(name, value)) != value:
                self._say(name, f"asks for {name}={value:g}; the run samples with {sampled:g}")
        for note in request.notes:
            self._say(note, f"asks for {note}")

    def _say(self, key: str, problem: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("the program %s", problem)


class Program(ModelCalls, Question):
    """A user's program, which is started for each episode."""

    settings_type = ProgramSettings
    rewards: Mapping[str, str] = MappingProxyType({**Question.rewards, "program": "reward"})
    default_prompts: Mapping[str, str] = MappingProxyType({})
    settings: ProgramSettings

    def __init__(self, settings: ProgramSettings, rows: Rows) -> None:
        Question.__init__(self, settings, rows)
        ModelCalls.__init__(self, settings)
        self.needs = (*self.needs, Gateway)
        if settings.agent is not None:
            plugin = find(AGENTS, settings.agent)
            self._function, source = plugin.thing, plugin.source
            try:
                inspect.signature(self._function).bind({}, None)
            except (TypeError, ValueError) as error:
                problem = f"{plugin} can't be called with a task and a session: {error}"
                raise UserError(problem, "write def NAME(task, session)") from error
        else:
            words = shlex.split(settings.command or "")
            source = digest([sha256(Path(word)) for word in words if Path(word).is_file()])
        self.version = f"{self.version} program {source}"
        self._key = digest(self.version, settings.model_dump_json())

    def default_reward(self, rows: Rows) -> str:
        return "program"

    @asynccontextmanager
    async def open(
        self, task: Task, seed: int, shared: Shared
    ) -> AsyncIterator[RunningProgram | None]:
        """Start the program of one episode; it is ended with the block. None if only a first prompt is needed."""
        if Gateway not in shared and (self._key, task.id) in _openings:
            yield None
            return
        async with AsyncExitStack() as stack:
            # A plan asks for the first prompts before the run opens its gateway.
            if Gateway not in shared:
                shared = Shared(await stack.enter_async_context(open_gateway()))
            gateway = shared[Gateway]
            session = gateway.open_session(self.actors)
            limit = f", or has reached environment.turns={self.settings.turns}"
            stack.callback(gateway.close_session, session, limit)
            values, seconds = self._values(task), self.settings.seconds
            if self.settings.command is None:
                outcome = _call(self._function, values, session)
                program = RunningProgram(session, shared, seconds, outcome)
            else:
                folder = Path(stack.enter_context(TemporaryDirectory(prefix="coterie-program-")))
                process = _Process(shlex.split(self.settings.command), folder, values, session)
                program = RunningProgram(session, shared, seconds, process.run())
                program.output = process.output
            try:
                yield program
            finally:
                await program.close()

    def _values(self, task: Task) -> dict[str, Any]:
        """Return the task as the program gets it: the columns of its row, without its answer."""
        item = self._items[task.id]
        # A column that holds a hidden field is left out as a whole.
        hidden = {path.partition(".")[0] for path in item.hidden}
        columns = {name: value for name, value in item.row.items() if name not in hidden}
        return {**columns, **task.public, "id": task.id}

    async def begin(self, task: Task, session: RunningProgram | None) -> Transition:
        if session is None:
            return _openings[self._key, task.id]
        transition = _openings[self._key, task.id] = await super().begin(task, session)
        return transition

    async def grade(self, state: State, session: RunningProgram) -> Grade:
        """Grade the result, or return it as the reward."""
        if self.reward == "program":
            return await super().grade(state, session)
        text, _ = _read_result(_progress(state).result)
        sandbox = session.shared[self.needs[0]] if self.reward == "code" else None
        grade = await self._grade(self._items[state.task.id], text, sandbox)
        return Grade(grade.score, {**self._counts(state), **grade.metrics}, grade.rewards)


def _progress(state: State) -> Progress:
    assert isinstance(state.data, Progress)
    return state.data


def _waiting(state: State) -> Prompted:
    """Return the current request, whose new observations have no ids yet."""
    waiting = _progress(state).waiting
    assert waiting is not None, "a request waits until the end"
    return waiting


def _prompt(state: State, turns: tuple[Turn, ...]) -> Prompted:
    """Return the current request; ``turns`` are all turns before its reply."""
    return with_turns(_waiting(state), turns[len(turns) - _progress(state).new :])


def _read_result(result: Any) -> tuple[str, float | None]:
    """Return a result as a text, and as a number if it is one or has one as its ``reward``."""
    if isinstance(result, Mapping):
        number = as_number(result.get("reward"))
        answer = result.get("answer", result if number is None else number)
        text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        return _storable(text), number
    return "" if result is None else _storable(str(result)), as_number(result)


def _storable(text: str) -> str:
    """Return a text of a program with a question mark for each half of a character, which no store takes."""
    return text.encode(errors="replace").decode()


def read_reward(
    result: Any, settings: Any, roles: Collection[str]
) -> tuple[float, dict[str, float]]:
    """Return the score of a result, scaled from ``settings.reward_range``, and the rewards of its roles.

    Raises ``UserError`` if one of them is no number, out of range, or of a role that does not exist.
    """
    text, number = _read_result(result)
    if number is None:
        problem = f"the program returned {text[:80]!r}, which is no reward"
        raise UserError(problem, "return a number, or grade the result with environment.reward")
    low, high = settings.reward_range
    if not low <= number <= high:
        problem = f"the program returned the reward {number:g}, outside of {low:g} to {high:g}"
        raise UserError(problem, "declare its range: environment.reward_range=[LOW,HIGH]")
    role_rewards = result.get("rewards") or {} if isinstance(result, Mapping) else {}
    if not isinstance(role_rewards, Mapping):
        problem = f"rewards is {role_rewards!r:.80}, which names no roles"
        raise UserError(problem, 'write them as {"ROLE": NUMBER}')
    rewards = {str(role): as_number(reward) for role, reward in role_rewards.items()}
    if wrong := [role for role, reward in rewards.items() if role not in roles or reward is None]:
        problem = f"rewards has {role_rewards[wrong[0]]!r:.80} for {wrong[0]!r}"
        raise UserError(problem, f"give numbers for roles: {', '.join(roles)}")
    return (number - low) / (high - low), {r: n for r, n in rewards.items() if n is not None}


# -- functions -------------------------------------------------------------------------------------


async def _call(function: Callable[..., Any], task: dict[str, Any], session: GatewaySession) -> Any:
    """Run a user's function outside of this event loop, which has to answer its requests."""

    async def coroutine() -> Any:
        try:
            return await function(task, session)
        except asyncio.CancelledError:
            raise
        # An exit would end the event loop of all programs.
        except BaseException as error:
            raise RuntimeError(last_line(error)) from error

    def run(future: Future[Any]) -> None:
        # The episode may have ended, for example at its limit of turns.
        with suppress(InvalidStateError):
            try:
                result = function(task, session)
            except BaseException as error:
                future.set_exception(RuntimeError(last_line(error)))
            else:
                future.set_result(result)

    if inspect.iscoroutinefunction(function):
        future = asyncio.run_coroutine_threadsafe(coroutine(), _agents_loop())
    else:
        future = Future()
        # A daemon, so that a function that never ends does not keep the run from ending.
        threading.Thread(target=run, args=(future,), name="coterie-program", daemon=True).start()
    return await asyncio.wrap_future(future)


@cache
def _agents_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all asynchronous programs, which may share clients that belong to a loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="coterie-programs", daemon=True).start()
    return loop


# -- commands --------------------------------------------------------------------------------------


class _Process:
    """A command with its own folder and process group. No process of it outlives the episode or the run."""

    def __init__(
        self, command: list[str], folder: Path, task: dict[str, Any], session: GatewaySession
    ) -> None:
        self._command, self._folder = command, folder
        file = folder / "coterie-task.json"
        file.write_text(json.dumps(task, ensure_ascii=False, default=str), encoding="utf-8")
        # `python` is coterie's interpreter, also where its environment is not activated.
        path = os.pathsep.join(
            (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        )
        self._variables = {
            **os.environ,
            "PATH": path,
            "OPENAI_BASE_URL": session.base_url,
            "OPENAI_API_BASE": session.base_url,
            "OPENAI_API_KEY": session.api_key,
            "COTERIE_TASK": str(file),
            "COTERIE_MODELS": ",".join(session.models),
        }
        self._out, self._err = _Tail(), _Tail()

    def output(self) -> str:
        return f"{self._out.text}\n{self._err.text}"

    async def run(self) -> Any:
        """Run the command to its end and return its result."""
        process = await asyncio.create_subprocess_exec(
            *guarded(self._command, GRACE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._folder,
            env=self._variables,
        )
        assert (
            process.stdin is not None and process.stdout is not None and process.stderr is not None
        )
        reading = asyncio.gather(self._out.read(process.stdout), self._err.read(process.stderr))
        try:
            # The guard ends after the command and all of its children, so the output ends, too.
            status = await process.wait()
            await reading
        finally:
            # The guard ends the command and its children when its input is closed.
            process.stdin.close()
            await asyncio.shield(asyncio.gather(process.wait(), reading, return_exceptions=True))
        if status:
            raise RuntimeError(f"exit status {status}")
        return self._out.result()


class _Tail:
    """End of an output."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    async def read(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(2**16):
            self._bytes += piece
            del self._bytes[:-OUTPUT]

    @property
    def text(self) -> str:
        return self._bytes.decode(errors="replace")

    def result(self) -> Any:
        """Return the last line with a text, as JSON where it is JSON; ``None`` without output."""
        line = next((line for line in reversed(self.text.splitlines()) if line.strip()), None)
        with suppress(ValueError, RecursionError):
            return line and json.loads(line)
        return line
