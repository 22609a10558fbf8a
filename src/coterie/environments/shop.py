"""The environment ``shop``: random errands in a small shop (``tools.actions.shop``), for a planner and a grounder.

A script writes and runs the plan of each errand, so the right results are known. A hash of the wish without its price
decides the split.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count as numbers
from itertools import islice
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.environments.answers import GRADER
from coterie.environments.plan_domains import Domain, Form
from coterie.environments.plan_ground import PlanGround, gold, step_tasks, whole_task
from coterie.environments.protocol import Shared
from coterie.environments.settings import EnvironmentSettings, split_of_key
from coterie.record.tree import Secret, Task
from coterie.record.turn import digest
from coterie.tools.actions.executors import Executed, Failed
from coterie.tools.actions.grammar import Action, parse
from coterie.tools.actions.shop import BUY, Session, Shop, ShopExecutor, Wish, act, reward, wish

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
        session = executor.session
        visit = json.dumps([session.opened, session.chosen, session.bought])
        return Executed({**result.values, VISIT: visit}, result.answer, result.error)

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Score an errand by the reward of the visit, and a single step by its result."""
        if "history" in task.public:
            return super().score(task, values, answer)
        session = _session(values)
        target = _wish(json.loads(task.secrets[WISH].reveal(GRADER)))
        return reward(self.shop, session, target), {"bought": float(session.bought)}


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

    def tasks(self, split: Split, count: int, seed: int, after: Sequence[int] = ()) -> list[Task]:
        """Return errands of a split. Training tasks of the form ``iterative`` are one step of each errand.

        Training errands repeat, with other steps, when the shop has no more.
        """
        if split == "heldout":
            return [_task(row) for row in errands(self.items, split, seed, count)]
        rows = errands(self.items, split, seed, sum(after) + count)
        start = sum(min(one, len(rows)) for one in after)
        places = range(start, start + min(count, len(rows)))
        repeats = [(rows[place % len(rows)], place // len(rows)) for place in places]
        if self.form == "onetime":
            return [_task(row) for row, _ in repeats]
        return [_one_of(step_tasks(row), row, again) for row, again in repeats]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Return held-out tasks; single steps in the form ``iterative``, without the final stop."""
        rows = errands(self.items, "heldout", seed, count)
        if self.form == "onetime":
            return [_task(row) for row in rows]
        return [one for row in rows for one in step_tasks(row) if not gold(one).done]


class Errand(PlanRow):
    """A wish, with a plan that fulfills it."""

    wish: Wish


def errands(items: int, split: Split, seed: int, count: int) -> list[Errand]:
    """Return the first ``count`` errands of a split, or fewer if the shop has no more."""
    result, more = _drawing(items, split, seed)
    result += islice(more, max(0, count - len(result)))
    return result[:count]


@cache
def _drawing(items: int, split: Split, seed: int) -> tuple[list[Errand], Iterator[Errand]]:
    return [], _draw(items, split, seed)


def _draw(items: int, split: Split, seed: int) -> Iterator[Errand]:
    shop, seen, misses = Shop.generate(0, items), set[str](), 0
    for number in numbers():
        target = wish(shop, int(digest("errand", seed, number)[:12], 16))
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
    like, options = " ".join(target.attributes), [" ".join(one) for one in target.options]
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
    if reward(shop, session, target) < 1:
        return None
    fields = {"question": target.instruction, "answer": steps[-1].result, "domain": "shop"}
    return Errand.model_validate({"id": name, **fields, "steps": steps, "wish": target})


def _task(row: Errand) -> Task:
    task = whole_task(row)
    w = row.wish
    fields = json.dumps([w.kind, w.department, w.attributes, w.options, w.cents])
    secret = Secret(fields, name=WISH, readers=frozenset({GRADER}))
    return Task(task.id, task.public, {**task.secrets, WISH: secret})


def _one_of(steps: Sequence[Task], row: Errand, again: int) -> Task:
    """Return the step of an errand to train on at its repetition ``again``."""
    return steps[(int(digest("step", row.id)[:12], 16) + again) % len(steps)]


def _session(values: Mapping[str, str]) -> Session:
    if VISIT not in values:
        return Session()
    opened, chosen, bought = json.loads(values[VISIT])
    return Session(opened, _pairs(chosen), bought)


def _wish(fields: Sequence[Any]) -> Wish:
    kind, department, attributes, options, cents = fields
    return Wish(kind, department, tuple(attributes), _pairs(options), cents)


def _pairs(pairs: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in pairs)
