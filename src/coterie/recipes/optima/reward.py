"""Reward stage of Optima for the dialogues of one task (arXiv 2410.08115, equation 1)."""

from collections.abc import Callable, Mapping, Sequence

from coterie.engines.protocol import Engine, EngineError
from coterie.record.rows import View
from coterie.record.store import Store
from coterie.record.tree import Credit, ItemKey, Metrics, Outcome, Tree
from coterie.record.turn import Turn
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    RewardSettings,
    count_leaks,
    count_repeats,
    largest_loss,
    rewards,
)
from coterie.rewards.likelihood import turn_losses
from coterie.rollout.episodes import dialogue_tokens
from coterie.runs.items import Done

COUNTS = ("trajectories", "failed", "truncated", "leaks", "repeats")
"""Counts of each task's dialogues."""


async def score(
    engine: Engine,
    tree: Tree,
    show: Callable[[str, str], View],
    rule: RewardSettings,
    settings: str,
    agents: tuple[str, ...],
) -> Done:
    """Compute ``R(tau) = R_task - lambda_token R_token + lambda_loss / R_loss`` of all dialogues of a tree.

    ``engine`` is the frozen M_base; ``show(leaf, agent)`` returns an agent's view without a format prompt; ``settings``
    keys the credit, which has the loss of each turn and each term of R.
    """
    key = ItemKey(tree.iteration, "reward", tree.task)
    views = [
        show(outcome.leaf, agent)
        for outcome, path in tree.graded()
        for agent in {turn.speaker.name: None for turn in agent_turns(path)}
    ]
    try:
        losses = await turn_losses(engine, views)
    except EngineError as error:
        return Done(key, _counts([], failed=1), failure=str(error))
    samples = [make_sample(outcome, path, losses, agents) for outcome, path in tree.graded()]
    credit = [Credit(turn, "nll", loss, settings) for turn, loss in losses.items()]
    for reward in rewards(samples, rule):
        credit += [
            Credit(reward.leaf, name, value, settings) for name, value in reward.terms.items()
        ]
    return Done(key, _counts(samples), credit=tuple(credit))


def make_sample(
    outcome: Outcome, path: Sequence[Turn], losses: Mapping[str, float], agents: tuple[str, ...]
) -> DialogueSample:
    """Collect the terms of the reward of a dialogue. Without ``losses`` (lambda_loss = 0) R_loss is 0."""
    turns = agent_turns(path)
    loss = largest_loss(losses, [turn.id for turn in turns]) if losses else 0.0
    tokens = dialogue_tokens(path)
    return DialogueSample(
        outcome, tokens, loss, count_leaks(turns, agents), count_repeats(turns), tuple(path)
    )


def agent_turns(path: Sequence[Turn]) -> list[Turn]:
    """Return the turns of agents, without those of tools and users."""
    return [turn for turn in path if turn.speaker.kind == "agent"]


def totals(store: Store, iteration: int, names: Sequence[str] = COUNTS) -> Metrics:
    """Sum the counts of the reward stage over all tasks."""
    items = [m for key, m in store.metrics(iteration, "reward").items() if key.task]
    return {name: sum(int(metrics[name]) for metrics in items) for name in names}


def _counts(samples: list[DialogueSample], failed: int = 0) -> Metrics:
    counts = (
        len(samples),
        failed,
        sum(sample.truncated for sample in samples),
        sum(sample.leaks for sample in samples),
        sum(sample.repeats for sample in samples),
    )
    return dict(zip(COUNTS, counts, strict=True))
