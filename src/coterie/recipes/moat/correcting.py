"""What the grounder is to learn: its own actions where a critic accepts them, corrected ones, and right ones."""

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
from coterie.recipes.moat.data import DATA, MoatData, best_first
from coterie.recipes.moat.settings import SCRIPT
from coterie.rewards.corrections import Correction, question, read_correction
from coterie.rollout.written import Written, write_path
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, on_trees
from coterie.tools.actions.domains import check, described
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
    """What carrying it out was worth."""


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
        yield ModelCritic(chat, described(recipe.environment.domain.name), recipe.settings.seed)


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
    """A decision whose actions can be read; else it is unreadable."""
    actions = candidate.actions.text if said.verdict == "accepted" else said.actions
    domain, known = recipe.environment.domain.name, known_results(task)
    if said.verdict == "unreadable" or check(actions, domain, known=known).problems:
        return Correction("unreadable")
    return said


def _learnt(
    recipe: MoatData, task: Task, candidate: Candidate, said: Correction, critic: str
) -> Sequence[tuple[Written, Written]]:
    s = recipe.settings.correct
    plan = Written(PLANNER, candidate.plan.text, candidate.plan.writer, candidate.plan.ids)
    own = candidate.actions
    kept = Written(GROUNDER, own.text, own.writer, own.ids)
    if said.verdict == "accepted" or (said.verdict == "unreadable" and s.unreadable == "keep"):
        return [(plan, kept)]
    if said.verdict == "corrected":
        if s.subgoals == "corrected":
            plan = Written(PLANNER, said.subgoals, critic)
        return [(plan, Written(GROUNDER, said.actions, critic))]
    if s.unreadable == "gold":
        return [(plan, Written(GROUNDER, gold(task).actions, DATA))]
    return []
