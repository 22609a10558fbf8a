"""MOAT (arXiv 2509.09629): a planner and a grounder that are aligned in turn.

    start        (iteration 0, if asked for) both are trained on right plans and right actions
    for each iteration:
        rollout      K plans a task by the planner, and what the grounder makes of each               (B1)
        reward       of a plan: mean log p(right actions | task, tools, plan) under the grounder       (A2)
        select       a task's best and worst plan, if they differ by the margin                        (A3)
        align        DPO of the planner on these pairs, itself the reference -> planner_{i+1}          (A4)
        correct      a critic accepts or corrects the grounder's actions for the best plans            (B2, B3)
        improve      SFT of the grounder: kept, corrected and right rows together -> grounder_{i+1}     (B4, B5)
        measure      J = E log p(right actions | plans of the planner), on held-out tasks, after each half
    evaluate     plan, ground and carry out, greedily, on held-out tasks

``parts`` leaves out a half (ablations), or replaces both by supervised training on as many rows (control).

Deviations from the released code, each on purpose: exactly the right actions' tokens count, their end included (the
code drops those of probability 1); rewards are log-likelihoods, of which perplexity is a function; empty plans are left
out (the code puts another task's plan in their place), and equal ones once; a critic's reply has room to end, its
actions are read and checked, and its rows are trained on (in the code none is).
"""

from collections.abc import Sequence

from coterie.environments.plan_ground.environment import GROUNDER, PLANNER
from coterie.progress import Progress
from coterie.recipes.moat.correcting import correct
from coterie.recipes.moat.data import HALF, WHOLE, MoatData
from coterie.recipes.moat.scoring import measure, reward_plans
from coterie.recipes.trainings import prefer, train_role
from coterie.runs.folder import Run, Step
from coterie.runs.roles import Role
from coterie.runs.stage import Stage
from coterie.trajectories.item import Metrics


class Moat(MoatData):
    """The recipe under given settings."""

    def roles(self) -> tuple[Role, ...]:
        """The planner and the grounder, which may be adapters of one base."""
        s = self.settings
        shares = PLANNER if s.share else None
        return (Role(PLANNER, s.model), Role(GROUNDER, s.grounder or s.model, shares=shares))

    def stages(self) -> list[Stage]:
        """Those of all iterations; success and J are measured before the first one, too."""
        found = self.start() if self.settings.start.enabled else []
        first = int(self.settings.start.enabled)
        found += self.measured(first, found)
        for i in range(first, self.settings.rounds):
            found += self.iteration(i, [one for one in found if one.trains])
        return found

    def start(self) -> list[Stage]:
        s = self.settings.start
        return self.taught(0, (), (s.tasks, s.train.identity()))

    def iteration(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Both halves, what ``parts`` leaves of them, or the control."""
        s = self.settings
        if s.parts == "sft":
            found = self.taught(i, before, (self.draws(i), s.improve.train.identity()))
            return [*found, *self.measured(i + 1, found)]
        played = (self.draws(i), s.rollout.fingerprint(), *s.engine.identity())
        rollout = self.stage(i, "rollout", self.sample, before, played)
        scored = (s.reward.fingerprint(),)
        reward = self.stage(i, "reward", self.reward, [rollout], scored, alone=True)
        found = [rollout, reward]
        if s.parts != "grounder":
            found += self.planning(i, reward)
        if s.parts != "planner":
            found += self.grounding(i, reward)
        return [*found, *self.measured(i + 1, [one for one in found if one.trains])]

    def planning(self, i: int, reward: Stage) -> list[Stage]:
        """The planner's half, and J after it."""
        s = self.settings
        learnt = (s.align.objective.fingerprint(), s.align.train.identity())
        select = self.stage(i, "select", self.select, [reward], [s.pairs.fingerprint()])
        align = self.stage(i, "align", self.align, [select], learnt, trains=PLANNER)
        return [select, align, self.stage(i, HALF, self.measure_half, [align], self.judged())]

    def grounding(self, i: int, reward: Stage) -> list[Stage]:
        s = self.settings
        correct = self.stage(i, "correct", self.correct, [reward], [s.correct.fingerprint()])
        learnt = (s.improve.train.identity(),)
        improve = self.stage(i, "improve", self.improve, [correct], learnt, trains=GROUNDER)
        return [correct, improve]

    def taught(self, i: int, before: Sequence[Stage], learnt: Sequence[object]) -> list[Stage]:
        """Supervised training of both on right plans and right actions."""
        return [
            self.stage(i, "align", self.teach_planner, before, learnt, trains=PLANNER),
            self.stage(i, "improve", self.teach_grounder, before, learnt, trains=GROUNDER),
        ]

    def measured(self, version: int, after: Sequence[Stage]) -> list[Stage]:
        """J and success of the newest of both; J alone where the data do not tell what is right."""
        measure = self.stage(version, WHOLE, self.measure, after, self.judged())
        graded = self.environment.ungraded is None
        return [measure, *([self.evaluation(version, after)] if graded else [])]

    # -- what stages do -------------------------------------------------------------------------

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """K plans a task, and the actions for each."""
        return await self.play_plans(run, i, progress)

    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The reward of every plan that is not empty, not an earlier one again, and no leak, as credit."""
        return await reward_plans(self, run, i, progress)

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pairs of plans of one task."""
        chosen = self.plan_pairs(run, i)
        run.select(i, chosen)
        return {"tasks": len(run.store.tree_tasks(i, "rollout")), "selected": len(chosen)}

    def align(self, run: Run, i: int, progress: Progress) -> Metrics:
        """DPO of the planner; as it is now it is the reference."""
        s, planner = self.settings.align, self.to_train(run, PLANNER, i)
        pairs, own = self.pairs(run, i), self.seeded(s.train, i)
        return prefer(run, i, planner, pairs, s.objective, own, progress, role=PLANNER)

    async def correct(self, run: Run, i: int, progress: Progress) -> Metrics:
        """What the grounder is to learn: rows that the critic accepts or corrects, and right ones."""
        return await correct(self, run, i, progress)

    def improve(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the grounder on these rows."""
        grounder = self.to_train(run, GROUNDER, i)
        rows, own = self.corrected_rows(run, i), self.seeded(self.settings.improve.train, i)
        return train_role(run, i, grounder, rows, own, progress, role=GROUNDER)

    async def measure_half(self, run: Run, i: int, progress: Progress) -> Metrics:
        """J of the planner that was just aligned, with the grounder as it was."""
        newest = {
            PLANNER: self.newest(run, PLANNER, i + 1),
            GROUNDER: self.newest(run, GROUNDER, i),
        }
        return await measure(self, run, Step(i, HALF), newest, progress)

    async def measure(self, run: Run, version: int, progress: Progress) -> Metrics:
        """J of the newest planner and grounder."""
        newest = {role: self.newest(run, role, version) for role in (PLANNER, GROUNDER)}
        return await measure(self, run, Step(version, WHOLE), newest, progress)

    def teach_planner(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the planner on right plans."""
        return self.teach(run, i, PLANNER, progress)

    def teach_grounder(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT of the grounder on right actions for right plans."""
        return self.teach(run, i, GROUNDER, progress)
