"""Export of an iteration's selected pairs, for the original's training, LLaMA-Factory and TRL.

pairs.json         the original's training JSON, which is LLaMA-Factory's preference format
dataset_info.json  what LLaMA-Factory asks about it (the data set ``dense_tree``)
preferences.jsonl  TRL's conversational preference format; ``mix.sets`` reads it, too
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from pydantic import ValidationError

from coterie.config.folders import check_new_file
from coterie.datasets.preferences import ChatRole, PreferenceRow
from coterie.errors import UserError
from coterie.recipes.dense_tree.files.records import write_training_pairs
from coterie.recipes.dense_tree.recipe import DenseTree
from coterie.recipes.line_files import write_objects
from coterie.runs.folder import Run, Step
from coterie.runs.selected import selected
from coterie.trajectories.selection import Selection
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Turn

PAIRS, INFO, PREFERENCES = "pairs.json", "dataset_info.json", "preferences.jsonl"
NAME = "dense_tree"
"""Of the data set, for LLaMA-Factory."""


@dataclass(frozen=True, slots=True)
class ExportedPairs:
    """What was written."""

    files: tuple[Path, ...]
    pairs: int
    left_out: int
    """Pairs with an empty side, or with sides that differ in white space alone: others can't train on them."""


def export_run(recipe: DenseTree, run: Run, out: Path, iteration: int) -> ExportedPairs:
    """Write the files. Raises ``UserError`` if the iteration has no pairs yet, or a file exists."""
    step = Step(iteration, "select")
    if step not in recipe.steps() or not run.is_finished(step):
        raise UserError(
            f"the pairs of iteration {iteration} of {run.folder} are not there",
            "run it further (`coterie select`), or give another --iteration",
        )
    if recipe.settings.learns == "successes":
        raise UserError(
            f"{run.folder} learns from whole successful runs, and has no pairs",
            "`coterie export RUN FILE` writes any run",
        )
    files = tuple(out / name for name in (PAIRS, INFO, PREFERENCES))
    for path in files:
        check_new_file(path)
    out.mkdir(parents=True, exist_ok=True)
    found = [pair_row(tree, one) for tree, one in selected(run, iteration)]
    rows = [row for row in found if row is not None]
    if not rows:
        raise UserError(f"iteration {iteration} of {run.folder} selected no pairs", "run it again")
    write_training_pairs(files[0], rows)
    has_system = any(row.messages[0][0] == "system" for row in rows)
    files[1].write_text(json.dumps(_info(has_system), indent=2) + "\n", encoding="utf-8")
    write_objects(files[2], (row.line() for row in rows))
    return ExportedPairs(files, len(rows), len(found) - len(rows))


def _info(has_system: bool) -> dict[str, object]:
    """What LLaMA-Factory asks about the pairs."""
    columns = {"prompt": "instruction", "query": "input"}
    columns |= {name: name for name in ("chosen", "rejected", "history")}
    columns |= {"system": "system"} if has_system else {}
    return {NAME: {"file_name": PAIRS, "ranking": True, "columns": columns}}


def pair_row(tree: Tree, one: Selection) -> PreferenceRow | None:
    """A selected pair as text; ``None`` if its sides say nothing different."""
    assert one.rejected is not None, "pairs were selected"
    chosen, rejected = (tree.turns[leaf] for leaf in (one.leaf, one.rejected))
    assert chosen.prompt is not None, "the agent was asked"
    shown = tree.messages(tree.requests[chosen.prompt])
    said = _joined([_message(tree, message, one.agent) for message in shown])
    try:
        return PreferenceRow(
            id=f"{tree.task}/{chosen.id[:8]}/{rejected.id[:8]}",
            messages=tuple(said),
            chosen=_text(chosen, one.agent).strip(),
            rejected=_text(rejected, one.agent).strip(),
        )
    except ValidationError:
        return None


def _message(tree: Tree, message: Message, agent: str) -> tuple[ChatRole, str]:
    """A message as it was shown to the agent."""
    text = "".join(part.text for part in message.parts)
    if message.turn is not None:
        text += _text(tree.turns[message.turn], agent)
    return ("user" if message.role == "tool" or message.role == "inline" else message.role), text


def _joined(messages: list[tuple[ChatRole, str]]) -> Iterator[tuple[ChatRole, str]]:
    """Messages of one role that follow each other as one: in these formats, roles take turns."""
    for role, group in groupby(messages, key=lambda message: message[0]):
        yield role, "\n\n".join(text for _, text in group)


def _text(turn: Turn, agent: str) -> str:
    """What the agent may see of a turn."""
    results = "\n".join(result.text for result in turn.results) if not turn.parts else ""
    return "".join(part.text for part in turn.parts if part.visible_to(agent)) + results
