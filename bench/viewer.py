"""What `coterie view` costs on a large run: a store of 100,000 turns with 6 million sampled tokens, in Chromium.

    .venv/bin/python bench/viewer.py [--small] [--inspect VENV/bin/inspect]

About eight minutes on two cores, of which two write the store; ``--small`` has a twentieth of it. Needs Chromium
(``--chromium``) and Playwright. ``--keep FOLDER`` keeps the store for other tries.

The store is that of reinforcement learning: 1,250 tasks with 8 rollouts of 10 turns in one stage, with credit, trained
rows and reasons for leaving rollouts out. There are also a tree of 10,000 nodes with pairs, and a turn of 32,000
tokens. The tokenizer is trained on this repository's texts (about 26,000 entries).

A round starts the server and the browser anew. A time goes from the click to the frame after the one in which the
result was drawn, by the page's own clock, so it contains up to two frames (33 ms) of waiting. Figures are medians over
all rounds; ``spreads`` has the smallest and the largest value. The last line is one JSON object:

    start_s                              from the command to the first answer, including Python's start
    start_cpu_s, list_cpu_s              the server's processor time until then, and for the list
    list_ms                              list of 1,250 tasks, first page of a new server and a new browser
    filter_ms, search_ms                 a filter or order of 10,000 rollouts; a text search, with its 250 ms of waiting
    task_ms, dialogue_ms, dialogue_first_ms, tokens_32k_ms      from the list; the first one loads the tokenizer
    lineage_ms                           from a turn to its rows, and from there to a row
    lineage_root_ms                      the same for a turn near the root of the tree, with 1,000s of turns below it
    tree_ms, zoom_p95_ms, zoom_max_ms    icicle of 10,000 nodes; clicks that select, zoom in and zoom out
    server_mb                            the server's peak memory (RSS)
    bytes_per_token                      pages of the table ``trained`` over its tokens, of a tiny ``rl/grpo`` run
    bytes_per_token_60                   the same in the large store, whose rows have five turns of 60 tokens
    step_overhead                        processor time of a tiny ``rl/grpo`` with token_facts=all over none, minus 1
    report_s                             `coterie report` of a run with 62 tasks, 5,000 turns and 300,000 tokens
    vs_inspect                           Inspect View's time to its list of 4,000 samples over ours
    missed                               figures that miss their target
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.timing import Times, rounds
from bench.viewer_recording import bytes_per_token, recording
from bench.viewer_store import MARKER, write_run
from coterie.record.store import Store
from coterie.reports.inspect_logs import LogHead, eval_log

TARGETS = {
    "start_s": 1.5, "list_ms": 1000, "filter_ms": 300, "tree_ms": 1000, "zoom_p95_ms": 50, "zoom_max_ms": 100,
    "dialogue_ms": 300, "tokens_32k_ms": 1000, "lineage_ms": 100, "server_mb": 300, "bytes_per_token": 12,
    "step_overhead": 0.03, "report_s": 2,
}  # fmt: skip
HELPERS = """
    window.drawings = 0;
    const setTransform = CanvasRenderingContext2D.prototype.setTransform;
    CanvasRenderingContext2D.prototype.setTransform = function (...matrix) {
        window.drawings += 1;
        return setTransform.apply(this, matrix);
    };
    window.frame = () => new Promise(requestAnimationFrame);
    window.matching = (selector, text) =>
        [...document.querySelectorAll(selector)].find((item) => item.textContent.includes(text));
    // Milliseconds from an action to the frame that shows its result; null if there is none after some frames.
    window.timed = async (act, isDone, frames) => {
        const start = performance.now();
        act();
        for (let count = 0; count === 0 || !isDone(); count += 1) {
            if (count === frames) return null;
            await frame();
        }
        // A canvas is drawn at once, but elements are laid out and painted after this frame's scripts.
        if (!frames) await frame();
        return performance.now() - start;
    };
"""
CLICK = """([selector, text, done, expected]) => {
    const target = matching(selector, text), before = drawings;
    if (!target) throw new Error(`there is no ${selector} with ${text}`);
    return timed(() => target.click(), () => (done ? matching(done, expected) : drawings > before));
}"""
WAIT = """async ([selector, text]) => {
    while (!matching(selector, text)) await frame();
    await frame();
    return performance.now();
}"""
OPEN = """async (routes) => {
    for (const route of routes) {
        location.hash = route;
        for (let count = 0; count < 3; count += 1) await frame();
    }
}"""
ZOOM = """([x, y, isUp]) => {
    const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect(), before = drawings;
    const [clientX, clientY] = [box.left + x * box.width, box.top + y * box.height];
    const act = () => (isUp ? matching("button", "One level up").click()
        : canvas.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX, clientY })));
    return timed(act, () => drawings > before, 20);
}"""
"""Click on a point of the icicle, or on a button. A click beside all nodes draws nothing."""
SEARCH = """(text) => timed(
    () => {
        const input = document.querySelector("input[type=search]");
        input.value = text;
        input.dispatchEvent(new Event("input", { bubbles: true }));
    },
    () => document.querySelector("main p[role=status]").textContent.startsWith("1 of"))"""
FIRST_NODE = """async () => {
    const response = await fetch("api/tree?iteration=0&stage=rollout&task=tree");
    return (await response.json()).id[1];
}"""
ROOT, LIST = "#/", "#/tasks?stage=0/reinforce%2F00000"


class Window:
    """A new browser window with the page of a new server."""

    def __init__(self, page: Any, times: Times) -> None:
        self.page, self.times = page, times

    def click(self, figure: str, selector: str, text: str, done: str = "", count: str = "") -> None:
        """Add the milliseconds from a click until an element matches, or (without ``done``) a canvas was drawn."""
        self.times.add(figure, self.page.evaluate(CLICK, [selector, text, done, count]))

    def wait(self, selector: str, text: str = "") -> float:
        """Return the milliseconds of the page's life until an element with a text was drawn."""
        return float(self.page.evaluate(WAIT, [selector, text]))

    def open(self, route: str, selector: str, text: str = "") -> None:
        self.page.evaluate(OPEN, [ROOT, route])
        self.wait(selector, text)


@contextmanager
def server(folder: Path, times: Times) -> Iterator[tuple[str, int]]:
    """Run ``coterie view``; yield its address and process id, and add the time to the first answer."""
    command = [str(Path(sys.executable).with_name("coterie")), "view", str(folder), "--no-open"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip()
            urlopen(address).read()
            times.add("start_s", time.perf_counter() - start)
            times.add("start_cpu_s", cpu_seconds(process.pid))
            yield address, process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@contextmanager
def new_window(chromium: str, address: str, times: Times) -> Iterator[Window]:
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script(HELPERS)
        page.goto(address)
        yield Window(page, times)
        browser.close()


def browse(window: Window, rng: random.Random) -> None:
    """Walk through the screens of the large store."""
    window.open(f"{LIST}&by=rollouts", ".line a")
    for label in ("cut off", "left out", "trained on"):
        window.click(
            "filter_ms", ".filters button", label, ".filters button[aria-pressed=true]", label
        )
        window.click(
            "filter_ms", ".filters button", label, ".filters button[aria-pressed=false]", label
        )
    window.click(
        "filter_ms", "[role=columnheader] button", "reward", "[aria-sort=descending]", "reward"
    )
    window.times.add("search_ms", window.page.evaluate(SEARCH, MARKER.strip()))
    # Groups without different rewards, which are the fifth ones, have no training rows.
    for visit, number in enumerate(rng.sample([0, 1, 2, 3, 5, 6, 7, 8, 10, 11], 5)):
        window.open(LIST, ".line a")
        task = f"train-0-{number:04d}"
        window.click("task_ms", ".line a", task, "article h3 a", "Rollout 0007")
        figure = "dialogue_ms" if visit else "dialogue_first_ms"
        window.click(
            figure, "article h3 a", "Rollout 0003", "article.turn:nth-of-type(10) .tokens span"
        )
        window.click("lineage_ms", "article.turn a", "what it trained", "h2", "Rows and steps")
        window.click("lineage_ms", "td a", "row ", "h2", "Rewards and credit")
    for figure, task, stage in (("tokens_32k_ms", "long", "long"), ("", "tree", "rollout")):
        window.open(f"#/task/0/{stage}/{task}", "h2", "Rollouts")
        if figure:
            window.click(figure, "td a", "0000", ".tokens span")
    window.click("tree_ms", "a.button", "Tree of")
    for index in range(90):
        # Two clicks at a point select and zoom.
        if index % 3 == 0:
            point = [rng.uniform(0.1, 0.9), rng.random()]
        if (milliseconds := window.page.evaluate(ZOOM, [*point, index % 9 == 8])) is not None:
            window.times.add("zoom_ms", milliseconds)
    node = window.page.evaluate(FIRST_NODE)
    window.open(f"#/task/0/rollout/tree/path/{node}", "article.turn")
    window.click("lineage_root_ms", "article.turn a", "what it trained", "h2", "Rows and steps")


@contextmanager
def inspect_server(inspect: Path, logs: Path) -> Iterator[str]:
    """Run Inspect View, and yield its address once it answers."""
    command = [
        str(inspect),
        "view",
        "start",
        "--log-dir",
        str(logs),
        "--host",
        "127.0.0.1",
        "--port",
        "7599",
    ]
    address = "http://127.0.0.1:7599/"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while True:
                with suppress(URLError):
                    urlopen(address).read()
                    break
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def against_inspect(args: Any, temporary: Path) -> dict[str, Any]:
    """Return the times to the list of the same 4,000 rollouts here and in Inspect View, from the first request."""
    folder, logs, times = temporary / "samples", temporary / "logs", Times()
    write_run(folder, 500, 0)
    now = datetime.now(UTC)
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        head = LogHead("rollouts", "tiny", "f1", now, now)
        log = eval_log(store, 0, "reinforce/00000", head, secrets=False)
    (temporary / "log.json").write_text(json.dumps(log))
    convert = ("log", "convert", temporary / "log.json", "--to", "eval", "--output-dir", logs)
    subprocess.run([args.inspect, *convert], check=True, stdout=subprocess.DEVNULL)
    for _ in rounds(3, args.seconds):
        with ExitStack() as opened:
            address, _ = opened.enter_context(server(folder, Times()))
            url = f"{address}{LIST}&by=rollouts"
            window = opened.enter_context(new_window(args.chromium, url, times))
            times.add("coterie", window.wait(".line a", "train-0-0000"))
        with ExitStack() as opened:
            url = f"{opened.enter_context(inspect_server(args.inspect, logs))}#/logs/log.eval"
            window = opened.enter_context(new_window(args.chromium, url, times))
            times.add("inspect", window.wait("body", "train-0-0000"))
    return {
        "vs_inspect": times.ratio("inspect", "coterie"), "vs_inspect_spread": times.spread("inspect", "coterie"),
        "inspect_ms": times.medians(),
    }  # fmt: skip


def report_seconds(folder: Path) -> float:
    """Return the median time of ``coterie report``, including Python's start."""
    write_run(folder, 62, 0)
    command, seconds = [str(Path(sys.executable).with_name("coterie")), "report", str(folder)], []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def figures(times: Times) -> dict[str, Any]:
    """Return the medians of all times, and their spreads."""
    zooms = times.seconds.pop("zoom_ms")
    steps = {"zoom_p95_ms": statistics.quantiles(zooms, n=20)[-1], "zoom_max_ms": max(zooms)}
    spreads = {name: [min(values), max(values)] for name, values in times.seconds.items()}
    return {**times.medians(), **steps, "zooms": len(zooms), "spreads": spreads}


def main() -> None:
    """Measure, print, and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a twentieth of the store")
    parser.add_argument(
        "--keep", type=Path, help="folder of the store, which is written if it is missing"
    )
    parser.add_argument("--inspect", type=Path, help="the program of Inspect, for vs_inspect")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument(
        "--seconds", type=float, default=120, help="for each of the two alternating parts"
    )
    args = parser.parse_args()
    # Installed packages are compiled, and a checkout compiles itself at its first start, unless this forbids it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sizes = (62, 500) if args.small else (1250, 10_000)
    with TemporaryDirectory() as temporary:
        folder, times = args.keep or Path(temporary) / "large", Times()
        start = time.monotonic()
        if not folder.exists():
            write_run(folder, *sizes)
        written = time.monotonic() - start
        for number in rounds(3, args.seconds):
            with server(folder, times) as (address, pid):
                with new_window(args.chromium, f"{address}{LIST}", times) as window:
                    times.add("list_ms", window.wait(".line a"))
                    times.add("list_cpu_s", cpu_seconds(pid) - times.seconds["start_cpu_s"][-1])
                    browse(window, random.Random(number))
                times.add("server_mb", peak_mb(pid))
        found = {"write_s": written, **figures(times)}
        found["bytes_per_token_60"] = bytes_per_token(folder / "store.sqlite")
        print(json.dumps(found), flush=True)
        found |= recording(Path(temporary), args.seconds)
        found["report_s"] = report_seconds(Path(temporary) / "ordinary")
        found |= against_inspect(args, Path(temporary)) if args.inspect else {}
    found |= {
        "load": os.getloadavg(),
        "missed": [name for name, target in TARGETS.items() if found[name] > target],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
