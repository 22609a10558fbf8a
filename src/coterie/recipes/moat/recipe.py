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
        correct      a critic accepts or corrects a_hat for the best plans
        improve      SFT of pi_g on accepted, corrected and gold rows
        measure      J(pi_p, pi_g) = E_x E_{s ~ pi_p} r(s) on held-out tasks, after each half
    evaluate     plan, ground and execute greedily on held-out tasks

``parts`` leaves out one half (ablations) or replaces both with SFT on gold rows (control).

Deliberate deviations from the released code:

* The reward counts every token of the gold actions, including the end of the turn. The code skips tokens of
  probability 1.
* Rewards are log-likelihoods, from which the perplexity follows.
* Empty and duplicate plans are left out. The code replaces an empty plan with a plan of another task.
* The critic's reply is not cut off after 16 tokens, its actions are parsed and checked, and its rows are trained on.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from coterie.engines.chat_model import ChatModel, open_chat
from coterie.engines.protocol import EngineError
from coterie.environments.plan_ground import GROUNDER, PLANNER, gold, known_results, request
from coterie.progress import Progress
from coterie.recipes.moat.data import DATA, HALF, WHOLE, MoatData, best_first, measure, reward_plans
from coterie.recipes.moat.settings import SCRIPT
from coterie.recipes.trainings import prefer, train_role
from coterie.record.tree import ItemKey, Metrics, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rewards.critics import Correction, correction_question, read_correction
from coterie.rollout.recorded_turns import WrittenTurn, write_path
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, on_trees
from coterie.runs.loop import Stage
from coterie.runs.roles import Role
from coterie.tools.actions.grammar import check, describe

IN_FLIGHT = 16
"""Tasks that the critic reviews concurrently."""
COUNTS = ("accepted", "corrected", "unreadable", "rows")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sampled plan with the grounder's actions and their score."""

    plan: Turn
    actions: Turn
    score: float


class ActionCritic(Protocol):
    """Critic that accepts or corrects the grounder's actions."""

    name: str

    async def review(self, task: Task, candidate: Candidate) -> Correction:
        """Return the verdict on a candidate. Raises ``EngineError``."""
        ...


class ScriptCritic:
    """Accepts actions that gave the right answer and replaces all others with the gold actions."""

    name = f"critic:{SCRIPT}"

    async def review(self, task: Task, candidate: Candidate) -> Correction:
        if candidate.score >= 1:
            return Correction("accepted")
        target = gold(task)
        return Correction("corrected", target.plan, target.actions)


class ModelCritic:
    """Chat model as the critic. Its prompt has neither the gold actions nor execution results."""

    def __init__(self, chat: ChatModel, tools: str, seed: int) -> None:
        self.chat = chat
        self.tools = tools
        self.seed = seed
        self.name = f"critic:{chat.name}"

    async def review(self, task: Task, candidate: Candidate) -> Correction:
        """Parse the model's reply. A truncated reply is unreadable."""
        seed = int(digest("critic", self.seed, candidate.actions.id)[:15], 16)
        messages = correction_question(
            request(task), candidate.plan.text, candidate.actions.text, self.tools
        )
        reply = await self.chat.ask(messages, seed)
        return Correction("unreadable") if reply.truncated else read_correction(reply.text)


@asynccontextmanager
async def open_critic(recipe: MoatData, run: Run) -> AsyncIterator[ActionCritic]:
    s = recipe.settings.correct.critic
    if s.url is None and s.model == SCRIPT:
        yield ScriptCritic()
        return
    async with open_chat(s, run.folder / "critic") as chat:
        yield ModelCritic(chat, describe(recipe.environment.domain.name), recipe.settings.seed)


async def correct(recipe: MoatData, run: Run, i: int, progress: Progress) -> Metrics:
    """Write the grounder's training rows of an iteration and count the critic's verdicts."""
    async with open_critic(recipe, run) as critic:

        async def one(tree: Tree) -> Done:
            return await _correct_tree(recipe, run, critic, tree)

        title = f"correct {i}"
        await on_trees(run.store, i, one, progress, title, in_flight=IN_FLIGHT, stage="correct")
    metrics = [m for key, m in run.store.metrics(i, "correct").items() if key.task]
    return {name: sum(int(m.get(name, 0)) for m in metrics) for name in COUNTS}


async def _correct_tree(recipe: MoatData, run: Run, critic: ActionCritic, tree: Tree) -> Done:
    task, s = run.store.task(tree.task), recipe.settings.correct
    key, counts = ItemKey(tree.iteration, "correct", tree.task), Counter[str]()
    corrections, target = Tree(tree.task, "correct", tree.iteration), gold(task)
    if target.done:
        return Done(key, {"rows": 0})
    examples: list[tuple[WrittenTurn, WrittenTurn]] = []
    for candidate in _candidates(recipe, run, tree):
        try:
            correction = _validate(recipe, task, await critic.review(task, candidate), candidate)
        except EngineError as error:
            return Done(key, {}, failure=str(error))
        counts[correction.verdict] += 1
        examples += _examples(recipe, task, candidate, correction, critic.name)
    if s.gold:
        examples.append(
            (WrittenTurn(PLANNER, target.plan, DATA), WrittenTurn(GROUNDER, target.actions, DATA))
        )
    for draw, example in enumerate(examples):
        write_path(recipe.environment, task, corrections, example, recipe.renderers, draw)
    return Done(key, {**counts, "rows": len(examples)}, corrections if examples else None)


def _candidates(recipe: MoatData, run: Run, tree: Tree) -> list[Candidate]:
    """Return the candidates to review: the actions for the plans with the highest rewards."""
    s = recipe.settings.correct
    plans = [turn.id for turn in tree.children(tree.root)]
    rewards = run.store.credit(recipe.fingerprint(Step(tree.iteration, "reward")), "reward", plans)
    ranked = best_first([(plan, rewards[plan]) for plan in plans if plan in rewards])
    count = {"best": 1, "top": s.top, "all": len(ranked)}[s.candidates]
    candidates = []
    for plan in ranked[:count]:
        for actions in tree.children(plan)[:1]:
            score = tree.outcomes[actions.id].score if actions.id in tree.outcomes else None
            candidates.append(Candidate(tree.turns[plan], actions, score or 0.0))
    return candidates


def _validate(
    recipe: MoatData, task: Task, correction: Correction, candidate: Candidate
) -> Correction:
    actions = candidate.actions.text if correction.verdict == "accepted" else correction.actions
    domain, known = recipe.environment.domain.name, known_results(task)
    if correction.verdict == "unreadable" or check(actions, domain, known=known).problems:
        return Correction("unreadable")
    return correction


def _examples(
    recipe: MoatData, task: Task, candidate: Candidate, correction: Correction, critic: str
) -> Sequence[tuple[WrittenTurn, WrittenTurn]]:
    s = recipe.settings.correct
    plan = WrittenTurn(
        PLANNER, candidate.plan.whole_text, candidate.plan.writer, candidate.plan.ids
    )
    actions = candidate.actions
    unchanged = WrittenTurn(GROUNDER, actions.whole_text, actions.writer, actions.ids)
    if correction.verdict == "accepted" or (
        correction.verdict == "unreadable" and s.unreadable == "keep"
    ):
        return [(plan, unchanged)]
    if correction.verdict == "corrected":
        if s.subgoals == "corrected":
            plan = WrittenTurn(PLANNER, correction.subgoals, critic)
        return [(plan, WrittenTurn(GROUNDER, correction.actions, critic))]
    if s.unreadable == "gold":
        return [(plan, WrittenTurn(GROUNDER, gold(task).actions, DATA))]
    return []


class Moat(MoatData):
    """The MOAT recipe."""

    def roles(self) -> tuple[Role, ...]:
        """Return the planner and the grounder. With ``share`` both are adapters of one base."""
        s = self.settings
        shares = PLANNER if s.share else None
        return (Role(PLANNER, s.model), Role(GROUNDER, s.grounder or s.model, shares=shares))

    def stages(self) -> list[Stage]:
        """Return the stages of all iterations. Success and J are also measured before the first one."""
        stages = self.start() if self.settings.start.enabled else []
        first = int(self.settings.start.enabled)
        stages += self.measurement(first, stages)
        for i in range(first, self.settings.rounds):
            stages += self.iteration(i, [stage for stage in stages if stage.trains])
        return stages

    def start(self) -> list[Stage]:
        s = self.settings.start
        return self.supervised(0, (), (s.tasks, s.train.identity()))

    def iteration(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Return the stages of one iteration: both halves, the half that ``parts`` keeps, or the control."""
        s = self.settings
        if s.parts == "sft":
            stages = self.supervised(i, before, (self.draws(i), s.improve.train.identity()))
            return [*stages, *self.measurement(i + 1, stages)]
        sampling = (self.draws(i), s.rollout.fingerprint(), *s.engine.identity())
        rollout = self.stage(i, "rollout", self.sample, before, sampling)
        scoring = (s.reward.fingerprint(),)
        reward = self.stage(i, "reward", self.reward, [rollout], scoring, alone=True)
        stages = [rollout, reward]
        if s.parts != "grounder":
            stages += self.planning(i, reward)
        if s.parts != "planner":
            stages += self.grounding(i, reward)
        return [*stages, *self.measurement(i + 1, [stage for stage in stages if stage.trains])]

    def planning(self, i: int, reward: Stage) -> list[Stage]:
        """Return the stages of planning agent alignment, ending with J."""
        s = self.settings
        training = (s.align.objective.fingerprint(), s.align.train.identity())
        select = self.stage(i, "select", self.select, [reward], [s.pairs.fingerprint()])
        align = self.stage(i, "align", self.align, [select], training, trains=PLANNER)
        return [
            select,
            align,
            self.stage(i, HALF, self.measure_half, [align], self.measure_settings()),
        ]

    def grounding(self, i: int, reward: Stage) -> list[Stage]:
        """Return the stages of grounding agent improving."""
        s = self.settings
        correct = self.stage(i, "correct", self.correct, [reward], [s.correct.fingerprint()])
        training = (s.improve.train.identity(),)
        improve = self.stage(i, "improve", self.improve, [correct], training, trains=GROUNDER)
        return [correct, improve]

    def supervised(self, i: int, before: Sequence[Stage], depends: Sequence[object]) -> list[Stage]:
        """Return the SFT stages of both agents on gold plans and gold actions."""
        return [
            self.stage(
                i, "align", partial(self.teach, role=PLANNER), before, depends, trains=PLANNER
            ),
            self.stage(
                i, "improve", partial(self.teach, role=GROUNDER), before, depends, trains=GROUNDER
            ),
        ]

    def measurement(self, version: int, after: Sequence[Stage]) -> list[Stage]:
        """Return the stages that measure J and, for tasks that can be graded, success."""
        measure = self.stage(version, WHOLE, self.measure, after, self.measure_settings())
        graded = self.environment.ungraded is None
        return [measure, *([self.evaluation(version, after)] if graded else [])]

    # -- stages ---------------------------------------------------------------------------------

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Sample K plans ``s`` per task, and actions ``a_hat`` for each."""
        return await self.play_plans(run, i, progress)

    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Store ``r(s) = (1/|a|) sum_l log pi_g(a_l | a_<l, x, I, s)`` of every valid plan as credit."""
        return await reward_plans(self, run, i, progress)

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pair plans of one task: ``r(s_w) - r(s_l) > margin``."""
        selections = self.plan_pairs(run, i)
        run.select(i, selections)
        return {"tasks": len(run.store.tree_tasks(i, "rollout")), "selected": len(selections)}

    def align(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the planner by DPO; the reference is the planner before this training.

        ``L = -log sigmoid(beta [log pi_p(s_w|x) / pi_ref(s_w|x) - log pi_p(s_l|x) / pi_ref(s_l|x)])``
        """
        s, planner = self.settings.align, self.load_newest(run, PLANNER, i)
        pairs, seeded = self.pairs(run, i), self.seeded(s.train, i)
        return prefer(run, i, planner, pairs, s.objective, seeded, progress, role=PLANNER)

    async def correct(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Collect the grounder's training rows: accepted, corrected and gold actions."""
        return await correct(self, run, i, progress)

    def improve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Train the grounder by SFT on these rows."""
        grounder = self.load_newest(run, GROUNDER, i)
        rows, seeded = self.corrected_rows(run, i), self.seeded(self.settings.improve.train, i)
        return train_role(run, i, grounder, rows, seeded, progress, role=GROUNDER)

    async def measure_half(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Measure ``J(pi_p', pi_g)``: the newly aligned planner with the grounder before its update."""
        newest = {
            PLANNER: self.newest(run, PLANNER, i + 1),
            GROUNDER: self.newest(run, GROUNDER, i),
        }
        return await measure(self, run, Step(i, HALF), newest, progress)

    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """Measure ``J(pi_p', pi_g')`` of the newest planner and grounder."""
        newest = {role: self.newest(run, role, version) for role in (PLANNER, GROUNDER)}
        return await measure(self, run, Step(version, WHOLE), newest, progress)
