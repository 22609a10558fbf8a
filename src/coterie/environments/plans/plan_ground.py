"""Environment in which a planner writes subgoals, a grounder turns them into actions, and the actions run.

``onetime``: the whole plan, then all actions. ``iterative``: one subgoal, its actions, their result. Training tasks of
``iterative`` are single steps after the right earlier steps; held-out tasks are complete.
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
from coterie.environments.plans.domains import (
    READ,
    Form,
    PlanGroundSettings,
    as_plan,
    domain_in,
    domain_of,
    page_fields,
)
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Grade,
    Observation,
    Openers,
    Pure,
    State,
    Transition,
    openers_of,
)
from coterie.environments.qa_metrics import GRADER, grader_secret, secret_answers
from coterie.environments.settings import EnvironmentSettings, last_draw
from coterie.errors import UserError
from coterie.record.tree import ANSWERED, LENGTH, Ending, Secret, Task
from coterie.record.turn import Message, Part, Speaker, Turn
from coterie.tools.actions.grammar import check_actions, describe, parse

DONE = "Done."
"""Message of the planner at the end of a task in the form ``iterative``."""
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
    scope = "each subgoal of a plan" if form == "onetime" else "the subgoal that you are given"
    return (
        f"You turn {scope} into actions for the task below. {_ACTIONS}\n\nTools:\n{tools}\n\n{task}"
    )


def plan_text(subgoals: Sequence[str], first_number: int = 1) -> str:
    return "; ".join(f"Subgoal {n}: {subgoal}" for n, subgoal in enumerate(subgoals, first_number))


def actions_text(actions: Sequence[str]) -> str:
    return "; ".join(actions)


def result_text(subgoal: int, result: str) -> str:
    return f"Subgoal {subgoal} gave: {result}" if result else f"Subgoal {subgoal} is done."


def subgoals_in(plan: str) -> list[str]:
    # The pattern has one group, so the texts are every second part of the split.
    subgoals = (part.strip().rstrip(";").strip() for part in SUBGOAL.split(plan)[2::2])
    return list(filter(None, subgoals))


def is_done(text: str) -> bool:
    """Return True if the message begins with "done" and has no subgoal."""
    return SAYS_DONE.match(text) is not None and not subgoals_in(text)


@dataclass(frozen=True, slots=True)
class Gold:
    """The right steps of a task, or one of them."""

    steps: tuple[PlanStep, ...]
    first: int = 1
    done: bool = False
    """True if the task is complete and the planner should stop."""

    @property
    def plan(self) -> str:
        return DONE if self.done else plan_text([step.subgoal for step in self.steps], self.first)

    @property
    def actions(self) -> str:
        return actions_text([action for step in self.steps for action in step.actions])


@dataclass(frozen=True, slots=True)
class Progress:
    """Results of the actions so far."""

    values: tuple[tuple[str, str], ...] = ()
    subgoals: int = 0
    problems: int = 0
    """Number of action lines that could not be parsed or run."""


PLANNER, GROUNDER = "planner", "grounder"
GOLD = "gold_steps"
"""Name of the secret with the right steps, a JSON list of [subgoal, actions, result]."""
NO_PLAN = Ending("no plan")
UNREADABLE = Ending("unreadable actions")


class PlanGround(Pure):
    """Planner and grounder on rows with plans."""

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
        if not self.domain.graded:
            self.ungraded = UserError(
                f"rows of {self.name} have no page elements, so their actions can't be graded",
                "evaluate on dataset=mind2web, or use rows whose steps have `pages` (docs/howto/data-and-models.md)",
            )

    @property
    def limits(self) -> Mapping[str, int]:
        return {"turns": self.max_turns}

    def openers(self, logs: Path) -> Openers:
        return openers_of(self.domain, logs)

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        rows = self._rows(split)
        if split == "heldout" and self.form == "iterative" and self.domain.by_steps:
            return self.scored_tasks(count, seed)[:count]
        if split == "heldout":
            return [whole_task(row) for row in rows[:count]]
        if any(not row.steps for row in rows):
            raise UserError(
                f"rows of {self.name} have no plans to train on",
                f"train on rows with plans, such as gsm8k_plans, and evaluate on {self.name}",
            )
        if self.form == "onetime":
            return [whole_task(row) for row in last_draw(rows, (*previous_counts, count), seed)]
        # One task more than steps: the last one teaches the planner to stop.
        steps = [(row, index) for row in rows for index in range(len(row.steps) + 1)]
        drawn_steps = last_draw(steps, (*previous_counts, count), seed)
        return [step_tasks(row)[index] for row, index in drawn_steps]

    def scored_tasks(self, count: int, seed: int) -> list[Task]:
        """Return held-out tasks with right actions; single steps in the form ``iterative``, without the final stop."""
        rows = [row for row in self._rows("heldout")[:count] if row.steps]
        if self.form == "onetime":
            return [whole_task(row) for row in rows]
        return [task for row in rows for task in step_tasks(row) if not gold(task).done]

    def next_actors(self, state: State) -> tuple[str, ...]:
        """Return the grounder after a turn of the planner, else the planner."""
        agents = [turn.speaker.name for turn in state.turns if turn.speaker.kind == "agent"]
        return (GROUNDER,) if agents[-1:] == [PLANNER] else (PLANNER,)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the prompt: subgoals and results for the planner, subgoals and actions for the grounder."""
        task = state.task
        begin = [Message("system", (Part(self.system_prompt(task, actor), source="task"),))]
        if actor == PLANNER:
            begin.append(Message("user", (Part(request(task), source="task"),)))
        # The planner sees results instead of actions. The grounder sees its actions without
        # results.
        hidden = GROUNDER if actor == PLANNER else "tools"
        turns = (
            Message("assistant" if turn.speaker.name == actor else "user", turn=turn.id)
            for turn in state.turns
            if turn.speaker.name != hidden
        )
        return (*begin, *_before(task, actor), *turns)

    def system_prompt(self, task: Task, actor: str) -> str:
        if actor == PLANNER:
            return planner_prompt(self.form)
        return grounder_prompt(self.form, describe(self.domain.name), request(task))

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """Accept a plan, or run actions. End at the end of the plan, or at actions that can't be parsed or run."""
        turn = turns[-1]
        if turn.truncated:
            return Transition(end=LENGTH)
        if turn.speaker.name == PLANNER:
            return self._after_plan(state, turn)
        progress, answer, error = await self._run(state, turn.text, session)
        if error is not None:
            return Transition(progress, end=UNREADABLE)
        # A plan of all steps ends after its actions, and so does a task of a single step.
        if self.form == "onetime" or "history" in state.task.public:
            return Transition(progress, answer=answer, end=ANSWERED)
        result = result_text(_first(state.task) + progress.subgoals - 1, answer or "")
        seen = (Observation(Speaker("environment", "tools"), (Part(result),)),)
        return Transition(progress, seen, answer=answer)

    async def grade(self, state: State, session: Any) -> Grade:
        """Grade the answer, or for a single step, its result. Tasks without a reference get no score."""
        progress: Any = state.data or Progress()
        answer = state.answer if state.end == ANSWERED else None
        well_formed = not progress.problems and state.end == ANSWERED
        metrics = {WELL_FORMED: float(well_formed), "subgoals": progress.subgoals}
        # The only right step of this task is to stop.
        if gold(state.task).done:
            return Grade(float(answer == DONE), metrics)
        values = dict(progress.values)
        score, domain_metrics = await asyncio.to_thread(
            self.domain.score, state.task, values, answer
        )
        return Grade(score, {**metrics, **domain_metrics})

    def _after_plan(self, state: State, turn: Turn) -> Transition:
        if self.form == "onetime":
            return Transition(Progress(), end=None if turn.text.strip() else NO_PLAN)
        if subgoals_in(turn.text):
            return Transition(state.data or Progress())
        if not is_done(turn.text):
            return Transition(state.data, end=NO_PLAN)
        if gold(state.task).done:
            return Transition(Progress(), answer=DONE, end=ANSWERED)
        return Transition(state.data, end=ANSWERED if state.answer is not None else NO_PLAN)

    async def _run(
        self, state: State, text: str, session: Any
    ) -> tuple[Progress, str | None, str | None]:
        """Run actions. Return the progress, the answer, and the reason if they can't be parsed or run."""
        earlier: Any = state.data or Progress()
        values = dict(earlier.values)
        # A single step begins after the right earlier steps, whose results its actions may use.
        if not values and "history" in state.task.public:
            values = await self._replay(state.task, session)
        subgoals = earlier.subgoals + (
            len(subgoals_in(state.turns[-2].text)) if self.form == "onetime" else 1
        )
        parsed = check_actions(text, self.domain.name, results=tuple(values))
        if parsed.problems:
            return Progress(earlier.values, subgoals, 1), None, parsed.problems[0]
        result = await self.domain.run(parsed.actions, values, state.task, session)
        progress = Progress(
            tuple({**values, **result.values}.items()), subgoals, int(result.error is not None)
        )
        return progress, result.answer, result.error

    async def _replay(self, task: Task, session: Any) -> dict[str, str]:
        values: dict[str, str] = {}
        for _, actions, _ in _history(task):
            parsed = check_actions(actions, self.domain.name, results=tuple(values))
            result = await self.domain.run(parsed.actions, values, task, session)
            values |= result.values
        return values

    def _rows(self, split: Split) -> list[PlanRow]:
        """Return the rows of a split; in the form ``iterative`` only those with actions aligned to subgoals."""
        rows = [as_plan(row) for row in self.rows.split(split)]
        return rows if self.form == "onetime" else [row for row in rows if row.aligned]

    def _domain_name(self) -> str:
        domains = {domain_in(row) for row in self.rows.split("train")}
        if len(domains) > 1:
            raise UserError(
                f"{self.name} has rows of several domains: {', '.join(sorted(domains))}",
                "make one data set for each domain",
            )
        return domains.pop() if domains else ""


def whole_task(row: PlanRow) -> Task:
    return _task(row.id, row, row.steps, secret_answers(row))


def step_tasks(row: PlanRow) -> list[Task]:
    """Return one task for each step of a row, after the right earlier steps, and a last task to stop."""
    tasks = []
    for index, step in enumerate(row.steps):
        # For the last step, the answer of the row is the result.
        answer = step.result or (row.answer if index == len(row.steps) - 1 else "")
        secret = grader_secret("answer", answer)
        tasks.append(_task(f"{row.id}/{index + 1}", row, (step,), secret, index))
    stop, count = grader_secret("answer", DONE), len(row.steps)
    return [*tasks, _task(f"{row.id}/{count + 1}", row, (), stop, count)]


def request(task: Task) -> str:
    description = str(task.public["description"])
    around = f"\nAt the beginning: {description}" if description else ""
    return f"Task: {task.public['question']}{around}"


def gold(task: Task) -> Gold:
    """Return the right steps of a task, for graders and trainers."""
    steps = json.loads(task.secrets[GOLD].reveal(GRADER))
    plan_steps = tuple(PlanStep(subgoal=s, actions=tuple(a), result=r) for s, a, r in steps)
    return Gold(plan_steps, _first(task), done=not plan_steps and "history" in task.public)


def _task(
    id_: str,
    row: PlanRow,
    steps: Sequence[PlanStep],
    answer: Mapping[str, Secret],
    index: int | None = None,
) -> Task:
    text = json.dumps([[s.subgoal, list(s.actions), s.result] for s in steps], ensure_ascii=False)
    public: dict[str, object] = {"question": row.question, "description": row.description}
    # A task of a single step shows the right steps before it.
    if index is not None:
        earlier = row.steps[:index]
        public["history"] = [[s.subgoal, actions_text(s.actions), s.result] for s in earlier]
    pages, right = page_fields(row, steps, index or 0)
    return Task(id_, {**public, **pages}, {**answer, **grader_secret(GOLD, text), **right})


def known_results(task: Task) -> tuple[str, ...]:
    """Return the names of the results of the right steps before a single-step task."""
    return tuple(
        action.result for _, actions, _ in _history(task) for action in parse(actions).actions
    )


def _history(task: Task) -> list[tuple[str, str, str]]:
    steps: Any = task.public.get("history", [])
    return [(str(subgoal), str(actions), str(result)) for subgoal, actions, result in steps]


def _first(task: Task) -> int:
    return len(_history(task)) + 1


def _before(task: Task, actor: str) -> tuple[Message, ...]:
    messages = []
    for number, (subgoal, actions, result) in enumerate(_history(task), 1):
        plan, result_ = plan_text([subgoal], number), result_text(number, result)
        if actor == PLANNER:
            messages += [Message.of("assistant", plan), Message.of("user", result_)]
        else:
            messages += [Message.of("user", plan), Message.of("assistant", actions)]
    return tuple(messages)
