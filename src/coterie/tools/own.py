"""Tools by name: a function with typed parameters becomes a tool that agents may call."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import ValidationError, create_model

from coterie.config.plain import wrong_at
from coterie.config.plugins import Found, Kind, find, guarded, label, last_line
from coterie.errors import UserError
from coterie.tools.run import Function, ToolError
from coterie.trajectories.calls import Tool

TOOLS = Kind(
    "tool",
    {
        "python": "coterie.tools.python_tool:PythonTool",
        "code": "coterie.tools.code_tool:CodeTool",
        "wiki_search": "coterie.tools.retrieval.tool:RetrieverTool",
        "web_search": "coterie.tools.web.search_tool:WebSearch",
        "crawl_page": "coterie.tools.web.crawl_tool:CrawlPage",
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
    """A hash of its file."""


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


def _tool(found: Found) -> OwnTool:
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
            said = function(**{one: getattr(checked, one) for one in fields})
            return str(await said if inspect.isawaitable(said) else said)
        except ValidationError as error:
            raise ToolError("; ".join(map(wrong_at, error.errors()))) from error
        except ToolError:
            raise
        except Exception as error:
            raise ToolError(last_line(error)) from error

    tool = Tool(name, description.partition("\n")[0], given.model_json_schema())
    return OwnTool(tool, do, tuple(fields), found.source)
