"""What ``sweet_rl`` trains on, out of the record: rewards, dialogues to branch, pairs, the critic's views."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from pathlib import Path

from coterie.config.folders import expanded
from coterie.config.home import sha256
from coterie.engines.chat_model import check_chat
from coterie.environments.coding import AGENT, CRITIC, Coding, with_reference
from coterie.environments.colbench import BackendProgramming
from coterie.environments.registry import check_no_tools
from coterie.environments.user_simulator import REFERENCE
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.sweet_rl.settings import POLICY, SweetSettings
from coterie.rollout.candidates import PlayedDialogue
from coterie.rollout.episodes import Episode
from coterie.runs.casting import Cast, Openers, open_cast
from coterie.runs.folder import Run
from coterie.runs.selected import selected
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings
from coterie.trajectories.pair import Pair, trajectory_pair, turn_pair
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn
from coterie.trajectories.view import View, recontext, view

PRIVILEGED = "with_reference"
"""Name of the recontext rule of the critic's rows."""
FIRST = 0
"""The round of the dialogues, and of the critic."""
SECOND = 1
"""The round of the candidates, and of the policy."""


class SweetData(Recipe):
    """The data of a run under its settings."""

    settings: SweetSettings
    environment: Coding

    def __init__(self, settings: SweetSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, Coding):
            raise UserError(
                f"{self.name} is played on functions that a person wants written, and {settings.played} has none",
                "leave dataset and environment out, use dataset=colbench_code, or derive yours from "
                "coterie.environments.coding.Coding",
            )

    @property
    def critical(self) -> bool:
        """Whether round 0 trains a critic, or a judge takes its place."""
        return self.settings.method == "sweet"

    def plan(self) -> Plan:
        """Size of the run. Raises ``UserError`` for a missing judge or file of dialogues, too."""
        check_chat("critic.judge", self.settings.critic.judge, POLICY)
        if self.settings.offline is not None:
            self._check_offline(expanded(self.settings.offline))
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return self.settings.trainings

    def dialogues(self) -> int:
        """Those of each task; n candidates for every turn of some are as many as n dialogues."""
        s = self.settings
        played = len(self.train_tasks()) * s.rollout.repeats
        branched = max(1, int(played * s.candidates.share)) * s.candidates.count
        return played + branched * self.critical

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """A turn, and the reference where the critic is shown it."""
        critic, shown = self.settings.critic, 0
        if self.critical and critic.kind != "judge" and critic.privileged:
            texts = (task.secrets[REFERENCE].reveal(CRITIC) for task in train)
            shown = max(len(renderer.encode_turn(text)) for text in texts)
        return self.settings.max_tokens + shown

    def _check_offline(self, file: Path) -> None:
        """Refuse a file of dialogues that is missing or of another environment."""
        if not isinstance(self.environment, BackendProgramming):
            raise UserError(
                f"offline: tasks of {self.settings.played} are not of ColBench's form",
                "use dataset=colbench_code",
            )
        if not file.is_file():
            raise UserError(f"offline={file} is not a file", "correct the path")

    @cached_property
    def offline_content(self) -> tuple[str, ...]:
        """Checksum of the file of dialogues, where there is one."""
        file = None if self.settings.offline is None else expanded(self.settings.offline)
        return () if file is None else (sha256(file) if file.is_file() else "",)

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    def cast(self, run: Run) -> AbstractAsyncContextManager[Cast]:
        person, logs = self.settings.user_simulator, run.folder / "user_simulator"
        return open_cast(self.environment, logs, person, self.openers())

    def train_tasks(self) -> list[Task]:
        return self.environment.tasks("train", self.settings.rollout.tasks, self.settings.seed)

    def episodes(self) -> list[Episode]:
        """k dialogues a task."""
        repeats = range(self.settings.rollout.repeats)
        return [
            Episode(t, sample, FIRST, "rollout") for t in self.train_tasks() for sample in repeats
        ]

    def context(self, iteration: int) -> str | None:
        """In which context a round trains on dialogues: the critic may be shown the reference."""
        privileged = iteration == FIRST and self.critical and self.settings.critic.privileged
        return PRIVILEGED if privileged else None

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield what trains each role; the critic learns from the dialogues of round 0."""
        role = CRITIC if iteration == FIRST and self.critical else self.leading
        for tree, one in selected(run, iteration):
            yield role, tree, one

    def critic_training(self) -> tuple[object, ...]:
        s = self.settings.critic
        return (
            *(s.kind, s.privileged, s.objective.fingerprint()),
            *(s.train.identity(), s.judge.identity()),
        )

    def first_training(self) -> tuple[object, ...]:
        s = self.settings
        if self.critical:
            return self.critic_training()
        if s.method == "rejection_ft":
            return (s.rejection_ft.train.identity(),)
        return (s.multi_turn_dpo.objective.fingerprint(), s.multi_turn_dpo.train.identity())


def rewards(run: Run) -> dict[tuple[str, int], float]:
    """Share of tests that each dialogue's answer passes, by task and sample."""
    found = {}
    for key, metrics in run.store.metrics(FIRST, "rollout").items():
        if key.task and "fraction" in metrics:
            found[key.task, int(key.sample)] = float(metrics["fraction"])
    return found


def played(run: Run, share: float) -> list[PlayedDialogue]:
    """The dialogues whose turns get candidates: the first of every task before the second of any."""
    keys = sorted((sample, task) for task, sample in rewards(run))
    found = []
    for sample, name in keys[: max(1, int(len(keys) * share))]:
        tree = run.store.tree(FIRST, "rollout", name)
        path = next(path for o, path in tree.trajectories() if o.sample == sample)
        found.append(PlayedDialogue(run.store.task(name), sample, path))
    return found


def pairs(run: Run, iteration: int, model: LoadedModel, context: str | None) -> list[Pair]:
    """The selected pairs, as :func:`seen` in ``context``: of whole dialogues in round 0, of turns in round 1."""
    found = []
    for tree, selection in selected(run, iteration):
        assert selection.rejected is not None, "these selections are pairs"
        task = run.store.task(tree.task)
        better, worse = (
            seen(task, tree, leaf, context, model) for leaf in (selection.leaf, selection.rejected)
        )
        if iteration == FIRST:
            found.append(trajectory_pair(better, worse, group=tree.task))
        else:
            found.append(turn_pair(better, worse, group=tree.turns[selection.leaf].parent))
    return found


def seen(task: Task, tree: Tree, leaf: str, context: str | None, model: LoadedModel) -> View:
    """A dialogue as the agent saw it, or (:data:`PRIVILEGED`) as the critic does."""
    if context is None:
        return view(tree, leaf, AGENT)
    render = partial(model.renderer.render, privileges=CRITIC)
    return recontext(tree, leaf, AGENT, name=context, edit=with_reference(task), render=render)


def critic_prompt(
    task: Task, tree: Tree, turn: Turn, model: LoadedModel, *, privileged: bool
) -> tuple[int, ...]:
    """Ids of a turn's prompt as the critic sees it."""
    assert turn.prompt is not None, "a candidate answers a request"
    shown = tree.messages(tree.requests[turn.prompt])
    if not privileged:
        return model.renderer.render(shown, tree, AGENT)
    return model.renderer.render(with_reference(task)(shown), tree, AGENT, privileges=CRITIC)
