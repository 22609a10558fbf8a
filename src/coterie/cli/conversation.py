"""Conversation loop of ``coterie chat``, with streamed replies and tool calls."""

import asyncio
import io
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from coterie.config.folders import encoded
from coterie.config.resolve import resolve, wrong_at
from coterie.config.settings import Settings
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.engines.settings import EngineSettings
from coterie.environments.protocol import Shared
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load
from coterie.recipes.base import recorded_run
from coterie.record.tree import Tree
from coterie.record.turn import (
    Finish,
    Message,
    Part,
    Role,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    make_turn,
)
from coterie.rollout.episodes import FirstPrompt, first_prompts
from coterie.terminal import notes
from coterie.tools.calls import Function, NativeCalls, SessionSource, template_tools, validate_calls
from coterie.tools.registry import Toolbox, ToolsSettings, open_toolbox, sources_of, syntax_of
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.tags import Tags

TOOLS = Speaker("tool", "tools")


@dataclass(frozen=True, slots=True)
class ChatTools:
    """Open tools of a conversation."""

    toolbox: Toolbox
    tools: tuple[Tool, ...]
    syntax: Tags | NativeCalls
    settings: ToolsSettings

    def describe(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Add a description of the tools to the messages, unless the chat template shows them."""
        return self.syntax.with_tools(messages, self.tools)

    @property
    def by_template(self) -> tuple[Tool, ...]:
        """Tools that the chat template shows."""
        return template_tools(self.syntax, self.tools)

    @property
    def role(self) -> Role:
        return self.syntax.role

    def calls(self, text: str, finish: Finish, renderer: ChatRenderer) -> tuple[ToolCall, ...]:
        if isinstance(self.syntax, NativeCalls):
            calls = renderer.calls(text, finish, self.tools)
        else:
            calls = self.syntax.parse(text, finish)
        return validate_calls(calls, self.tools, max_calls=self.settings.max_calls)

    async def answer(self, turn: Turn) -> Turn:
        """Run a turn's calls and return the results as the next turn. Raises ``ToolUnavailable``."""
        results = await self.toolbox.run(turn.calls, self.tools, turn.whole_text)
        text = self.syntax.show(results)
        parts = (Part(text, source="results"),) if text else ()
        return make_turn(turn.id, TOOLS, parts, results=results, author="environment")


def format_calls(turn: Turn, results: Sequence[ToolResult]) -> list[str]:
    """Format a turn's calls and their results for the terminal."""
    by_call = {result.call_id: result for result in results}
    return [
        f"[{call.name} {call.arguments}]\n{by_call[call.id].text}"
        for call in turn.calls
        if call.id in by_call
    ]


@asynccontextmanager
async def open_tools(
    settings: ToolsSettings, renderer: ChatRenderer, seed: int
) -> AsyncIterator[ChatTools | None]:
    """Open the tools of the settings; yield ``None`` if no tool is set.

    Raises:
        UserError: A tool is unavailable, or the model can't call tools this way.
    """
    if not settings.use:
        yield None
        return
    sources = sources_of(settings.use, settings.config)
    syntax = syntax_of(sources, settings)
    if isinstance(syntax, NativeCalls):
        renderer.tools.required()
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(open_toolbox(sources, settings))
        session_sources = [source for source in sources if isinstance(source, SessionSource)]
        if session_sources:
            shared, own = Shared(await stack.enter_async_context(Sandbox())), dict[str, Function]()
            for source in session_sources:
                own |= await stack.enter_async_context(source.open_session(seed, shared))
            box = box.beside(own)
        offered = tuple(tool for source in sources for tool in source.tools)
        yield ChatTools(box, offered, syntax, settings)


NEW = "/new"
"""Input line that starts a new conversation."""
MIN_ROOM = 8
"""Minimum number of context tokens for a reply."""
READER = "assistant"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Command-line options of a chat."""

    temperature: float
    max_tokens: int
    seed: int | None
    system: str
    task: int | None


@dataclass(slots=True)
class Conversation:
    """Message history and the model that answers."""

    engine: InProcessEngine
    options: ChatOptions
    opening: FirstPrompt
    reader: str = READER
    tools: ChatTools | None = None
    history: list[Message] = field(default_factory=list)

    async def reply(self, show: Callable[[str], None]) -> None:
        """Sample a reply and run its tool calls. Streams text to ``show``. Raises ``EngineError``."""
        before = len(self.history)
        rounds = self.tools.settings.rounds if self.tools else 0
        try:
            for left in range(rounds, -1, -1):
                turn = await self._sample(show)
                if not turn.calls or not left or self.tools is None:
                    return
                answer = await self.tools.answer(turn)
                self.opening.tree.add(answer)
                self.history.append(Message(self.tools.role, turn=answer.id))
                show("\n" + "\n".join(format_calls(turn, answer.results)) + "\n")
        except BaseException:
            del self.history[before:]
            raise

    async def _sample(self, show: Callable[[str], None]) -> Turn:
        """Sample one message. Later prompts contain its exact tokens."""
        renderer, streamed, tree = self.engine.loaded.renderer, "", self.opening.tree
        messages = [*self.opening.messages, *self.history]
        tools = self.tools.by_template if self.tools else ()
        prompt = renderer.render(messages, tree, self.reader, tools=tools)
        room = self.engine.loaded.context_length - len(prompt)
        if room < MIN_ROOM:
            raise EngineError(
                f"the conversation has {len(prompt)} of at most "
                f"{self.engine.loaded.context_length} tokens; type {NEW} to start again"
            )
        ids: list[int] = []

        def stream(token: int) -> None:
            nonlocal streamed
            if token in renderer.end_ids:
                return
            ids.append(token)
            text = renderer.decode(ids).rstrip("\ufffd")  # an incomplete character
            show(text[len(streamed) :])
            streamed = text

        stop = self.tools.syntax.stop if self.tools else ()
        max_tokens = min(room, self.options.max_tokens)
        sampling = Sampling(self.options.temperature, max_tokens=max_tokens, stop=stop)
        seed = secrets.randbits(31) if self.options.seed is None else self.options.seed
        (completion,) = await self.engine.sample(
            prompt, [seed + len(self.history)], sampling, on_token=stream
        )
        text = completion.text + completion.stop
        show(text[len(streamed) :])
        calls = self.tools.calls(text, completion.finish, renderer) if self.tools else ()
        parent = (
            next((message.turn for message in self.history[::-1] if message.turn), None)
            or tree.root
        )
        speaker, count = Speaker("agent", self.reader), len(tree.turns)
        turn = make_turn(
            parent,
            speaker,
            [Part(text)],
            ids=completion.ids,
            calls=calls,
            author="chat",
            draw=count,
        )
        tree.add(turn)
        self.history.append(Message("assistant", turn=turn.id))
        return turn


def parse_tools(names: str, words: Sequence[str]) -> ToolsSettings:
    """Parse the options ``--tools`` and ``--tool``. Raises ``UserError`` for invalid values."""
    use = tuple(name for name in names.split(",") if name)
    values = dict(word.partition("=")[::2] for word in words)
    try:
        return ToolsSettings.model_validate({**values, "use": use})
    except ValidationError as error:
        problems = "; ".join(map(wrong_at, error.errors()))
        raise UserError(
            f"--tool: {problems}",
            "give a key of the group tools (`coterie config optima/isft tools`), such as calls=tags",
        ) from error


class ChatSettings(Settings):
    """Settings of a chat with a model."""

    engine: EngineSettings = EngineSettings()


def open_engine(source: str, iteration: int | None, words: Sequence[str]) -> InProcessEngine:
    """Load a model, or a run's policy (by default the newest), with engine settings as ``key=value``.

    Raises:
        UserError: The settings are invalid, the policy does not exist, or the model can't be loaded.
    """
    own = resolve(ChatSettings, (), words, where="use engine.KEY=VALUE").engine
    if not (Path(source) / "config.yaml").is_file():
        if iteration is not None:
            raise UserError(f"--iteration: {source} is not a run folder", "leave --iteration out")
        engine = own
        loaded = load(source, device=own.device_name, template_args=own.template_args)
    else:
        with recorded_run(Path(source), words) as (recipe, run):
            engine, versions = recipe.settings.engine, recipe.versions(run)
            version = versions[-1] if iteration is None else iteration
            if version not in versions:
                raise UserError(
                    f"{source} has no policy {version}; it has {', '.join(map(str, versions))} (0 is the base)",
                    "give one of these with --iteration, or continue the run",
                )
            loaded = recipe.load_policy(run, version)
    return InProcessEngine(loaded, max_batch=engine.max_batch, timeout=engine.timeout)


def talk(
    source: str,
    iteration: int | None,
    words: Sequence[str],
    options: ChatOptions,
    tools: ToolsSettings,
) -> None:
    """Run a conversation until the end of input or Ctrl-C."""
    encoded(options.system, "--system")
    if options.task is not None:
        opening, reader = _task_opening(source, options)
    else:
        messages = (Message.of("system", options.system),) if options.system else ()
        opening, reader = FirstPrompt(messages, Tree("chat", "chat", 0)), READER
    with suppress(KeyboardInterrupt):
        engine = open_engine(source, iteration, words)
        with asyncio.Runner() as runner, _run_tools(runner, engine, tools, options) as box:
            if box is not None:
                opening = replace(opening, messages=box.describe(opening.messages))
            _converse(Conversation(engine, options, opening, reader, box), runner)
    if sys.stdin.isatty():
        print()


@contextmanager
def _run_tools(
    runner: asyncio.Runner, engine: InProcessEngine, tools: ToolsSettings, options: ChatOptions
) -> Iterator[ChatTools | None]:
    context = open_tools(tools, engine.loaded.renderer, options.seed or 0)
    box = runner.run(context.__aenter__())
    try:
        yield box
    finally:
        runner.run(context.__aexit__(None, None, None))


def _converse(conversation: Conversation, runner: asyncio.Runner) -> None:
    """Alternate user and model turns. The model starts if the opening asks it something."""
    opening = conversation.opening.messages
    model_starts = bool(opening) and opening[-1].role != "system"
    if model_starts:
        _answer(conversation, runner)
    for line in _lines():
        if line == NEW:
            conversation.history.clear()
            if model_starts:
                _answer(conversation, runner)
        elif line:
            conversation.history.append(Message.of("user", line))
            if not _answer(conversation, runner):
                conversation.history.pop()


def _answer(conversation: Conversation, runner: asyncio.Runner) -> bool:
    try:
        runner.run(conversation.reply(lambda text: print(text, end="", flush=True)))
    except EngineError as error:
        notes().print(str(error), style="yellow")
        return False
    print(flush=True)
    return True


def _lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    with suppress(ImportError):
        import readline  # noqa: F401 - enables line editing
    with suppress(EOFError):
        while True:
            yield input("> ").strip()


def _task_opening(source: str, options: ChatOptions) -> tuple[FirstPrompt, str]:
    """Print and return the first prompt of a held-out task, and the name of its agent."""
    if options.system:
        raise UserError("--system and --task both set the first prompt", "give one of them")
    if not (Path(source) / "config.yaml").is_file():
        raise UserError(f"--task: {source} is not a run folder", "leave --task out, or give a run")
    assert options.task is not None
    with recorded_run(Path(source)) as (recipe, _):
        tasks = recipe.heldout_tasks()
        if options.task >= len(tasks):
            raise UserError(
                f"--task {options.task}: the run has {len(tasks)} held-out tasks",
                f"give a number from 0 to {len(tasks) - 1}",
            )
        first = recipe.roles()[0].name
        agent = next(agent for agent, role in recipe.players().items() if role == first)
        opening = first_prompts(recipe.environment, tasks[options.task])[agent]
    for message in opening.messages:
        turn_parts = opening.tree.turns[message.turn].parts if message.turn else ()
        parts = (*message.parts, *turn_parts)
        text = "".join(part.text for part in parts if part.visible_to(agent))
        notes().print(f"[{message.role}] {text}")
    return opening, agent
