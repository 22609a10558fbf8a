"""The tool that searches passages: what agents are shown, one request for many calls, servers that fail."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie.errors import UserError
from coterie.record.turn import ToolResult
from coterie.tools.calls import (
    CallLimits,
    ToolError,
    ToolSource,
    ToolUnavailable,
    check_tools,
    run_calls,
)
from coterie.tools.registry import sources_of
from coterie.tools.retrieval import Passage
from coterie.tools.search import NOTHING, Batches, RetrieverSettings, RetrieverTool
from coterie.tools.tags import Tags
from tests.listening import listening
from tests.passages import ROWS, indexed
from tests.row_files import jsonl

pytest.importorskip("bm25s")

OSLO = 'Doc 1 (Title: "Oslo")\nOslo is the capital of Norway.'


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("index"))


Answer = Callable[[int, dict[str, Any]], Response]


class Fake:
    """A retrieval server that answers as it is told, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.bodies: list[dict[str, Any]] = []

        async def retrieve(request: Request) -> Response:
            self.bodies.append(json.loads(await request.body()))
            return answer(len(self.bodies), self.bodies[-1])

        self.app = Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])


def echoed(number: int, body: dict[str, Any]) -> Response:
    rows = [[{"document": {"id": "1", "contents": f'"T"\n{query}'}}] for query in body["queries"]]
    return JSONResponse({"result": rows})


@contextlib.asynccontextmanager
async def opened(fake: Fake, **settings: Any) -> AsyncIterator[Any]:
    """What runs the calls of a tool that asks the fake server."""
    async with listening(fake.app) as url:
        given = RetrieverSettings(url=f"{url}/retrieve", **settings)
        source: ToolSource = await asyncio.to_thread(RetrieverTool, given)
        async with source.open() as functions:
            yield functions["wiki_search"]


def calls(text: str, tool: ToolSource, functions: Any) -> Any:
    parsed = Tags(tool.tags).parse(text, "stop")
    return run_calls(parsed, tool.tools, functions, CallLimits())


def test_agents_are_shown_numbered_passages_with_their_titles(index: Path) -> None:
    async def play() -> tuple[ToolResult, ...]:
        tool = RetrieverTool(RetrieverSettings(corpus=str(index), topk=5))
        check_tools(tool.tools)
        async with tool.open() as functions:
            text = "<wiki_search>capital of Norway | zebra</wiki_search>"
            found: tuple[ToolResult, ...] = await calls(text, tool, functions)
            with pytest.raises(ToolError, match="the query is empty"):
                await functions["wiki_search"]({"query": " "})
            return found

    norway, zebra = asyncio.run(play())
    first, *others = norway.text.split("\n\n")
    assert first == OSLO and len(others) == 4
    untitled = next(one for one in others if "without a title" in one)
    assert untitled.partition("\n") == (untitled[:5], "\n", ROWS[3]["contents"])
    assert zebra.text == NOTHING and not zebra.error


def test_the_calls_of_a_message_go_out_in_one_request_and_equal_queries_once() -> None:
    async def play() -> tuple[list[str], list[dict[str, Any]]]:
        fake = Fake(echoed)
        async with opened(fake, topk=2) as search:
            queries = ["b", "a", "b", "c", "a"]
            found = await asyncio.gather(*(search({"query": one}) for one in queries))
            await search({"query": "later"})
        return found, fake.bodies

    found, bodies = asyncio.run(play())
    assert [one.partition("\n")[2] for one in found] == ["b", "a", "b", "c", "a"]
    assert [body["queries"] for body in bodies] == [["b", "a", "c"], ["later"]]
    assert bodies[0] == {"queries": ["b", "a", "c"], "topk": 2, "return_scores": True}


@pytest.mark.parametrize(
    "fault",
    [
        lambda: JSONResponse({"error": "full"}, 503, {"Retry-After": "0"}),
        lambda: JSONResponse({}, 429),
        lambda: Response("nonsense"),
        lambda: JSONResponse({"result": []}),
        lambda: JSONResponse({"result": [[{"document": {"id": "1"}}]]}),
    ],
    ids=["full", "too many", "no JSON", "too few", "no contents"],
)
def test_a_fault_that_may_pass_is_tried_again_and_then_the_server_is_unavailable(
    fault: Callable[[], Response],
) -> None:
    async def play() -> int:
        fake = Fake(lambda number, body: echoed(number, body) if number == 2 else fault())
        async with opened(fake, tries=2) as search:
            assert (await search({"query": "x"})).endswith("\nx")
            with pytest.raises(ToolUnavailable):
                await search({"query": "x"})
        return len(fake.bodies)

    assert asyncio.run(play()) == 4


def test_one_query_that_is_refused_does_not_fail_the_others() -> None:
    def picky(number: int, body: dict[str, Any]) -> Response:
        if "bad" in body["queries"]:
            return JSONResponse({"detail": "no bad ones"}, 422)
        return echoed(number, body)

    async def play() -> list[Any]:
        async with opened(Fake(picky)) as search:
            asked = (search({"query": one}) for one in ("a", "bad", "c"))
            return await asyncio.gather(*asked, return_exceptions=True)

    first, bad, last = asyncio.run(play())
    assert str(first).endswith("\na") and str(last).endswith("\nc")
    assert isinstance(bad, ToolError) and "no bad ones" in str(bad)


# -- where the passages are ---------------------------------------------------------------------


def test_a_folder_and_a_file_give_the_same(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_HOME", str(tmp_path / "home"))
    query = {"query": "a city in Norway"}

    async def asked(settings: RetrieverSettings) -> tuple[str, str]:
        tool = await asyncio.to_thread(RetrieverTool, settings)
        async with tool.open() as functions:
            return await functions["wiki_search"](query), tool.identity

    async def play() -> None:
        file = jsonl(tmp_path / "rows.jsonl", *ROWS)
        here, _ = await asked(RetrieverSettings(corpus=str(file)))
        assert len(list((tmp_path / "home" / "indexes").glob("[!.]*"))) == 1
        assert (await asked(RetrieverSettings(corpus=str(file))))[0] == here
        folder, identity = await asked(RetrieverSettings(corpus=str(index)))
        _, other = await asked(RetrieverSettings(corpus=str(index), topk=1))
        assert here == folder and other != identity

    asyncio.run(play())


def test_a_search_that_fails_fails_its_own_calls_alone() -> None:
    async def search(queries: Any) -> Any:
        await asyncio.sleep(0.01)
        if "bad" in queries:
            raise ValueError("no one")
        return [[Passage(query, query)] for query in queries]

    async def play() -> list[Any]:
        batches = Batches(search, 0.0, 2)
        first = asyncio.gather(batches.ask("bad"), batches.ask("beside"), return_exceptions=True)
        await asyncio.sleep(0.005)
        given_up = asyncio.ensure_future(batches.ask("good"))
        later = asyncio.ensure_future(batches.ask("good"))
        await asyncio.sleep(0)
        given_up.cancel()
        return [*await first, await later]

    bad, beside, good = asyncio.run(play())
    assert isinstance(bad, ValueError) and isinstance(beside, ValueError)
    assert good == [Passage("good", "good")]


def test_what_cannot_be_used_is_refused_when_the_tool_is_made(index: Path, tmp_path: Path) -> None:
    for settings, said in (
        (RetrieverSettings(url="http://127.0.0.1:9/retrieve"), "no retrieval server answers"),
        (RetrieverSettings(corpus=str(tmp_path)), "is not an index"),
    ):
        with pytest.raises(UserError, match=said):
            RetrieverTool(settings)
    for wrong, said in (
        ({}, "one of url"),
        ({"url": "http://x/retrieve", "corpus": "y"}, "one of url"),
        ({"url": "ftp://x/retrieve"}, "must begin with http://"),
        ({"url": "http://127.0.0.1:8008"}, "such as http://127.0.0.1:8008/retrieve"),
    ):
        with pytest.raises(ValueError, match=said):
            RetrieverSettings.model_validate(wrong)


def test_a_run_names_it_by_a_file_of_tools(index: Path, tmp_path: Path) -> None:
    entry = {"name": "wiki", "tool": "wiki_search", "corpus": str(index), "topk": 1}
    file = tmp_path / "tools.yaml"
    file.write_text(json.dumps({"tools": [entry]}))
    (source,) = sources_of(["wiki"], str(file))
    assert [tool.name for tool in source.tools] == ["wiki"]

    async def play() -> tuple[ToolResult, ...]:
        async with source.open() as functions:
            found: tuple[ToolResult, ...] = await calls("<wiki>Oslo|Oslo</wiki>", source, functions)
            return found

    assert [one.text for one in asyncio.run(play())] == [OSLO, OSLO]
    with pytest.raises(UserError, match="one of url and corpus"):
        sources_of(["wiki_search"], None)
