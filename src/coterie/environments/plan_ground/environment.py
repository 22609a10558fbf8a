"""A planner writes subgoals, a grounder turns them into actions, and the actions are run.

In the form ``onetime`` the planner writes the whole plan, the grounder all actions. In the form ``iterative`` they take
turns: one subgoal, its actions, what they gave. Training tasks of that form are single steps after the right beginning;
held-out tasks are whole.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.datasets.catalogue import Split
from coterie.datasets.load import Rows
from coterie.datasets.plans import PlanRow, PlanStep
from coterie.datasets.rows import QuestionRow
from coterie.environments.gold import GRADER, gold_answer, secret_answers
from coterie.environments.plan_ground.benchmarks import READ, as_plan, domain_in
from coterie.environments.plan_ground.domains import Scoring, domain_of, ungraded_of
from coterie.environments.plan_ground.form import Form
from coterie.environments.plan_ground.given import given, hidden
from coterie.environments.plan_ground.settings import PlanGroundSettings
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Grade,
    Observation,
    State,
    Transition,
)
from coterie.environments.pure import Pure
from coterie.environments.rows import draws
from coterie.environments.settings import EnvironmentSettings
from coterie.environments.talk import ANSWERED
from coterie.environments.traits import Openers, openers_of
from coterie.errors import UserError
from coterie.tools.actions.domains import check, describe
from coterie.tools.actions.grammar import parse
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import LENGTH, Ending
from coterie.trajectories.turn import Message, Part, Speaker, Turn

DONE = "Done."
"""What the planner says, step by step, when the task is done."""
SUBGOAL = re.compile(r"Subgoal\s+(\d+)\s*:", re.IGNORECASE)
SAYS_DONE = re.compile(r"\W*done\b", re.IGNORECASE)
_ACTIONS = (
    "Write actions only, on one line, separated by `; `, such as `R1 = Tool(argument); R2 = Tool(R1, argument)`. "
    "Number the results R1, R2 and so on, and use earlier results by their names."
)


def planner_prompt(form: Form) -> str:
    if form == "onetime":
        return (
            "You are a planner. Break the task into subgoals, in the order in which they are to be done. Another agent "
            "turns them into actions, so say in each what it takes and what it gives. Write all of them on one line, "
            "such as `Subgoal 1: ...; Subgoal 2: ...`, and nothing else."
        )
    return (
        "You are a planner. Say one subgoal at a time, such as `Subgoal 1: ...`. Another agent turns it into actions, "
        f"and you are told what they gave. When the task is done, write `{DONE}`"
    )


def grounder_prompt(form: Form, tools: str, task: str) -> str:
    """The grounder's system prompt, which ends with the task."""
    what = "each subgoal of a plan" if form == "onetime" else "the subgoal that you are given"
    return (
        f"You turn {what} into actions for the task below. {_ACTIONS}\n\nTools:\n{tools}\n\n{task}"
    )


def task_text(question: str, description: str) -> str:
    around = f"\nAt the beginning: {description}" if description else ""
    return f"Task: {question}{around}"


def plan_text(subgoals: Sequence[str], first: int = 1) -> str:
    return "; ".join(f"Subgoal {n}: {one}" for n, one in enumerate(subgoals, first))


def actions_text(actions: Sequence[str]) -> str:
    return "; ".join(actions)


def result_text(subgoal: int, result: str) -> str:
    return f"Subgoal {subgoal} gave: {result}" if result else f"Subgoal {subgoal} is done."


def subgoals_in(plan: str) -> list[str]:
    """The subgoals of a plan, without their numbers; empty if it has none."""
    parts = SUBGOAL.split(plan)[2::2]
    return [found for part in parts if (found := part.strip().rstrip(";").strip())]


def is_done(text: str) -> bool:
    """Whether the planner stops: it begins by saying so, and no subgoal comes with it."""
    return SAYS_DONE.match(text) is not None and not subgoals_in(text)


@dataclass(frozen=True, slots=True)
class Gold:
    """The right way to do a task, or one step of it."""

    steps: tuple[PlanStep, ...]
    first: int = 1
    done: bool = False
    """Whether nothing is left to do: the planner should stop."""

    @property
    def plan(self) -> str:
        return (
            DONE
            if self.done
            else plan_text([step.subgoal for step in self.steps], first=self.first)
        )

    @property
    def actions(self) -> str:
        return actions_text([one for step in self.steps for one in step.actions])


@dataclass(frozen=True, slots=True)
class Carried:
    """What was carried out so far."""

    values: tuple[tuple[str, str], ...] = ()
    """The results of actions by name."""
    subgoals: int = 0
    problems: int = 0
    """Action lines that could not be read or run."""


PLANNER, GROUNDER = "planner", "grounder"
GOLD = "gold_steps"
"""The secret that holds the right steps, a JSON list of [subgoal, actions, result]."""
NO_PLAN = Ending("no plan")
UNREADABLE = Ending("unreadable actions")


class PlanGround(Pure):
    """Planner and grounder on rows that have plans."""

    actors: Mapping[str, ActorKind] = MappingProxyType({PLANNER: "agent", GROUNDER: "agent"})
    settings_type: type[EnvironmentSettings] = PlanGroundSettings
    row_types: tuple[type[QuestionRow], ...] = READ
    ungraded: UserError | None = None

    def __init__(self, settings: PlanGroundSettings, rows: Rows) -> None:
        self.name = rows.name
        self.rows = rows
        self.form = settings.form
        self.max_turns = 2 if settings.form == "onetime" else settings.turns
        self.domain = domain_of(self._domain_name(), settings, self._rows("heldout"))
        self.needs = self.domain.needs
        self.metric = self.domain.metric
        self.ungraded = ungraded_of(self.domain, self.name)

    @property
    def limits(self) -> Mapping[str, int]:
        return {"turns": self.max_turns}

    def openers(self, logs: Path) -> Openers:
        return openers_of(self.domain, logs)

    # -- tasks --------------------------------------------------------------------------------

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """Tasks of one split; training tasks of the form ``iterative`` are single steps."""
        rows = self._rows(split)
        if split == "heldout" and self.form == "iterative" and self._by_steps:
            return self.scored_tasks(count, seed)[:count]
        if split == "heldout":
            return [whole_task(row) for row in rows[:count]]
        if any(not row.steps for row in rows):
            raise UserError(
                f"rows of {self.name} have no plans to be learned",
                f"train on rows with plans, such as gsm8k_plans, and evaluate on {self.name}",
            )
        if self.form == "onetime":
            return [whole_task(row) for row in draws(rows, (*drawn, count), seed)[-1]]
        steps = [task for row in rows for task in step_tasks(row)]
        return draws(steps, (*drawn, count), seed)[-1]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Held-out tasks whose right actions can be scored: in the form ``iterative`` single steps, but for the last
        one, which has none."""
        rows = [row for row in self._rows("heldout")[:count] if row.steps]
        if self.form == "onetime":
            return [whole_task(row) for row in rows]
        return [task for row in rows for task in step_tasks(row) if not gold(task).done]

    # -- what is said -------------------------------------------------------------------------

    def acting(self, state: State) -> tuple[str, ...]:
        """The planner begins; after a plan comes the grounder."""
        spoken = [turn for turn in state.turns if turn.speaker.kind == "agent"]
        planned = bool(spoken) and spoken[-1].speaker.name == PLANNER
        return (GROUNDER,) if planned else (PLANNER,)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """The planner sees its subgoals and what they gave; the grounder sees subgoals and its own actions."""
        task = state.task
        begin = [Message("system", (Part(self.told(task, actor), source="task"),))]
        if actor == PLANNER:
            begin.append(Message("user", (Part(asked(task), source="task"),)))
        return (*begin, *_before(task, actor), *_said(state.turns, actor))

    def told(self, task: Task, actor: str) -> str:
        if actor == PLANNER:
            return planner_prompt(self.form)
        return grounder_prompt(self.form, describe(self.domain.name), asked(task))

    async def act(
        self, state: State, taken: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """A plan is handed on; actions are run. Over when a plan is done, and with what can't be read or run."""
        said = taken[-1]
        if said.truncated:
            return Transition(end=LENGTH)
        if said.speaker.name == PLANNER:
            return self._planned(state, said)
        carried, answer, error = await self._run(state, said.text, live)
        if error is not None:
            return Transition(carried, end=UNREADABLE)
        if self.form == "onetime" or "history" in state.task.public:
            return Transition(carried, answer=answer, end=ANSWERED)
        told = result_text(_first(state.task) + carried.subgoals - 1, answer or "")
        seen = (Observation(Speaker("environment", "tools"), (Part(told),)),)
        return Transition(carried, seen, answer=answer)

    async def grade(self, state: State, live: Any) -> Grade:
        """Whether the answer is right: of a single step, whether it gave what the right one gives.

        Where the data do not tell what is right, what was carried out has no score.
        """
        carried = state.data if isinstance(state.data, Carried) else Carried()
        right, formed = gold(state.task), not carried.problems and state.end == ANSWERED
        metrics = {WELL_FORMED: float(formed), "subgoals": carried.subgoals}
        if right.done:
            stopped = state.end == ANSWERED and state.answer == DONE
            return Grade(float(stopped), metrics)
        if isinstance(self.domain, Scoring):
            answer = state.answer if state.end == ANSWERED else None
            worth, more = self.domain.score(state.task, dict(carried.values), answer)
            return Grade(worth, {**metrics, **more})
        if state.end != ANSWERED or state.answer is None:
            return Grade(0.0, metrics)
        if not (wanted := gold_answer(state.task)):
            return Grade(None, metrics)
        same = await asyncio.to_thread(self.domain.same, wanted, state.answer)
        return Grade(float(same), metrics)

    def _planned(self, state: State, said: Turn) -> Transition:
        if self.form == "onetime":
            return Transition(Carried(), end=None if said.text.strip() else NO_PLAN)
        if subgoals_in(said.text):
            return Transition(state.data or Carried())
        if not is_done(said.text):
            return Transition(state.data, end=NO_PLAN)
        if gold(state.task).done:
            return Transition(Carried(), answer=DONE, end=ANSWERED)
        return Transition(state.data, end=ANSWERED if state.answer is not None else NO_PLAN)

    async def _run(
        self, state: State, text: str, live: Any
    ) -> tuple[Carried, str | None, str | None]:
        """What actions give: what is carried out by then, their answer, and why they can't be read or run."""
        before = state.data if isinstance(state.data, Carried) else Carried()
        known = dict(before.values)
        if not known and "history" in state.task.public:
            known = await self._redone(state.task, live)
        subgoals = before.subgoals + (
            len(subgoals_in(state.turns[-2].text)) if self.form == "onetime" else 1
        )
        parsed = check(text, self.domain.name, known=tuple(known))
        if parsed.problems:
            return Carried(before.values, subgoals, 1), None, parsed.problems[0].what
        done = await self.domain.run(parsed.actions, known, state.task, live)
        values = tuple({**known, **done.values}.items())
        return Carried(values, subgoals, int(done.error is not None)), done.answer, done.error

    async def _redone(self, task: Task, live: Any) -> dict[str, str]:
        values: dict[str, str] = {}
        for _, actions, _ in _history(task):
            parsed = check(actions, self.domain.name, known=tuple(values))
            done = await self.domain.run(parsed.actions, values, task, live)
            values |= done.values
        return values

    def _rows(self, split: Split) -> list[PlanRow]:
        """The rows of a split; by steps those alone of which it is known which actions belong to which subgoal."""
        rows = [as_plan(row) for row in self.rows.split(split)]
        return rows if self.form == "onetime" else [row for row in rows if row.aligned]

    @property
    def _by_steps(self) -> bool:
        return isinstance(self.domain, Scoring) and self.domain.by_steps

    def _domain_name(self) -> str:
        found = {domain_in(row) for row in self.rows.split("train")}
        if len(found) > 1:
            raise UserError(
                f"{self.name} has rows of several domains: {', '.join(sorted(found))}",
                "make a data set of each",
            )
        return found.pop() if found else ""


def whole_task(row: PlanRow) -> Task:
    return _task(row.id, row, row.steps, secret_answers(row))


def step_tasks(row: PlanRow) -> list[Task]:
    """A row's steps as tasks, each after the right steps before it; the last one is to stop."""
    found = []
    for place, step in enumerate(row.steps):
        answer = step.result or (row.answer if place == len(row.steps) - 1 else "")
        secret = {"answer": Secret(answer, name="answer", readers=frozenset({GRADER}))}
        found.append(_task(f"{row.id}/{place + 1}", row, (step,), secret, place))
    last = len(row.steps)
    stop = {"answer": Secret(DONE, name="answer", readers=frozenset({GRADER}))}
    return [*found, _task(f"{row.id}/{last + 1}", row, (), stop, last)]


def asked(task: Task) -> str:
    return task_text(str(task.public["question"]), str(task.public["description"]))


def gold(task: Task) -> Gold:
    """The right way to do a task, for graders and trainers."""
    steps = json.loads(task.secrets[GOLD].reveal(GRADER))
    found = tuple(PlanStep(subgoal=s, actions=tuple(a), result=r) for s, a, r in steps)
    return Gold(found, _first(task), done=not found and "history" in task.public)


def _task(
    id_: str,
    row: PlanRow,
    steps: Sequence[PlanStep],
    answer: Mapping[str, Secret],
    place: int | None = None,
) -> Task:
    text = json.dumps([[s.subgoal, list(s.actions), s.result] for s in steps], ensure_ascii=False)
    secret = Secret(text, name=GOLD, readers=frozenset({GRADER}))
    history = {} if place is None else _told(row, place)
    public = {"question": row.question, "description": row.description, **history}
    public |= given(row, steps, place or 0)
    return Task(id_, public, {**answer, GOLD: secret, **hidden(row, steps, place or 0)})


def _told(row: PlanRow, place: int) -> dict[str, object]:
    before = row.steps[:place]
    return {"history": [[s.subgoal, actions_text(s.actions), s.result] for s in before]}


def known_results(task: Task) -> tuple[str, ...]:
    """The names of what the right steps before a single one gave."""
    return tuple(one.result for _, actions, _ in _history(task) for one in parse(actions).actions)


def _history(task: Task) -> list[tuple[str, str, str]]:
    found: Any = task.public.get("history", [])
    return [(str(subgoal), str(actions), str(result)) for subgoal, actions, result in found]


def _first(task: Task) -> int:
    return len(_history(task)) + 1


def _before(task: Task, actor: str) -> tuple[Message, ...]:
    found = []
    for number, (subgoal, actions, result) in enumerate(_history(task), 1):
        own, other = plan_text([subgoal], number), result_text(number, result)
        if actor == PLANNER:
            found += [Message.of("assistant", own), Message.of("user", other)]
        else:
            found += [Message.of("user", own), Message.of("assistant", actions)]
    return tuple(found)


def _said(turns: Sequence[Turn], actor: str) -> tuple[Message, ...]:
    """The turns that an actor is shown: the planner no actions, the grounder no results."""
    shown = {PLANNER: (PLANNER, "tools"), GROUNDER: (PLANNER, GROUNDER)}[actor]
    return tuple(
        Message("assistant" if turn.speaker.name == actor else "user", turn=turn.id)
        for turn in turns
        if turn.speaker.name in shown
    )
