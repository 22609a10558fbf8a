"""Forms of values that only a hostile process writes, or that are slow to compare: each gets a verdict at once."""

import datetime
import json
import random
import time
from decimal import Decimal
from typing import Any

import pytest

from coterie.tools.sandbox.inside.plain import encode
from coterie.tools.sandbox.results import format_value, judge, read_record, same

MANY = "7" * 120_000
LONG = [f"{random.Random(seed).getrandbits(2_000_000):x}" for seed in range(2)]
"""Integers without a pattern: with one, a fraction of them is made in no time."""
ZONED = datetime.time(4, 23, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("wire", "expected", "passed"),
    [
        (["time", ["T04:23", "0"]], ZONED, True),
        (["set", [["time", ["T04:23", "0"]]]], {1}, False),
        (["decimal", MANY + MANY], 1, False),
        (["decimal", MANY + MANY + "e-2000"], 1.5, False),
        (["fraction", LONG], 1.5, False),
        (["range", ["3", LONG[0] * 2, LONG[1]]], range(3), False),
        (["enum", ["\ud800", ["int", "1"]]], 1, False),
    ],
    ids=["time", "time in a set", "decimal", "small decimal", "fraction", "range", "surrogate"],
)
def test_every_form_has_a_verdict_at_once(wire: list[Any], expected: object, passed: bool) -> None:
    began = time.process_time()
    result = read_record("f()", (0, json.dumps({"value": wire}).encode()))
    assert result.wire is not None and format_value(result.wire, 100).encode()
    for _ in range(3):
        assert judge(result, encode(expected), "module", 1e-6, False).passed is passed
    assert time.process_time() - began < 6, "a slow machine takes 1 s, and a slow comparison 20"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("1", "1." + "0" * 3000, True),
        ("1" + "0" * 3000, "1e3000", True),
        ("3" * 3000, "3" * 3000 + ".0", True),
        ("3" * 3000, "3" * 2999 + "4", False),
    ],
)
def test_decimals_are_equal_however_they_are_written(one: str, other: str, equal: bool) -> None:
    wires = encode(Decimal(one)), encode(Decimal(other))
    assert same(*wires) is same(*reversed(wires)) is equal
