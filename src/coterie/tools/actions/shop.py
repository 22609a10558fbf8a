"""Small shop generated from a seed, and an executor for it. Modeled on WebShop (Yao et al. 2022), without its items.

``Shop.generate(seed)`` has the items, ``wish(shop, seed)`` returns the item to buy, ``act`` runs one action in a
session (a frozen value) and returns the next session, and ``reward`` compares the purchase with the wish. Results show
the ids of items (``B017``), by which later actions refer to them.
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Self

from coterie.tools.actions.executors import Executor, Failed, rank, word_f1, words_of
from coterie.tools.actions.grammar import Action

MAX_HITS = 10
MAX_DETAILS = 3
"""Items whose features one action lists."""
BUY = "Buy Now"
_ID = re.compile(r"\bB\d{3,6}\b")


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of item, with the possible properties of its items."""

    name: str
    department: str
    attributes: Sequence[str]
    options: Mapping[str, Sequence[str]]
    prices: tuple[int, int]
    """Lowest and highest price, in whole dollars."""


@cache
def kinds() -> tuple[Kind, ...]:
    lines = (files("coterie") / "assets" / "shop.jsonl").read_text("utf-8").rstrip("\n").split("\n")
    return tuple(Kind(**json.loads(line)) for line in lines)


BRANDS = "Alder Brightwater Cove Dunmore Elmfield Fenwick Granby Hollin Istra Juno"


@dataclass(frozen=True, slots=True)
class Item:
    """Item of the shop."""

    id: str
    brand: str
    kind: str
    department: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    cents: int

    @property
    def title(self) -> str:
        return f"{self.brand} {' '.join(self.attributes[:2])} {self.kind}"

    @property
    def text(self) -> str:
        choices = "; ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return f"{self.line}; features: {', '.join(self.attributes)}; {choices}"

    @property
    def line(self) -> str:
        return f"[{self.id}] {self.title} | {dollars(self.cents)}"


@dataclass(frozen=True)
class Shop:
    """Items of a shop."""

    items: tuple[Item, ...]

    @classmethod
    def generate(cls, seed: int, count: int = 200) -> Self:
        """Generate a shop of ``count`` items; deterministic in the seed."""
        rng = random.Random(f"shop/{seed}")
        return cls(tuple(_item(rng, number) for number in range(count)))

    @cached_property
    def by_id(self) -> Mapping[str, Item]:
        return {item.id: item for item in self.items}

    def search(self, words: str, among: Sequence[Item] | None = None) -> list[Item]:
        """Return the items of the shop (or of ``among``) that match the words, best first."""
        items = self.items if among is None else among
        return [items[at] for at in rank(words, [item.text for item in items])]


@dataclass(frozen=True, slots=True)
class Wish:
    """Item to buy."""

    kind: str
    department: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    cents: int

    @property
    def instruction(self) -> str:
        options = "".join(f", {name} {value}" for name, value in self.options)
        return (
            f"I am looking for {self.kind} that is {' and '.join(self.attributes)}{options}, for at most "
            f"{dollars(self.cents)}."
        )


@dataclass(frozen=True, slots=True)
class Session:
    """State of a visit."""

    opened: str = ""
    chosen: tuple[tuple[str, str], ...] = ()
    bought: bool = False


def wish(shop: Shop, seed: int) -> Wish:
    """Sample a wish that the shop can satisfy; deterministic in the seed."""
    rng = random.Random(f"wish/{seed}")
    item = rng.choice(shop.items)
    attributes = tuple(sorted(rng.sample(item.attributes, rng.randint(1, 2))))
    options = tuple((name, rng.choice(values)) for name, values in item.options)
    dearer = -(-item.cents * rng.choice((105, 120, 150)) // 100)
    return Wish(item.kind, item.department, attributes, options, -(-dearer // 500) * 500)


def reward(shop: Shop, session: Session, goal: Wish) -> float:
    """Return the fraction of the wish (attributes, options, price) that the purchase satisfies; 0 without a purchase.

    The reward of Yao et al. 2022, section 3, with a simpler factor for the kind: 1 for the same kind, one half for
    another kind of its department, 0 for any other.
    """
    if not session.bought:
        return 0.0
    item = shop.by_id[session.opened]
    factor = 1.0 if item.kind == goal.kind else 0.5 if item.department == goal.department else 0.0
    matches = len(set(goal.attributes) & set(item.attributes))
    matches += len(set(goal.options) & set(session.chosen))
    matches += item.cents <= goal.cents
    return factor * matches / (len(goal.attributes) + len(goal.options) + 1)


def act(
    shop: Shop, session: Session, action: Action, values: Mapping[str, str]
) -> tuple[Session, str]:
    """Run one action; return the next session and the action's value. Raises :class:`Failed`."""
    if session.bought:
        raise Failed("the visit is over: something is bought")
    if action.tool == "Search":
        hits = shop.search(action.rest(0))[:MAX_HITS]
        if not hits:
            raise Failed("nothing is found")
        return session, "\n".join(item.line for item in hits)
    if action.tool not in ("FeatureRetrieve", "Pick", "Click"):
        raise Failed("there is no such tool")
    words = action.rest(1).strip()
    if not words:
        raise Failed("it is given no words")
    if action.tool == "Click":
        return _click(shop, session, words)
    ids = [
        one for name in action.arguments[0].variables for one in _ID.findall(values.get(name, ""))
    ]
    items = [shop.by_id[one] for one in dict.fromkeys(ids) if one in shop.by_id]
    if not items:
        raise Failed("what it is given has no items")
    best = shop.search(words, items) or items
    if action.tool == "FeatureRetrieve":
        return session, "\n".join(item.text for item in best[:MAX_DETAILS])
    return Session(best[0].id), best[0].text


class ShopExecutor(Executor):
    """Executor of the domain ``shop``. ``session`` is the state after the last action, even after an error."""

    def __init__(self, shop: Shop, session: Session | None = None) -> None:
        super().__init__()
        self.shop, self.session = shop, session or Session()

    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        self.session, value = act(self.shop, self.session, action, values)
        return value


def _click(shop: Shop, session: Session, words: str) -> tuple[Session, str]:
    if not session.opened:
        raise Failed("no item is open: Pick one first")
    if words_of(words)[:1] == ["buy"]:
        item = shop.by_id[session.opened]
        chosen = ", ".join(f"{name}: {value}" for name, value in session.chosen)
        return replace(session, bought=True), f"bought {item.line}" + f" | {chosen}" * bool(chosen)
    options = [
        (name, value) for name, values in shop.by_id[session.opened].options for value in values
    ]
    scores = [
        max(word_f1(words, value), word_f1(words, f"{name} {value}")) for name, value in options
    ]
    best = max(range(len(options)), key=lambda at: (scores[at], -at), default=None)
    if best is None or not scores[best]:
        raise Failed(f"the open item has no such option; {BUY} buys it")
    name, value = options[best]
    others = tuple(one for one in session.chosen if one[0] != name)
    return replace(session, chosen=(*others, (name, value))), f"chosen {name}: {value}"


def _item(rng: random.Random, number: int) -> Item:
    kind = rng.choice(kinds())
    low, high = kind.prices
    options = tuple(
        (name, tuple(sorted(rng.sample(values, rng.randint(2, len(values))), key=values.index)))
        for name, values in kind.options.items()
    )
    attributes = tuple(rng.sample(kind.attributes, rng.randint(2, 4)))
    cents = rng.randint(low, high) * 100 + rng.choice((0, 49, 95, 99))
    id_, brand = f"B{number:03d}", rng.choice(BRANDS.split())
    return Item(id_, brand, kind.name, kind.department, attributes, options, cents)


def dollars(cents: int) -> str:
    return f"${cents // 100}.{cents % 100:02d}"
