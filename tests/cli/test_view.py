"""``coterie view``: only its own page gets answers, without secrets, and the export is whole."""

import asyncio
import base64
import hashlib
import html
import json
import re
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from tokenizers import Tokenizer

from coterie.cli import view as view_module
from coterie.cli.view import TaskKey, Viewer, bundle, dumps, export_page, run_answers, task_answers
from coterie.cli.view_server import application
from coterie.models.loading import resolve
from coterie.record.store import Store
from coterie.record.tree import Ending, ItemKey, Outcome, Secret, Task, Tree, hash_of
from coterie.record.turn import Message, Part, Request, Sample, Speaker, ToolCall, make_turn
from tests.conftest import Cli, refused
from tests.helpers.serve_app import serve_app

GOLD = "heliotrope"
HOSTILE = (
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!-- ]]>", "javascript:alert(1)",
    "\u202egpj.exe", "\x1b[2J\x07", "' onmouseover='alert(1)", "\u2028 &quot; \\u003c",
)  # fmt: skip
TASKS = tuple(f"t{number} {text}" for number, text in enumerate(HOSTILE))
PNG = b"\x89PNG\r\n\x1a\n rest"
PAGE = {
    "index.html": b"""<!doctype html><html><head><link rel="stylesheet" href="view.css"></head><body>
<script src="vendor/x.js"></script>
<script type="module" src="a.js"></script>
<script type="module" src="b.js"></script>
</body></html>""",
    "view.css": b"p > a { color: red }", "vendor/x.js": b'var x = "</script>";',
    "a.js": b"export function f() { return 1; }\nexport const { g } = { g: 2 };\nconst hidden = 1;\n",
    "b.js": b'import { f, g } from "./a.js";\nconst hidden = 2;\nglobalThis.sum = f() + g + hidden;\n',
}  # fmt: skip
TOKENIZER = Tokenizer.from_file(f"{resolve('tiny-exchange')}/tokenizer.json")


def sampled(
    tree: Tree, parent: str, agent: str, text: str, *parts: Part, turn: str | None = None
) -> str:
    """Add a turn with a prompt of these parts, which may be those of a turn; its id."""
    prompt = tuple(TOKENIZER.encode("".join(part.text for part in parts)).ids)
    message = Message("user", turn=turn) if turn else Message("user", parts)
    request = Request.make(agent, parent, None, prompt, (message,))
    ids = tuple(TOKENIZER.encode(text).ids)
    sample = Sample(request.id, ids, (-0.5,) * len(ids), "end", "policy", "0", 2**64 - 1, 1.0, 1.0)
    calls = (ToolCall("c0", text, text, text),)
    shown = [Part(text, source="sampled")]
    turn = make_turn(parent, Speaker("agent", agent), shown, sample=sample, calls=calls)
    tree.add(turn, request)
    return turn.id


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run whose tasks and texts are hostile, and whose critic reads the right answer."""
    folder = tmp_path_factory.mktemp("view") / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "recipe: rl/grpo\nmade: 2026-11-29\nmodel: tiny-exchange\nseed: 1\n"
    )
    secret = Secret(GOLD, name="gold", readers=frozenset({"critic"}))
    with Store.open(folder / "store.sqlite") as store:
        store.put_tasks([Task(task, {"question": task}, {"gold": secret}) for task in TASKS])
        for task, text in zip(TASKS, HOSTILE, strict=True):
            tree = Tree(task, "rollout", 0)
            image = tree.add_image(PNG)
            first = make_turn(tree.root, Speaker("environment", text), [Part(text, image=image)])
            tree.add(first)
            sampled(tree, first.id, "Alice", f"A candidate {text}", Part(text))
            leaf = sampled(tree, first.id, "Alice", f"I say {text}", Part(text))
            hidden = Part(f"{GOLD} ", frozenset({"critic"}), "secret:gold")
            leaf = sampled(tree, leaf, "critic", "A good answer", Part("Gold: "), hidden)
            shown = make_turn(
                leaf,
                Speaker("environment", "world"),
                [hidden],
                ids=tuple(TOKENIZER.encode(GOLD).ids),
            )
            tree.add(shown)
            leaf = sampled(tree, shown.id, "critic", "Right", hidden, turn=shown.id)
            leaf = sampled(tree, leaf, "Alice", "Thanks", Part("seen by Alice"))
            tree.end(Outcome(leaf, 0, Ending("agreed"), text, 0.5))
            store.finish(ItemKey(0, "rollout", task, "0000"), tree=tree, metrics={"tokens": 3})
            store.finish(ItemKey(0, "rollout", task, "0001"), failure=f"failed with {text}")
            store.finish(
                ItemKey(0, "evaluate", task, "0000"), tree=copy_of(tree, "evaluate"), metrics={"tokens": 3}
            )  # fmt: skip
            store.finish(ItemKey(1, "evaluate", task, "0000"), failure="stopped")
    return folder


def copy_of(tree: Tree, stage: str) -> Tree:
    copy = Tree(tree.task, stage, 0)
    leaf = sampled(copy, copy.root, "Bob", "yes", Part("question"))
    copy.end(Outcome(leaf, 0, Ending("agreed"), "yes", 1.0))
    return copy


@pytest.fixture
def viewer(folder) -> Iterator[Viewer]:
    viewer = Viewer([folder], show_secrets=False)
    yield viewer
    for browser in viewer.browsers:
        browser.close()


def test_only_the_page_itself_gets_answers(viewer, monkeypatch):
    monkeypatch.setattr(view_module, "page_files", lambda: PAGE)
    monkeypatch.setattr("coterie.cli.view_server.page_files", lambda: PAGE)
    leaf = viewer.browsers[0].fetch("SELECT leaf FROM outcome")[0][0]
    cookie = {"Cookie": "name=secret"}
    own = {**cookie, "Sec-Fetch-Site": "same-origin"}
    cases = [
        ("GET", "/", {}, 403), ("GET", "/?token=wrong", {}, 403), ("GET", "/?token=secret", {}, 200),
        ("GET", "/?token=secret", {"Sec-Fetch-Site": "cross-site"}, 200), ("GET", "/", own, 200),
        ("GET", "/api/overview", {}, 403), ("GET", "/api/overview?token=secret", {}, 403),
        ("GET", "/api/overview", {"Cookie": "other=secret"}, 403), ("GET", "/api/overview", own, 200),
        ("GET", "/api/version", {**cookie, "Host": "evil.example"}, 400),
        ("GET", "/api/version", {**cookie, "Origin": "http://evil.example"}, 403),
        ("GET", "/api/version", {**cookie, "Origin": "null"}, 403),
        ("GET", "/api/version", {**cookie, "Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", "/api/version", {**cookie, "Sec-Fetch-Site": "same-site"}, 403),
        *((method, "/api/version", own, 405) for method in ("POST", "PUT", "DELETE")),
        ("GET", "/vendor/x.js", own, 200), ("GET", "/vendor/../../view.py", own, 404),
        ("GET", "/..%2f..%2fview.py", own, 404), ("GET", "//etc/passwd", own, 404),
        ("GET", "/api/../view.py", own, 404), ("GET", "/%00", own, 404),
        ("GET", f"/api/path?leaf={leaf}", own, 200), ("GET", "/api/path?leaf=x", own, 404),
        ("GET", "/api/path", own, 400), ("GET", "/api/nothing", own, 404),
        ("GET", "/api/tasks?iteration=x&stage=rollout", own, 400), ("GET", "/api/overview?run=1", own, 404),
        ("GET", f"/api/tasks?iteration={9**99}&stage=rollout", own, 400),
        ("GET", "/api/compare?a=0&b=0", own, 400), ("GET", "/api/compare?a=7/0/x&b=0/0/x", own, 400),
        ("GET", f"/image/{hash_of(PNG)}", own, 200), ("GET", "/image/x", own, 404),
    ]  # fmt: skip

    async def ask() -> None:
        async with serve_app(application(viewer, "secret", "name")) as url:
            for method, path, headers, status in cases:
                answer = await request(url, method, path, headers)
                assert answer.status_code == status, (method, path, headers, answer.text)
                if status == 400 and "evil" in str(headers):
                    continue  # refused before the application
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                if path == "/?token=secret":
                    assert re.fullmatch(
                        "name=secret; HttpOnly; Path=/; SameSite=strict",
                        answer.headers["Set-Cookie"],
                    )
                if path.startswith("/image/") and status == 200:
                    assert answer.content == PNG and answer.headers["Content-Type"] == "image/png"
                if path.startswith("/api/") and status in (400, 404) and ".." not in path:
                    assert set(answer.json()) == {"error", "fix"}

    asyncio.run(ask())


def test_a_large_list_is_read_ahead_and_again_after_a_change(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")

    class WithoutLists(Viewer):
        def answer(self, route, params):
            return {"asked": route} if route == "tasks" else super().answer(route, params)

    async def ask() -> None:
        viewer, params = WithoutLists([tmp_path / "run"], show_secrets=False), "stage=rollout"
        with closing(viewer):
            expected = Viewer.answer(viewer, "tasks", {"iteration": "0", "stage": "rollout"})
            path, cookie = f"/api/tasks?iteration=0&{params}", {"Cookie": "name=secret"}
            async with serve_app(application(viewer, "secret", "name", large=16)) as url:
                assert (await request(url, "GET", path, cookie)).json() == expected
                evaluated = path.replace("rollout", "evaluate")
                assert (await request(url, "GET", evaluated, cookie)).json() == {"asked": "tasks"}
                with Store.open(tmp_path / "run" / "store.sqlite") as store:
                    store.finish(ItemKey(0, "rollout", TASKS[0], "0002"), failure="stopped")
                assert (await request(url, "GET", path, cookie)).json() == {"asked": "tasks"}
            async with serve_app(application(viewer, "secret", "name", large=18)) as url:
                assert (await request(url, "GET", path, cookie)).json() == {"asked": "tasks"}

    asyncio.run(ask())


async def request(url: str, method: str, path: str, headers: dict[str, str]) -> httpx2.Response:
    """Send a request whose path is not normalized."""
    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
        message = http.build_request(method, url, headers=headers)
        message.url = message.url.copy_with(raw_path=path.encode())
        return await http.send(message)


def task_keys(tasks: Sequence[str]) -> dict[str, list[TaskKey]]:
    return {task: [TaskKey(0, stage, task) for stage in ("rollout", "evaluate")] for task in tasks}


def everything(viewer: Viewer) -> str:
    chosen = [task_key for of_task in task_keys(TASKS[:2]).values() for task_key in of_task]
    return dumps([*run_answers(viewer, chosen), *task_answers(viewer, chosen)])


def test_secrets_are_left_out_as_text_and_as_tokens(folder, viewer):
    ids = dumps(TOKENIZER.encode(GOLD).ids)[1:-1]
    prompt = dumps(TOKENIZER.encode(f"Gold: {GOLD} ").ids)[1:-1]
    text = everything(viewer)
    assert GOLD not in text and ids not in text and prompt not in text
    assert "A good answer" in text, "the critic's turn stays"
    leaf = viewer.browsers[0].fetch("SELECT leaf FROM outcome")[0][0]
    turns = viewer.answer("path", {"leaf": leaf})["turns"]
    shown = {turn["speaker"]: turn["has_prompt"] for turn in turns if turn["kind"] == "agent"}
    assert shown == {"Alice": True, "critic": False}, "only the critic's prompts are hidden"
    assert (
        viewer.answer("search", {"iteration": "0", "stage": "rollout", "text": GOLD})["leaves"]
        == []
    )
    privileged = Viewer([folder], show_secrets=True)
    text = everything(privileged)
    assert GOLD in text and ids in text and prompt in text
    assert privileged.answer("search", {"iteration": "0", "stage": "rollout", "text": GOLD})[
        "leaves"
    ]
    privileged.browsers[0].close()


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("no plan", []),
        ("<plan>\nnothing to do\n</plan>", []),
        ("<plan>\nT1: a\n- Dependencies: T2\nT2: b\n- Dependencies: T1\n</plan>", []),
        ("<plan>\nT1: a\n- Dependencies: none\nT2: b\n- Dependencies: T1\nT3: c\n</plan> then", [["T1", "T3"], ["T2"]]),
    ],
)  # fmt: skip
def test_a_turn_with_a_plan_has_its_tasks_by_level(text, levels):
    shown = view_module._plan_levels(text)
    assert [[task["id"] for task in level] for level in shown] == levels


def test_an_export_has_the_answers_of_its_tasks_and_texts_stay_texts(viewer, tmp_path, monkeypatch):
    monkeypatch.setattr(view_module, "page_files", lambda: PAGE)
    export_page(viewer, task_keys(TASKS[:2]), tmp_path / "why.html")
    text = (tmp_path / "why.html").read_text()
    assert text.isascii() and GOLD not in text
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
    assert text.count("</script>") == len(scripts)
    policy = html.unescape(re.search(r'Policy" content="(.*?)"', text)[1])
    code = [source for attributes, source in scripts if not attributes]
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    for source in (*code, style):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "img-src data:;" in policy
    assert text.rindex("data-key=") < text.index('<script>"use strict"'), (
        "the script reads the answers"
    )
    assert "default-src 'none'" in policy and "'self'" not in policy and "unsafe" not in policy
    answers = dict[str, object]()
    for attributes, source in scripts:
        if key := re.search('data-key="(.*?)"', attributes):
            answers[html.unescape(key[1])] = json.loads(source)
    for key, answer in answers.items():
        route, params = json.loads(key)
        if route == "tasks":
            assert answer["tasks"] == list(TASKS[:2])
        elif route not in ("image", "compare"):
            assert answer == json.loads(dumps(viewer.answer(route, params)))
    routes = {json.loads(key)[0] for key in answers}
    assert routes == {
        "overview",
        "sections",
        "words",
        "health",
        "tasks",
        "task",
        "tree",
        "path",
        "turn",
        "prompt",
        "image",
    }
    paths = [answer["turns"] for key, answer in answers.items() if json.loads(key)[0] == "path"]
    said = [turn["parts"][0]["text"] for path in paths for turn in path]
    assert f"A candidate {HOSTILE[0]}" in said, "a turn that no rollout goes on with"
    assert TASKS[2] not in {answer["task"] for answer in answers.values() if "nodes" in answer}
    monkeypatch.setattr(view_module, "MAX_EXPORT", 60_000)
    with pytest.raises(view_module.UserError, match=r"\d of its 8 tasks fit"):
        export_page(viewer, task_keys(TASKS), tmp_path / "large.html")
    assert not (tmp_path / "large.html").exists()


def test_modules_become_one_script_that_runs(tmp_path):
    import subprocess

    code = re.findall("<script>(.*?)</script>", bundle(PAGE), re.DOTALL)
    assert len(code) == 2
    (tmp_path / "code.js").write_text("\n".join(code) + "\nconsole.log(globalThis.sum, x);")
    try:
        result = subprocess.run(
            ["node", tmp_path / "code.js"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("node is not installed")
    assert result.stdout == "5 </script>\n"


def test_two_runs_are_compared_by_the_tasks_that_both_have(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    with Store.open(tmp_path / "other/store.sqlite") as store, store.transaction() as db:
        of_task = "SELECT leaf FROM outcome JOIN tree ON tree = key WHERE task = ?"
        db.execute(f"DELETE FROM outcome WHERE leaf IN ({of_task})", TASKS[:1])
    viewer = Viewer([folder, tmp_path / "other"], show_secrets=False)
    answer = viewer.answer("compare", {"a": "0/0/evaluate", "b": "1/0/evaluate"})
    assert (
        answer["tasks"] == sorted(TASKS[1:]) and answer["a_score"] == answer["b_score"] == [1.0] * 7
    )
    sides = dict(viewer.answer("overview", {})["sides"])
    assert sides["0/0/rollout"] == "run: rollout of iteration 0"
    assert sides["1/0/evaluate"] == "other: evaluate of iteration 0"
    leaf = viewer.answer("path", {"leaf": answer["b_leaf"][0], "run": "1"})
    assert leaf["task"] == answer["tasks"][0] and leaf["score"] == 1.0
    for browser in viewer.browsers:
        browser.close()


def test_dialogues_are_printed_without_control_characters(cli: Cli, folder):
    result = cli("view", folder, "--text", f"0/rollout/{TASKS[5]}")
    assert result.code == 0 and "I say \ufffd[2J\ufffd" in result.out
    result = cli("view", folder, "--text", f"0/rollout/{TASKS[4]}", "--secrets")
    assert "\u202e" not in result.out and GOLD in result.out
    result = cli("view", folder, "--text", f"0/rollout/{TASKS[4]}")
    assert result.code == 0 and GOLD not in result.out and "<secret:gold>" in result.out


def test_bad_input_is_one_error(cli: Cli, folder, tmp_path):
    assert "is not a run folder" in refused(cli, "view", tmp_path)
    (tmp_path / "config.yaml").write_text("recipe: rl/grpo\n")
    assert "there is no store" in refused(cli, "view", tmp_path)
    near = refused(cli, "view", folder, "--text", f"0/rollout/{TASKS[0]}x")
    assert f"did you mean '0/rollout/{TASKS[0]}'" in near
    assert "has no task 'x'" in refused(cli, "view", folder, "--export", "x.html", "--tasks", "x")
    (tmp_path / "old.html").touch()
    assert "already exists" in refused(cli, "view", folder, "--export", "old.html")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"can't listen on port {port}" in refused(cli, "view", folder, "--port", port)


def test_ctrl_c_as_soon_as_the_address_is_printed_ends_the_server(viewer, monkeypatch, capsys):
    def print_and_interrupt(url: str, *, flush: bool) -> None:
        sys.stdout.write(url)
        signal.raise_signal(signal.SIGINT)

    # Tests may run in the background of a script, where Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(view_module, "print", print_and_interrupt, raising=False)
        view_module.serve(viewer, 0, opens=False)
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert out.startswith("http://127.0.0.1:") and err.endswith("stopped\n")


def test_the_score_of_the_overview_is_that_of_the_report(folder, viewer):
    from coterie.runs.evaluation import evaluation

    overview = viewer.answer("overview", {})
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        expected = evaluation(store, 0)
    (shown,) = [e for e in overview["evaluations"] if e["iteration"] == 0]
    assert (shown["score"], shown["tokens"]) == (expected.score, expected.tokens)
    assert (shown["low"], shown["high"]) == expected.interval
    stages = {
        (s["iteration"], s["stage"]): (s["tasks"], s["rollouts"], s["failed"])
        for s in overview["stages"]
    }
    assert stages[0, "rollout"] == (8, 16, 8)


def test_an_export_is_read_from_disk_without_any_request(viewer, tmp_path, browser):
    export_page(viewer, task_keys(TASKS), tmp_path / "why.html")
    page, events = browser.new_page(), list[str]()
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("dialog", lambda dialog: (events.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: events.append(request.url))
    address = (tmp_path / "why.html").as_uri()
    page.goto(address)
    page.wait_for_selector("text=iteration")
    page.click("nav >> text=Tasks")
    page.wait_for_selector(".line a")
    shown = page.inner_text("main")
    assert all(task in shown for task in TASKS[:4]) and not {*shown} & {*"\u202e\x1b\x07\u2028"}
    page.locator(".line a", has_text="t0 ").click()
    page.locator("td a").first.click()
    page.wait_for_selector(".tokens")
    # Each token of the turn is there, and none of the right answer, which only the critic reads.
    leaf = page.evaluate("location.hash.split('/').at(-1)")
    turns = viewer.answer("path", {"leaf": leaf})["turns"]
    turn = next(turn for turn in turns if turn["tokens"] and turn["tokens"]["text"])
    assert page.locator(".tokens >> nth=0").locator(".k").count() == len(turn["tokens"]["ids"])
    assert GOLD not in page.content()
    assert {event for event in events if not event.startswith("data:")} == {address}
