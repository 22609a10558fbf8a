"""Import of the original's pairs as the first iteration of a new run, whose next step is training.

The pairs of a task become one tree: what both sides begin with, and the two messages as siblings, all written
elsewhere. What comes before training is not in the files; those steps are marked as imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.datasets.preferences import PreferenceRow
from coterie.environments.acting.environment import ENVIRONMENT
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.dense_tree.files.records import FoundPair, read_pairs
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.importing import finish_imported, imported_run
from coterie.rollout.recorded import recorded
from coterie.rollout.samplers import AgentContext, Prompt
from coterie.runs.folder import Run, Step
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, make_turn

ROLLOUT, REWARD, SELECT = (Step(0, stage) for stage in ("rollout", "reward", "select"))


@dataclass(slots=True)
class ImportedPairs:
    """What came of an import."""

    pairs: int = 0
    tasks: int = 0
    not_selected: int = 0
    """Rows that the file itself has as not selected."""
    held_out: int = 0
    """Pairs that were left out, for the run holds out their question."""


def import_pairs(path: Path, recipe: DenseTree, folder: Path, progress: Progress) -> ImportedPairs:
    """Make a run folder of the selected pairs of a file; it appears when it is whole.

    Raises ``UserError`` if the folder exists, the run would not train on pairs as they are, no pair is left, or with
    the place of the first broken pair.
    """
    if recipe.settings.learns != "pairs":
        raise UserError(
            f"learns={recipe.settings.learns} needs trees, and the file has pairs alone",
            "leave out learns",
        )
    done, by_task = ImportedPairs(), dict[tuple[str, str], list[FoundPair]]()
    for found in read_pairs(path):
        if not found.selected:
            done.not_selected += 1
        elif recipe.held_out.is_asked([("user", found.asked), *found.row.messages]):
            done.held_out += 1
        else:
            by_task.setdefault((found.task, _system(found.row)), []).append(found)
    if not by_task:
        raise UserError(
            f"{path} has no pair to train on ({done.not_selected:,} are not selected, {done.held_out:,} are of "
            "held-out tasks)",
            "give a file with selected pairs, of training tasks",
        )
    renderer, _ = load_renderer(recipe.settings.model)
    progress.start(len(by_task), f"import {path.name}")
    with imported_run(recipe, folder, progress) as run:
        chosen, turns = list[Selection](), 0
        for number, pairs in enumerate(by_task.values(), 1):
            name = f"import-{path.stem}-{number:06d}"
            planted = _Planted(name, recipe.agent, _system(pairs[0].row), path, renderer)
            chosen += [planted.add(pair) for pair in pairs]
            turns += len(planted.tree.turns)
            _write(run, planted.tree, pairs[0].row)
            progress.advance(1)
        run.select(0, chosen)
        done.pairs, done.tasks = len(chosen), len(by_task)
        _finish(recipe, run, path, done, turns)
    return done


def _system(row: PreferenceRow) -> str:
    return "".join(text for role, text in row.messages if role == "system")


class _Planted:
    """The tree of one task's pairs."""

    def __init__(
        self, name: str, agent: str, system: str, path: Path, renderer: ChatRenderer
    ) -> None:
        self.tree = Tree(name, ROLLOUT.stage, ROLLOUT.iteration)
        self.agent = agent
        self.path = path
        self.author = f"import:{path.name}"
        self.renderer = renderer
        told = (Message("system", (Part(system, source=self.author),)),) if system else ()
        self._shown: dict[str, tuple[Message, ...]] = {self.tree.root: told}
        self._contexts = {self.tree.root: AgentContext()}
        self._known: dict[tuple[str, str, str], str] = {}

    def add(self, pair: FoundPair) -> Selection:
        """Put a pair into the tree. Raises ``UserError`` if its sides have the same tokens."""
        node = self.tree.root
        for role, text in pair.row.messages:
            node = node if role == "system" else self._next(node, role, text)
        sides = [
            self._next(node, "assistant", text) for text in (pair.row.chosen, pair.row.rejected)
        ]
        if sides[0] == sides[1]:
            raise UserError(
                f"{self.path}, {pair.where}: both sides are the same tokens", "remove the pair"
            )
        return Selection(sides[0], self.agent, rejected=sides[1])

    def _next(self, node: str, role: str, text: str) -> str:
        """The turn after a node that says this; what is there already is not made again."""
        if (node, role, text) not in self._known:
            made = self._say if role == "assistant" else self._hear
            self._known[node, role, text] = made(node, text)
        return self._known[node, role, text]

    def _say(self, node: str, text: str) -> str:
        context = replace(self._contexts[node])
        prompt = Prompt(self.tree, node, self.agent, self._shown[node], 0, 0)
        response = recorded(prompt, context, text, self.author, self.renderer)
        self.tree.add(response.turn, response.request)
        self._shown[response.turn.id] = context.messages
        self._contexts[response.turn.id] = context
        return response.turn.id

    def _hear(self, node: str, text: str) -> str:
        part = Part(text, source=self.author)
        turn = make_turn(node, ENVIRONMENT, [part], author=self.author)
        self.tree.add(turn)
        self._shown[turn.id] = (*self._shown[node], Message("user", turn=turn.id))
        self._contexts[turn.id] = self._contexts[node]
        return turn.id


def _write(run: Run, tree: Tree, row: PreferenceRow) -> None:
    """Put a task and its tree into the store, as a rollout that nobody played."""
    asked = next(text for role, text in row.messages if role == "user")
    unplayed: Metrics = {"start": tree.root, "sampled": 0, "tokens": 0}
    with run.store.together():
        run.store.put_tasks([Task(tree.task, {"question": asked})])
        key = ItemKey(0, ROLLOUT.stage, tree.task, "000/00")
        run.store.finish(key, tree=tree, metrics=unplayed)


def _finish(recipe: DenseTree, run: Run, file: Path, done: ImportedPairs, turns: int) -> None:
    """Mark what comes before training as finished: nothing of it is to be done."""
    found: Sequence[tuple[Step, Metrics]] = (
        (ROLLOUT, {"n": 0, "trees": done.tasks, "turns": turns}),
        (REWARD, {}),
        (SELECT, {"tasks": done.tasks, "pairs": done.pairs, "selected": done.pairs}),
    )
    for step, metrics in found:
        finish_imported(recipe, run, step, file, metrics)
