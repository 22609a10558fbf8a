"""Our tools as an MCP server, called by the SDK's client; several sources of tools as one."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import APIRouter
from mcp import Client
from starlette.routing import Route

from coterie.errors import UserError
from coterie.tools.joined import Joined
from coterie.tools.mcp.offer import Offer
from coterie.tools.mcp.settings import McpSettings
from coterie.tools.mcp.source import McpSource
from coterie.tools.run import CallLimits, Function, ToolError, ToolUnavailable
from coterie.tools.servers.app import Served
from coterie.tools.servers.config import read_tools
from coterie.tools.servers.kinds import BackendSettings
from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool
from tests.conftest import Cli
from tests.tool_servers import tool_server

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class Words:
    """A source of two tools."""

    def __init__(self, name: str = "say") -> None:
        self.tools = (Tool(name, "Says a word.", WORD), Tool("break", "Breaks.", WORD, alone=True))
        self.tags = {name: Tag("word")}
        self.identity = name
        self.open_now = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async def say(arguments: Mapping[str, Any]) -> str:
            if arguments["word"] == "bad":
                raise ToolError("a bad word")
            return f"{self.identity}: {arguments['word']}"

        async def destroy(arguments: Mapping[str, Any]) -> str:
            raise ToolUnavailable("secret place is gone")

        self.open_now += 1
        yield {self.tools[0].name: say, "break": destroy}
        self.open_now -= 1


def talk(offer: Offer, do: Callable[[Client], Awaitable[Any]]) -> Any:
    async def over_memory() -> Any:
        async with offer.open(("*",)), Client(offer.server) as client:
            return await do(client)

    return asyncio.run(over_memory())


def test_calls_are_checked_limited_and_answered() -> None:
    words = Words()
    offer = Offer(words, CallLimits(max_characters=100))

    async def calls(client: Client) -> list[Any]:
        given = ({"word": "hello"}, {"word": "bad"}, {"wrong": 1}, {"word": "x" * 500})
        return [await client.call_tool("say", one) for one in given]

    good, bad, wrong, long = talk(offer, calls)
    assert (good.content[0].text, good.is_error) == ("say: hello", False)
    assert (bad.content[0].text, bad.is_error) == ("a bad word", True)
    assert wrong.is_error and "wrong arguments" in wrong.content[0].text
    assert "characters are left out" in long.content[0].text
    assert words.open_now == 0


class WordsBackend:
    """A tool of the server that offers the words."""

    def __init__(self) -> None:
        self.offer = Offer(Words(), CallLimits(tries=1))
        self.router = APIRouter()
        self.router.routes.append(
            Route("/mcp", endpoint=self.offer, methods=["GET", "POST", "DELETE"])
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self.offer.open(("127.0.0.1:*",)):
            yield


def test_a_tool_that_is_gone_is_a_fault_of_the_server_that_gives_nothing_away() -> None:
    with tool_server(Served(BackendSettings(kind="words", name="words"), WordsBackend())) as url:
        source = McpSource(McpSettings(server=f"{url}/mcp"))

        async def use() -> str:
            async with source.open() as functions:
                with pytest.raises(ToolUnavailable, match="break can't be reached") as failed:
                    await functions["break"]({"word": "x"})
                assert "secret place" not in str(failed.value)
                with pytest.raises(ToolError, match="a bad word"):
                    await functions["say"]({"word": "bad"})
                return await functions["say"]({"word": "again"})

        assert asyncio.run(use()) == "say: again"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of a server that offers a search of one page."""
    monkeypatch.chdir(tmp_path)
    page = {"url": "https://e.org", "title": "Oslo", "text": "The capital of Norway."}
    (tmp_path / "pages.jsonl").write_text(json.dumps(page))
    run = {
        "tools": [
            {"name": "web_search", "backend": "corpus", "pages": str(tmp_path / "pages.jsonl")}
        ]
    }
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    offered = {"kind": "mcp", "tools": ["web_search"], "config": str(tmp_path / "run.yaml")}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [offered]}))
    return tmp_path / "tools.yaml"


def search(source: McpSource) -> str:
    async def use() -> str:
        async with source.open() as functions:
            return await functions["web_search"]({"query": "Norway"})

    return asyncio.run(use())


def test_what_one_of_us_offers_another_can_use(served: Path) -> None:
    with tool_server(*read_tools(served)) as url:
        source = McpSource(McpSettings(server=f"{url}/mcp"))
        (tool,) = source.tools
        assert (
            tool.name == "web_search"
            and not tool.alone
            and source.tags == {"web_search": Tag("query")}
        )
        assert "[Oslo](https://e.org)" in search(source)
        head = {"Accept": "application/json, text/event-stream"}
        for more in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            assert httpx2.post(f"{url}/mcp", json=body, headers=head | more).status_code in (
                403,
                421,
            )


def test_it_is_offered_by_standard_input_and_output_too(served: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "coterie",
        "serve",
        "tools",
        "--config",
        str(served),
        "--stdio",
    ]
    place = tuple({"PYTHONPATH"} & os.environ.keys())
    assert "[Oslo](https://e.org)" in search(
        McpSource(McpSettings(server=shlex.join(command), environment=place))
    )


def test_a_server_that_offers_nothing_is_refused(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "tools.yaml").write_text(
        json.dumps({"tools": [{"kind": "mcp", "tools": ["nothing"]}]})
    )
    with pytest.raises(UserError, match="no tool is called 'nothing'"):
        read_tools(tmp_path / "tools.yaml")
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [{"kind": "crawl"}]}))
    result = cli("serve", "tools", "--config", str(tmp_path / "tools.yaml"), "--stdio")
    assert result.code == 2 and "has 0 tools of kind mcp" in result.err


def test_tools_of_one_name_get_their_sources_in_front_and_no_others_do() -> None:
    first, second = Words(), Words("tell")
    joined = Joined({"here": first, "there": second})
    assert [tool.name for tool in joined.tools] == ["say", "here_break", "tell", "there_break"]
    assert joined.tags == {"say": Tag("word"), "tell": Tag("word")}
    assert joined.identity != Joined({"there": second, "here": first}).identity

    async def use() -> list[str]:
        async with joined.open() as functions:
            assert first.open_now == second.open_now == 1
            with pytest.raises(ToolUnavailable):
                await functions["there_break"]({"word": "x"})
            return [await functions[name]({"word": "x"}) for name in ("say", "tell")]

    assert asyncio.run(use()) == ["say: x", "tell: x"]
    with pytest.raises(UserError, match="two tools are called"):
        Joined({"a": Words(), "b": Words(), "c": Words("a_say")})
