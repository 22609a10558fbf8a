"""DensePolicy: preference pairs from a dense tree of trajectories per task.

No paper is published; the algorithm follows the released code (leoozy/DensePolicy and zhao-ht/TreeDPO).

    for each iteration:
        rollout      grow a tree per task. Each round starts rollouts at the node with the highest
                     0.8 C^(1/4) + 0.2 D / L + 2 sqrt(1 + N) / (2 + N), until the tree has its pairs. C: largest value
                     difference to a sibling, D: mean distance to the ends of rollouts, L: maximum steps, N: visits
                     (:meth:`coterie.rollout.dense_search.DenseSearch.plan` chooses the node)
        reward       V(node) = mean success of the rollouts through it
        select       siblings with V_chosen - V_rejected >= margin and enough visits; from the tasks with the most
                     pairs, up to a fixed total
        train        DPO on these pairs and on outside preference sets. The policy before this training is pi_ref:
                     L = -log sigmoid(beta [log pi(a_w|h) / pi_ref(a_w|h) - log pi(a_l|h) / pi_ref(a_l|h)]), for the
                     messages a_w and a_l after a shared history h
    evaluate         greedily on held-out tasks

Deliberate deviations from the released code:

* New rollouts are accepted. The code accepts none after the first round.
* Visits count distinct leaves, and choosing a node for expansion is not a visit.
* A node's value is the mean over rollouts. ``search.value=children`` is the code's mean over children.
* A path that was sampled to its end is not sampled again.
* A replay that differs from the recorded path fails its branch. The code only warns.
* An outside set that is too small is not filled up with repeats.
* Training and held-out tasks are disjoint. The code trains on test tasks.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from coterie.datasets.published_preferences import MixedPreferences
from coterie.engines.protocol import POLICY
from coterie.environments.acting import Acting, drop_shots
from coterie.environments.protocol import most_turns
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.dense_tree_settings import DenseTreeSettings
from coterie.recipes.plan import HeldOutQuestions, Plan
from coterie.recipes.trainings import TrainingJob
from coterie.record.rows import Edit, Pair
from coterie.record.tree import Credit, ItemKey, LeftOut, Metrics, Outcome, Selection, Task, Tree
from coterie.record.turn import Message
from coterie.rollout.branches import Branches
from coterie.rollout.dense_search import (
    DenseSearch,
    NodeValue,
    TreeValues,
    distinct_rollouts,
    drop_requests,
    instructed_samplers,
)
from coterie.rollout.episodes import Driver
from coterie.rollout.samplers import CandidateSampler, TokenSampler
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment, Rollout, Search
from coterie.runs.loop import Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.search_items import TreeWriter, grow_trees, growth_summary, rollouts
from coterie.runs.work_items import ItemResult, engine_errors, on_trees, sampled_tokens, totals
from coterie.selection import (
    Preference,
    count_pairs,
    dense_pairs,
    dense_reason,
    densest,
    first_differences,
    unpaired,
)
from coterie.training.chat_rows import preference_pair

MAX_TREES = 64
"""Trees that grow concurrently, each with a window of rollouts in flight."""
GROWN = "grown"
"""Stage name of the items that mark complete trees."""
PLAIN = "plain"
"""Recontext rule of training: prompts without few-shot examples and sampling instructions."""


def plain(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Remove few-shot examples and sampling instructions from messages."""
    return drop_requests(drop_shots(messages))


class DenseTree(Recipe):
    """The DensePolicy recipe."""

    settings: DenseTreeSettings
    by_task = ("rollout", GROWN, "reward")
    edits: Mapping[str, Edit] = {PLAIN: plain}

    def __init__(self, settings: DenseTreeSettings) -> None:
        super().__init__(settings)
        self.agent = self.only_agent("use environment=python_maths, babyai, textworld or alfworld")
        self.max_turns = most_turns(self.environment)

    def stages(self) -> list[Stage]:
        stages = [self.evaluation(0)]  # of the initial policy
        for i in range(self.settings.iterations):
            trained = [stage for stage in stages if stage.trains]
            methods = (self.sample, self.value, self.pair, self.learn)
            stages += self.make_stages(i, *methods, after=trained)
            stages.append(self.evaluation(i + 1, stages[-1:]))
        return stages

    @stage(
        "rollout",
        # A tree stops growing when it has its pairs, so the rule of pairs also changes what is sampled.
        uses=(
            "rollout.tasks",
            "rollout.shard",
            "rollout.max_tokens",
            "search",
            "engine",
            "pairs.margin",
            "pairs.max_visits",
        ),
    )
    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Grow a tree for each task, all concurrently. Keeps complete trees and continues incomplete ones."""
        s, done = self.settings, run.store.finished_keys(i, GROWN)
        # Trees refer to their tasks by id, so the tasks are stored first.
        run.store.put_tasks(self.train_tasks(i))
        tasks = [task for task in self.train_tasks(i) if (task.id, "") not in done]
        if not tasks:  # a merged run needs no engine
            return growth_summary(run.store, i)
        # The temperature here is not used: `speakers` sets one for each child.
        sampler = await self.sampler(run, self.newest(run, self.main_role, i), 0.0)
        writer = TreeWriter(run.store, i, progress, sampled_tokens([sampler]), by_rollout=True)

        def begin(driver: Driver, sessions: Sessions, task: Task) -> Search:
            tree, recorded = writer.load(task)
            return self.search(driver.branches(task, tree, sessions), sampler, recorded)

        def note(search: Search) -> None:
            count = len(search.rollouts)
            # The mark of a complete tree lets a resumed run skip its task.
            key = ItemKey(i, GROWN, search.tree.task)
            run.store.finish(key, metrics={"rollouts": count})
            # A tree that stops early still completes its part of the progress display.
            if missing := max(0, s.search.rollouts_per_task - count):
                progress.advance(missing, sampled_tokens=writer.sampled_tokens())

        # Rollouts that an interrupted run has stored are not counted again.
        finished = sum(len(writer.rollouts.get(task.id, ())) for task in tasks)
        title = f"trees {i}"
        progress.start(s.search.rollouts_per_task * len(tasks) - finished, title)
        with engine_errors(title, progress):
            async with self.actors(run) as actors:
                driver = actors.driver({self.agent: sampler}, s.seed)
                await grow_trees(driver, writer, tasks, begin, MAX_TREES, note)
        return growth_summary(run.store, i)

    @stage("reward", after="rollout", uses="search.value")
    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store V(node), the mean success of the rollouts through a node, as credit."""
        work = partial(self.value_tree, run)
        await on_trees(run.store, i, work, progress, f"values {i}", in_flight=1)
        return totals(run.store, i, "reward", ("nodes", "successes"))

    @stage("select", after="reward", uses=("pairs", "budget"))
    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select sibling pairs with ``V_chosen - V_rejected >= margin``."""
        selections, counts = self.select_pairs(run, i)
        run.select(i, selections, self.left_out(run, i, selections))
        return {
            "tasks": len(counts),
            "pairs": sum(counts.values()),
            "without_pairs": sum(not count for count in counts.values()),
            "selected": len(selections),
        }

    @stage(
        "train",
        after="select",
        uses=("objective", "train"),
        # Outside sets are files, whose contents are not part of the settings.
        depends=lambda recipe, i: recipe.mix_identity,
        trains=POLICY,
    )
    def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train by DPO on the pairs; pi_ref is the policy before this training.

        ``L = -log sigmoid(beta [log pi(a_w|h) / pi_ref(a_w|h) - log pi(a_l|h) / pi_ref(a_l|h)])``
        """
        pairs = self.pairs(run, i)
        if not pairs:
            raise UserError(
                f"the trees of iteration {i} have no pairs: no two siblings differ by pairs.margin="
                f"{self.settings.pairs.margin:g}",
                "grow larger trees (search.rollouts_per_task), lower pairs.margin or pairs.max_visits, or use "
                "tasks that the policy solves sometimes; `coterie view` shows the trees",
            )
        # As in the released code, outside pairs are added to the pairs of the trees.
        mixed, counts = self.mixed_pairs(i, progress)
        s = self.settings
        job = TrainingJob.of(self, run, i, s.train, progress)
        metrics = job.train_dpo(pairs + mixed, s.objective)
        return {**metrics, "tree_pairs": len(pairs), **counts}

    def plan(self) -> Plan:
        # Missing files of outside sets are found by the plan, before trees are sampled for hours.
        for source in self.settings.mix.sets:
            MixedPreferences(source).files()
        if not self.train_tasks(0):
            part, parts = self.settings.rollout.shard
            problem = f"rollout.shard=[{part},{parts}] has no tasks"
            raise UserError(problem, "use fewer shards, or raise rollout.tasks")
        return super().plan()

    def dialogues(self) -> int:
        s = self.settings
        trees = sum(len(self.train_tasks(i)) for i in range(s.iterations))
        return s.search.rollouts_per_task * trees

    def train_tasks(self, iteration: int = 0) -> list[Task]:
        """Return the training tasks of an iteration that belong to this run's shard."""
        part, parts = self.settings.rollout.shard
        # Every n-th task, so that each shard has tasks from the whole data set.
        return super().train_tasks(iteration)[part::parts]

    # -- trees ----------------------------------------------------------------------------------

    def search(
        self, branches: Branches, sampler: TokenSampler, rollouts_so_far: Sequence[Rollout]
    ) -> Search:
        s, pairs_among = self.settings, partial(count_pairs, settings=self.settings.pairs)
        return DenseSearch(
            branches,
            by_score,
            self.agent,
            self.speakers(sampler),
            s.search,
            pairs_among,
            self.max_turns,
            rollouts=list(rollouts_so_far),
            seed=s.seed,
        )

    def speakers(self, sampler: TokenSampler) -> list[CandidateSampler]:
        """Return the agent's sampler of each child label. Labels with the same temperature share a sampler."""
        s = self.settings.search
        temperatures = [s.temperature(label) for label in range(s.max_children)]
        samplers = {t: sampler.at(t) for t in temperatures}
        # In the other modes, children differ by an instruction and are sampled at temperature 0 or 1.
        if s.children == "temperature" or s.children == "sampling":
            return [samplers[t] for t in temperatures]
        return instructed_samplers(s.children, samplers[0.0], samplers[1.0], s.max_children)

    # -- values ---------------------------------------------------------------------------------

    async def value_tree(self, run: Run, tree: Tree) -> ItemResult:
        settings = self.fingerprint(StageKey(tree.iteration, "reward"))
        values = TreeValues(tree.root, self.settings.search.value)
        recorded = rollouts(run.store, tree.iteration, tree.task)[tree.task]
        # A path that was sampled twice counts once, so that its success is not weighted double.
        for path, rollout in distinct_rollouts(tree, recorded, set()):
            values.add(path, rollout.reward or 0.0)
        credit = []
        for node, value in values.items():
            numbers = (value.mean, float(value.visits), value.distance)
            named = zip(("value", "visits", "distance"), numbers, strict=True)
            credit += [Credit(node, name, number, settings) for name, number in named]
        successes = sum((outcome.score or 0.0) >= 1 for outcome in tree.outcomes.values())
        counts: Metrics = {"nodes": len(values), "successes": successes}
        return ItemResult(
            ItemKey(tree.iteration, "reward", tree.task), counts, credit=tuple(credit)
        )

    def values(self, run: Run, tree: Tree) -> dict[str, NodeValue]:
        settings = self.fingerprint(StageKey(tree.iteration, "reward"))
        columns: dict[str, dict[str, float]] = {"value": {}, "visits": {}, "distance": {}}
        for credit in run.store.credit_of(tree):
            # The store also keeps credit that was computed under other settings.
            if credit.settings == settings:
                columns[credit.name][credit.node] = credit.value
        visits, distances = columns["visits"], columns["distance"]
        return {
            node: NodeValue(mean, round(visits[node]), distances[node])
            for node, mean in columns["value"].items()
        }

    # -- selection ------------------------------------------------------------------------------

    def tree_pairs(self, run: Run, tree: Tree) -> list[Preference]:
        """Return all pairs of a tree, in an order that does not depend on the order of its rollouts.

        Siblings with ``V_chosen - V_rejected >= margin`` and enough visits are a pair.
        """
        s = self.settings.pairs
        if s.rule == "first_difference":
            scores = {leaf: outcome.score or 0.0 for leaf, outcome in tree.outcomes.items()}
            pairs = first_differences(tree, scores, self.agent, s)
        else:
            pairs = dense_pairs(tree, self.values(run, tree), s)
        return sorted(pairs, key=lambda p: (-p.difference, p.chosen.id, p.rejected.id))

    def select_pairs(self, run: Run, iteration: int) -> tuple[list[Selection], dict[str, int]]:
        """Select pairs within the budget and count all pairs by task.

        Keeps the ids of pairs in memory instead of the trees.
        """
        pairs_by_task = {
            tree.task: [(pair.chosen.id, pair.rejected.id) for pair in self.tree_pairs(run, tree)]
            for tree in run.store.outlines(iteration, "rollout")
        }
        counts = {task: len(pairs) for task, pairs in pairs_by_task.items()}
        indices = densest(counts, self.settings.budget, self.settings.seed)
        context = self.context(self.train_tasks(iteration))
        return [
            Selection(better, self.agent, context, rejected=worse)
            for task in sorted(indices)
            for better, worse in map(pairs_by_task[task].__getitem__, indices[task])
        ], counts

    def left_out(self, run: Run, iteration: int, selections: Sequence[Selection]) -> list[LeftOut]:
        """Return the turns that are in no selected pair, with their reasons."""
        s, left_out = self.settings.pairs, list[LeftOut]()
        selected = {node for pair in selections for node in (pair.leaf, pair.rejected)}
        for tree in run.store.outlines(iteration, "rollout"):
            pairs = self.tree_pairs(run, tree)
            if s.rule == "siblings":
                values = self.values(run, tree)
                left_out += unpaired(tree, values, pairs, partial(dense_reason, values, s))
            nodes = dict.fromkeys(turn.id for p in pairs for turn in (p.chosen, p.rejected))
            left_out += [
                LeftOut(tree.task, node, "outside_budget", self.agent)
                for node in nodes
                if node not in selected
            ]
        return left_out

    def context(self, tasks: Sequence[Task]) -> str | None:
        """Return the recontext rule of training; ``None`` if the sampled prompts are plain already."""
        # Prompts are only rendered again if they contain text that the trained policy should not see.
        has_instructions = self.settings.search.children not in ("temperature", "sampling")
        has_examples = isinstance(self.environment, Acting) and any(
            map(self.environment.shots, tasks[:1])
        )
        return PLAIN if has_instructions or has_examples else None

    # -- outside preferences --------------------------------------------------------------------

    @cached_property
    def mix_identity(self) -> list[tuple[str, int, str]]:
        """Names, counts and checksums of the outside preference sets."""
        sets = (
            (MixedPreferences(source), count) for source, count in self.settings.mix.sets.items()
        )
        return sorted(
            (preferences.name, count, preferences.content()) for preferences, count in sets
        )

    @cached_property
    def heldout_questions(self) -> HeldOutQuestions:
        """Held-out questions of a data set; empty for games, whose tasks are not questions."""
        if self.settings.dataset.name is None:
            return HeldOutQuestions(())
        # The number is larger than any data set, so that all held-out tasks are returned.
        tasks = self.environment.tasks("heldout", 10**9, self.settings.seed)
        return HeldOutQuestions(
            str(task.public["question"]) for task in tasks if "question" in task.public
        )

    def mixed_pairs(self, iteration: int, progress: Progress) -> tuple[list[Pair], Metrics]:
        """Draw the outside pairs of an iteration and count them by set.

        Pairs with a held-out question are left out and counted.
        """
        pairs, counts = list[Pair](), dict[str, float | int | str]()
        for source, count in self.settings.mix.sets.items():
            preferences = MixedPreferences(source)
            # Each iteration draws other pairs, whatever the order of the sets is.
            seed = f"mix/{self.settings.seed}/{iteration}/{preferences.name}"
            candidates = preferences.draw(count, seed)
            rows = [
                row
                for row in candidates
                # Only the user's messages of the prompt are searched, because a reply may quote anything.
                if not any(
                    message.role == "user" and self.heldout_questions.occurs_in(message.content)
                    for message in row.messages[: row.start]
                )
            ]
            progress.start(len(rows), f"pairs of {preferences.name}")
            for row in rows:
                pairs.append(preference_pair(self.renderer(self.agent), row))
                progress.advance(1)
            counts[f"mixed_{preferences.name}"] = len(rows)
            # A set that is too small is used once and not repeated, unlike in the released code.
            lacking = {"lacking": count - len(candidates), "held_out": len(candidates) - len(rows)}
            counts |= {f"{reason}_{preferences.name}": n for reason, n in lacking.items() if n}
        return pairs, counts


async def by_score(tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
    return [Judgment(outcome.score or 0.0) for outcome in outcomes]
