"""The report page: its HTML read by a parser, and the page itself in a real browser.

The browser tests drive headless Chromium, the one installed or the one Playwright brought, and are
skipped where there is none.
"""

import dataclasses
import shutil
from collections import Counter
from html.parser import HTMLParser

import pytest

from coterie.reports.data import Failure, RewardSample, Setting, subsample
from coterie.reports.format import duration, number, signed
from coterie.reports.page import write_page
from tests.report_sample import dialogue, empty_report, examples, sample_report, task_tree

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


def render(report, tmp_path) -> str:
    write_page(report, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


def hostile_report():
    """A run in which everything that a model or a person wrote tries to break out."""
    view = dialogue(4, [("Alice", HOSTILE), (HOSTILE, "x")], HOSTILE, 1.0, True)
    example = dataclasses.replace(
        examples()[0], question=HOSTILE, gold=(HOSTILE,), task=HOSTILE, before=view, after=view
    )
    return dataclasses.replace(
        sample_report(1, 20),
        title=HOSTILE,
        metric=HOSTILE,
        examples=(example, example),
        trees=(dataclasses.replace(task_tree(HOSTILE), question=HOSTILE, task=HOSTILE),),
        failures=(Failure(1, HOSTILE, HOSTILE, 1, HOSTILE),),
        settings=(Setting(HOSTILE, HOSTILE),),
    )


def test_the_page_is_well_formed_and_refers_to_nothing_outside(tmp_path):
    html = render(sample_report(), tmp_path)
    page = Page(html)
    assert page.open == []
    assert page.tags["script"] == page.tags["style"] == 1
    links = [v for _, name, v in page.attributes if name in {"src", "href", "data", "action"}]
    assert links == ["data:,"]
    assert "http:" not in html
    assert "https:" not in html
    assert "url(" not in html
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    labels = {w for _, name, v in page.attributes if name == "aria-labelledby" for w in v.split()}
    assert labels
    assert labels <= set(ids)


def test_equal_reports_give_equal_bytes(tmp_path):
    assert render(sample_report(), tmp_path) == render(sample_report(), tmp_path)


def test_the_headline_says_what_changed_and_how_sure_that_is(tmp_path):
    html = render(sample_report(), tmp_path)
    for text in ("0.612", "0.932", "+0.320", "0.572–0.647 → 0.892–0.967", "142.3", "24.1", "−83%"):
        assert text in html


def test_a_run_that_has_only_begun_says_so_in_every_section(tmp_path):
    page = Page(render(empty_report(), tmp_path))
    assert page.open == []
    assert page.tags["svg"] == 0
    said = " ".join(page.text["p"])
    for text in (
        "No evaluation has finished",
        "No dialogue has been recorded",
        "No item has failed",
        "No sample has been rewarded",
        "No stage has finished",
    ):
        assert text in said


def test_a_run_before_training_shows_one_number_and_no_change(tmp_path):
    html = render(sample_report(0), tmp_path)
    assert "0.612" in html
    assert "before training" in html
    assert 'class="before"' not in html


def test_a_run_that_is_evaluated_after_its_training_alone_does_not_say_that_it_was_before(tmp_path):
    report = sample_report(2)
    html = render(dataclasses.replace(report, iterations=report.iterations[-1:]), tmp_path)
    assert html.count('<span class="change">after iteration 2</span>') == 2


def test_marks_are_exactly_the_trained_tokens(tmp_path):
    report = sample_report()
    views = [v for e in report.examples for v in (e.before, e.after) if v]
    pieces = [piece for view in views for turn in view.turns for piece in turn.pieces]
    page = Page(render(report, tmp_path))
    assert page.text["mark"][0] == "Marked"  # the legend
    assert page.text["mark"][1:] == [piece.text for piece in pieces if piece.trained]


def test_a_tree_is_an_outline_with_values_pairs_and_ends(tmp_path):
    page = Page(render(sample_report(), tmp_path))
    assert page.open == []
    said = " ".join(" ".join(" ".join(page.text[tag]) for tag in ("span", "p", "b")).split())
    for text in ("value −0.25, 1 dialogue", "value 0.90, 2 dialogues", "no value, 0 dialogues",
                 "4 dialogues, mean reward 0.45, 2 pairs",
                 "(no turns left)", "As you say."):  # fmt: skip
        assert text in said, text
    assert page.text["h2"].count("A tree of dialogues") == 1
    assert "A tree of dialogues" not in render(empty_report(), tmp_path)


def test_what_was_penalised_is_counted_by_iteration(tmp_path):
    page = Page(render(sample_report(iterations=2, samples=800), tmp_path))
    cells = " ".join(page.text["td"])
    assert "799 3 5 1,205 1 798 6 5 1,206 2" in cells


def test_what_models_and_people_wrote_is_only_text(tmp_path):
    page = Page(render(hostile_report(), tmp_path))
    assert page.open == []
    assert page.tags["script"] == 1
    assert page.tags["img"] == 0
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert page.text["h1"] == page.text["h3"][:1] == [HOSTILE]


def test_text_that_cannot_be_encoded_does_not_stop_the_page(tmp_path):
    view = dialogue(4, [("Alice", " \ud83d \x00")], "\ud83d", 0.0, True)
    example = dataclasses.replace(examples()[0], after=view)
    assert "Alice" in render(dataclasses.replace(sample_report(1), examples=(example,)), tmp_path)


def test_subsamples_are_seeded_bounded_and_in_order():
    samples = [RewardSample(i % 2, i, 10, 1.0, False) for i in range(2000)]
    drawn = subsample(samples, seed=1)
    assert drawn == subsample(samples, seed=1) != subsample(samples, seed=2)
    assert [len(group) for group in drawn.values()] == [600, 600]
    rewards = [sample.reward for sample in drawn[0]]
    assert rewards == sorted(set(rewards))
    assert subsample(samples[:10], seed=1)[1] == samples[1:10:2]


def test_numbers_read_as_on_paper():
    assert (number(-1234.56, 1), number(-0.001, 2), number(float("nan"))) == (
        "−1,234.6",
        "0.00",
        "–",
    )
    assert (signed(0.32, 2), signed(-0.32, 2), signed(0.0, 1)) == ("+0.32", "−0.32", "0.0")
    assert [duration(s) for s in (0.04, 59.96, 185, 8070)] == [
        "0.0 s",
        "1 min 00 s",
        "3 min 05 s",
        "2 h 14 min",
    ]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    found = [shutil.which(n) for n in ("chromium", "chromium-browser", "google-chrome")]
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
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


@pytest.fixture
def open_page(browser, tmp_path):
    """Opens a report and fails the test if it says, throws or asks for anything."""
    complaints = []

    def visit(report, width=1400, scheme="light"):
        write_page(report, tmp_path / "report.html")
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        address = (tmp_path / "report.html").as_uri()
        outside = lambda r: r.url != address and not r.url.startswith("data:")  # noqa: E731
        page.on("request", lambda r: complaints.append(r.url) if outside(r) else None)
        page.goto(address)
        return page

    yield visit
    assert complaints == []


def test_charts_have_a_point_for_each_number(open_page):
    page = open_page(sample_report(iterations=3, samples=700))
    counted = {
        chart: page.locator(f"#{chart} circle").count()
        for chart in ("score", "tokens", "reward-0", "reward-3", "scatter-1", "scatter-3")
    }
    assert counted == {
        "score": 4,
        "tokens": 4,
        "reward-0": 6,
        "reward-3": 6,
        "scatter-1": 600,
        "scatter-3": 600,
    }
    outside_or_unseen = page.evaluate(
        """() => [...document.querySelectorAll("svg.chart")].flatMap(svg => {
            const frame = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("circle")].filter(dot => {
                const b = dot.getBoundingClientRect();
                return b.left < frame.left || b.right > frame.right || b.top < frame.top
                    || b.bottom > frame.bottom || b.width < 1;
            })
        }).length"""
    )
    assert outside_or_unseen == 0


def test_one_task_is_shown_and_the_controls_go_round(open_page):
    page = open_page(sample_report())
    shown = page.locator(".example:visible h3")
    questions = [example.question for example in examples()]
    assert shown.all_inner_texts() == questions[:1]
    page.click("#next")
    assert shown.all_inner_texts() == questions[1:2]
    page.click("#previous")
    page.click("#previous")
    assert shown.all_inner_texts() == questions[2:]
    page.select_option("#pick", "0")
    assert shown.all_inner_texts() == questions[:1]
    page.focus("#next")
    page.keyboard.press("Enter")
    assert shown.all_inner_texts() == questions[1:2]


def test_trained_tokens_are_seen_as_marked(open_page):
    page = open_page(sample_report())
    marks = page.locator(".example.current .after .says mark")
    assert marks.first.inner_text().strip() == "Nora"
    assert page.locator(".example.current .before .says mark").count() == 0
    background = "e => getComputedStyle(e).backgroundColor"
    colours = {marks.nth(i).evaluate(background) for i in range(4)}
    assert len(colours) == 2
    assert "rgba(0, 0, 0, 0)" not in colours


def test_a_tree_shows_what_leads_to_pairs_and_folds_by_keyboard(open_page):
    page = open_page(sample_report())
    outline = page.locator("#trees .outline").first
    assert [s.strip() for s in page.locator("#trees .side").all_inner_texts()] == [
        "chosen over 2 (+0.30)",
        "chosen over 2 (+1.15)",
        "rejected for 1 (+1.15)",
        "rejected for 1 (+0.30)",
    ]
    shown = page.locator("#trees .says:visible")
    assert shown.count() == 5, "all but what was said after a turn that leads to no pair"
    summary = outline.locator("summary").first
    summary.focus()
    page.keyboard.press("Enter")
    assert shown.count() == 2
    page.keyboard.press("Enter")
    assert shown.count() == 5
    colours = {page.locator(f"#trees {c}").first.evaluate("e => getComputedStyle(e).color")
               for c in (".chosen", ".rejected", ".muted")}  # fmt: skip
    assert len(colours) == 3


def test_hostile_text_does_nothing_and_reads_as_written(open_page):
    page = open_page(hostile_report())
    assert page.evaluate("window.hacked") is None
    assert page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in page.locator(".example.current .after .says").first.inner_text()


def test_even_a_script_that_got_into_the_page_would_not_run(browser, tmp_path):
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    html = render(sample_report(1, 20), tmp_path)
    path = tmp_path / "broken.html"
    path.write_text(html.replace("</main>", "<script>window.hacked = 1</script></main>"), "utf-8")
    page.goto(path.as_uri())
    assert page.evaluate("window.hacked") is None
    assert "Content Security Policy" in refused[0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 420, 1400])
def test_the_page_never_scrolls_sideways_and_its_text_has_contrast(open_page, width, scheme):
    for report in (sample_report(), empty_report(), hostile_report()):
        page = open_page(report, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CONTRAST) == []


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
