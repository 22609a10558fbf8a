"""Pages of runs, evaluations and sweeps: their HTML read by a parser, and a page in a real browser.

The browser tests drive headless Chromium, the one installed or the one Playwright brought, and are
skipped where there is none.
"""

import dataclasses
import json
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from coterie.models.loading import load_renderer
from coterie.record.rows import Row, Target
from coterie.reports.charts import Chart, Point, Series, axis, number, svg
from coterie.reports.examples import Example, Piece, Sample, Shown, Stretch, example
from coterie.reports.page import GLOSSARY, Headline, Report, Section, duration, signed, write_page
from tests.conftest import Cli

HOSTILE = "</p></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """What a parser finds in a page: tags, attributes, text by tag, and whether tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open:
            self.text.setdefault(self.open[-1], []).append(data)


def render(report: Report, folder: Path) -> str:
    write_page(report, folder / "report.html")
    return (folder / "report.html").read_text("utf-8")


def sample_report(text: str = "tortoise") -> Report:
    """Return a page with all that a page can have; ``text`` is what a model or a person wrote."""
    points = tuple(Point(i, i / 4, f"{text} {i}", i / 4 - 0.1, i / 4 + 0.1) for i in range(4))
    line = Chart("score", text, text, text, (Series(text, points),))
    bars = Chart("bars", text, text, text, (Series(text, points, kind="bars"),), (text,) * 4)
    dots = Series(text, (Point(3, 1, text), Point(5000, -1, text, hollow=True)), "grey", "dots")
    cloud = Chart("cloud", text, text, text, (dots,), log=True)
    pieces = (Piece(text, "context"), Piece(text, "trained", 2), Piece(text, "sampled"))
    sample = Sample(text, ((text, text),), (Stretch(text, pieces),), "chosen")
    shown = Example(
        text, text, text, ((text, text),), (Stretch(text, pieces[:1]),), (sample, sample)
    )
    return Report(
        text,
        text,
        ((text, text),),
        (text,),
        (Headline(text, "0.1", "0.3", "+0.2", text, line),),
        (Section("all", text, text, (text, "cut off"), ((text, text),), (bars, cloud), (shown,)),),
    )  # fmt: skip


def test_the_page_is_well_formed_and_refers_to_nothing_outside(tmp_path: Path) -> None:
    html = render(sample_report(), tmp_path)
    page = Page(html)
    assert page.open == [] and page.tags["script"] == 0 and page.tags["style"] == 1
    links = [v for _, name, v in page.attributes if name in {"src", "href", "data", "action"}]
    assert links == ["data:,"]
    assert not [word for word in ("http:", "https:", "url(") if word in html]
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert html == render(sample_report(), tmp_path)
    assert GLOSSARY["cut off"] in html, "words of table heads are explained"


def test_text_of_models_and_people_is_only_text(tmp_path: Path) -> None:
    page = Page(render(sample_report(HOSTILE), tmp_path))
    assert page.open == [] and page.tags["script"] == page.tags["img"] == 0
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text["h1"] == page.text["mark"][:1] == [HOSTILE]
    assert "\ufffd" not in render(sample_report("\ud83d \x00"), tmp_path), "surrogates are replaced"


def test_marks_are_exactly_the_target_tokens() -> None:
    renderer, _ = load_renderer("tiny-exchange", {})
    turns = ["Is it a tortoise?", "Yes, a tortoise.", "Sure?", "Quite sure."]
    ids, targets = [], []
    for n, text in enumerate(turns):
        new = renderer.encode_turn(text)
        if n % 2:
            targets.append(Target(len(ids), len(ids) + len(new), "policy@0"))
        ids += new
    row = Row(tuple(ids), tuple(targets))
    made = example(None, [Shown("row", (), (("policy", row),), trained=True)], lambda _: renderer)
    (sample,), (prompt,) = made.samples, made.prompts
    pieces = [piece for one in (prompt, *sample.stretches) for piece in one.pieces]
    trained = [piece for piece in pieces if piece.kind == "trained"]
    assert [piece.text.strip() for piece in trained] == [
        renderer.decode(row.ids[target.start : target.stop]) for target in targets
    ]
    assert sample.trained == sum(piece.tokens for piece in trained) == row.target_count
    assert "".join(piece.text for piece in pieces) == renderer.decode(row.ids)
    other = Row(
        row.ids[: targets[0].start] + row.ids[-3:],
        (Target(targets[0].start, targets[0].start + 3, "x"),),
    )
    both = example(
        None,
        [Shown(n, (), (("policy", r),)) for n, r in (("a", row), ("b", other))],
        lambda _: renderer,
    )
    assert both.prompts == (dataclasses.replace(prompt),), "samples share the prompt"
    assert not any(one.trained for one in both.samples)


def test_the_page_of_a_run_has_its_command_settings_and_evaluations_one_too(cli: Cli) -> None:
    few = (
        "evaluate.tasks=2",
        "rollout.tasks=2",
        "rollout.samples=3",
        "steps.count=1",
        "engine.device=cpu",
    )
    words = ("run", "rl/grpo", *few, "rollout.max_tokens=24", "--folder", "run")
    assert cli(*words).code == 0
    assert cli("report", "run").code == 0
    page = Page(Path("run/report.html").read_text())
    assert f"coterie {' '.join(words)}" in page.text["code"]
    assert Path("run/commands.txt").read_text().splitlines() == [f"coterie {' '.join(words)}"]
    heads = page.text["th"]
    at = heads.index("steps.count")
    assert "coterie.report" not in page.text["h1"] and heads[at - 1] == "rollout.max_tokens"
    said = cli("evaluate", "exchange", "policy=tiny-exchange", "tasks=3", "max_tokens=24")
    assert said.code == 0, said.err
    (row,) = json.loads(said.out.splitlines()[-1])["rows"]
    (line,) = [line for line in said.out.splitlines() if line.startswith("page: ")]
    page = Page(Path(line.removeprefix("page: ")).read_text())
    low, high = row["score_ci"]
    assert f"{low:.3f}–{high:.3f}" in page.text["td"]
    assert len(page.text["h3"]) == 3 and "right answer" in page.text["dt"]


def test_numbers_read_as_on_paper() -> None:
    assert [number(-1234.56, 1), number(-0.001, 2), number(float("nan"))] == [
        "−1,234.6",
        "0.00",
        "–",
    ]
    assert [signed(0.32, 2), signed(-0.32, 2), signed(0.0, 1)] == ["+0.32", "−0.32", "0.0"]
    times = [duration(s) for s in (0.04, 59.96, 185, 8070)]
    assert times == ["0.0 s", "1 min 00 s", "3 min 05 s", "2 h 14 min"]


def test_charts_have_room_for_all_values() -> None:
    scale, ticks = axis(-1.2, 0.7, 200, 20)
    assert [label for _, label in ticks] == ["−1.5", "−1.0", "−0.5", "0.0", "0.5", "1.0"]
    assert scale(0.7) < scale(-1.2) and ticks[0][0] == 200 and ticks[-1][0] == 20
    below = Point(0, -1.0, "one", -1.1, -0.9), Point(1, -0.5, "two", -0.7, -0.3)
    drawn = svg(Chart("x", "J", "n", "J", (Series("J", below),)))
    ends = [
        float(part.split()[-1].rstrip("Z"))
        for part in drawn.split('d="M')[-2].split('"')[0].split("L")
    ]
    assert all(26 <= end <= 186 for end in ends) and drawn.count("<circle") == 2
    with pytest.raises(ValueError, match="other cells"):
        Section("mine", "t", "i", ("a", "b"), (("1",),))


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = [shutil.which(n) for n in ("chromium", "chromium-browser", "google-chrome")]
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        path = next(filter(None, found), None)
        try:
            chromium = playwright.chromium.launch(executable_path=path, args=flags)
        except sync_api.Error as error:
            if path:
                raise
            pytest.skip(f"no Chromium or Chrome: {error.message.splitlines()[0]}")
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1400])
def test_the_page_asks_for_nothing_never_scrolls_sideways_and_has_contrast(
    browser, tmp_path: Path, width: int, scheme: str
) -> None:
    complaints, address = [], (tmp_path / "report.html").as_uri()
    for report in (sample_report(), sample_report(HOSTILE)):
        write_page(report, tmp_path / "report.html")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: complaints.append(request.url))
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate("window.hacked") is None
    assert {url for url in complaints if not url.startswith("data:")} == {address}


def test_even_a_script_that_got_into_the_page_would_not_run(browser, tmp_path: Path) -> None:
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    html = render(sample_report(), tmp_path)
    path = tmp_path / "broken.html"
    path.write_text(html.replace("</main>", "<script>window.hacked = 1</script></main>"), "utf-8")
    page.goto(path.as_uri())
    assert page.evaluate("window.hacked") is None
    assert "Content Security Policy" in refused[0]


CONTRAST = """() => {
    // Texts whose colour has a contrast of less than 4.5 to the page or to their mark (WCAG 2.1).
    const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = c => {
        const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const page = getComputedStyle(document.body).backgroundColor;
    return [...document.querySelectorAll("main *:not(script)")].flatMap(element => {
        const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        const svg = element instanceof SVGElement;
        if (!own || svg && element.tagName !== "text") return [];
        const style = getComputedStyle(element);
        const ground = element.tagName === "MARK" ? style.backgroundColor : page;
        const both = [light(svg ? style.fill : style.color), light(ground)];
        const contrast = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
        return contrast < 4.5 ? [[element.className, contrast]] : [];
    });
}"""
