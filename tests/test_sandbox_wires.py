"""Forms of values that only a hostile process writes, or that are slow to compare: each gets a verdict at once."""

import datetime
import json
import time
from typing import Any

import pytest

from coterie.tools.sandbox.inside.plain import encode
from coterie.tools.sandbox.results import judge, read_record
from coterie.tools.sandbox.shown import shown

MANY = "7" * 120_000
ZONED = datetime.time(4, 23, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("wire", "expected", "passed"),
    [
        (["time", ["T04:23", "0"]], ZONED, True),
        (["set", [["time", ["T04:23", "0"]]]], {1}, False),
        (["decimal", MANY + MANY], 1, False),
        (["decimal", MANY + MANY + "e-2000"], 1.5, False),
        (["fraction", [MANY, "9" * 120_000]], 1, False),
        (["range", ["3", "7" * 170_000, "9" * 80_000]], range(3), False),
        (["enum", ["\ud800", ["int", "1"]]], 1, False),
    ],
    ids=["time", "time in a set", "decimal", "small decimal", "fraction", "range", "surrogate"],
)
def test_every_form_has_a_verdict_at_once(wire: list[Any], expected: object, passed: bool) -> None:
    began = time.process_time()
    result = read_record("f()", (0, json.dumps({"value": wire}).encode()))
    assert result.wire is not None and shown(result.wire, 100).encode()
    for _ in range(3):
        assert judge(result, encode(expected), "module", 0.0, False).passed is passed
    assert time.process_time() - began < 6, "a slow machine takes 1 s, and a slow comparison 20"
