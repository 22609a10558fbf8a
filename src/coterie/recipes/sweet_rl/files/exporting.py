"""Export of a run's dialogues and pairs to files in the form of SWEET-RL's released code.

    trajectories.jsonl          the dialogues of round 0
    critic_preferences.jsonl    pairs of whole dialogues, as the critic sees them
    policy_preferences.jsonl    pairs for the policy: of turns, or (multi_turn_dpo) of whole dialogues

The files hold the references, as the originals do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coterie.config.folders import check_new_file
from coterie.datasets.code_rows import CodeRow
from coterie.environments.coding import AGENT, CRITIC, Coding, hidden_calls, with_reference
from coterie.environments.gold import GRADER
from coterie.environments.user_simulator import REFERENCE
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.recipes.sweet_rl.data import FIRST, PRIVILEGED, SECOND, rewards
from coterie.recipes.sweet_rl.files.records import (
    HistoryTurn,
    PreferenceRow,
    TaskFields,
    TrajectoryRow,
    write_lines,
)
from coterie.recipes.sweet_rl.recipe import SweetRL
from coterie.runs.folder import Run, Step
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.view import prompts

TRAJECTORIES = "trajectories.jsonl"
CRITIC_PAIRS = "critic_preferences.jsonl"
POLICY_PAIRS = "policy_preferences.jsonl"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]
    tasks: int
    incomplete: int
    """Tasks that are not in the trajectories, for some of their dialogues have failed."""


def export_run(recipe: SweetRL, run: Run, out: Path) -> Exported:
    """Write the files for which the run has got far enough.

    Raises ``UserError`` if its dialogues are not finished or there are none, no task has all of its repeats,
    or a file exists.
    """
    rollouts = Step(FIRST, "rollout")
    if not run.is_finished(rollouts):
        raise UserError(
            f"the dialogues of {run.folder} are not finished",
            f"run `coterie rollout {run.folder}` first",
        )
    if not run.metrics(rollouts)["n"]:
        raise UserError(
            f"{run.folder} was imported from preferences and has no dialogues",
            "`coterie export RUN FILE` writes any run",
        )
    writing = _Export(recipe, run, load_renderer(recipe.settings.model)[0])
    whole, incomplete = writing.tasks()
    if not whole:
        raise UserError(
            f"no task of {run.folder} has all of its {recipe.settings.rollout.repeats} dialogues",
            "`coterie report` says why they failed; `coterie export RUN FILE` writes any run",
        )
    pairs = [one for one in writing.pairs() if run.is_finished(Step(one[0], "select"))]
    files = [out / name for name in (TRAJECTORIES, *(name for _, name, _ in pairs))]
    for file in files:
        check_new_file(file)
    write_lines(files[0], writing.trajectories(whole))
    for file, (iteration, _, lines) in zip(files[1:], pairs, strict=True):
        write_lines(file, lines(iteration))
    return Exported(tuple(files), len(whole), incomplete)


class _Export:
    """The lines of one run's files."""

    def __init__(self, recipe: SweetRL, run: Run, renderer: ChatRenderer) -> None:
        self.recipe = recipe
        self.run = run
        self.renderer = renderer

    def tasks(self) -> tuple[frozenset[str], int]:
        """The tasks that have all of their repeats, and how many have not."""
        repeats = self.recipe.settings.rollout.repeats
        played = {key.task for key in self.run.store.metrics(FIRST, "rollout") if key.task}
        trees = self.run.store.trees(FIRST, "rollout")
        whole = frozenset(tree.task for tree in trees if len(tree.outcomes) >= repeats)
        return whole, len(played - whole)

    def trajectories(self, tasks: frozenset[str]) -> Iterator[TrajectoryRow]:
        """First the first dialogue of every task, then the second of every task, and so on."""
        shares = rewards(self.run)
        for repeat in range(self.recipe.settings.rollout.repeats):
            for tree in self.run.store.trees(FIRST, "rollout"):
                if tree.task in tasks:
                    outcome = list(tree.trajectories())[repeat][0]
                    reward = shares[tree.task, outcome.sample]
                    yield self._trajectory(tree, outcome, reward)

    def pairs(self) -> list[tuple[int, str, Callable[[int], Iterator[PreferenceRow]]]]:
        """(round, name, lines) of the files of pairs that the run's method has."""
        method, kind = self.recipe.settings.method, self.recipe.settings.critic.kind
        if method == "rejection_ft":
            return []
        if method == "multi_turn_dpo":
            return [(FIRST, POLICY_PAIRS, self.dialogue_pairs)]
        turns = (SECOND, POLICY_PAIRS, self.turn_pairs)
        return [turns] if kind == "judge" else [(FIRST, CRITIC_PAIRS, self.dialogue_pairs), turns]

    def dialogue_pairs(self, iteration: int) -> Iterator[PreferenceRow]:
        """Whole dialogues: what was shown before the last turn, as the trained model sees it, and that turn."""
        for tree, selection, rejected in self._selected(iteration):
            chosen, other = (
                self._prompt(tree, leaf, self.recipe.context(iteration)) + tree.turns[leaf].text
                for leaf in (selection.leaf, rejected)
            )
            if chosen != other:  # equal texts are refused by readers
                yield PreferenceRow(chosen=chosen, rejected=other)

    def turn_pairs(self, iteration: int) -> Iterator[PreferenceRow]:
        """Two ways to say one turn, after the policy's prompt."""
        for tree, selection, rejected in self._selected(iteration):
            chosen, other = (tree.turns[leaf].text for leaf in (selection.leaf, rejected))
            if chosen != other:
                prompt = self._prompt(tree, selection.leaf, None)
                yield PreferenceRow(prompt=prompt, chosen=chosen, rejected=other)

    def _trajectory(self, tree: Tree, outcome: Outcome, reward: float) -> TrajectoryRow:
        shown = {
            turn.id: self.renderer.decode(prompt)
            for prompt, turn in prompts(tree, outcome.leaf, AGENT)
        }
        environment = self.recipe.environment
        history = tuple(
            HistoryTurn(
                role="assistant",
                content=environment.visible(turn.text),
                input=shown[turn.id],
                output=turn.text,
            )
            if turn.id in shown
            else HistoryTurn(role="user", content=turn.text)
            for turn in tree.path(outcome.leaf)
        )
        return TrajectoryRow(
            task=_fields(environment, self.run.store.task(tree.task)),
            dialogue_history=history,
            answer=outcome.answer,
            reward=reward,
        )

    def _prompt(self, tree: Tree, leaf: str, context: str | None) -> str:
        """What a turn's speaker was shown; with the reference, in a context that has it."""
        if context is None:
            return self.renderer.decode(prompts(tree, leaf, AGENT)[-1][0])
        assert context == PRIVILEGED, "there is no other context"
        request = tree.turns[leaf].prompt
        assert request is not None, "turns of the agent have prompts"
        edited = with_reference(self.run.store.task(tree.task))(
            tree.messages(tree.requests[request])
        )
        return self.renderer.decode(self.renderer.render(edited, tree, AGENT, privileges=CRITIC))

    def _selected(self, iteration: int) -> Iterator[tuple[Tree, Selection, str]]:
        """(tree, selection, rejected leaf) of each pair."""
        tree: Tree | None = None
        for task, selection in self.run.store.selections(iteration, "select"):
            if tree is None or tree.task != task:
                tree = self.run.store.tree(iteration, "rollout", task)
            assert selection.rejected is not None, "these selections are pairs"
            yield tree, selection, selection.rejected


def _fields(environment: Coding, task: Task) -> TaskFields:
    """A task in the released form, and its id, which an import then keeps."""
    row = CodeRow(
        id=task.id.removeprefix(f"{environment.name}-"),
        question=str(task.public["question"]),
        answer=task.secrets[REFERENCE].reveal(GRADER),
        tests=tuple(hidden_calls(task)),
    )
    return TaskFields.model_validate({**row.upstream(), "id": row.id})
