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

The baselines have one round and train the policy on the same dialogues: ``rejection_ft`` by SFT on all successes,
``multi_turn_dpo`` by DPO on pairs of whole dialogues.

Deliberate deviations from the released code:

* A dialogue's score is the sum over turns of mean log-ratios, as in the paper. The code's mean over all tokens is
  ``critic.objective.normalise=tokens``.
* Critic and reference model score a candidate's own tokens in the same context.
* Only the agent's own tokens are targets of the losses.
* The reference c is inside the system prompt, not before it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from coterie.config.folders import expanded
from coterie.engines.chat_model import open_chat
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import POLICY, EngineError, EngineGone
from coterie.environments.coding import AGENT, CRITIC, Coding, transcript
from coterie.environments.user_simulator import REFERENCE
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.models.prefix_trie import CostRule
from coterie.progress import Progress
from coterie.recipes.sweet_rl.data import (
    FIRST,
    PRIVILEGED,
    SECOND,
    SweetData,
    critic_prompt,
    dialogue_view,
    dialogues_to_branch,
    pairs,
    play_offline,
    rewards,
)
from coterie.recipes.sweet_rl.settings import CriticSettings, PolicySettings
from coterie.recipes.trainings import prefer, train_role
from coterie.record.rows import LabeledTrajectory, Pair, Row, labeled_trajectory, rows, view
from coterie.record.tree import Credit, ItemKey, Metrics, Selection, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.critics import HeadCritic, Judge, LikelihoodCritic, Situation, StepCritic
from coterie.rollout.candidates import CandidateSampling, PlayedDialogue, candidates
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, do_items, on_trees
from coterie.runs.loop import Stage
from coterie.runs.roles import Role, load_selections
from coterie.selection import ranked_pairs, trajectory_pairs
from coterie.training.losses import Classifier, Regression
from coterie.training.settings import TrainingSettings


def prefer_selected(
    recipe: SweetData, run: Run, iteration: int, s: PolicySettings, progress: Progress
) -> Metrics:
    """Train the policy by DPO on the selected pairs, starting from the base model."""
    model = recipe.models(run).load_to_train(POLICY, 0)
    training_pairs, seeded = (
        _pairs(recipe, run, iteration, model),
        recipe.seeded(s.train, iteration),
    )
    return prefer(run, iteration, model, training_pairs, s.objective, seeded, progress, role=POLICY)


def imitate(recipe: SweetData, run: Run, settings: TrainingSettings, progress: Progress) -> Metrics:
    """Train the policy by SFT on successful dialogues."""
    training_rows: list[Row] = []
    for tree, selection in load_selections(run, FIRST):
        training_rows += [row for row in rows(view(tree, selection.leaf, AGENT)) if row.targets]
    if not training_rows:
        raise UserError(
            "no dialogue succeeded, so there is nothing to train on", "sample more tasks"
        )
    model = recipe.models(run).load_to_train(POLICY, 0)
    seeded = recipe.seeded(settings, FIRST)
    return train_role(run, FIRST, model, training_rows, seeded, progress, role=POLICY)


def train_critic(recipe: SweetData, run: Run, s: CriticSettings, progress: Progress) -> Metrics:
    """Train a likelihood or regression critic by the Bradley-Terry loss (equation 2)."""
    model = recipe.models(run).load_to_train(CRITIC, 0)
    training_pairs, seeded = _pairs(recipe, run, FIRST, model), recipe.seeded(s.train, FIRST)
    if s.kind == "likelihood":
        return prefer(run, FIRST, model, training_pairs, s.objective, seeded, progress, role=CRITIC)
    return train_role(
        *(run, FIRST, model, training_pairs, seeded, progress),
        objective=Regression(),
        role=CRITIC,
    )


def train_value_critic(
    recipe: SweetData, run: Run, s: CriticSettings, progress: Progress
) -> Metrics:
    """Train a value function to predict the success of dialogues (ablation ``critic.kind=classifier``)."""
    model = recipe.models(run).load_to_train(CRITIC, 0)
    shares, threshold = rewards(run), recipe.settings.min_reward
    context = PRIVILEGED if s.privileged else None
    items: list[LabeledTrajectory] = []
    for tree in run.store.trees(FIRST, "rollout"):
        task = run.store.task(tree.task)
        for outcome, _ in tree.trajectories():
            critic_view = dialogue_view(task, tree, outcome.leaf, context, model)
            succeeded = shares[tree.task, outcome.sample] >= threshold
            items.append(labeled_trajectory(critic_view, succeeded, group=tree.task))
    return train_role(
        *(run, FIRST, model, items, recipe.seeded(s.train, FIRST), progress),
        objective=Classifier(),
        role=CRITIC,
    )


def _pairs(recipe: SweetData, run: Run, iteration: int, model: LoadedModel) -> list[Pair]:
    """Return the selected pairs. Raises ``UserError`` if nothing was selected."""
    training_pairs = pairs(run, iteration, model, recipe.context(iteration))
    if not training_pairs:
        raise UserError(
            f"no pair was selected in round {iteration}",
            "sample more tasks or repeats (rollout.tasks, rollout.repeats): pairs need a full success "
            "and a failure on one task; or lower min_reward"
            if iteration == FIRST
            else "raise candidates.share or candidates.count; unreadable verdicts of a judge make all candidates "
            "equal",
        )
    return training_pairs


async def branch(recipe: SweetData, run: Run, round_: int, progress: Progress) -> Metrics:
    """Sample candidates a_t ~ pi_ref(. | o_t) for the turns of a share of the dialogues."""
    s = recipe.settings
    sampler = await recipe.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    async with recipe.actors(run) as actors:
        driver = actors.driver({AGENT: sampler}, s.seed)
        async with driver.sessions() as sessions:
            count = s.candidates.count
            branching = CandidateSampling(driver, sampler, sessions, SECOND, "rollout", count)
            items = {
                ItemKey(SECOND, "rollout", one.task.id, one.key): partial(
                    _branch_dialogue, branching, one
                )
                for one in dialogues_to_branch(run, s.candidates.share)
            }
            await do_items(
                *(run.store, items, progress, "dialogues", f"candidates {SECOND}"),
                in_flight=s.candidates.in_flight,
                sampled_tokens=lambda: stats.sampled_tokens - before,
            )
    results = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
    failed = sum(key.stage == "rollout" for key, _ in run.store.failures(SECOND))
    count = sum(int(metrics["candidates"]) for metrics in results)
    return {"dialogues": len(results), "failed": failed, "candidates": count}


async def _branch_dialogue(branching: CandidateSampling, dialogue: PlayedDialogue) -> Done:
    key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
    try:
        tree = await branching.branch(dialogue)
    except EngineGone:
        raise
    except EngineError as error:
        return Done(key, {"candidates": 0}, failure=str(error))
    return Done(key, {"candidates": sum(map(len, candidates(tree)))}, tree)


class SweetRL(SweetData):
    """The SWEET-RL recipe."""

    def roles(self) -> tuple[Role, ...]:
        """Return the policy and the critic, both initialized from the base model."""
        head = self.settings.critic.has_head
        base = self.settings.model
        return (Role(POLICY, base), Role(CRITIC, base, head=head))

    def stages(self) -> list[Stage]:
        """Return the stages of the method. A judge needs no training stage."""
        s, stage = self.settings, self.stage
        has_judge = s.critic.kind == "judge"
        talk = (s.user_simulator.identity(), s.rollout.max_tokens, *s.engine.identity())
        evaluation = partial(self.evaluation, depends=(*talk, s.evaluate.fingerprint()))
        sampling = (*talk, s.rollout.fingerprint(), *self.offline_content)
        rollout = stage(FIRST, "rollout", self.rollout, (), sampling)
        stages = [evaluation(FIRST, ()), rollout]
        if not (self.uses_critic and has_judge):
            selection = (self.uses_critic, s.method == "rejection_ft", s.min_reward)
            stages.append(stage(FIRST, "select", self.select, [rollout], selection))
            role = CRITIC if self.uses_critic else POLICY
            training = self.first_training()
            stages.append(stage(FIRST, "train", self.train, stages[-1:], training, trains=role))
        if self.uses_critic:
            stages += self.second_round(rollout, [] if has_judge else stages[-1:])
        return [*stages, evaluation(s.rounds, stages[-1:])]

    def second_round(self, rollout: Stage, critic: Sequence[Stage]) -> list[Stage]:
        """Return the stages of round 1: candidates, advantages, pairs, policy training."""
        s, stage = self.settings, self.stage
        candidate_settings = (s.candidates.share, s.candidates.count, s.candidates.temperature)
        sampling = (*candidate_settings, s.rollout.top_p, *s.engine.identity())
        scoring = (*candidate_settings, *self.critic_training())
        training = (s.policy.objective.fingerprint(), s.policy.train.identity())
        branching = stage(SECOND, "rollout", partial(branch, self), [rollout], sampling)
        reward = stage(SECOND, "reward", self.reward, [branching, *critic], scoring, alone=True)
        select = stage(SECOND, "select", self.select_turns, [reward], [s.pairs.fingerprint()])
        train = stage(SECOND, "train", self.train_turns, [select], training, trains=POLICY)
        return [branching, reward, select, train]

    # -- round 0 --------------------------------------------------------------------------------

    async def rollout(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Sample k dialogues per task with the base policy, or read them from a file."""
        if self.settings.offline is not None:
            return await play_offline(self, run, expanded(self.settings.offline), progress)
        s = self.settings.rollout
        return await self.play(run, self.episodes(), s.temperature, s.top_p, progress)

    def select(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Select pairs of a success and a failure on one task; for ``rejection_ft`` all successes."""
        selections, tasks = list[Selection](), 0
        shares, threshold = rewards(run), self.settings.min_reward
        for tree in run.store.trees(FIRST, "rollout"):
            tasks += 1
            leaves = [(o.leaf, shares[tree.task, o.sample]) for o, _ in tree.trajectories()]
            if self.settings.method == "rejection_ft":
                selections += [
                    Selection(leaf, AGENT) for leaf, reward in leaves if reward >= threshold
                ]
                continue
            leaf_pairs = trajectory_pairs(leaves, threshold)
            selections += [Selection(best, AGENT, rejected=worse) for best, worse in leaf_pairs]
        run.select(FIRST, selections)
        return {"tasks": tasks, "selected": len(selections)}

    def train(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Train the critic (equations 2 and 3), or the policy of a baseline, from the base model."""
        s = self.settings
        if s.method == "rejection_ft":
            return imitate(self, run, s.rejection_ft.train, progress)
        if s.method == "multi_turn_dpo":
            return prefer_selected(self, run, FIRST, s.multi_turn_dpo, progress)
        train = {"classifier": train_value_critic}.get(s.critic.kind, train_critic)
        return train(self, run, s.critic, progress)

    # -- round 1 --------------------------------------------------------------------------------

    async def reward(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Store A_theta(o_t, a_t, c) of every candidate as credit (equation 3)."""
        return await advantages(self, run, progress)

    def select_turns(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Pair candidates of the upper half of a turn's advantages with candidates of the lower half."""
        s, settings = self.settings, self.fingerprint(Step(SECOND, "reward"))
        selections, turns = list[Selection](), 0
        for tree in run.store.trees(SECOND, "rollout"):
            groups = candidates(tree)
            nodes = [turn.id for group in groups for turn in group]
            scores = run.store.credit(settings, "advantage", nodes)
            for group in groups:
                if any(turn.id not in scores for turn in group):
                    continue  # the critic failed on this turn and its item records the error
                seed = digest("pairs", s.seed, group[0].id)
                group_scores = {turn.id: scores[turn.id] for turn in group}
                for best, worse in ranked_pairs(group_scores, s.pairs, seed):
                    selections.append(Selection(best, AGENT, rejected=worse))
            turns += len(groups)
        run.select(SECOND, selections)
        return {"turns": turns, "selected": len(selections)}

    def train_turns(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Train the policy by DPO with an NLL term on these turns, without c (equation 4)."""
        return prefer_selected(self, run, SECOND, self.settings.policy, progress)


TREES_IN_FLIGHT = 8
"""Trees scored concurrently."""


class TurnCritic(Protocol):
    """Critic that scores the candidates of a turn."""

    @property
    def counts(self) -> dict[str, int]: ...

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        """Return A(o_t, a_t, c) of each candidate ``a_t`` of one turn. Raises ``EngineError``."""
        ...


async def score_candidates(critic: TurnCritic, task: Task, tree: Tree, settings: str) -> Done:
    """Score a tree's candidates and count the turns that the critic failed on.

    Raises ``EngineGone``.
    """
    groups = candidates(tree)
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
    failure = str(errors[0]) if errors and not credit else None
    metrics = {"turns": len(groups) - len(errors), "unscored": len(errors)}
    return Done(ItemKey(SECOND, "reward", tree.task), metrics, None, tuple(credit), failure)


async def advantages(recipe: SweetData, run: Run, progress: Progress) -> Metrics:
    """Store A(o_t, a_t, c) of every candidate of round 1 as credit."""
    settings = recipe.fingerprint(Step(SECOND, "reward"))
    async with open_critic(recipe, run) as critic:

        async def score(tree: Tree) -> Done:
            return await score_candidates(critic, run.store.task(tree.task), tree, settings)

        title = f"advantages {SECOND}"
        await on_trees(run.store, SECOND, score, progress, title, in_flight=TREES_IN_FLIGHT)
        counts = critic.counts
    tree_metrics = [m for key, m in run.store.metrics(SECOND, "reward").items() if key.task]
    totals = {name: sum(int(m[name]) for m in tree_metrics) for name in ("turns", "unscored")}
    return {**totals, **counts}


@dataclass(frozen=True, slots=True)
class TrainedCritic:
    """Trained critic: ``A = (1/L) sum_l log[pi_theta(a_l | o, a_<l, c) / pi_ref(a_l | o, a_<l, c)]`` (equation 3).

    Regression and classifier critics use their head instead. Without ``privileged`` the prompt omits the reference c.
    """

    step: StepCritic
    model: LoadedModel
    privileged: bool

    @property
    def counts(self) -> dict[str, int]:
        return {}

    async def advantages(self, task: Task, tree: Tree, group: Sequence[Turn]) -> list[float]:
        prompt = critic_prompt(task, tree, group[0], self.model, privileged=self.privileged)
        return await self.step.advantages(prompt, [turn.ids for turn in group])


@dataclass(frozen=True, slots=True)
class JudgeCritic:
    """Chat model that compares candidates pairwise."""

    environment: Coding
    judge: Judge
    privileged: bool

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
            transcript(self.environment, tree.path(parent)),
        )
        return await self.judge.wins(
            situation, [self.environment.visible(turn.text) for turn in group]
        )


@asynccontextmanager
async def open_critic(recipe: SweetData, run: Run) -> AsyncIterator[TurnCritic]:
    """Open the critic trained in round 0, or the judge."""
    s = recipe.settings.critic
    if s.kind == "judge":
        settings = s.judge
        if settings.url is None and settings.model == POLICY:
            settings = settings.model_copy(update={"model": recipe.settings.model})
        async with open_chat(settings, run.folder / "judge") as chat:

            async def say(messages: list[Utterance]) -> str:
                return (await chat.ask(messages, 0)).text

            judge = Judge(say, seed=recipe.settings.seed)
            yield JudgeCritic(recipe.environment, judge, s.privileged)
        return
    models = recipe.models(run)
    if s.kind == "likelihood":
        engine = models.embedded(CRITIC, FIRST + 1)
        critic = engine.loaded
        step: StepCritic = LikelihoodCritic(
            engine,
            models.embedded(POLICY, 0),
            "none" if s.objective.normalise == "none" else "tokens",
        )
    else:
        critic = models.load(CRITIC, FIRST + 1)
        rule = CostRule.of(critic.model)
        step = HeadCritic(critic, "mean" if s.kind == "regression" else "last", rule)
    yield TrainedCritic(step, critic, s.privileged)
