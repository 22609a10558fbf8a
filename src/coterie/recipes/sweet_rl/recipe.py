"""SWEET-RL (arXiv 2503.15478): an agent learns to work with a person, from a critic that knows the reference.

Method ``sweet``, on dialogues that policy_0 has had (offline):

    round 0   rollout   k dialogues a task by policy_0 with a person who knows the reference
              select    pairs of a success and a failure on one task                     (section 4.2)
              train     the critic: Bradley-Terry over sums of turn advantages, where a turn's advantage is the mean
                        log-ratio of its tokens in a context that holds the reference    (equations 2, 3)
    round 1   rollout   n candidates for each turn of a share of the dialogues, by policy_0
              reward    the critic's advantage of every candidate
              select    pairs of the upper and the lower half of a turn's candidates     (section 4.3)
              train     DPO with an NLL term on these turns, the reference unseen -> policy_2  (equation 4)
    evaluate  policy_0 and policy_2 on held-out tasks

The baselines have one round and train the policy on the same dialogues: ``rejection_ft`` imitates all that
succeeded, ``multi_turn_dpo`` compares whole dialogues by the policy's own tokens.

Deviations from the released code, each on purpose: a dialogue's score is the sum over turns of mean log-ratios, as in
the paper (``critic.objective.normalise=tokens`` is the code's mean over all tokens); a candidate is scored by its own
tokens under one context by critic and reference alike; losses have only the agent's own tokens as targets; the
reference stands in the system prompt, not before it.
"""

from contextlib import AbstractAsyncContextManager
from functools import partial

from coterie.engines.protocol import EngineError, EngineGone
from coterie.environments.coding import AGENT, Coding
from coterie.environments.registry import make_coding_environment
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import PolicyRecipe
from coterie.recipes.plan import RunPlan
from coterie.recipes.sweet_rl.critic import open_critic, scored
from coterie.recipes.sweet_rl.data import FIRST, PRIVILEGED, SECOND, pairs, played, rewards
from coterie.recipes.sweet_rl.plan import sweet_plan
from coterie.recipes.sweet_rl.settings import SweetSettings
from coterie.recipes.sweet_rl.training import foretell, imitate, prefer, train_critic
from coterie.rollout.candidates import Branching, Played, candidates
from coterie.rollout.episodes import Episode
from coterie.rollout.flight import in_flight
from coterie.runs.casting import Cast, Openers, open_cast
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, going_on, record
from coterie.selection.ranked import ranked_pairs, trajectory_pairs
from coterie.tools.sandbox.pool import Sandbox
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.task import Task
from coterie.trajectories.turn import digest

TREES_IN_FLIGHT = 8
"""Trees whose candidates a critic scores at a time."""


class SweetRL(PolicyRecipe):
    """The recipe under its settings."""

    settings: SweetSettings
    environment: Coding

    def __init__(self, settings: SweetSettings) -> None:
        super().__init__()
        self.settings = settings
        self.name = settings.recipe
        self.environment = make_coding_environment(settings.dataset, settings.data)

    # -- what the loop asks -------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """The steps of the method; a judge is not trained."""
        s = self.settings
        stages = [(FIRST, "evaluate"), (FIRST, "rollout")]
        if s.method != "sweet" or s.critic.kind != "judge":
            stages += [(FIRST, "select"), (FIRST, "train")]
        if s.method == "sweet":
            stages += [(SECOND, stage) for stage in ("rollout", "reward", "select", "train")]
        return [Step(*one) for one in (*stages, (s.rounds, "evaluate"))]

    def needs(self, step: Step) -> list[Step]:
        """The steps whose results this one reads; a candidate's reward needs candidates and critic."""
        first, second = partial(Step, FIRST), partial(Step, SECOND)
        critic = [] if self.settings.critic.kind == "judge" else [first("train")]
        before = {
            first("select"): [first("rollout")],
            first("train"): [first("select")],
            second("rollout"): [first("rollout")],
            second("reward"): [second("rollout"), *critic],
            second("select"): [second("reward")],
            second("train"): [second("select")],
        }
        if step.stage == "evaluate" and step.iteration:
            return [Step(step.iteration - 1, "train")]
        return before.get(step, [])

    def depends(self, step: Step) -> tuple[object, ...]:
        """The settings of a step that are its own."""
        s = self.settings
        talk = (s.user_simulator.identity(), s.rollout.max_tokens, *s.engine.identity())
        branched = (s.candidates.share, s.candidates.count, s.candidates.temperature)
        critic = (
            *(s.critic.kind, s.critic.privileged, s.critic.objective.fingerprint()),
            *(s.critic.train.identity(), s.critic.judge.identity()),
        )
        own: dict[tuple[int, str], tuple[object, ...]] = {
            (FIRST, "rollout"): (*talk, s.rollout.fingerprint()),
            (FIRST, "select"): (self._critical, s.method == "rejection_ft", s.min_reward),
            (FIRST, "train"): critic if self._critical else self._training(),
            (SECOND, "rollout"): (*branched, s.rollout.top_p, *s.engine.identity()),
            (SECOND, "reward"): (*branched, *critic),
            (SECOND, "select"): (s.pairs.fingerprint(),),
            (SECOND, "train"): (s.policy.objective.fingerprint(), s.policy.train.identity()),
        }
        if step.stage == "evaluate":
            return (*talk, s.evaluate.fingerprint())
        return own[step.iteration, step.stage]

    def plan(self) -> RunPlan:
        """What the run costs."""
        return sweet_plan(self.settings, self.environment)

    def do(self, run: Run, step: Step, progress: Progress) -> Metrics:
        """Do one step; finished items of an interrupted one are kept."""
        engines = self.engines(run)
        if step.stage in ("reward", "train"):
            engines.make_room()
        if step.stage == "evaluate":
            return engines.run(self.evaluate(run, step.iteration, progress))
        if step.stage == "rollout":
            playing = self.rollout if step.iteration == FIRST else self.branch
            return engines.run(playing(run, progress))
        if step.stage == "reward":
            return engines.run(self.reward(run, progress))
        if step.stage == "select":
            return self.select(run) if step.iteration == FIRST else self.select_turns(run)
        return self.train(run, step.iteration, progress)

    def versions(self, run: Run) -> list[int]:
        """The base, and the trained policy if it is there; a critic is not a policy."""
        last = self.settings.rounds
        return [0, *([last] if run.is_finished(Step(last - 1, "train")) else [])]

    def cast(self, run: Run) -> AbstractAsyncContextManager[Cast]:
        """The person and the sandbox."""
        s = self.settings
        openers: Openers = {Sandbox: partial(Sandbox, s.sandbox)}
        return open_cast(self.environment, run.folder / "user_simulator", s.user_simulator, openers)

    # -- the algorithm ------------------------------------------------------------------------

    async def rollout(self, run: Run, progress: Progress) -> Metrics:
        """k dialogues a task by the base policy."""
        s = self.settings.rollout
        episodes = [
            Episode(task, sample, FIRST, "rollout")
            for task in self.train_tasks()
            for sample in range(s.repeats)
        ]
        return await self.play(run, episodes, s.temperature, s.top_p, progress)

    def select(self, run: Run) -> Metrics:
        """Pairs of a success and a failure on one task; for ``rejection_ft`` all successes."""
        chosen: list[Selection] = []
        count = 0
        shares, min_reward = rewards(run), self.settings.min_reward
        for tree in run.store.trees(FIRST, "rollout"):
            count += 1
            of_task = [(o.leaf, shares[tree.task, o.sample]) for o, _ in tree.trajectories()]
            if self.settings.method == "rejection_ft":
                chosen += [
                    Selection(leaf, AGENT) for leaf, reward in of_task if reward >= min_reward
                ]
            else:
                chosen += [
                    Selection(best, AGENT, rejected=worse)
                    for best, worse in trajectory_pairs(of_task, min_reward)
                ]
        if not run.store.finished(ItemKey(FIRST, "select", "")):
            run.store.select(FIRST, "select", chosen)
        return {"tasks": count, "selected": len(chosen)}

    async def branch(self, run: Run, progress: Progress) -> Metrics:
        """Candidates for the turns of the first dialogues, in the order of tasks and samples."""
        s = self.settings
        sampler = await self.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
        finished = run.store.finished_keys(SECOND, "rollout")
        left = [
            one for one in played(run, s.candidates.share) if (one.task.id, one.key) not in finished
        ]
        stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
        progress.start(len(left), f"candidates {SECOND}")

        async def one(dialogue: Played, branching: Branching) -> Done:
            key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
            try:
                tree = await branching.branch(dialogue)
            except EngineGone:
                raise
            except EngineError as error:
                return Done(key, {"candidates": 0}, failure=str(error))
            return Done(key, {"candidates": sum(map(len, candidates(tree)))}, tree)

        with going_on(f"candidates {SECOND}", progress):
            async with self.cast(run) as cast:
                driver = cast.driver(sampler, s.seed)
                async with driver.sessions() as sessions:
                    branching = Branching(
                        driver, sampler, sessions, SECOND, "rollout", s.candidates.count
                    )
                    work = (one(dialogue, branching) for dialogue in left)
                    async with in_flight(work, s.candidates.in_flight) as items:
                        await record(
                            *(run.store, items, progress, "dialogues"),
                            lambda: stats.sampled_tokens - before,
                        )
        found = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
        failed = sum(key.stage == "rollout" for key, _ in run.store.failures(SECOND))
        count = sum(int(metrics["candidates"]) for metrics in found)
        return {"dialogues": len(found), "failed": failed, "candidates": count}

    async def reward(self, run: Run, progress: Progress) -> Metrics:
        """The critic's advantage of every candidate, as credit."""
        settings = self.fingerprint(Step(SECOND, "reward"))
        finished = run.store.finished_keys(SECOND, "reward")
        trees = [t for t in run.store.trees(SECOND, "rollout") if (t.task, "") not in finished]
        progress.start(len(trees), f"advantages {SECOND}")
        with going_on(f"advantages {SECOND}", progress):
            async with open_critic(self, run, self.settings.critic, self.environment) as critic:
                scoring = (
                    scored(critic, run.store.task(tree.task), tree, settings) for tree in trees
                )
                async with in_flight(scoring, TREES_IN_FLIGHT) as items:
                    await record(run.store, items, progress, "trees")
                counts = critic.counts
        found = [m for key, m in run.store.metrics(SECOND, "reward").items() if key.task]
        totals = {name: sum(int(m[name]) for m in found) for name in ("turns", "unscored")}
        return {**totals, **counts}

    def select_turns(self, run: Run) -> Metrics:
        """Pairs of candidates: one of a turn's upper half over one of its lower half."""
        s, settings = self.settings, self.fingerprint(Step(SECOND, "reward"))
        chosen: list[Selection] = []
        turns = 0
        for tree in run.store.trees(SECOND, "rollout"):
            found = candidates(tree)
            nodes = [turn.id for group in found for turn in group]
            scores = run.store.credit(settings, "advantage", nodes)
            for group in found:
                if any(turn.id not in scores for turn in group):
                    continue  # the critic failed on this turn, which its item says
                seed = digest("pairs", s.seed, group[0].id)
                own = {turn.id: scores[turn.id] for turn in group}
                chosen += [
                    Selection(best, AGENT, rejected=worse)
                    for best, worse in ranked_pairs(own, s.pairs, seed)
                ]
            turns += len(found)
        if not run.store.finished(ItemKey(SECOND, "select", "")):
            run.store.select(SECOND, "select", chosen)
        return {"turns": turns, "selected": len(chosen)}

    def train(self, run: Run, iteration: int, progress: Progress) -> Metrics:
        """The critic, or the policy; each begins as the base."""
        s = self.settings
        model = self.load_policy(run, 0)
        if iteration == FIRST and s.method == "rejection_ft":
            return imitate(self, run, model, s.rejection_ft.train, progress)
        if iteration == FIRST and self._critical and s.critic.kind == "classifier":
            return foretell(self, run, model, s.critic, s.min_reward, progress)
        found = pairs(run, iteration, model, self.context(iteration))
        if not found:
            raise UserError(
                f"no pair was selected in round {iteration}",
                "sample more tasks or repeats (rollout.tasks, rollout.repeats): pairs need a full success "
                "and a failure on one task; or lower min_reward"
                if iteration == FIRST
                else "raise candidates.share or candidates.count; a judge whose verdicts can't be read makes "
                "all candidates equal",
            )
        if iteration == FIRST and self._critical:
            return train_critic(self, run, model, found, s.critic, progress)
        own = s.policy if iteration == SECOND else s.multi_turn_dpo
        return prefer(self, run, iteration, model, found, own.objective, own.train, progress)

    # -- its data -----------------------------------------------------------------------------

    def train_tasks(self) -> list[Task]:
        """The training tasks."""
        return self.environment.tasks("train", self.settings.rollout.tasks, self.settings.seed)

    def context(self, iteration: int) -> str | None:
        """In which context a round trains on dialogues: the critic may be shown the reference."""
        privileged = iteration == FIRST and self._critical and self.settings.critic.privileged
        return PRIVILEGED if privileged else None

    def rewards(self, run: Run) -> dict[tuple[str, int], float]:
        """Share of tests that each dialogue's answer passes, by task and sample."""
        return rewards(run)

    # -- details ------------------------------------------------------------------------------

    @property
    def _critical(self) -> bool:
        """Whether round 0 trains a critic."""
        return self.settings.method == "sweet"

    def _training(self) -> tuple[object, ...]:
        """Identity of a baseline's training."""
        s = self.settings
        if s.method == "rejection_ft":
            return (s.rejection_ft.train.identity(),)
        own = s.multi_turn_dpo
        return (own.objective.fingerprint(), own.train.identity())
