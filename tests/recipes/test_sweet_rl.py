"""The recipe ``sweet_rl/backend`` end to end on the packaged model, its baselines and its other critics."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.environments.collaboration import CRITIC
from coterie.environments.persona import ASPECTS, THEMES
from coterie.errors import UserError
from coterie.models.adapters import HEAD_FILE, token_values, using
from coterie.models.loading import is_adapter
from coterie.progress import Silent
from coterie.recipes.registry import recipe, settings
from coterie.recipes.sweet_rl import SweetRL
from coterie.record.rows import view
from coterie.record.store import Store
from coterie.rollout.candidates import candidates
from coterie.runs.loop import fork, load_selections, run_stages
from coterie.runs.run import Run, StageKey, open_run
from experiments.sweet_rl_gates import action_of, critic_accuracy, measured_rates, theme_of
from tests.conftest import Cli

SMALL = (
    "rollout.tasks=16", "rollout.max_tokens=96", "candidates.share=0.1", "candidates.count=4",
    "critic.train.epochs=1", "policy.train.batch_size=16", "evaluate.tasks=4", "engine.device=cpu",
    "rejection_ft.train.epochs=1", "multi_turn_dpo.train.epochs=1", "train.max_steps=2",
)  # fmt: skip


def opened(*overrides: str) -> SweetRL:
    found = recipe(settings("sweet_rl/backend", [*SMALL, *overrides]))
    assert isinstance(found, SweetRL)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A finished run of the whole method."""
    own = opened()
    with open_run(tmp_path_factory.mktemp("sweet") / "run", own.name, own.settings) as made:
        run_stages(own, made, Silent())
        yield made


def test_the_reference_is_in_the_critics_rows_and_in_no_prompt_of_the_policy(run: Run) -> None:
    own = opened()
    decode, count = own.renderer("agent").decode, 0
    for iteration, stage in ((0, "evaluate"), (0, "rollout"), (1, "rollout"), (2, "evaluate")):
        for tree in run.store.trees(iteration, stage):
            reference = run.store.task(tree.task).secrets["reference"].reveal("critic")
            lines = [line for line in reference.splitlines() if "xs = " in line]
            for turn in tree.turns.values():
                if turn.sample is not None:
                    prompt = decode(view(tree, turn.id, "agent").segments[-1].ids)
                    path = tree.path(turn.id)
                    guesses = "".join(t.text for t in path if t.speaker.kind == "agent")
                    assert "Reference:" not in prompt
                    assert all(line in guesses for line in lines if line in prompt)
                    count += 1
    assert count > 100
    for tree, selection in load_selections(run, 0):
        reference = run.store.task(tree.task).secrets["reference"].reveal("critic")
        shown = own.training_view(run, tree, selection)
        assert reference in decode(shown.segments[0].ids)
        plain = view(tree, selection.leaf, "agent")
        assert [p.turn.ids for s in shown.segments for p in s.pieces if p.turn] == [
            p.turn.ids for s in plain.segments for p in s.pieces if p.turn
        ]


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(run: Run, tmp_path: Path) -> None:
    own = opened()

    class Ends(Exception):
        pass

    class EndsAt(Silent):
        """Breaks off in the middle of a stage."""

        def __init__(self, end: str) -> None:
            self.end, self.on = end, False

        def start(self, total: int, what: str) -> None:
            self.on = what.startswith(self.end)

        def advance(self, count: int, **_: float) -> None:
            if self.on and count:
                raise Ends

    for stage in ("rollout 0", "candidates 1", "advantages 1"):
        with (
            open_run(tmp_path / "run", own.name, own.settings) as made,
            pytest.raises(Ends),
        ):
            run_stages(own, made, EndsAt(stage))
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        run_stages(own, made, Silent())
        for step in (StageKey(0, "train"), StageKey(1, "train")):
            assert made.metrics(step)["weights"] == run.metrics(step)["weights"]


@pytest.mark.slow
def test_a_baseline_continues_from_the_same_dialogues(run: Run, tmp_path: Path) -> None:
    own = opened("method=multi_turn_dpo")
    kept = fork(own, run.folder, tmp_path / "run", own.settings)
    assert set(kept) == {StageKey(0, "evaluate"), StageKey(0, "rollout")}
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        run_stages(own, made, Silent())
        assert own.versions(made) == [0, 1]
        policies = (made.metrics(StageKey(0, "train")), run.metrics(StageKey(1, "train")))
        assert len({metrics["weights"] for metrics in policies}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["regression", "classifier"])
def test_a_critic_with_a_value_head_can_be_an_adapter(
    run: Run, tmp_path: Path, kind: str, cli: Cli
) -> None:
    lora = (
        "train.method=lora", "train.lora_r=4", "critic.train.learning_rate=0.01",
        "critic.train.epochs=4", "train.max_steps=4",
    )  # fmt: skip
    words = [word for word in SMALL if word != "train.max_steps=2" and "critic.train" not in word]
    own = recipe(settings("sweet_rl/backend", [*words, *lora, f"critic.kind={kind}"]))
    assert isinstance(own, SweetRL)
    fork(own, run.folder, tmp_path / "run", own.settings)
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        run_stages(own, made, Silent())
        assert own.versions(made) == [0, own.settings.iteration_count]
        models = own.models(made)
        merged, beside = models.load(CRITIC, 1, merge=True), models.load(CRITIC, 1, trainable=True)
        rows = [tuple(range(10, 40))], [range(1, 30)]
        (values,), (expected,) = (token_values(one.model, *rows) for one in (merged, beside))
        assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-4)
        with using(beside.model, None):
            (without,) = token_values(beside.model, *rows)
        assert (without - expected).abs().max() > 1e-3, "the adapter is a part of the critic"
    folder = tmp_path / "run/training/critic/iteration-00/final"
    assert is_adapter(folder) and (folder / HEAD_FILE).is_file()
    words = ["evaluate", "persona", "policy=tiny-persona", f"critic={tmp_path / 'run'}"]
    scored = cli(*words, "best_of=2", "temperature=1", "tasks=2", "max_tokens=48")
    assert scored.code == 0, scored.err


def test_a_judge_that_cannot_read_makes_no_pairs_and_says_so(run: Run, tmp_path: Path) -> None:
    own = opened("critic.kind=judge", "critic.judge.max_tokens=4", "candidates.share=0.05")
    fork(own, run.folder, tmp_path / "run", own.settings)
    with (
        open_run(tmp_path / "run", own.name, own.settings) as made,
        pytest.raises(UserError, match="no pair was selected in round 1"),
    ):
        run_stages(own, made, Silent())
    with open_run(tmp_path / "run", own.name, own.settings) as made:
        judged = made.metrics(StageKey(1, "reward"))
        assert int(judged["comparisons"]) == int(judged["unreadable"]) > 0


def test_best_of_n_by_the_critic(run: Run, cli: Cli) -> None:
    scored = cli(
        *("evaluate", "persona", "policy=tiny-persona", f"critic={run.folder}", "best_of=3"),
        *("temperature=1", "tasks=3", "max_tokens=96"),
    )
    assert scored.code == 0, scored.err
    (row,) = json.loads(scored.out.splitlines()[-1])["rows"]
    assert row["n"] == 3 and row["failed"] == 0 and row["turns"] >= 1
    (file,) = Path("runs/evaluations").glob("persona-*.sqlite")
    with Store.open(file, read_only=True) as store:
        dialogues = [(store.task(tree.task), tree) for tree in store.trees(0, "evaluate")]

    async def check() -> None:
        async with opened().open_critic(run) as critic:
            for task, tree in dialogues:
                groups = candidates(tree)
                for turn in tree.path(next(iter(tree.outcomes))):
                    if turn.speaker.kind == "agent":
                        (group,) = [one for one in groups if turn in one]
                        scores = await critic.advantages(task, tree, group)
                        assert len(group) == 3 and scores[group.index(turn)] == max(scores)

    asyncio.run(check())


def test_the_base_wastes_and_ends_a_few_turns(run: Run) -> None:
    rates = measured_rates(run.store, 0, "rollout")
    # A tenth of the turns is vague, and some questions are asked twice.
    assert 0.08 < rates.wasted < 0.25 and 0 < rates.early < 0.1


def test_a_critic_is_judged_by_pairs_of_first_candidates(run: Run) -> None:
    own, store = opened(), run.store
    judged = critic_accuracy(own, run)
    trees = {tree.task: tree for tree in store.trees(1, "rollout")}
    assert {*judged} <= {*trees} and len(judged) > 2
    scores = store.credit(
        own.fingerprint(StageKey(1, "reward")), "advantage", iteration=1, stage="rollout"
    )
    for task, result in judged.items():
        likely = THEMES[theme_of(store.task(task))]
        first = next(g for g in candidates(trees[task]) if g[0].parent != trees[task].root and not any(
            turn.speaker.kind == "agent" for turn in trees[task].path(g[0].parent)
        ))  # fmt: skip
        kinds = [action_of(turn.text) for turn in first]
        good, bad = (
            [
                scores[turn.id]
                for turn, kind in zip(first, kinds, strict=True)
                if (kind in likely) == wanted
            ]
            for wanted in (True, False)
        )
        # Where only likely and other aspects compete, a pair is right if the likely one is above.
        if {*kinds} <= {*ASPECTS} and good and bad:
            wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in good for b in bad]
            assert result.score == pytest.approx(sum(wins) / len(wins))


def test_simulated_users_by_a_server_that_is_down_and_by_a_packaged_model(cli: Cli) -> None:
    words = (
        *("evaluate", "colbench-code", "policy=tiny-persona", "dataset.source=sample", "tasks=2"),
        "max_tokens=2",
    )
    down = ("url=http://127.0.0.1:9/v1", "model=nobody", "retries=0")
    failed = cli(*words, *(f"user_simulator.{word}" for word in down))
    assert failed.code == 2 and "all 2 dialogues failed" in failed.err and "nobody" in failed.err
    played = cli(*words, "user_simulator=tiny-exchange", "user_simulator.max_tokens=16")
    assert played.code == 0, played.err
    (row,) = json.loads(played.out.splitlines()[-1])["rows"]
    assert row["failed"] == 0 and row["leaks"] == 0 and row["turns"] > 1
