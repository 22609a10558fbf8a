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
from coterie.tools.calls import CallLimits, Tags, ToolError, ToolSource, ToolUnavailable, run_calls
from coterie.tools.registry import sources_of
from coterie.tools.retrieval import Passage
from coterie.tools.search import NOTHING, Batches, RetrieverSettings, RetrieverTool
from tests.listening import listening
from tests.passages import ROWS, indexed
from tests.row_files import jsonl

pytest.importorskip("bm25s")

OSLO = 'Doc 1 (Title: "Oslo")\nOslo is the capital of Norway.'
Body = dict[str, Any]
Answer = Callable[[int, Body], Response]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("index"))


def echoed(number: int, body: Body) -> Response:
    rows = [[{"document": {"id": "1", "contents": f'"T"\n{query}'}}] for query in body["queries"]]
    return JSONResponse({"result": rows})


@contextlib.asynccontextmanager
async def opened(answer: Answer, **settings: Any) -> AsyncIterator[tuple[Any, list[Body]]]:
    """A tool that asks a fake server, which gives this answer, and what the server was asked."""
    bodies: list[Body] = []

    async def retrieve(request: Request) -> Response:
        bodies.append(json.loads(await request.body()))
        return answer(len(bodies), bodies[-1])

    async with listening(Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])])) as url:
        given = RetrieverSettings(url=f"{url}/retrieve", **settings)
        source: ToolSource = await asyncio.to_thread(RetrieverTool, given)
        async with source.open() as functions:
            yield functions["wiki_search"], bodies


def texts(source: ToolSource, text: str) -> list[str]:
    """What the calls of a message are answered with."""

    async def play() -> list[str]:
        async with source.open() as functions:
            calls = Tags(source.tags).parse(text, "stop")
            found = await run_calls(calls, source.tools, functions, CallLimits())
            return [one.text for one in found if not one.error]

    return asyncio.run(play())


def test_agents_are_shown_numbered_passages_with_their_titles(index: Path) -> None:
    tool = RetrieverTool(RetrieverSettings(corpus=str(index), topk=5))
    norway, zebra = texts(tool, "<wiki_search>capital of Norway | zebra</wiki_search>")
    first, *others = norway.split("\n\n")
    assert first == OSLO and len(others) == 4
    untitled = next(one for one in others if "without a title" in one)
    assert untitled.partition("\n") == (untitled[:5], "\n", ROWS[3]["contents"])
    assert zebra == NOTHING


def test_the_calls_of_a_message_go_out_in_one_request_and_equal_queries_once() -> None:
    async def play() -> None:
        async with opened(echoed, topk=2) as (search, bodies):
            queries = ["b", "a", "b", "c", "a"]
            found = await asyncio.gather(*(search({"query": one}) for one in queries))
            await search({"query": "later"})
            with pytest.raises(ToolError, match="the query is empty"):
                await search({"query": " "})
        assert [one.partition("\n")[2] for one in found] == queries
        assert bodies[0] == {"queries": ["b", "a", "c"], "topk": 2, "return_scores": True}
        assert [body["queries"] for body in bodies[1:]] == [["later"]]

    asyncio.run(play())


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
    def answer(number: int, body: Body) -> Response:
        return echoed(number, body) if number == 2 else fault()

    async def play() -> None:
        async with opened(answer, tries=2) as (search, bodies):
            assert (await search({"query": "x"})).endswith("\nx")
            with pytest.raises(ToolUnavailable):
                await search({"query": "x"})
        assert len(bodies) == 4

    asyncio.run(play())


def test_one_query_that_is_refused_does_not_fail_the_others() -> None:
    def picky(number: int, body: Body) -> Response:
        is_bad = "bad" in body["queries"]
        return JSONResponse({"detail": "no bad ones"}, 422) if is_bad else echoed(number, body)

    async def play() -> list[Any]:
        async with opened(picky) as (search, _):
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
    file = jsonl(tmp_path / "rows.jsonl", *ROWS)
    message = "<wiki_search>a city in Norway</wiki_search>"
    folder, *files = (RetrieverTool(RetrieverSettings(corpus=str(p))) for p in (index, file, file))
    assert texts(folder, message) == texts(files[0], message) == texts(files[1], message)
    assert len(list((tmp_path / "home" / "indexes").glob("[!.]*"))) == 1
    other = RetrieverTool(RetrieverSettings(corpus=str(index), topk=1))
    assert other.identity != folder.identity


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


def test_what_cannot_be_used_is_refused_when_the_tool_is_made(tmp_path: Path) -> None:
    for settings, said in (
        ({"url": "http://127.0.0.1:9/retrieve"}, "no retrieval server answers"),
        ({"corpus": str(tmp_path)}, "is not an index"),
        ({}, "one of url"),
        ({"url": "http://x/retrieve", "corpus": "y"}, "one of url"),
        ({"url": "ftp://x/retrieve"}, "must begin with http://"),
        ({"url": "http://127.0.0.1:8008"}, "such as http://127.0.0.1:8008/retrieve"),
    ):
        with pytest.raises((UserError, ValueError), match=said):
            RetrieverTool(RetrieverSettings.model_validate(settings))


def test_a_run_names_it_by_a_file_of_tools(index: Path, tmp_path: Path) -> None:
    entry = {"name": "wiki", "tool": "wiki_search", "corpus": str(index), "topk": 1}
    (tmp_path / "tools.yaml").write_text(json.dumps({"tools": [entry]}))
    (source,) = sources_of(["wiki"], str(tmp_path / "tools.yaml"))
    assert [tool.name for tool in source.tools] == ["wiki"]
    assert texts(source, "<wiki>Oslo|Oslo</wiki>") == [OSLO, OSLO]
    with pytest.raises(UserError, match="one of url and corpus"):
        sources_of(["wiki_search"], None)
