"""Optima (arXiv 2410.08115): agents learn to talk shorter and better.

    policy_0 = base
    for i = 0 .. iterations-1, an iteration of SFT (algorithm 1: isft has no others):
        sample         N dialogues a task by policy_i; for i = 0 each under a drawn format prompt
        reward         R = R_task - lambda_token * tokens / max tokens + lambda_loss / R_loss         (equation 1)
        demonstrate    each task's best dialogue, if R >= threshold; the top share of them
        imitate        SFT on each agent's own turns, format prompts dropped -> policy_{i+1}
    or one of DPO (algorithm 2, idpo: all but the first; algorithm 3, isft_dpo: every other one):
        search         a tree of dialogues a task: choose an utterance by value, play rollouts from it  (algorithm 4)
        value          of each utterance: the mean of R over the rollouts through it
        pair           sibling utterances of which one is better by more than theta_diff                (algorithm 5)
        prefer         DPO, in idpo with the chosen side's NLL; policy_i is the reference -> policy_{i+1}
    evaluate           every policy_i, greedily, on held-out tasks

Deviations from the released code, each on purpose: the partner's turns are ``user`` messages; R_loss is computed given
the turn's context, as in the paper (the code scores each turn alone); the threshold comes before the top share, as in
the paper; an utterance that is nearly a sibling is that sibling (``rollout.grower``); values of pairs are those of the
finished tree; a dialogue out of turns keeps its last answer, as in evaluation.
"""

from collections.abc import Sequence
from functools import partial

from coterie.engines.run_engines import POLICY
from coterie.progress import Progress
from coterie.recipes.optima.data import OptimaData
from coterie.recipes.optima.failing import nothing_selected, nothing_to_compare
from coterie.recipes.optima.reward import totals
from coterie.recipes.optima.trees import grow, probe, siblings, valued
from coterie.recipes.trainings import prefer, train_role
from coterie.runs.folder import Run, Step
from coterie.runs.growing import grown, rollouts
from coterie.runs.items import on_trees
from coterie.runs.stage import Stage
from coterie.selection.demonstrations import best_demonstrations, random_demonstrations
from coterie.trajectories.item import Metrics
from coterie.trajectories.selection import Selection
from coterie.trajectories.turn import digest

IN_FLIGHT = 64
"""Trees that are scored at a time."""


class Optima(OptimaData):
    """The recipe under given settings, whose method says which iterations are of DPO."""

    def stages(self) -> list[Stage]:
        """Each policy is evaluated, then plays, and is trained; the last one is evaluated too."""
        s, before, found = self.settings, list[Stage](), list[Stage]()
        judged = (s.evaluate.fingerprint(), s.rollout.max_tokens, *s.engine.identity())
        for i, kind in enumerate(s.kinds()):
            found.append(self.evaluation(i, before, judged))
            found += self.sft(i, before) if kind == "sft" else self.dpo(i, before)
            before = found[-1:]
        return [*found, self.evaluation(s.iterations, before, judged)]

    # -- an iteration of SFT --------------------------------------------------------------------

    def sft(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Sample, reward, demonstrate, imitate."""
        s = self.settings
        played = (self.draws(i), s.rollout.fingerprint(), *s.engine.identity())
        scored, learnt = (s.reward.identity(),), (s.train.identity(), s.from_initial)
        rollout = self.stage(i, "rollout", self.sample, before, played)
        reward = self.stage(i, "reward", self.reward, [rollout], scored, alone=True)
        select = self.stage(i, "select", self.demonstrate, [reward], [s.select.fingerprint()])
        train = self.stage(i, "train", self.imitate, [select], learnt, trains=POLICY)
        return [rollout, reward, select, train]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """N dialogues a task by the newest policy; in iteration 0 each under a format prompt."""
        s = self.settings.rollout
        temperature = s.temperature if i else s.first_temperature
        return await self.play(run, self.episodes(i), temperature, s.top_p, progress)

    async def reward(self, run: Run, i: int, progress: Progress) -> Metrics:
        """R of every dialogue, its parts, and the frozen base's loss of every turn, as credit."""
        work = partial(self.scored, self.models(run).embedded(POLICY, 0))
        await on_trees(run.store, i, work, progress, f"reward {i}", in_flight=IN_FLIGHT)
        return totals(run.store, i)

    def demonstrate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Each task's best dialogue above the threshold, the top share of them, both views."""
        found, s = self.rewards(run, i), self.settings.select
        if s.rule == "best":
            chosen = best_demonstrations(found, s)
        else:
            seed = int(digest("select", self.settings.seed, i)[:15], 16)
            chosen = random_demonstrations(found, s.counts[i], seed)
        context, agents = self.context(i), self.agents
        run.select(i, [Selection(r.leaf, agent, context) for _, r in chosen for agent in agents])
        return {"tasks": len(found), "selected": len(chosen)}

    def imitate(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT on each agent's own turns of the selected dialogues."""
        policy = self.models(run).load_to_train(POLICY, 0 if self.settings.from_initial else i)
        rows = self.rows(run, i, policy)
        if not rows:
            raise nothing_selected(i, self.settings)
        own = self.seeded(self.settings.train, i)
        return train_role(run, i, policy, rows, own, progress, role=POLICY)

    # -- an iteration of DPO --------------------------------------------------------------------

    def dpo(self, i: int, before: Sequence[Stage]) -> list[Stage]:
        """Search, value, pair, prefer."""
        s, own = self.dpo_settings, self.settings
        played = (
            *("dpo", self.draws(i), s.temperature, s.probe, s.percentile, own.rollout.top_p),
            *(s.search.fingerprint(), s.reward.identity(), own.rollout.max_tokens),
            *own.engine.identity(),
        )
        valued = ("dpo", s.reward.identity())
        learnt = ("dpo", s.objective.fingerprint(), s.train.identity())
        rollout = self.stage(i, "rollout", self.search, before, played)
        reward = self.stage(i, "reward", self.value, [rollout], valued, alone=True)
        select = self.stage(i, "select", self.pair, [reward], ("dpo", s.select.fingerprint()))
        train = self.stage(i, "train", self.prefer, [select], learnt, trains=POLICY)
        return [rollout, reward, select, train]

    async def search(self, run: Run, i: int, progress: Progress) -> Metrics:
        """A tree of dialogues for each task; all grow at once. Fresh dialogues say what tokens are relative to."""
        limit = await probe(self, run, i, progress)
        await grow(self, run, i, limit, progress)
        return {**grown(run.store, i), "token_limit": limit}

    async def value(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The value of every node of every tree, as credit."""
        settings = self.fingerprint(Step(i, "reward"))
        work = partial(valued, rollouts(run.store, i), settings, self.agents)
        await on_trees(run.store, i, work, progress, f"values {i}", in_flight=1)
        return totals(run.store, i, ("trajectories", "truncated", "leaks", "repeats"))

    def pair(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Pairs of sibling utterances of each tree."""
        chosen, tasks = list[Selection](), 0
        for tree in run.store.trees(i, "rollout"):
            tasks += 1
            chosen += siblings(tree, self.values(run, tree), self.dpo_settings.select)
        run.select(i, chosen)
        return {"tasks": tasks, "selected": len(chosen)}

    def prefer(self, run: Run, i: int, progress: Progress) -> Metrics:
        """DPO on the pairs; the policy as it is now is the reference."""
        policy, pairs = self.models(run).load_to_train(POLICY, i), list(self.pairs(run, i))
        if not pairs:
            raise nothing_to_compare(i, self.dpo_settings)
        own = self.seeded(self.dpo_settings.train, i)
        return prefer(
            run, i, policy, pairs, self.dpo_settings.objective, own, progress, role=POLICY
        )
