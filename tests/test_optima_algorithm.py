"""What the recipes of Optima do in each step, seen on a run whose trainings are stood in for.

Policies 1 and 2 are the base, moved a little by chance; of a training, what it would be given is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from coterie.engines.protocol import POLICY
from coterie.environments.talk import FORMAT_SOURCE
from coterie.models.loading import LoadedModel
from coterie.progress import Silent
from coterie.recipes import trainings
from coterie.recipes.base import Recipe
from coterie.recipes.optima import PROBE, Optima
from coterie.recipes.registry import recipe, settings
from coterie.record.rows import Pair, view
from coterie.record.tree import Tree
from coterie.rollout.tree_search import Rollout
from coterie.runs.folder import Run, Step, open_run
from coterie.runs.items import rollouts
from coterie.runs.loop import run_steps
from coterie.training.settings import TrainingSettings
from tests.by_hand import turn_losses
from tests.conftest import SMALL, once

WORDS = once(
    *SMALL, "iterations=3", "rollout.tasks=3", "rollout.max_tokens=64", "rollout.temperature=0.9",
    "rollout.first_temperature=0.8", "rollout.top_p=0.99", "dpo.temperature=1.4", "dpo.tasks=4",
    "dpo.probe=3", "dpo.search.searches=3", "dpo.select.theta_filter=-100",
    "dpo.select.theta_diff=0", "dpo.select.top_share=1", "dpo.objective.beta=0.3", "evaluate.tasks=2",
)  # fmt: skip
KINDS = ("sft", "dpo", "sft")
LAMBDA_TOKEN, LAMBDA_LOSS, MIN_LOSS = 0.6, 0.002, 0.005
"""Of the preset ``exchange``."""


@dataclass
class Training:
    model: Any
    items: list[Any]
    settings: TrainingSettings
    objective: Any = None


class Given(Exception):
    """Raised instead of training."""


@dataclass
class Walk:
    """A run whose steps are done, but for its trainings."""

    run: Run
    recipe: Optima
    samplers: dict[tuple[int, float, float], int]
    """How often each (policy, temperature, top_p) was asked for, in rollouts."""
    policies: list[LoadedModel]
    tasks: list[list[str]]

    def trees(self, iteration: int) -> list[Tree]:
        return list(self.run.store.trees(iteration, "rollout"))

    def training(
        self, iteration: int, monkeypatch: pytest.MonkeyPatch, method: str = "", *words: str
    ) -> Training:
        own = made(method, *words) if method else self.recipe
        caught: list[Training] = []

        def train(model: Any, items: Any, settings: TrainingSettings, _: Any, **named: Any) -> None:
            caught.append(Training(model, list(items), settings, named.get("objective")))
            raise Given

        monkeypatch.setattr(trainings, "train", train)
        with pytest.raises(Given):
            own.at(Step(iteration, "train")).do(self.run, iteration, Silent())
        return caught[0]


def made(method: str = "optima/isft_dpo", *words: str) -> Optima:
    found = recipe(settings(method, once(*WORDS, *words)))
    assert isinstance(found, Optima)
    return found


def stand_in(own: Optima, run: Run, iteration: int) -> None:
    """A training that is done: the base, moved by chance."""
    loaded = own.load_policy(run, 0)
    torch.manual_seed(iteration)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight += 0.08 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0.0
    final = run.training_folder(iteration) / "final"
    loaded.model.save_pretrained(final)
    loaded.tokenizer.save_pretrained(final)
    done = Step(iteration, "train")
    run.begin(done, own.fingerprint(done))
    run.finish(done, own.fingerprint(done), {})


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    own = made()
    samplers: dict[tuple[int, float, float], int] = {}
    whole = Recipe.sampler

    async def sampler(
        self: Any,
        run: Run,
        version: int,
        temperature: float,
        top_p: float = 1.0,
        role: str = POLICY,
    ) -> Any:
        asked = (version, temperature, top_p)
        samplers[asked] = samplers.get(asked, 0) + 1
        return await whole(self, run, version, temperature, top_p, role)

    with (
        pytest.MonkeyPatch.context() as patch,
        open_run(tmp_path_factory.mktemp("walk") / "run", own.name, own.settings) as run,
    ):
        patch.setattr(Recipe, "sampler", sampler)
        for iteration in (0, 1):
            stand_in(own, run, iteration)
        steps = [Step(i, s) for i in range(3) for s in ("rollout", "reward", "select")]
        run_steps(own, run, Silent(), steps)
        policies = [own.load_policy(run, version) for version in range(3)]
        tasks = [[task.id for task in own.train_tasks(i)] for i in range(3)]
        yield Walk(run, own, samplers, policies, tasks)


# -- trainings --------------------------------------------------------------------------------


def test_the_reference_of_dpo_is_the_last_policy(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = {tree.task: tree for tree in walk.trees(1)}
    given = walk.training(1, monkeypatch)
    apart = []
    for pair in given.items:
        assert isinstance(pair, Pair) and pair.reference is not None
        tree = trees[pair.group]
        for (row,), reference in zip((pair.chosen, pair.rejected), pair.reference, strict=True):
            turn = tree.turns[row.targets[-1].turn]
            shown = view(tree, turn.id, turn.speaker.name)
            base, last = (
                -turn_losses(walk.policies[version], shown)[turn.id] * len(turn.ids)
                for version in (0, 1)
            )
            assert reference == pytest.approx(last, abs=1e-3)
            apart.append(abs(base - last))
    assert max(apart) > 0.1, "told apart"


def test_each_iterations_training_has_its_own_settings_and_seed(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [walk.training(i, monkeypatch).settings for i in range(3)]
    own = walk.recipe.settings
    for i, kind in enumerate(KINDS):
        group = own.dpo.train if kind == "dpo" else own.train
        assert given[i].learning_rate == group.learning_rate
        assert given[i].batch_rows == group.batch_rows
    assert len({one.seed for one in given}) == 3
    other = walk.training(0, monkeypatch, "optima/isft_dpo", "seed=1").settings
    assert other.seed not in {one.seed for one in given}


# -- rollouts ---------------------------------------------------------------------------------


def test_formats_are_drawn_for_each_dialogue_of_iteration_0_alone(walk: Walk) -> None:
    shown = [
        {
            part.text
            for tree in walk.trees(iteration)
            for request in tree.requests.values()
            for message in tree.messages(request)
            for part in message.parts
            if part.source == FORMAT_SOURCE
        }
        for iteration in range(3)
    ]
    assert len(shown[0]) > 2 and not shown[1] and not shown[2]
    of_a_task = []
    for tree in walk.trees(0):
        of_a_task.append(set())
        for _, path in tree.trajectories():
            formats = {
                tuple(p.text for p in tree.messages(tree.requests[turn.prompt])[0].parts if p.source == FORMAT_SOURCE)
                for turn in path if turn.prompt
            }  # fmt: skip
            assert len(formats) == 1 and formats != {()}, "one for both agents"
            of_a_task[-1] |= formats
    assert max(map(len, of_a_task)) > 1, "one for each dialogue of a task"


def test_tasks_are_drawn_once(walk: Walk) -> None:
    drawn = [sorted(tree.task for tree in walk.trees(iteration)) for iteration in range(3)]
    assert drawn == [sorted(tasks) for tasks in walk.tasks]
    assert [len(tasks) for tasks in drawn] == [3, 4, 3]
    assert len({task for tasks in drawn for task in tasks}) == 10


def test_the_probe_says_what_tokens_are_over(walk: Walk) -> None:
    found = walk.run.store.metrics(1, PROBE).values()
    lengths = [int(one["tokens"]) for one in found]
    assert len(lengths) == 3
    for tree in walk.run.store.trees(1, PROBE):
        for _, path in tree.trajectories():
            assert sum(len(turn.ids) for turn in path) in lengths
    limit = int(np.percentile(lengths, 80)) + 1
    assert walk.run.metrics(Step(1, "rollout"))["token_limit"] == limit
    for tree in walk.trees(1):
        for reward in walk.recipe.rewards(walk.run, 1)[tree.task]:
            if tree.outcomes[reward.leaf].ending.reason != "length":
                said = sum(len(turn.ids) for turn in tree.path(reward.leaf))
                assert reward.terms["tokens"] == pytest.approx(-LAMBDA_TOKEN * said / limit)


# -- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("iteration", [0, 1, 2])
def test_losses_are_those_of_the_frozen_base_without_formats(walk: Walk, iteration: int) -> None:
    own, run = walk.recipe, walk.run
    key = own.fingerprint(Step(iteration, "reward"))
    kept = run.store.credit(key, "nll", iteration=iteration, stage="rollout")
    apart = [0.0]
    for tree in walk.trees(iteration):
        losses: dict[str, float] = {}
        others: dict[str, float] = {}
        for outcome, path in tree.trajectories():
            for agent in {turn.speaker.name for turn in path}:
                shown = unformatted(walk, tree, outcome.leaf, agent)
                losses |= turn_losses(walk.policies[0], shown)
                others |= turn_losses(walk.policies[iteration], shown)
        assert {turn: kept[turn] for turn in losses} == pytest.approx(losses, abs=1e-3)
        apart += [abs(losses[turn] - others[turn]) for turn in losses]
        for reward in own.rewards(run, iteration)[tree.task]:
            worst = max(losses[turn.id] for turn in tree.path(reward.leaf))
            if tree.outcomes[reward.leaf].ending.reason != "length":
                assert reward.terms["loss"] == pytest.approx(
                    LAMBDA_LOSS / max(worst, MIN_LOSS), rel=0.05
                )
            assert reward.terms["task"] == tree.outcomes[reward.leaf].score
    assert (max(apart) > 1e-2) == bool(iteration), "told apart"


def unformatted(walk: Walk, tree: Tree, leaf: str, agent: str) -> Any:
    """What an agent saw of a dialogue, without the format prompt."""
    from coterie.environments.talk import drop_format
    from coterie.record.rows import recontext

    if tree.iteration:
        return view(tree, leaf, agent)
    render = walk.policies[0].renderer.render
    return recontext(tree, leaf, agent, name="plain", edit=drop_format, render=render)


def test_values_of_utterances_are_means_over_rollouts_and_pairs_prefer_the_better(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    means: dict[str, float] = {}
    for task, played in rollouts(walk.run.store, 1).items():
        tree = walk.run.store.tree(1, "rollout", task)
        through: dict[str, list[float]] = {}
        for one in played:
            assert isinstance(one, Rollout) and one.leaf is not None and one.reward is not None
            for turn in tree.path(one.leaf):
                through.setdefault(turn.id, []).append(one.reward)
        means |= {turn: sum(found) / len(found) for turn, found in through.items()}
    pairs = walk.training(1, monkeypatch).items
    for pair in pairs:
        (chosen,), (rejected,) = pair.chosen, pair.rejected
        assert means[chosen.targets[-1].turn] > means[rejected.targets[-1].turn]
    expected = sum(
        means[turn.id] > means[other.id]
        for tree in walk.trees(1)
        for turn in tree.turns.values()
        for other in tree.children(turn.parent)
    )
    assert len(pairs) == expected > 0


# -- selection --------------------------------------------------------------------------------


def test_the_gate_of_dpo_takes_only_turns_that_always_led_to_a_right_answer(walk: Walk) -> None:
    right = every = 0
    for tree in walk.trees(1):
        values = walk.recipe.values(walk.run, tree)
        scores: dict[str, list[float]] = {}
        for outcome, path in tree.trajectories():
            for turn in path:
                scores.setdefault(turn.id, []).append(outcome.score)
        for turn in tree.turns.values():
            others = [values[other.id].mean for other in tree.children(turn.parent)]
            worse = sum(mean < values[turn.id].mean for mean in others)
            every += worse
            right += worse if min(scores[turn.id]) == 1 else 0
    assert walk.recipe.pair(walk.run, 1, Silent())["selected"] == every
    gated = made("optima/isft_dpo", "dpo.select.min_score=1").pair(walk.run, 1, Silent())
    assert gated["selected"] == right < every, "some are right and some are wrong"


def test_samples_of_a_task_have_their_own_random_numbers(walk: Walk) -> None:
    for iteration in (0, 2):
        seeds = [
            turn.sample.seed
            for tree in walk.trees(iteration)
            for turn in tree.turns.values()
            if turn.sample
        ]
        assert len(set(seeds)) == len(seeds)
