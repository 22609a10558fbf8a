"""What MOAT's stages read and train on: tasks, samplers, right and corrected rows, pairs of plans."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from coterie.engines.chat_model import check_chat
from coterie.environments.plan_ground.environment import GROUNDER, PLANNER, PlanGround, gold
from coterie.environments.registry import check_no_tools
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.moat.settings import SCRIPT, MoatSettings
from coterie.recipes.plan import Plan
from coterie.recipes.trainings import train_role
from coterie.rollout.episodes import Episode
from coterie.rollout.samplers import TokenSampler
from coterie.rollout.search import Value
from coterie.rollout.written_turns import WrittenTurn, write_path
from coterie.runs.casting import Openers
from coterie.runs.folder import Run, Step
from coterie.runs.selected import selected
from coterie.selection.pairs import PairSettings, sibling_pairs
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import Metrics
from coterie.trajectories.pair import Pair, turn_pair
from coterie.trajectories.row import Row, rows
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.view import view

DATA = "data"
"""The author of right plans and actions."""
LOWEST = -sys.float_info.max
"""The reward that every plan has at least: so low that even a very bad plan can be the better one of a pair."""
WHOLE, HALF = "measure", "measure_half"
"""Stages in which J is measured: of the newest of both, and between the halves of an iteration."""


class MoatData(Recipe):
    """The data of a run under given settings."""

    settings: MoatSettings
    environment: PlanGround

    def __init__(self, settings: MoatSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, PlanGround):
            raise UserError(
                f"{self.name} is played by a planner and a grounder, and {settings.played} has none",
                "use a data set with plans, such as dataset=gsm8k_plans, or derive your environment from "
                "coterie.environments.plan_ground.environment.PlanGround",
            )

    def plan(self) -> Plan:
        """Size of the run. Raises ``UserError`` for a missing critic and where nothing can be measured, too."""
        s = self.settings
        check_chat("correct.critic", s.correct.critic, SCRIPT)
        if not self.environment.scored_tasks(s.measure.tasks, s.seed):
            raise UserError("no held-out task has right actions", "give the data set held-out rows")
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return self.settings.trainings

    def dialogues(self) -> int:
        """Plans of each task, and what is measured."""
        s = self.settings
        tasks = self.environment.tasks("train", s.rollout.tasks, s.seed)
        plans = len(tasks) * s.rollout.samples * s.iterations if s.parts != "sft" else 0
        measured = len(self.environment.scored_tasks(s.measure.tasks, s.seed)) * s.measure.samples
        return plans + measured * sum(step.stage in (WHOLE, HALF) for step in self.steps())

    def whole_task(self, task: Task) -> Task:
        """A task by what is asked alone: a single step stands for the task that it is a step of."""
        shown = {name: task.public[name] for name in ("question", "description")}
        return replace(task, public=shown)

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        return self.environment.max_turns * self.settings.max_tokens

    def players(self) -> dict[str, str]:
        return {PLANNER: PLANNER, GROUNDER: GROUNDER}

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    @cached_property
    def renderers(self) -> dict[str, ChatRenderer]:
        args = self.settings.engine.template_args
        return {role.name: load_renderer(role.model, args)[0] for role in self.roles()}

    # -- tasks and episodes ---------------------------------------------------------------------

    def draws(self, iteration: int) -> list[int]:
        """The counts of an iteration's draw of tasks, and of those before it."""
        first = int(self.settings.start.enabled)
        return [self.settings.rollout.tasks] * (iteration - first + 1)

    def train_tasks(self, iteration: int) -> list[Task]:
        s = self.settings
        if s.start.enabled and iteration == 0:
            return self.environment.tasks("train", s.start.tasks, s.seed)
        *before, count = self.draws(iteration)
        return self.environment.tasks("train", count, s.seed, before)

    def judged(self) -> tuple[object, ...]:
        s = self.settings
        sampled = (s.rollout.temperature, s.rollout.top_p, s.rollout.max_tokens)
        return (s.measure.fingerprint(), *sampled, *s.engine.identity())

    async def play_plans(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """K episodes a task: plans are drawn at one temperature, actions at another."""
        s = self.settings.rollout
        episodes = [
            Episode(task, sample, iteration, "rollout")
            for task in self.train_tasks(iteration)
            for sample in range(s.samples)
        ]
        samplers = {
            PLANNER: await self.speaker(run, PLANNER, iteration, s.temperature),
            GROUNDER: await self.speaker(run, GROUNDER, iteration, s.ground_temperature),
        }
        return await self.play_by(run, episodes, samplers, progress)

    async def speaker(
        self, run: Run, role: str, iteration: int, temperature: float
    ) -> TokenSampler:
        """The sampler of a role's newest version by an iteration."""
        version = self.newest(run, role, iteration)
        return await self.sampler(run, version, temperature, self.settings.rollout.top_p, role)

    # -- what is trained on ---------------------------------------------------------------------

    def to_train(self, run: Run, role: str, iteration: int) -> LoadedModel:
        """A role's newest version, to be trained in an iteration."""
        return self.models(run).load_to_train(role, self.newest(run, role, iteration))

    def teach(self, run: Run, iteration: int, role: str, progress: Progress) -> Metrics:
        """SFT of a role on what it should say."""
        s = self.settings
        train = s.start.train if s.start.enabled and iteration == 0 else s.improve.train
        found = [row for task in self.train_tasks(iteration) for row in self.right_rows(task, role)]
        own = self.seeded(train, iteration)
        model = self.to_train(run, role, iteration)
        return train_role(run, iteration, model, found, own, progress, role=role)

    def right_rows(self, task: Task, role: str) -> list[Row]:
        """The row of what a role should say of a task: the plan, or the actions for it."""
        right, tree = gold(task), Tree(task.id, DATA, 0)
        if right.done and role == GROUNDER:
            return []
        said = [WrittenTurn(PLANNER, right.plan, DATA)]
        if role == GROUNDER:
            said.append(WrittenTurn(GROUNDER, right.actions, DATA))
        *_, last = write_path(self.environment, task, tree, said, self.renderers)
        return list(rows(view(tree, last.id, role)))

    def plan_pairs(self, run: Run, iteration: int) -> list[Selection]:
        s = self.settings.pairs
        rule = PairSettings(rule=s.rule, theta_filter=LOWEST, theta_diff=s.margin, top_share=1.0)
        rewards = run.store.credit(
            self.fingerprint(Step(iteration, "reward")), "reward",
            iteration=iteration, stage="rollout",
        )  # fmt: skip
        found = []
        for tree in run.store.trees(iteration, "rollout"):
            values = {
                turn.id: Value(rewards[turn.id], 1)
                for turn in tree.children(tree.root)
                if turn.id in rewards
            }
            found += [
                Selection(one.chosen.id, PLANNER, rejected=one.rejected.id)
                for one in sibling_pairs(tree, values, rule)
            ]
        return found

    def pairs(self, run: Run, iteration: int) -> list[Pair]:
        """The selected pairs; raises ``UserError`` if there are none."""
        found = []
        for tree, one in selected(run, iteration):
            assert one.rejected is not None, "these selections are pairs"
            sides = (view(tree, leaf, PLANNER) for leaf in (one.leaf, one.rejected))
            found.append(turn_pair(*sides, group=tree.task))
        if not found:
            raise UserError(
                f"iteration {iteration} has no pair of plans that differ by more than "
                f"pairs.margin={self.settings.pairs.margin:g}",
                "lower pairs.margin, or raise rollout.samples, rollout.tasks or rollout.temperature",
            )
        return found

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield the planner's pairs and what the grounder learns."""
        yield from super().trained_on(run, iteration)
        for tree in run.store.trees(iteration, "correct"):
            for turn in tree.leaves():
                yield GROUNDER, tree, Selection(turn.id, GROUNDER)

    def corrected_rows(self, run: Run, iteration: int) -> list[Row]:
        """What the stage ``correct`` left; raises ``UserError`` if that is nothing."""
        found = [
            row
            for tree in run.store.trees(iteration, "correct")
            for turn in tree.leaves()
            for row in rows(view(tree, turn.id, GROUNDER))
        ]
        if not found:
            raise UserError(
                f"iteration {iteration} has no actions that the grounder could learn",
                "use correct.gold=true or correct.unreadable=gold, or another correct.critic",
            )
        return found


def best_first(rewards: Sequence[tuple[str, float]]) -> list[str]:
    """Nodes by falling reward; of equal ones the one that was sampled first."""
    return [node for node, _ in sorted(rewards, key=lambda one: -one[1])]
