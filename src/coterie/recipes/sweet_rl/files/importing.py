"""Import of a file of trajectories of SWEET-RL's released code as the dialogues of round 0 of a new run.

Each dialogue becomes a path of turns that nobody here sampled, under the prompts of the run's own environment: the
run goes on as if its policy had said them. The file is read a task at a time.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coterie.config.plain import wrong_at
from coterie.engines.protocol import EngineError
from coterie.environments.coding import AGENT
from coterie.environments.colbench import BackendProgramming
from coterie.environments.faults import faults_of
from coterie.environments.protocol import Grade, Shared, State
from coterie.environments.talk import ANSWERED
from coterie.environments.user_simulator import PERSON, SCRIPT, check_script
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.importing import finish_imported, imported_run
from coterie.recipes.plan import content_of
from coterie.recipes.sweet_rl.files.records import Trajectories, TrajectoryRow, blocks
from coterie.recipes.sweet_rl.recipe import FIRST, SweetRL
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.flight import in_flight
from coterie.rollout.recorded import recorded
from coterie.rollout.samplers import MIN_ROOM, AgentContext, Prompt
from coterie.runs.folder import Run, Step
from coterie.runs.play import summary
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import TURNS, Outcome, Tree
from coterie.trajectories.turn import Part, Speaker, Turn, make_turn

ROLLOUT = Step(FIRST, "rollout")
TASKS_IN_FLIGHT = 16
"""So many tasks are in memory at a time."""


@dataclass(frozen=True, slots=True)
class SweetSurvey:
    """What a file holds, known once all its lines have been read and found whole."""

    tasks: int
    repeats: int
    """Dialogues of each task."""
    without_reward: int
    """Dialogues that are to be graded here."""


@dataclass(frozen=True, slots=True)
class SweetImported:
    """What came of an import."""

    tasks: int
    dialogues: int
    failed: int
    """Dialogues that the model has no room for, or whose task can't be graded."""
    held_out: int
    """Tasks that were left out, for the run's data set holds them out."""


@dataclass(frozen=True, slots=True)
class _Dialogue:
    """A dialogue, or why it can't be used."""

    key: ItemKey
    tree: Tree | None
    metrics: Metrics
    failure: str | None = None


def survey(rows: Trajectories, repeats: int | None = None) -> SweetSurvey:
    """Read a whole file. Without ``repeats``, they begin where the first row's task comes again.

    Raises ``UserError`` that names a line which is broken, or whose task is not that of its other repeats.
    """
    count = repeats or _repeats(rows)
    known: dict[str, tuple[int, bytes]] = {}
    lacking = tasks = 0
    for tasks, block in enumerate(blocks(rows, count), 1):
        for repeat, row in enumerate(block):
            index = repeat * (len(rows) // count) + tasks - 1
            _check(rows, index, row, known)
            lacking += row.reward is None
    return SweetSurvey(tasks, count, lacking)


def environment_of(recipe: SweetRL) -> BackendProgramming:
    """The run's environment. Raises ``UserError`` if it isn't ColBench's, or nobody can play its person."""
    environment = recipe.environment
    if not isinstance(environment, BackendProgramming):
        raise UserError(
            f"{recipe.settings.played} is not of the form of ColBench",
            "use dataset=colbench_code: the file's tasks are of its form",
        )
    user_simulator = recipe.settings.user_simulator
    if user_simulator.url is None and user_simulator.model == SCRIPT:
        check_script(environment.script)
    return environment


def import_trajectories(
    rows: Trajectories, recipe: SweetRL, folder: Path, progress: Progress, *, found: SweetSurvey
) -> SweetImported:
    """Make a run folder of a file that was surveyed; it appears when it is whole.

    Its dialogues of round 0 are then finished. Those without a reward are graded in the sandbox. Raises
    ``UserError`` if the folder exists, the run is of another environment, or nothing could be used.
    """
    environment = environment_of(recipe)
    renderer, context = load_renderer(recipe.settings.model)
    with imported_run(recipe, folder, progress) as run:
        work = _SweetImport(rows, recipe, environment, run, renderer, context)
        return asyncio.run(work.do(found, progress))


class _SweetImport:
    """One import into an open run."""

    def __init__(
        self,
        rows: Trajectories,
        recipe: SweetRL,
        environment: BackendProgramming,
        run: Run,
        renderer: ChatRenderer,
        context: int,
    ) -> None:
        self.rows = rows
        self.recipe = recipe
        self.environment = environment
        self.run = run
        self.renderer = renderer
        self.context = context
        self.author = f"import:{rows.path.name}"
        self.shared = Shared()
        self.samples: dict[str, int] = {}
        """How many dialogues each task has so far."""
        self.left_out = 0

    async def do(self, found: SweetSurvey, progress: Progress) -> SweetImported:
        """Import every dialogue and mark the rollouts as finished."""
        dialogues = failed = 0
        progress.start(found.tasks, f"import {self.rows.path.name}")
        async with AsyncExitStack() as stack:
            if found.without_reward:
                sandbox = Sandbox(self.recipe.settings.sandbox)
                self.shared = Shared(await stack.enter_async_context(sandbox))
            working = in_flight(self._work(found, progress), TASKS_IN_FLIGHT)
            async for task, done in await stack.enter_async_context(working):
                with self.run.store.together():
                    self.run.store.put_tasks([task])
                    for one in done:
                        self.run.store.finish(
                            one.key, tree=one.tree, metrics=one.metrics, failure=one.failure
                        )
                dialogues += len(done)
                failed += sum(one.failure is not None for one in done)
                progress.advance(1)
        if dialogues == failed:
            raise UserError(
                f"{self.rows.path} has no dialogue that could be trained on ({self.left_out} of "
                f"{found.tasks} tasks are held out in this run, {failed} dialogues failed)",
                "give a file of training tasks, and a model with room for their dialogues",
            )
        metrics = summary(self.run.store, FIRST, ROLLOUT.stage)
        finish_imported(self.recipe, self.run, ROLLOUT, self.rows.path, metrics)
        return SweetImported(len(self.samples), dialogues, failed, self.left_out)

    def _work(
        self, found: SweetSurvey, progress: Progress
    ) -> Iterator[Coroutine[Any, Any, tuple[Task, list[_Dialogue]]]]:
        """The tasks that are not held out, each with its dialogues as numbered samples."""
        everything = self.environment.tasks("heldout", 10**9, self.recipe.settings.seed)
        held_out = {key for task in everything for key in (task.id, content_of(task))}
        for place, block in enumerate(blocks(self.rows, found.repeats)):
            task = self.environment.task(block[0].task.code_row())
            if task.id in held_out or content_of(task) in held_out:
                self.left_out += 1
                progress.advance(1)
                continue
            first = self.samples.get(task.id, 0)
            self.samples[task.id] = first + len(block)
            yield self._dialogues(place, task, first, block)

    async def _dialogues(
        self, place: int, task: Task, first: int, block: tuple[TrajectoryRow, ...]
    ) -> tuple[Task, list[_Dialogue]]:
        numbered = enumerate(block, first)
        return task, [await self._dialogue(place, task, n, row) for n, row in numbered]

    async def _dialogue(self, place: int, task: Task, sample: int, row: TrajectoryRow) -> _Dialogue:
        key = ItemKey(FIRST, ROLLOUT.stage, task.id, f"{sample:04d}")
        tree, state, room = self._replay(task, sample, row)
        tokens = {"tokens": dialogue_tokens(state.turns)}
        if room > self.context:
            why = (
                f"out of context: the dialogue needs {room} tokens, the model takes {self.context}"
            )
            return _Dialogue(key, None, tokens, f"{self.rows.path.name}, task {place + 1}: {why}")
        try:
            grade = await self._grade(row, state)
        except EngineError as error:
            return _Dialogue(key, None, tokens, str(error))
        assert state.end is not None
        tree.end(Outcome(state.turns[-1].id, sample, state.end, state.answer, grade.score))
        return _Dialogue(key, tree, {**tokens, **grade.metrics})

    async def _grade(self, row: TrajectoryRow, state: State) -> Grade:
        if row.reward is None:
            with faults_of(self.environment):
                return await self.environment.grade(state, self.shared)
        turns = sum(turn.speaker.name == AGENT for turn in state.turns)
        return Grade(float(row.reward >= 1), {"turns": turns, "fraction": row.reward})

    def _replay(self, task: Task, sample: int, row: TrajectoryRow) -> tuple[Tree, State, int]:
        """The dialogue as a tree of one path, its last state, and how many tokens of context it needs."""
        tree = Tree(task.id, ROLLOUT.stage, FIRST)
        context, turns, room = AgentContext(), tuple[Turn, ...](), 0
        for line in row.dialogue_history:
            node = turns[-1].id if turns else tree.root
            if line.role == "user":
                part = Part(line.content, source=PERSON if turns else "task")
                turn = make_turn(node, Speaker("person", PERSON), [part], author=self.author)
                tree.add(turn)
            else:
                shown = self.environment.see(State(task, 0, turns=turns), AGENT)
                prompt = Prompt(tree, node, AGENT, shown, 0, sample)
                text = line.content if line.output is None else line.output
                spoken = recorded(prompt, context, text, self.author, self.renderer)
                turn = spoken.turn
                tree.add(turn, spoken.request)
                prompt_tokens = len(context.ids) - len(turn.ids)
                room = max(room, prompt_tokens + max(len(turn.ids), MIN_ROOM))
            turns += (turn,)
        last = turns[-1].text
        given = self.environment.answer(last)
        answer = row.answer or given or self.environment.visible(last).strip()
        ending = TURNS if given is None else ANSWERED
        end = State(task, 0, turns=turns, answer=answer, end=ending)
        return tree, end, room


def _repeats(rows: Trajectories) -> int:
    """How many times the first row's task should come, by where it comes again."""
    if not rows:
        return 1
    first = rows[0].task.problem_description
    again = (n for n in range(1, len(rows)) if rows[n].task.problem_description == first)
    return -(-len(rows) // next(again, len(rows)))


def _check(
    rows: Trajectories, index: int, row: TrajectoryRow, known: dict[str, tuple[int, bytes]]
) -> None:
    """Refuse a row of no function, a reward that is not a share, and two tasks of one id.

    ``known`` are the tasks so far: by id, the index of the first row, and a hash of the content.
    """
    try:
        task = row.task.code_row()
    except ValidationError as error:
        raise rows.broken(index, f"task.{wrong_at(error.errors()[0])}") from error
    if not task.usable:
        raise rows.broken(
            index, "task.test_cases: there are none, so this is not a task of a function"
        )
    if row.reward is not None and not 0 <= row.reward <= 1:
        raise rows.broken(index, f"reward: {row.reward} is not a share of tests, between 0 and 1")
    content = hashlib.sha256(task.model_dump_json().encode()).digest()
    before, same = known.setdefault(task.id, (index, content))
    if same != content:
        raise rows.broken(
            index,
            f"its task has the id of that in row {before + 1} ({task.id}), and another reference or other tests",
        )
