"""The steps of ``sweet_rl``: which there are, which episodes they play, what makes one out of date."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from coterie.engines.protocol import POLICY
from coterie.environments.coding import CRITIC
from coterie.progress import Silent
from coterie.recipes.base import Recipe
from coterie.recipes.sweet_rl import SweetRL
from coterie.rollout.episodes import Episode
from coterie.runs.folder import Run, Step
from tests.sweet.known import BRANCH, REWARD, SELECT_TURNS, TRAIN
from tests.test_sweet_offline import made


@dataclass
class Plays:
    episodes: Sequence[Episode]
    temperature: float
    top_p: float


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> list[Plays]:
    seen: list[Plays] = []

    async def play(
        self: Recipe, run: Any, episodes: Any, t: float, p: float, progress: Any
    ) -> dict[str, int]:
        seen.append(Plays(episodes, t, p))
        return {}

    monkeypatch.setattr(Recipe, "play", play)
    return seen


def test_each_task_is_played_k_times_and_each_held_out_one_once(plays: list[Plays]) -> None:
    words = (
        "rollout.tasks=4",
        "rollout.repeats=3",
        "rollout.temperature=0.8",
        "rollout.top_p=0.95",
    )
    recipe = made(*words, "evaluate.tasks=5", "evaluate.temperature=0.6")
    asyncio.run(recipe.rollout(None, 0, Silent()))  # type: ignore[arg-type]
    asyncio.run(recipe.evaluate(None, 2, Silent()))  # type: ignore[arg-type]
    rollout, heldout = plays
    environment = recipe.environment
    ids = [task.id for task in environment.tasks("train", 4, recipe.settings.seed)]
    assert [(e.task.id, e.sample) for e in rollout.episodes] == [
        (id_, n) for id_ in ids for n in range(3)
    ]
    assert {(e.iteration, e.stage) for e in rollout.episodes} == {(0, "rollout")}
    assert (rollout.temperature, rollout.top_p) == (0.8, 0.95)
    of_test = [task.id for task in environment.tasks("heldout", 5, recipe.settings.seed)]
    assert [(e.task.id, e.sample) for e in heldout.episodes] == [(id_, 0) for id_ in of_test]
    assert {(e.iteration, e.stage) for e in heldout.episodes} == {(2, "evaluate")}
    assert heldout.temperature == 0.6 and not set(ids) & set(of_test)


STEPS = {
    "method=sweet": [
        (0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "rollout"), (1, "reward"), (1, "select"),
        (1, "train"), (2, "evaluate"),
    ],
    "critic.kind=judge": [
        (0, "evaluate"), (0, "rollout"), (1, "rollout"), (1, "reward"), (1, "select"), (1, "train"), (2, "evaluate"),
    ],
    "method=rejection_ft": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
    "method=multi_turn_dpo": [(0, "evaluate"), (0, "rollout"), (0, "select"), (0, "train"), (1, "evaluate")],
}  # fmt: skip


@pytest.mark.parametrize("word", STEPS)
def test_the_steps_of_a_method(word: str) -> None:
    recipe = made(word)
    assert recipe.steps() == [Step(*one) for one in STEPS[word]]
    judged = word == "critic.kind=judge"
    if recipe.settings.method == "sweet":
        assert recipe.at(REWARD).after == ((BRANCH,) if judged else (BRANCH, TRAIN))
        assert recipe.at(BRANCH).after == (Step(0, "rollout"),)
        assert recipe.at(Step(1, "train")).after == (SELECT_TURNS,)
        assert recipe.at(Step(1, "train")).trains == (POLICY,)
        assert judged or recipe.at(TRAIN).trains == (CRITIC,)
    assert recipe.stages()[-1].after == (recipe.steps()[-2],)


def test_a_critic_is_no_policy(played_only: Run, own: SweetRL) -> None:
    played_only.begin(TRAIN, own.fingerprint(TRAIN))
    played_only.finish(TRAIN, own.fingerprint(TRAIN), {"rows": 2})
    assert own.versions(played_only) == [0]
    assert made("method=multi_turn_dpo").versions(played_only) == [0, 1]
