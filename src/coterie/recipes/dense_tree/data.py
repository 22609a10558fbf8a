"""What ``dense_tree``'s stages read and train on: tasks, trees, values, pairs, successful runs."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle, islice

from coterie.datasets.preferences import PreferenceRow, Preferences
from coterie.environments.acting.environment import Acting, drop_shots
from coterie.environments.traits import agents_of, most_turns
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.dense_tree.settings import DenseTreeSettings
from coterie.recipes.plan import Plan
from coterie.rollout.branches import Branches
from coterie.rollout.dense_search import DenseSearch, distinct_rollouts
from coterie.rollout.grower import Rollout
from coterie.rollout.instructed_sampler import drop_requests, instructed_samplers
from coterie.rollout.samplers import CandidateSampler, TokenSampler
from coterie.rollout.tree_search import Judgment, Search
from coterie.rollout.tree_values import NodeValue, TreeValues
from coterie.runs.casting import Openers
from coterie.runs.folder import Run, Step
from coterie.runs.growing import rollouts
from coterie.runs.items import Done
from coterie.runs.selected import selected
from coterie.selection.budget import densest
from coterie.selection.dense_pairs import SiblingPair, count_pairs, dense_pairs, first_differences
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings
from coterie.trajectories.credit import Credit
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.pair import Pair, turn_pair
from coterie.trajectories.row import Row, Target
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.tree import Outcome, Tree
from coterie.trajectories.turn import Message, digest
from coterie.trajectories.view import Edit, View, recontext, view

# Held-out questions that text from elsewhere may ask: it is not trained on.
#
# The released code trained on the tasks that it evaluated; its pairs, and anybody's, are looked through.

BEGINNING = 32
"""Characters of a question by which it is looked up. A shorter one counts only as all of a message, or its end."""


class HeldOut:
    """Questions, whatever their case and spacing."""

    def __init__(self, questions: Iterable[str]) -> None:
        self._long: dict[str, list[str]] = {}
        self._short = set[str]()
        for text in map(_plain, questions):
            if len(text) >= BEGINNING:
                self._long.setdefault(text[:BEGINNING], []).append(text)
            elif text:
                self._short.add(text)

    def is_asked(self, messages: Sequence[tuple[str, str]]) -> bool:
        return any(role == "user" and self._is_in(_plain(text)) for role, text in messages)

    def _is_in(self, text: str) -> bool:
        starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
        return any(
            text.startswith(question, start)
            for start in starts
            for question in self._long.get(text[start : start + BEGINNING], ())
        ) or any(text[start:] in self._short for start in starts if len(text) - start < BEGINNING)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def as_pair(row: PreferenceRow, renderer: ChatRenderer, name: str, agent: str) -> Pair:
    """A row of the set ``name`` as a pair; of each side the reply is the target, its end of turn included."""
    shown = [Message.of(role, text) for role, text in row.messages]
    prompt = renderer.render(shown, Tree(row.id, "mix", 0), agent)

    def side(reply: str) -> tuple[Row, ...]:
        ids = prompt + renderer.encode_turn(reply)
        target = Target(len(prompt), len(ids), f"data:{name}")
        return (Row(ids, (target,), origin=f"{name}/{row.id}"),)

    return Pair(side(row.chosen), side(row.rejected))


GROWN = "grown"
"""The stage under which trees are noted that grow no more."""
PLAIN = "plain"
"""The recontext rule of training: no examples, and nothing that a step was asked for besides."""
SUCCESS = 1.0
"""The score of a run that succeeded."""


def plain(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages without examples and without what a step was asked for besides."""
    return drop_requests(drop_shots(messages))


class DenseTreeData(Recipe):
    """The data of a run under given settings."""

    settings: DenseTreeSettings
    by_task = ("rollout", GROWN, "reward")
    edits: Mapping[str, Edit] = {PLAIN: plain}

    def __init__(self, settings: DenseTreeSettings) -> None:
        super().__init__(settings)
        if len(self.environment.actors) != 1 or not agents_of(self.environment):
            raise UserError(
                f"{self.name} grows trees of one agent, and {settings.played} has "
                f"{', '.join(self.environment.actors)}",
                "use an environment in which one agent acts, such as environment=python_maths or babyai",
            )
        (self.agent,) = agents_of(self.environment)
        self.steps_of_path = most_turns(self.environment)

    def plan(self) -> Plan:
        """Size of the run. Raises ``UserError`` for missing preferences and a part without tasks, too."""
        for source in self.settings.mix.sets:
            Preferences(source).files()
        if not self.train_tasks(0):
            part, parts = self.settings.rollout.shard
            raise UserError(
                f"rollout.shard=[{part},{parts}] has no tasks",
                "divide the run into fewer parts, or give it more rollout.tasks",
            )
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return {"train": self.settings.train}

    def dialogues(self) -> int:
        s = self.settings
        return s.search.runs * sum(len(self.train_tasks(i)) for i in range(s.iterations))

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    def train_tasks(self, iteration: int) -> list[Task]:
        """The training tasks of an iteration that are this run's part."""
        s, (part, parts) = self.settings.rollout, self.settings.rollout.shard
        drawn = [s.tasks] * iteration
        return self.environment.tasks("train", s.tasks, self.settings.seed, drawn)[part::parts]

    # -- trees ----------------------------------------------------------------------------------

    def search(self, branches: Branches, sampler: TokenSampler, known: Sequence[Rollout]) -> Search:
        """The search of a task's tree, by one engine; ``known`` are its rollouts so far."""
        return DenseSearch(
            *(branches, self.agent, self.speakers(sampler), by_score, self.settings.search),
            *(self.pairs_among, known),
            steps=self.steps_of_path,
            seed=self.settings.seed,
        )

    def speakers(self, sampler: TokenSampler) -> list[CandidateSampler]:
        """The agent's samplers by label, all of one engine; labels of one temperature share one."""
        s = self.settings.search
        temperatures = [s.temperature(label) for label in range(s.base)]
        known = {t: sampler.at(t) for t in temperatures}
        if s.children == "temperature" or s.children == "sampling":
            return [known[t] for t in temperatures]
        return instructed_samplers(s.children, known[0.0], known[1.0], s.base)

    def pairs_among(self, values: Sequence[NodeValue]) -> int:
        return count_pairs(values, self.settings.pairs)

    # -- values ---------------------------------------------------------------------------------

    async def valued(self, run: Run, tree: Tree) -> Done:
        """The values of a tree's nodes, as credit."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        played = rollouts(run.store, tree.iteration, tree.task)
        values = tree_values(tree, played[tree.task], self.settings)
        credit = [
            Credit(node, name, number, settings)
            for node, value in values.items()
            for name, number in (
                ("value", value.mean),
                ("visits", float(value.visits)),
                ("distance", value.distance),
            )
        ]
        counts: Metrics = {
            "nodes": len(values),
            "successes": sum(bool(outcome.score) for outcome in tree.outcomes.values()),
        }
        return Done(ItemKey(tree.iteration, "reward", tree.task), counts, credit=tuple(credit))

    def values(self, run: Run, tree: Tree) -> dict[str, NodeValue]:
        """The values of a tree's nodes, as the reward stage left them."""
        settings = self.fingerprint(Step(tree.iteration, "reward"))
        found: dict[str, dict[str, float]] = {"value": {}, "visits": {}, "distance": {}}
        for one in run.store.credit_of(tree):
            if one.settings == settings:
                found[one.name][one.node] = one.value
        visits, distances = found["visits"], found["distance"]
        return {
            node: NodeValue(mean, round(visits[node]), distances[node])
            for node, mean in found["value"].items()
        }

    # -- what is selected -----------------------------------------------------------------------

    def tree_pairs(self, run: Run, tree: Tree) -> list[SiblingPair]:
        """All pairs of a tree, in an order that does not depend on how it grew."""
        s = self.settings.pairs
        if s.rule == "first_difference":
            scores = {leaf: one.score or 0.0 for leaf, one in tree.outcomes.items()}
            found = first_differences(tree, scores, self.agent, s)
        else:
            found = dense_pairs(tree, self.values(run, tree), s)
        return sorted(found, key=lambda p: (-p.difference, p.chosen.id, p.rejected.id))

    def select_pairs(self, run: Run, iteration: int) -> tuple[list[Selection], dict[str, int]]:
        """The pairs of the budget, and how many each tree has. Of trees only the ids of pairs stay in memory."""
        found = {
            tree.task: [(pair.chosen.id, pair.rejected.id) for pair in self.tree_pairs(run, tree)]
            for tree in run.store.outlines(iteration, "rollout")
        }
        counts = {task: len(pairs) for task, pairs in found.items()}
        kept = densest(counts, self.settings.budget, self.settings.seed)
        context = self.context(self.train_tasks(iteration))
        chosen = [
            Selection(better, self.agent, context, rejected=worse)
            for task in sorted(kept)
            for better, worse in map(found[task].__getitem__, kept[task])
        ]
        if self.settings.learns == "random_sides":
            chosen = [self._turned(one) for one in chosen]
        return chosen, counts

    def select_successes(self, run: Run, iteration: int) -> tuple[list[Selection], dict[str, int]]:
        """As many whole successful runs as there would be pairs, of the same trees; none twice before all came once."""
        pairs, counts = self.select_pairs(run, iteration)
        leaves = [
            leaf
            for tree in run.store.outlines(iteration, "rollout")
            for leaf, outcome in tree.outcomes.items()
            if (outcome.score or 0.0) >= SUCCESS
        ]
        random.Random(f"successes/{self.settings.seed}/{iteration}").shuffle(leaves)
        context = self.context(self.train_tasks(iteration))
        drawn = islice(cycle(leaves), len(pairs))
        chosen = [Selection(leaf, self.agent, context) for leaf in drawn]
        return chosen, counts

    def _turned(self, pair: Selection) -> Selection:
        assert pair.rejected is not None, "it is a pair"
        if int(digest("side", self.settings.seed, pair.leaf, pair.rejected)[:8], 16) % 2:
            return pair
        return replace(pair, leaf=pair.rejected, rejected=pair.leaf)

    # -- what is trained on ---------------------------------------------------------------------

    def train_pairs(self, run: Run, iteration: int) -> Iterator[Pair]:
        for tree, one in selected(run, iteration):
            assert one.rejected is not None, "pairs were selected"
            worse = replace(one, leaf=one.rejected)
            sides = self.seen(tree, one), self.seen(tree, worse)
            yield turn_pair(*sides, weight=one.weight, group=tree.task)

    def seen(self, tree: Tree, one: Selection) -> View:
        """What the agent saw, without examples and without what a step was asked for besides."""
        if one.context is None:
            return view(tree, one.leaf, one.agent)
        render = self.renderer.render
        return recontext(tree, one.leaf, one.agent, name=one.context, edit=plain, render=render)

    @cached_property
    def renderer(self) -> ChatRenderer:
        return load_renderer(self.settings.model, self.settings.engine.template_args)[0]

    def context(self, tasks: Sequence[Task]) -> str | None:
        """The recontext rule of training; none where the prompts were plain already."""
        asks = self.settings.search.children not in ("temperature", "sampling")
        shows = isinstance(self.environment, Acting) and any(map(self.environment.shots, tasks[:1]))
        return PLAIN if asks or shows else None

    # -- outside preferences --------------------------------------------------------------------

    @cached_property
    def mixed_content(self) -> list[tuple[str, int, str]]:
        """What is mixed in: short names, counts, checksums."""
        sets = ((Preferences(source), count) for source, count in self.settings.mix.sets.items())
        return sorted((one.name, count, one.content()) for one, count in sets)

    @cached_property
    def held_out(self) -> HeldOut:
        """The held-out questions, if tasks are rows of a data set; games have none that text could give away."""
        if self.settings.dataset.name is None:
            return HeldOut(())
        tasks = self.environment.tasks("heldout", 10**9, self.settings.seed)
        return HeldOut(str(task.public["question"]) for task in tasks if "question" in task.public)

    def mixed_pairs(
        self, iteration: int, renderer: ChatRenderer, progress: Progress
    ) -> tuple[list[Pair], Metrics]:
        """The outside pairs of an iteration, and how many there are of each set.

        Pairs that ask a held-out question are left out, and counted.
        """
        found, counts = list[Pair](), dict[str, float | int | str]()
        for source, most in self.settings.mix.sets.items():
            own = Preferences(source)
            drawn = own.draw(most, f"mix/{self.settings.seed}/{iteration}/{own.name}")
            left = [row for row in drawn if not self.held_out.is_asked(row.messages)]
            progress.start(len(left), f"pairs of {own.name}")
            for row in left:
                found.append(as_pair(row, renderer, own.name, self.agent))
                progress.advance(1)
            counts[f"mixed_{own.name}"] = len(left)
            lacking = {"lacking": most - len(drawn), "held_out": len(drawn) - len(left)}
            counts |= {f"{what}_{own.name}": n for what, n in lacking.items() if n}
        return found, counts


def tree_values(
    tree: Tree, played: Sequence[Rollout], settings: DenseTreeSettings
) -> Mapping[str, NodeValue]:
    found = TreeValues(tree.root, settings.search.value)
    for path, one in distinct_rollouts(tree, played, set()):
        found.add(path, one.reward or 0.0)
    return found.values()


async def by_score(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    return [Judgment(outcome.score or 0.0) for outcome in outcomes]
