"""The reward stage of ``optima`` for one task: losses under the frozen base, rewards, credit."""

from collections.abc import Callable, Mapping, Sequence

from coterie.engines.protocol import Engine, EngineError
from coterie.rewards.conduct import count_leaks, count_repeats
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    Reward,
    RewardSettings,
    largest_loss,
    rewards,
)
from coterie.rewards.likelihood import turn_losses
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.items import Done
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.store import Store
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Turn
from coterie.trajectories.view import View

COUNTS = ("trajectories", "failed", "truncated", "leaks", "repeats")
"""What is counted of every task's dialogues."""


async def score(
    engine: Engine,
    tree: Tree,
    show: Callable[[str, str], View],
    rule: RewardSettings,
    settings: str,
    agents: tuple[str, ...],
) -> Done:
    """Rewards of all dialogues of a tree, each part as credit of its leaf.

    ``show(leaf, agent)`` is what an agent saw of a dialogue, without a format prompt; the engine is
    the frozen base; ``settings`` keys the credit.
    """
    key = ItemKey(tree.iteration, "reward", tree.task)
    views = [
        show(outcome.leaf, agent)
        for outcome, path in tree.graded()
        for agent in {turn.speaker.name: None for turn in said(path)}
    ]
    try:
        losses = await turn_losses(engine, views)
    except EngineError as error:
        return Done(key, _counts([], failed=1), failure=str(error))
    samples = [
        DialogueSample(
            outcome,
            dialogue_tokens(path),
            largest_loss(losses, [turn.id for turn in said(path)]),
            count_leaks(said(path), agents),
            count_repeats(said(path)),
            tuple(path),
        )
        for outcome, path in tree.graded()
    ]
    credit = [Credit(turn, "nll", loss, settings) for turn, loss in losses.items()]
    for reward in rewards(samples, rule):
        credit += [
            Credit(reward.leaf, name, value, settings) for name, value in reward.terms.items()
        ]
    return Done(key, _counts(samples), credit=tuple(credit))


def said(path: Sequence[Turn]) -> list[Turn]:
    """The turns of the agents, which is what a reward is about."""
    return [turn for turn in path if turn.speaker.kind == "agent"]


def reward_of(leaf: str, sample: int, parts: Mapping[str, Mapping[str, float]]) -> Reward:
    return Reward(leaf, sample, {name: part[leaf] for name, part in parts.items()})


def totals(store: Store, iteration: int, names: Sequence[str] = COUNTS) -> Metrics:
    """What is counted of all tasks' dialogues in the reward stage."""
    items = [m for key, m in store.metrics(iteration, "reward").items() if key.task]
    return {name: sum(int(metrics[name]) for metrics in items) for name in names}


def _counts(samples: list[DialogueSample], failed: int = 0) -> Metrics:
    found = (
        len(samples),
        failed,
        sum(sample.truncated for sample in samples),
        sum(sample.leaks for sample in samples),
        sum(sample.repeats for sample in samples),
    )
    return dict(zip(COUNTS, found, strict=True))
