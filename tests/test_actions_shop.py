"""The shop: items, visits and their rewards."""

import asyncio

import pytest

from coterie.environments.shop import Item, Session, Shop, ShopExecutor, Wish, reward, sample_wish
from coterie.tools.actions.executors import Executed
from coterie.tools.actions.grammar import parse

SHOES = Item("B001", "Alder", "running shoes", "clothing", ("vegan", "wide fit", "waterproof"),
             (("colour", ("red", "navy blue")), ("size", ("9", "10"))), 4500)  # fmt: skip
OTHER = Item("B002", "Cove", "running shoes", "clothing", ("cushioned", "breathable"),
             (("colour", ("black",)), ("size", ("9",))), 9000)  # fmt: skip
RED = (("colour", ("red",)),)
JACKET = Item("B003", "Juno", "rain jacket", "clothing", ("hooded", "vegan"), RED, 3000)
LAMP = Item("B004", "Istra", "desk lamp", "home", ("dimmable",), (), 2000)
SHOP = Shop((SHOES, OTHER, JACKET, LAMP))
CHOSEN = ("colour", "red"), ("size", "10")
WISH = Wish("running shoes", "clothing", ("vegan", "wide fit"), CHOSEN, 5000)
PICK = "R1 = Search({}); R2 = Pick(R1, Query: {})"
BUY = "; R9 = Click(R2, Query: Buy Now)"
PICK_SHOES, PICK_LAMP = PICK.format("running shoes", "vegan wide fit"), PICK.format("lamp", "lamp")


def run(line: str, executor: ShopExecutor, values: dict[str, str] | None = None) -> Executed:
    return asyncio.run(executor.run(parse(line).actions, values or {}))


def test_a_visit_with_all_wishes_is_worth_1() -> None:
    line = (
        "R1 = Search(vegan running shoes); R2 = FeatureRetrieve(R1, Query: wide fit); "
        "R3 = Pick(R2, Query: vegan wide fit); R4 = Click(R3, Query: colour red); "
        "R5 = Click(R4, Query: size 10); R6 = Click(R5, Query: Buy Now)"
    )
    executor = ShopExecutor(SHOP)
    result = run(line, executor)
    assert result.error is None
    title = "[B001] Alder vegan wide fit running shoes | $45.00"
    assert result.values["R1"].splitlines()[0] == title
    assert "waterproof" in result.values["R2"] and "size: 9, 10" in result.values["R2"]
    assert result.answer == f"bought {title} | colour: red, size: 10"
    assert executor.session == Session("B001", CHOSEN, True)
    assert reward(SHOP, executor.session, WISH) == 1.0


@pytest.mark.parametrize(
    ("line", "worth"),
    [
        (PICK_SHOES, 0),
        (PICK_SHOES + BUY, 3 / 5),
        (PICK_SHOES + "; R3 = Click(R2, Query: size 10)" + BUY, 4 / 5),
        (PICK.format("running shoes", "cushioned") + BUY, 0),
        (PICK.format("rain jacket", "red") + BUY, 0.5 * 2 / 5),
        (PICK_LAMP + BUY, 0),
    ],
)
def test_a_reward_is_the_share_of_the_wish(line: str, worth: float) -> None:
    executor = ShopExecutor(SHOP)
    assert run(line, executor).error is None
    assert reward(SHOP, executor.session, WISH) == pytest.approx(worth)


def test_a_choice_replaces_the_one_before_and_a_visit_goes_on_from_its_session() -> None:
    first = ShopExecutor(SHOP)
    line = "; R3 = Click(R2, Query: navy blue); R4 = Click(R2, Query: red)"
    values = dict(run(PICK_SHOES + line, first).values)
    assert first.session.chosen == (("colour", "red"),)
    second = ShopExecutor(SHOP, first.session)
    assert run("R5 = Click(R2, Query: buy)", second, values).error is None
    assert second.session.bought and not first.session.bought
    run("R6 = Pick(R5, Query: cushioned)", first, {"R5": OTHER.line})
    assert first.session == Session("B002"), "another item has nothing chosen"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("R1 = Search(zebra)", "nothing is found"),
        ("R1 = Click(R0, Query: red)", "R0 has no value"),
        ("R1 = Search(lamp); R2 = Click(R1, Query: red)", "no item is open"),
        (PICK_LAMP + "; R3 = Click(R2, Query: purple)", "no such option"),
        (PICK_LAMP + BUY + "; R4 = Search(shoes)", "the visit is over"),
        ("R1 = Pick(R7, Query: x)", "what it is given has no items"),
        ("R1 = Pick(R7)", "it is given no words"),
    ],
)
def test_reasons_of_failures(line: str, why: str) -> None:
    result = run(line, ShopExecutor(SHOP), {"R7": "[B999] nothing of ours"})
    assert result.answer is None and why in (result.error or "")


def test_every_wish_can_be_had_and_follows_from_its_seed() -> None:
    shop = Shop.generate(3)
    assert shop == Shop.generate(3) != Shop.generate(4) and len(shop.by_id) == 200
    wishes = [sample_wish(shop, seed) for seed in range(100)]
    assert wishes[5] == sample_wish(shop, 5) and len({one.instruction for one in wishes}) > 80
    for wanted in wishes:
        sessions = [Session(item.id, wanted.options, True) for item in shop.items if set(wanted.options) <= {
            (name, value) for name, values in item.options for value in values}]  # fmt: skip
        assert max(reward(shop, one, wanted) for one in sessions) == 1.0
