"""Tools by name: a function with typed parameters becomes a tool that agents may call."""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, get_type_hints

from pydantic import ValidationError, create_model

from coterie.config.plain import wrong_at
from coterie.config.plugins import Kind, Plugin, find, guarded, label, last_line
from coterie.errors import UserError
from coterie.tools.run import Function, ToolError
from coterie.trajectories.calls import Tool

TOOLS = Kind(
    "tool",
    {
        "python": "coterie.tools.python_tool:PythonTool",
        "code": "coterie.tools.code_tool:CodeTool",
        "wiki_search": "coterie.tools.retrieval.tool:RetrieverTool",
        "web_search": "coterie.tools.web.search:WebSearch",
        "crawl_page": "coterie.tools.web.pages:CrawlPage",
        "inspect_image": "coterie.tools.visual:VisualInspector",
        "mcp": "coterie.tools.mcp.source:McpSource",
    },
)


@dataclass(frozen=True, slots=True)
class OwnTool:
    """A tool, and what runs it."""

    tool: Tool
    do: Function
    parameters: tuple[str, ...]
    source: str


def own_tools(names: Sequence[str]) -> tuple[OwnTool, ...]:
    """The tools of these names, in their order.

    Raises ``UserError`` for what is not found, is not a function whose parameters have types, or has the name of
    another one.
    """
    found = [_tool(find(TOOLS, name)) for name in names]
    known = [one.tool.name for one in found]
    if twice := {name for name in known if known.count(name) > 1}:
        raise UserError(f"there are two tools called {min(twice)}", "rename one of the functions")
    return tuple(found)


def _without_folders(text: str) -> str:
    """Return a text in which paths of this machine are the names of their files."""
    text = re.sub(r"""(['"])~?/[^'"\n]*/([^'"/\n]*)\1""", r"\1\2\1", text)
    return re.sub(r"""(?<![\w:/.])~?/(?:[^\s/'":,()]+/)+""", "", text)


async def _apart(do: Callable[[], object]) -> object:
    """What a function gives that may wait, in a thread of its own: other dialogues go on, and the call has its time
    limit. One that never ends does not hold up the end of the run."""
    loop, context = asyncio.get_running_loop(), copy_context()
    found: asyncio.Future[object] = loop.create_future()

    def settle(how: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # the run has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if found.done() else how(what))

    def run() -> None:
        try:
            said = context.run(do)
        except StopIteration as error:  # which no future takes
            settle(found.set_exception, RuntimeError(last_line(error)))
        except BaseException as error:
            settle(found.set_exception, error)
        else:
            settle(found.set_result, said)

    threading.Thread(target=run, name="tool", daemon=True).start()
    said = await found
    return await said if inspect.isawaitable(said) else said


def _tool(found: Plugin) -> OwnTool:
    function, name = found.thing, label(found.name)
    if not inspect.isfunction(function):
        raise UserError(f"{found} is not a function", "write def NAME(word: str) -> str: ...")
    description = inspect.getdoc(function)
    if not description:
        raise UserError(
            f"{found} has no docstring", "say there what it does: agents are shown its first line"
        )
    parameters = inspect.signature(function).parameters.values()
    hints = guarded(f"the types of {found}", lambda: get_type_hints(function))
    untyped = [one.name for one in parameters if one.name not in hints]
    if untyped:
        raise UserError(f"{found} has no type for {', '.join(untyped)}", "annotate its parameters")
    fields: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is one.empty else one.default)
        for one in parameters
    }
    given = create_model(name, **fields)

    async def do(arguments: Mapping[str, Any]) -> str:
        """What the function says; its errors are told to the agent that called it."""
        try:
            checked = given.model_validate(dict(arguments))
            said = partial(function, **{one: getattr(checked, one) for one in fields})
            return str(await (said() if inspect.iscoroutinefunction(function) else _apart(said)))
        except ValidationError as error:
            raise ToolError("; ".join(map(wrong_at, error.errors()))) from error
        except ToolError:
            raise
        except Exception as error:
            raise ToolError(_without_folders(last_line(error))) from error

    tool = Tool(name, description.partition("\n")[0], given.model_json_schema())
    return OwnTool(tool, do, tuple(fields), found.source)
