r"""Questions for one agent, graded by a reward of the user's choice.

    coterie evaluate question dataset=mine.jsonl environment.reward=rewards.py:score policy=smollm2

The prompt is a template over the columns of a row. A reward receives the whole reply; the built-in rewards ``exact``,
``f1`` and ``math`` read its last ``\boxed{...}``, or else the text after ``####``.
"""

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import ValidationError, field_validator

from coterie.config.plugins import (
    Kind,
    Plugin,
    absolute_name,
    find,
    installed,
    is_spec,
    label,
    last_line,
)
from coterie.config.resolve import wrong_at
from coterie.config.settings import ScoreRange, key
from coterie.config.user_code import SECONDS, OutOfTime, as_number, call
from coterie.datasets.code_rows import STARTER, ContestLimits, ContestRow
from coterie.datasets.load import UNUSED, Rows
from coterie.datasets.problems import OPTION_KEYS, MathRow, SvampRow, boxed_answer
from coterie.datasets.question_files import TableRow
from coterie.datasets.rows import Gsm8kRow, QuestionRow, as_text, first_of
from coterie.environments.grading import number, same_mathematics, same_number
from coterie.environments.protocol import WELL_FORMED, Grade, OneAgent, Pure, State, Transition
from coterie.environments.qa_metrics import exact_match, f1, normalize_answer, secret_answers
from coterie.environments.settings import (
    EnvironmentSettings,
    RowTasks,
    fill_template,
    template_names,
)
from coterie.errors import UserError, did_you_mean
from coterie.record.tree import ANSWERED, LENGTH, Task
from coterie.record.turn import Message, Part, Turn, digest

if TYPE_CHECKING:
    from coterie.tools.sandbox.pool import Sandbox

PROMPTS: Mapping[str, str] = {
    "exact": "{question}\n\nReply with the answer only.",
    "f1": "{question}\n\nReply with the answer only.",
    "math": "{question}\n\nThink step by step, then write the final answer in \\boxed{}.",
    "code": "{question}\n\nReply with one Python program between ```python and ```.",
}
"""Default prompts of the built-in rewards. With a reward function, the default prompt is only the question."""
METRICS = {"exact": "exact match", "f1": "F1", "math": "solved", "code": "solved"}
REWARDS = Kind("reward", dict.fromkeys(METRICS, f"{__name__}:Question"))
NAMES = ("question", "reply", "answer", "row")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
"""Names of the values that verl gives a reward function."""
RESERVED = frozenset({
    "tokens", "turns", "policy", "version", "method", "n", "failed", "cut_off", "well_formed", "thought_tokens",
})  # fmt: skip
CONTEST_COLUMNS = ("tests", "starter", "function", "prelude", "checker")


class QuestionSettings(EnvironmentSettings):
    """Settings of the prompt and the reward."""

    unhashed: ClassVar[frozenset[str]] = frozenset({"name", "reward"})
    """Keys with folders, and keys that change no result."""

    prompt: str | None = key(
        None,
        "The prompt. `{question}` and `{COLUMN}` are values of the row, `{{` and `}}` are braces, and `{}` stays as "
        "it is. The default is the question, and how to write the answer where a built-in reward reads it.",
        min_length=1,
    )
    reward: str | None = key(
        None,
        "`exact` (the right words), `f1` (the share of right words), `math` (equal numbers or formulas), `code` (the "
        f"program passes the tests of the row), or a function `path/file.py:NAME` with "
        f"({', '.join(NAMES)}). The default is "
        "`math` for data sets of mathematics, `code` for contests, else `exact`.",
    )
    reward_range: ScoreRange = key(
        (0.0, 1.0), "Lowest and highest value of a reward function, which are scaled to 0 and 1."
    )
    limits: ContestLimits = ContestLimits()

    @field_validator("reward")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is None:
            return None
        if name in METRICS or name in installed(REWARDS) or is_spec(name):
            return absolute_name(name)
        fix = f"{did_you_mean(name, METRICS)}use {', '.join(METRICS)}"
        raise ValueError(f"is no reward; {fix}, or a function path/file.py:NAME")

    def identity(self) -> str:
        """Hash the keys, with the name of a reward function but without its folder."""
        keys = self.model_dump_json(exclude=set(self.unhashed))
        return digest(keys, label(self.reward or ""))


class Item(NamedTuple):
    """A row as a task."""

    task: Task
    question: str
    answers: tuple[str, ...]
    row: Mapping[str, Any]
    where: str
    contest: ContestRow | None = None
    hidden: frozenset[str] = frozenset()
    """Columns, and fields in them, that an agent may not see."""


class OneReply(OneAgent, Pure):
    """Base class for one reply of one agent."""

    limits: Mapping[str, int] = MappingProxyType({"turns": 1})

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        reply = turns[-1]
        return Transition(answer=reply.text, end=LENGTH if reply.truncated else ANSWERED)


class Question(RowTasks, OneReply):
    """One agent that replies to a question; with ``tools``, after calls."""

    settings_type = QuestionSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)
    rewards: Mapping[str, str] = METRICS
    """Metrics of the built-in rewards."""
    default_prompts: Mapping[str, str] = PROMPTS

    def __init__(self, settings: QuestionSettings, rows: Rows) -> None:
        self.settings, self.rows, self.name = settings, rows, rows.name
        self.reward = settings.reward or self.default_reward(rows)
        self.function = None if self.reward in self.rewards else find(REWARDS, self.reward)
        self.arguments = arguments_of(self.function) if self.function else set[str]()
        self.trial = ""
        self.metric = self.rewards.get(self.reward, label(self.reward))
        self.needs: tuple[type, ...] = ()
        if self.reward == "code":
            # Only programs need the sandbox.
            from coterie.tools.sandbox.pool import Sandbox

            self.needs = (Sandbox,)
        self.version = f"1 {self.function.source}" if self.function else "1"
        if settings.prompt and not template_names(settings.prompt):
            raise UserError(
                f"environment.prompt={settings.prompt!r} has no column: all tasks would be the same",
                "put {question} or another {COLUMN} into it",
            )
        self.prompt = settings.prompt or self.default_prompts.get(self.reward, "{question}")

    def default_reward(self, rows: Rows) -> str:
        return _default_reward(rows.row)

    def task_of(self, row: QuestionRow) -> Task:
        return self._items[f"{self.name}-{row.id}"].task

    @cached_property
    def _items(self) -> dict[str, Item]:
        """All rows by task id. Raises ``UserError`` for an invalid row or a reward that fails."""
        rows = (row for split in self.rows.splits for row in self.rows.split(split))
        items = {item.task.id: item for item in map(self._item, rows)}
        if self.function is not None:
            self._try_out([*items.values()])
        return items

    def _try_out(self, items: Sequence[Item]) -> None:
        """Grade a right answer, one of another row and an empty reply, before the run (without an event loop)."""
        first_item, right = items[0], items[0].answers[0]
        wrong = (item.answers[0] for item in items if item.answers[0] not in first_item.answers)
        replies = (right, next(wrong, ""), "")
        # Inside a running event loop the grade can't be awaited, so the trial is left out.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            scores = [asyncio.run(self._grade(first_item, reply, None)).score for reply in replies]
            text = f"{scores[0]} for a right answer, {scores[1]} for a wrong one"
            if right and scores[0] == scores[1]:
                text += ": check the function, unless it grades more than the answer"
            self.trial = text

    def _item(self, row: QuestionRow) -> Item:
        question, template, system = row.shown_question, self.prompt, ""
        # Columns that give the answer away can't be named in a prompt.
        hidden = {"aliases", "solution", "reward_model"}
        if not isinstance(row, TableRow):
            raw, where = row.model_dump(mode="json"), f"row {row.id} of {self.name}"
            hidden.add("answer")
        else:
            raw, where, system, question = row.raw, row.where, row.prompt.system, row.prompt.text
            hidden.add(row.answer_column)
            hidden |= {name for name in raw if row.choices and name.lower() in OPTION_KEYS}
            if self._named.intersection(row.prompt.columns):
                question = row.question
            if row.prompt.is_complete and not self.settings.prompt:
                template = "{question}"
        contest = _contest(row, raw, where) if self.reward == "code" else None
        if contest is not None and contest.starter.strip():
            question += f"\n\n{STARTER.format(starter=contest.starter)}"
        answers = (row.answer, *getattr(row, "aliases", ()))
        if self.reward in ("exact", "f1", "math") and not any(map(str.strip, answers)):
            problem = f"{where} has no right answer, which environment.reward={self.reward} needs"
            raise UserError(problem, "name its column: dataset.answer=COLUMN")
        # Data in verl's format often repeats the answer there.
        hidden |= {"extra_info.answer"} if "reward_model" in raw else set()
        prompt = filled(template, question, raw, where, hidden)
        public = {"question": question} | ({} if prompt == question else {"prompt": prompt})
        public |= {"system": system} if system else {}
        task = Task(f"{self.name}-{row.id}", public, secret_answers(row))
        return Item(task, question, answers, raw, where, contest, frozenset(hidden))

    @property
    def _named(self) -> set[str]:
        """Columns that the prompt names."""
        names = template_names(self.prompt)
        return {part for name in names for part in (name, name.partition(".")[0])}

    @property
    def notes(self) -> list[tuple[str, str]]:
        """Lines of a plan: columns that neither the prompt nor the reward reads, warnings, and scores of the reward."""
        read = self._named.union(CONTEST_COLUMNS if self.reward == "code" else ())
        title = "columns that only the reward can read" if self.function else UNUSED
        notes = dict(self.rows.notes)
        unused = filter(None, notes.pop(UNUSED, "").split(", "))
        text = ", ".join(name for name in unused if name not in read)
        notes |= {"reward": self.trial} if self.trial else {}
        return [(title, text)] * bool(text) + [*notes.items()]

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        public = state.task.public
        prompt = Part(str(public.get("prompt", public["question"])), source="task")
        system = str(public.get("system", ""))
        system_messages = (Message("system", (Part(system, source="task"),)),) if system else ()
        replies = (Message("assistant", turn=turn.id) for turn in state.turns)
        return (*system_messages, Message("user", (prompt,)), *replies)

    async def grade(self, state: State, session: Any) -> Grade:
        """Grade the reply. Raises ``UserError`` with the row if the reward function fails."""
        sandbox = session[self.needs[0]] if self.needs else None
        return await self._grade(self._items[state.task.id], state.answer or "", sandbox)

    async def _grade(self, item: Item, reply: str, sandbox: "Sandbox | None") -> Grade:
        if self.function is not None:
            return await self._function_grade(self.function, item, reply)
        # A reference may be a whole solution, but only its final answer counts.
        answer, golds = answer_of(reply), [answer_of(gold) or gold for gold in item.answers]
        if self.reward in ("exact", "f1"):
            return Grade(max(_likeness(answer, gold, self.reward) for gold in golds))
        if self.reward == "math":
            right = await asyncio.to_thread(
                lambda: any(same_mathematics(gold, answer, item.question) for gold in golds)
            )
            return Grade(float(right), {WELL_FORMED: float(boxed_answer(reply) is not None)})
        assert item.contest is not None and sandbox is not None
        # The judge loads the sandbox.
        from coterie.tools.contest import judge_program, verdict_metrics

        row, program, limits = item.contest, program_of(reply), self.settings.limits
        options = {"prelude": row.prelude, "checker": row.checker, "answer": row.answer}
        verdicts = await judge_program(sandbox, program, row.tests, row.function, limits, **options)
        solved = float(all(verdict.passed for verdict in verdicts))
        return Grade(solved, {"tests": len(row.tests), **verdict_metrics(verdicts)})

    async def _function_grade(self, function: Plugin, item: Item, reply: str) -> Grade:
        expected = "return a finite number, or a dict of numbers with score"

        def wrong(problem: str, fix: str = expected) -> UserError:
            return UserError(f"{function} {problem}", fix)

        # A copy, so that the user's function can't change the row for later replies.
        row, answer = deepcopy(dict(item.row)), item.answers[0]
        # Also the arguments that verl passes, so that its reward functions work unchanged.
        truth, extra = first_of(row, ("reward_model.ground_truth",)), row.get("extra_info")
        values = dict(zip(NAMES, (item.question, reply, answer, row), strict=True))
        truth, extra = answer if truth is None else truth, {} if extra is None else extra
        verl = (row.get("data_source", self.name), reply, truth, extra)
        values |= zip(VERL, verl, strict=True)
        try:
            named = {name: values[name] for name in self.arguments}
            value = await call(partial(function.thing, **named), SECONDS)
        except (Exception, SystemExit, OutOfTime) as error:
            problem = f"failed on {item.where}: {last_line(error)}"
            raise wrong(problem, "correct the function") from error
        returned = dict(value) if isinstance(value, Mapping) else {"score": value}
        if "score" not in returned:
            raise wrong(f"returned {value!r} without score on {item.where}")
        metrics: dict[str, float | int | str] = {}
        score = returned.pop("score")
        for name, measure in returned.items():
            if name in RESERVED:
                problem = f"returned a metric called {name!r}, which coterie measures itself"
                raise wrong(problem, "give it another name")
            figure = measure if isinstance(measure, str) else as_number(measure)
            if figure is None:
                raise wrong(f"returned {measure!r} as {name} on {item.where}")
            metrics[str(name)] = figure
        # The function can't grade this reply, which differs from a score of 0.
        if score is None:
            return Grade(None, metrics)
        (low, high), figure = self.settings.reward_range, as_number(score)
        if figure is None:
            raise wrong(f"returned {score!r} on {item.where}")
        if not low <= figure <= high:
            problem = f"returned {figure:g} on {item.where}, outside of {low:g} to {high:g}"
            raise wrong(problem, "declare its range: environment.reward_range=[LOW,HIGH]")
        return Grade((figure - low) / (high - low), metrics)

    def answer_to(self, task: Task, text: str) -> str | None:
        return program_of(text) if self.reward == "code" else answer_of(text) or None

    def same(self, first: str, second: str) -> bool:
        if self.reward == "math":
            return same_mathematics(first, second)
        if self.reward == "code":
            return first == second
        return _likeness(first, second, "exact") == 1.0

    def similarity(self, answer: str, other: str) -> float:
        if self.reward == "f1":
            return _likeness(answer, other, "f1")
        return float(self.same(answer, other))


def arguments_of(function: Plugin) -> set[str]:
    """Return the names of the values that a reward function gets. Raises ``UserError`` if it needs others."""
    fix = f"write def NAME({', '.join(NAMES)}), which may call a function of a batch with lists of one"
    try:
        signature = inspect.signature(function.thing)
        names = {*NAMES, *VERL} & {*signature.parameters}
        # A function with ``**kwargs`` gets all values, under verl's names if it uses one of them.
        if inspect.Parameter.VAR_KEYWORD in {p.kind for p in signature.parameters.values()}:
            names.update(NAMES if names.isdisjoint(VERL) else VERL)
        signature.bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise UserError(f"{function} can't get its values by name: {error}", fix) from error
    if names.isdisjoint(("reply", "solution_str")):
        raise UserError(f"{function} does not take the reply", fix)
    return names


def answer_of(reply: str) -> str:
    r"""Return the last ``\boxed{...}`` of a reply, else the text after its last ``####``, else the whole reply."""
    return boxed_answer(reply) or reply.rpartition("####")[2].strip()


def _likeness(reply: str, gold: str, reward: str) -> float:
    """Return exact match or F1. Numbers are compared by value, and ``A``, an article, as text."""
    if number(reply) is not None and number(gold) is not None:
        return float(same_number(reply, gold))
    # Normalization leaves nothing of an answer such as ``A``, so compare the text.
    if not normalize_answer(reply) or not normalize_answer(gold):
        return float(reply.strip().casefold() == gold.strip().casefold())
    return exact_match(reply, [gold]) if reward == "exact" else f1(reply, [gold])


def program_of(reply: str) -> str:
    """Return the last Python block of a reply; the whole reply if it has no fences."""
    # Only the reward ``code`` needs the reader of blocks.
    from coterie.environments.code_blocks import code_of, python_blocks

    blocks = python_blocks(reply)
    return blocks[-1] if blocks else code_of(reply)


def filled(
    template: str, question: str, row: Mapping[str, Any], where: str, hidden: set[str]
) -> str:
    """Fill a template with the values of a row.

    Raises ``UserError`` for a missing column or one of the ``hidden`` columns.
    """

    def value(name: str) -> str:
        if name == "question":
            return question
        braces = f"write {{{{{name}}}}} for braces"
        # A hidden column also hides its fields, and any object that contains it.
        if any(f"{name}.".startswith(f"{path}.") or path.startswith(f"{name}.") for path in hidden):
            problem = f"environment.prompt shows the right answer to the agent: {{{name}}}"
            raise UserError(problem, f"leave it out, or {braces}")
        cell = first_of(row, (name,))
        if cell is None or cell != cell:  # empty, or NaN
            columns = [str(column) for column in row if column not in hidden]
            near = did_you_mean(name, ["question", *columns])
            problem = f"{where} has no {name!r}, which environment.prompt names"
            raise UserError(problem, f"{near}it has: {', '.join(columns)}; {braces}")
        text = as_text(cell)
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)

    return fill_template(template, value)


def _default_reward(row: type[QuestionRow]) -> str:
    if issubclass(row, ContestRow):
        return "code"
    return "math" if issubclass(row, (MathRow, Gsm8kRow, SvampRow)) else "exact"


def _contest(row: QuestionRow, raw: Mapping[str, Any], where: str) -> ContestRow:
    """Return the tests of a row. Raises ``UserError`` if it has no valid tests."""
    columns = {name: raw[name] for name in CONTEST_COLUMNS if raw.get(name) is not None}
    fields = {"id": row.id, "question": row.question, **columns}
    try:
        contest = row if isinstance(row, ContestRow) else ContestRow.model_validate(fields)
    except ValidationError as error:
        wrong = "; ".join(map(wrong_at, error.errors()[:3]))
        raise UserError(f"{where} is broken: {wrong}", "correct its tests") from error
    if contest.flaw:
        fix = "give it a column tests: a list of objects with input and output"
        raise UserError(f"{where} {contest.flaw}", fix)
    return contest
