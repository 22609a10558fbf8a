"""What rendering pages costs: a browser that stays against a fresh one for each page, with the same inlined rules.

    .venv/bin/python bench/render.py

Takes about two minutes; the last line is one JSON object. Pages are generated in the style of WebSight.
``speedup`` is pages a second of one warm browser over those where each page gets a browser of its own, in the same
jail and by the same steps. ``two_pages`` is pages a second of two browsers over those of one, and needs two idle
cores. ``p50_ms`` and ``p99_ms`` are percentiles of a page in one browser. ``determinism`` is the share of pages
whose bytes are the same in a second renderer, in another order. Measurements take turns, and the median of rounds
counts; ``spread`` is the smallest and largest ``speedup`` of a round, ``load`` the load average before and after.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import rounds
from bench.websight_pages import make_page
from coterie.tools.render import Renderer, RenderSettings, _Slot, inline_resources

WARM, FRESH, SAME, ROUNDS, SECONDS = 50, 5, 200, 5, 50


async def rate(renderer: Renderer, pages: Sequence[str], milliseconds: list[float]) -> float:
    """Pages a second, as many at a time as there are browsers."""
    places = asyncio.Semaphore(renderer.settings.pages)

    async def one(html: str) -> None:
        async with places:
            began = time.perf_counter()
            shot = await renderer.render(html)
            assert shot.png, shot.failure
            milliseconds.append(1000 * (time.perf_counter() - began))

    began = time.perf_counter()
    await asyncio.gather(*map(one, pages))
    return len(pages) / (time.perf_counter() - began)


async def fresh_rate(renderer: Renderer, pages: Sequence[str]) -> float:
    """Pages a second where each page has a browser of its own."""
    began = time.perf_counter()
    for html in pages:
        slot = _Slot(renderer)
        await slot.prepare()
        assert await slot.draw(inline_resources(html))
        await slot.close()
    return len(pages) / (time.perf_counter() - began)


async def same(one: Renderer, other: Renderer) -> float:
    """Share of pages whose bytes are the same in two renderers."""
    pages = [make_page(1_000_000 + n) for n in range(SAME)]
    first = await asyncio.gather(*map(one.render, pages))
    second = await asyncio.gather(*map(other.render, reversed(pages)))
    equal = [bool(a.png) and a.png == b.png for a, b in zip(first, reversed(second), strict=True)]
    return sum(equal) / len(equal)


async def main() -> None:
    """Measure in turns and print."""
    rates: dict[str, list[float]] = {"fresh": [], "one": [], "two": []}
    milliseconds: list[float] = []
    load = [os.getloadavg()[0]]
    async with Renderer(RenderSettings(pages=1)) as one, Renderer(RenderSettings(pages=2)) as two:
        for number in rounds(ROUNDS, SECONDS):
            pages = [make_page(number * 1000 + n) for n in range(WARM)]
            rates["fresh"].append(await fresh_rate(one, pages[:FRESH]))
            rates["one"].append(await rate(one, pages, milliseconds))
            rates["two"].append(await rate(two, pages, []))
        determinism = await same(one, two)
    load.append(os.getloadavg()[0])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = [a / b for a, b in zip(rates["one"], rates["fresh"], strict=True)]
    quantiles = statistics.quantiles(milliseconds, n=100)
    results = {
        "speedup": medians["one"] / medians["fresh"],
        "spread": [min(ratios), max(ratios)],
        "two_pages": medians["two"] / medians["one"],
        "pages_per_second": medians["one"],
        "fresh_pages_per_second": medians["fresh"],
        "p50_ms": quantiles[49],
        "p99_ms": quantiles[98],
        "determinism": determinism,
        "pages": len(milliseconds),
        "load": load,
    }
    print(
        json.dumps(
            {k: v if isinstance(v, (list, int)) else round(v, 3) for k, v in results.items()}
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
