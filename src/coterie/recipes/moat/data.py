"""Tasks, samplers, gold and corrected rows, and plan pairs of MOAT.

Quantities of the paper::

    r(s) = (1/|a|) sum_l log pi_g(a_l | a_<l, x, I, s),   PPL(a | x, I, s) = exp(-r(s))
    J(pi_p, pi_g) = E_x E_{s ~ pi_p} r(s)
"""

import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from coterie.engines.chat_model import check_chat
from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Engine, EngineError
from coterie.environments.plan_ground import GROUNDER, PLANNER, PlanGround, gold
from coterie.environments.protocol import Openers, State
from coterie.environments.registry import check_no_tools
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel, load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.moat.settings import SCRIPT, MoatSettings
from coterie.recipes.plan import Plan
from coterie.recipes.trainings import train_role
from coterie.record.rows import Pair, Row, rows, turn_pair, view
from coterie.record.tree import Credit, ItemKey, Metrics, Selection, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.dialogue_reward import quotes
from coterie.rewards.likelihood import mean_loglikelihoods, perplexity
from coterie.rollout.episodes import Episode
from coterie.rollout.recorded_turns import WrittenTurn, write_path
from coterie.rollout.samplers import AgentContext, Prompt, TokenSampler
from coterie.rollout.tree_search import Value
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, do_items, on_trees
from coterie.runs.roles import load_selections
from coterie.selection import PairSettings, sibling_pairs
from coterie.tools.sandbox.pool import Sandbox
from coterie.training.settings import TrainingSettings

DATA = "data"
"""Author of gold plans and actions."""
LOWEST = -sys.float_info.max
"""Threshold below any reward, so that even a very bad plan can be the chosen side of a pair."""
WHOLE, HALF = "measure", "measure_half"
"""Stages that measure J: after a whole iteration, and between its two halves."""


class MoatData(Recipe):
    """Data of the MOAT stages."""

    settings: MoatSettings
    environment: PlanGround

    def __init__(self, settings: MoatSettings) -> None:
        super().__init__(settings)
        check_no_tools(settings, self.name)
        if not isinstance(self.environment, PlanGround):
            raise UserError(
                f"{self.name} needs a planner and a grounder, and {settings.played} has none",
                "use a data set with plans, such as dataset=gsm8k_plans, or derive your environment from "
                "coterie.environments.plan_ground.PlanGround",
            )

    def plan(self) -> Plan:
        """Return the size of the run. Raises ``UserError`` for a missing critic and if J cannot be measured."""
        s = self.settings
        check_chat("correct.critic", s.correct.critic, SCRIPT)
        if not self.environment.scored_tasks(s.measure.tasks, s.seed):
            raise UserError("no held-out task has gold actions", "give the data set held-out rows")
        return super().plan()

    def trainings(self) -> dict[str, TrainingSettings]:
        return self.settings.trainings

    def dialogues(self) -> int:
        """Return the number of plans, including those sampled to measure J."""
        s = self.settings
        tasks = self.environment.tasks("train", s.rollout.tasks, s.seed)
        plans = len(tasks) * s.rollout.samples * s.iterations if s.parts != "sft" else 0
        held_out = len(self.environment.scored_tasks(s.measure.tasks, s.seed)) * s.measure.samples
        return plans + held_out * sum(step.stage in (WHOLE, HALF) for step in self.steps())

    def whole_task(self, task: Task) -> Task:
        """Reduce a task to its question, which is the same for all single-step tasks made from it."""
        public = {name: task.public[name] for name in ("question", "description")}
        return replace(task, public=public)

    def room(self, renderer: ChatRenderer, train: Sequence[Task]) -> int:
        return self.environment.max_turns * self.settings.max_tokens

    def players(self) -> dict[str, str]:
        return {PLANNER: PLANNER, GROUNDER: GROUNDER}

    def openers(self) -> Openers:
        return {Sandbox: partial(Sandbox, self.settings.sandbox)}

    @cached_property
    def renderers(self) -> dict[str, ChatRenderer]:
        args = self.settings.engine.template_args
        return {role.name: load_renderer(role.model, args)[0] for role in self.roles()}

    # -- tasks and episodes ---------------------------------------------------------------------

    def draws(self, iteration: int) -> list[int]:
        """Return the numbers of tasks that the iterations up to this one draw."""
        first = int(self.settings.start.enabled)
        return [self.settings.rollout.tasks] * (iteration - first + 1)

    def train_tasks(self, iteration: int) -> list[Task]:
        s = self.settings
        if s.start.enabled and iteration == 0:
            return self.environment.tasks("train", s.start.tasks, s.seed)
        *before, count = self.draws(iteration)
        return self.environment.tasks("train", count, s.seed, before)

    def measure_settings(self) -> tuple[object, ...]:
        s = self.settings
        sampling = (s.rollout.temperature, s.rollout.top_p, s.rollout.max_tokens)
        return (s.measure.fingerprint(), *sampling, *s.engine.identity())

    async def play_plans(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """Play K episodes per task; plans and actions have their own sampling temperatures."""
        s = self.settings.rollout
        episodes = [
            Episode(task, sample, iteration, "rollout")
            for task in self.train_tasks(iteration)
            for sample in range(s.samples)
        ]
        samplers = {
            PLANNER: await self.role_sampler(run, PLANNER, iteration, s.temperature),
            GROUNDER: await self.role_sampler(run, GROUNDER, iteration, s.ground_temperature),
        }
        return await self.play_by(run, episodes, samplers, progress)

    async def role_sampler(
        self, run: Run, role: str, iteration: int, temperature: float
    ) -> TokenSampler:
        """Return a sampler of the newest version that a role has in an iteration."""
        version = self.newest(run, role, iteration)
        return await self.sampler(run, version, temperature, self.settings.rollout.top_p, role)

    # -- training data --------------------------------------------------------------------------

    def load_newest(self, run: Run, role: str, iteration: int) -> LoadedModel:
        """Load a role's newest version for training."""
        return self.models(run).load_to_train(role, self.newest(run, role, iteration))

    def teach(self, run: Run, iteration: int, progress: Progress, role: str) -> Metrics:
        """Train a role by SFT on gold plans, or on gold actions for gold plans."""
        s = self.settings
        train = s.start.train if s.start.enabled and iteration == 0 else s.improve.train
        training_rows = [
            row for task in self.train_tasks(iteration) for row in self.gold_rows(task, role)
        ]
        seeded = self.seeded(train, iteration)
        model = self.load_newest(run, role, iteration)
        return train_role(run, iteration, model, training_rows, seeded, progress, role=role)

    def gold_rows(self, task: Task, role: str) -> list[Row]:
        """Return the gold row of a task: the gold plan, or the gold actions for it."""
        target, tree = gold(task), Tree(task.id, DATA, 0)
        if target.done and role == GROUNDER:
            return []
        turns = [WrittenTurn(PLANNER, target.plan, DATA)]
        if role == GROUNDER:
            turns.append(WrittenTurn(GROUNDER, target.actions, DATA))
        *_, last = write_path(self.environment, task, tree, turns, self.renderers)
        return list(rows(view(tree, last.id, role)))

    def plan_pairs(self, run: Run, iteration: int) -> list[Selection]:
        """Return the pairs ``(s_w, s_l)`` of each task with ``r(s_w) - r(s_l) > margin``."""
        s = self.settings.pairs
        rule = PairSettings(rule=s.rule, theta_filter=LOWEST, theta_diff=s.margin, top_share=1.0)
        rewards = run.store.credit(
            self.fingerprint(Step(iteration, "reward")), "reward",
            iteration=iteration, stage="rollout",
        )  # fmt: skip
        selections = []
        for tree in run.store.trees(iteration, "rollout"):
            values = {
                turn.id: Value(rewards[turn.id], 1)
                for turn in tree.children(tree.root)
                if turn.id in rewards
            }
            selections += [
                Selection(pair.chosen.id, PLANNER, rejected=pair.rejected.id)
                for pair in sibling_pairs(tree, values, rule)
            ]
        return selections

    def pairs(self, run: Run, iteration: int) -> list[Pair]:
        """Return the selected pairs. Raises ``UserError`` if nothing was selected."""
        pairs = []
        for tree, selection in load_selections(run, iteration):
            assert selection.rejected is not None, "the selections are pairs"
            sides = (view(tree, leaf, PLANNER) for leaf in (selection.leaf, selection.rejected))
            pairs.append(turn_pair(*sides, group=tree.task))
        if not pairs:
            raise UserError(
                f"iteration {iteration} has no pair of plans that differ by more than "
                f"pairs.margin={self.settings.pairs.margin:g}",
                "lower pairs.margin, or raise rollout.samples, rollout.tasks or rollout.temperature",
            )
        return pairs

    def trained_on(self, run: Run, iteration: int) -> Iterator[tuple[str, Tree, Selection]]:
        """Yield the planner's pairs and the grounder's rows."""
        yield from super().trained_on(run, iteration)
        for tree in run.store.trees(iteration, "correct"):
            for turn in tree.leaves():
                yield GROUNDER, tree, Selection(turn.id, GROUNDER)

    def corrected_rows(self, run: Run, iteration: int) -> list[Row]:
        """Return the rows of the stage ``correct``. Raises ``UserError`` if it wrote nothing."""
        training_rows = [
            row
            for tree in run.store.trees(iteration, "correct")
            for turn in tree.leaves()
            for row in rows(view(tree, turn.id, GROUNDER))
        ]
        if not training_rows:
            raise UserError(
                f"iteration {iteration} has no training rows for the grounder",
                "use correct.gold=true or correct.unreadable=gold, or another correct.critic",
            )
        return training_rows


def best_first(rewards: Sequence[tuple[str, float]]) -> list[str]:
    """Return nodes by descending reward; ties keep the order of sampling."""
    return [node for node, _ in sorted(rewards, key=lambda item: -item[1])]


LEFT_OUT = ("empty", "truncated", "equal", "leaks")
"""Reasons why a plan has no reward: it is empty, truncated, a duplicate, or quotes the gold actions."""
IN_FLIGHT = 16
"""Tasks scored concurrently."""


async def reward_plans(recipe: MoatData, run: Run, i: int, progress: Progress) -> Metrics:
    """Compute the rewards of an iteration's plans under the current grounder."""
    grounder = recipe.models(run).embedded(GROUNDER, recipe.newest(run, GROUNDER, i))
    work = partial(_reward_tree, recipe, run, grounder)
    await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
    tree_metrics = [m for key, m in run.store.metrics(i, "reward").items() if key.task]
    counts = {name: sum(int(m[name]) for m in tree_metrics) for name in ("plans", *LEFT_OUT)}
    rewards = [float(m["reward"]) for m in tree_metrics if "reward" in m]
    return {**counts, "reward": statistics.fmean(rewards) if rewards else 0.0}


async def _reward_tree(recipe: MoatData, run: Run, grounder: InProcessEngine, tree: Tree) -> Done:
    key = ItemKey(tree.iteration, "reward", tree.task)
    task, s = run.store.task(tree.task), recipe.settings.reward
    plans, counts = valid_plans(tree, task, leak_guard=s.leak_guard)
    metrics: dict[str, float | int | str] = {"plans": len(plans), **counts}
    if not plans or gold(task).done:
        return Done(key, metrics)
    try:
        loglikelihoods = await _loglikelihoods(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, metrics, failure=str(error))
    success = {plan.id: _success(tree, plan) for plan in plans}
    rewards = [
        loglikelihood + s.success * success[plan.id]
        for plan, loglikelihood in zip(plans, loglikelihoods, strict=True)
    ]
    settings = recipe.fingerprint(Step(tree.iteration, "reward"))
    credit = [
        Credit(plan.id, name, value, settings)
        for plan, loglikelihood, reward in zip(plans, loglikelihoods, rewards, strict=True)
        for name, value in (
            ("loglikelihood", loglikelihood), ("perplexity", perplexity(loglikelihood)), ("reward", reward),
        )
    ]  # fmt: skip
    metrics |= {"reward": statistics.fmean(rewards), "spread": max(rewards) - min(rewards)}
    return Done(key, metrics, None, tuple(credit))


def valid_plans(tree: Tree, task: Task, *, leak_guard: bool) -> tuple[list[Turn], Counter[str]]:
    """Return the plans that get a reward, and the number of other plans by reason."""
    counts: Counter[str] = Counter(dict.fromkeys(LEFT_OUT, 0))
    by_text: dict[str, Turn] = {}
    actions = [action for step in gold(task).steps for action in step.actions]
    for turn in sorted(tree.children(tree.root), key=lambda turn: turn.draw):
        text = " ".join(turn.text.split())
        if not text or turn.truncated:
            counts["truncated" if turn.truncated else "empty"] += 1
        elif text in by_text:
            counts["equal"] += 1
        elif leak_guard and quotes(text, actions):
            counts["leaks"] += 1
        else:
            by_text[text] = turn
    return list(by_text.values()), counts


async def _loglikelihoods(
    recipe: MoatData, grounder: Engine, task: Task, tree: Tree, plans: Sequence[Turn]
) -> list[float]:
    """Return r(s) of each plan ``s``: the mean log-likelihood of the gold actions in nats per token."""
    render = recipe.renderers[GROUNDER]
    prompts = []
    for plan in plans:
        messages = recipe.environment.see(State(task, 0, turns=(plan,)), GROUNDER)
        prompts.append(render(messages, tree, GROUNDER))
    return await mean_loglikelihoods(grounder, prompts, render.encode_turn(gold(task).actions))


def _success(tree: Tree, plan: Turn) -> float:
    """Return the mean score of the grounder's actions for a plan; 0 if it has no graded actions."""
    leaves = [plan, *tree.children(plan.id)]
    scores = [tree.outcomes[node.id].score for node in leaves if node.id in tree.outcomes]
    return statistics.fmean(score or 0.0 for score in scores) if scores else 0.0


async def measure(
    recipe: MoatData, run: Run, step: Step, versions: Mapping[str, int], progress: Progress
) -> Metrics:
    """Estimate J of the given versions: the mean over held-out tasks and its standard error."""
    s = recipe.settings
    planner = await recipe.sampler(
        run, versions[PLANNER], s.rollout.temperature, s.rollout.top_p, PLANNER
    )
    grounder = recipe.models(run).embedded(GROUNDER, versions[GROUNDER])
    tasks = recipe.environment.scored_tasks(s.measure.tasks, s.seed)
    run.store.put_tasks(tasks)
    items = {
        ItemKey(step.iteration, step.stage, task.id): partial(
            _measure_task, recipe, planner, grounder, task, step
        )
        for task in tasks
    }
    title = f"{step.stage} {step.iteration}"
    await do_items(run.store, items, progress, "tasks", title, in_flight=IN_FLIGHT)
    task_metrics = [
        m for key, m in run.store.metrics(step.iteration, step.stage).items() if key.task
    ]
    values = [float(m["loglikelihood"]) for m in task_metrics if "loglikelihood" in m]
    if not values:
        return {"n": 0}
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    j = statistics.fmean(values)
    return {
        "n": len(values),
        "j": j,
        "standard_error": spread / math.sqrt(len(values)),
        **versions,
    }


async def _measure_task(
    recipe: MoatData, planner: TokenSampler, grounder: Engine, task: Task, step: Step
) -> Done:
    """Sample plans of a held-out task and average their r(s)."""
    key = ItemKey(step.iteration, step.stage, task.id)
    tree = Tree(task.id, step.stage, step.iteration)
    samples = range(recipe.settings.measure.samples)
    seeds = [int(digest("J", recipe.settings.seed, task.id, n)[:15], 16) for n in samples]
    messages = recipe.environment.see(State(task, 0), PLANNER)
    prompt = Prompt(tree, tree.root, PLANNER, messages, seeds[0], 0)
    try:
        candidates = await planner.candidates(prompt, AgentContext(), seeds, list(samples))
        for candidate in candidates:
            tree.add(candidate.turn, candidate.request)
        plans = [candidate.turn for candidate in candidates]
        loglikelihoods = await _loglikelihoods(recipe, grounder, task, tree, plans)
    except EngineError as error:
        return Done(key, {}, failure=str(error))
    return Done(key, {"loglikelihood": statistics.fmean(loglikelihoods)}, tree)
