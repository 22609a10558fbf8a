"""What a report page shows of a run, as plain data.

:class:`RunReport` is the whole; whoever has a run folder fills it in, and ``page.write_page`` shows
it. Nothing here is text that was decided to be safe: model-written strings are passed as they are.
Iteration 0 is the policy before training; iteration ``i`` is the policy after the ``i``-th round.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from coterie.reports.sections import Section

POINTS_PER_ITERATION = 600
"""At most so many samples of an iteration are drawn as points."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the settings table."""

    name: str
    """Dotted name, as in the config (``reward.token_weight``)."""
    value: str


@dataclass(frozen=True, slots=True)
class IterationPoint:
    """The policy of one iteration on the held-out tasks."""

    iteration: int
    score: float
    score_low: float
    """Lower end of the 95% interval of the score."""
    score_high: float
    """Upper end of the 95% interval of the score."""
    tokens: float
    """Mean number of sampled tokens of a dialogue."""
    n: int
    """Number of held-out tasks."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """The mean of one term of the reward."""

    name: str
    """``task``, ``tokens``, ``loss``, ..."""
    mean: float
    """With its sign and coefficient: the parts add up to the total."""


@dataclass(frozen=True, slots=True)
class RewardMeans:
    """Mean reward of an iteration's samples, by part."""

    iteration: int
    over: Literal["all", "selected"]
    """All samples of the iteration, or those selected for training."""
    parts: tuple[RewardPart, ...]
    total: float


@dataclass(frozen=True, slots=True)
class RewardSample:
    """One sampled dialogue of an iteration, as a point of reward against tokens."""

    iteration: int
    reward: float
    tokens: int
    score: float
    selected: bool


@dataclass(frozen=True, slots=True)
class GradeMeans:
    """What dialogues with a person were like: means of what their grades say."""

    of: str
    """Which dialogues: ``training``, ``held out, base``, ..."""
    dialogues: int
    score: float
    means: Mapping[str, float]
    """``turns`` of the agent, ``fraction`` of tests passed, ``leaks`` (replies that quote the reference), ..."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """What an iteration's dialogues were penalised for besides being wrong."""

    iteration: int
    dialogues: int
    """How many got a reward; those of a tree that say the same count once."""
    truncated: int
    """Dialogues that ended in a turn without end."""
    leaks: int
    """Utterances that spoke for another agent, over all dialogues that hold them."""
    repeats: int
    """Utterances that repeated an earlier one, over all dialogues that hold them."""
    failed: int
    """Dialogues that failed while they were played."""


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """The text of one token. A turn's pieces, joined, are the turn's text."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of a tool, on the time line of its turn."""

    tool: str
    arguments: str
    seconds: float
    error: bool
    left_out: int
    """Characters of its result that were cut out."""
    left: float
    """When it began, in percent of the time that the turn's calls took together."""
    width: float
    """How long it took, likewise."""


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A task of a plan, as a box: its upper left corner in pixels."""

    id: str
    label: str
    text: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class PlanArrow:
    """From a task to one that waits for it, in pixels."""

    x1: int
    y1: int
    x2: int
    y2: int


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as a graph."""

    nodes: tuple[PlanNode, ...]
    arrows: tuple[PlanArrow, ...]
    width: int
    height: int
    levels: int


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn of a dialogue."""

    speaker: str
    pieces: tuple[TokenPiece, ...]
    tokens: int
    calls: tuple[CallView, ...] = ()
    plans: tuple[PlanView, ...] = ()


@dataclass(frozen=True, slots=True)
class DialogueView:
    """One dialogue on a task."""

    iteration: int
    turns: tuple[TurnView, ...]
    answer: str | None
    """The final answer; ``None`` if the agents never agreed on one."""
    score: float | None
    """``None`` if it could not be graded."""
    tokens: int


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What one agent knows and the others don't."""

    agent: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One task, with a dialogue before training and one after it."""

    task: str
    question: str
    gold: tuple[str, ...]
    """The right answer and its aliases."""
    facts: tuple[AgentFacts, ...]
    before: DialogueView | None
    after: DialogueView | None


@dataclass(frozen=True, slots=True)
class Sibling:
    """The other side of a preference pair: a turn after the same turns."""

    number: int
    difference: float
    """Of the two values, above 0."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the dialogue that ends in a turn came out."""

    end: str
    """``agreed``, ``no turns left``, ``cut off``."""
    answer: str | None
    score: float | None
    """``None`` if it could not be graded."""


@dataclass(frozen=True, slots=True)
class TreeTurn:
    """A turn of a tree of dialogues, and all that was said after it."""

    number: int
    speaker: str
    text: str
    value: float | None
    """Mean reward of the dialogues through it; ``None`` if none has a reward."""
    visits: int
    """How many dialogues went through it."""
    chosen_over: tuple[Sibling, ...] = ()
    rejected_for: tuple[Sibling, ...] = ()
    ending: Ended | None = None
    children: tuple["TreeTurn", ...] = ()

    @property
    def chain(self) -> tuple["TreeTurn", ...]:
        """This turn and those after it, up to the next one that has not exactly one child."""
        turns = [self]
        while len(turns[-1].children) == 1:
            turns += turns[-1].children
        return tuple(turns)

    @property
    def is_paired(self) -> bool:
        return bool(self.chosen_over or self.rejected_for)

    @property
    def leads_to_pairs(self) -> bool:
        return any(child.is_paired or child.leads_to_pairs for child in self.children)


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The tree of dialogues on one task in an iteration of preference training."""

    iteration: int
    task: str
    question: str
    gold: tuple[str, ...]
    """The right answer and its aliases."""
    agents: tuple[str, ...]
    value: float | None
    """Mean reward of all its dialogues."""
    visits: int
    pairs: int
    """How many preference pairs were made of it."""
    turns: tuple[TreeTurn, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Items of one stage that failed for the same reason."""

    iteration: int
    stage: str
    reason: str
    count: int
    example: str = ""


@dataclass(frozen=True, slots=True)
class StageTime:
    """Wall-clock time of one stage in one iteration."""

    iteration: int
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Counts:
    """How much work the run has done, over all iterations."""

    tasks: int
    samples: int
    selected_rows: int
    trained_tokens: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """All that the page shows. Every sequence may be empty: a page can be written at any time."""

    title: str
    command: str
    model: str
    seed: int
    metric: str
    """Name of the score (``F1``)."""
    planned: int
    """How many iterations of training the run is to have."""
    counts: Counts
    settings: tuple[Setting, ...] = ()
    iterations: tuple[IterationPoint, ...] = ()
    rewards: tuple[RewardMeans, ...] = ()
    conduct: tuple[Conduct, ...] = ()
    grades: tuple[GradeMeans, ...] = ()
    """In place of rewards, conduct and samples, for environments that grade a dialogue as a whole."""
    samples: tuple[RewardSample, ...] = ()
    """All samples; the page draws a :func:`subsample` of them."""
    examples: tuple[Example, ...] = ()
    trees: tuple[TaskTree, ...] = ()
    sections: "tuple[Section, ...]" = ()
    """What the recipe shows besides."""
    failures: tuple[Failure, ...] = ()
    timings: tuple[StageTime, ...] = ()


def subsample(
    samples: Iterable[RewardSample], *, seed: int, limit: int = POINTS_PER_ITERATION
) -> dict[int, list[RewardSample]]:
    """At most ``limit`` samples of each iteration, drawn evenly, in their order, by iteration."""
    groups: dict[int, list[RewardSample]] = {}
    for sample in samples:
        groups.setdefault(sample.iteration, []).append(sample)
    for iteration, group in groups.items():
        if len(group) > limit:
            rng = random.Random(f"report/{seed}/{iteration}")
            groups[iteration] = [group[i] for i in sorted(rng.sample(range(len(group)), limit))]
    return dict(sorted(groups.items()))
