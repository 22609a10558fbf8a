"""Web search: backends, the cache and the tool.

A fake stands for Serper, which is paid for; it speaks as Serper does.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from coterie.engines.protocol import EngineGone
from coterie.errors import UserError
from coterie.tools import search as searching
from coterie.tools.calls import ToolError, ToolUnavailable
from coterie.tools.search import Cache, WebSearch, WebSearchSettings

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


def ask(settings: WebSearchSettings, *queries: str) -> list[Any]:
    """What queries that are asked at the same time are answered with."""

    async def opened() -> list[Any]:
        search = WebSearch(settings)
        async with search.open():
            return list(await asyncio.gather(*map(search.search, queries)))

    return asyncio.run(opened())


def call(tool: WebSearch, *queries: str) -> list[str]:
    async def all_of_them() -> list[str]:
        async with tool.open() as functions:
            return [await functions["web_search"]({"query": query}) for query in queries]

    return asyncio.run(all_of_them())


def serper(fake: FakeSerper, **more: Any) -> WebSearchSettings:
    return WebSearchSettings(backend="serper", upstream=fake.url, **more)


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


def test_serper_is_asked_with_the_key_of_its_variable(fake: FakeSerper) -> None:
    (text,) = call(WebSearch(serper(fake, num=3)), " fjords ")
    assert fake.asked == [{"q": "fjords", "num": 3}] and fake.keys == ["paid-for"]
    assert text.startswith("Found 3 results") and "1. [fjords 1](https://example.org/1)" in text


def test_answers_are_kept_beyond_the_process_and_equal_queries_are_asked_once(
    fake: FakeSerper, tmp_path: Path
) -> None:
    fake.pause = 0.2
    few, many = (serper(fake, num=num, cache=str(tmp_path / "kept.sqlite")) for num in (3, 20))
    hits = ask(few, *["two words"] * 20)
    assert all(len(one) == 3 and one == hits[0] for one in hits)
    assert ask(few, "two words") == hits[:1] and len(ask(many, "two words")[0]) == 20
    assert fake.asked == [{"q": "two words", "num": 3}, {"q": "two words", "num": 20}]


def test_no_more_queries_at_a_time_than_allowed(fake: FakeSerper) -> None:
    fake.pause = 0.05
    ask(serper(fake, upstream_concurrency=3), *map(str, range(12)))
    assert len(fake.asked) == 12 and fake.most <= 3


def test_failures_that_may_pass_are_tried_again(
    fake: FakeSerper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "FIRST_PAUSE", 0.0)
    fake.statuses = [500, 429]
    assert len(ask(serper(fake, num=3, upstream_retries=2), "x")[0]) == 3
    fake.statuses = [500, 502, 503]
    with pytest.raises(ToolUnavailable, match=r"answered 503: .*<SERPER_API_KEY>"):
        ask(serper(fake, upstream_retries=2), "x")
    assert len(fake.asked) == 6


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [(403, EngineGone, "bad key <SERPER_API_KEY>"), (400, ToolError, "the query is refused")],
)
def test_a_refused_key_ends_it_and_a_refused_query_is_told_to_the_agent(
    fake: FakeSerper, status: int, kind: type[Exception], said: str
) -> None:
    fake.statuses = [status]
    with pytest.raises(kind, match=said) as failed:
        ask(serper(fake), "x")
    assert type(failed.value) is kind and len(fake.asked) == 1


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
