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

from collections.abc import Sequence
from functools import partial

from coterie.config.folders import expanded
from coterie.engines.protocol import POLICY, EngineError, EngineGone
from coterie.environments.coding import AGENT, CRITIC
from coterie.errors import UserError
from coterie.models.loading import LoadedModel
from coterie.progress import Progress
from coterie.recipes.sweet_rl.critic import advantages
from coterie.recipes.sweet_rl.data import (
    FIRST,
    PRIVILEGED,
    SECOND,
    SweetData,
    pairs,
    played,
    rewards,
    seen,
)
from coterie.recipes.sweet_rl.offline import play_offline
from coterie.recipes.sweet_rl.settings import CriticSettings, PolicySettings
from coterie.recipes.trainings import prefer, train_role
from coterie.rollout.candidates import CandidateSampling, PlayedDialogue, candidates
from coterie.runs.folder import Run, Step
from coterie.runs.items import Done, do_items
from coterie.runs.roles import Role
from coterie.runs.selected import selected
from coterie.runs.stage import Stage
from coterie.selection.ranked_pairs import ranked_pairs, trajectory_pairs
from coterie.training.classifier import Classifier
from coterie.training.regression import Regression
from coterie.training.settings import TrainingSettings
from coterie.trajectories.item import ItemKey, Metrics
from coterie.trajectories.labeled_trajectory import LabeledTrajectory, labeled_trajectory
from coterie.trajectories.pair import Pair
from coterie.trajectories.row import Row, rows
from coterie.trajectories.selection import Selection
from coterie.trajectories.turn import digest
from coterie.trajectories.view import view


def prefer_selected(
    recipe: SweetData, run: Run, iteration: int, s: PolicySettings, progress: Progress
) -> Metrics:
    """Train the policy, from the base, on the selected pairs."""
    model = recipe.models(run).load_to_train(POLICY, 0)
    found, own = _pairs(recipe, run, iteration, model), recipe.seeded(s.train, iteration)
    return prefer(run, iteration, model, found, s.objective, own, progress, role=POLICY)


def imitate(recipe: SweetData, run: Run, settings: TrainingSettings, progress: Progress) -> Metrics:
    """SFT on the dialogues that succeeded."""
    chosen: list[Row] = []
    for tree, selection in selected(run, FIRST):
        chosen += [row for row in rows(view(tree, selection.leaf, AGENT)) if row.targets]
    if not chosen:
        raise UserError(
            "no dialogue succeeded, so there is nothing to imitate", "sample more tasks"
        )
    model = recipe.models(run).load_to_train(POLICY, 0)
    own = recipe.seeded(settings, FIRST)
    return train_role(run, FIRST, model, chosen, own, progress, role=POLICY)


def train_critic(recipe: SweetData, run: Run, s: CriticSettings, progress: Progress) -> Metrics:
    model = recipe.models(run).load_to_train(CRITIC, 0)
    found, own = _pairs(recipe, run, FIRST, model), recipe.seeded(s.train, FIRST)
    if s.kind == "likelihood":
        return prefer(run, FIRST, model, found, s.objective, own, progress, role=CRITIC)
    return train_role(
        *(run, FIRST, model, found, own, progress),
        objective=Regression(),
        role=CRITIC,
    )


def foretell(recipe: SweetData, run: Run, s: CriticSettings, progress: Progress) -> Metrics:
    """Train a critic that is a value function: whether dialogues succeeded, by the ``min_reward`` share of tests."""
    model = recipe.models(run).load_to_train(CRITIC, 0)
    shares, least = rewards(run), recipe.settings.min_reward
    context = PRIVILEGED if s.privileged else None
    items: list[LabeledTrajectory] = []
    for tree in run.store.trees(FIRST, "rollout"):
        task = run.store.task(tree.task)
        for outcome, _ in tree.trajectories():
            shown = seen(task, tree, outcome.leaf, context, model)
            succeeded = shares[tree.task, outcome.sample] >= least
            items.append(labeled_trajectory(shown, succeeded, group=tree.task))
    return train_role(
        *(run, FIRST, model, items, recipe.seeded(s.train, FIRST), progress),
        objective=Classifier(),
        role=CRITIC,
    )


def _pairs(recipe: SweetData, run: Run, iteration: int, model: LoadedModel) -> list[Pair]:
    """The selected pairs; raises ``UserError`` if there are none."""
    found = pairs(run, iteration, model, recipe.context(iteration))
    if not found:
        raise UserError(
            f"no pair was selected in round {iteration}",
            "sample more tasks or repeats (rollout.tasks, rollout.repeats): pairs need a full success "
            "and a failure on one task; or lower min_reward"
            if iteration == FIRST
            else "raise candidates.share or candidates.count; a judge whose verdicts can't be read makes "
            "all candidates equal",
        )
    return found


async def branch(recipe: SweetData, run: Run, progress: Progress) -> Metrics:
    """Candidates for the turns of the first dialogues, by the base policy."""
    s = recipe.settings
    sampler = await recipe.sampler(run, 0, s.candidates.temperature, s.rollout.top_p)
    stats, before = sampler.engine.stats, sampler.engine.stats.sampled_tokens
    async with recipe.cast(run) as cast:
        driver = cast.driver({AGENT: sampler}, s.seed)
        async with driver.sessions() as sessions:
            count = s.candidates.count
            branching = CandidateSampling(driver, sampler, sessions, SECOND, "rollout", count)
            items = {
                ItemKey(SECOND, "rollout", one.task.id, one.key): partial(_branched, branching, one)
                for one in played(run, s.candidates.share)
            }
            await do_items(
                *(run.store, items, progress, "dialogues", f"candidates {SECOND}"),
                in_flight=s.candidates.in_flight,
                sampled_tokens=lambda: stats.sampled_tokens - before,
            )
    found = [m for key, m in run.store.metrics(SECOND, "rollout").items() if key.task]
    failed = sum(key.stage == "rollout" for key, _ in run.store.failures(SECOND))
    count = sum(int(metrics["candidates"]) for metrics in found)
    return {"dialogues": len(found), "failed": failed, "candidates": count}


async def _branched(branching: CandidateSampling, dialogue: PlayedDialogue) -> Done:
    key = ItemKey(SECOND, "rollout", dialogue.task.id, dialogue.key)
    try:
        tree = await branching.branch(dialogue)
    except EngineGone:
        raise
    except EngineError as error:
        return Done(key, {"candidates": 0}, failure=str(error))
    return Done(key, {"candidates": sum(map(len, candidates(tree)))}, tree)


class SweetRL(SweetData):
    """The recipe under its settings."""

    def roles(self) -> tuple[Role, ...]:
        """The policy, and the critic, which begins as the same model."""
        head = self.settings.critic.has_head
        base = self.settings.model
        return (Role(POLICY, base), Role(CRITIC, base, head=head))

    def stages(self) -> list[Stage]:
        """Those of the method; a judge is not trained."""
        s, stage = self.settings, self.stage
        judged = s.critic.kind == "judge"
        talk = (s.user_simulator.identity(), s.rollout.max_tokens, *s.engine.identity())
        evaluation = partial(self.evaluation, depends=(*talk, s.evaluate.fingerprint()))
        played = (*talk, s.rollout.fingerprint(), *self.offline_content)
        rollout = stage(FIRST, "rollout", self.rollout, (), played)
        found = [evaluation(FIRST, ()), rollout]
        if not (self.critical and judged):
            how = (self.critical, s.method == "rejection_ft", s.min_reward)
            found.append(stage(FIRST, "select", self.select, [rollout], how))
            role = CRITIC if self.critical else POLICY
            learnt = self.first_training()
            found.append(stage(FIRST, "train", self.train, found[-1:], learnt, trains=role))
        if self.critical:
            found += self.second_round(rollout, [] if judged else found[-1:])
        return [*found, evaluation(s.rounds, found[-1:])]

    def second_round(self, rollout: Stage, critic: Sequence[Stage]) -> list[Stage]:
        """Candidates for the turns of round 0, their advantages, pairs of them, the policy."""
        s, stage = self.settings, self.stage
        drawn = (s.candidates.share, s.candidates.count, s.candidates.temperature)
        engine = (*drawn, s.rollout.top_p, *s.engine.identity())
        ranked = (*drawn, *self.critic_training())
        learnt = (s.policy.objective.fingerprint(), s.policy.train.identity())
        branched = stage(SECOND, "rollout", self.branch, [rollout], engine)
        reward = stage(SECOND, "reward", self.reward, [branched, *critic], ranked, alone=True)
        select = stage(SECOND, "select", self.select_turns, [reward], [s.pairs.fingerprint()])
        train = stage(SECOND, "train", self.train_turns, [select], learnt, trains=POLICY)
        return [branched, reward, select, train]

    # -- round 0 --------------------------------------------------------------------------------

    async def rollout(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """k dialogues a task by the base policy, or those of a file."""
        if self.settings.offline is not None:
            return await play_offline(self, run, expanded(self.settings.offline), progress)
        s = self.settings.rollout
        return await self.play(run, self.episodes(), s.temperature, s.top_p, progress)

    def select(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Pairs of a success and a failure on one task; for ``rejection_ft`` all successes."""
        chosen, tasks = list[Selection](), 0
        shares, least = rewards(run), self.settings.min_reward
        for tree in run.store.trees(FIRST, "rollout"):
            tasks += 1
            of_task = [(o.leaf, shares[tree.task, o.sample]) for o, _ in tree.trajectories()]
            if self.settings.method == "rejection_ft":
                chosen += [Selection(leaf, AGENT) for leaf, reward in of_task if reward >= least]
                continue
            found = trajectory_pairs(of_task, least)
            chosen += [Selection(best, AGENT, rejected=worse) for best, worse in found]
        run.select(FIRST, chosen)
        return {"tasks": tasks, "selected": len(chosen)}

    def train(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """The critic, or in the baselines the policy; each begins as the base."""
        s = self.settings
        if s.method == "rejection_ft":
            return imitate(self, run, s.rejection_ft.train, progress)
        if s.method == "multi_turn_dpo":
            return prefer_selected(self, run, FIRST, s.multi_turn_dpo, progress)
        kind = {"classifier": foretell}.get(s.critic.kind, train_critic)
        return kind(self, run, s.critic, progress)

    # -- round 1 --------------------------------------------------------------------------------

    async def branch(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Candidates for the turns of the first dialogues, in the order of tasks and samples."""
        return await branch(self, run, progress)

    async def reward(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """The critic's advantage of every candidate, as credit."""
        return await advantages(self, run, progress)

    def select_turns(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """Pairs of candidates: one of a turn's upper half over one of its lower half."""
        s, settings = self.settings, self.fingerprint(Step(SECOND, "reward"))
        chosen, turns = list[Selection](), 0
        for tree in run.store.trees(SECOND, "rollout"):
            found = candidates(tree)
            nodes = [turn.id for group in found for turn in group]
            scores = run.store.credit(settings, "advantage", nodes)
            for group in found:
                if any(turn.id not in scores for turn in group):
                    continue  # the critic failed on this turn, which its item says
                seed = digest("pairs", s.seed, group[0].id)
                own = {turn.id: scores[turn.id] for turn in group}
                for best, worse in ranked_pairs(own, s.pairs, seed):
                    chosen.append(Selection(best, AGENT, rejected=worse))
            turns += len(found)
        run.select(SECOND, chosen)
        return {"turns": turns, "selected": len(chosen)}

    def train_turns(self, run: Run, round_: int, progress: Progress) -> Metrics:
        """DPO with an NLL term on these turns, without the reference; the policy begins as the base."""
        return prefer_selected(self, run, SECOND, self.settings.policy, progress)
