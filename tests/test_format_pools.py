"""Pools of formats: read from files, and written by a chat model."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.environments.talk import (
    DEBATE_FORMATS,
    EXCHANGE_FORMATS,
    MAX_LENGTH,
    clean,
    read_pool,
)
from coterie.errors import UserError
from tests.conftest import Cli
from tests.played import talk_in
from tests.test_endpoint import Answer, says, service

FRESH = (
    "Write only the initials of names, then an equals sign and a year.",
    "Draw boxes with brackets and join them by dashes.",
    "List what is missing under a minus, what is found under a plus.",
)


def replies(text: str, finish: str = "stop") -> Answer:
    body: dict[str, Any] = {
        "choices": [{"message": {"content": text}, "finish_reason": finish, "index": 0}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
    return says(200, body)


# Files


def test_a_file_replaces_the_packaged_pool(tmp_path: Path) -> None:
    lines, items = tmp_path / "a.jsonl", tmp_path / "b.yaml"
    lines.write_text(
        "".join(json.dumps({"index": i, "format": f}) + "\n" for i, f in enumerate(FRESH))
    )
    items.write_text(f"# ours\n- {FRESH[0]}\n- format: {FRESH[1]}\n  index: 1\n- '{FRESH[2]}'\n")
    broken = tmp_path / "c.jsonl"
    broken.write_text(json.dumps({"format": "a\u2028b\x85c"}, ensure_ascii=False), "utf-8")
    assert read_pool(broken) == ("a\u2028b\x85c",)
    for file in (lines, items):
        assert read_pool(file) == FRESH
        for name in ("exchange", "2wiki", "math", "arc_c"):
            assert talk_in(name, f"environment.format_pool_file={file}").formats == FRESH


@pytest.mark.parametrize(
    "name, text, said",
    [
        ("a.jsonl", "\n\n", "is empty"), ("a.yaml", "# no\n", "is empty"), ("none.jsonl", None, "no file"),
        ("a.jsonl", '{"format": "in verse"}\n{"format"', "line 2 is broken: not JSON"),
        ("a.jsonl", '{"prompt": "in verse"}\n', "line 1 is broken: format: is missing"),
        ("a.jsonl", '{"format": "x"}\n{"format": "x"}\n', "line 2 is broken: it repeats the format of line 1"),
        ("a.jsonl", json.dumps({"format": "x" * (MAX_LENGTH + 1)}), "line 1 is broken: format"),
        ("a.yaml", "- x\n- [1]\n", "item 2 is broken"), ("a.yaml", "x: y\n", "is not a list"),
        ("a.yaml", "- x\n- {\n", "line 3"), ("a.yaml", "- 2024-13-45\n", "a.yaml can't be read"),
    ],
)  # fmt: skip
def test_a_broken_pool_is_named_by_line(
    name: str, text: str | None, said: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        talk_in("cbt", f"environment.format_pool_file={tmp_path / name}")
    assert said in error.value.what


# Writing


def test_replies_are_cleaned_and_near_ones_refused() -> None:
    assert clean('1. "Write in\n verse."\n', ()) == "Write in verse."
    assert clean("- Write in verse.", ("Write in prose, please.",)) == "Write in verse."
    for reply, why in (
        ("  \n", "empty"),
        ("x" * 401, "characters"),
        ("in verse: WRITE", "similar"),
    ):
        with pytest.raises(ValueError, match=why):
            clean(reply, ("Write in verse:",))


def test_the_packaged_pools_have_no_near_duplicates() -> None:
    for pool in (EXCHANGE_FORMATS, DEBATE_FORMATS):
        for place, one in enumerate(pool):
            assert clean(one, (*pool[:place], *pool[place + 1 :])) == one


def test_a_model_writes_a_pool_and_goes_on_with_it(cli: Cli) -> None:
    script = [
        replies(FRESH[0]), replies(" "), replies(FRESH[0].upper()), replies(EXCHANGE_FORMATS[3]),
        replies("Write and", "length"), replies(f"- {FRESH[1]}"),
    ]  # fmt: skip
    file = Path("pools/pool.jsonl")
    words = ["data", "prompt-pool", "--out", file, "endpoint.model=m", "temperature=0.7"]
    with service(*script) as one:
        said = cli(*words, "--count", 2, f"endpoint.url={one.url}")
        assert said.code == 0, said.err
        assert len(one.bodies) == 6
        shown = one.bodies[5]["messages"][1]["content"]
        assert EXCHANGE_FORMATS[0] in shown and FRESH[0] in shown
        assert one.bodies[5]["temperature"] == 0.7
    assert said.out.strip() == str(file)
    for why in ("it is empty", "too similar", "it is truncated", "2 of 2"):
        assert why in said.err
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"index": 0, "format": FRESH[0]}, {"index": 1, "format": FRESH[1]}
    ]  # fmt: skip
    with file.open("a") as opened:
        opened.write('{"index": 2, "for')  # killed in the middle of a line
    with service(replies(FRESH[2])) as one:
        said = cli(*words, "--count", 3, f"endpoint.url={one.url}", "--setting", "debate")
        assert said.code == 0 and len(one.bodies) == 1
        assert DEBATE_FORMATS[0] in one.bodies[0]["messages"][1]["content"]
        again = cli(*words, "--count", 3, f"endpoint.url={one.url}")
        assert again.code == 0 and len(one.bodies) == 1, "it is full"
    assert read_pool(file) == FRESH


def test_a_model_that_repeats_itself_or_fails_is_told_of(cli: Cli) -> None:
    words = ["data", "prompt-pool", "--out", "pool.jsonl", "endpoint.model=m", "endpoint.retries=0"]
    with service(replies(FRESH[0])) as one:
        said = cli(*words, "--count", 2, f"endpoint.url={one.url}")
        assert (
            said.code == 2
            and "wrote only 1 of 2 usable formats" in said.err
            and len(one.bodies) == 10
        )
    with service(says(400, {"error": {"message": "no such model"}})) as one:
        said = cli(*words, "--count", 2, f"endpoint.url={one.url}")
        assert said.code == 2 and "no such model" in said.err and "repeat the command" in said.err
    assert read_pool(Path("pool.jsonl")) == FRESH[:1]
    said = cli(
        "data", "prompt-pool", "--out", "pool.yaml", f"endpoint.url={one.url}", "endpoint.model=m"
    )
    assert said.code == 2 and ".jsonl" in said.err
    said = cli("data", "prompt-pool", "--out", "pool.jsonl")
    assert said.code == 2 and "endpoint" in said.err
