"""A team of AutoGen whose two agents are roles with adapters of their own, on one base model."""

from pathlib import Path

import pytest

from coterie.environments.exchange import AGENTS, Exchange
from coterie.environments.protocol import State
from coterie.record.store import Store
from coterie.runs.evaluation import Evaluation, evaluation
from coterie.runs.loop import REINFORCE
from tests.helpers.run_rl import final_weights, make_recipe, run_to_end
from tests.helpers.write_rows import write_jsonl

pytest.importorskip("autogen_agentchat", reason="make test-programs installs the frameworks")

ROLES, STEPS, ROWS = ("left", "right"), 8, 64
"""Roles, steps, and rows of a role in each step."""
SETTINGS = (
    "environment=program", "environment.agent=tests/programs/lengths_team.py:run", "environment.roles=[left,right]",
    "model=tiny-exchange", "engine.device=cpu", "policies.weights=each", "train.method=lora",
    "train.learning_rate=3e-3", "train.warmup_ratio=0", "train.max_length=1024", "loss.kl_coef=0",
    "rollout.tasks=8", "rollout.rollouts_per_task=8", "rollout.temperature=1", "rollout.max_tokens=48",
    f"steps.count={STEPS}", "evaluate.tasks=60", "evaluate.temperature=1",
)  # fmt: skip


def write_tasks(file: Path) -> Path:
    """Write first prompts of ``exchange``, which its model answers with messages of all lengths."""
    game, rows = Exchange(), []
    for task in game.tasks("train", 300, 0):
        (system,) = game.observe(State(task, 0), AGENTS[0])
        text = "".join(part.text for part in system.parts)
        rows.append({"question": text, "answer": "none"})
    return write_jsonl(file, *rows)


def test_both_roles_learn_their_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = write_tasks(tmp_path / "tasks.jsonl")
    folder = tmp_path / "run"
    run_to_end(make_recipe("rl/grpo", [*SETTINGS, f"dataset={tasks}"]), folder)
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        base, trained = (evaluation(store, version) for version in (0, 1))
        assert {role: trained_speakers(store, role) for role in ROLES} == {r: {r} for r in ROLES}
    with capsys.disabled():
        print(f"\nscore of the team: {described(base)} before, {described(trained)} after")
    assert trained.interval[0] > base.interval[1]
    assert final_weights(folder, "left") != final_weights(folder, "right")


def described(evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    return f"{evaluation.score:.3f} ({low:.3f} to {high:.3f})"


def trained_speakers(store: Store, role: str) -> set[str]:
    """Return the speakers of the turns that the optimizer steps of a role trained."""
    speakers = {
        turn.id: turn.speaker.name for key in store.tree_keys(0) for _, turn in store.turns(key)
    }
    updates = [store.update(0, REINFORCE, role, number) for number in range(1, STEPS + 1)]
    assert all(len(update.rows) == ROWS for update in updates)
    return {speakers[row.turn or ""] for update in updates for row in update.rows}
