"""The viewer's page in a window of Chromium, which gets its answers without a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

VIEWER = Path(__file__).parents[2] / "src" / "coterie" / "reports" / "viewer"
ADDRESS = "http://viewer.test/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "require-trusted-types-for 'script'"
)
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Viewer:
    """A window with the page.

    ``answers`` may be changed, and may have another one for a leaf (``path LEAF``). ``problems`` are messages, errors
    and foreign requests.
    """

    def __init__(self, browser: Any, answers: dict[str, Any], **options: Any) -> None:
        self.answers, self.problems, self.asked = answers, list[str](), list[str]()
        self.page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
        self.page.set_default_timeout(5000)
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(f"{error}"))
        self.page.on("dialog", lambda dialog: (self.problems.append("dialog"), dialog.dismiss()))
        self.page.route("**/*", self._serve)
        self.page.goto(ADDRESS)

    def _serve(self, route: Any) -> None:
        url = route.request.url
        if not url.startswith(ADDRESS):
            self.problems.append(f"request of {url}")
            return route.abort()
        name, _, query = url.removeprefix(ADDRESS).partition("?")
        if not name.startswith("api/"):
            path = VIEWER / (name or "index.html")
            headers = {"content-type": TYPES[path.suffix], "content-security-policy": POLICY}
            return route.fulfill(headers=headers, body=path.read_bytes())
        params = dict(parse_qsl(query))
        self.asked.append(f"{name[4:]} {params}")
        answer = self.answer(name[4:], params)
        return route.fulfill(content_type="application/json", body=json.dumps(answer))

    def answer(self, name: str, params: dict[str, str]) -> Any:
        return self.answers.get(f"{name} {params.get('leaf')}", self.answers[name])

    def open(self, route: str) -> None:
        """Go to a screen and wait for its data."""
        self.page.evaluate("route => { location.hash = route; }", route)
        self.wait()

    def wait(self) -> None:
        """Wait until the screen has its data."""
        # The page's policy forbids `wait_for_function`, which evaluates a text.
        self.page.evaluate(
            """async () => {
                do await new Promise(resume => setTimeout(resume, 20));
                while (/Loading …/.test(document.body.innerText) || !document.querySelector('main h1'));
            }"""
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def focused(self) -> str:
        return str(self.page.evaluate("document.activeElement.textContent"))

    def tab_to(self, text: str, limit: int = 40) -> None:
        """Press Tab until an element with a text has the focus."""
        for _ in range(limit):
            self.press("Tab")
            if self.focused().strip().startswith(text):
                return
        pytest.fail(f"Tab does not reach {text!r}")


@pytest.fixture(scope="module")
def shared_browser(chromium: str) -> Iterator[Any]:
    """One browser for all tests of the file."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()
