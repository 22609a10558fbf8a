"""What a judge model's choice among several dialogues of each task is worth."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.engines.chat_model import open_chat
from coterie.environments.gold import question_of
from coterie.evaluation.picker import Picker, PickerSettings, Try
from coterie.evaluation.statistics import bootstrap_interval
from coterie.trajectories.store import Store
from coterie.trajectories.tree import LENGTH, Tree
from coterie.trajectories.turn import digest


@dataclass(frozen=True, slots=True)
class Picked:
    """Best of n by a judge."""

    judge: str
    n: int
    score: float
    interval: tuple[float, float]
    unreadable: int
    """Tasks of which no reply could be read."""


async def best_picked(
    store: Store,
    iteration: int,
    stage: str,
    tasks: int,
    samples: int,
    settings: PickerSettings,
    file: Path,
) -> Picked:
    """Ask the judge about each task that has a dialogue, and remember in ``file`` what it says.

    A task without one scores 0. Raises ``EngineError`` if the judge can't be asked, and ``UserError`` as
    :func:`~coterie.engines.chat_model.open_chat`.
    """
    async with open_chat(settings, file.parent / "picker") as chat:
        picker = Picker(chat, digest(settings.identity()), file)
        asked = [
            picker.score(tree.task, question_of(store.task(tree.task)), tries(tree, samples))
            for tree in store.outlines(iteration, stage)
        ]
        scores = await asyncio.gather(*asked)
    scores += [0.0] * (tasks - len(scores))
    interval = bootstrap_interval(scores, seed=0)
    return Picked(settings.model, samples, sum(scores) / len(scores), interval, picker.unreadable)


def tries(tree: Tree, samples: int) -> Sequence[Try]:
    """The first dialogues of a task that were graded."""
    return [
        Try(
            outcome.sample,
            path[-1].text,
            None if outcome.ending == LENGTH else outcome.answer,
            outcome.score,
        )
        for outcome, path in tree.trajectories()
        if outcome.sample < samples and outcome.score is not None
    ]
