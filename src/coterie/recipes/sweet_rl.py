"""SWEET-RL (arXiv 2503.15478): multi-turn collaboration with a user, trained with a critic that sees the reference.

Notation of the paper: observation history o_t, hidden reference c, action (turn) a_t of L tokens, trajectory tau with
reward r(tau), base policy pi_ref.

Method ``sweet`` trains offline, on dialogues of pi_ref:

    round 0   rollout   k dialogues per task between pi_ref and a simulated user who knows c
              select    pairs tau+, tau- of one task with r(tau+) > r(tau-): a success and a failure    (section 4.2)
              train     the critic A_theta by the trajectory-level Bradley-Terry loss:
                        J_A = -log sigmoid(sum_t beta A_theta(o_t+, a_t+, c) - sum_t beta A_theta(o_t-, a_t-, c))
                                                                                                         (equation 2)
                        A_theta(o_t, a_t, c) = (1/L) sum_l log[pi_theta(a_t^l | o_t, a_t^<l, c)
                                                              / pi_ref(a_t^l | o_t, a_t^<l, c)]          (equation 3)
    round 1   rollout   n candidates a_t ~ pi_ref(. | o_t) for each turn of a share of the dialogues
              reward    A_theta(o_t, a_t, c) of every candidate
              select    pairs a+, a- from the upper and lower half of a turn's candidates               (section 4.3)
              train     the policy pi_phi by DPO on these turns, without c in the prompt:
                        J_pi = -log sigmoid(beta' log[pi_phi(a+|o) / pi_ref(a+|o)]
                                            - beta' log[pi_phi(a-|o) / pi_ref(a-|o)])                   (equation 4)
                        plus nll * (mean -log pi_phi(a+|o)), with nll = 0.01, as in J_A                 (table 5)
    evaluate  pi_ref and pi_phi on held-out tasks

The simulated user, the grader and the critic see c. :func:`~coterie.environments.collaboration.with_reference` adds it
to the critic's prompts, in training rows (:meth:`SweetRL.training_view`) and where it scores candidates
(:class:`TrainedCritic`); pi_ref in equation 3 has the same prompt. With ``critic.privileged=false`` the critic does not
see it. The policy never does, in rollouts or in its training rows, which have the prompts of the rollouts: c is a
:class:`~coterie.record.tree.Secret`, and rendering it for another reader is an error.

The baselines have one round and train the policy on the same dialogues: ``rejection_ft`` by SFT on all successes,
``multi_turn_dpo`` by DPO on pairs of whole dialogues.

Deliberate deviations from the released code:

* A dialogue's score is the sum over turns of mean log-ratios, as in the paper. The code's mean over all tokens is
  ``critic.objective.reduction=tokens``.
* Critic and reference model score a candidate's own tokens in the same context.
* Only the agent's own tokens are targets of the losses.
* The reference c is inside the system prompt, not before it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from coterie.config.folders import sha256
from coterie.datasets.files import trajectory_file
from coterie.engines.chat_model import check_chat, open_chat
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import POLICY, EngineError, EngineGone
from coterie.environments.coding import BackendProgramming, Coding
from coterie.environments.collaboration import (
    CRITIC,
    REFERENCE,
    Collaboration,
    transcript,
    visible,
    with_reference,
)
from coterie.environments.pages.frontend import Frontend
from coterie.environments.protocol import AGENT
from coterie.environments.registry import check_no_tools
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.prefix_trie import CostRule
from coterie.progress import Progress
from coterie.recipes.base import EVALUATION_USES, Recipe, TurnCritic
from coterie.recipes.plan import Plan
from coterie.recipes.sweet_rl_offline import play_offline
from coterie.recipes.sweet_rl_settings import FIRST, SECOND, SweetSettings
from coterie.recipes.trainings import TrainingJob, train_sft
from coterie.record.rows import (
    LabeledTrajectory,
    Pair,
    View,
    labeled_trajectory,
    recontext,
    trajectory_pair,
    turn_pair,
    view,
)
from coterie.record.tree import Credit, ItemKey, LeftOut, Metrics, Selection, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.critics import HeadCritic, Judge, LikelihoodCritic, Situation, StepCritic
from coterie.rollout.candidates import CandidateSampling, PlayedDialogue, candidates
from coterie.runs.loop import EVALUATION, Role, Stage, load_selections, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.work_items import ItemResult, do_items, on_trees, sampled_tokens, totals
from coterie.selection import difference_pairs, ranked_pairs, trajectory_pairs
from coterie.training.settings import DPOSettings

PRIVILEGED = "with_reference"
"""Recontext rule of the critic's rows, whose prompts contain the reference."""
TREES_IN_FLIGHT, DIALOGUES_IN_FLIGHT = 8, 64
"""Trees scored and dialogues branched concurrently."""


TURN_USES = ("rollout.max_tokens", "engine")
CANDIDATE_USES = ("candidates.share", "candidates.count", "candidates.temperature")
"""Settings that turns, and candidates for turns, depend on."""


class SweetRL(Recipe):
    """The SWEET-RL recipe."""

    settings: SweetSettings
    environment: Collaboration

    def __init__(self, settings: SweetSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        # Programs are graded by tests, and web pages by a similarity without a fixed limit of
        # success.
        self.min_difference = getattr(settings, "min_difference", None)
        environment_type, dataset = (
            (Coding, "colbench_code") if self.min_difference is None else (Frontend, "websight")
        )
        if not isinstance(self.environment, environment_type):
            raise UserError(
                f"{self.name} needs an environment for {environment_type.__name__.lower()}, and {settings.benchmark} "
                "is not one",
                f"remove dataset and environment, use dataset={dataset}, or derive your environment from "
                f"{environment_type.__module__}.{environment_type.__name__}",
            )

    def roles(self) -> tuple[Role, ...]:
        """Return the policy and the critic, both initialized from the base model."""
        base = self.settings.model
        return (Role(POLICY, base), Role(CRITIC, base, head=self.settings.critic.has_head))

    def stages(self) -> list[Stage]:
        """Return the stages of the method. A judge needs no pairs and no training stage."""
        s, stages = self.settings, [self.evaluation(FIRST)]
        (rollout,) = self.make_stages(FIRST, self.rollout)
        stages.append(rollout)
        trained = list[Stage]()
        if not self.has_critic:
            baseline = self.rejection_ft if s.method == "rejection_ft" else self.multi_turn_dpo
            stages += self.make_stages(FIRST, self.select, baseline, after=[rollout])
        else:
            if s.critic.kind != "judge":
                stages += self.make_stages(FIRST, self.select, self.train_critic, after=[rollout])
                trained = stages[-1:]
            (branch,) = self.make_stages(SECOND, self.branch, after=[rollout])
            methods = (self.reward, self.select_turns, self.train_turns)
            stages += [branch, *self.make_stages(SECOND, *methods, after=[branch, *trained])]
        return [*stages, self.evaluation(s.iteration_count, stages[-1:])]

    # -- round 0 --------------------------------------------------------------------------------

    @stage(
        "rollout",
        uses=(*TURN_USES, "rollout"),
        # The settings only name the file of dialogues, and the stage depends on its content.
        depends=lambda recipe, i: recipe.offline_content,
    )
    async def rollout(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Sample k dialogues per task with the base policy, or read them from a file."""
        s = self.settings
        if (file := self.offline) is not None:
            assert isinstance(self.environment, BackendProgramming), "checked by the plan"
            return await play_offline(self.environment, s, run, file, progress)
        episodes = self.rollout_episodes(FIRST, s.rollout.rollouts_per_task)
        return await self.play(run, episodes, s.rollout.temperature, s.rollout.top_p, progress)

    @stage(
        "select",
        uses=lambda recipe, i: ["min_reward", *["min_difference"] * bool(recipe.min_difference)],
        depends=lambda recipe, i: (recipe.has_critic, recipe.settings.method == "rejection_ft"),
    )
    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select pairs of one task; for ``rejection_ft`` all successes.

        A pair is a success and a failure, or of web pages two dialogues whose similarities differ enough.
        """
        selections, left_out = list[Selection](), list[LeftOut]()
        shares = rewards(run, self.environment.reward)
        min_share = self.settings.min_reward
        for tree in run.store.trees(FIRST, "rollout"):
            leaves = [(o.leaf, shares[tree.task, o.sample]) for o, _ in tree.trajectories()]
            earlier = len(selections)
            if self.settings.method == "rejection_ft":
                selections += [
                    Selection(leaf, AGENT) for leaf, share in leaves if share >= min_share
                ]
            else:
                pairs = (
                    difference_pairs(leaves, self.min_difference)
                    if self.min_difference
                    else trajectory_pairs(leaves, min_share)
                )
                selections += [Selection(best, AGENT, rejected=worse) for best, worse in pairs]
            used = {node for s in selections[earlier:] for node in (s.leaf, s.rejected)}
            for leaf, share in leaves:
                # Of equally good dialogues, only the first is chosen.
                reason = "below_min_reward" if share < min_share else "equal_reward"
                reason = "small_difference" if self.min_difference else reason
                if leaf not in used:
                    left_out.append(LeftOut(tree.task, leaf, reason, AGENT, share))
        run.select(FIRST, selections, left_out)
        return {"tasks": len(run.store.tree_tasks(FIRST, "rollout")), "selected": len(selections)}

    @stage("train", after="select", uses=("critic", "train"), trains=CRITIC)
    def train_critic(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the critic from the base model (equations 2 and 3)."""
        s, training = self.settings.critic, self.trainings()["critic.train"]
        # A classifier learns from single dialogues, other critics from pairs.
        is_classifier = s.kind == "classifier"
        items: list[Any] = (
            self.labeled_dialogues(run) if is_classifier else self.pairs(run, FIRST, CRITIC)
        )
        job = TrainingJob.of(self, run, FIRST, training, progress, CRITIC)
        # With log-ratios as advantages (equation 3), the loss of equation 2 is DPO on whole dialogues.
        if s.kind == "likelihood":
            return job.train_dpo(items, s.objective)
        # torch takes seconds to import
        from coterie.training.losses import Classifier, Objective, Regression

        head: Objective[Any] = Classifier() if is_classifier else Regression()
        return job.train(items, head)

    @stage("train", after="select", uses=("rejection_ft", "train"), trains=POLICY)
    def rejection_ft(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the policy by SFT on all successes (baseline)."""
        training = self.trainings()["rejection_ft.train"]
        return train_sft(self, run, FIRST, training, progress, role=POLICY)

    @stage("train", after="select", uses=("multi_turn_dpo", "train"), trains=POLICY)
    def multi_turn_dpo(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the policy by DPO on pairs of whole dialogues (baseline)."""
        return self.prefer(run, FIRST, "multi_turn_dpo", progress)

    # -- round 1 --------------------------------------------------------------------------------

    @stage("rollout", uses=(*CANDIDATE_USES, "rollout.top_p", "engine"))
    async def branch(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Sample candidates a_t ~ pi_ref(. | o_t) for the turns of a share of the dialogues."""
        s = self.settings
        # Candidates come from the base policy pi_ref, which is version 0.
        sampler = await self.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
        async with self.actors(run) as actors:
            driver = actors.driver({AGENT: sampler}, s.seed)
            async with driver.sessions() as sessions:
                count, reward = s.candidates.count, self.environment.reward
                branching = CandidateSampling(driver, sampler, sessions, SECOND, "rollout", count)
                branch = partial(_branch_dialogue, branching)
                items = {
                    ItemKey(SECOND, "rollout", d.task.id, d.key): partial(branch, d)
                    for d in dialogues_to_branch(run, s.candidates.share, reward)
                }
                title, tokens = f"candidates {SECOND}", sampled_tokens([sampler])
                limits: dict[str, Any] = {
                    "in_flight": DIALOGUES_IN_FLIGHT,
                    "sampled_tokens": tokens,
                }
                await do_items(run.store, items, progress, "dialogues", title, **limits)
        results = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
        failed = len(run.store.failures(SECOND, "rollout"))
        count = sum(int(metrics["candidates"]) for metrics in results)
        return {"dialogues": len(results), "failed": failed, "candidates": count}

    @stage("reward", uses=(*CANDIDATE_USES, "critic"), alone=True)
    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store A_theta(o_t, a_t, c) of every candidate as credit (equation 3)."""
        settings = self.fingerprint(StageKey(SECOND, "reward"))
        async with self.open_critic(run) as critic:

            async def score(tree: Tree) -> ItemResult:
                return await score_candidates(critic, run.store.task(tree.task), tree, settings)

            title = f"advantages {SECOND}"
            await on_trees(run.store, SECOND, score, progress, title, in_flight=TREES_IN_FLIGHT)
            counts = critic.counts
        return {**totals(run.store, SECOND, "reward", ("turns", "unscored")), **counts}

    @stage("select", after="reward", uses="pairs")
    def select_turns(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pair candidates of the upper half of a turn's advantages with candidates of the lower half."""
        s, settings = self.settings, self.fingerprint(StageKey(SECOND, "reward"))
        selections, left_out, turns = list[Selection](), list[LeftOut](), 0
        for tree in run.store.trees(SECOND, "rollout"):
            groups = candidates(tree)
            nodes = [turn.id for group in groups for turn in group]
            scores = run.store.credit(settings, "advantage", nodes)
            for group in groups:
                if any(turn.id not in scores for turn in group):
                    # The critic failed on this turn and its item records the error.
                    left_out += [LeftOut(tree.task, t.id, "unscored", AGENT) for t in group]
                    continue
                # Each turn draws its pairs with its own seed, whatever other turns were scored.
                seed = digest("pairs", s.seed, group[0].id)
                group_scores = {turn.id: scores[turn.id] for turn in group}
                pairs = ranked_pairs(group_scores, s.pairs, seed)
                selections += [Selection(best, AGENT, rejected=worse) for best, worse in pairs]
                pair_nodes = {node for pair in pairs for node in pair}
                left_out += [
                    LeftOut(tree.task, node, "not_drawn", AGENT, score)
                    for node, score in group_scores.items()
                    if node not in pair_nodes
                ]
            turns += len(groups)
        run.select(SECOND, selections, left_out)
        return {"turns": turns, "selected": len(selections)}

    @stage("train", after="select", uses=("policy", "train"), trains=POLICY)
    def train_turns(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the policy by DPO with an NLL term on these turns, without c (equation 4)."""
        return self.prefer(run, SECOND, "policy", progress)

    @stage(EVALUATION, uses=(*EVALUATION_USES, *TURN_USES))
    async def evaluate(self, run: Run, version: int, progress: Progress) -> Metrics:
        return await super().evaluate(run, version, progress)

    # -- settings, size and tasks ---------------------------------------------------------------

    @property
    def has_critic(self) -> bool:
        """True for ``method=sweet``, whose round 1 needs a critic or a judge."""
        return self.settings.method == "sweet"

    def critic(self, run: Run) -> TurnCritic | None:
        """Return the critic or the judge of round 1, if the method has one. Raises ``UserError`` if untrained."""
        if not self.has_critic:
            return None
        return TurnCritic(self._critic_fingerprint(run), lambda: self.open_critic(run))

    def _critic_fingerprint(self, run: Run) -> str:
        """Return a hash of the critic's settings and weights. Raises ``UserError`` if it is not trained."""
        settings = self.fingerprint(StageKey(SECOND, "reward"))
        # A judge has no trained weights.
        if self.settings.critic.kind == "judge":
            return settings
        final = run.training_folder(FIRST, CRITIC) / "final"
        if not final.is_dir():
            problem = f"the critic of {run.folder} is not trained"
            raise UserError(problem, f"train it with: coterie stage train {run.folder}")
        from coterie.training.checkpoint import weight_hash

        return f"{settings} {weight_hash(final)}"

    @asynccontextmanager
    async def open_critic(self, run: Run) -> "AsyncIterator[TrainedCritic | JudgeCritic]":
        s = self.settings.critic
        if s.kind == "judge":
            settings = s.judge
            # The base model of the run is the judge by default.
            if settings.url is None and settings.model == POLICY:
                settings = settings.model_copy(update={"model": self.settings.model})
            async with open_chat(settings) as chat:

                async def say(messages: list[Utterance]) -> str:
                    return (await chat.ask(messages, 0)).text

                judge = Judge(say, seed=self.settings.seed)
                yield JudgeCritic(self.environment, judge, s.privileged)
            return
        models = self.models(run)
        if s.kind == "likelihood":
            # The critic's version 1 is trained in round 0. The reference pi_ref is the base policy.
            engine, base = models.embedded(CRITIC, FIRST + 1), models.embedded(POLICY, 0)
            # Without normalization, log-ratios are summed over a turn and not divided by its length
            # L.
            is_sum = s.objective.reduction == "none"
            step: StepCritic = LikelihoodCritic(engine, base, "none" if is_sum else "tokens")
            yield TrainedCritic(step, engine.loaded.renderer, s.privileged)
            return
        critic = models.load(CRITIC, FIRST + 1)
        rule = CostRule.of(critic.model)
        step = HeadCritic(critic, "mean" if s.kind == "regression" else "last", rule)
        yield TrainedCritic(step, critic.renderer, s.privileged)

    def plan(self) -> Plan:
        check_chat("critic.judge", self.settings.critic.judge, POLICY)
        if (file := self.offline) is not None:
            if not isinstance(self.environment, BackendProgramming):
                raise UserError(
                    f"offline needs ColBench tasks, and {self.settings.benchmark} has other tasks",
                    "use dataset=colbench_code",
                )
            if not file.is_file():
                raise UserError(f"offline={file} is not a file", "correct the path")
        return super().plan()

    @property
    def offline(self) -> Path | None:
        return None if self.settings.offline is None else trajectory_file(self.settings.offline)

    @cached_property
    def offline_content(self) -> tuple[str, ...]:
        file = self.offline
        return () if file is None else (sha256(file) if file.is_file() else "",)

    def dialogues(self) -> int:
        """Return the number of dialogues; n candidates for every turn of a dialogue count as n dialogues."""
        s = self.settings
        sampled_dialogues = len(self.train_tasks()) * s.rollout.rollouts_per_task
        branched = max(1, int(sampled_dialogues * s.candidates.share)) * s.candidates.count
        return sampled_dialogues + branched * self.has_critic

    def context_reserve(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """Return the tokens of a turn, plus the tokens of the longest reference if the critic reads it."""
        critic, reference_tokens = self.settings.critic, 0
        # Only a trained critic that sees the reference has longer prompts than the policy.
        if self.has_critic and critic.kind != "judge" and critic.privileged:
            texts = (task.secrets[REFERENCE].reveal(CRITIC) for task in train)
            reference_tokens = max(len(renderer.encode_turn(text)) for text in texts)
        return self.settings.turn_tokens + reference_tokens

    # -- training data --------------------------------------------------------------------------

    def trains_critic(self, iteration: int) -> bool:
        return iteration == FIRST and self.has_critic

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        role = CRITIC if self.trains_critic(iteration) else POLICY
        for tree, selection in load_selections(run, iteration):
            yield role, tree, selection

    def training_view(
        self, run: Run, tree: Tree, selection: Selection, leaf: str | None = None
    ) -> View:
        """Return a dialogue as the policy saw it; the critic's prompts may contain the reference c."""
        leaf = leaf or selection.leaf
        # Only the critic's rows contain the reference, never the policy's.
        if not (self.trains_critic(tree.iteration) and self.settings.critic.privileged):
            return view(tree, leaf, AGENT)
        render = partial(self.renderers[CRITIC].render, privileges=CRITIC)
        edit = with_reference(run.store.task(tree.task))
        return recontext(tree, leaf, AGENT, name=PRIVILEGED, edit=edit, render=render)

    def make_pair(self, tree: Tree, selection: Selection, chosen: View, rejected: View) -> Pair:
        """Pair whole dialogues in round 0, and turns in round 1."""
        if tree.iteration == FIRST:
            return trajectory_pair(chosen, rejected, group=tree.task)
        return turn_pair(chosen, rejected, group=tree.turns[selection.leaf].parent)

    def prefer(self, run: Run, iteration: int, phase: str, progress: Progress) -> Metrics:
        """Train the policy by DPO on the selected pairs, starting from the base model."""
        pairs = self.pairs(run, iteration, POLICY)
        objective: DPOSettings = getattr(self.settings, phase).objective
        train = self.trainings()[f"{phase}.train"]
        return TrainingJob.of(self, run, iteration, train, progress).train_dpo(pairs, objective)

    def pairs(self, run: Run, iteration: int, role: str | None = None) -> list[Pair]:
        """Return the selected pairs. Raises ``UserError`` without any."""
        pairs = super().pairs(run, iteration, role)
        if not pairs:
            raise UserError(
                f"no pair was selected in round {iteration}",
                "sample more tasks or repeats (rollout.tasks, rollout.rollouts_per_task): pairs need "
                + (
                    f"similarities that differ by {self.min_difference:g} on one task; or lower min_difference"
                    if self.min_difference
                    else "a full success and a failure on one task; or lower min_reward"
                )
                if iteration == FIRST
                else "raise candidates.share or candidates.count; unreadable verdicts of a judge make all candidates "
                "equal",
            )
        return pairs

    def labeled_dialogues(self, run: Run) -> list[LabeledTrajectory]:
        """Return all dialogues of round 0, each with its success (ablation ``critic.kind=classifier``)."""
        shares, items = rewards(run, self.environment.reward), []
        for tree in run.store.trees(FIRST, "rollout"):
            for outcome, _ in tree.trajectories():
                agent_view = self.training_view(run, tree, Selection(outcome.leaf, AGENT))
                succeeded = shares[tree.task, outcome.sample] >= self.settings.min_reward
                items.append(labeled_trajectory(agent_view, succeeded, group=tree.task))
        return items


def rewards(run: Run, name: str = Coding.reward) -> dict[tuple[str, int], float]:
    """Return the reward of each dialogue (by default the share of tests passed), by task and sample."""
    return {
        (key.task, int(key.sample)): float(metrics[name])
        for key, metrics in run.store.metrics(FIRST, "rollout").items()
        if key.task and name in metrics
    }


def dialogues_to_branch(run: Run, share: float, name: str = Coding.reward) -> list[PlayedDialogue]:
    """Return the dialogues whose turns get candidates: the first of every task before the second of any task."""
    keys = sorted((sample, task) for task, sample in rewards(run, name))
    dialogues = []
    for sample, name in keys[: max(1, int(len(keys) * share))]:
        tree = run.store.tree(FIRST, "rollout", name)
        path = next(path for o, path in tree.trajectories() if o.sample == sample)
        dialogues.append(PlayedDialogue(run.store.task(name), sample, path))
    return dialogues


async def _branch_dialogue(branching: CandidateSampling, dialogue: PlayedDialogue) -> ItemResult:
    key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
    try:
        tree = await branching.branch(dialogue)
    except EngineGone:
        # Without an engine every further dialogue would fail, so the stage stops.
        raise
    except EngineError as error:
        return ItemResult(key, {"candidates": 0}, failure=str(error))
    return ItemResult(key, {"candidates": sum(map(len, candidates(tree)))}, tree)


# -- critics of turns ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainedCritic:
    """Trained critic: ``A = (1/L) sum_l log[pi_theta(a_l | o, a_<l, c) / pi_ref(a_l | o, a_<l, c)]`` (equation 3).

    Regression and classifier critics use their head instead. Without ``privileged`` the prompt omits the reference c.
    """

    step: StepCritic
    renderer: ChatRenderer
    privileged: bool
    counts: ClassVar[dict[str, int]] = {}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        """Return A(o_t, a_t, c) of each candidate ``a_t`` of one turn. Raises ``EngineError``."""
        assert group[0].prompt is not None, "a candidate answers a request"
        # The prompt of the candidates, with the reference added if the critic may see it.
        messages, render = tree.messages(tree.requests[group[0].prompt]), self.renderer.render
        if self.privileged:
            prompt = render(with_reference(task)(messages), tree, AGENT, privileges=CRITIC)
        else:
            prompt = render(messages, tree, AGENT)
        return await self.step.advantages(prompt, [turn.ids for turn in group])


@dataclass(frozen=True, slots=True)
class JudgeCritic:
    """Chat model that compares candidates pairwise."""

    environment: Collaboration
    judge: Judge
    privileged: bool
    renderer: ClassVar[None] = None

    @property
    def counts(self) -> dict[str, int]:
        """Number of comparisons, and of unreadable verdicts, which count as ties."""
        return {"comparisons": self.judge.comparisons, "unreadable": self.judge.unreadable}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        """Return each candidate's share of comparisons won."""
        parent = group[0].parent
        situation = Situation(
            f"{task.id}/{parent}",
            str(task.public["question"]),
            task.secrets[REFERENCE].reveal(CRITIC) if self.privileged else "(not shown)",
            transcript(tree.path(parent)),
        )
        texts = [visible(turn.text) for turn in group]
        return await self.judge.wins(situation, texts)


async def score_candidates(
    critic: TrainedCritic | JudgeCritic, task: Task, tree: Tree, settings: str
) -> ItemResult:
    """Score a tree's candidates and count the turns that the critic failed on. Raises ``EngineGone``."""
    groups = candidates(tree)
    # Errors are collected, so that a turn that fails does not discard the others.
    results = await asyncio.gather(
        *(critic.advantages(task, tree, group) for group in groups), return_exceptions=True
    )
    credit, errors = [], []
    for group, values in zip(groups, results, strict=True):
        if isinstance(values, EngineError) and not isinstance(values, EngineGone):
            errors.append(values)
        elif isinstance(values, BaseException):
            raise values
        else:
            credit += [
                Credit(turn.id, "advantage", value, settings)
                for turn, value in zip(group, values, strict=True)
            ]
    # The item fails only if the critic failed on all turns.
    failure = str(errors[0]) if errors and not credit else None
    metrics = {"turns": len(groups) - len(errors), "unscored": len(errors)}
    return ItemResult(ItemKey(SECOND, "reward", tree.task), metrics, None, tuple(credit), failure)
