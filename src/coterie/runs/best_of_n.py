"""Best-of-n evaluation: a judge model chooses one of several dialogues per task."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.engines.chat_model import open_chat
from coterie.environments.answers import question_of
from coterie.evaluation.picker import Picker, PickerSettings, Try
from coterie.evaluation.statistics import bootstrap_interval
from coterie.record.store import Store
from coterie.record.tree import LENGTH, Tree
from coterie.record.turn import digest


@dataclass(frozen=True, slots=True)
class BestOfN:
    """Result of a best-of-n evaluation."""

    judge: str
    n: int
    score: float
    interval: tuple[float, float]
    unreadable: int
    """Tasks without a readable reply of the judge."""


async def score_best_of_n(
    store: Store,
    iteration: int,
    stage: str,
    tasks: int,
    samples: int,
    settings: PickerSettings,
    file: Path,
) -> BestOfN:
    """Let the judge choose a dialogue of each task, and cache its replies in ``file``.

    A task without dialogues scores 0. Raises ``EngineError`` if a request fails, and ``UserError`` like
    :func:`~coterie.engines.chat_model.open_chat`.
    """
    async with open_chat(settings, file.parent / "picker") as chat:
        picker = Picker(chat, digest(settings.identity()), file)
        requests = [
            picker.score(tree.task, question_of(store.task(tree.task)), tries(tree, samples))
            for tree in store.outlines(iteration, stage)
        ]
        scores = await asyncio.gather(*requests)
    scores += [0.0] * (tasks - len(scores))
    interval = bootstrap_interval(scores, seed=0)
    return BestOfN(settings.model, samples, sum(scores) / len(scores), interval, picker.unreadable)


def tries(tree: Tree, samples: int) -> Sequence[Try]:
    """Return the first ``samples`` dialogues of a task that were graded."""
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
