"""Results of evaluations: scores of a policy on held-out tasks, and comparisons of policies task by task."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from coterie.engines.protocol import LEFT_OUT
from coterie.environments.protocol import CUT_OFF, MESSAGES, SUCCESS_OF
from coterie.environments.qa_metrics import Similarity
from coterie.errors import UserError
from coterie.evaluation import (
    Draw,
    Estimate,
    Point,
    difference_interval,
    estimate,
    mean_interval,
    scaling,
)
from coterie.record.store import Store
from coterie.record.tree import LENGTH, ItemKey
from coterie.runs.loop import EVALUATION

TYPE_MEAN = "type_mean"
"""Name of the unweighted mean of the success on types of tasks."""
MEASURE = "measure"
"""Text metric of grades whose scores can't be compared if it differs."""


class Comparison(NamedTuple):
    """Scores of a policy and of a baseline on the tasks that both have."""

    baseline: str
    pairs: Sequence[tuple[float, float]]
    left_out: int = 0
    """Tasks that one of the two could not grade."""

    @property
    def n(self) -> int:
        return len(self.pairs)

    @property
    def ties(self) -> int:
        return sum(score == rival for score, rival in self.pairs)

    @property
    def difference(self) -> Estimate:
        """Mean difference from the baseline."""
        differences = [score - rival for score, rival in self.pairs]
        return Estimate(fmean(differences), difference_interval(differences, seed=0))

    @property
    def win_rate(self) -> Estimate:
        """Share of tasks on which the policy scores higher; a tie counts half."""
        wins = [0.5 * (score > rival) + 0.5 * (score >= rival) for score, rival in self.pairs]
        return estimate(wins)


@dataclass(frozen=True)
class Evaluation:
    """Results of one policy on held-out tasks, with one or several dialogues of each task."""

    version: int
    """0 is the base; ``i`` is the policy after ``i`` trainings."""
    draws: Mapping[str, Sequence[Draw]]
    """Dialogues of each task, in the order of their samples. A failed or ungraded dialogue scores 0."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Means of the other metrics of grades, such as turns and the share of tests passed."""
    left_out: AbstractSet[str] = frozenset()
    """Tasks that can't be graded, whatever an agent does."""
    measures: AbstractSet[str] = frozenset()
    """Measures of the scores, in environments with several."""
    label: str = ""
    store: Path = Path()
    """Store of a benchmark's dialogues. The page is written next to the last policy's."""
    fresh: bool = False
    """True if no dialogue was played by an earlier command."""
    similarity: Similarity | None = None
    """Similarity of answers for the vote over several dialogues."""
    models: tuple[str, ...] = ()
    """Names or folders of the models, for their tokenizers; empty for a server."""
    cost: float | None = None
    """Cost of all dialogues, in the currency of the prices; ``None`` without prices, or if some were reused."""
    picked: Estimate | None = None
    """Score of the dialogues that a judge picked, if the settings have a judge."""
    unreadable: int = 0
    """Tasks without a readable reply of the judge."""
    usage: str = ""
    """Requests and tokens of a server."""
    wins: Comparison | None = None
    """Comparison with the evaluation ``against`` of the settings."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Value of the column ``by`` of each task."""

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.draws)

    @property
    def failed(self) -> int:
        """Number of failed or ungraded dialogues."""
        return sum(draw.failed for draws in self.draws.values() for draw in draws)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Mean score of each task."""
        return {task: fmean(draw.score for draw in draws) for task, draws in self.draws.items()}

    @property
    def score(self) -> float:
        return sum(self.scores.values()) / self.n

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95% interval of the score over tasks."""
        return mean_interval([*self.scores.values()], seed=0)

    @property
    def tokens(self) -> float:
        """Mean number of sampled tokens of a dialogue; a failed dialogue has 0."""
        tokens = [draw.tokens for draws in self.draws.values() for draw in draws]
        return sum(tokens) / len(tokens)

    @cached_property
    def points(self) -> list[Point]:
        """Metrics of the first 1, 2, ... dialogues of each task."""
        assert self.similarity is not None, "the environment has a vote"
        return scaling(self.draws, self.similarity)

    @cached_property
    def by_value(self) -> dict[str, tuple[int, Estimate]]:
        """Number and score of the tasks with each value of the column, in the order of the values."""
        groups: dict[str, list[float]] = {}
        for task in sorted(self.scores, key=lambda task: self.columns.get(task, "")):
            if task in self.columns:
                groups.setdefault(self.columns[task], []).append(self.scores[task])
        return {value: (len(scores), estimate(scores)) for value, scores in groups.items()}

    def compare(self, baseline: "Evaluation") -> Comparison:
        """Compare the scores on common tasks. Raises ``UserError`` without a common task."""
        common = sorted(self.scores.keys() & baseline.scores.keys())
        if not common:
            raise UserError(
                f"{self.label} and {baseline.label} have no graded task in common",
                "evaluate more tasks, or each policy by itself",
            )
        pairs = [(self.scores[task], baseline.scores[task]) for task in common]
        return Comparison(baseline.label, pairs, len(self.left_out | baseline.left_out))


def compare_stores(store: Path, baseline: Path) -> Comparison:
    """Compare the first dialogues of the newest evaluations in two stores.

    Raises ``UserError`` if the evaluations have different tasks or measures.
    """
    results = list[Evaluation]()
    for file in (store, baseline):
        with Store.open(file, read_only=True) as opened:
            attempt = opened.iterations(EVALUATION)[-1]
            results.append(evaluation(opened, attempt, label=file.name))
    policy, rival = results
    # Tasks that one side could not grade are not compared, but both must have drawn them.
    tasks = [result.draws.keys() | result.left_out for result in results]
    measures = policy.measures | rival.measures
    if tasks[0] != tasks[1] or not policy.draws.keys() & rival.draws.keys() or len(measures) > 1:
        differing = f"measures: {', '.join(measures)}" if len(measures) > 1 else "tasks"
        problem = f"against={rival.label} was evaluated with other {differing}"
        raise UserError(problem, "evaluate both policies with the same settings, to the end")
    return policy.compare(rival)


def evaluation(store: Store, version: int, samples: int = 1, label: str = "") -> Evaluation:
    """Return the results of the first ``samples`` dialogues of each held-out task. Raises ``UserError`` for none."""
    metrics = store.metrics(version, EVALUATION).values()
    return Evaluation(
        version,
        held_out_draws(store, version, samples),
        grade_means(store, version, EVALUATION, samples),
        left_out(store, version),
        {str(values[MEASURE]) for values in metrics if MEASURE in values},
        label,
    )


def held_out_draws(store: Store, version: int, samples: int) -> dict[str, list[Draw]]:
    """Return the first dialogues of a policy on each task, in the order of their samples.

    A failed or ungraded dialogue scores 0. Failed, ungraded and truncated dialogues have no answer. Tasks that can't be
    graded, whatever an agent does, are left out. Raises ``UserError`` if none is left.
    """
    metrics, skipped = store.metrics(version, EVALUATION), left_out(store, version)
    failed = Draw(None, 0.0, 0, failed=True)
    failures = list(store.failures(version, EVALUATION))
    draws = {key: failed for key, _ in failures if int(key.sample) < samples}
    for tree in store.outlines(version, EVALUATION):
        for outcome, path in tree.trajectories():
            if outcome.sample < samples:
                key = ItemKey(version, EVALUATION, tree.task, f"{outcome.sample:04d}")
                if outcome.score is None:
                    draws[key] = failed
                    continue
                answer = None if outcome.ending == LENGTH else outcome.answer
                tokens, share = int(metrics[key].get("tokens", 0)), metrics[key].get("fraction")
                fraction = None if share is None else float(share)
                draws[key] = Draw(answer, outcome.score, tokens, fraction, text=path[-1].text)
    by_task: dict[str, list[Draw]] = {}
    for key in sorted(draws):
        if key.task not in skipped:
            by_task.setdefault(key.task, []).append(draws[key])
    if not by_task:
        reason = next(iter(failures), (None, "there are none"))[1]
        raise UserError(f"no held-out task has a score: {reason}", "use other tasks")
    return by_task


def left_out(store: Store, iteration: int, stage: str = EVALUATION) -> set[str]:
    """Return the tasks with a dialogue that was left out, because no answer to them can be graded."""
    failures = store.failures(iteration, stage)
    return {key.task for key, reason in failures if reason.startswith(LEFT_OUT)}


def grade_means(
    store: Store, iteration: int, stage: str, samples: int | None = 1
) -> dict[str, float]:
    """Return the means of the metrics of grades over the first ``samples`` dialogues of each task that did not fail.

    ``cut_off`` is the share of messages that were cut off, ``left_out`` the number of tasks that can't be graded.
    """
    values: dict[str, list[float]] = {}
    skipped = left_out(store, iteration, stage)
    for key, metrics in store.metrics(iteration, stage).items():
        if key.task and key.task not in skipped and (samples is None or int(key.sample) < samples):
            for name, value in metrics.items():
                if name not in ("tokens", "seconds") and not isinstance(value, str):
                    values.setdefault(name, []).append(float(value))
    messages = sum(values.pop(MESSAGES, ()))
    means = {
        name: sum(metric_values) / len(metric_values) for name, metric_values in values.items()
    }
    by_type = {name: means.pop(name) for name in sorted(means) if name.startswith(SUCCESS_OF)}
    means |= {**by_type, TYPE_MEAN: fmean(by_type.values())} if by_type else {}
    means |= {"left_out": len(skipped)} if skipped else {}
    return means | ({CUT_OFF: sum(values[CUT_OFF]) / messages} if messages else {})
