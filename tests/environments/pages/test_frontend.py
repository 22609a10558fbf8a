"""Frontend design: which page counts, what users reply, and how pages are scored."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from coterie.datasets.catalogue import CATALOGUE
from coterie.datasets.load import load_rows
from coterie.datasets.web_pages import WebSightRow, outline, with_pictures
from coterie.engines.chat_model import Answer, open_chat
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.collaboration import MARKER, REFERENCE, collaboration_task
from coterie.environments.pages.frontend import Frontend, PageRenderer, PageUser
from coterie.environments.pages.micro_world import (
    LIKELY,
    NO_PAGE,
    RIGHT,
    SENTENCES,
    VALUES,
    Design,
    Pages,
    PagesSettings,
    canonical_key,
    generate,
    largest_difference,
    read_design,
    scripted_reply,
    write_page,
)
from coterie.environments.protocol import AGENT, WELL_FORMED, Shared, State
from coterie.environments.user_simulator import PERSON, UserSimulatorSettings, quotes
from coterie.errors import UserError
from coterie.record.store import Store
from coterie.record.tree import TURNS, Ending, ItemKey, Outcome, Task, Tree
from coterie.record.turn import Part, Speaker, make_turn
from coterie.runs.evaluation import compare_stores, evaluation
from coterie.tools.render import Renderer, RenderSettings, Screenshot
from coterie.tools.similarity import Similarity, SimilaritySettings
from tests.conftest import Cli
from tests.engines.test_endpoint import says, service
from tests.helpers.converse import converse

GOAL = Design("Rose Bakery", "red", "yellow", "row", "blue", 3)
CROOKED = "<html><body>broken</body></html>"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Paint the aspects of a page in place of a browser. Return seconds that pages take, 0 for others."""
    times = {CROOKED: math.inf}

    async def nothing(self: Renderer, *_: object) -> Renderer:
        return self

    async def paint(self: Renderer, html: str, patience: float = 1) -> Screenshot:
        if times.get(html, 0) > patience * self.settings.seconds:
            return Screenshot(b"", "too slow")
        design = read_design(html)
        image = Image.new("RGB", (140, 80), design.background or "white")
        image.paste(design.bar or "white", (0, 0, 140, 10))
        for n in range(design.count or 0):
            at = (5 + 30 * n, 20) if design.layout == "row" else (5, 20 + 15 * n)
            image.paste(design.boxes or "white", (*at, at[0] + 20, at[1] + 10))
        image.save(data := BytesIO(), "png")
        return Screenshot(data.getvalue(), "")

    for name, method in {"__aenter__": nothing, "__aexit__": nothing, "render": paint}.items():
        monkeypatch.setattr(Renderer, name, method)
    return times


def a_task(reference: str = "") -> Task:
    return collaboration_task("t", "I need a page.", reference or write_page(GOAL))


def play(
    runner: asyncio.Runner, texts: Sequence[str], task: Task | None = None, **settings: Any
) -> tuple[State, Any]:
    async def run() -> tuple[State, Any]:
        async with Similarity() as similarity:
            environment = Pages(PagesSettings(**{"score": "similarity"} | settings))
            shared = Shared(similarity, PageRenderer()) if environment.needs else Shared()
            own = task or next(iter(environment.tasks("train", 1, 0)))
            return await converse(environment, own, texts, shared, environment.script)

    return runner.run(run())


@pytest.mark.usefixtures("slow")
def test_only_the_last_page_is_rendered_and_scored(runner: asyncio.Runner) -> None:
    task = Pages().tasks("train", 1, 0)[0]
    goal = task.secrets[REFERENCE].reveal("grader")
    other = write_page(replace(read_design(goal), background="gray", boxes="gray"))
    state, grade = play(runner, [other, goal, f"{MARKER} That was it."], task)
    assert state.end == Ending("answered") and state.answer == goal and grade.score == 1.0
    assert grade.metrics["turns"] == 3 and grade.metrics[WELL_FORMED] == 1.0
    assert grade.metrics["measure"] == "layout"
    state, grade = play(runner, [goal, other], task, turns=2)
    assert state.end == TURNS and 0 < grade.score < 0.9 and grade.metrics[WELL_FORMED] == 0.0
    state, grade = play(runner, ["What color?", f"{MARKER} no page"], task)
    assert (grade.score, grade.metrics["no_page"], state.answer) == (0.0, 1.0, None)
    assert [turn.text for turn in state.turns[2:3]] == [NO_PAGE]
    _, grade = play(runner, [CROOKED, goal], task, turns=2)
    assert (grade.score, grade.metrics["not_rendered"]) == (1.0, 0.0), "the first is not rendered"
    _, grade = play(runner, [goal, f"{MARKER} {CROOKED}"], task)
    assert (grade.score, grade.metrics["not_rendered"]) == (0.0, 1.0)
    assert grade.metrics["why"] == "too slow"


def test_a_task_whose_page_does_not_render_is_left_out(
    runner: asyncio.Runner, slow: dict[str, float]
) -> None:
    with pytest.raises(EngineError, match=r"^left out: .* does not render"):
        play(runner, [f"{MARKER} {CROOKED}"], a_task(CROOKED))
    slow[write_page(GOAL)] = 2 * RenderSettings().seconds
    _, grade = play(runner, [f"{MARKER} {write_page(GOAL)}"], a_task())
    assert grade.score == 1.0, "a slow one is rendered at the second try, which has more time"
    with pytest.raises(EngineError, match=r"^left out: .* looks blank"):
        play(runner, [f"{MARKER} <html>a</html>"], a_task("<html></html>"))


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("Here: <html><p>a</p></html> and <html>b</html>", "<html><p>a</p></html>"),
        ("<HTML lang=en>\na\n</HTML>", "<HTML lang=en>\na\n</HTML>"),
        ("<body class=x>a</body> <body>b</body>", "<body class=x>a</body>"),
        ("<html><body>a</body>", "<body>a</body>"),
        ("<htmlx>a</htmlx>", None),
        ("no page", None),
        (f"<html>thought</html> OUTPUT: <html>b</html> {MARKER}", "<html>b</html>"),
        (f"{MARKER} OUTPUT: <html>b</html>", "<html>b</html>"),
    ],
)
def test_the_page_of_a_message(text: str, page: str | None) -> None:
    environment = Pages()
    assert environment.page(text) == page
    assert (environment.answer(text) is not None) == (MARKER in text)


@pytest.mark.parametrize(
    ("url", "size"),
    [
        ("https://source.unsplash.com/random/900x600/?real-estate", "900/600"),
        ("https://source.unsplash.com/random/300x200/?coffee,shop", "300/200"),
        ("https://source.unsplash.com/random/300x200", "300/200"),
        ("https://picsum.photos/300/200?random=1", "300/200"),
        ("https://picsum.photos/id/48/30/20", "30/20"),
    ],
)
def test_whole_addresses_of_pictures_are_replaced(url: str, size: str) -> None:
    html = f'<img src="{url}" alt="x"><p style="background:url({url})">'
    new = f"https://picsum.photos/id/48/{size}"
    assert with_pictures(html) == html.replace(url, new)
    row = WebSightRow.model_validate({"llm_generated_idea": "idea", "text": f"<html>{html}</html>"})
    assert row.answer == f"<html>{html.replace(url, new)}</html>" and row.question == "idea"
    assert row == WebSightRow.model_validate(row.model_dump())


def test_a_page_tells_its_design() -> None:
    for design in generate("train", 1)[:60]:
        assert read_design(write_page(design)) == design


def test_the_scripted_user_says_which_aspect_is_wrong_and_not_what_it_should_be() -> None:
    page = Design("Old Rose Hotel", "gray", "pink", "column", "green", 2)
    replies = list[str]()
    while len(replies) < 7 and (name := largest_difference(page, GOAL)) is not None:
        replies.append(scripted_reply(GOAL, write_page(page)))
        assert replies[-1] == SENTENCES[name]
        page = replace(page, **{name: getattr(GOAL, name)})
    assert [*dict.fromkeys(replies)] == [
        SENTENCES[name] for name in ("heading", "background", "boxes", "layout", "bar", "count")
    ]
    values = {str(value) for options in VALUES.values() for value in options}
    assert not values & set(" ".join(replies).split())
    assert scripted_reply(GOAL, write_page(page)) == RIGHT
    assert scripted_reply(GOAL, "<html>") == NO_PAGE


def test_each_aspect_is_likely_to_have_a_value_of_its_kind() -> None:
    designs = generate("train", 1)[:1000]
    for name in VALUES:
        likely = sum(getattr(d, name) in LIKELY[str(d.heading).split()[-1]][name] for d in designs)
        # Three colors differ, which leaves out some draws.
        assert 0.87 < likely / len(designs) < 0.97


def test_the_score_is_the_share_of_right_aspects_less_the_cost_of_messages(
    runner: asyncio.Runner,
) -> None:
    task = Pages().tasks("train", 1, 0)[0]
    goal = read_design(task.secrets[REFERENCE].reveal("grader"))
    two_wrong = replace(goal, count=7, layout="column" if goal.layout == "row" else "row")
    page, right = write_page(two_wrong), write_page(goal)
    for texts, score, aspects in (
        ([f"{MARKER} {right}"], 1.0, 1.0),
        ([page, page, f"{MARKER} {page}"], 0.58, 0.6),
        ([right, f"{MARKER} no page"], 0.99, 1.0),
        ([f"{MARKER} no page"], 0.0, 0.0),
    ):
        _, grade = play(runner, texts, task, score="aspects")
        assert grade.score == grade.metrics["design"] == pytest.approx(score)
        assert grade.metrics["aspects"] == pytest.approx(aspects)


def test_splits_share_no_design() -> None:
    train, heldout = (generate(split, 3)[:400] for split in ("train", "heldout"))
    assert not {*map(canonical_key, train)} & {*map(canonical_key, heldout)}
    assert len({*train}) == 400


class Echo:
    """A chat model that keeps its prompts."""

    name = "model:echo"

    def __init__(self) -> None:
        self.prompts: list[Utterance] = []

    async def ask(self, chat: Sequence[Utterance], seed: int) -> Answer:
        self.prompts += chat
        return Answer("The bar is red. " * 100, truncated=False)


def ask(runner: asyncio.Runner, text: str, *, pictures: bool) -> tuple[Utterance, str]:
    chat = Echo()
    user = PageUser(chat, UserSimulatorSettings(model="m"), Pages())
    user.renderer = PageRenderer() if pictures else None
    reply = runner.run(user.reply(a_task(), [(PERSON, "I need a page."), (AGENT, text)], 0))
    return chat.prompts[0], reply


@pytest.mark.usefixtures("slow")
def test_a_user_model_compares_pictures_or_descriptions(runner: asyncio.Runner) -> None:
    page = write_page(replace(GOAL, background="green"))
    prompt, reply = ask(runner, f"Look: {page}", pictures=True)
    assert len(prompt.images) == 2 and len({*prompt.images}) == 2 and "<html>" not in prompt.text
    assert all(url.startswith("data:image/png;base64,") for url in prompt.images)
    assert 900 < len(reply) <= 1000 and reply.endswith("red.")
    for text, words in (("Which color?", "no page"), (CROOKED, "broken")):
        prompt, _ = ask(runner, text, pictures=True)
        assert len(prompt.images) == 1 and words in prompt.text
    prompt, _ = ask(runner, page, pictures=False)
    assert not prompt.images and "body green" in prompt.text and "body red" in prompt.text
    assert "<" not in prompt.text and "h1: Rose Bakery" in prompt.text
    assert "(no page)" in ask(runner, "Which color?", pictures=False)[0].text


@pytest.mark.usefixtures("slow")
def test_a_server_that_ignores_pictures_is_refused(runner: asyncio.Runner) -> None:
    def says_tokens(count: int) -> Any:
        choice = {"message": {"content": "The bar is red."}, "finish_reason": "stop"}
        return says(200, {"choices": [choice], "usage": {"prompt_tokens": count}})

    async def reply(url: str) -> str:
        settings = UserSimulatorSettings(model="m", url=url)
        async with open_chat(settings) as chat:
            user = PageUser(chat, settings, Pages())
            user.renderer = PageRenderer()
            for _ in range(2):
                text = await user.reply(a_task(), [(AGENT, write_page(GOAL))], 0)
            return text

    with service(*map(says_tokens, (90, 50, 90))) as server:
        assert runner.run(reply(server.url)) == "The bar is red."
        contents = [body["messages"][0]["content"] for body in server.bodies]
    assert [isinstance(content, str) for content in contents] == [False, True, False]
    with service(says_tokens(50)) as server, pytest.raises(EngineGone, match="ignores pictures"):
        runner.run(reply(server.url))


def test_a_reference_quoted_in_any_way_is_a_leak() -> None:
    page = write_page(GOAL)
    parts = [page[start : start + 20] for start in range(0, len(page), 20)]
    for reply in (
        f"```html\n{page}\n```", " ".join(page), page.replace("><", ">\n  <"), " + ".join(map(repr, parts)),
        "\n".join(f"{number}. `{part}`" for number, part in enumerate(parts)), " and then ".join(parts),
        "\n".join(f"```html\n{part}\n```" for part in parts), "...".join(parts[: len(parts) * 2 // 3]),
    ):  # fmt: skip
        assert quotes(reply, page), reply
    for sentence in (
        scripted_reply(GOAL, page),
        *SENTENCES.values(),
        f"The heading is {GOAL.heading} in a table.",
    ):
        assert not quotes(sentence, page), sentence
    assert not quotes("wide table with a gray background, heading and height" * 20, page)


def test_an_outline_is_of_what_is_seen_and_has_a_limit() -> None:
    html = "<html><head><title>t</title><style>p{}</style></head><body><p class=a>x<br>y</p></body></html>"
    assert outline(html, 100).split("\n") == ["  body", "    p a: x y", "      br"]
    assert outline(html, 12) == "  body\n..."


def test_the_reference_is_in_no_prompt_of_the_agent() -> None:
    environment: Frontend = Pages()
    task = environment.tasks("train", 1, 0)[0]
    with pytest.raises(Exception, match="may not read"):
        task.secrets[REFERENCE].reveal(AGENT)
    texts = [part.text for part in environment.system_parts(task, AGENT)] + [
        environment.request(task)
    ]
    goal = read_design(task.secrets[REFERENCE].reveal("grader"))
    assert not any(f" {color}" in text for text in texts for color in (goal.background, goal.bar))


def test_the_first_rows_train_and_the_next_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"text": f"<html>{n}</html>", "llm_generated_idea": f"idea {n}", "image": b"x"}
        for n in range(9)
    ]
    for part in (0, 5):
        table = pyarrow.Table.from_pylist(rows[part : part + 5])
        pyarrow.parquet.write_table(table, tmp_path / f"train-{part}.parquet")
    small = replace(CATALOGUE["websight"], each=3)
    monkeypatch.setattr("coterie.datasets.load.find", {"websight": small}.__getitem__)
    loaded = load_rows("websight", tmp_path)
    questions = {split: [row.question for row in own] for split, own in loaded.rows.items()}
    assert questions == {
        "train": ["idea 0", "idea 1", "idea 2"], "heldout": ["idea 3", "idea 4", "idea 5"]
    }  # fmt: skip


def evaluated(file: Path, scores: Sequence[float | None], measure: str = "layout") -> Store:
    """Return a store with a finished dialogue of each score; -1 is a failed one, ``None`` a task that is left out."""
    store = Store.open(file)
    store.put_tasks([Task(f"t{n}", {"question": "q"}) for n in range(len(scores))])
    for n, score in enumerate(scores):
        key = ItemKey(0, "evaluate", f"t{n}", "0000")
        if score is None or score < 0:
            failure = "left out: no picture" if score is None else "no"
            store.finish(key, tree=None, credit=(), metrics={}, failure=failure)
            continue
        tree = Tree(key.task, "evaluate", 0)
        turn = make_turn(tree.root, Speaker("agent", AGENT), [Part("a")], author="test")
        tree.add(turn)
        tree.end(Outcome(turn.id, 0, TURNS, "a", score))
        metrics = {"tokens": 1, "measure": measure}
        store.finish(key, tree=tree, credit=(), metrics=metrics, failure=None)
    return store


def test_a_win_is_strictly_higher_and_a_tie_counts_half(tmp_path: Path) -> None:
    evaluated(first := tmp_path / "a.sqlite", [0.9, 0.5, 0.1, 0.2, None])
    store = evaluated(second := tmp_path / "b.sqlite", [0.8, 0.5, 0.3, -1, None])
    wins = compare_stores(first, second)
    assert (wins.win_rate.mean, wins.ties, wins.n, wins.left_out) == (2.5 / 4, 1, 4, 1)
    assert compare_stores(second, first).win_rate.mean == 1.5 / 4
    result = evaluation(store, 0)
    assert (result.n, result.failed, result.means["left_out"]) == (4, 1, 1)
    assert result.score == pytest.approx(1.6 / 4)
    evaluated(third := tmp_path / "c.sqlite", [None, 0.9, 0.1, 0.2, 0.3])
    wins = compare_stores(second, third)
    assert (wins.win_rate.mean, wins.n, wins.left_out) == (1 / 3, 3, 2), "tasks that both have"
    for scores, measure, words in (
        ([0.5], "layout", "tasks"),
        ([0.5] * 5, "clip", "clip, layout|layout, clip"),
    ):
        evaluated(file := tmp_path / f"{measure}-{len(scores)}.sqlite", scores, measure)
        with pytest.raises(UserError, match=words):
            compare_stores(first, file)


def test_a_task_is_left_out_of_all_its_samples(cli: Cli, slow: dict[str, float]) -> None:
    tasks = Pages().tasks("heldout", 3, 0)
    goal = tasks[0].secrets[REFERENCE].reveal("grader")
    slow[tasks[1].secrets[REFERENCE].reveal("grader")] = 2 * RenderSettings().seconds
    reply = {"choices": [{"message": {"content": f"{MARKER} {goal}"}, "finish_reason": "stop"}]}
    with service(says(200, reply)) as server:
        words = ("evaluate", "pages", f"policy={server.url}", "tasks=3", "temperature=1")
        words = (*words, "environment.score=similarity")
        first = cli(*words, "endpoint.model=m")
        page = next(line for line in first.out.splitlines() if line.startswith("page: "))[6:]
        (row,) = json.loads(first.out.splitlines()[-1])["rows"]
        assert (row["n"], row["failed"]) == (3, 0) and "left_out" not in row
        slow[tasks[1].secrets[REFERENCE].reveal("grader")] = math.inf
        more = cli(*words, "endpoint.model=m", "samples=3")
        *_, last = json.loads(more.out.splitlines()[-1])["rows"]
        assert (last["n"], last["k"], last["failed"], last["of_all"]["left_out"]) == (2, 3, 0, 1)
        assert "; 1 left out; " in more.out
        other = cli(*words, "endpoint.model=other", f"against={page}")
        (row,) = json.loads(other.out.splitlines()[-1])["rows"]
        assert (row["n"], row["compared"], row["ties"], row["left_out"]) == (2, 2, 2, 1)
        assert "on 2 tasks (1 left out)" in other.out


def test_results_depend_on_the_measure_and_the_size_and_not_on_the_machine() -> None:
    own = PagesSettings()
    same = {
        "render": RenderSettings(pages=3, renew=7),
        "similarity": SimilaritySettings(device="cpu"),
    }
    assert PagesSettings(**same).identity() == own.identity()
    others = [
        PagesSettings(render=RenderSettings(width=800)),
        PagesSettings(similarity=SimilaritySettings(kind="efficientnet")),
    ]
    assert len({one.identity() for one in (own, *others)}) == 3
