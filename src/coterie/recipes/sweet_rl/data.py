"""Rewards, dialogues, pairs and critic prompts of SWEET-RL.

A row is one dialogue, from the user's request to the agent's last turn:

    {"task": {"problem_description", "ground_truth", "test_cases", ...},
     "dialogue_history": [{"role": "user", "content"}, {"role": "assistant", "content", "output"}, ...],
     "answer", "reward"}

``content`` is the text visible to the other side, ``output`` the agent's raw completion. Each dialogue is rebuilt under
the prompts of the run's environment.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from coterie.config.folders import expanded, sha256
from coterie.datasets.code_rows import CodeRow
from coterie.datasets.files import read_rows
from coterie.datasets.rows import Frozen, SetRow
from coterie.engines.chat_model import check_chat
from coterie.engines.protocol import POLICY, EngineError
from coterie.environments.checks import faults_of
from coterie.environments.coding import AGENT, CRITIC, BackendProgramming, Coding, with_reference
from coterie.environments.protocol import Grade, Openers, Shared, State
from coterie.environments.registry import check_no_tools
from coterie.environments.talk import ANSWERED
from coterie.environments.user_simulator import PERSON, REFERENCE
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, content_of
from coterie.recipes.sweet_rl.settings import SweetSettings
from coterie.record.rows import Pair, View, recontext, trajectory_pair, turn_pair, view
from coterie.record.tree import TURNS, ItemKey, Metrics, Outcome, Selection, Task, Tree
from coterie.record.turn import Part, Speaker, Turn, make_turn
from coterie.rollout.candidates import PlayedDialogue
from coterie.rollout.episodes import Episode, dialogue_tokens
from coterie.rollout.recorded_turns import recorded_response
from coterie.rollout.samplers import MIN_ROOM, AgentContext, Prompt
from coterie.runs.actors import Actors, open_actors
from coterie.runs.folder import Run
from coterie.runs.items import Done, do_items, summary
from coterie.runs.roles import load_selections
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings

PRIVILEGED = "with_reference"
"""Recontext rule of the critic's rows, whose prompts contain the reference."""
FIRST = 0
"""Round of the dialogues and the critic."""
SECOND = 1
"""Round of the candidates and the policy."""


class SweetData(Recipe):
    """Data of the SWEET-RL stages."""

    settings: SweetSettings
    environment: Coding

    def __init__(self, settings: SweetSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, Coding):
            raise UserError(
                f"{self.name} needs a coding environment, and {settings.played} is not one",
                "remove dataset and environment, use dataset=colbench_code, or derive your environment from "
                "coterie.environments.coding.Coding",
            )

    @property
    def uses_critic(self) -> bool:
        """True for ``method=sweet``, whose round 1 needs a critic or a judge."""
        return self.settings.method == "sweet"

    def plan(self) -> Plan:
        """Return the size of the run. Raises ``UserError`` for a missing judge or file of dialogues."""
        check_chat("critic.judge", self.settings.critic.judge, POLICY)
        if self.settings.offline is not None:
            self._check_offline(expanded(self.settings.offline))
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return self.settings.trainings

    def dialogues(self) -> int:
        """Return the number of dialogues; n candidates for every turn of a dialogue count as n dialogues."""
        s = self.settings
        sampled_dialogues = len(self.train_tasks()) * s.rollout.repeats
        branched = max(1, int(sampled_dialogues * s.candidates.share)) * s.candidates.count
        return sampled_dialogues + branched * self.uses_critic

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """Return the tokens of a turn, plus the tokens of the longest reference if the critic reads it."""
        critic, reference_tokens = self.settings.critic, 0
        if self.uses_critic and critic.kind != "judge" and critic.privileged:
            texts = (task.secrets[REFERENCE].reveal(CRITIC) for task in train)
            reference_tokens = max(len(renderer.encode_turn(text)) for text in texts)
        return self.settings.max_tokens + reference_tokens

    def _check_offline(self, file: Path) -> None:
        """Check that the file of dialogues exists and fits the environment."""
        if not isinstance(self.environment, BackendProgramming):
            raise UserError(
                f"offline needs ColBench tasks, and {self.settings.played} has other tasks",
                "use dataset=colbench_code",
            )
        if not file.is_file():
            raise UserError(f"offline={file} is not a file", "correct the path")

    @cached_property
    def offline_content(self) -> tuple[str, ...]:
        """Checksum of the file of dialogues, if there is one."""
        file = None if self.settings.offline is None else expanded(self.settings.offline)
        return () if file is None else (sha256(file) if file.is_file() else "",)

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    def actors(self, run: Run) -> AbstractAsyncContextManager[Actors]:
        person, logs = self.settings.user_simulator, run.folder / "user_simulator"
        return open_actors(self.environment, logs, person, self.openers())

    def train_tasks(self) -> list[Task]:
        return self.environment.tasks("train", self.settings.rollout.tasks, self.settings.seed)

    def episodes(self) -> list[Episode]:
        """Return k episodes per task."""
        repeats = range(self.settings.rollout.repeats)
        return [
            Episode(t, sample, FIRST, "rollout") for t in self.train_tasks() for sample in repeats
        ]

    def context(self, iteration: int) -> str | None:
        """Return the recontext rule of a round; the critic's prompts may contain the reference."""
        privileged = iteration == FIRST and self.uses_critic and self.settings.critic.privileged
        return PRIVILEGED if privileged else None

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield the role, tree and selection of each training item. The critic trains on the dialogues of round 0."""
        role = CRITIC if iteration == FIRST and self.uses_critic else self.main_role
        for tree, selection in load_selections(run, iteration):
            yield role, tree, selection

    def critic_training(self) -> tuple[object, ...]:
        s = self.settings.critic
        return (
            *(s.kind, s.privileged, s.objective.fingerprint()),
            *(s.train.identity(), s.judge.identity()),
        )

    def first_training(self) -> tuple[object, ...]:
        s = self.settings
        if self.uses_critic:
            return self.critic_training()
        if s.method == "rejection_ft":
            return (s.rejection_ft.train.identity(),)
        return (s.multi_turn_dpo.objective.fingerprint(), s.multi_turn_dpo.train.identity())


def rewards(run: Run) -> dict[tuple[str, int], float]:
    """Return the share of tests that each dialogue's answer passes, by task and sample."""
    fractions = {}
    for key, metrics in run.store.metrics(FIRST, "rollout").items():
        if key.task and "fraction" in metrics:
            fractions[key.task, int(key.sample)] = float(metrics["fraction"])
    return fractions


def dialogues_to_branch(run: Run, share: float) -> list[PlayedDialogue]:
    """Return the dialogues whose turns get candidates: the first of every task before the second of any task."""
    keys = sorted((sample, task) for task, sample in rewards(run))
    dialogues = []
    for sample, name in keys[: max(1, int(len(keys) * share))]:
        tree = run.store.tree(FIRST, "rollout", name)
        path = next(path for o, path in tree.trajectories() if o.sample == sample)
        dialogues.append(PlayedDialogue(run.store.task(name), sample, path))
    return dialogues


def pairs(run: Run, iteration: int, model: LoadedModel, context: str | None) -> list[Pair]:
    """Return the selected pairs in ``context``: of whole dialogues in round 0, of turns in round 1."""
    pairs = []
    for tree, selection in load_selections(run, iteration):
        assert selection.rejected is not None, "the selections are pairs"
        task = run.store.task(tree.task)
        better, worse = (
            dialogue_view(task, tree, leaf, context, model)
            for leaf in (selection.leaf, selection.rejected)
        )
        if iteration == FIRST:
            pairs.append(trajectory_pair(better, worse, group=tree.task))
        else:
            pairs.append(turn_pair(better, worse, group=tree.turns[selection.leaf].parent))
    return pairs


def dialogue_view(
    task: Task, tree: Tree, leaf: str, context: str | None, model: LoadedModel
) -> View:
    """Return a dialogue in the agent's view, or with the reference in the context :data:`PRIVILEGED`."""
    if context is None:
        return view(tree, leaf, AGENT)
    render = partial(model.renderer.render, privileges=CRITIC)
    return recontext(tree, leaf, AGENT, name=context, edit=with_reference(task), render=render)


def critic_prompt(
    task: Task, tree: Tree, turn: Turn, model: LoadedModel, *, privileged: bool
) -> tuple[int, ...]:
    """Return the token ids of a turn's prompt in the critic's view."""
    assert turn.prompt is not None, "a candidate answers a request"
    messages = tree.messages(tree.requests[turn.prompt])
    if not privileged:
        return model.renderer.render(messages, tree, AGENT)
    return model.renderer.render(with_reference(task)(messages), tree, AGENT, privileges=CRITIC)


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
        if not self.task.usable:
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

    async def finish(self, key: ItemKey, task: Task, row: OfflineDialogue) -> Done:
        """Rebuild and grade a dialogue. Fails the item if the context is too short or grading fails."""
        tree, state, room = self._tree(task, int(key.sample), row)
        tokens: Metrics = {"tokens": dialogue_tokens(state.turns)}
        if room > self.context:
            why = f"out of context: the dialogue needs {room} tokens, the model has {self.context}"
            return Done(key, tokens, failure=why)
        try:
            grade = await self._grade(row, state)
        except EngineError as error:
            return Done(key, tokens, failure=str(error))
        assert state.end is not None
        tree.end(Outcome(state.turns[-1].id, int(key.sample), state.end, state.answer, grade.score))
        return Done(key, {**tokens, **grade.metrics}, tree)

    async def _grade(self, row: OfflineDialogue, state: State) -> Grade:
        if row.reward is None:
            with faults_of(self.environment):
                return await self.environment.grade(state, self.shared)
        turns = sum(turn.speaker.name == AGENT for turn in state.turns)
        return Grade(float(row.reward >= 1), {"turns": turns, "fraction": row.reward})

    def _tree(self, task: Task, sample: int, row: OfflineDialogue) -> tuple[Tree, State, int]:
        """Return the dialogue as a tree with one path, its last state, and the context tokens it needs."""
        tree = Tree(task.id, "rollout", FIRST)
        context, turns, room = AgentContext(), tuple[Turn, ...](), 0
        for line in row.dialogue_history:
            node = turns[-1].id if turns else tree.root
            if line.role == "user":
                part = Part(line.content, source=PERSON if turns else "task")
                turn = make_turn(node, Speaker("person", PERSON), [part], author=self.author)
                tree.add(turn)
            else:
                messages = self.environment.see(State(task, 0, turns=turns), AGENT)
                prompt = Prompt(tree, node, AGENT, messages, 0, sample)
                text = line.content if line.output is None else line.output
                replayed = recorded_response(prompt, context, text, self.author, self.renderer)
                turn = replayed.turn
                tree.add(turn, replayed.request)
                before = len(context.ids) - len(turn.ids)
                room = max(room, before + max(len(turn.ids), MIN_ROOM))
            turns += (turn,)
        last = turns[-1].text
        tagged = self.environment.answer(last)
        answer = row.answer or tagged or self.environment.visible(last).strip()
        ending = TURNS if tagged is None else ANSWERED
        return tree, State(task, 0, turns=turns, answer=answer, end=ending), room


async def play_offline(recipe: SweetData, run: Run, file: Path, progress: Progress) -> Metrics:
    """Write the dialogues of a file to the store, and grade those without a reward in the sandbox.

    Raises ``UserError`` for a broken row, and if no dialogue is left to train on.
    """
    environment = recipe.environment
    assert isinstance(environment, BackendProgramming), "checked by the recipe"
    dialogues, left_out = _dialogues(recipe, environment, file, progress)
    run.store.put_tasks({task.id: task for task, _ in dialogues.values()}.values())
    renderer, context = load_renderer(recipe.settings.model, recipe.settings.engine.template_args)
    async with AsyncExitStack() as stack:
        shared = Shared()
        if any(row.reward is None for _, row in dialogues.values()):
            sandbox = Sandbox(recipe.settings.sandbox)
            shared = Shared(await stack.enter_async_context(sandbox))
        replay = Replay(environment, renderer, context, f"import:{file.name}", shared)
        items = {key: partial(replay.finish, key, *dialogue) for key, dialogue in dialogues.items()}
        await do_items(
            run.store, items, progress, "dialogues", f"read {file.name}", in_flight=IN_FLIGHT
        )
    return {**summary(run.store, FIRST, "rollout"), "held_out": left_out}


def _dialogues(
    recipe: SweetData, environment: BackendProgramming, file: Path, progress: Progress
) -> tuple[dict[ItemKey, tuple[Task, OfflineDialogue]], int]:
    """Return the dialogues within ``rollout.tasks`` and ``rollout.repeats``, and the number of held-out dialogues."""
    held_out = {
        key
        for task in environment.tasks("heldout", 10**9, recipe.settings.seed)
        for key in (task.id, content_of(task))
    }
    limits, left_out = recipe.settings.rollout, 0
    dialogues: dict[ItemKey, tuple[Task, OfflineDialogue]] = {}
    task_rows, repeats = dict[str, CodeRow](), Counter[str]()
    for row in read_rows(file, OfflineDialogue, progress):
        task = environment.task(row.task)
        if task.id in held_out or content_of(task) in held_out:
            left_out += 1
            continue
        if task.id not in task_rows and len(task_rows) == limits.tasks:
            continue
        if task_rows.setdefault(task.id, row.task) != row.task:
            raise UserError(
                f"{file} has two tasks with the id {row.task.id}",
                "give each task a unique id",
            )
        if repeats[task.id] < limits.repeats:
            key = ItemKey(FIRST, "rollout", task.id, f"{repeats[task.id]:04d}")
            repeats[task.id] += 1
            dialogues[key] = (task, row)
    if not dialogues:
        raise UserError(
            f"every dialogue of {file} has a held-out task", "give a file with training tasks"
        )
    return dialogues, left_out
