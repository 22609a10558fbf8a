"""What the stages of ``gap`` read and train on: tasks, traces, rows."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path

from coterie.config.folders import expanded
from coterie.config.home import sha256
from coterie.environments.gold import question_of
from coterie.environments.protocol import Shared
from coterie.environments.traits import agents_of
from coterie.environments.workflow.agent import AgentSettings
from coterie.environments.workflow.demonstrating import Demonstrates
from coterie.environments.workflow.steps import NoTrace
from coterie.environments.workflow.trace import SEARCH
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.gap.settings import EXPERT, GapSettings
from coterie.recipes.gap.told import ToldEnvironment, task_of, unsaid
from coterie.recipes.gap.traces import BrokenTrace, TraceRow, read_traces
from coterie.recipes.plan import Plan
from coterie.recipes.reinforcing import CRITIC, reinforced_plan
from coterie.recipes.trainings import train_role
from coterie.rollout.driver import Driver
from coterie.rollout.episodes import Episode
from coterie.rollout.scripted_sampler import ScriptedSampler
from coterie.runs.casting import Openers
from coterie.runs.folder import Run
from coterie.runs.play import play
from coterie.runs.roles import Role
from coterie.runs.selected import selected
from coterie.tools.sandbox.pool import Sandbox
from coterie.tools.tags import Tags
from coterie.training.amount import steps_for_targets
from coterie.training.prepare import max_row_length
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import Metrics
from coterie.trajectories.row import Row, rows
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.view import view

# Whether a prompt that somebody else wrote asks a held-out question, wherever in the prompt it stands.
#
# Compared are words alone: case, spaces, punctuation and signs that nobody sees make no other question.

_WORD = re.compile(r"[^\W_]+")
_LEAST = 4
"""Words by which a question is found; one of fewer by all of them."""
Words = tuple[str, ...]


class HeldOutQuestions:
    """The words of some questions, to be found in longer texts."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._beginning: dict[Words, list[Words]] = {}
        for question in questions:
            if asked := words(question):
                self._beginning.setdefault(asked[:_LEAST], []).append(asked)

    def asked_in(self, text: str) -> bool:
        said = words(text)
        return any(
            said[place : place + len(one)] == one
            for place in range(len(said))
            for length in range(1, _LEAST + 1)
            for one in self._beginning.get(said[place : place + length], ())
        )


def words(text: str) -> Words:
    """The words of a text, without what is not seen (zero-width signs, soft hyphens)."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    seen = "".join(sign for sign in plain if unicodedata.category(sign) != "Cf")
    return tuple(_WORD.findall(seen))


MOST_SHOWN = 1500
"""Characters of the row that are shown."""


def shown_row(renderer: ChatRenderer, row: Row) -> str:
    """A row as text: what is not trained stands in double brackets. Of a long one its beginning and its end."""
    half = MOST_SHOWN // 2
    if len(row.ids) > MOST_SHOWN:
        # What a token adds is found by decoding all before it, so few are decoded.
        first, last = slice(half), slice(-half, None)
        return (
            f"{_bracketed(renderer, row, first)[:half]} … {_bracketed(renderer, row, last)[-half:]}"
        )
    text = _bracketed(renderer, row, slice(None))
    return text if len(text) <= MOST_SHOWN else f"{text[:half]} … {text[-half:]}"


def _bracketed(renderer: ChatRenderer, row: Row, part: slice) -> str:
    pieces = zip(row.mask[part], renderer.pieces(row.ids[part]), strict=True)
    spans = (
        (own, "".join(text for _, text in some)) for own, some in groupby(pieces, itemgetter(0))
    )
    return "".join(one if own else f"[[{one}]]" for own, one in spans)


QUANTILES = (0.5, 0.9, 0.99, 1.0)
WITHOUT, LEFT_OUT = "no trace: ", "left out: "
"""Before the reason, in what a stage remembers."""
MOST_TOLD = 10
"""Broken rows that are named."""


class GapData(Recipe):
    """Everything but the algorithm."""

    settings: GapSettings

    def __init__(self, settings: GapSettings) -> None:
        super().__init__(settings)
        agents = agents_of(self.environment)
        if len(self.environment.actors) != 1 or len(agents) != 1:
            raise UserError(
                f"{self.name} trains one agent, and {settings.played} has {', '.join(self.environment.actors)}",
                "use environment=mhqa, web, code or code_maths",
            )
        (self.agent,) = agents
        expert = settings.imitates and settings.traces.source == EXPERT
        if expert and not isinstance(self.environment, Demonstrates):
            raise UserError(
                f"traces=expert: nobody knows how {settings.played} is done",
                "give traces=FILE, with trajectories of an agent that can do it; mhqa alone has an expert",
            )
        self._check_form()
        if settings.imitates and not self.closed:
            self._check_calls()

    def _check_calls(self) -> None:
        syntax = self.environment.syntax
        if not isinstance(syntax, Tags):
            raise UserError(
                "traces are written in tags, and tools.calls=native asks for calls in the syntax of the model",
                "use tools.calls=inline, or tags",
            )
        if self.settings.traces.source == EXPERT and SEARCH not in syntax.calls:
            raise UserError(
                f"traces=expert: the expert calls {SEARCH}, which is not a tool of this run",
                f"name it in tools.use; there is {', '.join(syntax.calls)}",
            )

    def _check_form(self) -> None:
        """Answers alone are learned without tools (the environment refuses some), and only so."""
        own = self.settings.environment
        closed = isinstance(own, AgentSettings) and own.prompt == "closed"
        if closed != self.closed:
            raise UserError(
                f"traces.form={self.settings.traces.form} with environment.prompt={getattr(own, 'prompt', None)}",
                "for a control without tools give traces.form=closed environment.prompt=closed tools=[], or none of "
                "the three",
            )

    @property
    def closed(self) -> bool:
        return self.settings.traces.form == "closed"

    def roles(self) -> tuple[Role, ...]:
        """The policy; and the critic, where values say what is to be expected."""
        critic = self.settings.reinforces and self.settings.rl.has_critic
        own = super().roles()
        return (*own, Role(CRITIC, self.settings.model, head=True)) if critic else own

    def openers(self) -> Openers:
        """The sandbox, for grading and for tools that run code."""
        return {Sandbox: Sandbox}

    def plan(self) -> Plan:
        """Size of the run. Raises ``UserError`` for a missing file, too."""
        s = self.settings
        if s.imitates and s.traces.source != EXPERT and not self.file.is_file():
            raise UserError(
                f"traces.source={self.file} is not a file", "correct the path, or use traces=expert"
            )
        if s.reinforces:
            return reinforced_plan(s.rl, s, super().plan, "rl.")
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.settings.train} if self.settings.imitates else {}

    def training_tasks(self) -> int:
        s, rl = self.settings, self.settings.rl
        shown = s.traces.tasks if s.imitates and s.traces.source == EXPERT else 0
        return max(shown, rl.rollout.tasks * rl.steps.count if s.reinforces else 0)

    def dialogues(self) -> int:
        """The traces, and the paths of all steps."""
        s = self.settings
        return s.traces.tasks * s.imitates + s.rl.paths * s.reinforces

    # -- traces ---------------------------------------------------------------------------------

    @cached_property
    def file_content(self) -> str:
        """What the file of traces is made of; empty where there is none.

        One that is gone is missed only by what reads it (:meth:`plan`): a run that has read it is still a run.
        """
        used = self.settings.traces.source != EXPERT and self.file.is_file()
        return sha256(self.file) if used else ""

    @property
    def file(self) -> Path:
        return expanded(self.settings.traces.source)

    @cached_property
    def heldout_questions(self) -> HeldOutQuestions:
        return HeldOutQuestions(map(question_of, self.heldout_tasks()))

    async def play_traces(self, run: Run, progress: Progress) -> Metrics:
        """Play all traces into the record. Gives how many tasks have none, by the reason."""
        renderer, _ = load_renderer(self.settings.model, self.settings.engine.template_args)
        if self.settings.traces.source == EXPERT:
            return await self._play_expert(run, renderer, progress)
        return await self._play_file(run, renderer, progress)

    async def _play_expert(self, run: Run, renderer: ChatRenderer, progress: Progress) -> Metrics:
        assert isinstance(self.environment, Demonstrates), "that was checked"
        s, scripts = self.settings.traces, dict[str, Sequence[str]]()
        tasks = self.environment.tasks("train", s.tasks, self.settings.seed)
        without = Counter[str]()
        for task in tasks:
            try:
                scripts[task.id] = self.environment.trace(task).messages(s.form)
            except NoTrace as error:
                without[str(error)] += 1
        episodes = [Episode(task, 0, 0, "rollout") for task in tasks if task.id in scripts]
        if not episodes:
            raise UserError(
                f"the expert has no trace for any of {len(tasks)} training tasks: {_listed(without)}",
                "use a data set with supporting facts (2wiki, hotpot_qa, musique), or traces=FILE",
            )
        speaks = ScriptedSampler(renderer, lambda task: scripts[task.id], EXPERT)
        async with self.cast(run) as cast:
            driver = cast.driver({self.agent: speaks}, self.settings.seed)
            await play(run.store, driver, episodes, progress, lambda: 0)
        return {f"{WITHOUT}{reason}": count for reason, count in without.items()}

    async def _play_file(self, run: Run, renderer: ChatRenderer, progress: Progress) -> Metrics:
        found = read_traces(self.file, progress)
        rows, asked, broken = list[TraceRow](), Counter[str](), list(found.broken)
        for number, row in zip(found.numbers, found.rows, strict=True):
            if self.heldout_questions.asked_in(row.prompt):
                asked["ask held-out questions"] += 1
            elif reason := self._unsaid(row):
                broken.append(BrokenTrace(number, reason))
            else:
                rows.append(row)
        unique = {task_of(row).id: row for row in rows}
        asked["ask the same as another one"] += len(rows) - len(unique)
        asked["can't be read"] += len(broken)
        if broken:
            broken.sort(key=attrgetter("row"))
            progress.say(f"{self.file}: {_broken(broken)}")
        if not unique and broken:
            raise UserError(
                f"no trace of {self.file} can be trained on: row {broken[0].row} {broken[0].reason}",
                "correct the traces, or give the tools that they call (tools.use, tools.config)",
            )
        if not unique:
            raise UserError(
                f"every trace of {self.file} asks a held-out question",
                "give traces of other questions: those that are evaluated on are not learned",
            )
        few = list(unique.values())[: self.settings.traces.tasks]
        told = ToldEnvironment(self.environment, few, closed=self.closed)
        speaks = ScriptedSampler(renderer, told.script, self.file.name)
        driver = Driver(told, {self.agent: speaks}, seed=self.settings.seed, shared=Shared())
        episodes = [Episode(task, 0, 0, "rollout") for task in told.own_tasks]
        await play(run.store, driver, episodes, progress, lambda: 0)
        return {f"{LEFT_OUT}{reason}": count for reason, count in asked.items() if count}

    def _unsaid(self, row: TraceRow) -> str:
        """Why the agent could not have said a trace; answers alone it can always say."""
        if self.closed:
            return ""
        assert isinstance(self.environment.syntax, Tags), "that was checked"
        return unsaid(row.output, self.environment.syntax)

    @property
    def scored(self) -> bool:
        """Whether traces have scores: a file does not say what is right."""
        return self.settings.traces.source == EXPERT

    def unscored(self, run: Run, found: Metrics) -> Metrics:
        """A summary of traces of which none has a score, and none failed for that."""
        failed = len([key for key, _ in run.store.failures(0) if key.stage == "rollout"])
        return {name: told for name, told in found.items() if name != "score"} | {"failed": failed}

    # -- selection ------------------------------------------------------------------------------

    def chosen(self, run: Run, iteration: int) -> tuple[list[Selection], Metrics]:
        """Traces to learn from, and how many are left out, by the reason."""
        chosen, counts = list[Selection](), Counter[str]()
        tasks = self._tasks()
        for tree in run.store.trees(iteration, "rollout"):
            for outcome, _ in tree.trajectories():
                reason = self._flaw(tree, outcome.leaf, outcome.score, tasks.get(tree.task))
                counts[reason] += 1
                if not reason:
                    chosen.append(Selection(outcome.leaf, self.agent))
        return chosen, {f"{LEFT_OUT}{reason}": n for reason, n in counts.items() if reason}

    def _tasks(self) -> Mapping[str, Task]:
        if self.settings.traces.source != EXPERT:
            return {}
        found = self.environment.tasks("train", self.settings.traces.tasks, self.settings.seed)
        return {task.id: task for task in found}

    def _flaw(self, tree: Tree, leaf: str, score: float | None, task: Task | None) -> str:
        if self.closed:
            return "the answer is not right" if task and not score else ""
        path = tree.path(leaf)
        calls = sum(len(turn.calls) for turn in path)
        if calls < self.settings.traces.min_calls:
            return "too few calls"
        if task is None:
            return ""
        assert isinstance(self.environment, Demonstrates), "that was checked"
        shown = [result.text for turn in path for result in turn.results]
        if not self.environment.grounded(task, shown):
            return "the facts were not found"
        return "" if score else "the answer is not right"

    # -- training -------------------------------------------------------------------------------

    def imitate_traces(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """SFT on what was selected. Says before it how long rows are, and shows one."""
        found = [
            row
            for tree, one in selected(run, iteration)
            for row in rows(view(tree, one.leaf, one.agent))
            if row.targets
        ]
        if not found:
            raise UserError(
                "no trace is left to learn from",
                "`coterie report` says why; lower traces.min_calls, or give tools that find more",
            )
        lengths = self.checked_lengths(found)
        model = self.models(run).load_to_train(self.leading, 0)
        progress.say(f"lengths of {len(found)} rows: {lengths}")
        progress.say(
            f"one row, with what is not trained in brackets:\n{shown_row(model.renderer, found[0])}"
        )
        own = self._as_long(found, model, self.seeded(self.settings.train.plain, iteration))
        most = max_row_length(model.model, own)
        fitting = [row for row in found if len(row.ids) <= most]
        targets = sum(row.target_count for row in fitting)
        progress.say(f"targets: {targets:,} tokens an epoch, in {len(fitting)} rows that fit")
        return train_role(run, iteration, model, found, own, progress, role=self.leading)

    def _as_long(
        self, found: Sequence[Row], model: LoadedModel, own: TrainingSettings
    ) -> TrainingSettings:
        tokens = self.settings.train.target_tokens
        if tokens is None:
            return own
        steps, epochs = steps_for_targets(model.model, found, own, tokens)
        return own.model_copy(update={"max_steps": steps, "epochs": epochs})

    def checked_lengths(self, found: Sequence[Row]) -> str:
        """Quantiles of the rows' lengths. Raises ``UserError`` if too many are longer than they may be."""
        lengths = sorted(len(row.ids) for row in found)
        most, allowed = self.settings.train.max_length, self.settings.traces.max_truncated
        too_long = sum(length > most for length in lengths) / len(lengths)
        at = {q: lengths[min(len(lengths) - 1, int(q * len(lengths)))] for q in QUANTILES}
        told = ", ".join(f"{100 * q:g}% within {n:,} tokens" for q, n in at.items())
        if too_long > allowed:
            raise UserError(
                f"{100 * too_long:.0f}% of the traces are longer than train.max_length={most:,} ({told}), and "
                f"traces.max_truncated allows {100 * allowed:g}%",
                f"raise train.max_length, lower tools' topk, or set traces.max_truncated={too_long:.2f}",
            )
        return told


def _broken(found: Sequence[BrokenTrace]) -> str:
    told = "; ".join(f"row {one.row} {one.reason}" for one in found[:MOST_TOLD])
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return f"{len(found)} left out: {told}{more}"


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in counts.items())
