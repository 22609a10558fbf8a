"""What an MCP server says, as ours: its tools, and results as text."""

import hashlib
import json
import re
from collections.abc import Sequence

import mcp_types as types

from coterie.errors import UserError
from coterie.tools.checking import check_tools
from coterie.tools.mcp.listed import Listed
from coterie.tools.run import cut_text
from coterie.trajectories.calls import Tool

MAX_NAME = 64
"""Characters of a tool's name that chat templates and endpoints take."""
MAX_DESCRIPTION = 4000
"""Characters of a tool's description that are shown: it is part of every prompt."""
MAX_SCHEMA = 40_000
"""Characters of a tool's schema, which can't be cut."""
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def listed(given: Sequence[types.Tool], read_only: Sequence[str], server: str) -> Listed:
    """The tools that a server named. Raises ``UserError`` for none, and for what can't be offered to a model."""
    if not given:
        raise UserError(f"{server} has no tools", "give a server that has some")
    ours = [_OTHER.sub("_", one.name)[:MAX_NAME] for one in given]
    tools = tuple(
        Tool(name, _description(one), one.input_schema, alone=not _looks(one, read_only))
        for name, one in zip(ours, given, strict=True)
    )
    if unknown := set(read_only) - {one.name for one in given} - set(ours):
        raise UserError(
            f"{server} has no tool {min(unknown)!r}, which read_only names",
            f"it has: {', '.join(ours)}",
        )
    for tool in tools:
        if (size := len(json.dumps(tool.parameters))) > MAX_SCHEMA:
            raise UserError(
                f"{server}: the parameters of {tool.name} are {size:,} characters long, and part of every prompt",
                f"give a server whose tools have schemas of at most {MAX_SCHEMA:,} characters",
            )
    try:
        check_tools(tools)
    except UserError as error:
        raise UserError(f"{server}: {error.what}", "correct the server") from error
    told = [[one.name, one.description, one.input_schema, _looks(one, read_only)] for one in given]
    text = json.dumps(told, sort_keys=True)
    names = dict(zip(ours, (one.name for one in given), strict=True))
    return Listed(tools, names, hashlib.sha256(text.encode()).hexdigest()[:16])


def text_of(result: types.CallToolResult) -> str:
    """A result as text; anything else is named in a short note."""
    parts = [_part(one) for one in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return parts[0] if len(parts) == 1 else "\n".join(parts)


def _description(one: types.Tool) -> str:
    """What models are told of a tool; of a long text the middle is left out, and that is said."""
    return cut_text(one.description or "", MAX_DESCRIPTION)


def _part(one: types.ContentBlock) -> str:
    if isinstance(one, types.TextContent):
        return one.text
    if isinstance(one, types.ImageContent | types.AudioContent):
        return f"[{one.type}, {one.mime_type}, about {3 * len(one.data) // 4:,} bytes: not shown]"
    if isinstance(one, types.EmbeddedResource):
        inner = one.resource
        if isinstance(inner, types.TextResourceContents):
            return inner.text
        return f"[resource {inner.uri}, {inner.mime_type or 'of no known type'}: not shown]"
    return f"[link to {one.uri}: {one.name}]"


def _looks(one: types.Tool, read_only: Sequence[str]) -> bool:
    hint = one.annotations.read_only_hint if one.annotations else None
    return bool(hint) or one.name in read_only
