"""What ``optima``'s iterations of DPO need of trees: rewards while they grow, and their record."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coterie.engines.inprocess import InProcessEngine
from coterie.progress import Progress
from coterie.recipes.optima.reward import PARTS
from coterie.rewards.combined import RewardSettings, Sampled, largest_loss, rewards
from coterie.rewards.conduct import leaks, repeats
from coterie.rewards.likelihood import turn_losses
from coterie.rollout.episodes import dialogue_tokens
from coterie.rollout.grower import Rollout
from coterie.rollout.tree_search import Judged, path_tree
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.store import Store
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.view import View, view


@dataclass(slots=True)
class Growing:
    """What a store has of the trees of an iteration, and the writing of more."""

    store: Store
    iteration: int
    progress: Progress
    sampled_tokens: Callable[[], int]
    """So far, for the progress."""
    played: dict[str, list[Rollout]] = field(init=False)

    def __post_init__(self) -> None:
        self.played = rollouts(self.store, self.iteration)

    def left(self, tasks: Iterable[Task], searches: int) -> int:
        """How many searches there are still to do."""
        done = [{rollout.search for rollout in self.played.get(task.id, ())} for task in tasks]
        return sum(searches - len(found) for found in done)

    def begun(self, task: Task) -> tuple[Tree, list[Rollout]]:
        """A task's tree as far as it has grown, and the rollouts that made it."""
        found = self.played.get(task.id, [])
        if not any(rollout.leaf for rollout in found):
            return Tree(task.id, "rollout", self.iteration), found
        return self.store.tree(self.iteration, "rollout", task.id), found

    def record(self, tree: Tree, new: Sequence[Rollout], credit: Sequence[Credit]) -> None:
        """Write a finished search: all of its rollouts, or none."""
        last = max((r.number for r in new if r.leaf is not None), default=-1)
        with self.store.together():
            for one in new:
                key = ItemKey(
                    self.iteration, "rollout", tree.task, f"{one.search:03d}/{one.number:02d}"
                )
                path = None if one.leaf is None else path_tree(tree, [one.leaf])
                self.store.finish(
                    key,
                    tree=path,
                    credit=credit if one.number == last else (),
                    metrics=_metrics(one, path),
                    failure=one.failure,
                )
        self.progress.advance(1, sampled_tokens=self.sampled_tokens())


class TreeJudge:
    """Rewards of dialogues as their tree grows, by equation 1; keeps each turn's loss.

    Tokens are over ``max_tokens``; losses are under ``base``; ``settings`` keys the credit.
    """

    def __init__(
        self,
        rule: RewardSettings,
        max_tokens: int,
        base: InProcessEngine,
        agents: tuple[str, ...],
        *,
        settings: str,
    ) -> None:
        self.rule = rule
        self.max_tokens = max_tokens
        self.base = base
        self.agents = agents
        self.settings = settings
        self.losses: dict[str, float] = {}
        """By turn, in nats a token under the frozen base."""

    async def __call__(self, tree: Tree, outcomes: Sequence[Outcome]) -> list[Judged]:
        """Rewards of finished paths; raises ``EngineError``."""
        new = await self._losses(tree, outcomes) if self.rule.lambda_loss else {}
        self.losses |= new
        paths = [tree.path(outcome.leaf) for outcome in outcomes]
        samples = [
            Sampled(
                outcome,
                dialogue_tokens(path),
                largest_loss(self.losses, [turn.id for turn in path]) if self.losses else 0.0,
                leaks(path, self.agents),
                repeats(path),
            )
            for outcome, path in zip(outcomes, paths, strict=True)
        ]
        found = []
        for reward in rewards(samples, self.rule, max_tokens=self.max_tokens):
            named = zip(PARTS, reward.terms, strict=True)
            own = [Credit(reward.leaf, name, value, self.settings) for name, value in named]
            found.append(Judged(reward.total, tuple(own)))
        if found and new:
            nll = tuple(Credit(turn, "nll", loss, self.settings) for turn, loss in new.items())
            found[0] = Judged(found[0].reward, found[0].credit + nll)
        return found

    async def _losses(self, tree: Tree, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Losses of the turns of these paths that are not known yet."""
        views: list[View] = []
        for outcome in outcomes:
            path = tree.path(outcome.leaf)
            speakers = {t.speaker.name: None for t in path if t.id not in self.losses}
            views += [view(tree, outcome.leaf, agent) for agent in speakers]
        found = await turn_losses(self.base, views) if views else {}
        return {turn: loss for turn, loss in found.items() if turn not in self.losses}


def rollouts(store: Store, iteration: int) -> dict[str, list[Rollout]]:
    """The rollouts of an iteration's finished searches, by task, in their order."""
    failures = {key: reason for key, reason in store.failures(iteration) if key.stage == "rollout"}
    found: dict[str, list[Rollout]] = {}
    for key, metrics in sorted(store.metrics(iteration, "rollout").items()):
        if not key.task:
            continue
        search, _, number = key.sample.partition("/")
        leaf, reward = metrics.get("leaf"), metrics.get("reward")
        one = Rollout(
            int(search),
            int(number),
            str(metrics["start"]),
            None if leaf is None else str(leaf),
            None if reward is None else float(reward),
            failures.get(key),
            int(metrics["sampled"]),
        )
        found.setdefault(key.task, []).append(one)
    return found


def _metrics(one: Rollout, path: Tree | None) -> Metrics:
    shared: dict[str, float | int | str] = {"start": one.start, "sampled": one.sampled}
    if path is None or one.leaf is None or one.reward is None:
        return {**shared, "tokens": 0}
    tokens = dialogue_tokens(path.path(one.leaf))
    return {**shared, "tokens": tokens, "leaf": one.leaf, "reward": one.reward}
