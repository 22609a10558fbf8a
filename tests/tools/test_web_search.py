"""Web search: backends, the cache and the tool.

A fake stands for Serper, which is paid for; it speaks as Serper does.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from coterie.engines.protocol import EngineGone
from coterie.tools import search as searching
from coterie.tools.calls import ToolError, ToolUnavailable
from coterie.tools.search import Cache, WebSearch, WebSearchSettings
from tests.helpers.serve_app import serve_app
from tests.helpers.write_rows import write_jsonl

PAGES = [
    {"url": f"https://example.org/{name}", "title": title, "text": text, **more}
    for name, title, text, more in (
        ("oslo", "Oslo", "A city.\nOslo is the capital of Norway.", {"date": "2024"}),
        ("rome", "Rome", "Rome is the capital of Italy.\nIt is old.", {}),
        ("sea", "The sea", "Water and salt.", {}),
    )
]


class FakeSerper:
    """Stands for google.serper.dev: as many hits as are requested."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        """Statuses of the next answers; then 200."""
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.most = self.now = 0
        self.app = Starlette(routes=[Route("/search", self.search, methods=["POST"])])

    async def search(self, request: Request) -> JSONResponse:
        body, key = await request.json(), request.headers["X-API-KEY"]
        self.requests.append(body)
        self.keys.add(key)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1
        if (status := self.statuses.pop(0) if self.statuses else 200) != 200:
            return JSONResponse({"message": f"bad key {key}"}, status)
        hits = [
            {"title": f"{body['q']} {n}", "link": f"https://e.org/{n}", "position": n}
            for n in range(1, body["num"] + 1)
        ]
        return JSONResponse({"searchParameters": body, "organic": hits, "credits": 1})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSerper:
    monkeypatch.setenv("SERPER_API_KEY", "paid-for")
    monkeypatch.setattr(searching, "WEB_PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    return FakeSerper()


def call(settings: WebSearchSettings, *queries: str) -> list[str]:
    """The results of calls at the same time."""

    async def opened() -> list[str]:
        async with WebSearch(settings).open() as functions:
            search = functions["web_search"]
            return list(await asyncio.gather(*(search({"query": query}) for query in queries)))

    return asyncio.run(opened())


def ask(fake: FakeSerper, *queries: str, **settings: Any) -> list[str]:
    async def served() -> list[str]:
        async with serve_app(fake.app) as url:
            own = WebSearchSettings(backend="serper", upstream=f"{url}/search", **settings)
            return await asyncio.to_thread(call, own, *queries)

    return asyncio.run(served())


def test_a_file_of_pages_is_searched_by_its_words_wherever_it_lies(tmp_path: Path) -> None:
    files = [write_jsonl(tmp_path / name, *PAGES) for name in ("pages.jsonl", "moved.jsonl")]
    files.append(write_jsonl(tmp_path / "fewer.jsonl", PAGES[0]))
    settings = [WebSearchSettings(backend="corpus", pages=str(file), num=2) for file in files]
    oslo, nothing, both = call(settings[0], "Norway's capital", "zebra", "capital")
    assert oslo.splitlines() == [
        "Found 2 results:", "", "## Web Results", "1. [Oslo](https://example.org/oslo)", "Date published: 2024",
        "https://example.org/oslo", "Oslo is the capital of Norway.", "", "2. [Rome](https://example.org/rome)",
        "https://example.org/rome", "Rome is the capital of Italy.",
    ]  # fmt: skip
    assert nothing == "No results found for query: zebra"
    assert "Found 2 results" in both and "salt" not in both
    one, same, other = (WebSearch(own).identity for own in settings)
    assert one == same != other


def test_serper_is_asked_once_for_equal_queries_and_no_more_at_a_time_than_allowed(
    fake: FakeSerper, tmp_path: Path
) -> None:
    cache = str(tmp_path / "kept.sqlite")
    texts = ask(fake, *[" two   words "] * 20, num=3, cache=cache)
    assert fake.requests == [{"q": "two words", "num": 3}] and fake.keys == {"paid-for"}
    assert (
        texts[0].startswith("Found 3 results") and "1. [two words 1](https://e.org/1)" in texts[0]
    )
    assert len(set(texts)) == 1 and ask(fake, "two words", num=3, cache=cache) == texts[:1]
    assert "Found 20 results" in ask(fake, "two words", num=20, cache=cache)[0]
    assert len(fake.requests) == 2
    ask(fake, *map(str, range(12)), upstream_concurrency=3)
    assert len(fake.requests) == 14 and fake.most <= 3


@pytest.mark.parametrize(
    ("statuses", "kind", "problem"),
    [
        ([500, 429], None, "Found 3 results"),
        ([500, 502, 503], ToolUnavailable, r"status 503: .*<SERPER_API_KEY>"),
        ([403], EngineGone, "bad key <SERPER_API_KEY>"),
        ([400], ToolError, "the query is refused"),
    ],
)
def test_temporary_failures_are_tried_again_and_others_are_errors(
    fake: FakeSerper, statuses: list[int], kind: type[Exception] | None, problem: str
) -> None:
    fake.statuses = [*statuses]
    if kind is None:
        assert problem in ask(fake, "x", num=3, upstream_retries=2)[0]
        return
    with pytest.raises(kind, match=problem) as failed:
        ask(fake, "x", upstream_retries=2)
    assert type(failed.value) is kind and len(fake.requests) == len(statuses)


def test_the_cache_forgets_what_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(searching.time, "time", lambda: clock[0])
    cache = Cache(tmp_path / "c", seconds=10)

    async def use() -> None:
        for name in "ab":
            clock[0] += 1
            await cache.put(name, name.upper())
        clock[0] = 1011.0
        assert [await cache.get(name) for name in "ab"] == [None, "B"]

    asyncio.run(use())
    cache.close()
    later = Cache(tmp_path / "c", seconds=10)
    assert asyncio.run(later.get("b")) == "B"
    later.close()
