"""Reinforcement learning through its recipes: what a step samples, compares and trains on, and how a run goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coterie.errors import UserError
from coterie.models.loading import load
from coterie.progress import Silent
from coterie.recipes.base import Recipe
from coterie.recipes.registry import settings
from coterie.recipes.report import run_report
from coterie.recipes.rl import Reinforce
from coterie.record.tree import LENGTH, Credit, Ending, ItemKey, Metrics, Outcome
from coterie.record.turn import Part, Speaker, make_turn
from coterie.rewards.advantages import SampledPath
from coterie.rewards.dialogue_reward import GradedPath, PathReward, PathRewardSettings
from coterie.runs.folder import Run, open_run
from coterie.runs.loop import REINFORCE, run_steps
from coterie.runs.reinforce import minibatches, step_records
from coterie.runs.reinforce_batch import (
    AgentPath,
    StepSamples,
    informative_tasks,
    paths_of,
    prepare,
)
from coterie.runs.reinforce_settings import (
    AdvantageSettings,
    ReinforceSettings,
    StepSettings,
)
from coterie.runs.roles import LearnerConfig
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import SFT
from coterie.training.settings import TrainingSettings
from tests.reinforcing import SMALL, Killed, Killing, final, made, run_whole, telling_words


@pytest.fixture
def words(tmp_path: Path) -> tuple[str, ...]:
    return telling_words(tmp_path)


def test_every_step_samples_from_the_newest_weights_and_its_first_ratio_is_one(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    recipe = made("rl/grpo", [*words, "steps.count=3", "loss.kl=0", "rollout.temperature=0.7"])
    records = run_whole(recipe, tmp_path / "run")
    assert sorted(records) == [0, 1, 2]
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        for step in range(3):
            turns = [
                turn
                for tree in run.store.trees(0, f"{REINFORCE}/{step:05d}")
                for turn in tree.turns.values()
            ]
            said = {turn.writer for turn in turns if turn.sample}
            assert said == {"policy@0" if step == 0 else f"policy@0.{step}"}
            assert {turn.sample.temperature for turn in turns if turn.sample} == {0.7}
            assert records[step]["policy/ratio_min"] == pytest.approx(1, abs=1e-4)
            assert records[step]["policy/ratio_max"] == pytest.approx(1, abs=1e-4)
            assert records[step]["policy/grad_norm"] > 0
        report = run_report(recipe, run)
        sections = {section.id: section for section in report.sections}
        assert len(sections["reinforce-0"].rows) == 3
        for group in sections["groups-0"].examples:
            facts = [dict(sample.facts) for sample in group.samples]
            rewards = [float(one["reward"]) for one in facts]
            assert rewards == sorted(rewards, reverse=True)
            assert abs(sum(float(one["advantage"]) for one in facts)) < 0.01
            trained = [bool(sample.trained) for sample in group.samples]
            assert trained == [float(one["advantage"]) != 0 for one in facts]
            assert all(one["= short"] == f"{float(one['= short']):+.3f}" for one in facts)
    assert final(tmp_path / "run") != weight_hash(load("tiny-exchange").model)


def test_log_probs_of_the_trainer_itself_give_a_ratio_of_exactly_one(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    recipe = made("rl/dapo", [*words, "steps.count=1", "loss.old=recomputed"])
    (record,) = run_whole(recipe, tmp_path / "run").values()
    assert record["policy/ratio_min"] == record["policy/ratio_max"] == 1
    assert record["policy/engine_ratio_max"] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("rl/grpo", ()),
        pytest.param("rl/grpo", ("train.method=lora", "loss.kl=0.1"), marks=pytest.mark.slow),
        pytest.param(
            "rl/ppo",
            ("rollout.samples=1", "rollout.tasks=4", "steps.minibatches=2"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "rl/ppo",
            ("rollout.samples=1", "rollout.tasks=4", "train.method=lora"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["grpo", "lora", "ppo", "lora critic"],
)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(
    tmp_path: Path, words: tuple[str, ...], method: str, own: tuple[str, ...]
) -> None:
    known = {word.partition("=")[0]: word for word in (*words, "steps.count=3", *own)}
    every = [*known.values()]
    whole = run_whole(made(method, every), tmp_path / "whole")
    killed = tmp_path / "killed"
    for progress in (Killing(1, sampled=2), Killing(1)):
        with pytest.raises(Killed):
            run_whole(made(method, every), killed, progress)
    again = run_whole(made(method, every), killed)
    assert final(killed) == final(tmp_path / "whole")
    same = [name for name in whole[2] if "second" not in name]
    assert [[again[n][name] for name in same] for n in range(3)] == [
        [whole[n][name] for name in same] for n in range(3)
    ]


def test_tasks_are_drawn_anew_until_enough_groups_tell_something(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def odd(dialogue):\n"
        "    of_task = int(dialogue.path[0].parent[:8], 16) % 2\n"
        "    return float(dialogue.outcome.sample == 0 and of_task) - dialogue.outcome.score\n"
    )
    term = f"reward.terms={{{tmp_path / 'own.py'}:odd: 1}}"
    recipe = made(
        "rl/dapo",
        [*SMALL, term, "steps.count=2", "rollout.draw=1", "rollout.rounds=5", "rollout.tasks=2"],
    )
    records = run_whole(recipe, tmp_path / "run")
    assert any(int(record["rounds"]) > 2 for record in records.values()), "some tell nothing"
    for record in records.values():
        assert record["groups_telling"] == 2 or record["rounds"] == 5
        assert record["paths"] == 2 * 3 * int(record["groups_telling"]), "two agents, three samples"
        assert record["samples"] == 3 * int(record["rounds"])
    draws = [int(records[n]["draws"]) for n in (0, 1)]
    assert draws == [records[0]["rounds"], int(records[0]["rounds"]) + int(records[1]["rounds"])]
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        tasks = [run.store.tree_tasks(0, f"{REINFORCE}/{step:05d}") for step in (0, 1)]
    assert not set(tasks[0]) & set(tasks[1]), "a later step goes on in the data"


def test_steps_without_anything_to_learn_stop_the_run_with_advice(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def flat(dialogue):\n    return -dialogue.outcome.score\n")
    term = f"reward.terms={{{tmp_path / 'own.py'}:flat: 1}}"
    recipe = made(
        "rl/dapo", [*SMALL, term, "steps.count=9", "steps.patience=2", "rollout.rounds=1"]
    )
    with pytest.raises(UserError, match="every rollout of a task got the same reward") as caught:
        run_whole(recipe, tmp_path / "run")
    assert "too easy or too hard" in str(caught.value)
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        records = step_records(run.store, 0, REINFORCE)
    assert [one["groups_flat"] for one in records.values()] == [4, 4], "of two agents each"
    assert all(one["policy/updates"] == 0 for one in records.values())
    again = made("rl/dapo", [*SMALL, term, "steps.count=2", "steps.patience=1", "rollout.rounds=2"])
    with pytest.raises(UserError, match="all advantages are zero"):
        run_whole(again, tmp_path / "again")
    with open_run(tmp_path / "again", again.name, again.settings) as run:
        (record,) = step_records(run.store, 0, REINFORCE).values()
    assert record["rounds"] == 2, "and no more, though none told anything"


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("rl/grpo", "reward.kl=0.01"),
        ("rl/dapo", "rollout.rounds=1"),
        ("rl/ppo", "critic.train.learning_rate=1e-2"),
    ],
)
def test_rewards_that_never_differ_leave_the_policy_bitwise_as_it_was(
    tmp_path: Path, method: str, own: str
) -> None:
    (tmp_path / "own.py").write_text("def one(dialogue):\n    return 1 - dialogue.outcome.score\n")
    term = f"reward.terms={{{tmp_path / 'own.py'}:one: 1}}"
    more = ["update.weight_decay=0.1", "loss.kl=0.1", *own.split()]
    recipe = made(method, [*SMALL, term, "steps.count=2", *more])
    records = run_whole(recipe, tmp_path / "run")
    assert [record["reward"] for record in records.values()] == [1.0] * 2
    assert [record["policy/updates"] for record in records.values()] == [0] * 2
    as_it_began = weight_hash(load("tiny-exchange").model)
    assert final(tmp_path / "run") == as_it_began
    if method == "rl/ppo":
        assert records[1]["critic/updates"] == 4, "what is to be expected can be learned"
        assert final(tmp_path / "run", "critic") != as_it_began


def test_bfloat16_weights_are_sampled_trained_and_kept(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    own = ["train.dtype=bfloat16", "engine.attention=eager", "steps.count=2", "loss.kl=0.1"]
    recipe = made("rl/grpo", [*words, *own])
    records = run_whole(recipe, tmp_path / "run")
    assert [record["policy/updates"] for record in records.values()] == [1, 2]
    assert 0.8 < float(records[1]["policy/ratio"]) < 1.2
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        policy = recipe.load_policy(run, 1).model
    recipe.close()
    assert (policy.dtype, policy.config._attn_implementation) == (torch.bfloat16, "eager")
    (file,) = (tmp_path / "run/training/policy/iteration-00/final").glob("*.safetensors")
    assert {weight.dtype for weight in load_file(file).values()} == {torch.bfloat16}


def test_each_agent_can_have_a_policy_of_its_own(tmp_path: Path, words: tuple[str, ...]) -> None:
    recipe = made("rl/grpo", [*words, "policies=each", "steps.count=1"])
    assert isinstance(recipe, Reinforce) and len(recipe.learning_roles) == 2
    run_whole(recipe, tmp_path / "run")
    hashes = {final(tmp_path / "run", role) for role in recipe.learning_roles}
    assert len(hashes) == 2
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        turns = [t for tree in run.store.trees(1, "evaluate") for t in tree.turns.values()]
    assert {t.writer for t in turns if t.sample} == {f"{role}@1" for role in recipe.learning_roles}


REFUSED = [
    (["rollout.samples=1"], "other path of a task to compare with"),
    (["rollout.rounds=3", "rollout.samples=1"], "gives each task one path"),
    (["reward.overlong=1"], "overlong needs"),
    (["reward.overlong_limit=9"], "need overlong"),
    (["policies=each", "advantage.baseline=values"], "does not support a critic"),
    (["advantage.gamma=0.9", "advantage.whiten=false"], "gamma, whiten have no effect with"),
    (["loss.importance=truncate"], "set loss.old=recomputed"),
]


@pytest.mark.parametrize(("own", "message"), REFUSED, ids=[" ".join(own) for own, _ in REFUSED])
def test_what_cannot_work_is_refused_when_it_is_read(own: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings("rl/grpo", own)


def test_what_cannot_work_is_refused_before_the_run(tmp_path: Path) -> None:
    for own, message in (
        (["steps.minibatches=3", "rollout.tasks=2"], "minibatches=3 is more than rollout.tasks=2"),
        ([f"reward.terms={{{tmp_path}/none.py:term: 1}}"], "none.py"),
    ):
        with pytest.raises(UserError, match=message):
            made("rl/grpo", [*SMALL, *own]).check()


def test_the_minibatches_of_an_epoch_have_each_group_once() -> None:
    tasks = [f"task {n}" for n in range(7) for _ in range(4)]
    found = list(minibatches(tasks, StepSettings(minibatches=3, epochs=2), "seed"))
    assert [len(one) for one in found] == [3, 2, 2] * 2
    for epoch in (found[:3], found[3:]):
        assert sorted(task for one in epoch for task in one) == sorted(set(tasks))
    assert found[:3] != found[3:], "each epoch has an order of its own"
    assert found != list(minibatches(tasks, StepSettings(minibatches=3, epochs=2), "another seed"))
    assert len(list(minibatches(tasks[:4], StepSettings(minibatches=3), "seed"))) == 1


def _graded(
    score: float | None, measures: Metrics, *texts: str, ending: str = "answered"
) -> GradedPath:
    turns, parent = [], "root"
    for text in texts:
        turn = make_turn(
            parent, Speaker("agent", "Ann"), [Part(text, source="t")], ids=tuple(range(1, 11))
        )
        turns.append(turn)
        parent = turn.id
    end = LENGTH if ending == "length" else Ending(ending)
    outcome = Outcome(parent, 0, end, None, score)
    return GradedPath(outcome, tuple(turns), "Ann", score, measures)


def test_the_reward_of_a_path_is_what_was_given_and_what_the_run_adds() -> None:
    def reward(
        score: float | None, *texts: str, ending: str = "answered", **own: Any
    ) -> float | None:
        graded = _graded(score, {"rounds": 4, "kind": "x"}, *texts, ending=ending)
        return PathReward(PathRewardSettings(**own)).compute(graded)

    assert reward(0.5, "a") == 0.5
    assert reward(None, "a") is None, "what was not graded has no reward, which is not 0"
    assert reward(1.0, "a", measures={"rounds": -0.1}) == pytest.approx(0.6)
    assert reward(0.0, "a", measures={"rounds": -0.1}) == 0, "nobody gains by being wrong quickly"
    assert reward(0.0, "a", measures={"rounds": -0.1}, gated=False) == pytest.approx(-0.4)
    assert reward(1.0, "a", "b", "A ", repeats=0.25) == 0.75
    long = {"overlong": 1.0, "overlong_limit": 30, "overlong_buffer": 20}
    assert reward(1.0, "a", "b", **long) == pytest.approx(0.5), "20 of 30 tokens, 10 in the buffer"
    assert reward(1.0, "a", ending="length", **long) == 0, "a path that was cut off costs all of it"
    given = replace(_graded(1.0, {}, "a"), environment_reward=3.0)
    assert PathReward(PathRewardSettings()).compute(given) == 3, (
        "what the environment gives comes first"
    )


def test_a_path_that_breaks_its_form_is_worth_what_the_run_says() -> None:
    def reward(score: float, found: Metrics, **own: Any) -> float | None:
        rule = PathReward(PathRewardSettings(malformed=-0.5, **own))
        return rule.compute(_graded(score, found, "a", "a"))

    assert reward(1.0, {"well_formed": 1.0, "violations": 0}) == 1
    assert reward(1.0, {"well_formed": 0.0, "violations": 0}) == -0.5
    assert reward(1.0, {"violations": 2}) == -0.5
    measured = {"well_formed": 0.0, "rounds": 3}
    assert reward(1.0, measured, measures={"rounds": -1.0}, gated=False) == -0.5
    assert reward(1.0, measured, repeats=0.25) == -0.75, "no way out of what is taken off"
    with pytest.raises(UserError, match="well_formed or violations") as caught:
        reward(1.0, {"rounds": 3})
    assert "remove reward.malformed" in str(caught.value)


def test_rewards_of_acts_stand_at_the_last_token_of_the_agents_turn(tmp_path: Path) -> None:
    recipe = made("rl/grpo", [*SMALL, "steps.count=1", "loss.kl=0", "steps.patience=1"])
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        try:
            run_steps(recipe, run, Silent())
        except UserError:
            pass  # all rewards may have been equal: what was sampled is there all the same
        finally:
            recipe.close()
        stage = f"{REINFORCE}/00000"
        task = run.store.tree_tasks(0, stage)[0]
        tree = run.store.tree(0, stage, task)
        outcome, path = next(tree.trajectories())
        agents = recipe.players()
        plain = _of(run, task, agents)
        speaker = path[1].speaker.name
        credit = [
            Credit(path[0].id, f"reward:{speaker}", 1.0, "environment"),
            Credit(path[1].id, f"reward:{speaker}", 2.0, "environment"),
            Credit(outcome.leaf, f"final_reward:{speaker}", 4.0, "environment"),
        ]
        run.store.finish(ItemKey(0, stage, task, "0009"), tree=tree, credit=credit)
        given = _of(run, task, agents)
    first = next(target for row in plain[speaker].rows for target in row.targets)
    last = first.stop - first.start - 1
    assert given[speaker].sampled == SampledPath(
        task, outcome.leaf, 4.0, ((last, 1.0), (last, 2.0)), speaker
    ), "what comes before the agent's first turn stands there too"
    (other,) = agents.keys() - {speaker}
    assert given[other].sampled == plain[other].sampled, "another agent's rewards are not its own"


def _of(run: Run, task: str, agents: Any) -> dict[str, AgentPath]:
    found = paths_of(
        run.store, 0, f"{REINFORCE}/00000", [task], list(agents), PathReward(PathRewardSettings())
    )
    return {path.agent: path for path in found if path.outcome.sample == 0}


def test_a_task_tells_something_if_one_of_its_agents_groups_does() -> None:
    def path(task: str, agent: str, leaf: str, reward: float | None) -> AgentPath:
        outcome = Outcome(leaf, 0, Ending("answered"), None, reward)
        return AgentPath(task, agent, outcome, 1, (), SampledPath(task, leaf, reward, (), agent))

    paths = [
        path("a", "Ann", "1", 1.0), path("a", "Ann", "2", 1.0),
        path("a", "Ben", "1", 0.0), path("a", "Ben", "2", 1.0),
        path("b", "Ann", "3", 1.0), path("b", "Ann", "4", 1.0),
        path("c", "Ann", "5", 1.0), path("c", "Ann", "6", None),
    ]  # fmt: skip
    assert informative_tasks(paths) == ["a"]


def test_observations_change_no_reward_of_length() -> None:
    graded = _graded(1.0, {}, "a")
    shown = make_turn(
        graded.path[-1].id,
        Speaker("environment", "game"),
        [Part("x", source="g")],
        ids=tuple(range(99)),
    )
    longer = replace(graded, path=(*graded.path, shown))
    rule = PathReward(
        PathRewardSettings(overlong=1.0, overlong_limit=12, overlong_buffer=4, repeats=1.0)
    )
    assert rule.compute(longer) == rule.compute(graded) == 0.5


def _sampled(recipe: Recipe, run: Run) -> list[AgentPath]:
    stage = f"{REINFORCE}/00000"
    reward = PathReward(PathRewardSettings())
    return paths_of(
        run.store, 0, stage, run.store.tree_tasks(0, stage), list(recipe.players()), reward
    )


class Policy:
    """What preparing reads of a learner: which weights it has."""

    def __init__(self, agents: Sequence[str], version: str) -> None:
        self.role, self.version, self.has_moved = "policy", version, False
        self.config = LearnerConfig("policy", 0, tuple(agents), SFT(), TrainingSettings(), 1)


def test_a_path_that_was_cut_off_is_compared_and_not_trained_on(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    recipe = made("rl/grpo", [*words, "steps.count=1"])
    run_whole(recipe, tmp_path / "run")
    with open_run(tmp_path / "run", recipe.name, recipe.settings) as run:
        paths = _sampled(recipe, run)
    cut = replace(paths[0].outcome, ending=LENGTH)
    mine = replace(paths[0], outcome=cut, sampled=replace(paths[0].sampled, reward=-9.0))
    policy: Any = Policy([*recipe.players()], "0")
    kept = {}
    for truncated in ("train", "mask"):
        rules = ReinforceSettings(advantage=AdvantageSettings(truncated=truncated))
        found = prepare(StepSamples(1, paths=[mine, *paths[1:]]), [policy], None, rules)
        kept[truncated] = {
            (path.agent, path.outcome.leaf): path.rows[0].advantages for path in found.paths
        }
        assert found.counts["paths_masked"] == (truncated == "mask")
    gone = kept["train"].keys() - kept["mask"].keys()
    assert gone == {(mine.agent, mine.outcome.leaf)}
    assert all(kept["train"][one] == kept["mask"][one] for one in kept["mask"])
