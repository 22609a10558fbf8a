"""The environment ``shop``: errands in a small generated shop, for a planner and a grounder.

The shop is modeled on WebShop (Yao et al. 2022), without its items. ``Shop.generate(seed)`` has the items,
``sample_wish(shop, seed)`` returns the item to buy, ``act`` runs one action in a session (a frozen value) and returns
the next session, and ``reward`` compares the purchase with the wish. A script writes and runs the plan of each errand,
so the right results are known. A hash of the wish without its price decides the split.
"""

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from itertools import count as numbers
from typing import Any, Self

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.environments.plans.domains import Domain, Form
from coterie.environments.plans.plan_ground import PlanGround, gold, step_tasks, whole_task
from coterie.environments.protocol import Shared
from coterie.environments.qa_metrics import GRADER, grader_secret
from coterie.environments.settings import EnvironmentSettings, series, split_of_key
from coterie.record.tree import Task
from coterie.record.turn import digest
from coterie.tools.actions.executors import Executed, Executor, rank, word_f1, words_of
from coterie.tools.actions.expressions import Failed
from coterie.tools.actions.grammar import Action, parse

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
        return [items[index] for index in rank(words, [item.text for item in items])]


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


def sample_wish(shop: Shop, seed: int) -> Wish:
    """Sample a wish that the shop can satisfy; deterministic in the seed."""
    rng = random.Random(f"wish/{seed}")
    item = rng.choice(shop.items)
    attributes = tuple(sorted(rng.sample(item.attributes, rng.randint(1, 2))))
    options = tuple((name, rng.choice(values)) for name, values in item.options)
    # Both divisions round up, so that the price limit always admits the item.
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
    # Ids in the results that the action refers to.
    ids = [
        item_id
        for name in action.arguments[0].variables
        for item_id in _ID.findall(values.get(name, ""))
    ]
    items = [shop.by_id[item_id] for item_id in dict.fromkeys(ids) if item_id in shop.by_id]
    if not items:
        raise Failed("what it is given has no items")
    # If no item matches the words, the order of the results counts.
    best = shop.search(words, items) or items
    if action.tool == "FeatureRetrieve":
        return session, "\n".join(item.text for item in best[:MAX_DETAILS])
    # Opening an item discards the options chosen for another one.
    return Session(best[0].id), best[0].text


class ShopExecutor(Executor):
    """Executor of the domain ``shop``. ``session`` is the state after the last action, even after an error."""

    def __init__(self, shop: Shop, session: Session | None = None) -> None:
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
    # An option may be given with or without its name: ``red`` or ``color red``.
    scores = [
        max(word_f1(words, value), word_f1(words, f"{name} {value}")) for name, value in options
    ]
    best = max(range(len(options)), key=lambda index: (scores[index], -index), default=None)
    if best is None or not scores[best]:
        raise Failed(f"the open item has no such option; {BUY} buys it")
    name, value = options[best]
    # A later choice for the same option replaces the earlier one.
    rest = tuple(choice for choice in session.chosen if choice[0] != name)
    return replace(session, chosen=(*rest, (name, value))), f"chosen {name}: {value}"


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


# -- environment --------------------------------------------------------------------------------

VISIT = "visit"
"""Key of the visit's state among the values of actions. No action can name it."""
WISH = "wish"
TRIES = 100
"""Maximum number of wishes tried for each errand, since a shop has a limited number of errands."""


class ShopSettings(EnvironmentSettings):
    """Settings of the shop."""

    form: Form = key(
        "iterative",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Maximum turns of both agents in the form `iterative`.", ge=2)
    items: int = key(200, "Number of items in the shop.", ge=50, le=2000)


class Visits(Domain):
    """A shop as a domain: actions change the state of a visit."""

    name = "shop"
    metric = "reward"

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        executor = ShopExecutor(self.shop, _session(values))
        result = await executor.run(actions, values)
        # Each message has a new executor, so the visit is stored among the values.
        visit = json.dumps(astuple(executor.session))
        return replace(result, values={**result.values, VISIT: visit})

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Score an errand by the reward of the visit, and a single step by its result."""
        if "history" in task.public:
            return super().score(task, values, answer)
        session, wish = _session(values), Wish(*_load(task.secrets[WISH].reveal(GRADER)))
        return reward(self.shop, session, wish), {"bought": float(session.bought)}


class ShopErrands(PlanGround):
    """Planner and grounder in the shop."""

    name = "shop"
    settings_type = ShopSettings
    row_types = ()

    def __init__(self, settings: ShopSettings | None = None) -> None:
        settings = settings or ShopSettings()
        self.items = settings.items
        self.form = settings.form
        self.max_turns = 2 if settings.form == "onetime" else settings.turns
        self.domain = Visits(Shop.generate(0, settings.items))
        self.needs, self.metric = self.domain.needs, self.domain.metric

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        """Return errands of a split. Training tasks of the form ``iterative`` are one step of each errand.

        Training errands repeat, with other steps, when the shop has no more.
        """
        if split == "heldout":
            return [_task(row) for row in errands(self.items, split, seed)[:count]]
        rows = errands(self.items, split, seed)[: sum(previous_counts) + count]
        # No draw has more tasks than there are errands.
        start = sum(min(count_, len(rows)) for count_ in previous_counts)
        numbers = range(start, start + min(count, len(rows)))
        # Each repetition of an errand trains another step of it.
        repeats = [(rows[number % len(rows)], number // len(rows)) for number in numbers]
        if self.form == "onetime":
            return [_task(row) for row, _ in repeats]
        return [_one_of(step_tasks(row), row, repeat) for row, repeat in repeats]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Return held-out tasks; single steps in the form ``iterative``, without the final stop."""
        rows = errands(self.items, "heldout", seed)[:count]
        if self.form == "onetime":
            return [_task(row) for row in rows]
        return [task for row in rows for task in step_tasks(row) if not gold(task).done]


class Errand(PlanRow):
    """A wish, with a plan that fulfills it."""

    wish: Wish


@series
def errands(items: int, split: Split, seed: int) -> Iterator[Errand]:
    """Yield the errands of a split, until the shop has no more."""
    shop, seen, misses = Shop.generate(0, items), set[str](), 0
    for number in numbers():
        target = sample_wish(shop, int(digest("errand", seed, number)[:12], 16))
        of = canonical_key(target)
        misses += 1
        if misses > TRIES:
            return
        if split_of_key(of) == split and of not in seen:
            seen.add(of)
            errand = _errand(shop, target, f"{split}-{seed}-{number}")
            if errand is not None:
                misses = 0
                yield errand


def canonical_key(target: Wish) -> str:
    """Return the identity of an errand: the wish without its price."""
    return f"{target.kind}|{','.join(target.attributes)}|{','.join(map(':'.join, target.options))}"


def plan(target: Wish) -> list[tuple[str, str]]:
    """Return the subgoals and actions of the simple plan: search, open the best match, choose each option, buy."""
    like, options = " ".join(target.attributes), [" ".join(option) for option in target.options]
    chosen = " ".join(value for _, value in target.options)
    steps = [
        (f"Search for {like} {target.kind}", f"Search({like} {target.kind})"),
        (f"Open {target.kind} that fits best: {like} {chosen}".rstrip(),
         f"Pick(R1, Query: {like} {chosen} {target.kind})"),
    ]  # fmt: skip
    for number, option in enumerate(options, 2):
        steps.append((f"Choose the {option}", f"Click(R{number}, Query: {option})"))
    steps.append(("Buy it", f"Click(R{len(steps)}, Query: {BUY})"))
    return [(subgoal, f"R{n} = {call}") for n, (subgoal, call) in enumerate(steps, 1)]


def _errand(shop: Shop, target: Wish, name: str) -> Errand | None:
    """Return a wish with its plan, or ``None`` if the plan does not fulfill it."""
    session, values, steps = Session(), dict[str, str](), []
    for subgoal, line in plan(target):
        (action,) = parse(line).actions
        try:
            session, values[action.result] = act(shop, session, action, values)
        except Failed:
            return None
        result = values[action.result]
        steps.append(PlanStep(subgoal=subgoal, actions=(line,), result=result))
    # The simple plan may open a similar item. Such wishes are left out.
    if reward(shop, session, target) < 1:
        return None
    fields = {"question": target.instruction, "answer": steps[-1].result, "domain": "shop"}
    return Errand.model_validate({"id": name, **fields, "steps": steps, "wish": target})


def _task(row: Errand) -> Task:
    task = whole_task(row)
    wish = grader_secret(WISH, json.dumps(astuple(row.wish)))
    return replace(task, secrets={**task.secrets, **wish})


def _one_of(steps: Sequence[Task], row: Errand, repeat: int) -> Task:
    """Return the step of an errand to train on at its repetition ``repeat``."""
    return steps[(int(digest("step", row.id)[:12], 16) + repeat) % len(steps)]


def _session(values: Mapping[str, str]) -> Session:
    return Session(*_load(values[VISIT])) if VISIT in values else Session()


def _load(text: str) -> Any:
    """Parse JSON with tuples for lists."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return tuples(json.loads(text))
