"""MOAT (arXiv 2509.09629): a planner and a grounder that are aligned in turn.

    start        (iteration 0, if asked for) both are trained on right plans and right actions
    for each iteration:
        rollout      K plans a task by the planner, and what the grounder makes of each               (B1)
        reward       of a plan: mean log p(right actions | task, tools, plan) under the grounder       (A2)
        select       a task's best and worst plan, if they differ by the margin                        (A3)
        align        DPO of the planner on these pairs, itself the reference -> planner_{i+1}          (A4)
        correct      a critic accepts or corrects the grounder's actions for the best plans            (B2, B3)
        improve      SFT of the grounder: kept, corrected and right rows together -> grounder_{i+1}     (B4, B5)
        measure      J = E log p(right actions | plans of the planner), on held-out tasks, after each half
    evaluate     plan, ground and carry out, greedily, on held-out tasks

``parts`` leaves out a half (ablations), or replaces both by supervised training on as many rows (control).

Deviations from the released code, each on purpose: exactly the right actions' tokens count, their end included (the
code drops those of probability 1); rewards are log-likelihoods, of which perplexity is a function; empty plans are left
out (the code puts another task's plan in their place), and equal ones once; a critic's reply has room to end, its
actions are read and checked, and its rows are trained on (in the code none is).
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from coterie.engines.chat_model import ChatModel, open_chat
from coterie.engines.protocol import EngineError
from coterie.environments.plan_ground.environment import (
    GROUNDER,
    PLANNER,
    asked,
    gold,
    known_results,
)
from coterie.progress import Progress
from coterie.recipes.moat.data import DATA, HALF, WHOLE, MoatData, best_first
from coterie.recipes.moat.scoring import measure, reward_plans
from coterie.recipes.moat.settings import SCRIPT
from coterie.recipes.trainings import prefer, train_role
from coterie.rewards.corrections import Correction, question, read_correction
from coterie.rollout.written import Written, write_path
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, on_trees
from coterie.runs.roles import Role
from coterie.runs.stage import Stage
from coterie.tools.actions.domains import check, describe
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn, digest

IN_FLIGHT = 16
"""Tasks whose actions are looked at at a time."""
COUNTS = ("accepted", "corrected", "unreadable", "rows")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan, and what the grounder made of it."""

    plan: Turn
    actions: Turn
    score: float


class ActionCritic(Protocol):
    """Looks at actions."""

    name: str

    async def look(self, task: Task, candidate: Candidate) -> Correction:
        """What it says of them. Raises ``EngineError``."""
        ...


class ScriptCritic:
    """Accepts what gave the right answer; puts the right actions in the place of all else."""

    name = f"critic:{SCRIPT}"

    async def look(self, task: Task, candidate: Candidate) -> Correction:
        """By the score, and by what the task's data say."""
        if candidate.score >= 1:
            return Correction("accepted")
        right = gold(task)
        return Correction("corrected", right.plan, right.actions)


class ModelCritic:
    """A chat model, which is shown neither the right actions nor what its candidates gave."""

    def __init__(self, chat: ChatModel, tools: str, seed: int) -> None:
        self.chat = chat
        self.tools = tools
        self.seed = seed
        self.name = f"critic:{chat.name}"

    async def look(self, task: Task, candidate: Candidate) -> Correction:
        """By its reply; one that was cut off is unreadable."""
        seed = int(digest("critic", self.seed, candidate.actions.id)[:15], 16)
        shown = question(asked(task), candidate.plan.text, candidate.actions.text, self.tools)
        said = await self.chat.ask(shown, seed)
        return Correction("unreadable") if said.truncated else read_correction(said.text)


@asynccontextmanager
async def open_critic(recipe: MoatData, run: Run) -> AsyncIterator[ActionCritic]:
    s = recipe.settings.correct.critic
    if s.url is None and s.model == SCRIPT:
        yield ScriptCritic()
        return
    async with open_chat(s, run.folder / "critic") as chat:
        yield ModelCritic(chat, describe(recipe.environment.domain.name), recipe.settings.seed)


async def correct(recipe: MoatData, run: Run, i: int, progress: Progress) -> Metrics:
    """Write the rows that an iteration's grounder learns, and count how the critic decided."""
    async with open_critic(recipe, run) as critic:

        async def one(tree: Tree) -> Done:
            return await _corrected(recipe, run, critic, tree)

        title = f"correct {i}"
        await on_trees(run.store, i, one, progress, title, in_flight=IN_FLIGHT, stage="correct")
    found = [m for key, m in run.store.metrics(i, "correct").items() if key.task]
    return {name: sum(int(m.get(name, 0)) for m in found) for name in COUNTS}


async def _corrected(recipe: MoatData, run: Run, critic: ActionCritic, tree: Tree) -> Done:
    task, s = run.store.task(tree.task), recipe.settings.correct
    key, counts = ItemKey(tree.iteration, "correct", tree.task), Counter[str]()
    made, right = Tree(tree.task, "correct", tree.iteration), gold(task)
    if right.done:
        return Done(key, {"rows": 0})
    learnt: list[tuple[Written, Written]] = []
    for candidate in _candidates(recipe, run, tree):
        try:
            said = _checked(recipe, task, await critic.look(task, candidate), candidate)
        except EngineError as error:
            return Done(key, {}, failure=str(error))
        counts[said.verdict] += 1
        learnt += _learnt(recipe, task, candidate, said, critic.name)
    if s.gold:
        learnt.append((Written(PLANNER, right.plan, DATA), Written(GROUNDER, right.actions, DATA)))
    for draw, path in enumerate(learnt):
        write_path(recipe.environment, task, made, path, recipe.renderers, draw)
    return Done(key, {**counts, "rows": len(learnt)}, made if learnt else None)


def _candidates(recipe: MoatData, run: Run, tree: Tree) -> list[Candidate]:
    """The actions that are looked at: those for the plans of the highest rewards."""
    s = recipe.settings.correct
    plans = [turn.id for turn in tree.children(tree.root)]
    rewards = run.store.credit(recipe.fingerprint(Step(tree.iteration, "reward")), "reward", plans)
    ranked = best_first([(plan, rewards[plan]) for plan in plans if plan in rewards])
    count = {"best": 1, "top": s.top, "all": len(ranked)}[s.candidates]
    found = []
    for plan in ranked[:count]:
        for actions in tree.children(plan)[:1]:
            score = tree.outcomes[actions.id].score if actions.id in tree.outcomes else None
            found.append(Candidate(tree.turns[plan], actions, score or 0.0))
    return found


def _checked(recipe: MoatData, task: Task, said: Correction, candidate: Candidate) -> Correction:
    actions = candidate.actions.text if said.verdict == "accepted" else said.actions
    domain, known = recipe.environment.domain.name, known_results(task)
    if said.verdict == "unreadable" or check(actions, domain, known=known).problems:
        return Correction("unreadable")
    return said


def _learnt(
    recipe: MoatData, task: Task, candidate: Candidate, said: Correction, critic: str
) -> Sequence[tuple[Written, Written]]:
    s = recipe.settings.correct
    plan = Written(PLANNER, candidate.plan.whole_text, candidate.plan.writer, candidate.plan.ids)
    own = candidate.actions
    kept = Written(GROUNDER, own.whole_text, own.writer, own.ids)
    if said.verdict == "accepted" or (said.verdict == "unreadable" and s.unreadable == "keep"):
        return [(plan, kept)]
    if said.verdict == "corrected":
        if s.subgoals == "corrected":
            plan = Written(PLANNER, said.subgoals, critic)
        return [(plan, Written(GROUNDER, said.actions, critic))]
    if s.unreadable == "gold":
        return [(plan, Written(GROUNDER, gold(task).actions, DATA))]
    return []


class Moat(MoatData):
    """The recipe under given settings."""

    def roles(self) -> tuple[Role, ...]:
        """The planner and the grounder, which may be adapters of one base."""
        s = self.settings
        shares = PLANNER if s.share else None
        return (Role(PLANNER, s.model), Role(GROUNDER, s.grounder or s.model, shares=shares))

    def stages(self) -> list[Stage]:
        """Those of all iterations; success and J are measured before the first one, too."""
        found = self.start() if self.settings.start.enabled else []
        first = int(self.settings.start.enabled)
        found += self.measured(first, found)
        for i in range(first, self.settings.rounds):
            found += self.iteration(i, [one for one in found if one.trains])
        return found

    def start(self) -> list[Stage]:
        s = self.settings.start
        return self.taught(0, (), (s.tasks, s.train.identity()))

    def iteration(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Both halves, what ``parts`` leaves of them, or the control."""
        s = self.settings
        if s.parts == "sft":
            found = self.taught(i, before, (self.draws(i), s.improve.train.identity()))
            return [*found, *self.measured(i + 1, found)]
        played = (self.draws(i), s.rollout.fingerprint(), *s.engine.identity())
        rollout = self.stage(i, "rollout", self.sample, before, played)
        scored = (s.reward.fingerprint(),)
        reward = self.stage(i, "reward", self.reward, [rollout], scored, alone=True)
        found = [rollout, reward]
        if s.parts != "grounder":
            found += self.planning(i, reward)
        if s.parts != "planner":
            found += self.grounding(i, reward)
        return [*found, *self.measured(i + 1, [one for one in found if one.trains])]

    def planning(self, i: int, reward: Stage) -> list[Stage]:
        """The planner's half, and J after it."""
        s = self.settings
        learnt = (s.align.objective.fingerprint(), s.align.train.identity())
        select = self.stage(i, "select", self.select, [reward], [s.pairs.fingerprint()])
        align = self.stage(i, "align", self.align, [select], learnt, trains=PLANNER)
        return [select, align, self.stage(i, HALF, self.measure_half, [align], self.judged())]

    def grounding(self, i: int, reward: Stage) -> list[Stage]:
        s = self.settings
        correct = self.stage(i, "correct", self.correct, [reward], [s.correct.fingerprint()])
        learnt = (s.improve.train.identity(),)
        improve = self.stage(i, "improve", self.improve, [correct], learnt, trains=GROUNDER)
        return [correct, improve]

    def taught(self, i: int, before: Sequence[Stage], learnt: Sequence[object]) -> list[Stage]:
        """Supervised training of both on right plans and right actions."""
        return [
            self.stage(i, "align", self.teach_planner, before, learnt, trains=PLANNER),
            self.stage(i, "improve", self.teach_grounder, before, learnt, trains=GROUNDER),
        ]

    def measured(self, version: int, after: Sequence[Stage]) -> list[Stage]:
        """J and success of the newest of both; J alone where the data do not tell what is right."""
        measure = self.stage(version, WHOLE, self.measure, after, self.judged())
        graded = self.environment.ungraded is None
        return [measure, *([self.evaluation(version, after)] if graded else [])]

    # -- what stages do -------------------------------------------------------------------------

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """K plans a task, and the actions for each."""
        return await self.play_plans(run, i, progress)

    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The reward of every plan that is not empty, not an earlier one again, and no leak, as credit."""
        return await reward_plans(self, run, i, progress)

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pairs of plans of one task."""
        chosen = self.plan_pairs(run, i)
        run.select(i, chosen)
        return {"tasks": len(run.store.tree_tasks(i, "rollout")), "selected": len(chosen)}

    def align(self, run: Run, i: int, progress: Progress) -> Metrics:
        """DPO of the planner; as it is now it is the reference."""
        s, planner = self.settings.align, self.to_train(run, PLANNER, i)
        pairs, own = self.pairs(run, i), self.seeded(s.train, i)
        return prefer(run, i, planner, pairs, s.objective, own, progress, role=PLANNER)

    async def correct(self, run: Run, i: int, progress: Progress) -> Metrics:
        """What the grounder is to learn: rows that the critic accepts or corrects, and right ones."""
        return await correct(self, run, i, progress)

    def improve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the grounder on these rows."""
        grounder = self.to_train(run, GROUNDER, i)
        rows, own = self.corrected_rows(run, i), self.seeded(self.settings.improve.train, i)
        return train_role(run, i, grounder, rows, own, progress, role=GROUNDER)

    async def measure_half(self, run: Run, i: int, progress: Progress) -> Metrics:
        """J of the planner that was just aligned, with the grounder as it was."""
        newest = {
            PLANNER: self.newest(run, PLANNER, i + 1),
            GROUNDER: self.newest(run, GROUNDER, i),
        }
        return await measure(self, run, Step(i, HALF), newest, progress)

    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """J of the newest planner and grounder."""
        newest = {role: self.newest(run, role, version) for role in (PLANNER, GROUNDER)}
        return await measure(self, run, Step(version, WHOLE), newest, progress)

    def teach_planner(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the planner on right plans."""
        return self.teach(run, i, PLANNER, progress)

    def teach_grounder(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the grounder on right actions for right plans."""
        return self.teach(run, i, GROUNDER, progress)
