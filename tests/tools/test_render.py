"""Renderer: real Chromium in its jail, pages that are hostile, and what is put into pages.

Tests that render are skipped without Chromium (``chromium`` of conftest).
"""

import asyncio
import http.server
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote
from urllib.request import urlopen

import psutil
import pytest

from bench.websight_pages import LINK, make_page
from coterie.cli.doctor import _renderer
from coterie.engines.protocol import EngineGone
from coterie.tools import render
from coterie.tools.render import (
    FILTER,
    MAX_HEIGHT,
    MAX_PROCESSES,
    PROCESSES,
    Renderer,
    RenderSettings,
    Screenshot,
    inline_resources,
    missing_limits,
    tailwind_rules,
)

REFERENCE = make_page(0)
Render = Callable[[str], Screenshot]


def caller(runner: asyncio.Runner, settings: RenderSettings) -> Iterator[Render]:
    """Yield a function that renders a page, whether or not it was rendered before."""
    renderer = Renderer(settings)
    runner.run(renderer.__aenter__())

    def draw(html: str) -> Screenshot:
        renderer._cache.clear()
        return runner.run(renderer.render(html))

    yield draw
    runner.run(renderer.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def draw(runner: asyncio.Runner, chromium: str) -> Iterator[Render]:
    """Render a page, in one browser, with time for a slow machine."""
    yield from caller(runner, RenderSettings(pages=1, seconds=60, memory_mib=640, renew=20))


@pytest.fixture(scope="module")
def reference(draw: Render) -> bytes:
    return draw(REFERENCE).png


@pytest.fixture(scope="module")
def plain(draw: Render) -> Screenshot:
    return draw(BODY)


def size(png: bytes) -> tuple[int, int]:
    return struct.unpack(">II", png[16:24])


def pixels(png: bytes) -> bytes:
    """Return the compressed pixels as they are before compression, with PNG's filters."""
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] * (png[at + 4 : at + 8] == b"IDAT")
        at += 12 + length
    return zlib.decompress(data)


# -- hostile pages --------------------------------------------------------------------------------

BODY = "<body><p>text</p>"
LOOP = "while (true) {}"
TOO_LONG, TOO_LARGE = "did not finish within 4 s", "took more than 640 MiB"
ENDLESS = {
    "endless script": (f"<script>{LOOP}</script>", TOO_LONG),
    "endless script of a timer": (f"<script>setTimeout(() => {{{LOOP}}}, 900)</script>", TOO_LONG),
    "a page that never finishes": (
        f"<script>new Worker(URL.createObjectURL(new Blob(['{LOOP}'])))</script>",
        TOO_LONG,
    ),
    "endless script at the end": (f"<script>onpagehide = () => {{{LOOP}}}</script>", ""),
}
HOSTILE = {
    "10 GB of DOM": (
        "<script>for (let i = 0; i < 1e4; i++) document.body.append('x'.repeat(1e6) + i)</script>",
        TOO_LARGE,
    ),
    "10 GB of numbers": (
        "<script>let all = []; while (true) all.push(new Uint8Array(1e7).fill(1))</script>",
        TOO_LARGE,
    ),
    "huge canvas": (
        "<script>for (let i = 0; i < 200; i++) { let c = document.createElement('canvas');"
        "c.width = c.height = 8000; c.getContext('2d').fillRect(0, 0, 8000, 8000); document.body.append(c) }</script>",
        TOO_LARGE,
    ),
    "files": (
        "<iframe src=file:///etc/fonts/fonts.conf></iframe><script>fetch('file:///etc/ld.so.cache')"
        ".then(() => document.body.append('stolen'), () => 0)</script>",
        "",
    ),
    "alerts": ("<script>alert(1); confirm(2); prompt(3); print()</script>", ""),
    "downloads": ("<a id=a download=x href='data:text/plain,x'></a><script>a.click()</script>", ""),
    "windows": ("<script>for (let i = 0; i < 9; i++) window.open('about:blank')</script>", ""),
    "meta refresh": (
        "<meta http-equiv=refresh content='0;url=http://127.0.0.1/'>",
        "goes to http://127.0.0.1/",
    ),
    "navigation": ("<script>location = 'https://example.com'</script>", "goes to https://example.com"),
    "refresh at the last moment": (
        "<meta http-equiv=refresh content='1;url=http://127.0.0.1/'>",
        "goes to http://127.0.0.1/",
    ),
    "reload": ("<script>setTimeout(() => location.reload(), 300)</script>", "goes to about:blank"),
    "form": ("<form id=f action=http://a.b/></form><script>f.submit()</script>", "goes to http://a.b/"),
    "frame that moves the page": (
        "<iframe srcdoc='<script>top.location = `http://a.b/`</script>'></iframe>",
        "goes to http://a.b/",
    ),
    "close": ("<script>close()</script>", ""),
    "late close": ("<script>setTimeout(() => open('', '_self').close(), 500)</script>", ""),
    "place in the page": ("<script>location = '#place'; history.back()</script>", ""),
    "data": ("<script>location = 'data:text/html,other'</script>", ""),
    "late refresh": ("<meta http-equiv=refresh content='5;url=http://127.0.0.1/'>", ""),
    "service worker": (
        "<script>navigator.serviceWorker?.register('data:text/javascript,').then("
        "() => document.body.append('registered'), () => 0)</script>",
        "",
    ),
    "endless messages": (
        "<script>let c = new MessageChannel(); c.port1.onmessage = () => c.port2.postMessage(1);"
        "c.port2.postMessage(1)</script>",
        "",
    ),
    "crash": ("<script>location = 'chrome://crash'</script>", ""),
    "observer that leaves": ("<!--Observer--><script>location = 'http://a.b/'</script>", "goes to http://a.b/"),
}  # fmt: skip
HARMLESS = {"files": "<iframe src=file:///etc/fonts/none></iframe>"}
"""Pages that look the same; else ``BODY`` alone."""


def check(shot: Screenshot, failure: str, harmless: Screenshot) -> None:
    if failure:
        assert shot.png == b"" and failure in shot.failure
    else:
        assert shot == harmless


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_costs_only_itself(
    name: str, draw: Render, plain: Screenshot, reference: bytes
) -> None:
    html, failure = HOSTILE[name]
    check(draw(BODY + html), failure, draw(BODY + HARMLESS[name]) if name in HARMLESS else plain)
    assert draw(REFERENCE).png == reference, "the next page is right"


def test_an_endless_page_costs_only_itself(
    runner: asyncio.Runner, plain: Screenshot, reference: bytes
) -> None:
    async def renders() -> tuple[list[Screenshot], list[Screenshot]]:
        async with Renderer(RenderSettings(pages=len(ENDLESS), seconds=4)) as renderer:
            shots = await asyncio.gather(*(renderer.render(BODY + h) for h, _ in ENDLESS.values()))
            later = (renderer.render(f"{REFERENCE}<!--{name}-->") for name in ENDLESS)
            return shots, await asyncio.gather(*later)

    shots, later = runner.run(renders())
    for shot, (_, failure) in zip(shots, ENDLESS.values(), strict=True):
        check(shot, failure, plain)
    assert {shot.png for shot in later} == {reference}, "the next pages are right"


def test_a_page_sees_nothing_of_the_page_before(draw: Render) -> None:
    text = "<h1 id=p></h1><script>p.append(window.name, ' ', history.length)</script>"
    draw("<script>window.name = 'before'; history.pushState(0, '', '#a')</script>")
    assert draw(text).png == draw("<h1 id=p> 1</h1><script></script>").png


def test_a_page_reaches_no_server_of_this_machine(draw: Render, reference: bytes) -> None:
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        urlopen(f"{base}/control").close()
        links = f"<link rel=stylesheet href={base}/css><script src={base}/js></script>"
        links += f"<iframe src={base}/frame></iframe><img src={base}/image>"
        script = f"fetch('{base}/fetch', {{mode: 'no-cors'}}); new WebSocket('{base}/socket'.replace('http', 'ws'))"
        shot = draw(f"{BODY}{links}<script>{script}; navigator.sendBeacon('{base}/b')</script>")
        assert draw(f"{BODY}<script>location = '{base}/away'</script>").failure
        assert draw(REFERENCE).png == reference
        server.shutdown()
    assert shot.png and requests == ["/control"]


def test_the_browser_is_an_unprivileged_user_without_network(draw: Render) -> None:
    draw(BODY)
    tree = [p for p in psutil.Process().children(recursive=True) if "chrom" in p.name()]
    assert len(tree) >= 3, "browser and renderers"
    network = os.readlink("/proc/self/ns/net")
    for process in tree:
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert os.readlink(f"/proc/{process.pid}/ns/net") != network
        assert "\nNoNewPrivs:\t1\n" in status and "\nCapEff:\t0000000000000000\n" in status
        assert process.uids().real != 0
        if not missing_limits():
            limits = Path(f"/proc/{process.pid}/limits").read_text()
            assert (
                "\nSeccomp:\t2\n" in status
                and f"Max processes             {MAX_PROCESSES} " in limits
            )


UNDER_FILTER = """
import ctypes, os, platform, socket, struct
from coterie.tools.sandbox.inside.confine import NUMBERS, filter_program
libc = ctypes.CDLL(None, use_errno=True)
code = filter_program(*NUMBERS[platform.machine()], for_browser=True)
buffer = ctypes.create_string_buffer(code, len(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)), 0, 0) == 0
os.close(os.memfd_create("shared"))
one, two = socket.socketpair()
socket.send_fds(one, [b"x"], [1])
for attack in (
    lambda: libc.unshare(0x10000000), lambda: libc.ptrace(0, 0, 0, 0), lambda: libc.mount(b"a", b"/", b"tmpfs", 0, b""),
    lambda: libc.syscall({"x86_64": 321, "aarch64": 280}[platform.machine()], 0, 0, 0),
):
    assert attack() == -1 and ctypes.get_errno() in (1, 38), ctypes.get_errno()
try:
    socket.socket(socket.AF_INET)
except PermissionError:
    print("filtered")
"""


def test_the_filter_of_the_browser_refuses_what_no_page_needs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", UNDER_FILTER], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "filtered\n", ran.stderr


def test_doctor_names_the_limits_that_the_machine_lacks(
    monkeypatch: pytest.MonkeyPatch, chromium: str
) -> None:
    assert not [why for why in missing_limits() if why not in (FILTER, PROCESSES)]
    monkeypatch.setattr("coterie.tools.render.PRLIMIT", "/nowhere/prlimit")
    assert f"without {PROCESSES}: there is no /nowhere/prlimit" in _renderer().result


def test_renders_end_with_their_driver(runner: asyncio.Runner, chromium: str) -> None:
    async def render_after_the_end() -> None:
        async with Renderer(RenderSettings(pages=1)) as renderer:
            (driver,) = set(psutil.Process().children()) - before
            driver.kill()
            await renderer.render(BODY)

    before = set(psutil.Process().children())
    with pytest.raises(EngineGone, match="no browser starts"):
        runner.run(render_after_the_end())


def test_a_browser_that_is_killed_costs_no_page(draw: Render, reference: bytes) -> None:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it died with its parent
            if "chrom" in process.name():
                process.kill()
    assert draw(REFERENCE).png == reference


# -- pictures -------------------------------------------------------------------------------------

GIF = (
    "R0lGODlhCgAKAIAAAP8AAAAA/yH/C05FVFNDQVBFMi4wAwEAAAAh+QQACgAAACwAAAAACgAKAAACCISPqcvtD2MrACH5BAAKAAAALAAAAAAKAAoA"
    "AAIIjI+py+0PYysAOw=="
)
"""Image of two frames."""
PARAGRAPH = (
    "<p id=p>text</p><script>const tell = (what) => p.append(` ${what} ${performance.now()}`);"
)
MOVING = {
    "timers and frames": """<style>@keyframes come { from { opacity: 0 } } h1 { animation: come 3s }</style>
<h1>Title</h1><canvas id=c width=300 height=100></canvas><p></p><script>
let x = 0, n = 0, text = document.querySelector("p")
function frame() { c.getContext("2d").fillRect(0, 0, x++, 50); requestAnimationFrame(frame) }
setInterval(() => text.append(++n, " ", Math.random(), Date.now(), performance.now(), Date(), new Date()), 100)
frame()
</script>""",
    "idle": PARAGRAPH + "setTimeout(() => requestIdleCallback(() => tell('idle')), 500)</script>",
    "observers": PARAGRAPH + """let told = () => setTimeout(() => tell('seen'), 500)
new IntersectionObserver(told).observe(p); new ResizeObserver(told).observe(p)</script>""",
    "animations of a script": PARAGRAPH + """let a = p.animate([{width: "10px"}, {width: "300px"}], 600)
a.onfinish = () => { tell("finished"); setTimeout(() => tell("later"), 50) }</script>""",
    "transition": "<style>p { transition: all 2s } .wide { padding: 99px }</style>" + PARAGRAPH
    + "p.ontransitionend = () => tell('end'); setTimeout(() => p.className = 'wide', 300)</script>",
    "animated vectors": "<svg><rect width=9 height=50><animate attributeName=width to=300 dur=2s></svg>",
    "animated image": f"<img width=200 src='data:image/gif;base64,{GIF}'>",
    "smooth scrolling": "<html style='scroll-behavior: smooth'><div style='height: 3000px'>" + PARAGRAPH
    + "p.style.position = 'fixed'; setTimeout(() => scrollTo(0, 1500), 100); onscroll = () => p.append('!')</script>",
    "marquee": "<h2>News</h2><marquee>text</marquee>",
    "lazy image": "<div style='height:3000px'></div><img loading=lazy src='https://picsum.photos/300/200'>",
}  # fmt: skip


def test_equal_pages_give_equal_bytes_in_other_browsers_too(
    runner: asyncio.Runner, draw: Render, chromium: str
) -> None:
    pages = [
        *MOVING.values(),
        *map(make_page, range(2)),
        "",
        "no <tags",
        "a\0b\ud800",
        "<img name=body>clobbers",
    ]
    first = [draw(html) for html in pages]
    assert not any(shot.failure for shot in first) and len({shot.png for shot in first}) == len(
        pages
    )

    async def again() -> list[Screenshot]:
        async with Renderer(RenderSettings(pages=2, seconds=60)) as other:
            return await asyncio.gather(*map(other.render, reversed(pages)))

    assert runner.run(again())[::-1] == first
    other = draw(pages[0].replace("Title", "Other title"))
    assert pixels(other.png) != pixels(first[0].png)


def test_timers_run_for_a_second_of_the_page(draw: Render) -> None:
    count = "<p id=p>0</p><script>let n = 0; setInterval(() => p.textContent = ++n, 300)</script>"
    date = "<p id=p></p><script>setTimeout(() => p.textContent = Date.now(), 500)</script>"
    assert draw(count).png == draw("<p id=p>3</p>").png
    assert draw(date).png == draw("<p id=p>1700000000500</p>").png


def test_a_page_may_replace_its_document_by_a_script(draw: Render) -> None:
    shot = draw(BODY + "<script>location = 'javascript:`<p>other`'</script>")
    assert pixels(shot.png) == pixels(draw("<p>other").png)


STYLE = (
    "<!DOCTYPE html><style>body { margin: 0 } section { min-height: 100vh } div { opacity: 0; transition: all 0.8s; "
    "background: red; height: 300px } .on { opacity: 1 }</style>"
)
PARTS = "<section><div>part</div></section>" * 4
SHOWN = STYLE + PARTS.replace("<div", "<div class=on")
OBSERVE = "document.querySelectorAll('div').forEach((one) => o.observe(one))"
REVEAL = """const reveal = () => document.querySelectorAll("div").forEach((one) =>
    one.classList.toggle("on", one.getBoundingClientRect().top < HEIGHT - 150)); reveal();"""
REVEALS = {
    "observer": "const o = new IntersectionObserver((entries) => entries.forEach((one) => { if (one.isIntersecting) "
    f"one.target.classList.add('on') }}), {{threshold: 0.1, rootMargin: '0px 0px -50px'}}); {OBSERVE}",
    "observer that hides again": "const o = new IntersectionObserver((entries) => entries.forEach((one) => setTimeout("
    f"() => one.target.classList.toggle('on', one.isIntersecting), 300)), {{root: document}}); {OBSERVE}",
    "listener": f"{REVEAL} addEventListener('scroll', reveal)",
    "handler": f"{REVEAL} onscroll = reveal".replace("HEIGHT", "document.documentElement.clientHeight"),
    "listener at a frame": f"{REVEAL} document.onscroll = () => requestAnimationFrame(reveal)",
    "listener that waits": f"{REVEAL} let timer; addEventListener('scroll', () => {{ clearTimeout(timer); "
    "timer = setTimeout(reveal, 100) })",
}  # fmt: skip


@pytest.mark.parametrize("script", REVEALS.values(), ids=REVEALS)
def test_a_screenshot_shows_what_scrolling_reveals(script: str, draw: Render) -> None:
    script = script.replace("HEIGHT", "innerHeight")
    assert draw(f"{STYLE}{PARTS}<script>{script}</script>").png == draw(SHOWN).png
    assert draw(STYLE + PARTS).png != draw(SHOWN).png, "what nothing reveals stays hidden"


@pytest.mark.parametrize(("script", "text"), [
    ("addEventListener('scroll', () => b.textContent = scrollY)", "0"),
    ("""const o = new IntersectionObserver((entries) => entries.forEach((one) => { if (one.isIntersecting) b.append(
        [...document.querySelectorAll("div")].indexOf(one.target)) }), {rootMargin: "-30% 0px -60%"});""" + OBSERVE,
     "00"),
])  # fmt: skip
def test_a_screenshot_is_of_a_page_that_was_not_scrolled(
    script: str, text: str, draw: Render
) -> None:
    html = f"{SHOWN}<b id=b style='position: fixed; top: 0'>"
    assert draw(f"{html}0</b><script>{script}</script>").png == draw(html + text).png


def test_animations_of_scrolling_stand_as_in_mid_window(draw: Render) -> None:
    style = """<style>@keyframes show { 0%, 100% { opacity: 0 } 40%, 60% { opacity: 1 } }
    div { animation: show linear both; animation-timeline: view() }</style>"""
    assert draw(STYLE + style + PARTS).png == draw(SHOWN).png


@pytest.mark.parametrize("height, shown", [(2000, 2000), (1_000_000, MAX_HEIGHT), (10, 768)])
def test_a_screenshot_is_limited_in_height(draw: Render, height: int, shown: int) -> None:
    html = f"<body style='margin:0'><div style='height:{height}px;width:5000px;background:linear-gradient(red,blue)'>"
    assert size(draw(html).png) == (1366, shown)


def test_equal_html_is_rendered_once(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []

    async def draw_ten_bytes(_: object, html: str, patience: float) -> Screenshot:
        drawn.append(html)
        return Screenshot(html.encode() * 10)

    async def all_renders() -> list[Screenshot]:
        renderer = Renderer()
        renderer._slots.put_nowait(None)
        monkeypatch.setattr(renderer, "_draw", draw_ten_bytes)
        shots = await asyncio.gather(*(renderer.render(html) for html in "aabab"))
        return [*shots, *[await renderer.render(html) for html in "acb"]]

    monkeypatch.setattr(render, "CACHE_BYTES", 25)
    shots = runner.run(all_renders())
    assert b"".join(shot.png[:1] for shot in shots) == b"aababacb"
    assert drawn == [*"abcb"], "the cache holds two pages; b leaves, since a was used after it"


def test_a_page_that_is_too_long_fails(draw: Render) -> None:
    assert "longer than 4 MiB" in draw("x" * (render.MAX_HTML + 1)).failure


# -- what pages load ------------------------------------------------------------------------------


def test_rules_for_a_page_draw_the_same_as_all_rules(draw: Render) -> None:
    whole = render._asset("tailwind-2.2.19.css")
    tag = f'<link href="{LINK}" rel="stylesheet">'
    extra = '<div class="group md:w-1/2 space-y-2.5 w-full py-0.5"><p class="group-hover:text-red-500">a<p>b</div>'
    for html in (make_page(3), make_page(4).replace("<footer", extra + "<footer")):
        assert tag in html and len(tailwind_rules(html)) < 20_000
        assert draw(html).png == draw(html.replace(tag, f"<style>{whole}</style>")).png
        assert draw(html).png != draw(html.replace(tag, "")).png


@pytest.mark.parametrize(
    "tag",
    [
        '<script src="https://cdn.tailwindcss.com?plugins=forms"></script>',
        '<script src="https://cdn.jsdelivr.net/npm/@tailwindcss/browser@4"></script>',
    ],
)
def test_builds_of_tailwind_run_in_the_page(draw: Render, tag: str) -> None:
    """Classes with values of their own are rules that only a build in the page can make."""
    body = "{}<body style='margin:0'><div class='bg-[#123456] h-[77px]'></div>"
    plain = (
        "<!DOCTYPE html><body style='margin:0'><div style='background:#123456;height:77px'></div>"
    )
    assert pixels(draw("<!DOCTYPE html>" + body.format(tag)).png) == pixels(draw(plain).png)


@pytest.mark.parametrize(
    "url, width, height",
    [
        ("https://source.unsplash.com/random/900x600/?real-estate", 900, 600),
        ("https://picsum.photos/id/48/640/480", 640, 480),
        ("https://picsum.photos/seed/7/300/200.jpg", 300, 200),
        ("https://picsum.photos/200?random=1", 200, 200),
        ("https://images.unsplash.com/photo-1501-77?w=1350&amp;h=800", 1350, 800),
        ("https://via.placeholder.com/150", 150, 150),
        ("https://placehold.co/600x300/000/fff?text=A", 600, 300),
        ("https://source.unsplash.com/featured/?shop,900", 600, 400),
        ("https://picsum.photos/99999999/1", 5000, 1),
    ],
)
def test_placeholder_images_have_their_size(url: str, width: int, height: int) -> None:
    html = inline_resources(f"<img src='{url}' alt=x> url({url})")
    before, image, rest = html.split("'", 2)
    assert (before, rest) == ("<img src=", f" alt=x> url({image})")
    assert f"width='{width}' height='{height}'" in unquote(image)


def test_other_links_stay() -> None:
    html = "<link href=/style.css><script src=https://example.com/a.js></script><img src=https://example.com/200>"
    assert inline_resources(html) == html
    twice = f"<link href={LINK}><link href={LINK}>"
    assert inline_resources(twice).count("<style>") == 1
