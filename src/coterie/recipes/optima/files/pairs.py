"""Preference pairs of the released code's ``*_dpo_format`` files, in and out.

A pair is two utterances after the same beginning, under the system prompt of the agent that says them.
On import the tasks' trees have both as siblings, with credit ``value``; the system prompt is the file's own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.environments.talk import drop_format
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.importing import imported_run
from coterie.recipes.optima.files.records import Lines, PairRecord, PairsLine
from coterie.recipes.optima.files.speech import beginner, named, parse
from coterie.recipes.optima.recipe import Optima
from coterie.rollout.recorded import recorded
from coterie.rollout.samplers import AgentContext, Prompt
from coterie.runs.folder import Run, Step
from coterie.trajectories.pair import Pair, turn_pair
from coterie.trajectories.store import Credit, ItemKey, Selection, Store
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, Speaker, Turn, make_turn
from coterie.trajectories.view import view

PAIRS = Step(0, "pairs")
"""Where imported pairs are: no stage of a recipe, so that a run's own rollouts don't meet them."""
VALUE = "value"

Utterances = tuple[tuple[str, str], ...]
"""(speaker, text) from the beginning of a dialogue."""


@dataclass(frozen=True, slots=True)
class Preferred:
    """A pair of siblings of a tree."""

    tree: Tree
    chosen: str
    """Id of the better turn."""
    rejected: str
    value: float
    """Of the chosen one."""
    distance: float
    """By how much it is greater than that of the rejected one."""


def import_pairs(lines: Lines, recipe: Optima, folder: Path, progress: Progress) -> int:
    """Make a run folder of a file of pairs; it appears when it is whole. Returns how many there are.

    Raises ``UserError`` if the folder exists, or names the first line that is broken.
    """
    total = count = 0
    for _, line in lines.read(PairsLine):
        total, count = total + 1, count + len(line.dpo_results)
    if not count:
        raise UserError(f"{lines.path} has no pairs", "give a file in which there are some")
    sides = (pair.chosen[1:] for _, line in lines.read(PairsLine) for pair in line.dpo_results)
    first = beginner(sides)
    renderer, _ = load_renderer(recipe.settings.model)
    progress.start(total, f"import {lines.path.name}")
    with imported_run(recipe, folder, progress) as run:
        for number, line in lines.read(PairsLine):
            try:
                _import(run, lines.path.name, line, first, renderer)
            except ValueError as error:
                raise lines.broken(number, str(error)) from error
            progress.advance(1)
        run.store.finish(PAIRS.key, metrics={"pairs": count, "imported": lines.path.name})
    return count


def imported_pairs(store: Store) -> Iterator[Pair]:
    """The imported pairs as rows for ``training.dpo``, those of one task as a group."""
    for preferred in imported(store):
        agent = preferred.tree.turns[preferred.chosen].speaker.name
        chosen = view(preferred.tree, preferred.chosen, agent)
        rejected = view(preferred.tree, preferred.rejected, agent)
        yield turn_pair(chosen, rejected, group=preferred.tree.task)


def imported(store: Store) -> Iterator[Preferred]:
    """The imported pairs, in the order of the file."""
    credit = str(store.metrics(0, PAIRS.stage)[PAIRS.key]["imported"])
    return preferred(store, 0, PAIRS.stage, PAIRS.stage, credit)


def preferred(
    store: Store, iteration: int, stage: str, selected: str, settings: str
) -> Iterator[Preferred]:
    """The pairs that ``selected`` chose among the trees of a stage.

    ``settings`` keys their values: those of siblings without a value are left out.
    """
    values = store.credit(settings, VALUE, iteration=iteration, stage=stage)
    tree: Tree | None = None
    for task, selection in store.selections(iteration, selected):
        if selection.rejected is None:
            continue
        if tree is None or tree.task != task:
            tree = store.tree(iteration, stage, task)
        value, other = values.get(selection.leaf), values.get(selection.rejected)
        if value is not None and other is not None:
            yield Preferred(tree, selection.leaf, selection.rejected, value, value - other)


def pair_lines(pairs: Iterable[Preferred]) -> Iterator[PairsLine]:
    """The lines of a ``*_dpo_format`` file: one for each tree, numbered in order."""
    by_task: dict[str, list[PairRecord]] = {}
    for pair in pairs:
        chosen, rejected = (_side(pair.tree, node) for node in (pair.chosen, pair.rejected))
        record = PairRecord(
            chosen=chosen, rejected=rejected, chosen_value=pair.value, distance=pair.distance
        )
        by_task.setdefault(pair.tree.task, []).append(record)
    for number, records in enumerate(by_task.values()):
        yield PairsLine(task_id=number, dpo_results=records)


def _side(tree: Tree, node: str) -> list[str]:
    """System prompt (without a format) and named utterances up to a turn, which must have a prompt."""
    request = tree.turns[node].prompt
    if request is None:
        raise ValueError(f"turn {node} has no prompt, so it can't be in a pair")
    system = drop_format(tree.messages(tree.requests[request]))[0]
    utterances = (named(turn.speaker.name, turn.text) for turn in tree.path(node))
    return ["".join(part.text for part in system.parts), *utterances]


def _import(run: Run, file: str, line: PairsLine, first: int, renderer: ChatRenderer) -> None:
    """Write the tree and the pairs of one task."""
    grown = _Grown(Tree(f"import-{line.task_id:07d}", PAIRS.stage, 0), renderer, f"import:{file}")
    sides = [(_said(p.chosen, first), _said(p.rejected, first)) for p in line.dpo_results]
    for pair, both in zip(line.dpo_results, sides, strict=True):
        for said in both:
            grown.expect(said, pair.chosen[0])
    selections, values = [], dict[str, float]()
    for pair, both in zip(line.dpo_results, sides, strict=True):
        chosen, rejected = (grown.add(said) for said in both)
        for turn, value in (
            (chosen, pair.chosen_value),
            (rejected, pair.chosen_value - pair.distance),
        ):
            if abs(values.setdefault(turn.id, value) - value) > 1e-9:
                raise ValueError(f"an utterance has two values, {values[turn.id]} and {value}")
        agent = chosen.speaker.name
        selections.append(Selection(chosen.id, agent, rejected=rejected.id))
    if not selections:
        return
    tree = grown.tree
    credit = [Credit(turn, VALUE, value, file) for turn, value in values.items()]
    run.store.put_tasks([Task(tree.task, {"task_id": line.task_id})])
    run.store.finish(ItemKey(0, PAIRS.stage, tree.task), tree=tree, credit=credit)
    run.store.select(0, PAIRS.stage, selections, task=tree.task, sample="pairs")


def _said(side: Sequence[str], first: int) -> Utterances:
    conversation = parse(side[1:], first)
    if conversation.cut:
        raise ValueError(
            f"an utterance is the marker {conversation.cut!r}, and so no side of a pair"
        )
    return conversation.said


class _Grown:
    """The tree of one task's pairs. Turns that are a side of a pair have a prompt, others are context."""

    def __init__(self, tree: Tree, renderer: ChatRenderer, author: str) -> None:
        self.tree = tree
        self.renderer = renderer
        self.author = author
        self.systems: dict[Utterances, str] = {}

    def expect(self, said: Utterances, system: str) -> None:
        """Note the system prompt under which the last utterance is said."""
        if self.systems.setdefault(said, system) != system:
            raise ValueError("the same utterance is there under two system prompts")

    def add(self, said: Utterances) -> Turn:
        """Put a dialogue into the tree, as far as it is not there; returns its last turn."""
        contexts: dict[str, AgentContext] = {}
        node = self.tree.root
        for place, (speaker, text) in enumerate(said):
            system = self.systems.get(said[: place + 1])
            if system is None:
                turn = make_turn(
                    node, Speaker("agent", speaker), [Part(text, source=self.author)],
                    ids=self.renderer.written(text), author=self.author,
                )  # fmt: skip
                self.tree.add(turn)
            else:
                shown = self._shown(node, speaker, system)
                prompt = Prompt(self.tree, node, speaker, shown, 0, 0)
                context = contexts.setdefault(speaker, AgentContext())
                one = recorded(prompt, context, text, self.author, self.renderer)
                self.tree.add(one.turn, one.request)
                turn = one.turn
            node = turn.id
        return self.tree.turns[node]

    def _shown(self, node: str, agent: str, system: str) -> tuple[Message, ...]:
        """The file's system prompt for an agent, then every turn so far."""
        own = Part(system, audience=frozenset({agent}), source=self.author)
        return (
            Message("system", (own,)),
            *(
                Message("assistant" if turn.speaker.name == agent else "user", turn=turn.id)
                for turn in self.tree.path(node)
            ),
        )
