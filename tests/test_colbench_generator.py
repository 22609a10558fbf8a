"""Tasks written by a chat model: replies are read, checked in the sandbox, refused, written as they come."""

import json
import os
import signal
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from coterie.datasets.code_rows import SENTENCE, CodeRow
from coterie.datasets.local import load_rows
from coterie.errors import UserError
from coterie.generators.colbench.drafts import RefusedDraft, near, read_reply
from coterie.generators.colbench.prompts import SYSTEM, read_excerpts, request
from tests.conftest import Cli
from tests.test_endpoint import says, service
from tests.test_format_pools import replies

SUBJECTS = {
    "kayaks": "def rent(hours):\n    cost = 12 + 7 * max(0, hours - 2)\n    return min(cost, 60)",
    "goats": "def milk(litres):\n    name = 'cheese' if litres > 4 else 'butter'\n    return [name, litres * 9]",
    "quilts": "def patches(width):\n    return {'rows': width // 3, 'left': (width * 5) % 7}",
}
OPENINGS = {
    "kayaks": "People rent kayaks from me and I charge them by time.",
    "goats": "What I make of the milk of our goats hangs on the day. Could you help?",
    "quilts": "Sewing a quilt, I cut cloth by rules that my aunt taught me.",
}
CALLED = {"kayaks": "rent", "goats": "milk", "quilts": "patches"}


def draft(subject: str, **change: Any) -> str:
    """A reply about a subject, in good order but for the changes."""
    name = CALLED[subject]
    fields = {
        "idea": "It has odd rules.",
        "ground_truth": SUBJECTS[subject],
        "problem_description": f"{OPENINGS[subject]}{SENTENCE} def {name}(x)",
        "test_cases": {f"test{n}": f"{name}({n})" for n in range(1, 11)},
    }
    return json.dumps(fields | change)


def test_a_reply_is_read_and_its_signature_is_the_references() -> None:
    row = read_reply(
        f"<think>{{hm}} {{}}</think> Here:\n```json\n{draft('kayaks')}\n```\nGood luck!"
    )
    assert isinstance(row, CodeRow) and row.answer == SUBJECTS["kayaks"]
    assert row.question == f"{OPENINGS['kayaks']}{SENTENCE} def rent(hours)"
    assert row.tests[9] == "rent(10)"
    raw = draft("goats").replace("\\n", "\n")  # newlines as they are, which strict JSON refuses
    fenced = draft("goats", ground_truth=f"```python\n{SUBJECTS['goats']}\n```")
    plain = read_reply(draft("goats", problem_description=OPENINGS["goats"]))
    assert read_reply(raw) == read_reply(fenced) == plain != row


@pytest.mark.parametrize(
    "reply, kind",
    [
        ("I'd rather not.", "no JSON"), ('{"a": 1}', "no JSON"), (draft("goats")[:-30], "no JSON"),
        (draft("goats", test_cases={}), "incomplete"), (draft("goats", test_cases=["milk(1)"]), "incomplete"),
        (draft("goats", problem_description=f"{SENTENCE} def milk(x)"), "incomplete"),
        (draft("goats", ground_truth="def milk(x) return"), "no Python"),
        (draft("goats", test_cases={"test1": "cheese(1)"}), "no Python"),
        (draft("goats", problem_description=f"Mine: {SUBJECTS['goats']}"), "gives the answer away"),
    ],
)  # fmt: skip
def test_replies_that_hold_no_task_are_refused(reply: str, kind: str) -> None:
    found = read_reply(reply)
    assert isinstance(found, RefusedDraft) and found.kind == kind, found


def test_rows_that_are_nearly_there_are_known() -> None:
    rows = [row for name in SUBJECTS if isinstance(row := read_reply(draft(name)), CodeRow)]
    assert len(rows) == 3 and near(rows[0], rows[1:]) is None and near(rows[0], []) is None
    words = OPENINGS["goats"].replace("hangs on", "depends on")
    same_request = read_reply(
        draft("goats", problem_description=words, ground_truth="def milk(x):\n    return x")
    )
    same_code = read_reply(
        draft("goats", problem_description="Please sort out my dairy's mess today.")
    )
    for one, why in (
        (same_request, "asks nearly what row 2 asks"),
        (same_code, "reference of row 2"),
    ):
        assert isinstance(one, CodeRow)
        refused = near(one, rows)
        assert refused is not None and why in refused.why


def test_every_try_asks_for_something_else_and_excerpts_are_shown(tmp_path: Path) -> None:
    asked = {request(0, number)[1].text for number in range(50)}
    assert len(asked) > 40 and request(0, 3) == request(0, 3) != request(1, 3)
    assert SENTENCE in SYSTEM and "test10" in SYSTEM
    (tmp_path / "a.txt").write_text("Tides of the Wadden Sea\n\n  How to oil an oak table \n")
    (tmp_path / "b.jsonl").write_text(
        '{"text": "Tides of the Wadden Sea"}\n"How to oil an oak table"\n'
    )
    texts = read_excerpts(tmp_path / "a.txt")
    assert texts == read_excerpts(tmp_path / "b.jsonl") and len(texts) == 2
    shown = request(0, 1, texts)[1].text
    assert any(text in shown for text in texts)
    for name, content, said in [
        ("c.txt", "\n", "no excerpts"), ("d.jsonl", '"x"\n{"text"', "line 2 is broken"),
        ("e.jsonl", '{"body": "x"}', "line 1 is broken"), ("f.txt", None, "can't be read"),
    ]:  # fmt: skip
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=said):
            read_excerpts(tmp_path / name)


def test_a_model_writes_tasks_and_goes_on_with_them(cli: Cli) -> None:
    script = [
        replies(draft("kayaks")), replies("Sorry."), replies(draft("kayaks").replace("kayaks from", "KAYAKS from")),
        replies(draft("goats", ground_truth="def milk(litres):\n    return 'cheese'")),
        replies(draft("goats", ground_truth="def milk(litres):\n    return 9 // (litres - 4)")),
        replies(draft("goats", test_cases={"test1": "milk(1)", "test2": "milk(2)"})),
        replies(draft("goats")[:40], "length"), replies(draft("goats")),
    ]  # fmt: skip
    file = Path("new/tasks.jsonl")
    words = [
        "data",
        "generate",
        "colbench-code",
        "--out",
        file,
        "endpoint.model=m",
        "endpoint.concurrency=1",
    ]
    Path("web.txt").write_text("A page about tides.\n")
    with service(*script) as one:
        said = cli(
            *words,
            "--count",
            2,
            f"endpoint.url={one.url}",
            "--excerpts",
            "web.txt",
            "temperature=0.6",
        )
        assert said.code == 0, said.err
        assert len(one.bodies) == len(script) and one.bodies[0]["temperature"] == 0.6
        assert "A page about tides." in one.bodies[0]["messages"][1]["content"]
        assert len({body["seed"] for body in one.bodies}) == len(script)
    assert said.out.strip() == str(file)
    for why in (
        "1 no JSON",
        "1 near another",
        "1 constant",
        "1 fails",
        "1 count",
        "1 cut",
        "2 of 2",
    ):
        assert why in said.err
    rows = load_rows("colbench_code", "train", file)
    assert [row.question.partition(SENTENCE)[0] for row in rows] == [
        OPENINGS["kayaks"],
        OPENINGS["goats"],
    ]
    line = json.loads(file.read_text().splitlines()[0])
    assert set(line) == {"problem_description", "ground_truth", "test_cases", "hidden_information"}
    with file.open("a") as opened:
        opened.write('{"problem_desc')  # killed in the middle of a line
    with service(replies(draft("quilts"))) as one:
        said = cli(*words, "--count", 3, f"endpoint.url={one.url}")
        assert said.code == 0 and len(one.bodies) == 1
        again = cli(*words, "--count", 3, f"endpoint.url={one.url}")
        assert again.code == 0 and len(one.bodies) == 1, "it is full"
    assert len(load_rows("colbench_code", "train", file)) == 3


def test_a_model_that_repeats_itself_or_fails_is_told_of(cli: Cli) -> None:
    words = [
        "data",
        "generate",
        "colbench-code",
        "--out",
        "t.jsonl",
        "endpoint.model=m",
        "endpoint.retries=0",
    ]
    with service(replies(draft("kayaks"))) as one:
        said = cli(*words, "--count", 3, f"endpoint.url={one.url}")
        assert said.code == 2 and "gave 1 of 3 tasks" in said.err and "14 near another" in said.err
        assert len(one.bodies) == 15, "five for each that is wanted"
    with service(says(400, {"error": {"message": "no such model"}})) as one:
        said = cli(*words, "--count", 2, f"endpoint.url={one.url}")
        assert said.code == 2 and "no such model" in said.err and "goes on" in said.err
        said = cli(*words[:3], "--out", "t.json", *words[5:], f"endpoint.url={one.url}")
        assert said.code == 2 and ".jsonl" in said.err
    assert len(load_rows("colbench_code", "train", "t.jsonl")) == 1
    said = cli("data", "generate", "colbench-code", "--out", "t.jsonl")
    assert said.code == 2 and "endpoint" in said.err


def test_ctrl_c_keeps_what_has_come(cli: Cli) -> None:
    def interrupts(handler: BaseHTTPRequestHandler) -> None:
        """Press Ctrl-C, and hold the answer back."""

        def press() -> None:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        one.closing.wait(20)

    with service(replies(draft("kayaks")), interrupts) as one:
        said = cli(
            "data", "generate", "colbench-code", "--out", "t.jsonl", "--count", 2, "endpoint.model=m",
            "endpoint.concurrency=1", f"endpoint.url={one.url}",
        )  # fmt: skip
    assert said.code == 130 and "Traceback" not in said.err
    assert len(load_rows("colbench_code", "train", "t.jsonl")) == 1
