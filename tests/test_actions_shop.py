"""The shop: what is drawn, how a visit goes, and what it is worth."""

import asyncio
import time

import pytest

from coterie.tools.actions.executors import Executed
from coterie.tools.actions.grammar import parse
from coterie.tools.actions.shop import Item, Session, Shop, ShopExecutor, Wish, reward, wish

SHOES = Item("B001", "Alder", "running shoes", "clothing", ("vegan", "wide fit", "waterproof"),
             (("colour", ("red", "navy blue")), ("size", ("9", "10"))), 4500)  # fmt: skip
OTHER = Item("B002", "Cove", "running shoes", "clothing", ("cushioned", "breathable"),
             (("colour", ("black",)), ("size", ("9",))), 9000)  # fmt: skip
JACKET = Item(
    "B003", "Juno", "rain jacket", "clothing", ("hooded", "vegan"), (("colour", ("red",)),), 3000
)
LAMP = Item("B004", "Istra", "desk lamp", "home", ("dimmable",), (), 2000)
SHOP = Shop((SHOES, OTHER, JACKET, LAMP))
WISH = Wish(
    "running shoes", "clothing", ("vegan", "wide fit"), (("colour", "red"), ("size", "10")), 5000
)


def ran(line: str, executor: ShopExecutor, values: dict[str, str] | None = None) -> Executed:
    parsed = parse(line)
    assert parsed.ok, parsed.problems
    return asyncio.run(executor.run(parsed.actions, values or {}))


def bought(line: str) -> float:
    executor = ShopExecutor(SHOP)
    assert ran(line, executor).error is None
    return reward(SHOP, executor.session, WISH)


PICK = "R1 = Search({}); R2 = Pick(R1, Query: {})"
BUY = "; R9 = Click(R2, Query: Buy Now)"


def test_a_visit_that_has_all_that_is_wanted_is_worth_1() -> None:
    line = (
        "R1 = Search(vegan running shoes); R2 = FeatureRetrieve(R1, Query: wide fit); "
        "R3 = Pick(R2, Query: vegan wide fit); R4 = Click(R3, Query: colour red); "
        "R5 = Click(R4, Query: size 10); R6 = Click(R5, Query: Buy Now)"
    )
    executor = ShopExecutor(SHOP)
    done = ran(line, executor)
    assert done.error is None
    assert done.values["R1"].splitlines()[0] == "[B001] Alder vegan wide fit running shoes | $45.00"
    assert "waterproof" in done.values["R2"] and "size: 9, 10" in done.values["R2"]
    assert (
        done.answer
        == "bought [B001] Alder vegan wide fit running shoes | $45.00 | colour: red, size: 10"
    )
    assert executor.session == Session("B001", (("colour", "red"), ("size", "10")), True)
    assert reward(SHOP, executor.session, WISH) == 1.0


def test_what_is_missing_is_taken_off_by_its_share() -> None:
    shoes = PICK.format("running shoes", "vegan wide fit")
    assert bought(shoes) == 0.0, "nothing was bought"
    assert bought(shoes + BUY) == pytest.approx(3 / 5), "no options"
    assert bought(shoes + "; R3 = Click(R2, Query: size 10)" + BUY) == pytest.approx(4 / 5)
    assert bought(PICK.format("running shoes", "cushioned") + BUY) == 0.0, (
        "too dear, and not as wanted"
    )
    assert bought(PICK.format("rain jacket", "red") + BUY) == pytest.approx(0.5 * 2 / 5), (
        "another kind"
    )
    assert bought(PICK.format("lamp", "desk lamp") + BUY) == 0.0, "another department"


def test_a_choice_replaces_the_one_before() -> None:
    executor = ShopExecutor(SHOP)
    ran(
        PICK.format("running shoes", "vegan")
        + "; R3 = Click(R2, Query: navy blue); R4 = Click(R2, Query: red)",
        executor,
    )
    assert executor.session.chosen == (("colour", "red"),)
    ran("R6 = Pick(R5, Query: cushioned)", executor, {"R5": OTHER.line})
    assert executor.session == Session("B002"), "another item has nothing chosen"


def test_a_visit_goes_on_from_its_session_and_values() -> None:
    first = ShopExecutor(SHOP)
    values = dict(ran(PICK.format("running shoes", "vegan"), first).values)
    second = ShopExecutor(SHOP, first.session)
    assert ran("R3 = Click(R2, Query: buy)", second, values).error is None
    assert second.session.bought and not first.session.bought


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("R1 = Search(zebra)", "nothing is found"),
        ("R1 = Click(R0, Query: red)", "R0 has no value"),
        ("R1 = Search(lamp); R2 = Click(R1, Query: red)", "no item is open"),
        (
            "R1 = Search(lamp); R2 = Pick(R1, Query: lamp); R3 = Click(R2, Query: purple)",
            "no such option",
        ),
        (
            "R1 = Search(lamp); R2 = Pick(R1, Query: lamp)" + BUY + "; R4 = Search(shoes)",
            "the visit is over",
        ),
        ("R1 = Pick(R7, Query: x)", "what it is given has no items"),
        ("R1 = Pick(R7)", "it is given no words"),
        ("R1 = Steal(R7)", "there is no such tool"),
    ],
)
def test_why_an_action_fails_is_told(line: str, why: str) -> None:
    done = ran(line, ShopExecutor(SHOP), {"R7": "[B999] nothing of ours"})
    assert done.answer is None and why in (done.error or "")


def test_a_shop_and_a_wish_are_those_of_their_seed() -> None:
    assert Shop.generate(3) == Shop.generate(3) != Shop.generate(4)
    shop = Shop.generate(3)
    assert wish(shop, 5) == wish(shop, 5)
    assert len({wish(shop, seed).instruction for seed in range(50)}) > 40
    assert len(shop.by_id) == len(shop.items) == 200


def test_every_wish_can_be_had() -> None:
    shop = Shop.generate(0)
    for seed in range(100):
        wanted = wish(shop, seed)
        sessions = [Session(item.id, wanted.options, True) for item in shop.items if set(wanted.options) <= {
            (name, value) for name, values in item.options for value in values}]  # fmt: skip
        assert max(reward(shop, one, wanted) for one in sessions) == 1.0
        assert all(part in wanted.instruction for part in (wanted.kind, *wanted.attributes))


def test_a_search_for_a_long_text_takes_no_time() -> None:
    executor = ShopExecutor(Shop.generate(0))
    start = time.process_time()
    ran(f"R1 = Search({'red shoes ' * 380})", executor)
    assert time.process_time() - start < 1
