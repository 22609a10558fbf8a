"""DensePolicy's search of a task's tree: node values, instructions that diversify siblings, and the search itself.

The next node is chosen by :meth:`DenseSearch.plan` with :meth:`DenseSearch.priority`, and its values are those of
:class:`TreeValues`.

Each agent step has a label in [0, B) that determines how it is sampled, so a path is a sequence of labels (an index).
The first search plays one rollout for each label of the first step, greedily afterwards. Each later search starts at
the node of the highest priority and plays a window of new random indices. A node's child with a label is sampled once.
(The released code never accepts a rollout after the first search, and counts passes of a node instead of leaves.)
Only the prompt of an instructed step has the instruction: later prompts and training do not (:func:`drop_requests`).
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from coterie.config.settings import Settings, key
from coterie.record.tree import Tree
from coterie.record.turn import Message, Part, Turn
from coterie.rollout.positions import Position, gather_all
from coterie.rollout.samplers import AgentContext, CandidateSampler, Prompt, Response, TokenSampler
from coterie.rollout.tree_search import Rollout, Search

ValueRule = Literal["rollouts", "children"]


@dataclass(frozen=True, slots=True)
class NodeValue:
    """Value of a node, from the rollouts through it."""

    mean: float
    """Value, in units of reward."""
    visits: int
    """Number of distinct leaves below it."""
    distance: float
    """Mean number of agent turns from it to the end."""


class TreeValues(dict[str, NodeValue]):
    """Values by node: turns of the agent, and the root."""

    def __init__(self, root: str, rule: ValueRule = "rollouts") -> None:
        self.root, self.rule = root, rule
        self.children: dict[str, list[str]] = {}
        """Children of each node on a rollout."""
        self.parents: dict[str, str] = {}
        self._sums: dict[str, tuple[float, int, int]] = {}
        """Sum of rewards, number of rollouts, and sum of distances to the end."""
        self._leaves: set[str] = set()

    def add(self, path: Sequence[str], reward: float) -> None:
        """Add a rollout: ids of the agent's turns, from first to last."""
        # A path shares its beginning with earlier ones; only new nodes get a parent.
        for parent, node in zip((self.root, *path), path, strict=False):
            if node not in self.parents:
                self.parents[node] = parent
                self.children.setdefault(parent, []).append(node)
        leaf = path[-1] if path else self.root
        # A repeated path ends in a known leaf, which must not count as another visit.
        new = leaf not in self._leaves
        self._leaves.add(leaf)
        # From the leaf upward, so that the children's values are current before their parent's.
        for distance, node in enumerate((*reversed(path), self.root)):
            total, count, steps = self._sums.get(node, (0.0, 0, 0))
            total, count, steps = total + reward, count + 1, steps + distance
            self._sums[node] = total, count, steps
            # DensePolicy's code takes the unweighted mean of the explored children.
            below = self.children.get(node, []) if self.rule == "children" else []
            mean = sum(self[c].mean for c in below) / len(below) if below else total / count
            visits = (self[node].visits if node in self else 0) + new
            self[node] = NodeValue(mean, visits, steps / count)

    def siblings(self, node: str) -> list[NodeValue]:
        """Return the values of a node's siblings."""
        if node not in self.parents:
            return []
        return [self[sibling] for sibling in self.children[self.parents[node]] if sibling != node]


REQUEST = "request"
"""Source of the prompt part with the instruction."""
Kind = Literal["fixed_instruct", "contrast_instruct", "meta_instruct"]
WORSE = (
    "Write a message that is allowed, but a less efficient or less careful next step than your best one. Do not say "
    "that it is."
)
REWRITE = {
    True: "Your next message would be:\n{step}\nWrite a better one in its place, and nothing else.",
    False: "Your next message would be:\n{step}\nWrite a worse one in its place, which a careless person might write, "
    "and nothing else.",
}
PRINCIPLE = {
    True: "Before you go on: write one sentence that says what makes a next step good here. Write nothing else.",
    False: "Before you go on: write one sentence that says which mistake is easily made here. Write nothing else.",
}
FOLLOW = {
    True: "Write your next message so that it follows this: {principle}",
    False: "Write your next message so that it makes this mistake: {principle} Do not say that it does.",
}


@dataclass(frozen=True, slots=True)
class InstructedSampler:
    """Sampler with an instruction in each prompt; ``plain`` samples the step that ``contrast_instruct`` rewrites."""

    sampler: TokenSampler
    plain: TokenSampler
    kind: Kind
    better: bool = False
    """Request a better step instead of a worse one."""

    async def candidates(
        self, prompt: Prompt, context: AgentContext, seeds: Sequence[int], draws: Sequence[int] = ()
    ) -> list[Response]:
        """Sample one step for each seed."""
        pairs = zip(seeds, list(draws) or [prompt.draw] * len(seeds), strict=True)
        return await gather_all([self._sample(prompt, context, *pair) for pair in pairs])

    async def _sample(
        self, prompt: Prompt, context: AgentContext, seed: int, draw: int
    ) -> Response:
        instructed = add_request(prompt, await self._request(prompt, context, seed))
        (response,) = await self.sampler.candidates(instructed, context, [seed], [draw])
        return response

    async def _request(self, prompt: Prompt, context: AgentContext, seed: int) -> str:
        if self.kind == "fixed_instruct":
            return WORSE
        # The step to rewrite serves only as part of the request and is not added to the tree.
        if self.kind == "contrast_instruct":
            (step,) = await self.plain.candidates(prompt, context, [seed])
            return REWRITE[self.better].format(step=step.turn.text.strip())
        # The model first writes a principle in a separate reply, which is not added to the tree
        # either.
        question = add_request(prompt, PRINCIPLE[self.better])
        (principle,) = await self.sampler.candidates(question, context, [seed])
        # The principle is put on one line, since it becomes part of a sentence.
        return FOLLOW[self.better].format(principle=" ".join(principle.turn.text.split()))


def add_request(prompt: Prompt, request: str) -> Prompt:
    """Append a request to the last message of a prompt."""
    *context, last_message = prompt.messages
    # A message that refers to a turn has its text in the tree; the instructed copy is literal.
    parts = (
        last_message.parts
        if last_message.turn is None
        else prompt.tree.turns[last_message.turn].parts
    )
    instructed = Message(last_message.role, (*parts, Part(f"\n\n{request}", source=REQUEST)))
    return replace(prompt, messages=(*context, instructed))


def drop_requests(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Recontext rule: remove requests from messages."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != REQUEST)) for m in messages
    )


def instructed_samplers(
    kind: Kind, greedy: TokenSampler, sampled: TokenSampler, count: int
) -> list[CandidateSampler]:
    """Return samplers by label: greedy, then better and worse steps in turn (``fixed_instruct``: only worse ones)."""
    instructed = [
        InstructedSampler(sampled, greedy, kind, kind != "fixed_instruct" and bool(label % 2))
        for label in range(1, count)
    ]
    return [greedy, *instructed]


CONTRAST, DEPTH, NOVELTY = 0.8, 0.2, 2.0
"""Weights of the terms of a node's priority (DensePolicy's code)."""
Children = Literal[
    "temperature", "sampling", "fixed_instruct", "contrast_instruct", "meta_instruct"
]
PairsAmong = Callable[[Sequence[NodeValue]], int]
"""(values of a node's children) -> number of preference pairs among them."""


class DenseSearchSettings(Settings):
    """Growth of one task's tree."""

    max_children: int = key(
        10, "Maximum children of a node (B).", source="DensePolicy: MATH 10, AlfWorld 8", ge=2
    )
    children: Children = key(
        "temperature",
        "Difference between children. `temperature`: the first is greedy, the others cycle through `temperatures`. "
        "`sampling`: all are sampled at temperature 1. Otherwise the first is greedy, and the others are instructed "
        "to write a worse step (`fixed_instruct`), a better or worse step than the greedy one (`contrast_instruct`), "
        "or to follow a principle that the model writes first (`meta_instruct`). Training removes the instructions.",
        source="DensePolicy: temperature",
    )
    temperatures: tuple[Annotated[float, Field(ge=0)], ...] = key(
        (1.0, 0.5, 0.7),
        "Temperatures of the children after the first, in a cycle.",
        source="DensePolicy's code: 1.0, 0.5, 0.7",
        min_length=1,
    )
    rollouts_per_search: int = key(
        8,
        "Rollouts of each search after the first.",
        source="DensePolicy: 8; GSM8K 16, BabyAI 15, M3ToolEval 5",
        ge=1,
    )
    pairs: int = key(
        512,
        "Number of pairs that completes a tree.",
        source="DensePolicy: 512; GSM8K, BabyAI and M3ToolEval 256",
        ge=1,
    )
    rollouts_per_task: int = key(
        1000, "Number of rollouts that completes a tree.", source="DensePolicy's code: 1000", ge=2
    )
    value: ValueRule = key(
        "rollouts",
        "Value of a node: mean reward of the `rollouts` through it, or mean value of its `children`.",
        source="DensePolicy's code: children",
    )

    def temperature(self, label: int) -> float:
        if self.children == "sampling":
            return 1.0
        if self.children == "temperature" and label:
            return self.temperatures[(label - 1) % len(self.temperatures)]
        # Label 0 is greedy; instructed children are sampled at temperature 1.
        return float(label > 0)


@dataclass(eq=False)
class DenseSearch(Search):
    """Search of one task's tree for one agent."""

    agent: str
    samplers: Sequence[CandidateSampler]
    settings: DenseSearchSettings
    pairs_among: PairsAmong
    steps: int
    """Maximum agent steps of a path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # An upper bound: each search adds at least one rollout, and `is_done` counts these.
        self.searches = self.settings.rollouts_per_task
        self.values = TreeValues(self.tree.root, self.settings.value)
        self.pairs: dict[str, int] = {}
        """Number of pairs among the children of each node."""
        self._labels: dict[str, tuple[int, ...]] = {self.tree.root: ()}
        """Labels of the first path to each node."""
        # Child by (node, label): a label that was sampled once takes the same turn again.
        self._child: dict[tuple[str, int], str] = {}
        # Last agent turns of finished rollouts, below which nothing can be sampled.
        self._ended: set[str] = set()
        self._starts: dict[str, int] = {}
        """Number of searches that started at each node."""
        self._indices: set[tuple[int, ...]] = set()
        """Indices of rollouts, up to their ends."""
        # Rollouts of an interrupted run count as if this process had played them.
        self.add(self.rollouts)

    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        """Choose the next node: the first by priority that has new indices below it. Return rollouts from it."""
        # The first search varies only the first step.
        if not self.rollouts:
            node, count = self.tree.root, self.settings.max_children
            indices = [self._first(label) for label in range(count)]
            return [Rollout(search, n, node, labels=labels) for n, labels in enumerate(indices)]
        if self.is_done():
            return []
        # A stored path whose environment no longer repeats it has no position to start from.
        nodes = self.branches.nodes()
        for node in self.best_first(rng):
            if node in nodes and (indices := self.new_indices(node, rng)):
                return [Rollout(search, n, node, labels=labels) for n, labels in enumerate(indices)]
        # No random index below any open node was new, so the tree counts as complete.
        return []

    def is_done(self) -> bool:
        """Return True if the tree has its pairs or its rollouts."""
        s = self.settings
        return sum(self.pairs.values()) >= s.pairs or len(self.rollouts) >= s.rollouts_per_task

    def best_first(self, rng: random.Random) -> list[str]:
        """Return the nodes that have not ended, highest priority first, ties in random order."""
        open_nodes = (node for node in self.values if node not in self._ended)
        order = [(-self.priority(node), rng.random(), node) for node in open_nodes]
        return [node for *_, node in sorted(order)]

    def priority(self, node: str) -> float:
        """Return the priority of a node, 0.8 C^(1/4) + 0.2 D/L + 2 sqrt(1 + N) / (2 + N).

        C is the largest difference between its value and a sibling's, D its mean distance to the end, L the maximum
        number of steps, and N the number of its visits and of searches that started at it.
        """
        value = self.values[node]
        siblings = self.values.siblings(node)
        contrast = max((abs(value.mean - sibling.mean) for sibling in siblings), default=0.0)
        count = value.visits + self._starts.get(node, 0)
        return (
            CONTRAST * contrast**0.25
            + DEPTH * value.distance / self.steps
            + NOVELTY * math.sqrt(1 + count) / (2 + count)
        )

    def new_indices(self, node: str, rng: random.Random) -> list[tuple[int, ...]]:
        """Draw up to ``rollouts_per_search`` random indices below a node that earlier rollouts do not cover."""
        # Labels from the root to the node. The remaining labels are drawn uniformly.
        s, prefix = self.settings, self._labels[node]
        # A dict drops repeated indices and keeps their order, which a set would not.
        indices = {
            (*prefix, *rng.choices(range(s.max_children), k=self.steps - len(prefix))): None
            for _ in range(2 * s.rollouts_per_search)
        }
        new = [index for index in indices if not self.is_covered(node, index)]
        return new[: min(s.rollouts_per_search, s.rollouts_per_task - len(self.rollouts))]

    def is_covered(self, node: str, index: Sequence[int]) -> bool:
        """Return True if a rollout with this index, which passes ``node``, would only repeat earlier samples."""
        # Follow the existing nodes. A path that ended early covers all indices that begin with its
        # own.
        for label in index[len(self._labels[node]) :]:
            child = self._child.get((node, label))
            if child is None:
                return False
            if child in self._ended:
                return True
            node = child
        # All labels were sampled, so an earlier rollout took this index.
        return True

    # Hooks of `Search`, which it calls at each step of a rollout.

    def samplers_of(self, rollout: Rollout, position: Position) -> Mapping[str, CandidateSampler]:
        return {self.agent: self.samplers[self._label(rollout, position)]}

    def seed_of(self, rollout: Rollout, position: Position, index: int) -> int:
        """Return the seed of a node and label, which all rollouts share."""
        return int(self.key("dense", self._node(position), self._label(rollout, position))[:15], 16)

    def known_turn(self, rollout: Rollout, position: Position, index: int) -> Turn | None:
        """Return the node's child with the rollout's next label, if any."""
        child = self._child.get((self._node(position), self._label(rollout, position)))
        return None if child is None else self.tree.turns.get(child)

    def add(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        """Take rollouts into the labels, values and numbers of pairs, from which the next node is chosen."""
        changed: dict[str, None] = {}
        # The rollouts of a search share one start node, which counts once. The root's count stays
        # 0.
        for node in {r.search: r.start for r in rollouts}.values():
            self._starts[node] = self._starts.get(node, 0) + (node != self.tree.root)
        for path, rollout in distinct_rollouts(self.tree, rollouts, self._indices):
            nodes = (self.tree.root, *path)
            # Labels count agent steps only, so the n-th agent turn belongs to the n-th label.
            for step, (parent, node) in enumerate(zip(nodes, path, strict=False)):
                self._child[parent, rollout.labels[step]] = node
                # Equal texts of two labels are one node, which keeps the labels of its first path.
                self._labels.setdefault(node, rollout.labels[: step + 1])
            self._ended.add(nodes[-1])
            self.values.add(path, rollout.reward or 0.0)
            changed |= dict.fromkeys(nodes[:-1])
        # Pairs are formed among siblings, so only the nodes above new leaves can have new ones.
        for node in changed:
            below = [self.values[child] for child in self.values.children[node]]
            self.pairs[node] = self.pairs_among(below)
        return rollouts

    def _first(self, label: int) -> tuple[int, ...]:
        """Return the index of a rollout of the first search: greedy after its first step, or sampled with one label."""
        rest = label if self.settings.children == "sampling" else 0
        return (label, *(rest,) * (self.steps - 1))

    def _node(self, position: Position) -> str:
        """Return the node of a position."""
        # Observations are not nodes of this search, so go back to the last agent turn.
        agent_turns = (t.id for t in reversed(position.state.turns) if t.speaker.kind == "agent")
        return next(agent_turns, self.tree.root)

    def _label(self, rollout: Rollout, position: Position) -> int:
        """Return the label of a rollout's next agent step."""
        return rollout.labels[sum(turn.speaker.kind == "agent" for turn in position.state.turns)]


def distinct_rollouts(
    tree: Tree, rollouts: Sequence[Rollout], indices: set[tuple[int, ...]]
) -> Iterator[tuple[list[str], Rollout]]:
    """Yield finished rollouts with new indices up to their ends, each with its agent turns; add to ``indices``."""
    for rollout in rollouts:
        if rollout.leaf is None:
            continue
        path = agent_path(tree, rollout.leaf)
        # Labels after the end of the path were never used.
        index = rollout.labels[: len(path)]
        if index not in indices:
            indices.add(index)
            yield path, rollout


def agent_path(tree: Tree, leaf: str) -> list[str]:
    """Return the ids of the agent's turns on the path to a leaf."""
    return [turn.id for turn in tree.path(leaf) if turn.speaker.kind == "agent"]
