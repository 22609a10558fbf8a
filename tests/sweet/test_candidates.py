"""Candidates for every turn: how they are drawn, scored, paired, trained on, and said at test time.

A model with some noise stands in for the trained critic.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import EngineError, EngineGone, Sampling
from coterie.environments.coding import AGENT, CRITIC, with_reference
from coterie.models.loading import load
from coterie.recipes.sweet_rl import (
    JudgeCritic,
    SweetRL,
    dialogues_to_branch,
    score_candidates,
)
from coterie.record.rows import prompts
from coterie.record.tree import Task, Tree
from coterie.record.turn import Message, Part, PrivilegeError, Speaker, Turn, make_turn
from coterie.rewards.critics import Judge
from coterie.rollout.recorded_turns import BestOfSampler, candidates
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.runs.folder import Run, Step
from coterie.training.losses import DPO
from tests.sweet.known import (
    BASE,
    REWARD,
    SECRET,
    WORDS,
    Training,
    base,
    by_base,
    groups,
    text,
    trained,
)
from tests.test_step_critic import naive
from tests.test_sweet_offline import REFERENCE_CODE, made


def test_the_first_dialogue_of_every_task_gets_candidates_before_the_second_of_any(
    run: Run,
) -> None:
    assert [one.sample for one in dialogues_to_branch(run, 0.5)] == [0, 0, 0]
    assert [one.sample for one in dialogues_to_branch(run, 1.0)] == [0, 0, 0, 1, 1, 1]
    assert [one.sample for one in dialogues_to_branch(run, 0.01)] == [0]


def test_candidates_are_the_base_policys_under_the_prompt_of_the_turn(run: Run) -> None:
    found = list(groups(run))
    assert [len(group) for *_, group in found] == [4] * 11  # every turn of every dialogue
    own = [turn.sample for *_, group in found for turn in group]
    assert all(one is not None for one in own)
    seeds = [one.seed for one in own if one]
    assert len(set(seeds)) == len(seeds)
    assert {(one.version, one.temperature) for one in own if one} == {("0", 0.9)}
    expected = set()
    for tree in run.store.trees(0, "rollout"):
        for leaf in tree.outcomes:
            expected |= {prompt for prompt, _ in prompts(tree, leaf, AGENT)}
    shown = [prompts(tree, turn.id, AGENT)[-1][0] for _, tree, group in found for turn in group]
    assert set(shown) == expected and not any(SECRET in text(prompt) for prompt in shown)


def prompt_of(tree: Tree, turn: Turn, *, privileged: bool) -> tuple[int, ...]:
    """What a critic reads before a candidate, put together by hand."""
    system, *rest = tree.messages(tree.requests[str(turn.prompt)])
    if privileged:
        more = Part(f"\nReference:\n{REFERENCE_CODE}")
        system = replace(system, parts=(*system.parts, more))
    return base().renderer.render([system, *rest], tree, AGENT)


def log_ratios(
    run: Run, tree: Tree, group: Sequence[Turn], *, privileged: bool
) -> list[list[float]]:
    critic = load(run.training_folder(0, CRITIC) / "final")
    prompt = prompt_of(tree, group[0], privileged=privileged)
    found = []
    for turn in group:
        ids, start = (*prompt, *turn.ids), len(prompt)
        both = (naive(one.model, ids, start) for one in (critic, base()))
        found.append([ours - before for ours, before in zip(*both, strict=True)])
    return found


def test_a_candidates_reward_is_its_mean_log_ratio_where_the_reference_is_shown(
    run: Run,
) -> None:
    for _, tree, group in list(groups(run))[:3]:
        nodes = [turn.id for turn in group]
        found = run.store.credit(SweetRL(run.settings).fingerprint(REWARD), "advantage", nodes)
        ratios = log_ratios(run, tree, group, privileged=True)
        means = [sum(one) / len(one) for one in ratios]
        assert [found[node] for node in nodes] == pytest.approx(means, abs=1e-3)
        assert max(means) - min(means) > 0.01


@pytest.mark.parametrize(
    ("word", "privileged", "summed"),
    [("critic.privileged=false", False, False), ("critic.objective.normalise=none", True, True)],
)
def test_ablations_of_the_critic_change_what_it_reads_or_how_it_counts(
    run: Run, word: str, privileged: bool, summed: bool
) -> None:
    task, tree, group = list(groups(run))[1]
    found = advantages(run, task, tree, group, word)
    ratios = log_ratios(run, tree, group, privileged=privileged)
    expected = [sum(one) / (1 if summed else len(one)) for one in ratios]
    assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["regression", "classifier"])
def test_a_head_gives_the_mean_of_a_candidate_or_the_value_at_its_end(run: Run, kind: str) -> None:
    task, tree, group = list(groups(run))[1]
    found = advantages(run, task, tree, group, f"critic.kind={kind}")
    critic = load(run.training_folder(0, CRITIC) / "final")
    head = torch.randn(
        1, critic.model.config.hidden_size, generator=torch.Generator().manual_seed(0)
    )
    prompt, expected = prompt_of(tree, group[0], privileged=True), []
    for turn in group:
        with torch.no_grad():
            hidden = critic.model.model(torch.tensor([(*prompt, *turn.ids)])).last_hidden_state[0]
        values = (hidden @ head[0])[len(prompt) :]
        expected.append(float(values.mean() if kind == "regression" else values[-1]))
    assert found == pytest.approx(expected, abs=1e-2)


def advantages(run: Run, task: Task, tree: Tree, group: Sequence[Turn], word: str) -> list[float]:
    recipe = made(*WORDS, word)

    async def ask() -> list[float]:
        async with recipe.open_critic(run) as critic:
            return await critic.advantages(task, tree, group)

    try:
        return asyncio.run(ask())
    finally:
        recipe.close()


def test_pairs_of_turns_are_of_the_upper_half_over_the_lower_each_turn_drawn_anew(
    run: Run,
) -> None:
    selected = [one for _, one in run.store.selections(1, "select")]
    drawn = set()
    for _, _, group in groups(run):
        scores = run.store.credit(
            SweetRL(run.settings).fingerprint(REWARD), "advantage", [t.id for t in group]
        )
        ranked = sorted(scores, key=lambda node: -scores[node])
        mine = [(one.leaf, str(one.rejected)) for one in selected if one.leaf in scores]
        places = [(ranked.index(better), ranked.index(worse)) for better, worse in mine]
        if len(set(scores.values())) == 4:
            assert len(places) == 4
            assert all(better < 2 <= worse for better, worse in places)
            drawn.add(tuple(places))
    assert len(drawn) > 2


def test_the_policy_learns_turns_from_the_base_without_the_reference(
    run: Run, trainings: list[Training]
) -> None:
    words = ("policy.objective.beta=0.3", "policy.objective.nll=0.07", "policy.train.batch_rows=5")
    got = trained(trainings, run, Step(1, "train"), *words)
    assert isinstance(got.objective, DPO)
    asked = got.objective.settings
    assert (asked.beta, asked.nll, asked.normalise) == (0.3, 0.07, "none")
    assert got.settings.batch_rows == 5
    selected, before = run.store.selections(1, "select"), set()
    assert len(got.items) == len(selected)
    for pair, (task, one) in zip(got.items, selected, strict=True):
        tree = run.store.tree(1, "rollout", task)
        for side, leaf in ((pair.chosen, one.leaf), (pair.rejected, str(one.rejected))):
            targets = [row.ids[t.start : t.stop] for row in side for t in row.targets]
            assert targets == [tree.turns[leaf].ids], "turns before it are not compared"
            assert not any(SECRET in text(row.ids) for row in side)
            before.add(len(prompts(tree, leaf, AGENT)) - 1)
    assert before == {0, 1, 2}
    for pair in got.items[:3]:
        expected = [by_base(side, "none") for side in (pair.chosen, pair.rejected)]
        assert pair.reference == pytest.approx(expected, abs=1e-3)


class Failing:
    """A critic that can't judge candidates of one turn, or of any."""

    def __init__(self, fails: set[str], error: type[EngineError] = EngineError) -> None:
        self.fails, self.error = fails, error
        self.counts: dict[str, int] = {}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        if group[0].id in self.fails:
            raise self.error("no room")
        return [float(place) for place, _ in enumerate(group)]


def test_a_turn_that_the_critic_fails_on_is_counted_and_costs_no_other(run: Run) -> None:
    task, tree, _ = next(groups(run))
    found = candidates(tree)
    firsts = {group[0].id for group in found}
    bad = found[0]
    done = asyncio.run(score_candidates(Failing({bad[0].id}), task, tree, "s"))
    assert done.metrics == {"turns": len(found) - 1, "unscored": 1} and done.failure is None
    assert {one.node: one.value for one in done.credit} == {
        turn.id: float(place) for group in found[1:] for place, turn in enumerate(group)
    }
    done = asyncio.run(score_candidates(Failing(firsts), task, tree, "s"))
    assert done.failure == "no room" and not done.credit
    with pytest.raises(EngineGone):
        asyncio.run(score_candidates(Failing({bad[0].id}, EngineGone), task, tree, "s"))


@pytest.mark.parametrize("privileged", [True, False])
def test_a_judge_reads_what_was_said_and_the_reference_if_it_may(
    run: Run, own: SweetRL, privileged: bool
) -> None:
    asked: list[str] = []

    async def say(messages: Sequence[Any]) -> str:
        asked.append(messages[-1].text)
        return "A"

    task, tree, group = next(
        (task, tree, group) for task, tree, group in groups(run) if len(tree.path(group[0].id)) > 2
    )
    replies = [
        make_turn(group[0].parent, Speaker("agent", AGENT), [Part(f"my thoughts OUTPUT: {word}?")])
        for word in ("Which", "Why")
    ]
    critic = JudgeCritic(own.environment, Judge(say, opponents=1), privileged)
    assert asyncio.run(critic.advantages(task, tree, replies)) == [0.5, 0.5]
    for one in asked:
        assert (SECRET in one) == privileged
        assert "Reply 1." in one and "Which?" in one and "Why?" in one
        assert "Hm." not in one and "my thoughts" not in one
        assert str(task.public["question"]) in one


def test_only_a_critic_may_read_the_reference_in_its_prompt(run: Run) -> None:
    task, tree, group = next(groups(run))
    shown = with_reference(task)(tree.messages(tree.requests[str(group[0].prompt)]))
    renderer = base().renderer
    assert REFERENCE_CODE in renderer.decode(renderer.render(shown, tree, AGENT, privileges=CRITIC))
    for privileges in (None, "stranger"):
        with pytest.raises(PrivilegeError):
            renderer.render(shown, tree, AGENT, privileges=privileges)


def test_of_n_candidates_the_one_with_the_highest_score_is_said() -> None:
    loaded = load(BASE)
    engine = InProcessEngine(loaded, policy="p", version="0")
    sampler = TokenSampler(engine, loaded.renderer.render, Sampling(max_tokens=8), 512)
    shown = (Message.of("system", "You are Alice."), Message.of("user", "Which river is long?"))

    async def score(tree: Tree, turns: Sequence[Turn]) -> list[float]:
        return [0.1, 0.9, 0.4, 0.2]

    def speak(seed: int) -> tuple[Tree, Turn]:
        tree = Tree("t", "evaluate", 0)
        prompt = Prompt(tree, tree.root, AGENT, shown, seed, 0)
        best = BestOfSampler(sampler, 4, score)
        return tree, asyncio.run(best.respond(prompt, AgentContext())).turn

    seeds = []
    for seed in (1, 2):
        tree, turn = speak(seed)
        (group,) = candidates(tree)
        assert len(group) == 4 and turn.id == group[1].id
        seeds += [one.sample.seed for one in group if one.sample]
    assert len(set(seeds)) == 8
    assert speak(1)[1].ids == speak(1)[1].ids
