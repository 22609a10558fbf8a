"""Conversation loop of ``coterie chat``, with streamed replies and tool calls."""

import asyncio
import io
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.resolve import resolve
from coterie.config.settings import Settings
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, Sampling
from coterie.engines.settings import EngineSettings
from coterie.environments.protocol import Shared
from coterie.errors import CONTROL_CHARACTERS
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load
from coterie.recipes.base import recorded_run
from coterie.record.tree import Tree
from coterie.record.turn import Finish, Message, Part, Speaker, Tool, ToolCall, Turn, make_turn
from coterie.runs.run import find_run
from coterie.terminal import notes
from coterie.tools.calls import (
    Function,
    NativeCalls,
    SessionSource,
    Tags,
    template_tools,
    validate_calls,
)
from coterie.tools.registry import Toolbox, ToolsSettings, open_toolbox, sources_of, syntax_of
from coterie.tools.sandbox.pool import Sandbox

TOOLS = Speaker("tool", "tools")
NEW = "/new"
"""Input line that starts a new conversation."""
MIN_ROOM = 8
"""Minimum number of context tokens for a reply."""
READER = "assistant"


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


@asynccontextmanager
async def open_tools(
    settings: ToolsSettings, renderer: ChatRenderer, seed: int
) -> AsyncIterator[ChatTools | None]:
    """Open the tools of the settings; yield ``None`` if no tool is set."""
    if not settings.use:
        yield None
        return
    sources = sources_of(settings.use, settings.config)
    syntax = syntax_of(sources, settings)
    # Raises an error if the chat template has no syntax for calls.
    if isinstance(syntax, NativeCalls):
        renderer.tools.required()
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(open_toolbox(sources, settings))
        # Tools with a state, such as an interpreter, run in the sandbox.
        session_sources = [source for source in sources if isinstance(source, SessionSource)]
        if session_sources:
            shared = Shared(await stack.enter_async_context(Sandbox()))
            functions = dict[str, Function]()
            for source in session_sources:
                functions |= await stack.enter_async_context(source.open_session(seed, shared))
            box = box.beside(functions)
        offered = tuple(tool for source in sources for tool in source.tools)
        yield ChatTools(box, offered, syntax, settings)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Command-line options of a chat."""

    temperature: float
    max_tokens: int
    seed: int | None
    system: str


@dataclass(slots=True)
class Conversation:
    """Message history and the model that answers."""

    engine: InProcessEngine
    options: ChatOptions
    opening: tuple[Message, ...]
    tools: ChatTools | None = None
    tree: Tree = field(default_factory=lambda: Tree("chat", "chat", 0))
    history: list[Message] = field(default_factory=list)

    async def reply(self, show: Callable[[str], None]) -> None:
        """Sample a reply and run its tool calls. Streams text to ``show``. Raises ``EngineError``."""
        start = len(self.history)
        rounds = self.tools.settings.rounds if self.tools else 0
        try:
            # After the last round of calls, the reply is final even if it calls again.
            for rounds_left in range(rounds, -1, -1):
                turn = await self._sample(show)
                if not turn.calls or not rounds_left or self.tools is None:
                    return
                answer = await self.tools.answer(turn)
                self.tree.add(answer)
                self.history.append(Message(self.tools.syntax.role, turn=answer.id))
                calls = {call.id: f"[{call.name} {call.arguments}]" for call in turn.calls}
                results = (f"{calls[result.call_id]}\n{result.text}" for result in answer.results)
                show("\n" + "\n".join(results) + "\n")
        # Turns without a final reply are removed, so that the next prompt is valid.
        except BaseException:
            del self.history[start:]
            raise

    async def _sample(self, show: Callable[[str], None]) -> Turn:
        """Sample one message. Later prompts contain its exact tokens."""
        loaded, streamed, tree = self.engine.loaded, "", self.tree
        renderer = loaded.renderer
        messages = [*self.opening, *self.history]
        tools = template_tools(self.tools.syntax, self.tools.tools) if self.tools else ()
        prompt = renderer.render(messages, tree, READER, tools=tools)
        room = loaded.context_length - len(prompt)
        if room < MIN_ROOM:
            raise EngineError(
                f"the conversation has {len(prompt)} of at most {loaded.context_length} tokens; "
                f"type {NEW} to start again"
            )
        ids: list[int] = []

        def stream(token: int) -> None:
            nonlocal streamed
            if token in {*renderer.end, *renderer.end_ids}:
                return
            ids.append(token)
            text = renderer.decode(ids).rstrip("\ufffd")  # an incomplete character
            show(text[len(streamed) :])
            streamed = text

        options, stop = self.options, self.tools.syntax.stop if self.tools else ()
        max_tokens = min(room, options.max_tokens)
        sampling = Sampling(options.temperature, max_tokens=max_tokens, stop=stop)
        seed = secrets.randbits(31) if options.seed is None else options.seed
        # A fixed seed still differs for each message.
        seeds = [seed + len(self.history)]
        (completion,) = await self.engine.sample(prompt, seeds, sampling, on_token=stream)
        parts = renderer.parts(completion.text + completion.stop, READER, "chat", completion.ids)
        text = "".join(part.text for part in parts)
        # Shows the rest that streaming held back, such as an incomplete character.
        show(text[len(streamed) :])
        past = [message.turn for message in self.history if message.turn]
        turn = make_turn(
            past[-1] if past else tree.root,
            Speaker("agent", READER),
            parts,
            ids=completion.ids,
            calls=self.tools.calls(text, completion.finish, renderer) if self.tools else (),
            author="chat",
            # Keeps turns apart that are equal, for example after a new conversation.
            draw=len(tree.turns),
        )
        tree.add(turn)
        self.history.append(Message("assistant", turn=turn.id))
        return turn


class ChatSettings(Settings):
    """Settings of a chat with a model."""

    engine: EngineSettings = EngineSettings()
    tools: ToolsSettings = ToolsSettings()


def read_settings(overrides: Sequence[str]) -> ChatSettings:
    where = "use engine.KEY=VALUE, tools=[NAME] or tools.KEY=VALUE"
    return resolve(ChatSettings, (), overrides, where=where)


def open_engine(source: str, iteration: int | None, overrides: Sequence[str]) -> InProcessEngine:
    """Load a model, or a run's policy (by default the newest), with settings as ``key=value``."""
    engine = read_settings(overrides).engine
    run_and_step = find_run(source)
    if iteration is None and run_and_step is None:
        loaded = load(source, device=engine.device_name, template_args=engine.template)
        return InProcessEngine(loaded, max_batch=engine.max_batch)
    folder, step = run_and_step or (Path(source), None)
    # A recorded run has its own settings, and only the engine's may change.
    overrides = [pair for pair in overrides if pair.startswith("engine")]
    with recorded_run(folder, overrides) as (recipe, run):
        version = recipe.find_version(run, None, iteration, step)
        loaded = recipe.models(run).load(recipe.main_role, version)
        return InProcessEngine(loaded, max_batch=recipe.settings.engine.max_batch)


def talk(
    source: str, iteration: int | None, overrides: Sequence[str], options: ChatOptions
) -> None:
    """Run a conversation until the end of input or Ctrl-C."""
    tools = read_settings(overrides).tools
    system = (Message.of("system", options.system),) if options.system else ()
    with suppress(KeyboardInterrupt):
        engine = open_engine(source, iteration, overrides)
        with asyncio.Runner() as runner:
            # The tools stay open across several calls of the runner, so the context is entered by hand.
            context = open_tools(tools, engine.loaded.renderer, options.seed or 0)
            box = runner.run(context.__aenter__())
            try:
                opening = system if box is None else box.describe(system)
                _converse(Conversation(engine, options, opening, box), runner)
            finally:
                runner.run(context.__aexit__(None, None, None))
    if sys.stdin.isatty():
        print()


def _converse(conversation: Conversation, runner: asyncio.Runner) -> None:
    history = conversation.history
    for line in _lines():
        if line == NEW:
            history.clear()
        elif line:
            history.append(Message.of("user", line))
            try:
                runner.run(conversation.reply(_print))
                print(flush=True)
            except EngineError as error:
                # A message without a reply is removed.
                history.pop()
                notes().print(str(error), style="yellow")


def _print(text: str) -> None:
    print(text.translate(CONTROL_CHARACTERS), end="", flush=True)


def _lines() -> Iterator[str]:
    # Standard input may contain any bytes.
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
