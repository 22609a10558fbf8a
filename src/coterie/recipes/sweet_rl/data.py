"""Rewards, dialogues, pairs and critic prompts of SWEET-RL."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from pathlib import Path

from coterie.config.folders import expanded, sha256
from coterie.engines.chat_model import check_chat
from coterie.environments.coding import AGENT, CRITIC, BackendProgramming, Coding, with_reference
from coterie.environments.protocol import Openers
from coterie.environments.registry import check_no_tools
from coterie.environments.user_simulator import REFERENCE
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.sweet_rl.settings import POLICY, SweetSettings
from coterie.record.rows import Pair, View, recontext, trajectory_pair, turn_pair, view
from coterie.record.tree import Selection, Task, Tree
from coterie.record.turn import Turn
from coterie.rollout.candidates import PlayedDialogue
from coterie.rollout.episodes import Episode
from coterie.runs.actors import Actors, open_actors
from coterie.runs.folder import Run
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
        """Return the tokens of a turn, plus those of the longest reference if the critic reads it."""
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
