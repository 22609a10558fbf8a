"""Held-out dialogues as plain rows: what went in, what came out, what it was worth.

A row is ``{"step", "input", "output", "score", "data_source", "ground_truth"}``, as verl (and so GAP) dumps those of
its validation.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.config.folders import whole_file
from coterie.environments.gold import known_answers
from coterie.environments.protocol import Environment
from coterie.environments.traits import agents_of
from coterie.rollout.first_prompts import first_prompts_async
from coterie.trajectories.store import Store
from coterie.trajectories.turn import Message, Turn


def said(environment: Environment, turn: Turn) -> str:
    """A turn as an agent is shown it: its text, or the results that a tool gave."""
    if turn.text or not turn.results:
        return turn.text
    assert environment.syntax is not None, "results answer calls"
    return environment.syntax.show(turn.results)


def prompt_text(shown: tuple[Message, ...]) -> str:
    return "\n\n".join("".join(part.text for part in one.parts) for one in shown)


async def dumped(
    store: Store, iteration: int, stage: str, environment: Environment, source: str, step: int
) -> list[dict[str, Any]]:
    """All dialogues of a stage that did not fail, by task and sample. What could not be graded has no score.

    ``input`` is the first prompt of the first agent. ``output`` is all that follows, results of tools included; of
    several agents each begins a paragraph of its own. ``ground_truth`` has all right answers that are known.
    """
    rows = list[dict[str, Any]]()
    several = len(agents_of(environment)) > 1
    for tree in store.outlines(iteration, stage):
        task = store.task(tree.task)
        first = next(iter((await first_prompts_async(environment, task)).values()))
        own: Mapping[str, Any] = {
            "step": step,
            "data_source": source,
            "ground_truth": list(known_answers(task)),
            "input": prompt_text(first.messages),
        }
        for outcome, path in tree.trajectories():
            parts = (
                f"{turn.speaker.name}: {said(environment, turn)}\n\n"
                if several
                else said(environment, turn)
                for turn in path
            )
            rows.append({**own, "output": "".join(parts), "score": outcome.score})
    return rows


def write_rows(file: Path, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    """Write a new JSONL file, whole or not at all. Raises ``UserError`` if it is there or can't be made."""
    with whole_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for row in rows:
            opened.write(json.dumps(row, ensure_ascii=False) + "\n")
