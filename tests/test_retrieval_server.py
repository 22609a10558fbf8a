"""``POST /retrieve``: its two forms, batches of queries that wait, and bodies that make no sense."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from coterie.tools.retrieval.batches import Batches
from tests.passages import ROWS, encoded, indexed
from tests.tool_backends import config, serving, until

pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return indexed(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoded(tmp_path_factory.mktemp("dense")) / "index"


# -- batches ------------------------------------------------------------------------------------


def test_questions_that_wait_are_answered_together_and_each_gets_its_own_answer() -> None:
    asked: list[list[int]] = []

    async def play() -> list[int]:
        go = asyncio.Event()

        async def answer(questions: Any) -> list[int]:
            asked.append(list(questions))
            await go.wait()
            return [10 * one for one in questions]

        batches: Batches[int, int] = Batches(answer, window=0.005, most=4, at_once=1)
        first = asyncio.ensure_future(batches.ask(0))
        await until(lambda: asked)
        later = [asyncio.ensure_future(batches.ask(n)) for n in range(1, 10)]
        await asyncio.sleep(0.05)
        later[0].cancel()
        go.set()
        return await asyncio.gather(first, *later[1:])

    assert asyncio.run(play()) == [0, *range(20, 100, 10)]
    assert asked == [[0], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_a_batch_that_fails_fails_its_own_questions_alone() -> None:
    async def answer(questions: Any) -> list[int]:
        if 1 in questions:
            raise ValueError("no one")
        return list(questions)

    async def play() -> list[int | BaseException]:
        batches: Batches[int, int] = Batches(answer, window=0, most=2, at_once=1)
        return await asyncio.gather(*map(batches.ask, range(4)), return_exceptions=True)

    first, second, *others = asyncio.run(play())
    assert isinstance(first, ValueError) and isinstance(second, ValueError) and others == [2, 3]


# -- the server ---------------------------------------------------------------------------------


async def retrieved(url: str, **body: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as http:
        return await http.post(f"{url}/retrieve", json=body)


def test_retrieve_answers_in_both_forms(index: Path, tmp_path: Path) -> None:
    async def play() -> None:
        file = config(tmp_path, {"kind": "retrieve", "index": str(index), "topk": 2})
        async with serving(file) as (url, _):
            # what Search-R1's client sends
            scored = await retrieved(
                url, queries=["capital of Norway", "Italy"], topk=3, return_scores=True
            )
            norway, italy = scored.json()["result"]
            assert norway[0]["document"] == ROWS[0] and set(norway[0]) == {"document", "score"}
            assert len(norway) == 3 and isinstance(norway[0]["score"], float)
            assert [one["document"]["id"] for one in italy] == ["w2"]
            plain = await retrieved(url, queries=["capital of Norway"], topk=None)
            assert plain.json() == {"result": [[one["document"] for one in norway[:2]]]}
            assert (await retrieved(url, queries=[])).json() == {"result": []}

    asyncio.run(play())


def test_requests_at_the_same_time_are_searched_together_and_trimmed_to_their_own_count(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.tools.retrieval.retriever import Words

    searched: list[tuple[int, int]] = []
    whole = Words.search

    def search(self: Words, queries: Any, count: int) -> Any:
        searched.append((len(queries), count))
        return whole(self, queries, count)

    monkeypatch.setattr(Words, "search", search)

    async def play() -> None:
        tool = {"kind": "retrieve", "index": str(index), "window_ms": 20_000, "batch": 40}
        async with serving(config(tmp_path, tool)) as (url, _):
            counts = [1 + n % 4 for n in range(40)]
            replies = await asyncio.gather(
                *(retrieved(url, queries=["Norway"], topk=count) for count in counts)
            )
            found = [reply.json()["result"][0] for reply in replies]
            assert [len(one) for one in found] == counts
            longest = found[counts.index(4)]
            assert all(one == longest[: len(one)] for one in found)

    asyncio.run(play())
    assert searched == [(40, 4)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queries": "Norway"},
        {"queries": [1]},
        {"queries": ["x"], "topk": 0},
        {"queries": ["x"], "topk": 101},
        {"queries": ["x"], "topk": 2.5},
        {"queries": ["x"] * 513},
        {"queries": ["x"], "return_scores": "yes"},
        {"queries": ["x"], "k": 3},
        {"queries": ["\ud800"]},
    ],
)
def test_requests_that_make_no_sense_are_refused(index: Path, tmp_path: Path, body: Any) -> None:
    async def play() -> httpx2.Response:
        async with (
            serving(config(tmp_path, {"kind": "retrieve", "index": str(index)})) as (url, _),
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            headers = {"Content-Type": "application/json"}
            content = json.dumps(body)
            return await http.post(f"{url}/retrieve", content=content, headers=headers)

    reply = asyncio.run(play())
    assert reply.status_code == 400 and reply.json()["error"]["message"]


@pytest.mark.parametrize("content", [b'{"queries": ["x"]}', b"\xff\x00", b"queries=x"])
def test_what_is_not_sent_as_json_is_refused(index: Path, tmp_path: Path, content: bytes) -> None:
    async def play() -> httpx2.Response:
        async with (
            serving(config(tmp_path, {"kind": "retrieve", "index": str(index)})) as (url, _),
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            return await http.post(f"{url}/retrieve", content=content)

    reply = asyncio.run(play())
    assert reply.status_code == 400 and "application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize("query", ["", " ", "\u0000", "x" * 50_000, "'; drop table --", "😀 ‮ \t"])
def test_strange_queries_are_answered(dense: Path, tmp_path: Path, query: str) -> None:
    async def play() -> None:
        common = {"kind": "retrieve", "index": str(dense)}
        tools = ({**common, "name": "words"}, {**common, "name": "meaning", "search": "dense"})
        async with serving(config(tmp_path, *tools)) as (url, _):
            for name, count in (("words", 0), ("meaning", 3)):
                reply = await retrieved(f"{url}/{name}", queries=[query, "Norway"])
                assert [len(one) for one in reply.json()["result"]] == [count, 3]

    asyncio.run(play())
