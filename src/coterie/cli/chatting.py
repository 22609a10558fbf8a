"""The conversation of ``coterie chat``: lines of a person, replies that are shown as they grow."""

import asyncio
import io
import itertools
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
from coterie.recipes.recorded_run import recorded_run
from coterie.recipes.registry import recipe as recipe_of
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
    """The tools of a conversation, open."""

    toolbox: Toolbox
    tools: tuple[Tool, ...]
    syntax: Tags | NativeCalls
    settings: ToolsSettings

    def told(self, shown: Sequence[Message]) -> tuple[Message, ...]:
        """Messages that tell of them, where the model's template does not."""
        return self.syntax.with_tools(shown, self.tools)

    @property
    def by_template(self) -> tuple[Tool, ...]:
        """The tools that the model's template shows."""
        return template_tools(self.syntax, self.tools)

    @property
    def role(self) -> Role:
        return self.syntax.role

    def calls(self, text: str, finish: Finish, renderer: ChatRenderer) -> tuple[ToolCall, ...]:
        if isinstance(self.syntax, NativeCalls):
            found = renderer.calls(text, finish, self.tools)
        else:
            found = self.syntax.parse(text, finish)
        return validate_calls(found, self.tools, max_calls=self.settings.max_calls)

    async def answer(self, turn: Turn) -> Turn:
        """The results of a turn's calls, as the turn after it. Raises ``ToolUnavailable``."""
        results = await self.toolbox.run(turn.calls, self.tools, turn.whole_text)
        shown = self.syntax.show(results)
        parts = (Part(shown, source="results"),) if shown else ()
        return make_turn(turn.id, TOOLS, parts, results=results, author="environment")


def lines_of(turn: Turn, results: Sequence[ToolResult]) -> list[str]:
    """Calls with their results, as a person is shown them."""
    told = {one.call_id: one for one in results}
    return [
        f"[{call.name} {call.arguments}]\n{told[call.id].text}"
        for call in turn.calls
        if call.id in told
    ]


@asynccontextmanager
async def open_tools(
    settings: ToolsSettings, renderer: ChatRenderer, seed: int
) -> AsyncIterator[ChatTools | None]:
    """The tools; ``None`` if there are none. Raises ``UserError`` for what can't be had, or called by this model."""
    if not settings.use:
        yield None
        return
    sources = sources_of(settings.use, settings.config)
    syntax = syntax_of(sources, settings)
    if isinstance(syntax, NativeCalls):
        renderer.tools.required()
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(open_toolbox(sources, settings))
        of_session = [one for one in sources if isinstance(one, SessionSource)]
        if of_session:
            shared, own = Shared(await stack.enter_async_context(Sandbox())), dict[str, Function]()
            for source in of_session:
                own |= await stack.enter_async_context(source.open_session(seed, shared))
            box = box.beside(own)
        offered = tuple(tool for source in sources for tool in source.tools)
        yield ChatTools(box, offered, syntax, settings)


NEW = "/new"
"""What a person types to begin anew."""
MIN_ROOM = 8
"""Tokens that must be left of the context for a reply."""
READER = "assistant"


@dataclass(frozen=True, slots=True)
class Manner:
    """How the model talks."""

    temperature: float
    max_tokens: int
    seed: int | None
    system: str
    task: int | None


@dataclass(slots=True)
class Conversation:
    """What was said so far, and the model that answers."""

    engine: InProcessEngine
    manner: Manner
    opening: FirstPrompt
    reader: str = READER
    tools: ChatTools | None = None
    said: list[Message] = field(default_factory=list)

    async def reply(self, show: Callable[[str], None]) -> None:
        """The model's next words, and what it calls; ``show`` gets them piece by piece. Raises ``EngineError``."""
        before = len(self.said)
        rounds = self.tools.settings.rounds if self.tools else 0
        try:
            for left in range(rounds, -1, -1):
                turn = await self._say(show)
                if not turn.calls or not left or self.tools is None:
                    return
                told = await self.tools.answer(turn)
                self.opening.tree.add(told)
                self.said.append(Message(self.tools.role, turn=told.id))
                show("\n" + "\n".join(lines_of(turn, told.results)) + "\n")
        except BaseException:
            del self.said[before:]
            raise

    async def _say(self, show: Callable[[str], None]) -> Turn:
        """One message of the model's, which is shown to it again as it was sampled."""
        renderer, shown, tree = self.engine.loaded.renderer, "", self.opening.tree
        messages = [*self.opening.messages, *self.said]
        offered = self.tools.by_template if self.tools else ()
        prompt = renderer.render(messages, tree, self.reader, tools=offered)
        room = self.engine.loaded.context_length - len(prompt)
        if room < MIN_ROOM:
            raise EngineError(
                f"the conversation has {len(prompt)} tokens, and the model takes "
                f"{self.engine.loaded.context_length}: {NEW} begins anew"
            )
        ids: list[int] = []

        def heard(token: int) -> None:
            nonlocal shown
            if token in renderer.end_ids:
                return
            ids.append(token)
            text = renderer.decode(ids).rstrip("\ufffd")  # a character that is not whole yet
            show(text[len(shown) :])
            shown = text

        stop = self.tools.syntax.stop if self.tools else ()
        most = min(room, self.manner.max_tokens)
        sampling = Sampling(self.manner.temperature, max_tokens=most, stop=stop)
        seed = secrets.randbits(31) if self.manner.seed is None else self.manner.seed
        (completion,) = await self.engine.sample(
            prompt, [seed + len(self.said)], sampling, on_token=heard
        )
        text = completion.text + completion.stop
        show(text[len(shown) :])
        calls = self.tools.calls(text, completion.finish, renderer) if self.tools else ()
        parent = next((one.turn for one in self.said[::-1] if one.turn), None) or tree.root
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
        self.said.append(Message("assistant", turn=turn.id))
        return turn


def tools_of(names: str, words: Sequence[str]) -> ToolsSettings:
    """The tools of the options ``--tools`` and ``--tool``. Raises ``UserError`` for words that are wrong."""
    use = tuple(name for name in names.split(",") if name)
    values = dict(word.partition("=")[::2] for word in words)
    try:
        return ToolsSettings.model_validate({**values, "use": use})
    except ValidationError as error:
        wrong = "; ".join(map(wrong_at, error.errors()))
        raise UserError(
            f"--tool: {wrong}",
            "give a key of the group tools (`coterie config optima/isft tools`), such as calls=tags",
        ) from error


class ChatSettings(Settings):
    """Settings of a chat with a model."""

    engine: EngineSettings = EngineSettings()


def open_engine(source: str, iteration: int | None, words: Sequence[str]) -> InProcessEngine:
    """Load a run's policy (the newest, unless ``iteration`` is given) or a model.

    ``words`` are settings of the engine. Raises :class:`UserError` for wrong settings, for a policy that the run has
    not trained, and all that :func:`~coterie.models.loading.load` refuses.
    """
    own = resolve(ChatSettings, (), words, where="use engine.KEY=VALUE").engine
    if not (Path(source) / "config.yaml").is_file():
        if iteration is not None:
            raise UserError(f"--iteration: {source} is not a run folder", "leave --iteration out")
        engine = own
        loaded = load(source, device=own.device_name, template_args=own.template_args)
    else:
        with recorded_run(Path(source), recipe_of, words) as (recipe, run):
            engine, have = recipe.settings.engine, recipe.versions(run)
            version = have[-1] if iteration is None else iteration
            if version not in have:
                raise UserError(
                    f"{source} has no policy {version} (it has {', '.join(map(str, have))}; 0 is the base)",
                    "give one of these with --iteration, or run it further",
                )
            loaded = recipe.load_policy(run, version)
    return InProcessEngine(loaded, max_batch=engine.max_batch, timeout=engine.timeout)


def talk(
    source: str, iteration: int | None, words: Sequence[str], manner: Manner, tools: ToolsSettings
) -> None:
    """Talk until the person's lines end, or Ctrl-C."""
    encoded(manner.system, "--system")
    if manner.task is not None:
        opening, reader = _opening(source, manner)
    else:
        told = (Message.of("system", manner.system),) if manner.system else ()
        opening, reader = FirstPrompt(told, Tree("chat", "chat", 0)), READER
    with suppress(KeyboardInterrupt):
        engine = open_engine(source, iteration, words)
        with asyncio.Runner() as runner, _opened(runner, engine, tools, manner) as has:
            if has is not None:
                opening = replace(opening, messages=has.told(opening.messages))
            _turns(Conversation(engine, manner, opening, reader, has), runner)
    if sys.stdin.isatty():
        print()


@contextmanager
def _opened(
    runner: asyncio.Runner, engine: InProcessEngine, tools: ToolsSettings, manner: Manner
) -> Iterator[ChatTools | None]:
    opening = open_tools(tools, engine.loaded.renderer, manner.seed or 0)
    found = runner.run(opening.__aenter__())
    try:
        yield found
    finally:
        runner.run(opening.__aexit__(None, None, None))


def _turns(conversation: Conversation, runner: asyncio.Runner) -> None:
    """The person and the model in turn; where the agent has been asked something, it begins."""
    opened = conversation.opening.messages
    begins = bool(opened) and opened[-1].role != "system"
    if begins:
        _answer(conversation, runner)
    for line in _lines():
        if line == NEW:
            conversation.said.clear()
            if begins:
                _answer(conversation, runner)
        elif line:
            conversation.said.append(Message.of("user", line))
            if not _answer(conversation, runner):
                conversation.said.pop()


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
        import readline  # noqa: F401 - lines can then be edited
    with suppress(EOFError):
        for _ in itertools.count():
            yield input("> ").strip()


def _opening(source: str, manner: Manner) -> tuple[FirstPrompt, str]:
    """What the run's agent is shown at the beginning of a held-out task, which is printed, and its name."""
    if manner.system:
        raise UserError("--system and --task both say what the model is told", "give one of them")
    if not (Path(source) / "config.yaml").is_file():
        raise UserError(f"--task: {source} is not a run folder", "leave --task out, or give a run")
    assert manner.task is not None
    with recorded_run(Path(source), recipe_of) as (recipe, _):
        tasks = recipe.heldout_tasks()
        if manner.task >= len(tasks):
            raise UserError(
                f"--task {manner.task}: the run has {len(tasks)} held-out tasks",
                f"give a number from 0 to {len(tasks) - 1}",
            )
        first = recipe.roles()[0].name
        agent = next(agent for agent, role in recipe.players().items() if role == first)
        opening = first_prompts(recipe.environment, tasks[manner.task])[agent]
    for message in opening.messages:
        of_turn = opening.tree.turns[message.turn].parts if message.turn else ()
        parts = (*message.parts, *of_turn)
        text = "".join(part.text for part in parts if part.visible_to(agent))
        notes().print(f"[{message.role}] {text}")
    return opening, agent
