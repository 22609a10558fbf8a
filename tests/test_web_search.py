"""Web search: backends, the cache and the tool.

A fake stands for Serper, which is paid for; it speaks as Serper does.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.tools.calls import ToolError, ToolUnavailable
from coterie.tools.tags import Tags
from coterie.tools.web import search as searching
from coterie.tools.web.search import Cache, Hit, WebSearch, WebSearchSettings, observation

PAGES = [
    {
        "url": "https://example.org/oslo",
        "title": "Oslo",
        "text": "A city.\nOslo is the capital of Norway.",
        "date": "2024",
    },
    {
        "url": "https://example.org/rome",
        "title": "Rome",
        "text": "Rome is the capital of Italy.\nIt is old.",
    },
    {"url": "https://example.org/sea", "title": "The sea", "text": "Water and salt."},
]


class FakeSerper(ThreadingHTTPServer):
    """Stands for google.serper.dev: as many hits as are asked for, up to ``there`` of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.there = 200
        self.statuses: list[int] = []
        """What the next requests are answered with; then 200."""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most = self.now = 0
        self.pause = 0.0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/search"


class _Handler(BaseHTTPRequestHandler):
    server: FakeSerper

    def do_POST(self) -> None:
        fake = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            fake.asked.append(body)
            fake.keys.append(self.headers["X-API-KEY"])
            fake.now += 1
            fake.most = max(fake.most, fake.now)
            status = fake.statuses.pop(0) if fake.statuses else 200
        time.sleep(fake.pause)
        hits = [
            {
                "title": f"{body['q']} {n}",
                "link": f"https://example.org/{n}",
                "snippet": "text",
                "position": n,
            }
            for n in range(1, min(body["num"], fake.there) + 1)
        ]
        found = {"searchParameters": body, "organic": hits, "credits": 1}
        said = json.dumps(
            found if status == 200 else {"message": f"bad key {self.headers['X-API-KEY']}"}
        )
        with fake.lock:
            fake.now -= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeSerper]:
    monkeypatch.setenv("SERPER_API_KEY", "paid-for")
    monkeypatch.chdir(tmp_path)
    with FakeSerper() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PAGES))
    return str(file)


def ask(settings: WebSearchSettings, do: Callable[[WebSearch], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        search = WebSearch(settings)
        async with search.open():
            return await do(search)

    return asyncio.run(opened())


def call(tool: WebSearch, *queries: str) -> list[str]:
    async def all_of_them() -> list[str]:
        async with tool.open() as functions:
            return [await functions["web_search"]({"query": query}) for query in queries]

    return asyncio.run(all_of_them())


def test_a_file_of_pages_is_searched_by_its_words(corpus: str) -> None:
    tool = WebSearch(WebSearchSettings(backend="corpus", pages=corpus, num=2))
    oslo, nothing, both = call(tool, "Norway's capital", "zebra", "capital")
    assert oslo.splitlines() == [
        "Found 2 results:", "", "## Web Results", "1. [Oslo](https://example.org/oslo)", "Date published: 2024",
        "https://example.org/oslo", "Oslo is the capital of Norway.", "", "2. [Rome](https://example.org/rome)",
        "https://example.org/rome", "Rome is the capital of Italy.",
    ]  # fmt: skip
    assert nothing == "No results found for query: zebra"
    assert "Found 2 results" in both and "salt" not in both


def test_several_queries_stand_in_one_tag(corpus: str) -> None:
    tool = WebSearch(WebSearchSettings(backend="corpus", pages=corpus))
    calls = Tags(tool.tags).parse("<web_search>Oslo | Rome</web_search>", "stop")
    assert [json.loads(one.arguments) for one in calls] == [{"query": "Oslo"}, {"query": "Rome"}]


def test_what_is_found_is_shown_with_its_date_and_source() -> None:
    text = observation(
        "x", [Hit(title="T", link="https://e.org", snippet="S", date="May", source="News")]
    )
    assert text == (
        "Found 1 results:\n\n## Web Results\n1. [T](https://e.org)\nDate published: May\nSource: News\nhttps://e.org\nS"
    )


def test_serper_is_asked_with_the_key_of_its_variable(fake: FakeSerper) -> None:
    tool = WebSearch(WebSearchSettings(backend="serper", upstream=fake.url, num=3))
    (text,) = call(tool, " fjords ")
    assert fake.asked == [{"q": "fjords", "num": 3}] and fake.keys == ["paid-for"]
    assert text.startswith("Found 3 results") and "1. [fjords 1](https://example.org/1)" in text


def test_what_was_asked_is_kept_beyond_the_process(fake: FakeSerper, tmp_path: Path) -> None:
    settings = WebSearchSettings(
        backend="serper", upstream=fake.url, cache=str(tmp_path / "kept.sqlite")
    )
    counts = [3, 10, 5, 20, 60, 100]
    for count in counts:
        hits = ask(settings, lambda search, count=count: search.search("  two   words ", count))
        assert len(hits) == count and hits[-1].link == f"https://example.org/{count}"
    assert fake.asked == [{"q": "two words", "num": 10}, {"q": "two words", "num": 100}]


def test_a_query_that_finds_little_is_not_asked_again_for_more(
    fake: FakeSerper, tmp_path: Path
) -> None:
    fake.there = 4
    settings = WebSearchSettings(
        backend="serper", upstream=fake.url, cache=str(tmp_path / "kept.sqlite")
    )
    for count in (10, 8, 10):
        assert len(ask(settings, lambda search, count=count: search.search("rare", count))) == 4
    assert len(fake.asked) == 1
    assert len(ask(settings, lambda search: search.search("rare", 50))) == 4
    assert [body["num"] for body in fake.asked] == [10, 100]


def test_one_query_of_many_agents_is_asked_once(fake: FakeSerper, tmp_path: Path) -> None:
    fake.pause = 0.2
    settings = WebSearchSettings(
        backend="serper", upstream=fake.url, cache=str(tmp_path / "kept.sqlite")
    )

    async def many(search: WebSearch) -> list[list[Hit]]:
        return list(await asyncio.gather(*(search.search("same", 5) for _ in range(20))))

    found = ask(settings, many)
    assert len(fake.asked) == 1 and all(one == found[0] for one in found)


def test_no_more_queries_at_a_time_than_allowed(fake: FakeSerper) -> None:
    fake.pause = 0.05
    settings = WebSearchSettings(backend="serper", upstream=fake.url, upstream_concurrency=3)

    async def many(search: WebSearch) -> None:
        await asyncio.gather(*(search.search(f"q{n}", 5) for n in range(12)))

    ask(settings, many)
    assert len(fake.asked) == 12 and fake.most <= 3


def test_no_minute_has_more_queries_than_allowed(fake: FakeSerper) -> None:
    settings = WebSearchSettings(backend="serper", upstream=fake.url, requests_per_minute=12)

    async def many(search: WebSearch) -> None:
        asked = asyncio.gather(*(search.search(f"q{n}", 5) for n in range(12)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asked, 1)

    ask(settings, many)
    assert len(fake.asked) <= 2


def test_failures_that_may_pass_are_tried_again(
    fake: FakeSerper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching.random, "uniform", lambda *_: 0.0)
    settings = WebSearchSettings(backend="serper", upstream=fake.url, upstream_retries=2)
    fake.statuses = [500, 429]
    assert len(ask(settings, lambda search: search.search("x", 3))) == 3
    fake.statuses = [500, 502, 503]
    with pytest.raises(ToolUnavailable, match="status 503"):
        ask(settings, lambda search: search.search("x", 3))
    assert len(fake.asked) == 6


def test_a_refused_key_ends_it_and_is_not_shown(fake: FakeSerper) -> None:
    fake.statuses = [403]
    with pytest.raises(EngineGone) as failed:
        ask(
            WebSearchSettings(backend="serper", upstream=fake.url),
            lambda search: search.search("x", 3),
        )
    assert "bad key <SERPER_API_KEY>" in str(failed.value) and len(fake.asked) == 1


def test_a_refused_query_is_told_to_the_agent(fake: FakeSerper) -> None:
    fake.statuses = [400]
    with pytest.raises(ToolError, match="the query is refused") as failed:
        ask(
            WebSearchSettings(backend="serper", upstream=fake.url),
            lambda search: search.search("x", 3),
        )
    assert not isinstance(failed.value, ToolUnavailable)


def test_what_can_not_work_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"url": "u", "title": "t", "text": "x"}\n{"title": "t"}\n')
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"url": "u", "title": "t", "text": "x"}\n' * 2)
    for settings, said in (
        ({"backend": "serper"}, "SERPER_API_KEY is not set"),
        ({"backend": "corpus"}, "no pages to search"),
        ({"backend": "corpus", "pages": "nowhere"}, "there is no file"),
        ({"backend": "corpus", "pages": str(bad)}, "line 2, is not a page"),
        ({"backend": "corpus", "pages": str(twice)}, "two pages of u"),
    ):
        with pytest.raises(UserError, match=said):
            WebSearch(WebSearchSettings(**settings))  # type: ignore[arg-type]


def test_the_cache_forgets_what_is_old(tmp_path: Path) -> None:
    clock = [1000.0]
    cache = Cache(tmp_path / "c", seconds=10, now=lambda: clock[0])

    async def use() -> None:
        for name in "ab":
            clock[0] += 1
            await cache.put(name, name.upper())
        clock[0] = 1011.0
        assert [await cache.get(name) for name in "ab"] == [None, "B"]

    asyncio.run(use())
    cache.close()
    later = Cache(tmp_path / "c", seconds=10, now=lambda: 1011.5)
    assert asyncio.run(later.get("b")) == "B"
    later.close()


def test_a_file_that_is_no_cache_is_left_alone(tmp_path: Path) -> None:
    import sqlite3

    text = tmp_path / "notes.txt"
    text.write_text("important " * 100)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE mine (x)")
    for file in (text, other):
        before = file.read_bytes()
        with pytest.raises(UserError, match="can't be used"):
            Cache(file, 10)
        assert file.read_bytes() == before


def test_identity_is_of_what_is_searched_not_of_where_it_lies(corpus: str, tmp_path: Path) -> None:
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(Path(corpus).read_bytes())
    one, same = (
        WebSearch(WebSearchSettings(backend="corpus", pages=str(file))) for file in (corpus, moved)
    )
    moved.write_text(json.dumps(PAGES[0]))
    other = WebSearch(WebSearchSettings(backend="corpus", pages=str(moved)))
    assert one.identity == same.identity != other.identity
