"""Export of held-out dialogues in verl's format for validation generations.

A row is ``{"step", "input", "output", "score", "data_source", "ground_truth"}``.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coterie.config.folders import whole_file
from coterie.environments.answers import known_answers
from coterie.environments.protocol import Environment, agents_of
from coterie.record.store import Store
from coterie.record.turn import Message, Turn
from coterie.rollout.episodes import first_prompts_async


def turn_text(environment: Environment, turn: Turn) -> str:
    """Return a turn as the agents see it: its text or the results of tools."""
    if turn.text or not turn.results:
        return turn.text
    assert environment.syntax is not None, "results answer calls"
    return environment.syntax.show(turn.results)


def prompt_text(messages: tuple[Message, ...]) -> str:
    return "\n\n".join("".join(part.text for part in one.parts) for one in messages)


async def dialogue_rows(
    store: Store, iteration: int, stage: str, environment: Environment, source: str, step: int
) -> list[dict[str, Any]]:
    """Return a row for each dialogue of a stage that did not fail.

    ``input`` is the first prompt of the first agent, ``output`` all later turns including tool results, with a
    paragraph per turn if there are several agents. ``ground_truth`` lists the known answers. Ungraded dialogues have no
    score.
    """
    rows = list[dict[str, Any]]()
    several = len(agents_of(environment)) > 1
    for tree in store.outlines(iteration, stage):
        task = store.task(tree.task)
        first = next(iter((await first_prompts_async(environment, task)).values()))
        task_fields: Mapping[str, Any] = {
            "step": step,
            "data_source": source,
            "ground_truth": list(known_answers(task)),
            "input": prompt_text(first.messages),
        }
        for outcome, path in tree.trajectories():
            parts = (
                f"{turn.speaker.name}: {turn_text(environment, turn)}\n\n"
                if several
                else turn_text(environment, turn)
                for turn in path
            )
            rows.append({**task_fields, "output": "".join(parts), "score": outcome.score})
    return rows


def write_rows(file: Path, rows: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    """Write a new JSONL file atomically. Raises ``UserError`` if it exists or cannot be written."""
    with whole_file(file) as part, part.open("w", encoding="utf-8", newline="\n") as opened:
        for row in rows:
            opened.write(json.dumps(row, ensure_ascii=False) + "\n")
