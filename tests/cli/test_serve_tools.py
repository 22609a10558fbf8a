"""``coterie serve tools``: one MCP server of all tools of a file, reached by the SDK's client and by our agents."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from coterie.record.turn import Tool
from coterie.tools.calls import CallLimits, Function, Tag, ToolError, ToolUnavailable
from coterie.tools.mcp import ToolServer
from coterie.tools.registry import sources_in
from tests.conftest import Cli
from tests.helpers.serve_command import serve_command
from tests.helpers.write_rows import write_jsonl

pytest.importorskip("bm25s")

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
CALLS: list[tuple[str, dict[str, str], str]] = [
    ("python", {"code": "x = 6\nx * 7"}, "42"),
    ("wiki_search", {"query": "capital of Norway"}, "Oslo is the capital"),
    ("web_search", {"query": "Oslo"}, "[Oslo](https://e.org/oslo)"),
    ("crawl_page", {"urls": "https://e.org/oslo"}, "The capital."),
    ("crawl_page", {"urls": "http://169.254.169.254/latest/meta-data/"}, "no such"),
]


class Words:
    """A source of two tools."""

    tools = (Tool("say", "Says a word.", WORD), Tool("break", "Breaks.", WORD, alone=True))
    tags: Mapping[str, Tag] = {}
    identity = "say"
    open_now = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async def say(arguments: Mapping[str, Any]) -> str:
            if arguments["word"] == "bad":
                raise ToolError("a bad word")
            return f"{self.identity}: {arguments['word']}"

        async def destroy(arguments: Mapping[str, Any]) -> str:
            raise ToolUnavailable("secret place is gone")

        self.open_now += 1
        yield {"say": say, "break": destroy}
        self.open_now -= 1


async def call_all(client: Client, kept: str) -> None:
    """Call every tool of :func:`served`; ``kept`` is shown of a variable of the first call."""
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert names == ["python", "wiki_search", "web_search", "crawl_page"]
    results = [await client.call_tool(name, given) for name, given, _ in CALLS]
    assert [one.is_error for one in results] == [False] * 4 + [True]
    for result, (*_, text) in zip(results, CALLS, strict=True):
        assert text in result.content[0].text  # type: ignore[union-attr]
    again = await client.call_tool("python", {"code": "x"})
    assert kept in again.content[0].text  # type: ignore[union-attr]


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A file of tools: Python, passages, and a web of one page."""
    page = {"url": "https://e.org/oslo", "title": "Oslo", "text": "The capital."}
    pages = str(write_jsonl(tmp_path / "pages.jsonl", page))
    oslo = {"title": "Oslo", "text": "Oslo is the capital of Norway."}
    rows = write_jsonl(tmp_path / "rows.jsonl", oslo, {"title": "Rome", "text": "Rome is old."})
    tools = [
        {"name": "python"},
        {"name": "wiki_search", "corpus": str(rows)},
        {"name": "web_search", "backend": "corpus", "pages": pages},
        {"name": "crawl_page", "pages": pages},
    ]
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": tools}))
    return tmp_path / "tools.yaml"


def test_calls_are_checked_limited_and_answered() -> None:
    words = Words()
    server = ToolServer([words], CallLimits(max_characters=100, tries=1))

    async def calls() -> list[Any]:
        async with server.open(), Client(server.server) as client:
            with pytest.raises(Exception, match="break can't be reached") as failed:
                await client.call_tool("break", {"word": "x"})
            assert "secret place" not in str(failed.value)
            given = ({"word": "hello"}, {"word": "bad"}, {"wrong": 1}, {"word": "x" * 500})
            return [await client.call_tool("say", one) for one in given]

    good, bad, wrong, long = asyncio.run(calls())
    assert (good.content[0].text, good.is_error) == ("say: hello", False)
    assert (bad.content[0].text, bad.is_error) == ("a bad word", True)
    assert wrong.is_error and "wrong arguments" in wrong.content[0].text
    assert "characters are left out" in long.content[0].text
    assert words.open_now == 0


def test_a_client_reaches_all_tools_by_standard_input_and_output(served: Path) -> None:
    words = ["-m", "coterie", "serve", "tools", "--config", str(served), "--stdio"]
    home = {name: os.environ[name] for name in ("PYTHONPATH", "COTERIE_HOME") if name in os.environ}
    command = StdioServerParameters(command=sys.executable, args=words, env=home)

    async def play() -> None:
        async with Client(command) as client:
            await call_all(client, "6")

    asyncio.run(play())


def test_a_client_and_our_agents_reach_all_tools_over_http(served: Path, cli: Cli) -> None:
    async def play(url: str) -> None:
        async with Client(url) as client:
            await call_all(client, "NameError")  # each call has a session of its own

    with serve_command("tools", "--config", str(served), "--port", "0") as (child, url):
        asyncio.run(play(url))
        head = {"Accept": "application/json, text/event-stream"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for more in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            refused = httpx2.post(url, json=body, headers=head | more)
            assert refused.status_code in (403, 421)
        assert httpx2.post(url, content=b"x" * 5_000_000, headers=head).status_code == 413
        overrides = "policy=tiny-encyclopedia tasks=2 max_tokens=64 tools.calls=inline"
        ran = cli("evaluate", "encyclopedia", *overrides.split(), f"tools.use=[mcp:{url}]")
        assert ran.code == 0, ran.err
        (row,) = json.loads(ran.out.splitlines()[-1])["rows"]
        assert row["calls"] > row["call_errors"] and row["failed"] == 0
        port = url.rpartition(":")[2].partition("/")[0]
        ran = cli("serve", "tools", "--config", served, "--port", port)
        assert ran.code == 2 and "can't listen on port" in ran.err
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0


def test_tools_of_one_name_get_their_sources_in_front_and_no_others_do(tmp_path: Path) -> None:
    for name in "ab":
        text = f'def say(word: str) -> str:\n    "Says."\n    return "{name}: " + word\n'
        (tmp_path / f"{name}.py").write_text(text)
    tools = [{"name": name, "tool": f"{tmp_path}/{name}.py:say"} for name in "ab"]
    file = tmp_path / "tools.yaml"
    file.write_text(json.dumps({"tools": [*tools, {"name": "python"}]}))
    first, second, other = sources_in(file)
    assert [one.tools[0].name for one in (first, second, other)] == ["a_say", "b_say", "python"]
    assert first.tags == {"a_say": Tag("word")} and first.identity != second.identity

    async def use() -> str:
        async with second.open() as functions:
            return await functions["b_say"]({"word": "x"})

    assert asyncio.run(use()) == "b: x"
