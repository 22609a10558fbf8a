"""The environment ``shop``: errands in a small shop, drawn from a seed, for a planner and a grounder.

Items, visits and rewards are those of ``tools.actions.shop``. An errand is a wish that a plain plan fulfils; that plan
and its actions are made by script and carried out, so what is right is known. What is disjoint between the splits: what
is wished for, whatever it may cost. A hash of it decides the split.
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
from coterie.environments.gold import GRADER, gold_answer
from coterie.environments.micro_splits import split_of_key
from coterie.environments.plan_ground.environment import PlanGround, gold, step_tasks, whole_task
from coterie.environments.plan_ground.form import Form
from coterie.environments.protocol import Shared
from coterie.environments.settings import EnvironmentSettings
from coterie.tools.actions.executor import Executed, Failed
from coterie.tools.actions.grammar import Action, parse
from coterie.tools.actions.shop import BUY, Session, Shop, ShopExecutor, Wish, act, reward, wish
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.turn import digest

VISIT = "visit"
"""Where a visit stands, kept with the values of actions. No action can name it."""
WISH = "wish"
TRIES = 100
"""Wishes that are looked at for each errand, at most: a shop has only so many."""


class ShopSettings(EnvironmentSettings):
    """Settings of the shop."""

    form: Form = key(
        "iterative",
        "`onetime`: a whole plan, then all actions; `iterative`: one subgoal and its actions at a time.",
    )
    turns: int = key(16, "Most turns of both together, in the form `iterative`.", ge=2)
    items: int = key(200, "Items that the shop has.", ge=50, le=2000)


class Visits:
    """A shop as a domain: actions change where a visit stands."""

    name = "shop"
    needs: tuple[type, ...] = ()
    metric = "reward"
    by_steps = False

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def run(
        self, actions: Sequence[Action], values: Mapping[str, str], task: Task, shared: Shared
    ) -> Executed:
        executor = ShopExecutor(self.shop, _session(values))
        done = await executor.run(actions, values)
        now = executor.session
        told = json.dumps([now.opened, now.chosen, now.bought])
        return Executed({**done.values, VISIT: told}, done.answer, done.error)

    def same(self, gold: str, given: str) -> bool:
        return gold == given

    def score(
        self, task: Task, values: Mapping[str, str], answer: str | None
    ) -> tuple[float | None, Mapping[str, float]]:
        """Of an errand the reward of the visit; of a single step, whether it gave what the right one gives."""
        if "history" in task.public:
            return float(answer is not None and self.same(gold_answer(task), answer)), {}
        session = _session(values)
        wanted = _wish(json.loads(task.secrets[WISH].reveal(GRADER)))
        return reward(self.shop, session, wanted), {"bought": float(session.bought)}


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

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Errands of one split; training tasks of the form ``iterative`` are a step of each errand.

        Training errands begin anew, with other steps, when the shop has no more.
        """
        if split == "heldout":
            return [_task(row) for row in errands(self.items, split, seed, count)]
        rows = errands(self.items, split, seed, sum(drawn) + count)
        start = sum(min(one, len(rows)) for one in drawn)
        places = range(start, start + min(count, len(rows)))
        turns = [(rows[place % len(rows)], place // len(rows)) for place in places]
        if self.form == "onetime":
            return [_task(row) for row, _ in turns]
        return [_one_of(step_tasks(row), row, again) for row, again in turns]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Held-out tasks; in the form ``iterative`` single steps, but for the last one of each."""
        rows = errands(self.items, "heldout", seed, count)
        if self.form == "onetime":
            return [_task(row) for row in rows]
        return [one for row in rows for one in step_tasks(row) if not gold(one).done]


class Errand(PlanRow):
    """A wish, with a plan that fulfils it."""

    wish: Wish


def errands(items: int, split: Split, seed: int, count: int) -> list[Errand]:
    """The first errands of a split; a larger count extends a smaller one. Fewer, if the shop has no more."""
    found, left = _drawing(items, split, seed)
    found += islice(left, max(0, count - len(found)))
    return found[:count]


@cache
def _drawing(items: int, split: Split, seed: int) -> tuple[list[Errand], Iterator[Errand]]:
    return [], _draw(items, split, seed)


def _draw(items: int, split: Split, seed: int) -> Iterator[Errand]:
    shop, seen, misses = Shop.generate(0, items), set[str](), 0
    for number in numbers():
        wanted = wish(shop, int(digest("errand", seed, number)[:12], 16))
        of = canonical_key(wanted)
        misses += 1
        if misses > TRIES:
            return
        if split_of_key(of) == split and of not in seen:
            seen.add(of)
            made = _errand(shop, wanted, f"{split}-{seed}-{number}")
            if made is not None:
                misses = 0
                yield made


def canonical_key(wanted: Wish) -> str:
    """What makes two errands the same across splits: all that is wished for but the price."""
    return f"{wanted.kind}|{','.join(wanted.attributes)}|{','.join(map(':'.join, wanted.options))}"


def plan(wanted: Wish) -> list[tuple[str, str]]:
    """The subgoals and actions of the plain plan: search, open what fits best, choose each option, buy."""
    like, options = " ".join(wanted.attributes), [" ".join(one) for one in wanted.options]
    chosen = " ".join(value for _, value in wanted.options)
    found = [
        (f"Search for {like} {wanted.kind}", f"Search({like} {wanted.kind})"),
        (f"Open {wanted.kind} that fits best: {like} {chosen}".rstrip(),
         f"Pick(R1, Query: {like} {chosen} {wanted.kind})"),
    ]  # fmt: skip
    for number, option in enumerate(options, 2):
        found.append((f"Choose the {option}", f"Click(R{number}, Query: {option})"))
    found.append(("Buy it", f"Click(R{len(found)}, Query: {BUY})"))
    return [(subgoal, f"R{n} = {call}") for n, (subgoal, call) in enumerate(found, 1)]


def _errand(shop: Shop, wanted: Wish, name: str) -> Errand | None:
    """A wish with its plan; ``None`` if the plan does not fulfil it."""
    session, values, steps = Session(), dict[str, str](), []
    for subgoal, line in plan(wanted):
        (action,) = parse(line).actions
        try:
            session, values[action.result] = act(shop, session, action, values)
        except Failed:
            return None
        result = values[action.result]
        steps.append(PlanStep(subgoal=subgoal, actions=(line,), result=result))
    if reward(shop, session, wanted) < 1:
        return None
    told = {"question": wanted.instruction, "answer": steps[-1].result, "domain": "shop"}
    return Errand.model_validate({"id": name, **told, "steps": steps, "wish": wanted})


def _task(row: Errand) -> Task:
    task = whole_task(row)
    w = row.wish
    told = json.dumps([w.kind, w.department, w.attributes, w.options, w.cents])
    secret = Secret(told, name=WISH, readers=frozenset({GRADER}))
    return Task(task.id, task.public, {**task.secrets, WISH: secret})


def _one_of(steps: Sequence[Task], row: Errand, again: int) -> Task:
    """Which of an errand's steps is trained on when it comes for the first time, or again."""
    return steps[(int(digest("step", row.id)[:12], 16) + again) % len(steps)]


def _session(values: Mapping[str, str]) -> Session:
    if VISIT not in values:
        return Session()
    opened, chosen, bought = json.loads(values[VISIT])
    return Session(opened, _pairs(chosen), bought)


def _wish(told: Sequence[Any]) -> Wish:
    kind, department, attributes, options, cents = told
    return Wish(kind, department, tuple(attributes), _pairs(options), cents)


def _pairs(found: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in found)
