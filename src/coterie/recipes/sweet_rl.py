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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from coterie.config.folders import expanded, sha256
from coterie.engines.chat_model import check_chat, open_chat
from coterie.engines.endpoint import Utterance
from coterie.engines.protocol import POLICY, EngineError, EngineGone
from coterie.environments.coding import (
    AGENT,
    CRITIC,
    BackendProgramming,
    Coding,
    transcript,
    with_reference,
)
from coterie.environments.protocol import Openers
from coterie.environments.registry import check_no_tools
from coterie.environments.user_simulator import REFERENCE
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel
from coterie.models.prefix_trie import CostRule
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.registry import OpenCritic
from coterie.recipes.report import decoder, plain_report, selected_examples
from coterie.recipes.sweet_rl_offline import play_offline
from coterie.recipes.sweet_rl_settings import FIRST, SECOND, PolicySettings, SweetSettings
from coterie.recipes.trainings import imitate, prefer, train_role
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
from coterie.record.tree import Credit, ItemKey, Metrics, Selection, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.reports.page import Report, Section
from coterie.rewards.critics import HeadCritic, Judge, LikelihoodCritic, Situation, StepCritic
from coterie.rollout.episodes import Episode
from coterie.rollout.recorded_turns import CandidateSampling, PlayedDialogue, candidates
from coterie.runs.folder import Run, Step
from coterie.runs.items import Actors, Done, do_items, on_trees, open_actors, totals
from coterie.runs.loop import Stage
from coterie.runs.roles import Role, load_selections
from coterie.selection import ranked_pairs, trajectory_pairs
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.checkpoint import weight_hash
from coterie.training.losses import Classifier, Regression
from coterie.training.settings import TrainingSettings

PRIVILEGED = "with_reference"
"""Recontext rule of the critic's rows, whose prompts contain the reference."""
TREES_IN_FLIGHT, DIALOGUES_IN_FLIGHT = 8, 64
"""Trees scored and dialogues branched concurrently."""


class SweetRL(Recipe):
    """The SWEET-RL recipe."""

    settings: SweetSettings
    environment: Coding

    def __init__(self, settings: SweetSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, Coding):
            raise UserError(
                f"{self.name} needs a coding environment, and {settings.played} is not one",
                "remove dataset and environment, use dataset=colbench_code, or derive your environment from "
                "coterie.environments.coding.Coding",
            )

    def roles(self) -> tuple[Role, ...]:
        """Return the policy and the critic, both initialized from the base model."""
        base = self.settings.model
        return (Role(POLICY, base), Role(CRITIC, base, head=self.settings.critic.has_head))

    def stages(self) -> list[Stage]:
        """Return the stages of the method. A judge needs no training stage."""
        s, talk = self.settings, ("user_simulator", "rollout.max_tokens", "engine")
        evaluation = partial(self.evaluation, uses=talk)
        offline = self.offline_content
        rollout = self.stage(FIRST, "rollout", self.rollout, (), offline, uses=(*talk, "rollout"))
        stages = [evaluation(FIRST), rollout]
        critic = list[Stage]()
        if not (self.uses_critic and s.critic.kind == "judge"):
            method = (self.uses_critic, s.method == "rejection_ft")
            select = self.stage(
                FIRST, "select", self.select, [rollout], method, uses=["min_reward"]
            )
            role, training = (CRITIC, "critic") if self.uses_critic else (POLICY, s.method)
            critic = [
                self.stage(FIRST, "train", self.train, [select], uses=[training], trains=role)
            ]
            stages += [select, *critic]
        if self.uses_critic:
            stages += self.second_round(rollout, critic)
        return [*stages, evaluation(s.rounds, stages[-1:])]

    def second_round(self, rollout: Stage, critic: Sequence[Stage]) -> list[Stage]:
        sampled = ("candidates.share", "candidates.count", "candidates.temperature")
        sampling, scoring = (*sampled, "rollout.top_p", "engine"), (*sampled, "critic")
        branching = self.stage(SECOND, "rollout", self.branch, [rollout], uses=sampling)
        inputs = [branching, *critic]
        reward = self.stage(SECOND, "reward", self.reward, inputs, uses=scoring, alone=True)
        select = self.stage(SECOND, "select", self.select_turns, [reward], uses=["pairs"])
        train = self.stage(
            SECOND, "train", self.train_turns, [select], uses=["policy"], trains=POLICY
        )
        return [branching, reward, select, train]

    # -- round 0 --------------------------------------------------------------------------------

    async def rollout(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Sample k dialogues per task with the base policy, or read them from a file."""
        s = self.settings
        if s.offline is not None:
            assert isinstance(self.environment, BackendProgramming), "checked by the plan"
            return await play_offline(self.environment, s, run, expanded(s.offline), progress)
        episodes = [
            Episode(task, sample, FIRST, "rollout")
            for task in self.train_tasks()
            for sample in range(s.rollout.repeats)
        ]
        return await self.play(run, episodes, s.rollout.temperature, s.rollout.top_p, progress)

    def select(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Select pairs of a success and a failure on one task; for ``rejection_ft`` all successes."""
        selections, shares, least = list[Selection](), rewards(run), self.settings.min_reward
        for tree in run.store.trees(FIRST, "rollout"):
            leaves = [(o.leaf, shares[tree.task, o.sample]) for o, _ in tree.trajectories()]
            if self.settings.method == "rejection_ft":
                selections += [Selection(leaf, AGENT) for leaf, share in leaves if share >= least]
            else:
                pairs = trajectory_pairs(leaves, least)
                selections += [Selection(best, AGENT, rejected=worse) for best, worse in pairs]
        run.select(FIRST, selections)
        return {"tasks": len(run.store.tree_tasks(FIRST, "rollout")), "selected": len(selections)}

    def train(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Train the critic (equations 2 and 3), or the policy of a baseline, from the base model."""
        s = self.settings
        if s.method == "rejection_ft":
            return imitate(self, run, FIRST, s.rejection_ft.train, progress, role=POLICY)
        if s.method == "multi_turn_dpo":
            return self.prefer(run, FIRST, s.multi_turn_dpo, progress)
        model = self.models(run).load(CRITIC, 0, trainable=True)
        seeded = self.seeded(s.critic.train, FIRST)
        if s.critic.kind == "classifier":  # predict the success of dialogues
            items = self.labeled_dialogues(run, model)
            return train_role(
                *(run, FIRST, model, items, seeded, progress), objective=Classifier(), role=CRITIC
            )
        pairs = self.pairs(run, FIRST, model)
        if s.critic.kind == "regression":
            return train_role(
                *(run, FIRST, model, pairs, seeded, progress), objective=Regression(), role=CRITIC
            )
        return prefer(run, FIRST, model, pairs, s.critic.objective, seeded, progress, role=CRITIC)

    # -- round 1 --------------------------------------------------------------------------------

    async def branch(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Sample candidates a_t ~ pi_ref(. | o_t) for the turns of a share of the dialogues."""
        s = self.settings
        sampler = await self.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
        stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
        async with self.actors(run) as actors:
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
                    in_flight=DIALOGUES_IN_FLIGHT,
                    sampled_tokens=lambda: stats.sampled_tokens - before,
                )
        results = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
        failed = sum(key.stage == "rollout" for key, _ in run.store.failures(SECOND))
        count = sum(int(metrics["candidates"]) for metrics in results)
        return {"dialogues": len(results), "failed": failed, "candidates": count}

    async def reward(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Store A_theta(o_t, a_t, c) of every candidate as credit (equation 3)."""
        settings = self.fingerprint(Step(SECOND, "reward"))
        async with open_critic(self, run) as critic:

            async def score(tree: Tree) -> Done:
                return await score_candidates(critic, run.store.task(tree.task), tree, settings)

            title = f"advantages {SECOND}"
            await on_trees(run.store, SECOND, score, progress, title, in_flight=TREES_IN_FLIGHT)
            counts = critic.counts
        return {**totals(run.store, SECOND, "reward", ("turns", "unscored")), **counts}

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
        return self.prefer(run, SECOND, self.settings.policy, progress)

    # -- settings, size and tasks ---------------------------------------------------------------

    @property
    def uses_critic(self) -> bool:
        """True for ``method=sweet``, whose round 1 needs a critic or a judge."""
        return self.settings.method == "sweet"

    def plan(self) -> Plan:
        check_chat("critic.judge", self.settings.critic.judge, POLICY)
        if (file := self.offline) is not None:
            if not isinstance(self.environment, BackendProgramming):
                raise UserError(
                    f"offline needs ColBench tasks, and {self.settings.played} has other tasks",
                    "use dataset=colbench_code",
                )
            if not file.is_file():
                raise UserError(f"offline={file} is not a file", "correct the path")
        return super().plan()

    @property
    def offline(self) -> Path | None:
        return None if self.settings.offline is None else expanded(self.settings.offline)

    @cached_property
    def offline_content(self) -> tuple[str, ...]:
        file = self.offline
        return () if file is None else (sha256(file) if file.is_file() else "",)

    def trainings(self) -> dict[str, TrainingSettings]:
        return self.settings.trainings

    def dialogues(self) -> int:
        """Return the number of dialogues; n candidates for every turn of a dialogue count as n dialogues."""
        s = self.settings
        sampled_dialogues = len(self.train_tasks()) * s.rollout.repeats
        branched = max(1, int(sampled_dialogues * s.candidates.share)) * s.candidates.count
        return sampled_dialogues + branched * self.uses_critic

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        """Return the tokens of a turn, plus the tokens of the longest reference if the critic reads it."""
        critic, reference_tokens = self.settings.critic, 0
        if self.uses_critic and critic.kind != "judge" and critic.privileged:
            texts = (task.secrets[REFERENCE].reveal(CRITIC) for task in train)
            reference_tokens = max(len(renderer.encode_turn(text)) for text in texts)
        return self.settings.max_tokens + reference_tokens

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    def actors(self, run: Run) -> AbstractAsyncContextManager[Actors]:
        person, logs = self.settings.user_simulator, run.folder / "user_simulator"
        return open_actors(self.environment, logs, person, self.openers())

    def train_tasks(self) -> list[Task]:
        return self.environment.tasks("train", self.settings.rollout.tasks, self.settings.seed)

    # -- training data --------------------------------------------------------------------------

    def context(self, iteration: int) -> str | None:
        """Return the recontext rule of a round; the critic's prompts may contain the reference."""
        privileged = iteration == FIRST and self.uses_critic and self.settings.critic.privileged
        return PRIVILEGED if privileged else None

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        role = CRITIC if iteration == FIRST and self.uses_critic else self.main_role
        for tree, selection in load_selections(run, iteration):
            yield role, tree, selection

    def prefer(self, run: Run, iteration: int, s: PolicySettings, progress: Progress) -> Metrics:
        """Train the policy by DPO on the selected pairs, starting from the base model."""
        model = self.models(run).load(POLICY, 0, trainable=True)
        pairs, seeded = self.pairs(run, iteration, model), self.seeded(s.train, iteration)
        return prefer(run, iteration, model, pairs, s.objective, seeded, progress, role=POLICY)

    def pairs(self, run: Run, iteration: int, model: LoadedModel) -> list[Pair]:
        """Return the selected pairs: of whole dialogues in round 0, of turns in round 1.

        Raises ``UserError`` if nothing was selected.
        """
        pairs, context = [], self.context(iteration)
        for tree, selection in load_selections(run, iteration):
            assert selection.rejected is not None, "the selections are pairs"
            task, leaves = run.store.task(tree.task), (selection.leaf, selection.rejected)
            better, worse = (dialogue_view(task, tree, leaf, context, model) for leaf in leaves)
            if iteration == FIRST:
                pairs.append(trajectory_pair(better, worse, group=tree.task))
            else:
                group = tree.turns[selection.leaf].parent
                pairs.append(turn_pair(better, worse, group=group))
        if not pairs:
            raise UserError(
                f"no pair was selected in round {iteration}",
                "sample more tasks or repeats (rollout.tasks, rollout.repeats): pairs need a full success "
                "and a failure on one task; or lower min_reward"
                if iteration == FIRST
                else "raise candidates.share or candidates.count; unreadable verdicts of a judge make all candidates "
                "equal",
            )
        return pairs

    def labeled_dialogues(self, run: Run, model: LoadedModel) -> list[LabeledTrajectory]:
        """Return all dialogues of round 0, each with its success (ablation ``critic.kind=classifier``)."""
        shares, items = rewards(run), []
        for tree in run.store.trees(FIRST, "rollout"):
            task = run.store.task(tree.task)
            for outcome, _ in tree.trajectories():
                own = dialogue_view(task, tree, outcome.leaf, self.context(FIRST), model)
                succeeded = shares[tree.task, outcome.sample] >= self.settings.min_reward
                items.append(labeled_trajectory(own, succeeded, group=tree.task))
        return items


def rewards(run: Run) -> dict[tuple[str, int], float]:
    """Return the share of tests that each dialogue's answer passes, by task and sample."""
    return {
        (key.task, int(key.sample)): float(metrics["fraction"])
        for key, metrics in run.store.metrics(FIRST, "rollout").items()
        if key.task and "fraction" in metrics
    }


def dialogues_to_branch(run: Run, share: float) -> list[PlayedDialogue]:
    """Return the dialogues whose turns get candidates: the first of every task before the second of any task."""
    keys = sorted((sample, task) for task, sample in rewards(run))
    dialogues = []
    for sample, name in keys[: max(1, int(len(keys) * share))]:
        tree = run.store.tree(FIRST, "rollout", name)
        path = next(path for o, path in tree.trajectories() if o.sample == sample)
        dialogues.append(PlayedDialogue(run.store.task(name), sample, path))
    return dialogues


async def _branch_dialogue(branching: CandidateSampling, dialogue: PlayedDialogue) -> Done:
    key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
    try:
        tree = await branching.branch(dialogue)
    except EngineGone:
        raise
    except EngineError as error:
        return Done(key, {"candidates": 0}, failure=str(error))
    return Done(key, {"candidates": sum(map(len, candidates(tree)))}, tree)


def dialogue_view(
    task: Task, tree: Tree, leaf: str, context: str | None, model: LoadedModel
) -> View:
    """Return a dialogue in the agent's view, or with the reference in the context :data:`PRIVILEGED`."""
    if context is None:
        return view(tree, leaf, AGENT)
    render = partial(model.renderer.render, privileges=CRITIC)
    return recontext(tree, leaf, AGENT, name=context, edit=with_reference(task), render=render)


# -- critics of turns ---------------------------------------------------------------------------


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
        """Return A(o_t, a_t, c) of each candidate ``a_t`` of one turn. Raises ``EngineError``."""
        assert group[0].prompt is not None, "a candidate answers a request"
        messages, render = tree.messages(tree.requests[group[0].prompt]), self.model.renderer.render
        if self.privileged:
            prompt = render(with_reference(task)(messages), tree, AGENT, privileges=CRITIC)
        else:
            prompt = render(messages, tree, AGENT)
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
async def open_critic(recipe: SweetRL, run: Run) -> AsyncIterator[TrainedCritic | JudgeCritic]:
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
        engine, base = models.embedded(CRITIC, FIRST + 1), models.embedded(POLICY, 0)
        whole = s.objective.normalise == "none"
        step: StepCritic = LikelihoodCritic(engine, base, "none" if whole else "tokens")
        yield TrainedCritic(step, engine.loaded, s.privileged)
        return
    critic = models.load(CRITIC, FIRST + 1)
    rule = CostRule.of(critic.model)
    step = HeadCritic(critic, "mean" if s.kind == "regression" else "last", rule)
    yield TrainedCritic(step, critic, s.privileged)


async def score_candidates(
    critic: TrainedCritic | JudgeCritic, task: Task, tree: Tree, settings: str
) -> Done:
    """Score a tree's candidates and count the turns that the critic failed on. Raises ``EngineGone``."""
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


@dataclass(frozen=True, slots=True)
class SweetCritic:
    """Critic of a finished run, to pick the best of several candidates of any policy."""

    recipe: SweetRL

    def fingerprint(self, run: Run) -> str:
        """Hash of the settings and weights that the scores depend on."""
        self._check(run)
        settings = self.recipe.fingerprint(Step(SECOND, "reward"))
        if self.recipe.settings.critic.kind == "judge":
            return settings
        return f"{settings} {weight_hash(run.training_folder(FIRST, CRITIC) / 'final')}"

    @asynccontextmanager
    async def open(self, run: Run) -> AsyncIterator[OpenCritic]:
        self._check(run)
        async with open_critic(self.recipe, run) as critic:
            renderer = critic.model.renderer if isinstance(critic, TrainedCritic) else None
            yield OpenCritic(renderer, critic.advantages)

    def _check(self, run: Run) -> None:
        trained = (run.training_folder(FIRST, CRITIC) / "final").is_dir()
        if not trained and self.recipe.settings.critic.kind != "judge":
            raise UserError(
                f"the critic of {run.folder} is not trained",
                f"train it with: coterie train {run.folder}",
            )


def sweet_critic(recipe: SweetRL) -> SweetCritic | None:
    """Return the critic of a recipe's runs; ``None`` for methods without one."""
    return SweetCritic(recipe) if recipe.settings.method == "sweet" else None


# -- report -------------------------------------------------------------------------------------


def sweet_report(recipe: SweetRL, run: Run) -> Report:
    own = [_pairs(recipe, run, i) for i in (FIRST, SECOND) if run.is_finished(Step(i, "select"))]
    method = (("method", recipe.settings.method),)
    return plain_report(recipe, run, own, method)


def _pairs(recipe: SweetRL, run: Run, i: int) -> Section:
    least = recipe.settings.min_reward

    def see(tree: Tree, leaf: str, one: Selection) -> View:
        if recipe.context(i) is None:
            return view(tree, leaf, one.agent)
        render = partial(decoder(recipe)(one.agent).render, privileges=CRITIC)
        edit = with_reference(run.store.task(tree.task))
        return recontext(tree, leaf, one.agent, name=PRIVILEGED, edit=edit, render=render)

    if i == SECOND:
        who, title = "policy", "Turns that the policy was trained on"
        reason = (
            "Replies after the same turns. A pair: a reply of the upper half of the critic's advantages over one of "
            "the lower half."
        )
    else:
        who = "critic" if recipe.uses_critic else "policy"
        title = f"Dialogues that the {who} was trained on"
        reason = (
            f"A pair: the answer of the chosen dialogue passes a share of {least:g} or more of the tests, the other "
            "one does not."
        )
        if recipe.settings.method == "rejection_ft":
            reason = f"Selected: the answer passes a share of {least:g} or more of the tests."
    privileged = (
        ""
        if recipe.context(i) is None
        else "It sees the reference solution; the policy never does."
    )
    return Section(
        f"pairs-{i}",
        title,
        f"Marked tokens are trained into the {who}. {privileged}",
        examples=selected_examples(recipe, run, i, reason=reason, see=see),
    )  # fmt: skip
