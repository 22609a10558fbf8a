"""Plain values: how they are written, and when two of them are the same."""

import json
import random
import time as clock
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import pytest

from coterie.tools.sandbox.inside.plain import NotPlain, TooLarge, check, decode, encode
from coterie.tools.sandbox.results import equal, format_value, judge, read_record, same


class Level(IntEnum):
    high = 2


class Colour(Enum):
    red = "red"


EAST = timezone(timedelta(hours=2))

PLAIN = [
    None, True, 0, -(10**30), 10**5000, 1.5, float("inf"), -0.0, 1 + 2j, "a\ud800\0", b"\xff", [1, [2]], (1,), {},
    {1: "a", "b": (2,)}, {1, "a"}, frozenset({(1, 2)}), bytearray(b"a"), range(3), range(9, 1, -2), range(10**30),
    Decimal("1.50"), Decimal("-Infinity"), Decimal("1E+999999"), Fraction(-3, 7), deque([1, 2]), date(2024, 2, 29),
    datetime(2024, 1, 2, 3, 4, 5, 6), time(1, 2), timedelta(days=-3, microseconds=1),
    datetime(2024, 1, 2, tzinfo=UTC), time(1, tzinfo=timezone(timedelta(hours=-5, seconds=1))),
]  # fmt: skip


def test_plain_values_come_back_as_they_were_and_subclasses_as_what_they_hold() -> None:
    for value in PLAIN:
        wire = encode(value)
        check(wire)
        back = decode(wire)
        assert back == value and type(back) is type(value) and same(wire, encode(back)), wire[0]
    Pair = namedtuple("Pair", "a b")
    for value in (Counter("aab"), OrderedDict(a=2, b=1), defaultdict(int, a=2, b=1)):
        assert encode(value) == encode({"a": 2, "b": 1})
    assert encode(Pair(1, 2)) == encode((1, 2))
    assert encode(Level.high) == encode(2) and encode(Colour.red)[0] == "named"


def test_other_types_are_decoded_as_what_equals_no_plain_value() -> None:
    """Also as keys; iterators can be read once."""
    items = {"a": 1}.items()
    for value, held in (
        (map(str, "ab"), ["a", "b"]),
        (items, [("a", 1)]),
        (items.mapping.values(), [1]),
    ):
        back = decode(encode(value))
        assert back != held and not isinstance(back, list) and list(back) == held
        assert decode(encode({1: value}))[1] != held
    assert decode(encode(Colour.red)) != "red" and decode(encode({Colour.red: 1})) != {"red": 1}


def test_other_values_are_no_results() -> None:
    holds_itself: list[object] = []
    holds_itself.append(holds_itself)
    for value in (object(), lambda: 1, [1, [object()]], int, memoryview(b"a"), ..., holds_itself):
        with pytest.raises(NotPlain):
            encode(value)


@pytest.mark.parametrize(
    "wire",
    [1, [], ["int"], ["int", 1], ["int", "zz"], ["float", "0x1p99999"], ["bool", 1], ["list", "ab"],
     ["dict", [[["int", "1"]]]], ["object", "x"], ["bytes", "f"], ["complex", ["1"]], ["list", [None]]],
    ids=repr,
)  # fmt: skip
def test_what_is_no_plain_value_is_refused(wire: Any) -> None:
    with pytest.raises(NotPlain):
        check(wire)


@pytest.mark.parametrize(
    "one,other,by_type,by_value",
    [
        (1, 1.0, False, True), (1, True, False, True), ([1], (1,), False, False), ({1}, {1.0}, False, True),
        ({1: 2}, {True: 2.0}, False, True), ({1}, frozenset({1}), False, True), (0.0, -0.0, True, True),
        ({0.0}, {-0.0}, True, True), ("1", 1, False, False), (1j, 1j, True, True), (1 + 0j, 1, False, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True, True), ({"a": 1}, {"a": 1, "b": 2}, False, False),
        ([1, 2], [2, 1], False, False), (0.1 + 0.2, 0.3, False, False), (10**5000, 10**5000, True, True),
        (Decimal("1.50"), Decimal("1.5"), True, True), (Decimal(2), 2, False, True),
        (Decimal("1E+9999999"), 1, False, False),
        (Decimal("0.1"), 0.1, False, False), (Fraction(1, 2), 0.5, False, True), ({Decimal(1): 2}, {1: 2}, False, True),
        (range(0, 5, 2), range(0, 6, 2), True, True), (range(0), range(3, 3), True, True),
        (range(2), [0, 1], False, False),
        (deque([1]), deque([1], 5), True, True), (deque([1]), [1], False, False), (b"a", bytearray(b"a"), False, True),
        ({"a": 1}.keys(), {"a": 2}.keys(), True, True), ({"a": 1}.keys(), {"a"}, False, True),
        ({"a": [1]}.items(), {"a": [1]}.items(), True, True), (date(2024, 1, 2), datetime(2024, 1, 2), False, False),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 14, tzinfo=EAST), False, True),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 12), False, False),
        ([1, 2], [1, 3], False, False), ((1, "a"), (2, "a"), False, False),
        (time(1, 2), time(1, 2, 0), True, True), (timedelta(days=1), timedelta(hours=24), True, True),
        (frozenset({frozenset({1})}), {frozenset({True})}, False, True), ({(1, 1): 0}, {(1.0, True): 0}, False, True),
    ],
    ids=lambda value: value if isinstance(value, bool) else format_value(encode(value), 50),
)  # fmt: skip
def test_values_are_the_same_as_in_python(
    one: Any, other: Any, by_type: bool, by_value: bool
) -> None:
    assert same(encode(one), encode(other), strict=True) is by_type
    assert same(encode(one), encode(other)) is by_value
    assert equal(encode(one), encode(other)) is by_value is (one == other)


def test_values_that_python_never_calls_equal_are_compared_by_what_they_hold() -> None:
    """NaN, iterators and views of values differ from their likes in Python, and so in legacy mode."""
    nan, twice = float("nan"), "map(lambda x: 2 * x, [1, 2])"
    for one, other in [(nan, nan), ([nan], [nan]), (Decimal("sNaN"), nan), ({1: 2}.values(), [2])]:
        assert same(encode(one), encode(other)) and not equal(encode(one), encode(other))
    for text in ("(2 * x for x in (1, 2))", "filter(None, [0, 2, 4])", "reversed([4, 2])"):
        assert same(encode(eval(text)), encode(eval(twice)))
        assert same(encode(eval(text)), encode([2, 4]))
        assert not same(encode(eval(text)), encode([2, 4]), strict=True)
        assert not equal(encode(eval(text)), encode(eval(twice)))


def test_keys_that_collide_and_sets_in_sets_take_no_longer() -> None:
    """Multiples of the modulus of Python's hashes: a dictionary of so many takes minutes to make."""
    keys = [encode(n * (2**61 - 1)) for n in range(20_000)]
    began = clock.monotonic()
    pairs = [[key, ["none", None]] for key in keys]
    sets = [["frozenset", [key]] for key in keys]
    for wire in (["set", keys], ["dict", pairs], ["set", sets]):
        check(wire)
        assert same(wire, [wire[0], wire[1][::-1]]) and not same(wire, [wire[0], wire[1][1:]])
    deep = encode('"\\')
    for _ in range(50):
        deep = ["frozenset", [deep]]
    assert same(deep, deep) and not same(deep, ["frozenset", [deep]])
    assert clock.monotonic() - began < 20


def test_floats_may_differ_by_the_tolerance() -> None:
    assert same(encode([0.1 + 0.2, {"a": 1e9}]), encode([0.3, {"a": 1e9 + 1}]), 1e-6)
    assert not same(encode(1.0), encode(1.1), 1e-6)
    for expected, given, near in (
        (1 / 3, Fraction(1, 3), True), (3 + 4e-16, 3, True), (Decimal("0.5"), 0.5 + 1e-9, True),
        (1, 1 + 1e-9, False), (True, 1 + 1e-9, False), (10**9, 1e9 + 1, False), (1e9, 10**9 + 1, False),
        (1e9, 10**9, True), (Decimal(10**401), float("inf"), False), (float("inf"), float("-inf"), False),
    ):  # fmt: skip
        assert same(encode(expected), encode(given), 1e-6) is near, (expected, given)
    assert not same(encode(1 / 3), encode(Fraction(1, 3)), 1e-6, strict=True)
    assert not same(encode(10**5000), encode(1.5), 1e-6)


def test_a_value_without_end_is_too_large_at_once() -> None:
    def endless() -> Any:
        while True:
            yield 1

    bomb: list[Any] = [1]
    for _ in range(40):
        bomb = [bomb] * 10
    for value in (endless(), bomb):
        with pytest.raises(TooLarge):
            encode(value, 10_000)
    assert encode(range(10**30), 10_000) == ["range", ["0", f"{10**30:x}", "1"]]


def test_every_value_can_be_shown() -> None:
    odd = [
        10**5000, [10**5000], {10**5000: 1}, range(10**5000), Fraction(10**5000, 3), "\ud800", Decimal("sNaN"),
        ["a" * 10**6], Colour.red, set(), (1,), {1: {2}}, {}.keys(), deque([1]), b"a" * 10**6,
    ]  # fmt: skip
    for value in odd:
        assert 0 < len(format_value(encode(value), 60)) <= 60
    # only a forged result, or an odd subclass, is so
    unhashable = ["dict", [[["list", []], ["int", "1"]]]]
    check(unhashable)
    assert format_value(unhashable, 60) == "{[]: 1}" and same(unhashable, unhashable)
    assert format_value(encode({"a": [1, (2,), None]}), 60) == "{'a': [1, (2,), None]}"


MANY = "7" * 120_000
LONG = [f"{random.Random(seed).getrandbits(2_000_000):x}" for seed in range(2)]
"""Integers without a pattern: with one, a fraction of them is made in no time."""
ZONED = time(4, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wire", "expected", "passed"),
    [
        (["time", ["T04:23", "0"]], ZONED, True),
        (["set", [["time", ["T04:23", "0"]]]], {1}, False),
        (["decimal", MANY + MANY], 1, False),
        (["decimal", MANY + MANY + "e-2000"], 1.5, False),
        (["fraction", LONG], 1.5, False),
        (["range", ["3", LONG[0] * 2, LONG[1]]], range(3), False),
        (["named", ["\ud800", ["int", "1"]]], 1, False),
    ],
    ids=["time", "time in a set", "decimal", "small decimal", "fraction", "range", "surrogate"],
)
def test_every_form_has_a_verdict_at_once(wire: list[Any], expected: object, passed: bool) -> None:
    began = clock.process_time()
    result = read_record("f()", (0, json.dumps({"value": wire}).encode()))
    assert result.wire is not None and format_value(result.wire, 100).encode()
    for _ in range(3):
        assert judge(result, encode(expected), "module", 1e-6, False).passed is passed
    assert clock.process_time() - began < 6, "a slow machine takes 1 s, and a slow comparison 20"


def test_decimals_are_equal_however_they_are_written() -> None:
    long = "3" * 3000
    equal_ones = [("1", "1." + "0" * 3000), ("1" + "0" * 3000, "1e3000"), (long, long + ".0")]
    for one, other in (*equal_ones, (long, long[:-1] + "4")):
        wires = encode(Decimal(one)), encode(Decimal(other))
        assert same(*wires) is same(*reversed(wires)) is ((one, other) in equal_ones)
