"""What retrieval behind the tool server takes: BM25 over HTTP, many clients at a time; and a server that is full.

    .venv/bin/python bench/tools_retrieval.py

Takes a minute; the last line is one JSON object. 100,000 invented passages of 60 words are served by the real command
(``coterie serve tools``) with its own settings; 64 clients in this process, each with a connection of its own, ask one
query of six words after the other. ``retrieval_p50_ms`` and ``retrieval_p99_ms`` are milliseconds of a request as a
client sees it, ``retrieval_rps`` requests a second of all clients together, ``errors`` replies that are not three
passages. ``refused_when_full`` is the share, of the requests above what a server with 8 + 8 places takes, that got a
503 at once.
"""

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from coterie.engines.servers.connections import Connections
from coterie.tools.retrieval.index import build_index

PASSAGES, WORDS, LENGTH = 100_000, 30_000, 60
CLIENTS, REQUESTS, QUERY = 64, 30, 6
PLACES, CROWD, HELD_MS = 8, 100, 3000


def retrieval_figures() -> dict[str, float]:
    """The figures above, of a fresh corpus and fresh servers."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        _write(folder / "passages.jsonl", rng)
        build_index(folder / "passages.jsonl", folder / "index")
        print(f"corpus and index: {time.perf_counter() - began:.1f} s", file=sys.stderr)
        queries = [" ".join(words) for words in _drawn(rng, (CLIENTS * REQUESTS, QUERY))]
        with serving(folder, {}) as url:
            taken, errors, seconds = asyncio.run(_load(url, queries))
        full = {"concurrent": PLACES, "queue": PLACES, "window_ms": HELD_MS}
        with serving(folder, full) as url:
            refused = asyncio.run(_crowd(url, queries[:CROWD]))
    cuts = statistics.quantiles(taken, n=100)
    return {
        "retrieval_p50_ms": round(1000 * cuts[49], 1),
        "retrieval_p99_ms": round(1000 * cuts[98], 1),
        "retrieval_rps": round(len(taken) / seconds, 1),
        "errors": errors,
        "refused_when_full": refused,
    }


@contextlib.contextmanager
def serving(folder: Path, settings: dict[str, Any]) -> Iterator[str]:
    """The URL of the real server of the index in a folder, while it runs."""
    file = folder / "tools.yaml"
    tool = {"kind": "retrieve", "index": str(folder / "index"), **settings}
    file.write_text(json.dumps({"tools": [tool]}))
    command = (sys.executable, "-m", "coterie", "serve", "tools", "--config", str(file))
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert child.stdout is not None
            yield f"{child.stdout.readline().strip()}/retrieve"
        finally:
            child.terminate()
            child.wait()


async def _load(url: str, queries: list[str]) -> tuple[list[float], int, float]:
    """Seconds of each request, how many failed, and seconds of all of them."""
    taken: list[float] = []
    errors = 0
    async with httpx2.AsyncClient(transport=Connections(2.0), timeout=60) as http:

        async def client(own: list[str], counted: bool) -> None:
            nonlocal errors
            for query in own:
                began = time.perf_counter()
                reply = await http.post(url, json={"queries": [query], "topk": 3})
                if counted:
                    taken.append(time.perf_counter() - began)
                right = reply.status_code == 200 and len(reply.json()["result"][0]) == 3
                errors += not right

        await asyncio.gather(*(client([query], False) for query in queries[:CLIENTS]))
        began = time.perf_counter()
        await asyncio.gather(*(client(queries[n::CLIENTS], True) for n in range(CLIENTS)))
        return taken, errors, time.perf_counter() - began


async def _crowd(url: str, queries: list[str]) -> float:
    """Of the requests that come above all places at once: the share that is refused before others are answered."""
    async with httpx2.AsyncClient(transport=Connections(2.0), timeout=60) as http:

        async def one(query: str) -> bool:
            began = time.perf_counter()
            reply = await http.post(url, json={"queries": [query]})
            at_once = time.perf_counter() - began < HELD_MS / 1000
            return reply.status_code == 503 and "retry-after" in reply.headers and at_once

        refused = sum(await asyncio.gather(*map(one, queries)))
    return refused / (len(queries) - 2 * PLACES)


def _write(file: Path, rng: np.random.Generator) -> None:
    with file.open("w") as out:
        for number, words in enumerate(_drawn(rng, (PASSAGES, LENGTH))):
            text = f'"{words[0]} {words[1]}"\n{" ".join(words)}.'
            out.write(json.dumps({"id": str(number), "contents": text}) + "\n")


def _drawn(rng: np.random.Generator, shape: tuple[int, int]) -> Iterator[list[str]]:
    """Rows of words, drawn by Zipf's law."""
    chances = np.cumsum(1 / np.arange(1, WORDS + 1))
    places = np.searchsorted(chances, rng.random(shape) * chances[-1])
    vocabulary = np.array([f"word{n}" for n in range(WORDS)])
    for row in places:
        yield vocabulary[row].tolist()


if __name__ == "__main__":
    print(json.dumps(retrieval_figures()))
