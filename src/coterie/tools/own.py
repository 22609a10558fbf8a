"""Tools by name. A function with typed parameters becomes a tool."""

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
    """Tool with its function."""

    tool: Tool
    do: Function
    parameters: tuple[str, ...]
    source: str


def own_tools(names: Sequence[str]) -> tuple[OwnTool, ...]:
    """Return the tools with these names, in order.

    Raises ``UserError`` for an unknown name, a function without type annotations, or two tools with one name.
    """
    tools = [_tool(find(TOOLS, name)) for name in names]
    tool_names = [one.tool.name for one in tools]
    if twice := {name for name in tool_names if tool_names.count(name) > 1}:
        raise UserError(f"there are two tools called {min(twice)}", "rename one of the functions")
    return tuple(tools)


def _without_folders(text: str) -> str:
    """Replace paths of this machine by the names of their files."""
    text = re.sub(r"""(['"])~?/[^'"\n]*/([^'"/\n]*)\1""", r"\1\2\1", text)
    return re.sub(r"""(?<![\w:/.])~?/(?:[^\s/'":,()]+/)+""", "", text)


async def _in_thread(do: Callable[[], object]) -> object:
    """Run a blocking function in a daemon thread, so that other dialogues continue and time limits apply.

    A function that never returns does not block the end of the run.
    """
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[object] = loop.create_future()

    def settle(how: Callable[[Any], None], what: object) -> None:
        with suppress(RuntimeError):  # the run has ended
            loop.call_soon_threadsafe(lambda: None if future.done() else how(what))

    def run() -> None:
        try:
            result = context.run(do)
        except StopIteration as error:  # futures refuse it
            settle(future.set_exception, RuntimeError(last_line(error)))
        except BaseException as error:
            settle(future.set_exception, error)
        else:
            settle(future.set_result, result)

    threading.Thread(target=run, name="tool", daemon=True).start()
    result = await future
    return await result if inspect.isawaitable(result) else result


def _tool(plugin: Plugin) -> OwnTool:
    function, name = plugin.thing, label(plugin.name)
    if not inspect.isfunction(function):
        raise UserError(f"{plugin} is not a function", "write def NAME(word: str) -> str: ...")
    description = inspect.getdoc(function)
    if not description:
        raise UserError(
            f"{plugin} has no docstring", "describe the function in it: prompts show the first line"
        )
    parameters = inspect.signature(function).parameters.values()
    hints = guarded(f"the types of {plugin}", lambda: get_type_hints(function))
    untyped = [one.name for one in parameters if one.name not in hints]
    if untyped:
        raise UserError(f"{plugin} has no type for {', '.join(untyped)}", "annotate its parameters")
    fields: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is one.empty else one.default)
        for one in parameters
    }
    model = create_model(name, **fields)

    async def do(arguments: Mapping[str, Any]) -> str:
        """Call the function; errors are results for the agent."""
        try:
            values = model.model_validate(dict(arguments))
            call = partial(function, **{one: getattr(values, one) for one in fields})
            return str(
                await (call() if inspect.iscoroutinefunction(function) else _in_thread(call))
            )
        except ValidationError as error:
            raise ToolError("; ".join(map(wrong_at, error.errors()))) from error
        except ToolError:
            raise
        except Exception as error:
            raise ToolError(_without_folders(last_line(error))) from error

    tool = Tool(name, description.partition("\n")[0], model.model_json_schema())
    return OwnTool(tool, do, tuple(fields), plugin.source)
