"""Steps of reinforcement learning as models: checkpoints, held-out curves, forks, Ctrl-C, and warnings."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from coterie.cli.report import write_report
from coterie.progress import Silent
from coterie.recipes.base import recorded_run, stored_policy
from coterie.recipes.rl import Reinforce, group_batch
from coterie.record.tree import Metrics
from coterie.reports.health import health
from coterie.rewards.dialogue_reward import PathReward, PathRewardSettings
from coterie.runs.interruption import INTERRUPTED, Interruption
from coterie.runs.loop import REINFORCE, fork
from coterie.runs.reinforce_batch import (
    StepSamples,
    informative_tasks,
    paths_of,
    shown_rollouts,
)
from coterie.runs.reinforce_record import (
    describe_step,
    heldout_means,
    step_folder,
    step_records,
    step_stage,
)
from coterie.training.checkpoint import saved_steps, weight_hash
from coterie.training.reference import with_old
from coterie.training.settings import TrainingSettings
from coterie.training.trainer import Trainer
from tests.conftest import Cli
from tests.helpers.read_page import chart_of, sections_of
from tests.helpers.run_rl import (
    Killed,
    final_weights,
    informative_overrides,
    make_recipe,
    run_to_end,
)

STEPS = (
    "steps.count=3", "steps.evaluate_every=2", "steps.keep_last=3", "policies.weights=each", "loss.kl_coef=0",
)  # fmt: skip
ROLES = ("Alice", "Bob")


class Whole:
    """A run of two roles that nothing has interrupted. Tests change only copies of it."""

    def __init__(self, folder: Path) -> None:
        self.overrides, self.folder = [*informative_overrides(folder), *STEPS], folder / "run"
        self.records = run_to_end(make_recipe("rl/grpo", self.overrides), self.folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("steps"))


def curve(folder: Path) -> dict[int, Metrics]:
    with recorded_run(folder) as (_, run):
        means = heldout_means(run, 0)
    return {step: {n: m for n, m in means[step].items() if "second" not in n} for step in means}


def hashes(folder: Path) -> list[str]:
    return [final_weights(folder, role) for role in ROLES]


# -- every step is a model ------------------------------------------------------------------------


def test_a_step_has_the_weights_that_sampled_the_next_one(whole: Whole) -> None:
    reward = PathReward(PathRewardSettings())
    with recorded_run(whole.folder) as (recipe, run):
        for step, role in ((2, "Alice"), (1, "Bob")):
            stage = step_stage(REINFORCE, step)
            tasks = run.store.tree_tasks(0, stage)
            paths = paths_of(run.store, 0, stage, tasks, [role], reward)
            rows = [row for path in paths for row in path.rows]
            distances = []
            for kept in (step, 3):
                model = recipe.models(run).load(role, step_folder(run, role, kept)).model
                scored = with_old(model, rows, TrainingSettings(), temperature=1.0)
                pairs = [(row.old or (), row.logprobs or ()) for row in scored]
                distances.append(
                    max(abs(a - b) for old, new in pairs for a, b in zip(old, new, strict=True))
                )
            assert distances[0] < 1e-4 < 1e-3 < distances[1]
        assert weight_hash(step_folder(run, "Bob", 3)) == final_weights(whole.folder, "Bob")


def test_a_step_is_evaluated_exported_and_trained_on_by_its_number(cli: Cli, whole: Whole) -> None:
    played = cli("evaluate", whole.folder, "--checkpoints", "1,3,3")
    assert played.code == 0, played.err
    rows = json.loads(played.out.splitlines()[-1])["rows"]
    assert [row["policy"] for row in rows] == ["run step 1", "run step 3"]
    assert rows[1]["score"] == curve(whole.folder)[3]["score"], "the same tasks and decoding"
    again = cli("evaluate", "exchange", "tasks=2", f"policy={whole.folder}@3")
    assert json.loads(again.out.splitlines()[-1])["rows"][0]["score"] == rows[1]["score"]
    words = ("export", "model", whole.folder, "--role", "Bob", "--step", 2, "--out", "bob")
    assert cli(*words).code == 0
    with recorded_run(whole.folder) as (_, run):
        assert weight_hash(Path("bob")) == weight_hash(step_folder(run, "Bob", 2))
        path = step_folder(run, "Alice", 2)
    assert {file.name for file in path.iterdir()} >= {"config.json", "tokenizer.json"}
    assert not (Path("bob") / "trainer").exists() and "after 2 steps" in Path(
        "bob/README.md"
    ).read_text(encoding="utf-8")
    assert make_recipe("rl/grpo", [f"model={whole.folder}@2"]).settings.model == str(path)


# -- held-out curves ------------------------------------------------------------------------------


class KilledIn(Silent):
    """Ends the run in a stage, when some of its dialogues have been played."""

    def __init__(self, stage: str) -> None:
        self.stage_name, self.now = stage, ""

    def start(self, total: int, description: str) -> None:
        self.now = description

    def advance(self, n: int, **fields: float) -> None:
        if self.now.startswith(self.stage_name):
            raise Killed


@pytest.mark.slow
def test_a_run_killed_within_a_held_out_evaluation_draws_the_same_curve(
    tmp_path: Path, whole: Whole
) -> None:
    overrides = [*whole.overrides, "steps.save_every=3"]
    with pytest.raises(Killed):
        run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run", KilledIn("heldout/00002"))
    assert 2 not in curve(tmp_path / "run")
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert curve(tmp_path / "run") == curve(whole.folder)
    assert sorted(curve(whole.folder)) == [0, 2, 3], "before, every second, and the last step"
    assert hashes(tmp_path / "run") == hashes(whole.folder)


FADING = '''
from dataclasses import replace
from coterie.environments.exchange import Exchange

class Fading(Exchange):
    """The eight held-out tasks are right, then wrong, then right, then wrong; of three dialogues in training one is."""
    name, played = "fading", {True: 0, False: 0}

    async def grade(self, state, session):
        grade, heldout = await super().grade(state, session), state.task.id.startswith("heldout")
        count = self.played[heldout] = self.played[heldout] + 1
        return replace(grade, score=float((count - 1) // 8 % 2 == 0 if heldout else count % 3 == 0))
'''


class Lines(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warnings(self) -> list[str]:
        return [line for line in self.lines if line.startswith("warning: ")]


def test_the_best_step_is_kept_and_becomes_the_result(tmp_path: Path) -> None:
    (tmp_path / "fading.py").write_text(FADING)
    own = (
        *(f"environment={tmp_path / 'fading.py'}:Fading", "model=tiny-exchange"),
        *("steps.count=3", "steps.evaluate_every=1", "steps.keep=best", "steps.keep_last=1"),
    )
    said, folder = Lines(), tmp_path / "run/training/policy/iteration-00"
    sizes = ("evaluate.tasks=8", "rollout.max_tokens=16", "loss.kl_coef=0")
    run_to_end(
        make_recipe("rl/grpo", [*informative_overrides(tmp_path), *own, *sizes]),
        tmp_path / "run",
        said,
    )
    scores = {step: means["score"] for step, means in curve(tmp_path / "run").items()}
    assert scores == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert saved_steps(folder) == [2, 3], "the best, and the last for a run that goes on"
    assert final_weights(tmp_path / "run") == weight_hash(folder / "checkpoint-00000002")
    with recorded_run(tmp_path / "run") as (_, run):
        assert stored_policy(str(tmp_path / "run")) == folder / "final"
        assert run.store.iterations(REINFORCE) == [0]
    assert any("scores 1.000 greedily, but 0.333 in the first" in text for text in said.warnings())
    heldout = sections_of(write_report(tmp_path / "run"))[
        f"Held-out scores of {REINFORCE}, iteration 0"
    ]
    assert heldout["steps"] == [*scores]
    assert chart_of(heldout, "score")["series"]["score"]["values"] == [*scores.values()]


# -- forks ----------------------------------------------------------------------------------------


def test_a_fork_after_a_changed_reward_starts_from_a_step(tmp_path: Path, whole: Whole) -> None:
    (tmp_path / "long.py").write_text("def long(dialogue):\n    return dialogue.tokens / 50\n")
    own = (f"reward.terms={{{tmp_path / 'long.py'}:long: 1}}", "train.learning_rate=2e-3")
    recipe = make_recipe("rl/grpo", [*whole.overrides, *own, "steps.count=4"])
    fork(recipe, whole.folder, tmp_path / "run", recipe.settings, 2)
    with recorded_run(tmp_path / "run") as (_, run), recorded_run(whole.folder) as (_, old):
        assert sorted(step_records(run.store, 0, REINFORCE)) == [0, 1]
        assert not run.store.stages(0, f"{REINFORCE}/*"), "samples of its own only"
        for role in ROLES:
            pair = (step_folder(run, role, 2), step_folder(old, role, 2))
            assert weight_hash(pair[0]) == weight_hash(pair[1])
    records = run_to_end(recipe, tmp_path / "run")
    assert [records[n] for n in (0, 1)] == [whole.records[n] for n in (0, 1)]
    assert float(records[2]["reward"]) > 0 > float(whole.records[2]["reward"])
    assert records[2]["tokens"] == whole.records[2]["tokens"], "sampled by the same weights"
    assert records[3]["Bob/updates"] == 4
    assert not set(hashes(tmp_path / "run")) & set(hashes(whole.folder))


# -- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.fixture
def handler() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which a stopped run leaves until its process ends."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Pressing(Lines):
    """Presses Ctrl-C in a stage, or when a line is said."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.now = when, ""

    def start(self, total: int, description: str) -> None:
        self.now = description

    def advance(self, n: int, **fields: float) -> None:
        self._press_if(self.now.startswith(self.when))

    def say(self, text: str) -> None:
        super().say(text)
        self._press_if(text.startswith(self.when))

    def _press_if(self, here: bool) -> None:
        if here and self.when:
            self.when = ""
            press()


def interrupted(overrides: Sequence[str], folder: Path, progress: Lines) -> int:
    """Run until Ctrl-C, and return the number of the step that is saved."""
    with pytest.raises(KeyboardInterrupt):
        run_to_end(make_recipe("rl/grpo", overrides), folder, progress)
    lines = [line for line in progress.lines if "continue with: coterie run" in line]
    assert len(lines) == 1 and str(folder) in lines[0]
    return int(lines[0].split()[1])


@pytest.mark.parametrize(
    ("when", "saved"),
    [
        (f"{REINFORCE}/00001", 1),
        pytest.param("heldout/00002", 2, marks=pytest.mark.slow),
        pytest.param("step 2 of", 2, marks=pytest.mark.slow),
    ],
    ids=["sampling", "held-out", "between"],
)
def test_ctrl_c_saves_the_newest_step_and_the_run_ends_as_if_it_had_not_been(
    tmp_path: Path, whole: Whole, handler: None, when: str, saved: int
) -> None:
    overrides = [*whole.overrides, "steps.save_every=3"]
    assert interrupted(overrides, tmp_path / "run", Pressing(when)) == saved
    for role in ROLES:
        assert saved_steps(tmp_path / f"run/training/{role}/iteration-00") == [saved]
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(whole.folder)
    assert curve(tmp_path / "run") == curve(whole.folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "saved"), [(3, 1), (4, 2)], ids=["before a weight changes", "after"]
)
def test_ctrl_c_within_an_update_saves_a_whole_step(
    tmp_path: Path,
    whole: Whole,
    handler: None,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    saved: int,
) -> None:
    """Each step has an update of Alice and one of Bob. Only steps can be resumed, so Bob's is taken, too."""
    gradient: Callable[..., Any] = Trainer._gradient
    calls = []

    def pressing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == call:
            press()
        return gradient(*args)

    monkeypatch.setattr(Trainer, "_gradient", pressing)
    overrides = [*whole.overrides, "steps.save_every=3"]
    assert interrupted(overrides, tmp_path / "run", Lines()) == saved
    assert len(calls) == call
    run_to_end(make_recipe("rl/grpo", overrides), tmp_path / "run")
    assert hashes(tmp_path / "run") == hashes(whole.folder)


def test_a_second_ctrl_c_ends_the_process_at_once(
    tmp_path: Path, whole: Whole, handler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = list[int]()

    class Twice(Pressing):
        def say(self, text: str) -> None:
            super().say(text)
            if "press Ctrl-C again" in text and not statuses:
                press()

    monkeypatch.setattr(os, "_exit", statuses.append)
    with pytest.raises(KeyboardInterrupt):
        run_to_end(
            make_recipe("rl/grpo", whole.overrides), tmp_path / "run", Twice(f"{REINFORCE}/00000")
        )
    assert statuses == [INTERRUPTED]


# -- numbers and warnings ------------------------------------------------------------------------


def test_each_role_has_its_own_numbers_in_lines_and_on_the_page(whole: Whole) -> None:
    """Both roles get the reward of their dialogue, but not every dialogue has turns of both."""
    record = whole.records[1]
    line = describe_step(2, 3, record)
    with recorded_run(whole.folder) as (recipe, run):
        assert isinstance(recipe, Reinforce)
        tasks = run.store.tree_tasks(0, step_stage(REINFORCE, 1))
        reward = PathReward(recipe.settings.reward)
        every = paths_of(run.store, 0, step_stage(REINFORCE, 1), tasks, ROLES, reward)
    steps = sections_of(write_report(whole.folder))[f"Steps of {REINFORCE}, iteration 0"]
    for role in ROLES:
        paths = [path for path in every if path.agent == role]
        totals = [path.sampled.total or 0.0 for path in paths]
        assert record[f"{role}/reward"] == pytest.approx(fmean(totals))
        assert record[f"{role}/tokens"] == fmean(path.tokens for path in paths)
        assert record[f"{role}/reward/short"] == pytest.approx(
            fmean(p.terms["short"] for p in paths)
        )
        assert record[f"{role}/groups_informative"] == len(informative_tasks(paths))
        assert f"{role} (reward {record[f'{role}/reward']:.3g}, tokens " in line
        (shown,) = chart_of(steps, f"{role}/reward")["series"].values()
        assert shown["values"] == [one[f"{role}/reward"] for one in whole.records.values()]
    assert record["Alice/tokens"] != record["Bob/tokens"]


def test_checks_of_a_run_are_means_of_its_steps_by_role(whole: Whole) -> None:
    with recorded_run(whole.folder) as (_, run):
        checks = {(check["id"], check["agent"]): check for check in health(run.store, whole.folder)}
    records = whole.records.values()
    shares = [one["groups_equal"] / one["groups"] for one in records]
    assert checks["equal", None]["value"] == pytest.approx(fmean(shares))
    for role in ROLES:
        shares = [1 - one[f"{role}/groups_informative"] / one["tasks"] for one in records]
        assert checks["equal", role]["value"] == pytest.approx(fmean(shares))
        # On a CPU the sampler's log-probs differ from the trainer's by rounding.
        assert abs(checks["sampler_kl", role]["value"]) < 1e-6
        assert checks["rewarded", role]["level"] == "ok"
    for record in records:
        for role in ROLES:
            sides = [record.get(f"{role}/clip_share_{side}", 0) for side in ("low", "high")]
            assert sum(sides) == pytest.approx(record.get(f"{role}/clip_share", 0))


def test_trackers_get_rollouts_as_their_agents_saw_them(whole: Whole) -> None:
    with recorded_run(whole.folder) as (recipe, run):
        assert isinstance(recipe, Reinforce)
        stage = step_stage(REINFORCE, 1)
        tasks = run.store.tree_tasks(0, stage)
        paths = paths_of(run.store, 0, stage, tasks, ROLES, PathReward(recipe.settings.reward))
        batch = group_batch(paths, recipe.settings.advantage)
        shown = shown_rollouts(run.store, 0, 1, StepSamples(0, paths=paths), batch, 4)
        trees = {tree.task: tree for tree in run.store.trees(0, stage)}
    assert (
        len(shown) == 4 and len({(one["task"], one["agent"], one["sample"]) for one in shown}) == 4
    )
    for rollout in shown:
        task, agent, sample = (rollout[name] for name in ("task", "agent", "sample"))
        (path,) = (p for p in paths if (p.task, p.agent, p.outcome.sample) == (task, agent, sample))
        turns = trees[path.task].path(path.outcome.leaf)
        texts = [turn.text for turn in turns if turn.speaker.name == agent]
        replies = [m["content"] for m in rollout["messages"] if m["role"] == "assistant"]
        assert replies == texts and rollout["messages"][-1]["content"] == texts[-1]
        assert any(turns[0].text in message["content"] for message in rollout["messages"])
        (trained,) = (p for p in batch.paths if p.sampled == path.sampled)
        assert rollout["advantage"] == pytest.approx((trained.rows[0].advantages or ())[-1])
        assert rollout["reward"] == path.sampled.total


@pytest.mark.slow
def test_a_role_without_any_reward_is_named_whatever_the_patience(tmp_path: Path) -> None:
    (tmp_path / "zero.py").write_text("def zero(dialogue):\n    return -dialogue.outcome.score\n")
    overrides = [
        *informative_overrides(tmp_path),
        f"reward.terms={{{tmp_path / 'zero.py'}:zero: 1}}",
        *STEPS,
    ]
    said = Lines()
    recipe = make_recipe("rl/grpo", [*overrides, "steps.count=1", "steps.patience=50"])
    run_to_end(recipe, tmp_path / "run", said)
    named = [f"rollouts with a reward other than 0 of {role} 0 (limit 1)" for role in ROLES]
    (line,) = (text for text in said.lines if text.startswith("step 1 of 1"))
    assert all(name in line.partition("; warning: ")[2] for name in named)
    warnings = [text.removeprefix("warning: ") for text in said.warnings()]
    assert all(any(text.startswith(name) for text in warnings) for name in named)
    with recorded_run(tmp_path / "run") as (_, run):
        assert weight_hash(step_folder(run, "Bob", 1)) == final_weights(tmp_path / "run", "Bob")


def test_outside_the_main_thread_a_stage_runs_without_a_handler_of_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGINT)

    async def stage() -> None:
        with Interruption(lambda: None, lambda: True, Silent()):
            pass

    with ThreadPoolExecutor(1) as threads:
        threads.submit(asyncio.run, stage()).result()
    assert signal.getsignal(signal.SIGINT) is before
