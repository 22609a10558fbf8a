"""The page of ``coterie view`` in Chromium, on answers like the server's.

All tests are skipped without Chromium.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.reports.conftest import VIEWER, Viewer
from tests.reports.viewer_answers import NAMES, make_answers

LEAF, NODE = f"{0:032x}", f"{5:032x}"
HOSTILE = (
    "</p></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><style>*{display:none}"
    "</style>[x](javascript:alert(1)) \u202eabc\u2066 \x00\x1b[31m\x9b \ud800 ${1} &lt; __proto__"
)


def routes(task: str) -> dict[str, str]:
    """Return the address of every screen."""
    # Addresses cannot hold lone surrogates.
    task = quote(task.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), safe="")
    place = f"#/task/0/reinforce%2F00001/{task}"
    return {
        "overview": "#/", "health": "#/health", "tasks": "#/tasks?by=rollouts", "task": place,
        "path": f"{place}/path/{LEAF}", "tree": f"{place}/tree?node={NODE}", "row": "#/row/policy/3/0?iteration=0",
        "turn": f"#/turn/{LEAF}", "compare": f"#/compare?task={task}",
    }  # fmt: skip


@pytest.fixture
def view(shared_browser: Any) -> Iterator[Callable[..., Viewer]]:
    """Open the page on answers."""
    viewers = []

    def opened(answers: dict[str, Any] | None = None, **options: Any) -> Viewer:
        viewers.append(Viewer(shared_browser, answers or make_answers(), **options))
        return viewers[-1]

    yield opened
    for viewer in viewers:
        viewer.page.close()


def test_libraries_are_the_published_files() -> None:
    lines = (VIEWER / "vendor" / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (VIEWER / "vendor").iterdir()
        if path.name != "SHA256SUMS"
    }
    assert {f"{name}.LICENSE" for name in ("htm", "preact", "uplot", "d3-hierarchy")} <= {*sums}


def test_walk_by_mouse_from_the_overview_to_a_token(view) -> None:
    viewer = view()
    page = viewer.page
    page.click("text=Rollouts that were trained on")
    page.click("main .line >> nth=1 >> a")
    token = page.locator(".k").nth(2)
    token.hover()
    # The third token: advantage of its row, the sampler's log-prob, and the ratio of the two log-probs.
    facts = page.inner_text(".inspector")
    assert "id\n302" in facts and "+0.750" in facts and "−0.6000" in facts
    assert "ratio\n0.7408" in facts and "clipped\nyes" in facts
    assert token.get_attribute("class").split() == ["k", "p4"]
    token.click()
    assert f"token={LEAF}.2" in page.url
    page.select_option("select >> nth=0", "entropy")
    # Entropies are 0, 0.3, 0.6, 0.9 and 1.2.
    classes = [item.get_attribute("class").split()[1:] for item in page.locator(".k").all()]
    assert classes == [[], ["p1"], ["p2"], ["p2"], ["p3"]]
    page.click("main .use a")
    page.wait_for_selector(".k.context")
    assert "Row 0 of update 3" in page.inner_text("h1")
    classes = [item.get_attribute("class") for item in page.locator(".k").all()]
    assert [i for i, item in enumerate(classes) if "context" not in item] == [5, 6, 7]
    page.click("text=Its dialogue")
    page.wait_for_selector(".tokens")
    assert viewer.problems == []


def test_walk_by_keyboard_from_the_overview_to_a_token_and_its_row(view) -> None:
    viewer = view()
    viewer.page.wait_for_selector("text=Tokens per rollout")
    viewer.tab_to("Rollouts that were trained on")
    viewer.press("Enter")
    viewer.page.wait_for_selector(".line a")
    viewer.page.focus("[role=rowgroup].virtual")
    viewer.press("ArrowDown", "ArrowDown", "ArrowUp")
    viewer.page.wait_for_selector(".line a:focus")
    viewer.press("Enter")
    viewer.page.wait_for_selector(".tokens")
    viewer.tab_to("A: I know")
    viewer.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert "id\n302" in viewer.page.inner_text(".inspector")
    viewer.press("End")
    assert "5 of 5" in viewer.page.inner_text(".inspector")
    viewer.press("Enter")
    assert f"token={LEAF}.4" in viewer.page.url


def test_list_filters_sorts_and_keeps_its_state_in_the_address(view) -> None:
    viewer = view()
    viewer.open("#/tasks?stage=0/reinforce/00001")
    page = viewer.page
    assert "40 of 40 tasks" in page.inner_text("main")
    page.click("button:has-text('failed')")
    assert page.locator(".line:not(.head)").count() == 1
    assert "train-1" in page.inner_text(".virtual") and "where=failed" in page.url
    page.click("button:has-text('failed')")
    page.click("[role=columnheader] button:has-text('score')")
    assert page.get_attribute(".c-score[role=columnheader]", "aria-sort") == "descending"
    scores = [float(text) for text in page.locator(".c-score.number").all_inner_texts()]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1
    # The search finds texts of dialogues, which only the server knows: those of leaves 8 to 11.
    page.fill("input[type=search]", "zzz")
    page.wait_for_selector("text=1 of 40 tasks")
    assert "train-2" in page.inner_text(".virtual")
    assert (
        viewer.asked[-1] == "search {'iteration': '0', 'stage': 'reinforce/00001', 'text': 'zzz'}"
    )
    page.reload()
    assert page.input_value("input[type=search]") == "zzz"


def test_tree_is_read_and_searched_with_the_keyboard(view) -> None:
    viewer = view()
    viewer.open(routes(NAMES["task"])["tree"])
    viewer.page.focus("[role=tree]")

    def selected() -> Any:
        return viewer.page.evaluate(
            "[...document.querySelectorAll('[aria-selected=true]')].map(e => [+e.ariaLevel, e.ariaExpanded, e.id])[0]"
        )

    # Turns of the world have no alternatives, so each is part of the node of the turn before.
    assert selected() == [4, "false", f"node-{NODE}"]
    viewer.press("ArrowRight")
    assert selected() == [4, "true", f"node-{NODE}"]
    viewer.press("ArrowRight")
    assert selected() == [5, None, f"node-{7:032x}"]
    viewer.press("ArrowLeft", "ArrowLeft", "ArrowLeft")
    assert selected() == [3, "true", f"node-{3:032x}"]
    viewer.press("End")
    assert selected()[0] == 2
    viewer.press("Home")
    assert selected() == [1, "true", f"node-{0:032x}"]
    for key in "ann: 181":
        viewer.press("Space" if key == " " else key)
    assert selected() == [4, "false", f"node-{181:032x}"]
    viewer.press("Enter")
    assert f"zoom={181:032x}" in viewer.page.url
    # A click on the first column selects the node to which the icicle was zoomed.
    viewer.press("Home")
    viewer.page.click(".icicle", position={"x": 10, "y": 200})
    assert selected() == [4, "false", f"node-{181:032x}"]
    assert viewer.problems == []


def test_comparison_marks_the_first_difference_of_two_dialogues(view) -> None:
    viewer = view()
    path = json.loads(json.dumps(viewer.answers["path"]))
    path["turns"][1]["parts"][0]["text"] = "A: I doubt it"
    viewer.answers[f"path {40:032x}"] = path
    viewer.open(routes(NAMES["task"])["compare"])
    assert "The first difference is in turn 2" in viewer.page.inner_text("main")
    assert viewer.page.locator("mark").all_inner_texts() == ["know that", "doubt it"]
    # Every second task was right before, and all are after.
    viewer.page.click("button:has-text('wrong to right')")
    viewer.page.wait_for_selector("button:has-text('wrong to right')[aria-pressed=true]")
    assert viewer.page.get_attribute("main [role=table]", "aria-rowcount") == "20"
    assert viewer.problems == []


def test_a_plan_is_a_list_of_levels_with_tasks_that_can_run_at_the_same_time(view) -> None:
    viewer = view()
    viewer.open(routes(NAMES["task"])["path"])
    levels = viewer.page.locator(".plan").nth(1).locator("li").all()
    tasks = [[task.inner_text().split() for task in level.locator("div").all()] for level in levels]
    assert [[task[0] for task in level] for level in tasks] == [["T1", "T2"], ["T3"]]
    assert tasks[1][0] == ["T3", "Answer.", "after", "T1,", "T2"]


def test_a_running_page_keeps_position_focus_and_open_parts(view) -> None:
    viewer = view(make_answers(long=400))
    viewer.open(routes(NAMES["task"])["path"])
    page = viewer.page
    page.click("summary")
    page.wait_for_selector(".prompt .text")
    page.locator(".k").nth(900).click()
    before = page.evaluate("[scrollY, document.activeElement.tokenIndex]")
    viewer.answers["path"]["score"] = 0.125
    viewer.answers["version"] = {"version": "2", "running": False}
    page.wait_for_selector("text=0.125")
    assert page.evaluate("[scrollY, document.activeElement.tokenIndex]") == before and before[0] > 0
    assert page.locator("details[open] .text").count() == 1


@pytest.mark.parametrize("kind", ["hostile", "long"])
def test_texts_stay_texts_and_no_screen_scrolls_sideways(view, kind: str) -> None:
    texts = {"hostile": HOSTILE, "long": "x" * 300}[kind]
    names = dict.fromkeys(NAMES, texts) | ({"text": "y" * 30_000} if kind == "long" else {})
    viewer = view(make_answers(names), color_scheme="dark")
    for width in (1280, 390):
        viewer.page.set_viewport_size({"width": width, "height": 800})
        for name, route in routes(texts).items():
            viewer.open(route)
            assert viewer.page.evaluate("document.documentElement.scrollWidth") == width, name
            assert viewer.page.evaluate(
                "[window.hacked, document.querySelectorAll('main :is(script, style, iframe)').length]"
            ) == [None, 0]
            shown = viewer.page.inner_text("main")
            assert not set(shown) & {*"\u202e\u2066\x00\x1b\x9b\u200f"}
    hrefs = viewer.page.evaluate(
        "[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
    )
    assert all(href.startswith("#/") for href in hrefs)
    assert viewer.problems == []


def test_a_task_shows_use_by_path_and_points_to_texts_that_it_does_not_have(view) -> None:
    viewer = view()
    # The texts of a large tree are only in its dialogues.
    viewer.answers["task"]["turns"] = {}
    viewer.open(routes(NAMES["task"])["task"])
    uses = viewer.page.locator("td .use").all_inner_texts()
    assert ["trained policy in update" in use for use in uses] == [True, True, True, False]
    assert "Left out: equal rewards" in uses[3]
    shown = viewer.page.inner_text("main")
    assert "open the dialogue to read it" in shown and "open the turn to read it" in shown
    assert "hidden" not in shown and viewer.problems == []


def test_faults_are_told(view) -> None:
    viewer = view()
    viewer.open("#/nothing/here")
    assert "This address names no screen" in viewer.page.inner_text("main")
    viewer.answers["path"] |= {"damaged": ["turn 7d4d differs from its digest"]}
    viewer.answers["path"]["turns"][1] |= {"damaged": True, "tokens": None, "parts": []}
    viewer.open(routes(NAMES["task"])["path"])
    assert "Damaged: turn 7d4d differs from its digest" in viewer.page.inner_text("main")
    assert "search" in viewer.page.inner_text("main")
