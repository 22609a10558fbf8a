"""Reinforcement learning over a real vLLM server: each step is sampled by the weights that the last one left."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.engines import pool
from coterie.engines.vllm import ServerClient
from coterie.models.adapters import load_adapter
from coterie.models.loading import is_adapter, load
from coterie.recipes.registry import recipe as recipe_of
from coterie.recipes.registry import settings
from coterie.record.rows import Row
from coterie.record.store import Store
from coterie.rewards.dialogue_reward import PathReward, PathRewardSettings
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import paths_of
from coterie.training.reference import with_old
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer
from tests.helpers import program_worlds
from tests.helpers.program_worlds import write_exchange
from tests.helpers.run_rl import Killed, Killing, informative_overrides, run_to_end
from tests.vllm.conftest import MODEL
from tests.vllm.references import TOLERANCE, apart

VLLM = (
    "engine.kind=vllm", "engine.vllm.dtype=float32", "engine.vllm.enforce_eager=true",
    "engine.vllm.start_seconds=240", "engine.vllm.arguments={max_num_seqs: 16}",
)  # fmt: skip
FULL = ("train.learning_rate=1e-3",)
LORA = (
    "train.method=lora", "train.lora_r=4", "train.learning_rate=1e-2", "engine.vllm.lora_rank=4",
)  # fmt: skip
STEPS, TEMPERATURE = 3, 0.9


@pytest.mark.parametrize("own", [FULL, LORA], ids=["full", "lora"])
def test_the_server_speaks_by_each_version_that_the_trainer_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    weights, served = tmp_path / "weights", list[str]()
    _keep_published(monkeypatch, weights)
    _note_adapters(monkeypatch, served)
    monkeypatch.setattr(pool, "TRAINER_TOLERANCE", 5 * TOLERANCE)  # both compute in float32
    overrides = [
        *(*informative_overrides(tmp_path), *VLLM, *own, "loss.kl_coef=0"),
        *(f"steps.count={STEPS}", f"rollout.temperature={TEMPERATURE}"),
    ]
    overrides = [*{pair.partition("=")[0]: pair for pair in overrides}.values()]
    folder = tmp_path / "run"
    with pytest.raises(Killed):  # in the middle of the second step
        run_to_end(recipe_of(settings("rl/grpo", overrides)), folder, Killing(1, sampled=2))
    before = len(served)
    records = run_to_end(recipe_of(settings("rl/grpo", overrides)), folder)
    assert [one["paths_stale"] for one in records.values()] == [0] * STEPS
    assert [one["policy/updates"] for one in records.values()] == [1, 2, 3]
    for step in range(STEPS):
        rows = _rows(folder, step)
        version = f"0.{step}" if step else "0"
        assert {t.writer for row in rows for t in row.targets} == {f"policy@{version}"}
        assert _difference(rows, weights / version if step else None) < 5 * TOLERANCE
        if step:
            assert _difference(rows, None) > 100 * TOLERANCE, "the base says it otherwise"
    assert len(set(served[:before])) == before
    assert len(set(served[before:])) == len(served) - before, "no adapter has another's name"
    assert len(served) == (4 if own is LORA else 0)


def test_programs_are_sampled_by_the_server(tmp_path: Path) -> None:
    rows, world = write_exchange(tmp_path / "rows.jsonl"), program_worlds.__file__
    overrides = [
        *(*informative_overrides(tmp_path), *VLLM, *FULL, "loss.kl_coef=0", "steps.count=1"),
        *("environment=program", f"dataset={rows}", f"environment.agent={world}:play_exchange"),
        *("environment.roles=[Alice,Bob]", "environment.reward=exact", f"model={MODEL}"),
    ]
    overrides = [*{pair.partition("=")[0]: pair for pair in overrides}.values()]
    folder = tmp_path / "run"
    (record,) = run_to_end(recipe_of(settings("rl/grpo", overrides)), folder).values()
    assert record["policy/updates"] == 1
    assert _difference(_rows(folder, 0), None, 1.0) < 5 * TOLERANCE


def _keep_published(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    """Keep what servers load, which goes when they have loaded the next."""
    publish = Trainer.publish

    def kept(self: Any, folder: Path) -> None:
        publish(self, folder)
        shutil.copytree(folder, weights / f"0.{self.done}", dirs_exist_ok=True)

    monkeypatch.setattr(Trainer, "publish", kept)


def _note_adapters(monkeypatch: pytest.MonkeyPatch, served: list[str]) -> None:
    post = ServerClient.post

    async def noted(self: Any, path: str, body: Mapping[str, Any]) -> Any:
        served.extend([body["lora_name"]] if path == "/v1/load_lora_adapter" else [])
        return await post(self, path, body)

    monkeypatch.setattr(ServerClient, "post", noted)


def _rows(folder: Path, step: int) -> list[Row]:
    stage, reward = f"{REINFORCE}/{step:05d}", PathReward(PathRewardSettings())
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        tasks = store.tree_tasks(0, stage)
        agents = sorted(
            {
                t.speaker.name
                for tree in store.trees(0, stage)
                for t in tree.turns.values()
                if t.sample
            }
        )
        paths = paths_of(store, 0, stage, tasks, agents, reward)
    return [row for path in paths for row in path.rows]


def _difference(rows: list[Row], version: Path | None, temperature: float = TEMPERATURE) -> float:
    """How far the server's log-probs are at most from those of the trainer's model (``None``: the base)."""
    model = load(MODEL)
    if version and is_adapter(version):
        model = replace(model, model=load_adapter(model.model, version))
    elif version:
        model = load(str(version))
    known = with_old(model.model, rows, TrainingSettings(), temperature=temperature)
    return max(apart(row.logprobs or (), row.old or ()) for row in known)
