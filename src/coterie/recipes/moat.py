"""MOAT (arXiv 2509.09629): alternating alignment of a planner pi_p and a grounder pi_g.

Notation of the paper: task x, tool list I, plan (subgoal sequence) s, gold actions a, generated actions a_hat.

    start        (iteration 0, optional) SFT of pi_p on gold plans and of pi_g on gold actions
    for each iteration:
        rollout      K plans s ~ pi_p(. | x) per task, and actions a_hat ~ pi_g(. | x, I, s) for each plan
        -- planning agent alignment
        reward       r(s) = (1/|a|) sum_l log pi_g(a_l | a_<l, x, I, s). The paper's -PPL = -exp(-r(s)) ranks plans
                     in the same order
        select       (s_w, s_l): the best and the worst plan of a task, if r(s_w) - r(s_l) > margin
        align        DPO of pi_p on these pairs; the planner before this training is the reference pi_ref:
                     L = -log sigmoid(beta [log pi_p(s_w|x) / pi_ref(s_w|x) - log pi_p(s_l|x) / pi_ref(s_l|x)])
        -- grounding agent improving
        correct      a critic accepts, corrects or rejects a_hat for the best plans
        improve      SFT of pi_g on accepted, corrected and gold rows:
                     L = -sum_l log pi_g(a_l | a_<l, x, I, s), as a mean over the tokens of all rows of a step
        measure      J(pi_p, pi_g) = E_x E_{s ~ pi_p} r(s) on held-out tasks, after each half
    evaluate     plan, ground and execute greedily on held-out tasks

The two losses are those of :meth:`Moat.align` and :meth:`Moat.improve`, by :mod:`coterie.recipes.trainings` (rows and
reference) and :mod:`coterie.training.losses` (``DPO``, ``SFT``). r(s) is a reward, without a gradient.

``parts`` leaves out one half (ablations) or replaces both with SFT on gold rows (control).

Deliberate deviations from the released code:

* The reward counts every token of the gold actions, including the end of the turn. The code skips tokens of
  probability 1.
* Rewards are log-likelihoods, from which the perplexity follows.
* Empty and duplicate plans are left out. The code replaces an empty plan with a plan of another task.
* The critic's reply is not cut off after 16 tokens, its actions are parsed and checked, and its rows are trained on.
"""

import math
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from coterie.engines.chat_model import check_chat, open_chat
from coterie.engines.protocol import EngineError, LikelihoodModel
from coterie.environments.plans.plan_ground import (
    GROUNDER,
    PLANNER,
    PlanGround,
    gold,
    known_results,
    request,
)
from coterie.environments.protocol import State
from coterie.environments.registry import check_no_tools
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe, Work
from coterie.recipes.moat_settings import SCRIPT, MoatSettings
from coterie.recipes.plan import Plan
from coterie.recipes.trainings import TrainingJob, likelihood_model, train_sft
from coterie.record.rows import Row, rows, view
from coterie.record.tree import Credit, ItemKey, LeftOut, Metrics, Selection, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.critics import (
    Correction,
    correction_question,
    mean_loglikelihoods,
    perplexity,
    read_correction,
)
from coterie.rewards.dialogue_reward import quotes
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.rollout.script_player import WrittenTurn, write_path
from coterie.rollout.tree_search import Value
from coterie.runs.loop import Role, Stage, stage
from coterie.runs.run import Run, StageKey
from coterie.runs.work_items import ItemResult, do_items, on_trees, totals
from coterie.selection import PairSettings, sibling_pairs, sibling_reason, unpaired
from coterie.tools.actions.grammar import check_actions, describe

DATA = "data"
"""Author of gold plans and actions."""
LOWEST = -sys.float_info.max
"""Threshold below any reward, so that even a very bad plan can be the chosen side of a pair."""
WHOLE, HALF = "measure", "measure_half"
"""Stages that measure J: after a whole iteration, and between its two halves."""
LEFT_OUT = ("empty", "truncated", "equal", "leaks")
"""Reasons why a plan has no reward: it is empty, truncated, a duplicate, or quotes the gold actions."""
COUNTS = ("accepted", "corrected", "rejected", "rows")
IN_FLIGHT = 16
"""Tasks scored or reviewed concurrently."""
Written = tuple[WrittenTurn, WrittenTurn]
"""A plan, and actions for it."""
Review = Callable[[Task, Turn, Turn, float], Awaitable[Correction]]
"""Function of a task, a plan, its actions and their score that returns the critic's verdict."""


J_USES = ("measure", "rollout.temperature", "rollout.top_p", "rollout.max_tokens", "engine")
"""Settings that J depends on."""


class Moat(Recipe):
    """The MOAT recipe."""

    settings: MoatSettings
    environment: PlanGround

    def __init__(self, settings: MoatSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, PlanGround):
            raise UserError(
                f"{self.name} needs a planner and a grounder, and {settings.benchmark} has none",
                "use a data set with plans, such as dataset=gsm8k_plans",
            )

    def roles(self) -> tuple[Role, ...]:
        """Return the planner and the grounder. With ``share_base`` both are adapters of one base."""
        s = self.settings
        shares = PLANNER if s.share_base else None
        return (Role(PLANNER, s.model), Role(GROUNDER, s.grounder or s.model, shares=shares))

    def stages(self) -> list[Stage]:
        """Return the stages of all iterations. Success and J are also measured before the first one."""
        s, stages = self.settings, list[Stage]()
        # Iteration 0 is the supervised start, if there is one.
        first_iteration = int(s.start.enabled)
        if first_iteration:
            stages += self.make_stages(0, self.align_on_gold, self.improve_on_gold)
        stages += self.measurement(first_iteration, stages)
        for i in range(first_iteration, s.iteration_count):
            trained = [stage for stage in stages if stage.trains]
            new = self.make_stages(i, *self.methods(), after=trained)
            stages += new
            stages += self.measurement(i + 1, [stage for stage in new if stage.trains])
        return stages

    def methods(self) -> list[Work]:
        """Return the methods of an iteration: both halves, the half that ``parts`` keeps, or the control."""
        # The control trains on gold rows of the tasks that the other methods sample on.
        if self.settings.parts == "sft":
            return [self.align_on_gold, self.improve_on_gold]
        methods: list[Work] = [self.sample, self.reward]
        if self.settings.parts != "grounder":
            methods += [self.select, self.align, self.measure_half]
        if self.settings.parts != "planner":
            methods += [self.correct, self.improve]
        return methods

    def measurement(self, version: int, previous: Sequence[Stage]) -> list[Stage]:
        """Return the stages that measure J and, for tasks that can be graded, success."""
        methods: list[Work] = [self.measure]
        if self.environment.ungraded is None:
            methods.append(self.evaluate)
        return self.make_stages(version, *methods, after=previous)

    # -- planning agent alignment ---------------------------------------------------------------

    @stage("rollout", uses=("rollout", "engine"), depends=lambda recipe, i: [recipe.task_counts(i)])
    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        s = self.settings.rollout
        # Only plans need diversity, so the grounder samples at a lower temperature.
        temperatures = {PLANNER: s.temperature, GROUNDER: s.ground_temperature}
        samplers = {
            role: await self.sampler(run, self.newest(run, role, i), temperature, s.top_p, role)
            for role, temperature in temperatures.items()
        }
        episodes = self.rollout_episodes(i, s.rollouts_per_task)
        return await self.play_by(run, episodes, samplers, progress)

    @stage("reward", after="rollout", uses="reward", alone=True)
    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store ``r(s) = (1/|a|) sum_l log pi_g(a_l | a_<l, x, I, s)`` of every valid plan as credit.

        The ranks of the trainings (``train.processes``) share the plans.
        """
        # All trainings share `train.processes`, so the first of them says how many ranks there are.
        version, training = self.newest(run, GROUNDER, i), next(iter(self.trainings().values()))
        async with likelihood_model(self, run, GROUNDER, version, training) as grounder:
            work = partial(self.reward_tree, run, grounder)
            await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
        counts = totals(run.store, i, "reward", ("plans", *LEFT_OUT))
        items = run.store.metrics(i, "reward").items()
        rewards = [float(m["reward"]) for key, m in items if key.task and "reward" in m]
        return {**counts, "reward": statistics.fmean(rewards) if rewards else 0.0}

    async def reward_tree(self, run: Run, grounder: LikelihoodModel, tree: Tree) -> ItemResult:
        key, s = ItemKey(tree.iteration, "reward", tree.task), self.settings.reward
        task = run.store.task(tree.task)
        plans, left_out = valid_plans(tree, task, leak_guard=s.leak_guard)
        counts = Counter({**dict.fromkeys(LEFT_OUT, 0), **Counter(e.reason for e in left_out)})
        metrics: dict[str, float | int | str] = {"plans": len(plans), **counts}
        # Without a valid plan or gold actions there is nothing to score.
        if not plans or gold(task).done:
            return ItemResult(key, metrics, left_out=left_out)
        try:
            loglikelihoods = await self.loglikelihoods(grounder, task, tree, plans)
        except EngineError as error:
            return ItemResult(key, metrics, failure=str(error), left_out=left_out)
        settings = self.fingerprint(StageKey(tree.iteration, "reward"))
        rewards, credit = [], []
        for plan, loglikelihood in zip(plans, loglikelihoods, strict=True):
            # The reward of the paper is the log-likelihood alone, with `reward.success=0`.
            rewards.append(loglikelihood + s.success * _success(tree, plan))
            values = {
                "loglikelihood": loglikelihood,
                "perplexity": perplexity(loglikelihood),
                "reward": rewards[-1],
            }
            credit += [Credit(plan.id, name, value, settings) for name, value in values.items()]
        metrics |= {"reward": statistics.fmean(rewards), "spread": max(rewards) - min(rewards)}
        return ItemResult(key, metrics, None, tuple(credit), left_out=left_out)

    async def loglikelihoods(
        self, grounder: LikelihoodModel, task: Task, tree: Tree, plans: Sequence[Turn]
    ) -> list[float]:
        """Return r(s) of each plan ``s``: the mean log-likelihood of the gold actions in nats per token."""
        render = self.renderers[GROUNDER]
        # Each plan makes another prompt of the grounder, and the gold actions are the common target.
        prompts = [
            render(
                self.environment.observe(State(task, 0, turns=(plan,)), GROUNDER), tree, GROUNDER
            )
            for plan in plans
        ]
        return await mean_loglikelihoods(grounder, prompts, render.encode_turn(gold(task).actions))

    @stage("select", after="reward", uses="pairs")
    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pair plans of one task: ``r(s_w) - r(s_l) > margin``."""
        s = self.settings.pairs
        # Only the margin decides: every reward passes the threshold, and all pairs are kept.
        rule = PairSettings(rule=s.rule, theta_filter=LOWEST, theta_diff=s.margin, top_share=1.0)
        settings = self.fingerprint(StageKey(i, "reward"))
        rewards = run.store.credit(settings, "reward", iteration=i, stage="rollout")
        selections, left_out = [], list[LeftOut]()
        for tree in run.store.trees(i, "rollout"):
            # Plans that were left out have no reward, so they are in no pair.
            plans = [turn.id for turn in tree.children(tree.root) if turn.id in rewards]
            values = {plan: Value(rewards[plan], 1) for plan in plans}
            pairs = sibling_pairs(tree, values, rule)
            selections += [
                Selection(pair.chosen.id, PLANNER, rejected=pair.rejected.id) for pair in pairs
            ]
            left_out += unpaired(
                tree, values, pairs, partial(sibling_reason, rule, rewards.__getitem__)
            )
        run.select(i, selections, left_out)
        return {"tasks": len(run.store.tree_tasks(i, "rollout")), "selected": len(selections)}

    @stage("align", after="select", uses=("align", "train"), trains=PLANNER)
    def align(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the planner by DPO; the reference is the planner before this training.

        ``L = -log sigmoid(beta [log pi_p(s_w|x) / pi_ref(s_w|x) - log pi_p(s_l|x) / pi_ref(s_l|x)])``
        """
        s, pairs = self.settings.align, self.pairs(run, i, PLANNER)
        if not pairs:
            raise UserError(
                f"iteration {i} has no pair of plans that differ by more than "
                f"pairs.margin={self.settings.pairs.margin:g}",
                "lower pairs.margin, or raise rollout.rollouts_per_task, rollout.tasks or rollout.temperature",
            )
        job = TrainingJob.of(self, run, i, self.trainings()["align.train"], progress, PLANNER)
        return job.train_dpo(pairs, s.objective)

    # -- grounding agent improving --------------------------------------------------------------

    @stage("correct", after="reward", uses="correct")
    async def correct(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Collect the grounder's training rows: accepted, corrected and (by settings) gold actions."""
        async with self.open_reviews(run) as (author, review):
            work = partial(self.correct_tree, run, author, review)
            title = f"correct {i}"
            await on_trees(
                run.store, i, work, progress, title, in_flight=IN_FLIGHT, stage="correct"
            )
        return totals(run.store, i, "correct", COUNTS)

    async def correct_tree(self, run: Run, author: str, review: Review, tree: Tree) -> ItemResult:
        """Review the actions for the plan with the highest reward, or for all plans (``correct.candidates``)."""
        task, s = run.store.task(tree.task), self.settings.correct
        target, examples = gold(task), list[Written]()
        key, counts = ItemKey(tree.iteration, "correct", tree.task), Counter[str]()
        if target.done:
            return ItemResult(key, {"rows": 0})
        plans = [turn.id for turn in tree.children(tree.root)]
        settings = self.fingerprint(StageKey(tree.iteration, "reward"))
        rewards = run.store.credit(settings, "reward", plans)
        ranked = best_first([(plan, rewards[plan]) for plan in plans if plan in rewards])
        for plan in ranked[: 1 if s.candidates == "best" else None]:
            # A plan has no actions if its dialogue ended before the grounder's turn.
            for actions in tree.children(plan)[:1]:
                outcome, turns = tree.outcomes.get(actions.id), (tree.turns[plan], actions)
                try:
                    correction = await review(task, *turns, (outcome and outcome.score) or 0.0)
                except EngineError as error:
                    return ItemResult(key, {}, failure=str(error))
                # Actions of the critic are checked, because the grounder would learn invalid ones.
                correction = self.validate(task, correction, actions.text)
                counts[correction.verdict] += 1
                examples += self.make_examples(*turns, target.actions, correction, author)
        # The released code also trains on gold rows, next to the reviewed ones.
        if s.gold:
            gold_plan = WrittenTurn(PLANNER, target.plan, DATA)
            examples.append((gold_plan, WrittenTurn(GROUNDER, target.actions, DATA)))
        # The rows are stored as a tree with a path for each, so that they are read like sampled dialogues.
        corrections = Tree(tree.task, "correct", tree.iteration)
        for draw, example in enumerate(examples):
            write_path(self.environment, task, corrections, example, self.renderers, draw)
        return ItemResult(key, {**counts, "rows": len(examples)}, corrections if examples else None)

    @asynccontextmanager
    async def open_reviews(self, run: Run) -> AsyncIterator[tuple[str, Review]]:
        """Yield the author of corrections, and a function that accepts or corrects the actions of a plan.

        The script accepts actions that gave the right answer and has no correction for others. A chat model sees no
        execution results, and its truncated reply rejects. Neither sees the gold actions.
        """
        s = self.settings.correct.critic
        if s.url is None and s.model == SCRIPT:

            async def compare(task: Task, plan: Turn, actions: Turn, score: float) -> Correction:
                return Correction("accepted" if score >= 1 else "rejected")

            yield f"critic:{SCRIPT}", compare
            return
        tools = describe(self.environment.domain.name)
        async with open_chat(s) as chat:

            async def ask(task: Task, plan: Turn, actions: Turn, score: float) -> Correction:
                # The seed depends on the reviewed actions, so that a resumed run asks in the same way.
                seed = int(digest("critic", self.settings.seed, actions.id)[:15], 16)
                question = correction_question(request(task), plan.text, actions.text, tools)
                reply = await chat.ask(question, seed)
                # A truncated reply may end before its actions are complete.
                return Correction("rejected") if reply.truncated else read_correction(reply.text)

            yield f"critic:{chat.name}", ask

    def validate(self, task: Task, correction: Correction, actions: str) -> Correction:
        """Return the correction, or a rejection if the actions to train on have problems."""
        # Accepted actions are checked as well, because they are trained on.
        domain, results = self.environment.domain.name, known_results(task)
        actions = actions if correction.verdict == "accepted" else correction.actions
        if (
            correction.verdict == "rejected"
            or check_actions(actions, domain, results=results).problems
        ):
            return Correction("rejected")
        return correction

    def make_examples(
        self, plan: Turn, actions: Turn, right: str, correction: Correction, author: str
    ) -> list[Written]:
        """Return the plan and the actions to train the grounder on, if any; ``right`` are the gold actions."""
        s, verdict = self.settings.correct, correction.verdict
        # The sampled token ids are kept, so that training has exactly the sampled tokens.
        own_plan, own_actions = (
            WrittenTurn(role, turn.whole_text, turn.writer, turn.ids)
            for role, turn in ((PLANNER, plan), (GROUNDER, actions))
        )
        if verdict == "corrected":
            if s.subgoals == "corrected":
                own_plan = WrittenTurn(PLANNER, correction.subgoals, author)
            return [(own_plan, WrittenTurn(GROUNDER, correction.actions, author))]
        if verdict == "accepted" or s.rejected == "keep":
            return [(own_plan, own_actions)]
        return [(own_plan, WrittenTurn(GROUNDER, right, DATA))] if s.rejected == "gold" else []

    @stage("improve", after="correct", uses=("improve", "train"), trains=GROUNDER)
    def improve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the grounder by SFT on the rows of :meth:`correct`: ``L = -sum_l log pi_g(a_l | a_<l, x, I, s)``."""
        empty = UserError(
            f"iteration {i} has no training rows for the grounder",
            "use correct.gold=true or correct.rejected=gold, or another correct.critic",
        )
        train = self.trainings()["improve.train"]
        return train_sft(self, run, i, train, progress, role=GROUNDER, empty=empty)

    # -- supervised start, and the control of ``parts=sft`` ---------------------------------------

    def is_start(self, iteration: int) -> bool:
        """Return True for the supervised start, which draws tasks of its own."""
        return self.settings.start.enabled and iteration == 0

    def gold_uses(self, iteration: int) -> tuple[str, ...]:
        start = ("start.tasks", "start.train", "train")
        return start if self.is_start(iteration) else ("improve.train", "train")

    @stage(
        "align", uses=gold_uses, depends=lambda recipe, i: recipe.gold_depends(i), trains=PLANNER
    )
    def align_on_gold(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the planner by SFT on gold plans."""
        return self.train_on_gold(run, i, progress, PLANNER)

    @stage(
        "improve", uses=gold_uses, depends=lambda recipe, i: recipe.gold_depends(i), trains=GROUNDER
    )
    def improve_on_gold(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the grounder by SFT on gold actions for gold plans."""
        return self.train_on_gold(run, i, progress, GROUNDER)

    def gold_depends(self, iteration: int) -> Sequence[object]:
        # The tasks of the control depend on how many the earlier iterations have drawn.
        return () if self.is_start(iteration) else [self.task_counts(iteration)]

    def train_on_gold(self, run: Run, iteration: int, progress: Progress, role: str) -> Metrics:
        """Train a role by SFT on gold plans, or on gold actions for gold plans."""
        # Iteration 0 uses the settings of the start, and the control the settings of `improve`.
        phase = "start" if self.is_start(iteration) else "improve"
        train = self.trainings()[f"{phase}.train"]
        training_rows = [
            row for task in self.train_tasks(iteration) for row in self.gold_rows(task, role)
        ]
        return TrainingJob.of(self, run, iteration, train, progress, role).train(training_rows)

    def gold_rows(self, task: Task, role: str) -> list[Row]:
        """Return the gold row of a task: the gold plan, or the gold actions for it."""
        target, tree = gold(task), Tree(task.id, DATA, 0)
        # A finished task has a gold plan ("done") but no gold actions.
        if target.done and role == GROUNDER:
            return []
        turns = [WrittenTurn(PLANNER, target.plan, DATA)]
        if role == GROUNDER:
            turns.append(WrittenTurn(GROUNDER, target.actions, DATA))
        *_, last_turn = write_path(self.environment, task, tree, turns, self.renderers)
        return list(rows(view(tree, last_turn.id, role)))

    # -- J --------------------------------------------------------------------------------------

    @stage(HALF, after="align", uses=J_USES)
    async def measure_half(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Measure ``J(pi_p', pi_g)``: the newly aligned planner with the grounder before its update."""
        # The planner has been trained in this iteration already, the grounder not yet.
        planner, grounder = self.newest(run, PLANNER, i + 1), self.newest(run, GROUNDER, i)
        return await self.joint(run, StageKey(i, HALF), planner, grounder, progress)

    @stage(WHOLE, uses=J_USES)
    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Measure ``J(pi_p', pi_g')`` of the newest planner and grounder."""
        planner, grounder = (self.newest(run, role, version) for role in (PLANNER, GROUNDER))
        return await self.joint(run, StageKey(version, WHOLE), planner, grounder, progress)

    async def joint(
        self, run: Run, stage_key: StageKey, planner: int, grounder: int, progress: Progress
    ) -> Metrics:
        """Estimate J of two versions: the mean over held-out tasks and its standard error."""
        s = self.settings
        sampler = await self.sampler(run, planner, s.rollout.temperature, s.rollout.top_p, PLANNER)
        engine = self.models(run).embedded(GROUNDER, grounder)
        tasks = self.environment.scored_tasks(s.measure.tasks, s.seed)
        run.store.put_tasks(tasks)
        work = partial(self.measure_task, sampler, engine, stage_key)
        items = {
            ItemKey(stage_key.iteration, stage_key.stage, task.id): partial(work, task)
            for task in tasks
        }
        title = f"{stage_key.stage} {stage_key.iteration}"
        await do_items(run.store, items, progress, "tasks", title, in_flight=IN_FLIGHT)
        metrics = run.store.metrics(stage_key.iteration, stage_key.stage).items()
        values = [
            float(m["loglikelihood"]) for key, m in metrics if key.task and "loglikelihood" in m
        ]
        if not values:
            return {"n": 0}
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        error = spread / math.sqrt(len(values))
        j, n = statistics.fmean(values), len(values)
        return {"n": n, "j": j, "standard_error": error, PLANNER: planner, GROUNDER: grounder}

    async def measure_task(
        self, planner: TokenSampler, grounder: LikelihoodModel, stage_key: StageKey, task: Task
    ) -> ItemResult:
        """Sample plans of a held-out task and average their r(s)."""
        key = ItemKey(stage_key.iteration, stage_key.stage, task.id)
        tree = Tree(task.id, stage_key.stage, stage_key.iteration)
        samples = range(self.settings.measure.rollouts_per_task)
        # Seeds depend on the task only, so that all measurements use the same random numbers.
        seeds = [int(digest("J", self.settings.seed, task.id, n)[:15], 16) for n in samples]
        messages = self.environment.observe(State(task, 0), PLANNER)
        prompt = Prompt(tree, tree.root, PLANNER, messages, seeds[0], 0)
        try:
            candidates = await planner.candidates(prompt, AgentContext(), seeds, list(samples))
            for candidate in candidates:
                tree.add(candidate.turn, candidate.request)
            plans = [candidate.turn for candidate in candidates]
            loglikelihoods = await self.loglikelihoods(grounder, task, tree, plans)
        except EngineError as error:
            return ItemResult(key, {}, failure=str(error))
        return ItemResult(key, {"loglikelihood": statistics.fmean(loglikelihoods)}, tree)

    # -- settings, size and tasks ---------------------------------------------------------------

    def plan(self) -> Plan:
        s = self.settings
        check_chat("correct.critic", s.correct.critic, SCRIPT)
        if not self.environment.scored_tasks(s.measure.tasks, s.seed):
            raise UserError("no held-out task has gold actions", "give the data set held-out rows")
        return super().plan()

    def dialogues(self) -> int:
        """Return the number of plans, including those sampled to measure J."""
        s = self.settings
        tasks = self.environment.tasks("train", s.rollout.tasks, s.seed)
        plans = len(tasks) * s.rollout.rollouts_per_task * s.iterations if s.parts != "sft" else 0
        held_out_tasks = self.environment.scored_tasks(s.measure.tasks, s.seed)
        held_out = len(held_out_tasks) * s.measure.rollouts_per_task
        return plans + held_out * sum(step.stage in (WHOLE, HALF) for step in self.stage_keys())

    def whole_task(self, task: Task) -> Task:
        """Reduce a task to its question, which is the same for all single-step tasks made from it."""
        public = {name: task.public[name] for name in ("question", "description")}
        return replace(task, public=public)

    def context_reserve(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        return self.environment.max_turns * self.settings.turn_tokens

    def players(self) -> dict[str, str]:
        return {PLANNER: PLANNER, GROUNDER: GROUNDER}

    def task_counts(self, iteration: int) -> list[int]:
        # The supervised start draws tasks of its own, which do not count here.
        return super().task_counts(iteration - int(self.settings.start.enabled))

    def train_tasks(self, iteration: int = 0) -> list[Task]:
        s = self.settings
        if self.is_start(iteration):
            return self.environment.tasks("train", s.start.tasks, s.seed)
        return super().train_tasks(iteration)

    # -- training data --------------------------------------------------------------------------

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        yield from super().trained_on(run, iteration)
        # Every path of the corrected trees is a training row, without a selection.
        for tree in run.store.trees(iteration, "correct"):
            for turn in tree.leaves():
                yield GROUNDER, tree, Selection(turn.id, GROUNDER)


# -- plans --------------------------------------------------------------------------------------


def valid_plans(
    tree: Tree, task: Task, *, leak_guard: bool
) -> tuple[list[Turn], tuple[LeftOut, ...]]:
    """Return the plans that get a reward, and the others with their reasons."""
    reasons, by_text = dict[str, str](), dict[str, Turn]()
    actions = [action for step in gold(task).steps for action in step.actions]
    # In the order of sampling, so that the first of equal plans gets the reward.
    for turn in sorted(tree.children(tree.root), key=lambda turn: turn.draw):
        text = " ".join(turn.text.split())
        if not text or turn.truncated:
            reasons[turn.id] = "truncated" if turn.truncated else "empty"
        elif text in by_text:
            reasons[turn.id] = "equal"
        elif leak_guard and quotes(text, actions):
            reasons[turn.id] = "leaks"
        else:
            by_text[text] = turn
    left_out = (LeftOut(task.id, node, why, PLANNER) for node, why in reasons.items())
    return list(by_text.values()), tuple(left_out)


def best_first(rewards: Sequence[tuple[str, float]]) -> list[str]:
    """Return nodes by descending reward; ties keep the order of sampling."""
    return [node for node, _ in sorted(rewards, key=lambda item: -item[1])]


def _success(tree: Tree, plan: Turn) -> float:
    """Return the mean score of the grounder's actions for a plan; 0 if it has no graded actions."""
    # The score is at the end of the dialogue: the actions, or the plan if there are no actions.
    leaves = [plan, *tree.children(plan.id)]
    scores = [tree.outcomes[node.id].score for node in leaves if node.id in tree.outcomes]
    return statistics.fmean(score or 0.0 for score in scores) if scores else 0.0
