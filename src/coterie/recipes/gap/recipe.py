"""GAP (arXiv 2510.25320): an agent that plans a question as a graph and runs independent tool calls in parallel.

Notation of the paper: question q, trace tau, plan G = (V, E), where sub-task j depends on sub-task i if (i, j) in E.

    evaluate  the initial policy on held-out questions
    -- SFT (section 4.1)
    rollout   traces: an expert that knows the gold facts answers the training questions with the real tools, or a file
    select    traces with the right answer, the gold facts in their observations, and enough calls
    train     L = -sum_{t not in observations} log pi(tau_t | tau_<t, q)                                   (equation 4)
    evaluate  the policy on the same held-out questions
    -- RL (section 4.2)
    reinforce DAPO by default (``rl.*`` selects GRPO or PPO, see :mod:`coterie.recipes.rl.recipe`): a group of rollouts
              per question with answer reward R, advantage A from the group, and the token mean of
              max(-rho A, -clip(rho, 1 - eps_low, 1 + eps_high) A) on the agent's tokens, rho = pi / pi_old
    evaluate  the policy on the same held-out questions

Algorithm 1 (parse the graph, sort it into levels, run each level in parallel) is in ``coterie.environments.workflow``:
plans are parsed, checked and measured, and a plan written as a graph of calls runs level by level without asking the
agent again.

Deliberate deviations from the released code:

* The plan is parsed. In the code it is only text.
* Sampled calls are never rewritten, so training uses exactly the sampled tokens.
* Observations have one format in training and rollout, and are masked by token spans instead of a search for tags.
* Answers are extracted by the same rule in training and evaluation.
"""

from coterie.progress import Progress
from coterie.recipes.gap.data import GapData
from coterie.recipes.reinforcement import STAGE, reinforce, reinforcement_settings
from coterie.record.tree import Metrics
from coterie.runs.folder import Run
from coterie.runs.items import summary
from coterie.runs.loop import Stage


class Gap(GapData):
    """The GAP recipe."""

    def stages(self) -> list[Stage]:
        """Return the stages of SFT, RL, or both, with an evaluation before and after each."""
        stages = [self.evaluation(0)]
        if self.settings.imitates:
            stages += self._imitation()
        if self.settings.reinforces:
            stages += self._reinforcement([stages[-2]] if self.settings.imitates else [])
        return stages

    def _imitation(self) -> list[Stage]:
        s = self.settings
        sampling = (s.traces.fingerprint(), self.file_content, s.tools.identity())
        rollout = self.stage(0, "rollout", self.sample, (), sampling)
        select = self.stage(0, "select", self.select, [rollout], [s.traces.min_calls])
        training = (s.train.identity(), s.traces.max_truncated)
        train = self.stage(
            0, "train", self.imitate_traces, [select], training, trains=self.main_role
        )
        return [rollout, select, train, self.evaluation(1, [train])]

    def _reinforcement(self, after: list[Stage]) -> list[Stage]:
        i = len(after)
        depends = (
            *reinforcement_settings(self.settings.rl, self.settings.engine),
            self.settings.tools.identity(),
        )
        stage = self.stage(i, STAGE, self.reinforce, after, depends, trains=self.main_role)
        return [stage, self.evaluation(i + 1, [stage])]

    async def sample(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Write the traces of the expert or of a file to the store."""
        left_out = await self.play_traces(run, progress)
        metrics = summary(run.store, i, "rollout")
        return {**(metrics if self.has_scores else self.without_scores(run, metrics)), **left_out}

    def select(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Select traces with the right answer, grounded facts and at least ``traces.min_calls`` calls."""
        selections, counts = self.choose_traces(run, i)
        run.select(i, selections)
        return {"selected": len(selections), **counts}

    async def reinforce(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Take the RL steps (section 4.2)."""
        return await reinforce(self, self.settings.rl, run, i, progress, roles=[self.main_role])
