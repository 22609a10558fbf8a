"""GAP (arXiv 2510.25320): an agent that plans a question as a graph, and calls what is ready at the same time.

    start     (before) the policy on held-out questions
    --------  SFT
    rollout   traces: an expert that knows the gold facts plays the training questions with the real tools,
              or a file of traces is read                                                          (section 4.1)
    select    traces that are right, found what they were to find, and made enough calls
    train     SFT on what the agent says; observations are masked, by exact spans of tokens         (equation 4)
    evaluate  the policy after it, on the same held-out questions
    --------  RL
    reinforce steps of DAPO (GRPO, PPO by ``rl.*``): paths of each question, rewarded by their answer, compared with
              each other; the clipped policy gradient on what the agent says                         (section 4.2)
    evaluate  again

The plan really is a graph here: it is read, checked and measured (``environments/workflow``), and one that is written
as a graph of calls is carried out level by level without asking the agent again.

Deviations from the released code, each on purpose: the plan is parsed (in the code it is only text); sampled calls are
never written anew, so what is trained is what was sampled; one form of observations in training and rollout; masks are
places of tokens and not a search for tags; answers are read alike in training and evaluation.
"""

from coterie.progress import Progress
from coterie.recipes.gap.data import GapData
from coterie.recipes.reinforcing import STAGE, depends, reinforce
from coterie.runs.folder import Run
from coterie.runs.play import summary
from coterie.runs.stage import Stage
from coterie.trajectories.item import Metrics


class Gap(GapData):
    """The recipe under given settings."""

    def stages(self) -> list[Stage]:
        """SFT, then RL, or one of them; evaluation before and after each."""
        found = [self.evaluation(0)]
        if self.settings.imitates:
            found += self._imitation()
        if self.settings.reinforces:
            found += self._reinforcement([found[-2]] if self.settings.imitates else [])
        return found

    def _imitation(self) -> list[Stage]:
        s = self.settings
        written = (s.traces.fingerprint(), self.file_content, s.tools.identity())
        rollout = self.stage(0, "rollout", self.write, (), written)
        select = self.stage(0, "select", self.select, [rollout], [s.traces.min_calls])
        learnt = (s.train.identity(), s.traces.max_truncated)
        train = self.stage(0, "train", self.learn, [select], learnt, trains=self.leading)
        return [rollout, select, train, self.evaluation(1, [train])]

    def _reinforcement(self, after: list[Stage]) -> list[Stage]:
        i = len(after)
        own = (*depends(self.settings.rl, self.settings.engine), self.settings.tools.identity())
        learnt = self.stage(i, STAGE, self.reinforce, after, own, trains=self.leading)
        return [learnt, self.evaluation(i + 1, [learnt])]

    async def write(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The traces, played into the record."""
        left_out = await self.play_traces(run, progress)
        found = summary(run.store, i, "rollout")
        return {**(found if self.scored else self.unscored(run, found)), **left_out}

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        chosen, counts = self.chosen(run, i)
        run.select(i, chosen)
        return {"selected": len(chosen), **counts}

    async def reinforce(self, run: Run, i: int, progress: Progress) -> Metrics:
        return await reinforce(self, self.settings.rl, run, i, progress, roles=[self.leading])

    def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """SFT on the agent's own tokens."""
        return self.imitate_traces(run, i, progress)
