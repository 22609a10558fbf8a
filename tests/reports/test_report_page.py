"""Pages of runs, evaluations and sweeps: their HTML read by a parser, and a page in a real browser.

The last test drives headless Chromium, installed or brought by Playwright, and is skipped without one.
"""

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from coterie.models.loading import load_renderer
from coterie.record.rows import Row, Target
from coterie.reports.charts import Chart, Point, Series, axis, number, svg
from coterie.reports.examples import Example, ExampleSample, Piece, Sample, Segment, example
from coterie.reports.page import Headline, Report, Section, signed, write_page
from tests.conftest import Cli

HOSTILE = "</p></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Tags, attributes and text by tag of a page; fails if tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
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
    wide = Series(text, (Point(3, 1, text), Point(5000, -1, text)), "grey")
    log = Chart("log", text, text, text, (wide,), log=True)
    pieces = (Piece(text, "context"), Piece(text, "trained", 2), Piece(text, "sampled"))
    facts, start = ((text, text),), (Segment(text, pieces[:1]),)
    sample = Sample(text, facts, (Segment(text, pieces),), "chosen")
    shown = Example(text, text, text, facts, start, (sample, sample))
    section = Section("all", text, text, (text, "cut off"), facts, (bars, log), (shown,))
    headline = Headline(text, "0.1", "0.3", "+0.2", text, line)
    return Report(text, text, facts, (text,), (headline,), (section,))


def test_the_page_is_well_formed_and_its_text_is_only_text(tmp_path: Path) -> None:
    html = render(sample_report(), tmp_path)
    page = Page(html)
    assert page.open == [] and page.tags["script"] == 0 and page.tags["style"] == 1
    links = [v for name, v in page.attributes if name in {"src", "href", "data", "action"}]
    assert links == ["data:,"], "nothing outside"
    assert not [word for word in ("http:", "https:", "url(") if word in html]
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert html == render(sample_report(), tmp_path)
    page = Page(render(sample_report(HOSTILE), tmp_path))
    assert page.open == [] and page.tags["script"] == page.tags["img"] == 0
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text["h1"] == page.text["mark"][:1] == [HOSTILE]
    odd = render(sample_report("\ud83d \x1b[2J\x9b\x00"), tmp_path)
    assert "? \ufffd[2J\ufffd\ufffd" in odd, "surrogates and commands for terminals are replaced"


def test_marks_are_exactly_the_target_tokens() -> None:
    renderer, _ = load_renderer("tiny-exchange", {})
    ids, targets = [], []
    for n, text in enumerate(("Is it a tortoise?", "Yes, a tortoise.", "Sure?", "Quite sure.")):
        new = renderer.encode_turn(text)
        if n % 2:
            targets.append(Target(len(ids), len(ids) + len(new), "policy@0"))
        ids += new
    row = Row(tuple(ids), tuple(targets))
    made = example(
        None, [ExampleSample("row", (), (("policy", row),), trained=True)], lambda _: renderer
    )
    (sample,), (prompt,) = made.samples, made.prompts
    pieces = [piece for one in (prompt, *sample.segments) for piece in one.pieces]
    trained = [piece for piece in pieces if piece.kind == "trained"]
    assert [piece.text.strip() for piece in trained] == [
        renderer.decode(row.ids[target.start : target.stop]) for target in targets
    ]
    assert sample.trained == sum(piece.tokens for piece in trained) == row.target_count
    assert "".join(piece.text for piece in pieces) == renderer.decode(row.ids)
    start = targets[0].start
    other = Row(row.ids[:start] + row.ids[-3:], (Target(start, start + 3, "x"),))
    sides = [ExampleSample(name, (), (("policy", r),)) for name, r in (("a", row), ("b", other))]
    both = example(None, sides, lambda _: renderer)
    assert both.prompts == (prompt,), "samples share the prompt"
    assert not any(one.trained for one in both.samples)


def test_the_page_of_a_run_has_its_command_settings_and_evaluations_one_too(cli: Cli) -> None:
    words = ("run", "rl/grpo", "evaluate.tasks=2", "rollout.tasks=2", "rollout.rollouts_per_task=3", "steps.count=1",
             "engine.device=cpu", "rollout.max_tokens=24", "--folder", "run")  # fmt: skip
    assert cli(*words).code == 0
    assert cli("report", "run").code == 0
    page = Page(Path("run/report.html").read_text())
    command = f"coterie {' '.join(words)}"
    assert command in page.text["code"]
    assert Path("run/commands.txt").read_text().splitlines() == [command]
    assert {"steps.count", "rollout.max_tokens"} <= set(page.text["th"])
    evaluation = cli("evaluate", "exchange", "policy=tiny-exchange", "tasks=3", "max_tokens=24")
    assert evaluation.code == 0, evaluation.err
    *lines, result = evaluation.out.splitlines()
    (line,) = [line for line in lines if line.startswith("page: ")]
    page = Page(Path(line.removeprefix("page: ")).read_text())
    low, high = json.loads(result)["rows"][0]["score_ci"]
    assert f"{low:.3f}–{high:.3f}" in page.text["td"]
    assert len(page.text["h3"]) == 3 and "right answer" in page.text["dt"]


def test_numbers_read_as_on_paper() -> None:
    assert [number(-1234.56, 1), number(-0.001, 2), number(float("nan"))] == [
        "−1,234.6",
        "0.00",
        "–",
    ]
    assert [signed(0.32, 2), signed(-0.32, 2), signed(0.0, 1)] == ["+0.32", "−0.32", "0.0"]


def test_charts_have_room_for_all_values() -> None:
    scale, ticks = axis(-1.2, 0.7, 200, 20)
    assert [label for _, label in ticks] == ["−1.5", "−1.0", "−0.5", "0.0", "0.5", "1.0"]
    assert scale(0.7) < scale(-1.2) and ticks[0][0] == 200 and ticks[-1][0] == 20
    below = Point(0, -1.0, "one", -1.1, -0.9), Point(1, -0.5, "two", -0.7, -0.3)
    drawn = svg(Chart("x", "J", "n", "J", (Series("J", below),)))
    band = drawn.split('d="M')[-2].split('"')[0].split("L")
    ends = [float(part.split()[-1].rstrip("Z")) for part in band]
    assert all(26 <= end <= 186 for end in ends) and drawn.count("<circle") == 2
    with pytest.raises(ValueError, match="other cells"):
        Section("mine", "t", "i", ("a", "b"), (("1",),))


def test_the_page_asks_for_nothing_and_never_scrolls_sideways(browser, tmp_path: Path) -> None:
    messages, file = [], tmp_path / "report.html"
    html = render(sample_report(HOSTILE), tmp_path)
    for width in (360, 1400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: messages.append(message.text))
        page.on("request", lambda request: messages.append(request.url))
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("window.hacked") is None
    assert {text for text in messages if not text.startswith("data:")} == {file.as_uri()}
    # Even a script that got into the page would not run.
    script = "<script>window.hacked = 1</script></main>"
    file.write_text(html.replace("</main>", script), "utf-8")
    page.goto(file.as_uri())
    assert page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in text for text in messages)
