"""Growth of one task's tree by rollouts that branch from a node, and Optima's search (arXiv 2410.08115, section 3.3).

A search chooses a node (first the root), plays rollouts from it to the end, and adds their rewards to the values of all
nodes on their paths. Samples depend only on the task's key and the tree, so an interrupted search is repeated exactly.
A new turn may be *merged* with a sibling: the rollout then continues from that sibling. (Optima's released code
continues from the new text, so its turns do not follow from their ancestors in the tree.)
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from rapidfuzz.distance import Levenshtein

from coterie.config.settings import Settings, key
from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.protocol import Grade
from coterie.record.tree import STOPPED, Credit, Outcome, Tree
from coterie.record.turn import Turn, digest
from coterie.rollout.branches import Branches
from coterie.rollout.episodes import environment_credit, final_credit
from coterie.rollout.positions import Position, chain, context_at, gather_all, sample_in_context
from coterie.rollout.samplers import CandidateSampler, OutOfContext, Response

Merge = Callable[[Turn, Sequence[Turn]], Turn | None]
"""(new turn, siblings of the same speaker) -> the sibling to merge with, or ``None`` for a new node."""
Seed = Callable[["Rollout", Position, int], int]
"""(rollout, position, index of the actor among the acting ones) -> seed of the rollout's next turn."""
Samplers = Callable[["Rollout", Position], Mapping[str, CandidateSampler]]
Known = Callable[["Rollout", Position, int], Turn | None]
"""(rollout, position, index of the actor) -> the existing turn that the rollout takes there, if any."""
Stops = Callable[["Rollout", Position], bool]
"""(rollout, position) -> True if the rollout is not continued from there."""
Responses = tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A path of a search, from its start node to the end."""

    search: int
    number: int
    start: str
    leaf: str | None = None
    """Id of the last turn; ``None`` until the end, and after a failure."""
    reward: float | None = None
    """``None`` until the end, after a failure, and if the rollout was stopped."""
    failure: str | None = None
    sampled: int = 0
    """Number of sampled tokens, including merged turns."""
    labels: tuple[int, ...] = ()
    """Child label at each agent step from the root, in trees with labels."""
    branch_of: tuple[int, int] | None = None
    """Search and number of the rollout that it is an alternative to from its start node on, in trees of groups."""
    actors: int = 0
    """Number of actors that act at the start node, in trees of groups."""
    measures: Mapping[str, float | int | str] = field(default_factory=dict, hash=False)
    """Metrics of the environment's grade, in trees of groups."""


def never_merge(turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
    """Merge only turns with equal tokens, which are one node anyway."""
    return None


@dataclass(eq=False)
class TreeGrower:
    """Grower of one tree."""

    branches: Branches
    samplers: Samplers
    seed: Seed
    merge: Merge = never_merge
    known: Known = lambda *_: None
    stops: Stops = lambda *_: False

    async def play(self, node: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Play rollouts from a node to the end; failed rollouts have a reason. Raises ``EngineGone``."""

        async def work() -> list[Rollout]:
            return await self._play(await self.branches.position(node), rollouts)

        return await self._or_failures(work(), rollouts)

    async def _or_failures(
        self, work: Coroutine[Any, Any, list[Rollout]], rollouts: Sequence[Rollout]
    ) -> list[Rollout]:
        """Await the rollouts; if the engine or the environment fails, all of them fail."""
        try:
            return await work
        except EngineGone:
            # Without an engine no rollout can continue, so the error must end the search.
            raise
        except EngineError as error:
            return [replace(rollout, failure=str(error)) for rollout in rollouts]

    async def _play(self, position: Position, rollouts: Sequence[Rollout]) -> list[Rollout]:
        if position.state.end is not None:
            return [replace(rollout, leaf=position.node) for rollout in rollouts]
        if stopped := [rollout for rollout in rollouts if self.stops(rollout, position)]:
            rest = [rollout for rollout in rollouts if rollout not in stopped]
            # What fails later is no failure of the stopped ones.
            results = await self._or_failures(self._play(position, rest), rest) if rest else []
            return [*(replace(rollout, leaf=position.node) for rollout in stopped), *results]
        try:
            # One column per actor, with a response for each rollout.
            actors = enumerate(self.branches.next_actors(position))
            columns = await gather_all(
                [self._responses(position, rollouts, actor, index) for index, actor in actors]
            )
        except OutOfContext as error:  # without an earlier turn of an agent, the rollouts fail
            leaf = self.branches.cut(position, error).node
            return [replace(rollout, leaf=leaf) for rollout in rollouts]
        # Transposed: one tuple of simultaneous responses for each rollout.
        samples: list[Responses] = list(zip(*columns, strict=True))
        merged = [self._add(position, responses) for responses in samples]
        # Rollouts that are at the same node now, also by merging, step the environment once.
        groups: dict[str, tuple[Responses, list[Rollout]]] = {}
        for rollout, responses, nodes in zip(rollouts, samples, merged, strict=True):
            sampled = rollout.sampled + sum(response.tokens for response in responses)
            group = groups.setdefault(nodes[-1].turn.id, (nodes, []))[1]
            group.append(replace(rollout, sampled=sampled))
        # Several continuations need a session each, so the session is forked for them.
        several = len(groups) > 1
        work = [self._advance(position, nodes, group, several) for nodes, group in groups.values()]
        return [rollout for group in await gather_all(work) for rollout in group]

    async def _advance(
        self, position: Position, nodes: Responses, rollouts: Sequence[Rollout], others_follow: bool
    ) -> list[Rollout]:
        async def work() -> list[Rollout]:
            then = await self.branches.advance(position, nodes, others_follow=others_follow)
            return await self._play(then, rollouts)

        return await self._or_failures(work(), rollouts)

    async def _responses(
        self, position: Position, rollouts: Sequence[Rollout], actor: str, index: int
    ) -> list[Response]:
        """Return an actor's response in each rollout: a known turn, or a new sample.

        Rollouts with one sampler are sampled in one call, and equal seeds once.
        """
        responses: dict[int, Response] = {}
        groups: dict[int, tuple[CandidateSampler, dict[int, list[int]]]] = {}
        for number, rollout in enumerate(rollouts):
            # An existing turn costs no tokens.
            if (turn := self.known(rollout, position, index)) is not None:
                responses[number] = self._response(turn, 0)
                continue
            sampler, seed = (
                self.samplers(rollout, position)[actor],
                self.seed(rollout, position, index),
            )
            seeds = groups.setdefault(id(sampler), (sampler, {}))[1]
            seeds.setdefault(seed, []).append(number)
        work = [self._candidates(position, actor, *group) for group in groups.values()]
        for candidates in await gather_all(work):
            responses |= candidates
        return [responses[number] for number in range(len(rollouts))]

    async def _candidates(
        self,
        position: Position,
        actor: str,
        sampler: CandidateSampler,
        seeds: Mapping[int, Sequence[int]],
    ) -> dict[int, Response]:
        environment = self.branches.environment
        first_prompt = self.branches.prompt(position, actor, next(iter(seeds)), 0)
        context = context_at(environment, position, actor, first_prompt.messages)
        candidates = await sample_in_context(
            environment,
            position.state,
            first_prompt,
            lambda prompt: sampler.candidates(prompt, context, list(seeds)),
        )
        # Rollouts with equal seeds share one sample, whose tokens are counted once.
        return {
            number: response if number == numbers[0] else replace(response, tokens=0)
            for numbers, response in zip(seeds.values(), candidates, strict=True)
            for number in numbers
        }

    def _response(self, turn: Turn, tokens: int) -> Response:
        request = None if turn.prompt is None else self.branches.tree.requests[turn.prompt]
        return Response(turn, request, tokens)

    def _add(self, position: Position, responses: Responses) -> Responses:
        """Add responses to the tree, or replace them by the siblings that they are merged with."""
        tree, nodes = self.branches.tree, tuple[Response, ...]()
        for response in responses:
            # Simultaneous turns are chained, so this id depends on the nodes chosen before it.
            turn = chain(self.branches.environment, position, (*nodes, response))[-1]
            sibling = None
            # An equal turn is the same node already; only a new one can be merged.
            if turn.id not in tree.turns:
                siblings = [t for t in tree.children(turn.parent) if t.speaker == turn.speaker]
                sibling = self.merge(turn, siblings)
            if sibling is None:
                tree.add(turn, response.request)
                nodes += (replace(response, turn=turn),)
            else:
                nodes += (self._response(sibling, len(sibling.ids)),)
        return nodes


class SearchSettings(Settings):
    """Growth of one task's tree."""

    searches: int = key(8, "Searches of a task; each chooses a start node.",
                        source="Optima's code: 8", ge=1)  # fmt: skip
    rollouts_per_search: int = key(3, "Rollouts of a search, from its start node to the end.",
                        source="Optima's code: 3", ge=1)  # fmt: skip
    best: int = key(10, "Number of nodes of the highest value to draw from.",
                    source="Optima section 3.3 (10)", ge=1)  # fmt: skip
    softmax_temperature: float = key(
        1.0,
        "Temperature of the draw; lower values prefer the best node.",
        source="Optima section 3.3",
        gt=0,
    )
    choice_distance: float = key(
        0.25,
        "Minimum edit distance of a start node to earlier ones, divided by the length of the longer text plus 1.",
        source="Optima section 3.3 (0.25)",
        ge=0,
        le=1,
    )
    merge_distance: float = key(
        0.1,
        "An utterance is merged with a sibling if their edit distance, divided by its length plus 1, is below this. "
        "0: only equal ones.",
        source="Optima's code: 0.1",
        ge=0,
        le=1,
    )


@dataclass(frozen=True, slots=True)
class Value:
    """Value of a node, from the rollouts through it."""

    mean: float
    visits: int


def _same(new: str, old: str, distance: float) -> bool:
    # Optima's code divides by the length of the new text, not of the longer one.
    return Levenshtein.distance(new, old) / (len(new) + 1) < distance


def node_values(tree: Tree, rollouts: Iterable[Rollout]) -> dict[str, Value]:
    """Return the values of all nodes on finished rollouts, including the root."""
    rewards: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.leaf is not None and rollout.reward is not None:
            # Section 3.3: a node's value is the mean reward of all rollouts through it.
            for node in (tree.root, *(turn.id for turn in tree.path(rollout.leaf))):
                rewards.setdefault(node, []).append(rollout.reward)
    # ``fsum`` is exact, so the value does not depend on the order of the rollouts.
    return {
        node: Value(math.fsum(node_rewards) / len(node_rewards), len(node_rewards))
        for node, node_rewards in rewards.items()
    }


def choose(
    tree: Tree,
    values: Mapping[str, Value],
    starts: Sequence[str],
    settings: SearchSettings,
    rng: random.Random,
) -> str:
    """Choose the start node of the next search; the root for the first one, and without candidates.

    Candidates are nodes with a grandchild whose text is not similar to an earlier start node's.
    """

    def text(node: str) -> str:
        return "" if node == tree.root else tree.turns[node].text

    texts = [text(node) for node in dict.fromkeys(starts)]
    # Below other nodes a new rollout could differ in the last turn at most.
    parents = [node for node in values if _has_grandchild(tree, node)]
    # An earlier start node is similar to itself, so no node but the root is chosen twice.
    eligible = [node for node in parents if not _near(text(node), texts, settings)]
    if not eligible or not starts:
        return tree.root
    # Equal values are ordered by id, so that an interrupted run repeats the choice.
    best = sorted(eligible, key=lambda node: (-values[node].mean, node))[: settings.best]
    # Subtracting the maximum keeps ``exp`` in range and does not change the softmax.
    highest = values[best[0]].mean
    differences = (values[node].mean - highest for node in best)
    weights = [math.exp(difference / settings.softmax_temperature) for difference in differences]
    return rng.choices(best, weights)[0]


def _has_grandchild(tree: Tree, node: str) -> bool:
    return any(tree.children(child.id) for child in tree.children(node))


def _near(text: str, texts: Sequence[str], settings: SearchSettings) -> bool:
    return any(
        Levenshtein.distance(text, candidate) / (max(len(text), len(candidate)) + 1)
        < settings.choice_distance
        for candidate in texts
    )


@dataclass(frozen=True, slots=True)
class Judgment:
    """Reward of a path."""

    reward: float
    credit: tuple[Credit, ...] = ()
    """Credit to store: the reward's terms on the leaf, losses on the turns."""


PathJudge = Callable[[Tree, Sequence[Outcome]], Awaitable[list[Judgment]]]
"""(tree, finished paths) -> their rewards, in order; raises ``EngineError``."""
OnSearch = Callable[[Tree, Sequence[Rollout], Sequence[Credit]], None]
"""Callback after each search: (tree, new rollouts, their credit)."""


@dataclass(eq=False)
class Search(ABC):
    """Search of one task's tree. A subclass decides where rollouts begin, and their samplers and seeds."""

    branches: Branches
    judge: PathJudge
    _: KW_ONLY
    rollouts: list[Rollout] = field(default_factory=list)
    """Rollouts of finished searches, whose paths are in the tree."""
    seed: int = 0
    searches: int = field(init=False)

    def __post_init__(self) -> None:
        self.rollouts = list(self.rollouts)
        self.grower = TreeGrower(
            *(self.branches, self.samplers_of, self.seed_of, self.merge, self.known_turn),
            self.stops,
        )
        self.judgments: dict[str, Judgment] = {}
        self.grades: dict[str, Grade] = {}
        self.credited: set[str] = set()
        """Nodes whose rewards have been returned as credit."""

    @abstractmethod
    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        """Return the rollouts of a search, all from one node; empty when the tree is complete."""

    @abstractmethod
    def samplers_of(self, rollout: Rollout, position: Position) -> Mapping[str, CandidateSampler]:
        """Return the samplers of a rollout at a position, by actor."""

    @abstractmethod
    def seed_of(self, rollout: Rollout, position: Position, index: int) -> int:
        """Return the seed of a rollout's next turn; ``index`` is the actor's among the acting ones."""

    def merge(self, turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
        return never_merge(turn, siblings)

    def known_turn(self, rollout: Rollout, position: Position, index: int) -> Turn | None:
        """Return the existing turn that a rollout takes at a position, if any."""
        return None

    def stops(self, rollout: Rollout, position: Position) -> bool:
        """Return True if a rollout ends at a position although its environment goes on."""
        return False

    @property
    def tree(self) -> Tree:
        return self.branches.tree

    async def grow(self, record: OnSearch) -> None:
        """Run the remaining searches; ``record`` is called after each, also with failed rollouts."""
        # Rewards from the store: a leaf that is reached again is not judged again.
        for rollout in self.rollouts:
            if rollout.leaf is not None and rollout.reward is not None:
                self.judgments[rollout.leaf] = Judgment(rollout.reward)
        done = max((rollout.search for rollout in self.rollouts), default=-1) + 1
        try:
            # Compute the positions of a tree that was read.
            for leaf in dict.fromkeys(r.leaf for r in self.rollouts if r.leaf is not None):
                try:
                    await self.branches.position(leaf)
                except EngineGone:
                    raise
                except EngineError:  # the environment has changed: no search begins on that path
                    continue
            while done < self.searches and (planned := await self.plans(done)):
                for new, credit in await self.play(planned):
                    record(self.tree, new, credit)
                done += len(planned)
        finally:
            await self.branches.close()

    async def plans(self, search: int) -> list[list[Rollout]]:
        """Return the rollouts of the next searches, whose first is ``search``, that need no result of each other."""
        # The key contains the search, so an interrupted search repeats its random choices.
        planned = self.plan(search, random.Random(self.key("choose", search)))
        return [planned] if planned else []

    async def play(
        self, planned: Sequence[Sequence[Rollout]]
    ) -> list[tuple[Sequence[Rollout], list[Credit]]]:
        """Play the rollouts of searches at the same time, and add their rewards in the order of the searches."""
        plays = [self.grower.play(rollouts[0].start, rollouts) for rollouts in planned]
        results = list[tuple[Sequence[Rollout], list[Credit]]]()
        for finished in await gather_all(plays):
            # Branches finish in any order; results are stored in the order of the plan.
            results.append(await self._reward(sorted(finished, key=lambda r: r.number)))
            self.rollouts += results[-1][0]
        if any(rollout.leaf is None for rollouts, _ in results for rollout in rollouts):
            # Drop the turns of failed rollouts, so that the tree equals its record.
            leaves = [r.leaf for r in self.rollouts if r.leaf is not None]
            await self.branches.prune(path_tree(self.tree, leaves))
        return [(self.add(rollouts), credit) for rollouts, credit in results]

    def add(self, rollouts: Sequence[Rollout]) -> Sequence[Rollout]:
        """Take in the rollouts of a search, on which the next plans depend; return them as they are recorded."""
        return rollouts

    async def _reward(self, rollouts: Sequence[Rollout]) -> tuple[list[Rollout], list[Credit]]:
        """Return the rollouts with rewards (computed in one call), and the credit of new leaves."""
        new, failures = dict[str, Outcome](), dict[str, str]()
        # The sample number counts all rollouts of the tree.
        for sample, rollout in enumerate(rollouts, len(self.rollouts)):
            leaf = rollout.leaf
            # Several rollouts may end in one leaf, also in a leaf of an earlier search.
            if leaf is None or leaf in {*self.tree.outcomes, *new, *failures}:
                continue
            try:
                position = await self.branches.position(leaf)
                answer, end, score = position.state.answer, position.state.end, None
                # There is nothing to grade where a rollout was stopped.
                if end is not None:
                    self.grades[leaf] = await self.branches.grade(position)
                    if (score := self.grades[leaf].score) is None:
                        raise EngineError("the dialogue could not be graded")
                new[leaf] = Outcome(leaf, sample, end or STOPPED, answer, score)
            except EngineGone:
                raise
            except EngineError as error:
                failures[leaf] = f"no reward: {error}"
        # One call for all new leaves, so that the judge can batch the work of its models.
        try:
            graded = {leaf: outcome for leaf, outcome in new.items() if leaf in self.grades}
            judgments = await self.judge(self.tree, [*graded.values()]) if graded else []
        except EngineGone:
            raise
        except EngineError as error:
            failures |= dict.fromkeys(graded, f"no reward: {error}")
            new = {leaf: outcome for leaf, outcome in new.items() if leaf not in graded}
            graded, judgments = {}, []
        self.judgments |= zip(graded, judgments, strict=True)
        for outcome in new.values():
            self.tree.end(outcome)
        credit = [credit_value for judgment in judgments for credit_value in judgment.credit]
        # Rewards of the environment: those of acts once for each node, those of the grade on the leaf.
        paths = {turn.id for leaf in new for turn in self.tree.path(leaf)} - self.credited
        self.credited |= paths
        acts = {key: value for key, value in self.branches.rewards.items() if key[0] in paths}
        credit += environment_credit(acts)
        for leaf in graded:
            credit += final_credit(leaf, self.grades[leaf])
        results = []
        # A leaf without a reward fails every rollout that ended there.
        for rollout in rollouts:
            if (leaf := rollout.leaf) in failures:
                rollout = replace(rollout, leaf=None, failure=failures[str(leaf)])
            elif leaf in self.judgments:
                rollout = replace(rollout, reward=self.judgments[str(leaf)].reward)
            results.append(rollout)
        return results, credit

    def key(self, *parts: object) -> str:
        tree = self.tree
        return digest("tree", self.seed, tree.iteration, tree.stage, tree.task, *parts)


def path_tree(tree: Tree, leaves: Sequence[str]) -> Tree:
    """Return the part of a tree with the paths to some leaves."""
    result = Tree(tree.task, tree.stage, tree.iteration)
    for leaf in leaves:
        for turn in tree.path(leaf):
            result.add(turn, None if turn.prompt is None else tree.requests[turn.prompt])
        if leaf in tree.outcomes:
            result.end(tree.outcomes[leaf])
    return result


@dataclass(eq=False)
class TreeSearch(Search):
    """Optima's search, with the same samplers for all rollouts and a separate seed for each turn of each."""

    samplers: Mapping[str, CandidateSampler]
    settings: SearchSettings

    def __post_init__(self) -> None:
        super().__post_init__()
        self.searches = self.settings.searches

    def merge(self, turn: Turn, siblings: Sequence[Turn]) -> Turn | None:
        """Return a similar sibling. Truncated turns are never merged."""
        complete = [sibling for sibling in siblings if not sibling.truncated and not turn.truncated]
        near = (
            sibling
            for sibling in complete
            if _same(turn.text, sibling.text, self.settings.merge_distance)
        )
        return next(near, None)

    def plan(self, search: int, rng: random.Random) -> list[Rollout]:
        node = self.choose_start(rng)
        count = self.settings.rollouts_per_search
        return [Rollout(search, number, node) for number in range(count)]

    def choose_start(self, rng: random.Random) -> str:
        starts, nodes = [rollout.start for rollout in self.rollouts], self.branches.nodes()
        values = node_values(self.tree, self.rollouts)
        # Values count all rollouts, but a search can only start where the tree has a position.
        open_values = {node: value for node, value in values.items() if node in nodes}
        return choose(self.tree, open_values, starts, self.settings, rng)

    def samplers_of(self, rollout: Rollout, position: Position) -> Mapping[str, CandidateSampler]:
        return self.samplers

    def seed_of(self, rollout: Rollout, position: Position, index: int) -> int:
        # The actor's index keeps simultaneous actors from sharing a seed.
        depth = len(position.state.turns) + index
        return int(self.key("seed", rollout.search, rollout.number, depth)[:15], 16)
