"""Sampling while steps train: versions, staleness, and runs that are killed."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.recipes.registry import settings
from coterie.record.store import Store
from coterie.record.turn import Sample
from coterie.rollout.episodes import Driver, Episode
from coterie.runs.group_queue import GroupQueue
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import groups_taken, step_records
from coterie.training.trainer import Trainer
from tests.helpers.run_rl import Killed, Killing, informative_overrides, make_recipe, run_to_end
from tests.helpers.separate_engines import SpellingEngine, use_separate_engines, versions_of

OVERLAP = (
    "engine.kind=vllm", "rollout.max_staleness=1", "steps.count=5", "loss.kl_coef=0", "evaluate.tasks=1",
)  # fmt: skip


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[SpellingEngine]:
    opened: list[SpellingEngine] = []
    use_separate_engines(opened, monkeypatch.setattr)
    return opened


def samples(folder: Path) -> dict[int, list[Sample]]:
    """The sampled turns of each draw."""
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        return {
            int(stage.rpartition("/")[2]): [
                turn.sample
                for tree in store.trees(0, stage)
                for turn in tree.turns.values()
                if turn.sample
            ]
            for stage in store.stages(0, f"{REINFORCE}/*")
        }


def test_every_token_has_the_version_that_sampled_it_and_no_step_trains_on_older_ones(
    tmp_path: Path, engines: list[SpellingEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = GroupQueue.take

    async def paused(queue: GroupQueue, recorded: Any) -> Any:
        engines[0].go.set()
        samples = await take(queue, recorded)
        if queue.step < 4:  # turns of later groups are in flight while the step trains
            engines[0].go.clear()
        return samples

    monkeypatch.setattr(GroupQueue, "take", paused)
    overrides = [*informative_overrides(tmp_path), *OVERLAP]
    records = run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    (engine,) = engines
    assert engine.loaded == ["0", "0.1", "0.2", "0.3", "0.4", "1"]
    by_draw = samples(tmp_path / "run")
    for sample in (sample for some in by_draw.values() for sample in some):
        assert versions_of(sample) == engine.versions(sample.ids)
    assert any(sample.versions for some in by_draw.values() for sample in some), "turns span loads"
    versions = {version: step for step, version in enumerate(engine.loaded[:5])}
    taken = [groups_taken(records[step]) for step in range(5)]
    assert max(Counter(group for groups in taken for group in groups).values()) == 1
    with Store.open(tmp_path / "run/store.sqlite", read_only=True) as store:
        for step, groups in enumerate(taken):
            ages, stale = list[int](), 0
            for draw, task in groups:
                trees = store.tree(0, f"{REINFORCE}/{draw:05d}", task).turns.values()
                turns = [versions_of(turn.sample) for turn in trees if turn.sample]
                own = [step - versions[version] for turn in turns for version in turn]
                stale += max(own) > 1
                ages += own if max(own) <= 1 else []
            assert len(groups) == 2 + stale, "enough groups that are young enough"
            assert bool(records[step]["paths_stale"]) == bool(stale)
            assert records[step]["staleness"] == pytest.approx(sum(ages) / len(ages), abs=1e-3)
    assert any(record["staleness"] for record in records.values())


class Watching(Killing):
    """Also keeps what each step said."""

    def __init__(self, step: int = -1, sampled: int | None = None) -> None:
        super().__init__(step, sampled)
        self.lines: dict[str, str] = {}

    def say(self, text: str) -> None:
        if text.startswith("step "):
            self.lines[text.split(":")[0]] = text.rpartition(", staleness")[0] or text
        super().say(text)


def killing(count: int, do: Callable[..., Any], after: bool = False) -> Callable[..., Any]:
    """The function, which ends the run when it is called for the last time."""
    left = [count]

    def killed(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if not left[0] and not after:
            raise Killed
        result = do(*args, **kwargs)
        if not left[0]:
            raise Killed
        return result

    return killed


@pytest.mark.parametrize(
    ("kind", "name", "count"),
    [
        (None, "sampled", 3),
        (None, "recorded", 2),
        (Trainer, "step", 3),
        (Trainer, "publish", 3),
        (SpellingEngine, "load", 3),
        (Trainer, "save", 2),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_a_run_that_was_killed_repeats_its_steps_and_loses_no_group(
    tmp_path: Path,
    engines: list[SpellingEngine],
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    name: str,
    count: int,
) -> None:
    overrides, folder = (
        [*informative_overrides(tmp_path), *OVERLAP, "steps.save_every=2"],
        tmp_path / "run",
    )
    progress = Watching(*((count, None) if name == "recorded" else (-1, None)))
    with monkeypatch.context() as patch:
        if kind:
            patch.setattr(kind, name, killing(count, getattr(kind, name)))
        elif name == "sampled":
            patch.setattr(Watching, "advance", killing(15, Killing.advance))
        with pytest.raises(Killed):
            run_to_end(make_recipe("rl/grpo", overrides), folder, progress)
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        before = step_records(store, 0, REINFORCE)
        finished = {
            stage: store.finished_keys(0, stage) for stage in store.stages(0, f"{REINFORCE}/*")
        }
    again = Watching()
    records = run_to_end(make_recipe("rl/grpo", overrides), folder, again)
    assert before == {step: records[step] for step in before}
    both = again.lines.keys() & progress.lines.keys()
    assert {one: again.lines[one] for one in both} == {one: progress.lines[one] for one in both}
    taken = [group for step in range(5) for group in groups_taken(records[step])]
    assert len({*taken}) == len(taken) >= 10
    with Store.open(folder / "store.sqlite", read_only=True) as store:
        for stage, keys in finished.items():
            assert keys <= store.finished_keys(0, stage)
        for draw, task in taken:
            keys = store.finished_keys(0, f"{REINFORCE}/{draw:05d}")
            assert sum(one == task for one, _ in keys) == 3
    for draw in range(max(draw for draw, _ in taken) - 1):
        assert sum(one == draw for one, _ in taken) == 2, "every group was taken"


@pytest.mark.usefixtures("engines")
def test_a_step_does_not_wait_for_slow_groups_which_are_dropped_when_they_are_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, take, hung, answers = (
        Driver.play,
        GroupQueue.take,
        set[tuple[int, str]](),
        asyncio.Event(),
    )

    async def played(driver: Driver, episode: Episode, sessions: Any) -> Any:
        if episode.stage.startswith(REINFORCE) and episode.sample == 0 and len(hung) < 2:
            hung.add((int(episode.stage.rpartition("/")[2]), episode.task.id))
            await answers.wait()  # for a tool, before the dialogue's last tokens
        return await play(driver, episode, sessions)

    async def taken(queue: GroupQueue, recorded: Any) -> Any:
        if queue.step == 4:
            answers.set()
            while not hung <= set(queue._ready):
                await asyncio.sleep(0)
        return await take(queue, recorded)

    monkeypatch.setattr(Driver, "play", played)
    monkeypatch.setattr(GroupQueue, "take", taken)
    records = run_to_end(
        make_recipe("rl/grpo", [*informative_overrides(tmp_path), *OVERLAP]), tmp_path / "run"
    )
    groups = [groups_taken(records[step]) for step in range(5)]
    assert [len(some) for some in groups] == [2, 2, 2, 2, 4]
    assert len(hung) == 2 and hung <= {*groups[4]}
    assert [record["groups"] for record in records.values()] == [2] * 5
    assert [record["paths_stale"] for record in records.values()] == [0, 0, 0, 0, 6]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["rollout.max_staleness=1"], "same weights in one process"),
        (["rollout.max_staleness=1", "engine.kind=vllm", "engine.keep_servers=false"], "all the time"),
    ],
)  # fmt: skip
def test_sampling_beside_training_needs_an_engine_of_its_own(
    overrides: list[str], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        settings("rl/grpo", overrides)
