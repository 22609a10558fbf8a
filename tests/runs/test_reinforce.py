"""Runs of reinforcement learning: what a step samples and trains on, how a run resumes, and what it refuses."""

import gc
import itertools
import shutil
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie.cli.report import write_report
from coterie.engines.inprocess import InProcessEngine
from coterie.errors import UserError
from coterie.models.loading import load
from coterie.progress import Silent
from coterie.recipes.registry import settings
from coterie.recipes.rl import Reinforce, group_batch
from coterie.record.rows import Row
from coterie.record.store import Store
from coterie.record.tree import Credit, ItemKey, Metrics, root_id
from coterie.rewards.advantages import SampledPath
from coterie.rewards.dialogue_reward import PathReward, PathRewardSettings
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_batch import AgentPath, paths_of
from coterie.runs.reinforce_record import LEFT_OUT, STEP, step_records
from coterie.runs.roles import Roles
from coterie.runs.run import Run, StageKey, open_run
from coterie.training import checkpoint
from coterie.training.checkpoint import weight_hash
from coterie.training.reference import with_old
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer
from tests.helpers.read_page import chart_of, read_page, sections_of
from tests.helpers.run_rl import (
    SMALL,
    Killed,
    Killing,
    final_weights,
    informative_overrides,
    make_recipe,
    run_to_end,
)


class Whole(NamedTuple):
    """A run that nothing has interrupted. Tests change only copies of it."""

    overrides: list[str]
    folder: Path
    records: dict[int, Metrics]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    overrides = [
        *informative_overrides(folder),
        "steps.count=3",
        "loss.kl_coef=0",
        "rollout.temperature=0.7",
    ]
    return Whole(
        overrides, folder / "run", run_to_end(make_recipe("rl/grpo", overrides), folder / "run")
    )


def test_every_step_samples_from_the_newest_weights_and_its_first_ratio_is_one(
    whole: Whole,
) -> None:
    recipe = make_recipe("rl/grpo", whole.overrides)
    assert sorted(whole.records) == [0, 1, 2]
    with open_run(whole.folder, recipe.name, recipe.settings, write=False) as run:
        for step, record in whole.records.items():
            trees = run.store.trees(0, f"{REINFORCE}/{step:05d}")
            turns = [turn for tree in trees for turn in tree.turns.values() if turn.sample]
            assert {turn.writer for turn in turns} == {f"policy@0.{step}" if step else "policy@0"}
            assert {turn.sample.temperature for turn in turns if turn.sample} == {0.7}
            assert record["policy/ratio_min"] == pytest.approx(1, abs=1e-4)
            assert record["policy/ratio_max"] == pytest.approx(1, abs=1e-4)
            assert record["policy/grad_norm"] > 0
    page = write_report(whole.folder)
    steps = sections_of(page)["Steps of reinforce, iteration 0"]
    assert steps["steps"] == [0, 1, 2]
    (shown,) = chart_of(steps, "reward")["series"].values()
    assert shown["values"] == [record["reward"] for record in whole.records.values()]
    groups = [task for task in read_page(page)["task"] if task["stage"].startswith(REINFORCE)]
    assert {group["stage"] for group in groups} == {f"{REINFORCE}/00000", f"{REINFORCE}/00002"}
    columns = [stage for stage in read_page(page)["tasks"] if stage["stage"].startswith(REINFORCE)]
    assert columns and all(all(stage["trained"]) for stage in columns)
    for group in groups:
        credit = [rollout["credit"] for rollout in group["rollouts"]]
        advantages = [sum(v for k, v in of.items() if k.startswith("advantage:")) for of in credit]
        assert abs(sum(advantages)) < 0.01
        assert any(advantages) == (len({rollout["reward"] for rollout in group["rollouts"]}) > 1)
    assert final_weights(whole.folder) != weight_hash(load("tiny-exchange").model)


PPO = ("rollout.rollouts_per_task=1", "rollout.tasks=4")


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("rl/grpo", ()),
        pytest.param("rl/grpo", ("train.method=lora", "loss.kl_coef=0.1"), marks=pytest.mark.slow),
        pytest.param("rl/ppo", (*PPO, "steps.minibatches_per_step=2"), marks=pytest.mark.slow),
        pytest.param("rl/ppo", (*PPO, "train.method=lora"), marks=pytest.mark.slow),
        pytest.param("rl/ppo", (*PPO, "critic.view=joint"), marks=pytest.mark.slow),
        pytest.param("rl/vine", ("loss.kl_coef=0",), marks=pytest.mark.slow),
    ],
    ids=["grpo", "lora", "ppo", "lora critic", "joint critic", "trees"],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, whole: Whole, method: str, own: tuple[str, ...]
) -> None:
    overrides, folder, records = [*whole.overrides, *own], whole.folder, whole.records
    if own:
        folder = tmp_path / "whole"
        records = run_to_end(make_recipe(method, overrides), folder)
    killed = tmp_path / "killed"
    for progress in (Killing(1, sampled=2), Killing(1)):
        with pytest.raises(Killed):
            run_to_end(make_recipe(method, overrides), killed, progress)
    again = run_to_end(make_recipe(method, overrides), killed)
    assert final_weights(killed) == final_weights(folder)
    assert trained_record(killed) == trained_record(folder)
    for step, record in records.items():
        same = [name for name in record if "second" not in name]
        assert [again[step][name] for name in same] == [record[name] for name in same]


def trained_record(folder: Path) -> list[list[tuple[object, ...]]]:
    """Everything that steps trained on and left out, and the credit of their paths."""
    credit = "credit c JOIN credit_kind k ON k.key = c.kind WHERE k.settings != 'environment'"
    finds = (
        "s.*, t.* FROM optimizer_step s JOIN trained t ON t.optimizer_step = s.key "
        "ORDER BY iteration, stage, role, updates, position",
        "i.sample, l.* FROM left_out l JOIN item i ON i.key = l.item ORDER BY 1, l.position",
        f"k.name, c.node, c.value FROM {credit} ORDER BY 1, 2",
    )
    with closing(sqlite3.connect(folder / "store.sqlite")) as db:
        tables = [db.execute(f"SELECT {find}").fetchall() for find in finds]
    # Items and steps are numbered in the order of their end.
    return [
        [(*row[1:7], *row[8:]) for row in tables[0]],
        [(row[0], *row[2:]) for row in tables[1]],
        tables[2],
    ]


def test_the_record_names_every_trained_token_with_the_numbers_that_the_loss_used(
    whole: Whole,
) -> None:
    """All are computed again, from what was sampled."""
    recipe = make_recipe("rl/grpo", whole.overrides)
    assert isinstance(recipe, Reinforce)
    reward = PathReward(recipe.settings.reward)
    with open_run(whole.folder, recipe.name, recipe.settings, write=False) as run:
        fingerprint = run.start_fingerprint(StageKey(0, REINFORCE)) or ""
        for number, record in whole.records.items():
            stage, update = (
                f"{REINFORCE}/{number:05d}",
                run.store.update(0, REINFORCE, "policy", number + 1),
            )
            tasks = run.store.tree_tasks(0, stage)
            paths = paths_of(run.store, 0, stage, tasks, [*recipe.players()], reward)
            batch = group_batch(paths, recipe.settings.advantage)
            expected = {row.origin: row for path in batch.paths for row in path.rows}
            assert sorted(row.origin for row in update.rows) == sorted(expected)
            for row in update.rows:
                source = expected[row.origin]
                assert row.arrays["advantage"].tolist() == pytest.approx(source.advantages)
                # The weights that sampled are those before the only update of the step.
                sampled = np.array(source.logprobs)
                assert row.arrays["logprob"] == pytest.approx(sampled, rel=1e-3, abs=1e-3)
                assert row.metrics["loss"] == pytest.approx(-row.arrays["advantage"][0], abs=1e-5)
                turns = [target.turn for target in source.targets]
                assert row.turn == (turns[0] if len(turns) == 1 else None)
            entropies = np.concatenate([row.arrays["entropy"] for row in update.rows])
            assert len(entropies) == record["trained_tokens"]
            assert entropies.mean() == pytest.approx(record["policy/entropy"], rel=1e-2)
            for path in paths:
                for name, value in (("total", path.sampled.total), *path.all_terms.items()):
                    name = name if name == "total" else f"term:{name}"
                    credit = run.store.credit(fingerprint, f"{name}:{path.agent}", [path.node])
                    assert credit.get(path.node, 0.0) == value
            for path in batch.paths:
                # One advantage for all tokens of a path.
                advantage = path.rows[0].advantages
                credit = run.store.credit(fingerprint, f"advantage:{path.agent}", [path.node])
                assert advantage and credit.get(path.node) == pytest.approx(advantage[0])
            left_out = [
                entry
                for key, entry in run.store.left_out(0, REINFORCE)
                if key.sample == f"{STEP}{number:05d}"
            ]
            equal = [entry for entry in left_out if entry.reason == "groups_equal"]
            stage = f"{REINFORCE}/{number:05d}"
            assert all(entry.node == root_id(0, stage, entry.task) for entry in equal)
            reasons = Counter(entry.reason for entry in left_out)
            names = {*LEFT_OUT, "groups_equal", "samples_failed"} & record.keys()
            assert {name: reasons[name] for name in names} == {name: record[name] for name in names}


def paths_at(run: Run, task: str, agents: Sequence[str]) -> dict[str, AgentPath]:
    """The paths of the first sample of a task of the first step, by agent."""
    reward = PathReward(PathRewardSettings())
    paths = paths_of(run.store, 0, f"{REINFORCE}/00000", [task], agents, reward)
    return {path.agent: path for path in paths if path.outcome.sample == 0}


def test_rewards_of_acts_stand_at_the_last_token_of_the_agents_turn(
    tmp_path: Path, whole: Whole
) -> None:
    recipe, stage = make_recipe("rl/grpo", whole.overrides), f"{REINFORCE}/00000"
    shutil.copytree(whole.folder, tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        task = run.store.tree_tasks(0, stage)[0]
        tree, agents = run.store.tree(0, stage, task), [*recipe.players()]
        outcome, path = next(tree.trajectories())
        plain = paths_at(run, task, agents)
        speaker = path[1].speaker.name
        rewards = [
            (path[0].id, "reward", 1.0),
            (path[1].id, "reward", 2.0),
            (outcome.leaf, "final_reward", 4.0),
        ]
        credit = [Credit(n, f"{kind}:{speaker}", one, "environment") for n, kind, one in rewards]
        run.store.finish(ItemKey(0, stage, task, "0009"), tree=tree, credit=credit)
        given = paths_at(run, task, agents)
    first = next(target for row in plain[speaker].rows for target in row.targets)
    last = first.stop - first.start - 1
    assert given[speaker].sampled == SampledPath(
        task, outcome.leaf, 4.0, ((last, 1.0), (last, 2.0)), speaker
    ), "what comes before the agent's first turn stands there too"
    (other,) = {*agents} - {speaker}
    assert given[other].sampled == plain[other].sampled, "another agent's rewards are not its own"


def term(folder: Path, body: str) -> str:
    (folder / "own.py").write_text(f"def own(dialogue):\n    return {body}\n")
    return f"reward.terms={{{folder / 'own.py'}:own: 1}}"


def test_tasks_are_drawn_anew_until_enough_groups_are_informative(tmp_path: Path) -> None:
    odd = "float(dialogue.outcome.sample == 0 and int(dialogue.path[0].parent[:8], 16) % 2)"
    overrides = [*SMALL, term(tmp_path, f"{odd} - dialogue.outcome.score"), "steps.count=2"]
    recipe = make_recipe("rl/dapo", [*overrides, "rollout.oversample_tasks=1", "rollout.rounds=5"])
    records = run_to_end(recipe, tmp_path / "run")
    assert any(int(record["rounds"]) > 2 for record in records.values()), "some tell nothing"
    for record in records.values():
        assert record["groups_informative"] == 2 or record["rounds"] == 5
        assert record["paths"] == 2 * 3 * int(record["groups_informative"]), (
            "two agents, three samples"
        )
        assert record["samples"] == 3 * int(record["rounds"])
    draws = [int(records[n]["draws"]) for n in (0, 1)]
    assert draws == [records[0]["rounds"], int(records[0]["rounds"]) + int(records[1]["rounds"])]
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        tasks = [run.store.tree_tasks(0, f"{REINFORCE}/{step:05d}") for step in (0, 1)]
    assert not set(tasks[0]) & set(tasks[1]), "a later step goes on in the data"


def stopped(folder: Path, method: str, overrides: Sequence[str]) -> tuple[str, list[Metrics]]:
    """The error of a run that stops, and its steps."""
    recipe = make_recipe(method, overrides)
    with pytest.raises(UserError) as error:
        run_to_end(recipe, folder)
    with open_run(folder, recipe.name, recipe.settings) as run:
        records = step_records(run.store, 0, REINFORCE)
    return str(error.value), [records[step] for step in sorted(records)]


def test_steps_without_anything_to_learn_stop_the_run_with_advice(tmp_path: Path) -> None:
    overrides = [*SMALL, term(tmp_path, "-dialogue.outcome.score"), "steps.count=9"]
    error, records = stopped(
        tmp_path / "run",
        "rl/dapo",
        [*overrides, "steps.patience=2", "rollout.rounds=2", "rollout.oversample_tasks=2"],
    )
    assert "every rollout of a task got the same reward" in error and "too easy or too" in error
    assert [one["groups_equal"] for one in records] == [8, 8], "of two agents and two draws each"
    assert [(one["policy/updates"], one["rounds"]) for one in records] == [(0, 2)] * 2
    error, _ = stopped(tmp_path / "tree", "rl/vine", [*overrides, "steps.patience=1"])
    assert "all sibling turns had the same return" in error


@pytest.mark.parametrize(
    ("method", "own"),
    [("rl/grpo", "reward.kl_coef=0.01"), ("rl/ppo", "critic.train.learning_rate=1e-2")],
)
def test_rewards_that_never_differ_leave_the_policy_bitwise_as_it_was(
    tmp_path: Path, method: str, own: str
) -> None:
    overrides = [*SMALL, term(tmp_path, "1 - dialogue.outcome.score"), "steps.count=2", own]
    overrides += ["rollout.max_tokens=16", "evaluate.tasks=1"]
    records = run_to_end(
        make_recipe(method, [*overrides, "train.weight_decay=0.1", "loss.kl_coef=0.1"]),
        tmp_path / "run",
    )
    assert [record["reward"] for record in records.values()] == [1.0] * 2
    assert [record["policy/updates"] for record in records.values()] == [0] * 2
    as_it_began = weight_hash(load("tiny-exchange").model)
    assert final_weights(tmp_path / "run") == as_it_began
    if method == "rl/ppo":
        assert records[1]["critic/updates"] == 4, "what is to be expected can be learned"
        assert final_weights(tmp_path / "run", "critic") != as_it_began


def test_a_finished_run_frees_its_models_without_a_garbage_collection(tmp_path: Path) -> None:
    def engines() -> set[int]:
        return {id(o) for o in gc.get_objects() if isinstance(o, InProcessEngine | Roles)}

    overrides = [*SMALL, "steps.count=1", "rollout.max_tokens=16", "evaluate.tasks=1"]
    earlier = engines()
    gc.disable()
    try:
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
        assert not engines() - earlier
    finally:
        gc.enable()


@pytest.mark.slow
def test_each_agent_can_have_a_policy_of_its_own_in_bfloat16(tmp_path: Path) -> None:
    overrides = [
        *informative_overrides(tmp_path),
        "train.dtype=bfloat16",
        "engine.attention=eager",
        "rollout.tasks=1",
        "evaluate.tasks=1",
    ]
    recipe = make_recipe(
        "rl/grpo", [*overrides, "policies.weights=each", "steps.count=2", "loss.kl_coef=0.1"]
    )
    assert isinstance(recipe, Reinforce) and len(recipe.learning_roles) == 2
    records, roles, folder = run_to_end(recipe, tmp_path / "run"), recipe.learning_roles, tmp_path
    assert len({final_weights(folder / "run", role) for role in roles}) == 2
    with open_run(folder / "run", recipe.name, recipe.settings) as run:
        turns = [t for tree in run.store.trees(1, "evaluate") for t in tree.turns.values()]
        policy = recipe.models(run).load(recipe.main_role, 1).model
    recipe.close()
    assert {t.writer for t in turns if t.sample} == {f"{role}@1" for role in roles}
    assert (policy.dtype, policy.config._attn_implementation) == (torch.bfloat16, "eager")
    for role in roles:
        assert [record[f"{role}/updates"] for record in records.values()] == [1, 2]
        assert 0.8 < float(records[1][f"{role}/ratio"]) < 1.2
        (file,) = (folder / f"run/training/{role}/iteration-00/final").glob("*.safetensors")
        assert {weight.dtype for weight in load_file(file).values()} == {torch.bfloat16}


# -- what a run refuses, and what it leaves out -----------------------------------------------

REFUSED = [
    (["rollout.rollouts_per_task=1"], "other path of a task to compare with"),
    (["rollout.rounds=3", "rollout.rollouts_per_task=1"], "gives each task one path"),
    (["reward.overlong_penalty=1"], "overlong_penalty needs"),
    (["reward.overlong_limit=9"], "need reward.overlong_penalty"),
    (["critic.view=joint"], "set advantage.baseline=values"),
    (["advantage.gamma=0.9", "advantage.normalize=false"], "gamma, normalize have no effect with"),
    (["loss.importance_sampling=token_truncate"], "set loss.old_logprobs=recomputed"),
    (["loss.kind=gspo"], "set loss.aggregation=sequence"),
    (["loss.kind=cispo"], "set loss.dual_clip=none"),
]


@pytest.mark.parametrize(("own", "message"), REFUSED, ids=[" ".join(own) for own, _ in REFUSED])
def test_what_cannot_work_is_refused_when_it_is_read(own: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings("rl/grpo", own)


VALUES = ("method=rl", "advantage.baseline=values", "rollout.rounds=1", "evaluate.tasks=2")


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("rl/grpo", ("steps.minibatches_per_step=3",), "minibatches_per_step=3 is more than rollout.tasks=2"),
        ("rl/grpo", ("train.max_length=40",), "train.max_length=40 leaves nothing to train on"),
        ("rl/ppo", ("critic.train.max_length=40", *PPO), "critic.train.max_length=40 leaves nothing"),
        ("gap/tiny", (*VALUES, "critic.train.max_length=12"), "critic.train.max_length=12 leaves nothing"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_the_run(
    method: str, overrides: tuple[str, ...], message: str
) -> None:
    small = SMALL if method.startswith("rl/") else ()
    with pytest.raises(UserError, match=message):
        make_recipe(method, [*small, *overrides]).plan()
    make_recipe(method, [*small, *(pair for pair in overrides if pair in (*PPO, *VALUES))]).plan()


GRADES = '''
from dataclasses import replace
from coterie.environments.exchange import Exchange

class Graded(Exchange):
    """Of four training dialogues of a task the first fails, the second can't be graded, the third is right."""
    name = "graded"
    seen = {}

    async def grade(self, state, session):
        grade = await super().grade(state, session)
        if state.task.id.startswith("heldout"):
            return grade
        place = self.seen[state.task.id] = self.seen.get(state.task.id, 0) + 1
        if place % 4 == 1:
            raise RuntimeError("no grader today")
        return replace(grade, score=None if place % 4 == 2 else float(place % 4 == 3))

class Ungraded(Exchange):
    name = "ungraded"

    async def grade(self, state, session):
        return replace(await super().grade(state, session), score=None)
'''


def graded_words(folder: Path, name: str, *own: str) -> list[str]:
    (folder / "grades.py").write_text(GRADES)
    played = [f"environment={folder / 'grades.py'}:{name}", "model=tiny-exchange", "loss.kl_coef=0"]
    room = ["train.max_length=1024", "train.tokens_per_microbatch=4096"]
    return [*SMALL, *played, *room, *own]


@pytest.mark.slow
def test_failed_and_ungraded_dialogues_leave_their_groups_and_missing_measures_are_named(
    tmp_path: Path,
) -> None:
    class Lines(Silent):
        def say(self, text: str) -> None:
            lines.append(text)

    lines: list[str] = []
    own = (
        "steps.count=1",
        "rollout.rollouts_per_task=4",
        "reward.measures={messages: 0.1, roudns: -0.05}",
    )
    overrides = graded_words(tmp_path, "Graded", *own)
    (record,) = run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run", Lines()).values()
    assert (record["samples"], record["samples_failed"]) == (8, 2), "of two tasks one each"
    assert record["paths_failed"] == 4, "of two agents"
    assert record["paths"] == 8 and record["groups"] == record["groups_informative"] * 2 == 4
    assert record["measures_missing"] == 1
    assert any("weighs roudns, which no dialogue of this step has" in line for line in lines)
    with Store.open(tmp_path / "run/store.sqlite", read_only=True) as store:
        reasons = Counter(entry.reason for _, entry in store.left_out(0, REINFORCE))
    assert (reasons["samples_failed"], reasons["paths_failed"]) == (2, 4)


@pytest.mark.slow
def test_a_run_without_any_reward_stops_and_says_that_it_had_none(tmp_path: Path) -> None:
    own = ("steps.count=5", "steps.patience=2", "rollout.rounds=2", "rollout.oversample_tasks=2")
    error, records = stopped(tmp_path / "run", "rl/dapo", graded_words(tmp_path, "Ungraded", *own))
    assert [one["paths_failed"] for one in records] == [2 * 6 * 2] * 2, "rounds, dialogues, agents"
    assert "had no path to train on; left out: 48 paths without a reward" in error
    assert "Paths without a reward were not graded" in error


# -- within and between steps -----------------------------------------------------------------


@pytest.mark.slow
def test_all_updates_of_a_step_learn_from_what_the_step_sampled_and_compare_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second update is by weights that are newer than its samples, which is what ratios are for."""
    moved: list[list[float]] = []
    ratios: list[tuple[float, float]] = []
    step = Trainer.step

    def apart(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
        return max(abs(a - b) for a, b in zip(one or (), other or (), strict=True))

    def watched(self: Any, items: Sequence[Row]) -> dict[str, float]:
        now = with_old(self.model, items, TrainingSettings(), temperature=1.0)
        moved.append([apart(row.old, then.old) for row, then in zip(now, items, strict=True)])
        assert max(apart(row.old, row.logprobs) for row in items) < 1e-4, "old is what sampled"
        metrics = step(self, items)
        ratios.append((metrics["ratio_min"], metrics["ratio_max"]))
        return metrics

    monkeypatch.setattr(Trainer, "step", watched)
    overrides = [*informative_overrides(tmp_path), "steps.count=2", "steps.minibatches_per_step=2"]
    records = run_to_end(
        make_recipe("rl/dapo", [*overrides, "loss.old_logprobs=recomputed"]), tmp_path / "run"
    )
    assert [one["policy/updates"] for one in records.values()] == [2, 4]
    assert all(one["paths_stale"] == 0 for one in records.values())
    assert sum(map(len, moved)) == sum(int(one["paths"]) for one in records.values())
    for first, second in zip(moved[::2], moved[1::2], strict=True):
        assert max(first) == 0 < 1e-4 < max(second)
    assert set(ratios[::2]) == {(1.0, 1.0)}, "exactly"
    assert all(least < 1 < most for least, most in ratios[1::2])


@pytest.mark.slow
def test_checkpoints_are_taken_between_steps_alone_however_long_an_update_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by the clock, a policy and its critic would keep no step in common."""
    hours = itertools.count(step=3600)
    clock = SimpleNamespace(monotonic=lambda: float(next(hours)))
    monkeypatch.setattr(checkpoint, "time", clock)
    overrides = [*informative_overrides(tmp_path), "steps.count=4", "steps.save_every=2"]
    with pytest.raises(Killed):
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run", Killing(2))
    folder = tmp_path / "run/training/policy/iteration-00"
    assert [one.name for one in folder.glob("checkpoint-*")] == ["checkpoint-00000002"]
