"""Optima (arXiv 2410.08115): iterative training of agents that communicate effectively and briefly.

Notation of the paper: base model M_base, policy M_i of iteration i, task d, dialogue (trajectory) tau with turns
tau[k].

    M_0 = M_base
    for i = 0 .. iterations-1, an SFT iteration (algorithm 1; isft has only these):
        sample         N dialogues per task with M_i; for i = 0 each with a random format prompt
        reward         R(tau) = R_task(tau) - lambda_token R_token(tau) + lambda_loss / R_loss(tau)     (equation 1)
                       R_token = #Tokens(tau) / max over the task's N dialogues,
                       R_loss = max_k mean token loss of tau[k] under M_base, given its context
                       (:func:`coterie.rewards.dialogue_reward.rewards`; :class:`TreeJudge` collects the losses)
        demonstrate    the dialogue with the highest R per task, if R >= theta_sft; of these the top share
        imitate        SFT on each agent's own turns, without format prompts -> M_{i+1}
    or a DPO iteration (algorithm 2, idpo: all but the first; algorithm 3, isft_dpo: every second):
        search         a tree of dialogues per task: sample an utterance from softmax(values), play rollouts from it
                                                                                                        (algorithm 4)
        value          value(utterance) = mean R of the rollouts through it
        pair           siblings u_w, u_l with value(u_w) > theta_filter and value(u_w) - value(u_l) > theta_diff
                                                                                                        (algorithm 5)
        prefer         DPO with M_i as the reference -> M_{i+1}; idpo adds nll * (mean -log pi(u_w | h)):
                       L = -log sigmoid(beta [log pi(u_w|h) / pi_ref(u_w|h) - log pi(u_l|h) / pi_ref(u_l|h)])
    evaluate           every M_i greedily on held-out tasks

Deliberate deviations from the released code:

* The partner's turns are ``user`` messages.
* R_loss is computed given the turn's context, as in the paper. The code scores each turn alone.
* The threshold is applied before the top share, as in the paper.
* An utterance that is almost equal to a sibling becomes that sibling (``coterie.rollout.tree_search``).
* Pairs use the values of the finished tree.
* A dialogue that reaches the turn limit keeps its last answer, as in evaluation.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from coterie.engines.protocol import POLICY, Engine, EngineError
from coterie.environments.dialogue import drop_format
from coterie.environments.protocol import agents_of, formats_of
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.optima_settings import DPORoundSettings, OptimaDPOSettings, OptimaSettings
from coterie.recipes.trainings import TrainingJob, train_sft
from coterie.record.rows import Edit, View, view
from coterie.record.tree import (
    LENGTH,
    Credit,
    ItemKey,
    LeftOut,
    Metrics,
    Outcome,
    Selection,
    Task,
    Tree,
)
from coterie.record.turn import Turn, digest
from coterie.rewards.critics import turn_losses
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    Reward,
    RewardSettings,
    count_leaks,
    count_repeats,
    largest_loss,
    rewards,
)
from coterie.rollout.episodes import Driver, Episode, dialogue_tokens
from coterie.rollout.sessions import Sessions
from coterie.rollout.tree_search import Judgment, TreeSearch, Value, node_values
from coterie.runs.loop import Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.search_items import TreeWriter, grow_trees, growth_summary, rollouts
from coterie.runs.work_items import ItemResult, engine_errors, on_trees, sampled_tokens, totals
from coterie.selection import (
    best_demonstrations,
    sibling_pairs,
    sibling_reason,
    unpaired,
    without_demonstration,
)

PROBE = "probe"
"""Stage name of the dialogues that measure the length of dialogues."""
DROP_FORMAT = "drop_format"
"""Recontext rule of iteration 0: prompts without the format prompt."""
IN_FLIGHT, TREES_IN_FLIGHT = 64, 128
"""Trees scored and grown concurrently."""
COUNTS = ("trajectories", "failed", "truncated", "leaks", "repeats")
"""Counts of each task's dialogues."""


@dataclass(slots=True)
class TreeJudge:
    """Reward of the dialogues of a tree (equation 1)::

        R(tau) = R_task(tau) - lambda_token R_token(tau) + lambda_loss / R_loss(tau)

    It collects the numbers of a dialogue. :func:`coterie.rewards.dialogue_reward.rewards` computes the terms.
    """

    rule: RewardSettings
    max_tokens: int | None
    """Denominator of R_token; ``None`` for the longest of the given dialogues."""
    base: Engine
    """Frozen M_base, for R_loss."""
    agents: tuple[str, ...]
    settings: str
    """Fingerprint that keys the credit."""
    show: Callable[[Tree, str, str], View] = view
    """Function that returns an agent's view of a dialogue without a format prompt."""
    losses: dict[str, float] = field(default_factory=dict)
    """Loss of each turn under M_base, in nats per token."""

    async def __call__(self, tree: Tree, outcomes: Sequence[Outcome]) -> list[Judgment]:
        """Return the rewards of finished paths, with their terms and losses as credit. Raises ``EngineError``."""
        # R_loss needs a pass of M_base, so it is computed only if it has a weight.
        new = await self._losses(tree, outcomes) if self.rule.lambda_loss else {}
        self.losses |= new
        samples = [self.sample(tree, outcome) for outcome in outcomes]
        judgments = []
        for reward in rewards(samples, self.rule, max_tokens=self.max_tokens):
            terms = reward.terms.items()
            credit = [Credit(reward.leaf, name, value, self.settings) for name, value in terms]
            judgments.append(Judgment(reward.total, tuple(credit)))
        # The loss of a turn is stored once, although several dialogues share the turn.
        if judgments and new:
            nll = tuple(Credit(turn, "nll", loss, self.settings) for turn, loss in new.items())
            judgments[0] = Judgment(judgments[0].reward, judgments[0].credit + nll)
        return judgments

    async def _losses(self, tree: Tree, outcomes: Sequence[Outcome]) -> dict[str, float]:
        views: list[View] = []
        for outcome in outcomes:
            turns = agent_turns(tree.path(outcome.leaf))
            # Turns that dialogues of a tree share are scored once.
            speakers = {turn.speaker.name: None for turn in turns if turn.id not in self.losses}
            views += [self.show(tree, outcome.leaf, agent) for agent in speakers]
        losses = await turn_losses(self.base, views) if views else {}
        return {turn: loss for turn, loss in losses.items() if turn not in self.losses}

    def sample(self, tree: Tree, outcome: Outcome) -> DialogueSample:
        """Collect the terms of the reward of a dialogue. Without losses (lambda_loss = 0) R_loss is 0."""
        path = tree.path(outcome.leaf)
        turns = agent_turns(path)
        loss = largest_loss(self.losses, [turn.id for turn in turns]) if self.losses else 0.0
        leaks, repeats = count_leaks(turns, self.agents), count_repeats(turns)
        return DialogueSample(outcome, dialogue_tokens(path), loss, leaks, repeats, tuple(path))


def agent_turns(path: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in path if turn.speaker.kind == "agent"]


def drawn_tasks(recipe: Recipe, i: int) -> list[list[int]]:
    """Return the counts of tasks up to an iteration, on which its tasks depend."""
    return [recipe.task_counts(i)]


class Optima(Recipe):
    """The Optima recipe. ``settings.kinds()`` lists which iterations are SFT and which DPO."""

    settings: OptimaSettings
    edits: Mapping[str, Edit] = {DROP_FORMAT: drop_format}

    def __init__(self, settings: OptimaSettings) -> None:
        super().__init__(settings)
        self.agents = agents_of(self.environment)
        # Imports the user's own reward terms, so that errors in them show before the run starts.
        settings.reward.custom_terms()
        if isinstance(settings, OptimaDPOSettings):
            settings.dpo.reward.custom_terms()

    def stages(self) -> list[Stage]:
        previous, stages = list[Stage](), list[Stage]()
        for i, method in enumerate(self.settings.kinds()):
            # Each policy is evaluated before it is trained further.
            stages.append(self.evaluation(i, previous))
            if method == "sft":
                methods = (self.sample, self.reward, self.demonstrate, self.imitate)
            else:
                methods = (self.search, self.value, self.pair, self.prefer)
            stages += self.make_stages(i, *methods, after=previous)
            previous = stages[-1:]
        return [*stages, self.evaluation(self.settings.iterations, previous)]

    # -- SFT iteration (algorithm 1) ------------------------------------------------------------

    @stage("rollout", uses=("rollout", "engine"), depends=drawn_tasks)
    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Sample N dialogues per task with M_i; for i = 0 each with a random format prompt."""
        s = self.settings.rollout
        temperature = s.temperature if i else s.first_temperature
        return await self.play(run, self.episodes(i), temperature, s.top_p, progress)

    @stage("reward", after="rollout", uses="reward", alone=True)
    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store R(tau), its terms, and every turn's loss under M_base as credit (equation 1)."""
        # R_loss is measured under M_base, which is version 0 of the policy.
        base, context = self.models(run).embedded(POLICY, 0), self.context(i)
        settings = self.fingerprint(StageKey(i, "reward"))

        def show(tree: Tree, leaf: str, agent: str) -> View:
            return self.training_view(run, tree, Selection(leaf, agent, context))

        async def score(tree: Tree) -> ItemResult:
            # Without a fixed denominator, R_token divides by the longest dialogue of the task (equation 1).
            judge = TreeJudge(self.settings.reward, None, base, self.agents, settings, show)
            key = ItemKey(i, "reward", tree.task)
            outcomes = [outcome for outcome, _ in tree.graded()]
            try:
                judgments = await judge(tree, outcomes)
            except EngineError as error:
                return ItemResult(key, self.conduct(tree, [], failed=1), failure=str(error))
            credit = tuple(credit_ for judgment in judgments for credit_ in judgment.credit)
            return ItemResult(key, self.conduct(tree, outcomes), credit=credit)

        await on_trees(run.store, i, score, progress, f"reward {i}", in_flight=IN_FLIGHT)
        return totals(run.store, i, "reward", COUNTS)

    @stage("select", after="reward", uses="select")
    def demonstrate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select each task's best dialogue with R >= theta_sft, keep the top share, in all agents' views."""
        rewards = self.rewards(run, i)
        demonstrations = best_demonstrations(rewards, self.settings.select)
        context, agents = self.context(i), self.agents
        # A dialogue is a demonstration for each of its agents, in the agent's own view.
        selections = [
            Selection(r.leaf, agent, context) for _, r in demonstrations for agent in agents
        ]
        run.select(
            i, selections, without_demonstration(rewards, demonstrations, self.settings.select)
        )
        return {"tasks": len(rewards), "selected": len(demonstrations)}

    @stage("train", after="select", uses=("train", "from_initial"), trains=POLICY)
    def imitate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train M_{i+1} by SFT on each agent's own turns of the selected dialogues."""
        empty = UserError(
            f"nothing was selected in iteration {i}: no dialogue has a reward of at "
            f"least select.threshold={self.settings.select.threshold}",
            "lower select.threshold with --fork FOLDER; `coterie view` shows the rewards",
        )
        start = 0 if self.settings.from_initial else i  # M_base, or M_i
        return train_sft(self, run, i, self.settings.train, progress, version=start, empty=empty)

    # -- DPO iteration (algorithm 2) ------------------------------------------------------------

    @stage(
        "rollout",
        uses=(
            "dpo.temperature",
            "dpo.probe_dialogues",
            "dpo.length_percentile",
            "dpo.search",
            "dpo.reward",
            "rollout.top_p",
            "rollout.max_tokens",
            "engine",
        ),
        depends=drawn_tasks,
    )
    async def search(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Grow a tree of dialogues per task with M_i, all concurrently (algorithm 4)."""
        # During a search the longest dialogue is not known yet, so R_token gets its denominator first.
        limit = await self.probe(run, i, progress)
        s, tasks = self.dpo_settings, self.train_tasks(i)
        sampler = await self.sampler(run, i, s.temperature, self.settings.rollout.top_p)
        base = self.models(run).embedded(POLICY, 0)
        settings = self.fingerprint(StageKey(i, "reward"))
        judge = TreeJudge(s.reward, limit, base, self.agents, settings)
        # An interrupted search continues with the losses that it has stored.
        judge.losses = run.store.credit(settings, "nll", iteration=i, stage="rollout")
        run.store.put_tasks(tasks)
        writer = TreeWriter(run.store, i, progress, sampled_tokens([sampler]))
        samplers = dict.fromkeys(self.agents, sampler)

        def begin(driver: Driver, sessions: Sessions, task: Task) -> TreeSearch:
            tree, recorded = writer.load(task)
            branches = driver.branches(task, tree, sessions)
            return TreeSearch(
                branches, judge, samplers, s.search, rollouts=recorded, seed=driver.seed
            )

        title = f"searches {i}"
        progress.start(writer.left(tasks, s.search.searches), title)
        with engine_errors(title, progress):
            async with self.actors(run) as actors:
                driver = actors.driver(samplers, self.settings.seed)
                await grow_trees(driver, writer, tasks, begin, TREES_IN_FLIGHT)
        return {**growth_summary(run.store, i), "token_limit": limit}

    async def probe(self, run: Run, i: int, progress: Progress) -> int:
        """Return the denominator of R_token in tree search: a percentile of the tokens of new dialogues, plus 1."""
        s, tasks = self.dpo_settings, self.train_tasks(i)
        # Tasks take turns, and repeat if there are fewer tasks than dialogues.
        episodes = [
            Episode(tasks[n % len(tasks)], n // len(tasks), i, PROBE)
            for n in range(s.probe_dialogues)
        ]
        await self.play(run, episodes, s.temperature, self.settings.rollout.top_p, progress)
        lengths = [int(metrics["tokens"]) for metrics in run.store.metrics(i, PROBE).values()]
        # A failed dialogue has no tokens and would lower the percentile.
        return int(np.percentile([length for length in lengths if length], s.length_percentile)) + 1

    @stage("reward", after="rollout", uses="dpo.reward", alone=True)
    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store the value of every node, the mean R of the rollouts through it, as credit."""
        settings, by_task = self.fingerprint(StageKey(i, "reward")), rollouts(run.store, i)

        async def value_tree(tree: Tree) -> ItemResult:
            credit = [
                Credit(node, name, number, settings)
                for node, value in node_values(tree, by_task[tree.task]).items()
                for name, number in (("value", value.mean), ("visits", float(value.visits)))
            ]
            counts = self.conduct(tree, [outcome for outcome, _ in tree.trajectories()])
            # The rollouts of a tree are finished dialogues, so there are no failures to count.
            del counts["failed"]
            return ItemResult(ItemKey(i, "reward", tree.task), counts, credit=tuple(credit))

        await on_trees(run.store, i, value_tree, progress, f"values {i}", in_flight=1)
        return totals(run.store, i, "reward", (name for name in COUNTS if name != "failed"))

    @stage("select", after="reward", uses="dpo.select")
    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select sibling pairs: value(u_w) > theta_filter, value(u_w) - value(u_l) > theta_diff (algorithm 5)."""
        selections, left_out = list[Selection](), list[LeftOut]()
        for tree in run.store.trees(i, "rollout"):
            # A pair's chosen side may need a minimum task score beside its value.
            score, s = mean_scores(tree).__getitem__, self.dpo_settings.select
            values = self.values(run, tree)
            pairs = sibling_pairs(tree, values, s, score)
            for pair in pairs:
                speaker = pair.chosen.speaker.name
                selections.append(Selection(pair.chosen.id, speaker, rejected=pair.rejected.id))
            left_out += unpaired(tree, values, pairs, partial(sibling_reason, s, score))
        run.select(i, selections, left_out)
        return {"tasks": len(run.store.tree_tasks(i, "rollout")), "selected": len(selections)}

    @stage("train", after="select", uses=("dpo.objective", "dpo.train", "train"), trains=POLICY)
    def prefer(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train M_{i+1} by DPO on the pairs, with M_i as the reference pi_ref.

        ``L = -log sigmoid(beta [log pi(u_w|h) / pi_ref(u_w|h) - log pi(u_l|h) / pi_ref(u_l|h)])``, plus
        ``nll * (mean -log pi(u_w|h))``.
        """
        s, pairs = self.dpo_settings, self.pairs(run, i)
        if not pairs:
            raise UserError(
                f"no pair was selected in iteration {i}: no utterance has a value above "
                f"dpo.select.theta_filter={s.select.theta_filter} and a sibling that is worse by "
                f"more than dpo.select.theta_diff={s.select.theta_diff}",
                "lower them with --fork FOLDER, or grow larger trees (dpo.search)",
            )
        job = TrainingJob.of(self, run, i, self.trainings()["dpo.train"], progress)
        return job.train_dpo(pairs, s.objective)

    # -- settings and size ----------------------------------------------------------------------

    @property
    def dpo_settings(self) -> DPORoundSettings:
        assert isinstance(self.settings, OptimaDPOSettings), "this method has no DPO iterations"
        return self.settings.dpo

    def is_dpo(self, iteration: int) -> bool:
        return self.settings.kinds()[iteration] == "dpo"

    def rule(self, iteration: int) -> RewardSettings:
        return self.dpo_settings.reward if self.is_dpo(iteration) else self.settings.reward

    def training_tasks(self) -> int:
        return max(self.settings.task_counts())

    def dialogues(self) -> int:
        count = 0
        for i in range(self.settings.iterations):
            each = self.settings.rollout.rollouts_per_task
            if self.is_dpo(i):
                search = self.dpo_settings.search
                each = search.searches * search.rollouts_per_search
                count += self.dpo_settings.probe_dialogues
            count += each * len(self.train_tasks(i))
        return count

    # -- tasks and episodes ---------------------------------------------------------------------

    def task_counts(self, iteration: int) -> list[int]:
        return self.settings.task_counts()[: iteration + 1]

    def episodes(self, iteration: int) -> list[Episode]:
        """Return N episodes per task; in iteration 0 each has a random format prompt."""
        return [
            Episode(task, sample, iteration, "rollout", self._format(task, sample, iteration))
            for task in self.train_tasks(iteration)
            for sample in range(self.settings.rollout.rollouts_per_task)
        ]

    def context(self, iteration: int) -> str | None:
        """Return the recontext rule for scoring and training on an iteration's dialogues."""
        pool = self.settings.rollout.format_pool and bool(formats_of(self.environment))
        return DROP_FORMAT if iteration == 0 and pool else None

    def _format(self, task: Task, sample: int, iteration: int) -> str | None:
        if self.context(iteration) is None:
            return None
        # The choice depends only on the dialogue, so that a resumed run makes the same one.
        key = digest("format", self.settings.seed, iteration, task.id, sample)
        return random.Random(key).choice(formats_of(self.environment))

    # -- rewards, values and training data ------------------------------------------------------

    def conduct(
        self, tree: Tree, outcomes: Sequence[Outcome], failed: int = 0
    ) -> dict[str, float | int | str]:
        turns = [agent_turns(tree.path(outcome.leaf)) for outcome in outcomes]
        return {
            "trajectories": len(outcomes),
            "failed": failed,
            "truncated": sum(outcome.ending == LENGTH for outcome in outcomes),
            "leaks": sum(count_leaks(dialogue_turns, self.agents) for dialogue_turns in turns),
            "repeats": sum(map(count_repeats, turns)),
        }

    def rewards(self, run: Run, iteration: int) -> dict[str, list[Reward]]:
        """Read the rewards computed under the current settings, by task. Failed tasks are left out."""
        settings = self.fingerprint(StageKey(iteration, "reward"))
        parts = {
            name: run.store.credit(settings, name, iteration=iteration, stage="rollout")
            for name in self.rule(iteration).names()
        }
        return {
            tree.task: [
                Reward(leaf, outcome.sample, {name: part[leaf] for name, part in parts.items()})
                for outcome, _ in tree.trajectories()
                if (leaf := outcome.leaf) in parts["task"]
            ]
            for tree in run.store.trees(iteration, "rollout")
        }

    def values(self, run: Run, tree: Tree) -> dict[str, Value]:
        settings = self.fingerprint(StageKey(tree.iteration, "reward"))
        credit = partial(run.store.credit, settings, nodes=(tree.root, *tree.turns))
        means, visits = credit("value"), credit("visits")
        return {node: Value(mean, round(visits[node])) for node, mean in means.items()}


def mean_scores(tree: Tree) -> dict[str, float]:
    scores_by_turn: dict[str, list[float]] = {}
    for outcome, path in tree.graded():
        for turn in path:
            scores_by_turn.setdefault(turn.id, []).append(outcome.score or 0.0)
    return {node: sum(scores) / len(scores) for node, scores in scores_by_turn.items()}
