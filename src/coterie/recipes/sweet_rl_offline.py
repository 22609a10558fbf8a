"""Dialogues of SWEET-RL's offline files as the dialogues of a run.

A row is one dialogue, from the user's request to the agent's last turn:

    {"task": {"problem_description", "ground_truth", "test_cases", ...},
     "dialogue_history": [{"role": "user", "content"}, {"role": "assistant", "content", "output"}, ...],
     "answer", "reward"}

``content`` is the text visible to the other side, ``output`` the agent's raw completion. Each dialogue is rebuilt under
the prompts of the run's environment.
"""

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from coterie.datasets.code_rows import CodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.rows import Frozen, SetRow
from coterie.engines.protocol import EngineError
from coterie.environments.coding import BackendProgramming
from coterie.environments.collaboration import visible
from coterie.environments.protocol import AGENT, Grade, Shared, State, faults_of
from coterie.environments.user_simulator import PERSON, with_leaks
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.plan import content_of
from coterie.recipes.sweet_rl_settings import FIRST, SweetSettings
from coterie.record.tree import ANSWERED, TURNS, ItemKey, Metrics, Outcome, Task, Tree
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.samplers import MIN_ROOM, AgentContext, Prompt
from coterie.rollout.script_player import recorded_response
from coterie.runs.run import Run
from coterie.runs.work_items import ItemResult, do_items, summary
from coterie.tools.sandbox.pool import Sandbox

IN_FLIGHT = 16
"""Dialogues rebuilt and graded concurrently."""


class HistoryTurn(Frozen):
    """One turn of a dialogue."""

    role: Literal["user", "assistant"]
    content: str
    output: str | None = None


class OfflineDialogue(SetRow):
    """One row of the file."""

    task: CodeRow
    dialogue_history: tuple[HistoryTurn, ...] = Field(min_length=2)
    answer: str | None = None
    reward: float | None = Field(None, ge=0, le=1)
    """Share of tests passed; ``None`` if the file has no reward."""

    @model_validator(mode="after")
    def _check_dialogue(self) -> Self:
        roles = [turn.role for turn in self.dialogue_history]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ValueError(
                "turns must alternate, starting with the user and ending with the assistant"
            )
        if self.task.flaw:
            raise ValueError(f"its task {self.task.flaw}")
        return self


@dataclass(frozen=True, slots=True)
class Replay:
    """Rebuilds and grades dialogues under the run's prompts."""

    environment: BackendProgramming
    renderer: ChatRenderer
    context: int
    """Context length of the model in tokens."""
    author: str
    shared: Shared

    async def finish(self, key: ItemKey, task: Task, row: OfflineDialogue) -> ItemResult:
        """Rebuild and grade a dialogue. Fails the item if the context is too short or grading fails."""
        tree, state, room = self._tree(task, int(key.sample), row)
        tokens: Metrics = {"tokens": dialogue_tokens(state.turns)}
        # A dialogue that exceeds the context could not have been sampled from this model.
        if room > self.context:
            reason = (
                f"out of context: the dialogue needs {room} tokens, the model has {self.context}"
            )
            return ItemResult(key, tokens, failure=reason)
        # A reward in the file replaces the tests, which would have to run in the sandbox.
        if row.reward is not None:
            turns = sum(turn.speaker.name == AGENT for turn in state.turns)
            grade = Grade(float(row.reward >= 1), {"turns": turns, "fraction": row.reward})
        else:
            try:
                with faults_of(self.environment):
                    grade = await self.environment.grade(state, self.shared)
                    grade = await with_leaks(self.environment, state, grade)
            except EngineError as error:
                return ItemResult(key, tokens, failure=str(error))
        assert state.end is not None
        tree.end(Outcome(state.turns[-1].id, int(key.sample), state.end, state.answer, grade.score))
        return ItemResult(key, {**tokens, **grade.metrics}, tree)

    def _tree(self, task: Task, sample: int, row: OfflineDialogue) -> tuple[Tree, State, int]:
        """Return the dialogue as a tree with one path, its last state, and the context tokens it needs."""
        tree = Tree(task.id, "rollout", FIRST)
        context, turns, room = AgentContext(), tuple[Turn, ...](), 0
        for line in row.dialogue_history:
            node = turns[-1].id if turns else tree.root
            if line.role == "user":
                # The first message is the request of the task, later ones are the user's replies.
                part = Part(line.content, source=PERSON if turns else "task")
                turn = make_turn(node, Speaker("person", PERSON), [part], author=self.author)
                tree.add(turn)
            else:
                messages = self.environment.observe(State(task, 0, turns=turns), AGENT)
                prompt = Prompt(tree, node, AGENT, messages, 0, sample)
                # The raw completion is trained on; the visible text may lack parts of it.
                text = line.content if line.output is None else line.output
                replayed = recorded_response(prompt, context, text, self.author, self.renderer)
                turn = replayed.turn
                context = context.after(turn, replayed.request)
                tree.add(turn, replayed.request)
                # As in sampling, a prompt must leave room for a reply of at least `MIN_ROOM`
                # tokens.
                prompt_length = len(context.ids) - len(turn.ids)
                room = max(room, prompt_length + max(len(turn.ids), MIN_ROOM))
            turns += (turn,)
        last_text = turns[-1].text
        tagged = self.environment.answer(last_text)
        # Without an answer in the file or in tags, the visible part of the last message is the
        # answer.
        answer = row.answer or tagged or visible(last_text).strip()
        ending = TURNS if tagged is None else ANSWERED
        return tree, State(task, 0, turns=turns, answer=answer, end=ending), room


async def play_offline(
    environment: BackendProgramming, s: SweetSettings, run: Run, file: Path, progress: Progress
) -> Metrics:
    """Write the dialogues of a file to the store, and grade those without a reward in the sandbox.

    Raises ``UserError`` for a broken row, and if no dialogue is left to train on.
    """
    dialogues, left_out = _dialogues(environment, s, file, progress)
    run.store.put_tasks({task.id: task for task, _ in dialogues.values()}.values())
    renderer, context = load_renderer(s.model, s.engine.template)
    async with AsyncExitStack() as stack:
        shared = Shared()
        # The sandbox starts only if a dialogue has no reward.
        if any(row.reward is None for _, row in dialogues.values()):
            sandbox = Sandbox(s.sandbox)
            shared = Shared(await stack.enter_async_context(sandbox))
        replay = Replay(environment, renderer, context, f"import:{file.name}", shared)
        items = {key: partial(replay.finish, key, *dialogue) for key, dialogue in dialogues.items()}
        title = f"read {file.name}"
        await do_items(run.store, items, progress, "dialogues", title, in_flight=IN_FLIGHT)
    return {**summary(run.store, FIRST, "rollout"), "held_out": left_out}


def _dialogues(
    environment: BackendProgramming, s: SweetSettings, file: Path, progress: Progress
) -> tuple[dict[ItemKey, tuple[Task, OfflineDialogue]], int]:
    """Return the dialogues within the limits of ``rollout``, and the number of held-out dialogues."""
    # A file may have its own ids, so held-out tasks are also recognized by content.
    held_out = {
        key
        for task in environment.tasks("heldout", 10**9, s.seed)
        for key in (task.id, content_of(task, environment))
    }
    limits, left_out = s.rollout, 0
    dialogues: dict[ItemKey, tuple[Task, OfflineDialogue]] = {}
    task_rows, repeats = dict[str, CodeRow](), Counter[str]()
    for row in read_rows(file, OfflineDialogue, progress):
        task = environment.task_of(row.task)
        if task.id in held_out or content_of(task, environment) in held_out:
            left_out += 1
            continue
        if task.id not in task_rows and len(task_rows) == limits.tasks:
            continue
        if task_rows.setdefault(task.id, row.task) != row.task:
            problem = f"{file} has two tasks with the id {row.task.id}"
            raise UserError(problem, "give each task a unique id")
        if repeats[task.id] < limits.rollouts_per_task:
            key = ItemKey(FIRST, "rollout", task.id, f"{repeats[task.id]:04d}")
            repeats[task.id] += 1
            dialogues[key] = (task, row)
    if not dialogues:
        problem = f"every dialogue of {file} has a held-out task"
        raise UserError(problem, "give a file with training tasks")
    return dialogues, left_out
