"""Optima: what each stage samples, scores, selects and hands to training, and runs from the command line.

Policies 1 and 2 of the module's run are the base with noise. Items of trainings are captured instead of trained on.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.cli.report import write_report
from coterie.environments.dialogue import FORMAT_SOURCE, Dialogue, drop_format
from coterie.environments.protocol import Grade, State
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Silent
from coterie.recipes.optima import DROP_FORMAT, PROBE, Optima
from coterie.recipes.registry import recipe, settings
from coterie.record.rows import View, recontext, view
from coterie.record.tree import Tree
from coterie.rollout.tree_search import Rollout
from coterie.runs.loop import run_stages
from coterie.runs.run import Run, StageKey, open_run
from coterie.runs.search_items import TreeWriter, rollouts
from coterie.selection import SelectSettings, best_demonstrations, without_demonstration
from coterie.training import trainer
from coterie.training.settings import TrainingSettings
from tests.conftest import SMALL, Cli, once
from tests.helpers.read_page import read_page, sections_of

WORDS = once(
    *SMALL, "iterations=3", "rollout.tasks=3", "rollout.max_tokens=64", "rollout.temperature=0.9",
    "rollout.first_temperature=0.8", "rollout.top_p=0.99", "dpo.temperature=1.4", "dpo.tasks=4",
    "dpo.probe_dialogues=3", "dpo.search.searches=3", "dpo.select.theta_filter=-100",
    "dpo.select.theta_diff=0", "dpo.select.top_share=1", "dpo.objective.beta=0.3", "evaluate.tasks=2",
)  # fmt: skip
LAMBDA_TOKEN, LAMBDA_LOSS, MIN_LOSS = 0.6, 0.002, 0.005
"""Preset of the micro-world ``exchange``."""
SEARCH = StageKey(1, "rollout")


class Given(Exception):
    """Raised instead of training."""


def made(method: str = "optima/isft_dpo", *overrides: str) -> Optima:
    optima = recipe(settings(method, once(*WORDS, *overrides)))
    assert isinstance(optima, Optima)
    return optima


def finish_training(optima: Optima, run: Run, iteration: int) -> None:
    """Record a training whose result is the base with noise."""
    loaded = optima.models(run).load("policy", 0)
    torch.manual_seed(iteration)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight += 0.08 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0.0
    final = run.training_folder(iteration) / "final"
    loaded.model.save_pretrained(final)
    loaded.tokenizer.save_pretrained(final)
    step = StageKey(iteration, "train")
    run.begin(step, optima.fingerprint(step))
    run.finish(step, optima.fingerprint(step), {"seconds": 0.0})


@contextmanager
def run_with_policies(folder: Path) -> Iterator[tuple[Optima, Run]]:
    optima = made()
    with open_run(folder, optima.name, optima.settings) as run:
        for iteration in (0, 1):
            finish_training(optima, run, iteration)
        yield optima, run


@dataclass
class Walk:
    """A run whose stages are finished, except its trainings."""

    run: Run
    recipe: Optima
    policies: list[LoadedModel]

    def trees(self, iteration: int) -> list[Tree]:
        return list(self.run.store.trees(iteration, "rollout"))

    def training(
        self, iteration: int, monkeypatch: pytest.MonkeyPatch, optima: Optima | None = None
    ) -> tuple[list[Any], TrainingSettings]:
        """Return the items and settings that a stage hands to training."""
        captured: list[tuple[list[Any], TrainingSettings]] = []

        def train(model: Any, items: Any, settings: TrainingSettings, *_: Any, **__: Any) -> None:
            captured.append((list(items), settings))
            raise Given

        monkeypatch.setattr(trainer, "train", train)
        with pytest.raises(Given):
            (optima or self.recipe).find_stage(StageKey(iteration, "train")).do(
                self.run, iteration, Silent()
            )
        return captured[0]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    with run_with_policies(tmp_path_factory.mktemp("walk") / "run") as (optima, run):
        run_stages(
            optima,
            run,
            Silent(),
            [StageKey(i, stage) for i in range(3) for stage in ("rollout", "reward", "select")],
        )
        yield Walk(
            run, optima, [optima.models(run).load("policy", version) for version in range(3)]
        )


def test_order_of_iterations_and_settings_that_cannot_work() -> None:
    assert settings("optima/isft", ["iterations=3"]).kinds() == ["sft", "sft", "sft"]
    assert settings("optima/idpo", ["iterations=3"]).kinds() == ["sft", "dpo", "dpo"]
    assert settings("optima/isft_dpo", ["iterations=4"]).kinds() == ["sft", "dpo", "sft", "dpo"]
    with pytest.raises(UserError, match="has no DPO iteration"):
        settings("optima/idpo", ["iterations=1"])
    with pytest.raises(UserError, match=r"dpo\.train\.max_length=2048 is more than"):
        made("optima/idpo", "dpo.train.max_length=2048").plan()
    # SFT: 2 x 3 tasks, 2 samples. DPO: 4 trees of 3 searches with 3 rollouts, and 3 to probe.
    assert made().plan().dialogues == 2 * 3 * 2 + 4 * 9 + 3


# -- rollouts ---------------------------------------------------------------------------------


def test_formats_are_drawn_for_each_dialogue_of_iteration_0_and_not_trained_on(walk: Walk) -> None:
    formats_of_tasks: list[set[tuple[str, ...]]] = []
    for iteration in range(3):
        for tree in walk.trees(iteration):
            formats_of_tasks.append(set())
            for _, path in tree.trajectories():
                systems = (tree.messages(tree.requests[t.prompt])[0] for t in path if t.prompt)
                formats = {
                    tuple(part.text for part in system.parts if part.source == FORMAT_SOURCE)
                    for system in systems
                }
                assert len(formats) == 1 and (formats == {()}) == bool(iteration), (
                    "both agents have the same format"
                )
                formats_of_tasks[-1] |= formats
    assert max(map(len, formats_of_tasks)) > 1, "dialogues of a task differ"
    rows, decode = walk.recipe.rows(walk.run, 0), walk.policies[0].tokenizer.decode
    assert {row.context for row in rows} == {DROP_FORMAT}
    assert all("Format:" not in decode(row.ids) for row in rows)
    assert all(row.logprobs is None for row in rows), "log-probs do not outlive their context"


def test_trained_tokens_are_exactly_the_sampled_ones(walk: Walk) -> None:
    for iteration in (0, 2):
        turns = {}
        for tree in walk.trees(iteration):
            turns |= tree.turns
        for row in walk.recipe.rows(walk.run, iteration):
            for target in row.targets:
                turn = turns[target.turn]
                assert row.ids[target.start : target.stop] == turn.ids
                assert turn.speaker.name == row.origin.split("/")[1]
                assert target.writer == f"policy@{iteration}"


def test_tasks_are_drawn_once_and_each_sample_has_its_own_seed(walk: Walk) -> None:
    drawn = [sorted(tree.task for tree in walk.trees(i)) for i in range(3)]
    assert drawn == [sorted(task.id for task in walk.recipe.train_tasks(i)) for i in range(3)]
    assert [len(tasks) for tasks in drawn] == [3, 4, 3]
    assert len({task for tasks in drawn for task in tasks}) == 10
    for iteration in (0, 2):
        turns = [turn for tree in walk.trees(iteration) for turn in tree.turns.values()]
        seeds = [turn.sample.seed for turn in turns if turn.sample]
        assert len(set(seeds)) == len(seeds)


def test_the_token_term_of_trees_is_relative_to_the_probe(walk: Walk) -> None:
    lengths = [int(one["tokens"]) for one in walk.run.store.metrics(1, PROBE).values()]
    assert len(lengths) == 3
    for tree in walk.run.store.trees(1, PROBE):
        for _, path in tree.trajectories():
            assert sum(len(turn.ids) for turn in path) in lengths
    limit = int(np.percentile(lengths, 80)) + 1
    assert walk.run.metrics(SEARCH)["token_limit"] == limit
    for tree in walk.trees(1):
        for reward in walk.recipe.rewards(walk.run, 1)[tree.task]:
            if tree.outcomes[reward.leaf].ending.reason != "length":
                tokens = sum(len(turn.ids) for turn in tree.path(reward.leaf))
                assert reward.terms["tokens"] == pytest.approx(-LAMBDA_TOKEN * tokens / limit)


class Interrupt(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_search_continues_to_the_same_rollouts(
    walk: Walk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, left = TreeWriter.record, [4]

    def interrupt(self: TreeWriter, *arguments: Any) -> None:
        if not left[0]:
            raise Interrupt
        left[0] -= 1
        record(self, *arguments)

    monkeypatch.setattr(TreeWriter, "record", interrupt)
    with run_with_policies(tmp_path / "run") as (optima, run):
        with pytest.raises(Interrupt):
            run_stages(optima, run, Silent(), [SEARCH])
        assert sum(map(len, rollouts(run.store, 1).values())) == 4 * 3
        left[0] = 1000
        run_stages(made(), run, Silent(), [SEARCH])
        assert rollouts(run.store, 1) == rollouts(walk.run.store, 1)
        ours, other = (dict(one.metrics(SEARCH)) for one in (run, walk.run))
        assert ours | {"seconds": 0} == other | {"seconds": 0}


def test_a_dialogue_that_cannot_be_graded_has_no_reward_and_its_search_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grade = Dialogue.grade

    async def some(self: Dialogue, state: State, session: Any) -> Grade:
        lost = int(state.turns[-1].id, 16) % 3 == 0
        return Grade(None) if lost else await grade(self, state, session)

    monkeypatch.setattr(Dialogue, "grade", some)
    with run_with_policies(tmp_path / "run") as (optima, run):
        run_stages(optima, run, Silent(), [SEARCH])
        played = [(task, one) for task, some in rollouts(run.store, 1).items() for one in some]
        lost = [one for _, one in played if one.leaf is None]
        metrics = run.metrics(SEARCH)
        assert 0 < len(lost) == metrics["failed"] < len(played) == metrics["n"] == 36
        assert all("could not be graded" in str(one.failure) for one in lost)
        ends = {(task, one.search, one.leaf is None) for task, one in played}
        assert any((*search, not failed) in ends for *search, failed in ends)
        outcomes = [o for tree in run.store.trees(1, "rollout") for o in tree.outcomes.values()]
        assert outcomes and all(outcome.score is not None for outcome in outcomes)


# -- rewards ----------------------------------------------------------------------------------


@torch.no_grad()
def turn_losses(loaded: LoadedModel, shown: View) -> dict[str, float]:
    """Return the mean loss of each own turn of a view, from plain logits."""
    losses: dict[str, float] = {}
    for segment in shown.segments:
        ids = torch.tensor([segment.ids], device=loaded.model.device)
        logprobs = loaded.model(input_ids=ids).logits[0].float().log_softmax(-1)
        taken = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
        place = -1
        for piece in segment.pieces:
            stop = place + len(piece.ids)
            if piece.turn is not None:
                losses[piece.turn.id] = -sum(taken[max(place, 0) : stop]) / len(piece.ids)
            place = stop
    return losses


def without_format(walk: Walk, tree: Tree, leaf: str, agent: str) -> View:
    if tree.iteration:
        return view(tree, leaf, agent)
    render = walk.policies[0].renderer.render
    return recontext(tree, leaf, agent, name="plain", edit=drop_format, render=render)


@pytest.mark.parametrize("iteration", [0, 1, 2])
def test_losses_are_those_of_the_frozen_base_without_formats(walk: Walk, iteration: int) -> None:
    own, run = walk.recipe, walk.run
    key = own.fingerprint(StageKey(iteration, "reward"))
    credit = run.store.credit(key, "nll", iteration=iteration, stage="rollout")
    distances = [0.0]
    for tree in walk.trees(iteration):
        losses: dict[str, float] = {}
        others: dict[str, float] = {}
        for outcome, path in tree.trajectories():
            for agent in {turn.speaker.name for turn in path}:
                shown = without_format(walk, tree, outcome.leaf, agent)
                losses |= turn_losses(walk.policies[0], shown)
                others |= turn_losses(walk.policies[iteration], shown)
        assert {turn: credit[turn] for turn in losses} == pytest.approx(losses, abs=1e-3)
        distances += [abs(losses[turn] - others[turn]) for turn in losses]
        for reward in own.rewards(run, iteration)[tree.task]:
            worst = max(losses[turn.id] for turn in tree.path(reward.leaf))
            if tree.outcomes[reward.leaf].ending.reason != "length":
                assert reward.terms["loss"] == pytest.approx(
                    LAMBDA_LOSS / max(worst, MIN_LOSS), rel=0.05
                )
            assert reward.terms["task"] == tree.outcomes[reward.leaf].score
    assert (max(distances) > 1e-2) == bool(iteration), "base and policy differ"


# -- selection and training -------------------------------------------------------------------


def test_what_is_not_selected_is_named_with_a_reason(walk: Walk) -> None:
    """Dialogues in iteration 0, utterances with siblings in iteration 1: each is selected or left out."""
    store, nodes = walk.run.store, list[set[str]]()
    nodes.append({outcome.leaf for tree in walk.trees(0) for outcome, _ in tree.graded()})
    values = {
        node: v for tree in walk.trees(1) for node, v in walk.recipe.values(walk.run, tree).items()
    }
    of_tree = [
        {turn.id for turn in tree.children(parent) if turn.id in values}
        for tree in walk.trees(1)
        for parent in (tree.root, *tree.turns)
    ]
    nodes.append({node for siblings in of_tree if len(siblings) > 1 for node in siblings})
    for iteration, expected in enumerate(nodes):
        chosen = [selection for _, selection in store.selections(iteration, "select")]
        selected = {node for s in chosen for node in (s.leaf, s.rejected) if node}
        left_out = [entry for _, entry in store.left_out(iteration, "select")]
        assert len({entry.node for entry in left_out}) == len(left_out)
        assert selected & expected == expected - {entry.node for entry in left_out}
    s = SelectSettings(threshold=0.5, top_share=0.5, min_score=0.5)
    rewards = {
        task: [SimpleNamespace(leaf=f"{task}{n}", sample=n, total=total, score=score)]
        for n, (task, total, score) in enumerate(
            [("a", 0.9, 1.0), ("b", 0.8, 1.0), ("c", 0.4, 1.0), ("d", 1.0, 0.0)]
        )
    }
    rewards["a"].append(SimpleNamespace(leaf="a9", sample=9, total=0.6, score=1.0))
    selected = best_demonstrations(rewards, s)
    reasons = {one.node: one.reason for one in without_demonstration(rewards, selected, s)}
    assert reasons == {
        "a9": "not_best", "b1": "outside_share", "c2": "below_threshold", "d3": "below_min_score"
    }  # fmt: skip


def test_pairs_are_siblings_and_prefer_the_higher_mean_of_rollouts(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: dict[str, float] = {}
    trees = {tree.task: tree for tree in walk.trees(1)}
    for task, played in rollouts(walk.run.store, 1).items():
        through: dict[str, list[float]] = {}
        for one in played:
            assert isinstance(one, Rollout) and one.leaf is not None and one.reward is not None
            for turn in trees[task].path(one.leaf):
                through.setdefault(turn.id, []).append(one.reward)
        means |= {turn: sum(rewards) / len(rewards) for turn, rewards in through.items()}
    pairs, _ = walk.training(1, monkeypatch)
    distances = []
    for pair in pairs:
        (chosen,), (rejected,) = pair.chosen, pair.rejected
        (good,), (bad,) = chosen.targets, rejected.targets
        tree = trees[pair.group]
        assert means[good.turn] > means[bad.turn]
        assert tree.turns[good.turn].parent == tree.turns[bad.turn].parent
        assert chosen.ids[: good.start] == rejected.ids[: bad.start]
        assert chosen.ids[good.start :] == tree.turns[good.turn].ids
        assert good.writer == bad.writer == "policy@1"
        for target, reference in zip((good, bad), pair.reference, strict=True):
            turn = tree.turns[target.turn]
            shown = view(tree, turn.id, turn.speaker.name)
            base, last = (
                -turn_losses(walk.policies[version], shown)[turn.id] * len(turn.ids)
                for version in (0, 1)
            )
            assert reference == pytest.approx(last, abs=1e-3), "the reference is the last policy"
            distances.append(abs(base - last))
    assert max(distances) > 0.1
    expected = sum(
        means[turn.id] > means[other.id]
        for tree in walk.trees(1)
        for turn in tree.turns.values()
        for other in tree.children(turn.parent)
    )
    assert len(pairs) == expected > 0


def test_each_iterations_training_has_its_own_settings_and_seed(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [walk.training(i, monkeypatch)[1] for i in range(3)]
    own = walk.recipe.settings
    for i, group in enumerate((own.train, own.dpo.train, own.train)):
        assert given[i].learning_rate == group.learning_rate
        assert given[i].batch_size == group.batch_size
    assert len({one.seed for one in given}) == 3
    _, other = walk.training(0, monkeypatch, made("optima/isft_dpo", "seed=1"))
    assert other.seed not in {one.seed for one in given}


def test_the_score_gate_and_thresholds_of_pairs(walk: Walk) -> None:
    right = count = 0
    for tree in walk.trees(1):
        values = walk.recipe.values(walk.run, tree)
        scores: dict[str, list[float]] = {}
        for outcome, path in tree.trajectories():
            for turn in path:
                scores.setdefault(turn.id, []).append(outcome.score)
        for turn in tree.turns.values():
            others = [values[other.id].mean for other in tree.children(turn.parent)]
            worse = sum(mean < values[turn.id].mean for mean in others)
            count += worse
            right += worse if min(scores[turn.id]) == 1 else 0
    gated = made("optima/isft_dpo", "dpo.select.min_score=1")
    assert gated.pair(walk.run, 1, Silent())["selected"] == right < count
    assert walk.recipe.pair(walk.run, 1, Silent())["selected"] == count
    none = made("optima/isft_dpo", "dpo.select.theta_filter=1.3")
    assert none.pair(walk.run, 1, Silent())["selected"] == 0
    with pytest.raises(UserError, match=r"theta_filter=1\.3"):
        none.prefer(walk.run, 2, Silent())  # an SFT iteration has no pairs


def test_the_report_shows_selected_dialogues_and_their_rewards(walk: Walk) -> None:
    page = write_report(walk.run.folder)
    answers, sections = read_page(page), sections_of(page)
    stages = [stage for stage in answers["tasks"] if stage["stage"] == "rollout"]
    assert [stage["iteration"] for stage in stages] == [0, 2], "the first and the last iteration"
    for stage in stages:
        selections = walk.run.store.selections(stage["iteration"], "select")
        leaves = {selection.leaf for name, selection in selections if name in stage["tasks"]}
        selected = zip(stage["leaf"], stage["selected"], strict=True)
        assert {leaf for leaf, side in selected if side} == leaves != set()
    # Means of the terms of all rollouts, and of the selected ones.
    credit = {tuple(row[:3]): row[3:] for row in sections["credit"]["rows"]}
    terms = walk.recipe.rule(0).names()
    rewards = [r for of_task in walk.recipe.rewards(walk.run, 0).values() for r in of_task]
    for term in terms:
        count, mean, chosen, rejected = credit[0, "rollout", term]
        assert (count, rejected) == (len(rewards), None)
        assert mean == pytest.approx(fmean(reward.terms[term] for reward in rewards))
        assert term != "task" or chosen > mean
    (words,) = answers["words"]
    assert {*terms, "value", "visits", "selected"} <= words["words"].keys()


# -- commands ---------------------------------------------------------------------------------


def test_a_run_repeats_nothing_and_a_fork_keeps_unaffected_stages(cli: Cli) -> None:
    first = cli("run", "optima/isft", *SMALL, "--folder", "a")
    assert first.code == 0, first.err
    assert Path("a/report.html").is_file() and "a/report.html" in first.out
    second = cli("run", "optima/isft", "--folder", "a")
    assert second.code == 0, second.err
    assert "rollout" not in second.err.split("generations")[1]
    refused = cli("run", "optima/isft", "reward.lambda_token=0.1", "--folder", "a")
    assert refused.code == 2
    assert "reward.lambda_token: 0.6 -> 0.1" in refused.err and "--fork" in refused.err
    forked = cli("run", "optima/isft", "reward.lambda_token=0.1", "--folder", "a", "--fork", "b")
    assert forked.code == 0, forked.err
    assert "kept from a: evaluate of iteration 0, rollout of iteration 0" in forked.err
    assert cli("run", "optima/isft", "--folder", "a").code == 0, "the old run is unchanged"


def test_quickstart_ends_with_one_json_line(cli: Cli) -> None:
    quickstart = cli("quickstart", *SMALL)
    assert quickstart.code == 0, quickstart.err
    result = json.loads(quickstart.out.splitlines()[-1])
    assert set(result) == {"task", "model", "before", "after", "seconds", "report"}
    for when in ("before", "after"):
        assert set(result[when]) == {"score", "tokens", "n", "score_ci"} and result[when]["n"] == 4
    assert Path(result["report"]).is_file()


def distance(one: LoadedModel, other: LoadedModel) -> float:
    """Return the Euclidean distance of the weights of two models."""
    weights = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return sum(float((a - b).detach().double().pow(2).sum()) for a, b in weights) ** 0.5


@pytest.mark.slow
def test_an_adapter_continues_under_dpo_with_itself_as_the_reference(
    cli: Cli, tmp_path: Path
) -> None:
    """All pairs are in one small step of DPO: its loss is that of the policy before it."""
    overrides = (
        "iterations=2", "dpo.train.batch_size=1000", "dpo.train.learning_rate=1e-6",
        "train.method=lora", "train.learning_rate=0.01",
    )  # fmt: skip
    optima = made("optima/idpo", *overrides)
    with open_run(tmp_path / "lora", optima.name, optima.settings) as run:
        run_stages(optima, run, Silent())
        assert run.metrics(StageKey(2, "evaluate"))["n"] == 2
        base, before, after = (optima.models(run).load("policy", version) for version in range(3))
        assert 0 < distance(after, before) < distance(before, base) / 10 < distance(after, base)
        losses = []
        for task, one in run.store.selections(1, "select"):
            shown = view(run.store.tree(1, "rollout", task), one.leaf, one.agent)
            losses.append(turn_losses(before, shown)[one.leaf])
        expected = math.log(2) + sum(losses) / len(losses)
        assert run.metrics(StageKey(1, "train"))["loss"] == pytest.approx(expected, abs=1e-4)
        final = run.training_folder(1) / "final"
        assert (final / "adapter_config.json").is_file()
        assert not (final / "model.safetensors").exists()
    refused = cli("run", "optima/isft", *SMALL, "model=lora", "--dry-run")
    assert refused.code == 2 and "LoRA adapter" in refused.err
