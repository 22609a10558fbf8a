"""Tools by name (built-in tools, functions of a user's file, MCP servers), and the tools of a run."""

import asyncio
import inspect
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

from pydantic import ValidationError, create_model, field_validator

from coterie.config.folders import expanded
from coterie.config.plugins import (
    Kind,
    Plugin,
    absolute_name,
    construct,
    find,
    guarded,
    label,
    last_line,
    settings_type_of,
)
from coterie.config.resolve import read_yaml, wrong_at
from coterie.config.settings import OptionalPath, Settings, key
from coterie.errors import UserError
from coterie.record.turn import Tool, ToolCall, ToolResult, digest
from coterie.tools.calls import (
    MESSAGE,
    CallLimits,
    Function,
    NativeCalls,
    SessionSource,
    Tag,
    Tags,
    ToolError,
    ToolSource,
    check_tools,
    run_calls,
)


class ToolsSettings(CallLimits):
    """Tools of agents, in addition to the environment's tools."""

    main: ClassVar[str] = "use"

    use: tuple[str, ...] = key(
        (),
        "Tools: names, mcp:COMMAND, mcp:URL, and your functions (path/file.py:NAME, package.module:NAME), such as "
        "[wiki_search, path/file.py:multiply].",
    )
    config: OptionalPath = key(
        None, "A YAML file that defines names in `use` (docs/howto/tools.md)."
    )
    calls: Literal["native", "tags", "inline"] = key(
        "native",
        "Syntax of calls: the model's chat template; tags, for models without one; or tags whose results are inserted "
        "into the agent's message (as in GAP).",
    )
    rounds: int = key(8, "Messages with calls before each answer; the next is the answer.", ge=1)
    max_total_calls: int = key(64, "Calls per dialogue.", ge=1)
    repeats: Literal["refuse", "run"] = key("refuse", "Whether an earlier call runs again.")

    @field_validator("use")
    @classmethod
    def _resolve(cls, use: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_name, use))

    def identity(self) -> str:
        # Retries and concurrency change no result, and the tools have hashes of their own.
        return digest(self.model_dump_json(exclude={"use", "config", "tries", "width"}))


@dataclass(frozen=True, slots=True)
class Toolbox:
    """Open tools of a run."""

    functions: Mapping[str, Function]
    limits: CallLimits

    def beside(self, functions: Mapping[str, Function]) -> "Toolbox":
        return replace(self, functions={**self.functions, **functions})

    async def run(
        self, calls: Sequence[ToolCall], tools: Sequence[Tool], message: str
    ) -> tuple[ToolResult, ...]:
        """Run the calls of a message; return results in their order. Raises ``ToolUnavailable``."""
        # Tools such as ``crawl_page`` read the thoughts of the message that calls them.
        token = MESSAGE.set(message)
        try:
            return await run_calls(calls, tools, self.functions, self.limits)
        finally:
            MESSAGE.reset(token)


@asynccontextmanager
async def open_toolbox(sources: Sequence[ToolSource], limits: CallLimits) -> AsyncIterator[Toolbox]:
    """Open all tools. Raises ``UserError`` if one can't be opened."""
    async with AsyncExitStack() as stack:
        functions: dict[str, Function] = {}
        for source in sources:
            functions |= await stack.enter_async_context(source.open())
        yield Toolbox(functions, limits)


TOOLS = Kind(
    "tool",
    {
        "python": "coterie.tools.builtin:PythonTool",
        "code": "coterie.tools.builtin:CodeTool",
        "wiki_search": "coterie.tools.search:RetrieverTool",
        "web_search": "coterie.tools.search:WebSearch",
        "crawl_page": "coterie.tools.web:CrawlPage",
        "visual_inspector": "coterie.tools.builtin:VisualInspector",
        "mcp": "coterie.tools.mcp:McpSource",
    },
)
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
MEMBERS = ("tools", "tags", "identity", "open")
"""Members of a :class:`ToolSource`."""
MCP = "mcp:"
"""Prefix of the command or URL of an MCP server."""


class FunctionSource:
    """Source of one Python function. Raises ``UserError`` for a function without docstring or types."""

    def __init__(self, plugin: Plugin) -> None:
        function, name = plugin.thing, label(plugin.name)
        description = inspect.getdoc(function) if inspect.isfunction(function) else None
        if not description:
            raise UserError(
                f"{plugin} is not a function with a docstring",
                "write def NAME(word: str) -> str: ... and describe it: prompts show the first line",
            )
        parameters = inspect.signature(function).parameters.values()
        hints = guarded(f"the types of {plugin}", lambda: get_type_hints(function))
        starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if bad := [
            parameter.name
            for parameter in parameters
            if parameter.name not in hints or parameter.kind in starred
        ]:
            raise UserError(
                f"{plugin} has no type for {', '.join(bad)}, or stars before it",
                "name and annotate its parameters, from which its schema is made",
            )
        self._fields: dict[str, Any] = {
            parameter.name: (
                hints[parameter.name],
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for parameter in parameters
        }
        self._function = function
        # One model gives the schema for prompts and converts the arguments of calls.
        self._model = create_model(name, **self._fields)
        line = description.partition("\n")[0]
        self.tools: tuple[Tool, ...] = (Tool(name, line, self._model.model_json_schema()),)
        # A single argument can stand between tags without JSON.
        argument = next(iter(self._fields)) if len(self._fields) == 1 else None
        self.tags: Mapping[str, Tag] = {name: Tag(argument)}
        self.identity = plugin.source

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        yield {self.tools[0].name: self._call}

    async def _call(self, arguments: Mapping[str, Any]) -> str:
        """Call the function; errors are results for the agent."""
        try:
            values = self._model.model_validate(dict(arguments))
            call = partial(
                self._function, **{field: getattr(values, field) for field in self._fields}
            )
            is_async = inspect.iscoroutinefunction(self._function)
            return str(await (call() if is_async else _in_thread(call)))
        except ValidationError as error:
            raise ToolError("; ".join(map(wrong_at, error.errors()))) from error
        except ToolError:
            raise
        except Exception as error:
            # The agent reads this message, which must not show folders of this machine.
            raise ToolError(_without_folders(last_line(error))) from error


def _without_folders(text: str) -> str:
    """Replace paths of this machine by the names of their files."""
    text = re.sub(r"""(['"])~?/[^'"\n]*/([^'"/\n]*)\1""", r"\1\2\1", text)
    return re.sub(r"""(?<![\w:/.])~?/(?:[^\s/'":,()]+/)+""", "", text)


async def _in_thread(do: Callable[[], object]) -> object:
    """Run a blocking function in a daemon thread, so that time limits apply and the run can end."""
    future: Future[object] = Future()
    # A new thread has no context variables, such as the message of the call.
    context = copy_context()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(context.run(do))
        except StopIteration as error:  # coroutines refuse it
            future.set_exception(RuntimeError(last_line(error)))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tool", daemon=True).start()
    result = await asyncio.wrap_future(future)
    # A function may return a coroutine without being declared ``async``.
    return await result if inspect.isawaitable(result) else result


class PrefixedSource:
    """Source with a prefix before the names of tools that other sources have too."""

    def __init__(self, prefix: str, source: ToolSource, twice: frozenset[str]) -> None:
        self._source = source
        names = [tool.name for tool in source.tools]
        self._names = {name: f"{prefix}_{name}" if name in twice else name for name in names}
        self.tools: tuple[Tool, ...] = tuple(
            replace(tool, name=self._names[tool.name]) for tool in source.tools
        )
        self.tags: Mapping[str, Tag] = {self._names[name]: tag for name, tag in source.tags.items()}
        self.identity = digest(prefix, source.identity)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async with self._source.open() as functions:
            yield {self._names[name]: do for name, do in functions.items()}


def sources_of(names: Sequence[str], config: str | None) -> tuple[ToolSource, ...]:
    """Return the sources of names, with settings of the file ``config``. Cached: a server lists its tools once."""
    file = None if config is None else expanded(config)
    entries = {} if file is None else _entries(file)
    # A text, because arguments of a cached function must be hashable.
    return _sources(tuple(names), file, json.dumps(entries, default=str))


def sources_in(file: Path) -> tuple[ToolSource, ...]:
    """Return all sources of a tools file. Raises ``UserError`` like :func:`sources_of`."""
    return sources_of(tuple(_entries(file)), str(file))


def syntax_of(sources: Sequence[ToolSource], settings: ToolsSettings) -> Tags | NativeCalls:
    if settings.calls == "native":
        return NativeCalls()
    return tags_of_sources(sources, inline=settings.calls == "inline")


def tags_of_sources(sources: Sequence[ToolSource], *, inline: bool = False) -> Tags:
    tags: dict[str, Tag] = {}
    for source in sources:
        tags |= {tool.name: source.tags.get(tool.name, Tag()) for tool in source.tools}
    return Tags(tags, answer=None, inline=inline)


@cache
def _sources(names: tuple[str, ...], file: Path | None, text: str) -> tuple[ToolSource, ...]:
    entries = json.loads(text)
    sources = [_construct(name, entries, file) for name in names]
    # Only names that several sources share get a prefix.
    count = Counter(tool.name for source in sources for tool in source.tools)
    twice = frozenset(name for name in count if count[name] > 1)
    for index, (name, source) in enumerate(zip(names, sources, strict=True)):
        # Commands and URLs are no prefix, and a prefixed source can't open sessions.
        is_alike = any(tool.name in twice for tool in source.tools)
        if is_alike and _PLAIN.fullmatch(name) and not isinstance(source, SessionSource):
            sources[index] = PrefixedSource(name, source, twice)
    check_tools([tool for source in sources for tool in source.tools])
    return tuple(sources)


def _construct(name: str, entries: Mapping[str, Any], file: Path | None) -> ToolSource:
    values = dict(entries.get(name, {}))
    tool_name = str(values.pop("tool", name))
    if tool_name.startswith(MCP):
        values |= {"server": tool_name.removeprefix(MCP).strip()}
        tool_name = "mcp"
    plugin = find(TOOLS, tool_name)
    if not isinstance(plugin.thing, type):
        if values:
            raise UserError(f"{plugin} is a function and has no settings", f"correct {file}")
        return FunctionSource(plugin)
    settings_type = settings_type_of(plugin, Settings)
    # An entry of the file names its tool, unless the tool's settings say otherwise.
    if "name" in settings_type.model_fields and name in entries:
        values.setdefault("name", name)
    try:
        settings = settings_type.model_validate(values)
    except ValidationError as error:
        wrong = "; ".join(map(wrong_at, error.errors()))
        where = f"in {file}" if name in entries else "without settings"
        raise UserError(
            f"the tool {name} {where}: {wrong}",
            "give its settings in the file of tools.config (docs/howto/tools.md)",
        ) from error
    source: ToolSource = construct(plugin, Settings, settings)
    if missing := [name for name in MEMBERS if not hasattr(source, name)]:
        raise UserError(f"{plugin} has no {', '.join(missing)}", "write a function or a ToolSource")
    return source


def _entries(file: Path) -> dict[str, dict[str, Any]]:
    rows = read_yaml(file).get("tools")
    if not rows or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(
            f"{file} has no list of tools",
            "write `tools:`, and under it a list of entries with `name`, `tool` and the tool's settings",
        )
    entries: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = str(row.pop("name", row.get("tool")))
        if name in entries:
            raise UserError(f"{file} has two tools called {name!r}", "rename one of them")
        entries[name] = row
    return entries
