"""Reinforcement learning on the tokens that were sampled: PPO, GRPO and DAPO.

    start      (before) the policy on held-out tasks
    reinforce  steps, each from the newest policy:
                 sample    ``rollout.samples`` paths of each of ``rollout.tasks`` tasks
                 reward    what the environment gives, or its score, and what the run adds to it
                 compare   A = R - mean of the task's paths  (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476), or
                           the generalised advantage against a critic's values              (PPO, arXiv 1707.06347)
                 update    the clipped policy gradient on the agents' own tokens
    evaluate   the policy after it, on the same held-out tasks

The methods are the same steps under other settings. GRPO: advantages over the group's deviation, the mean over each
path's tokens, a divergence from the reference in the loss. DAPO: a wider clip upwards, the mean over all tokens, no
divergence, tasks drawn anew until enough groups tell something, a soft penalty for length. PPO: a critic.
"""

from coterie.engines.protocol import POLICY
from coterie.environments.traits import agents_of
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.reinforcing import (
    CRITIC,
    STAGE,
    depends,
    reinforce,
    reinforced_plan,
)
from coterie.recipes.rl.settings import GrpoSettings
from coterie.runs.folder import Run
from coterie.runs.roles import Role
from coterie.runs.stage import Stage
from coterie.trajectories.item import Metrics


class Reinforce(Recipe):
    """The recipe under given settings."""

    settings: GrpoSettings

    def stages(self) -> list[Stage]:
        """Evaluation, the steps, evaluation."""
        before = self.evaluation(0)
        learnt = self.stage(
            *(0, STAGE, self.learn, (), depends(self.settings, self.settings.engine)),
            trains=self.learning_roles,
        )
        return [before, learnt, self.evaluation(1, [learnt])]

    def roles(self) -> tuple[Role, ...]:
        """One policy, or one for each agent; and the critic."""
        policies = tuple(Role(name, self.settings.model) for name in self.learning_roles)
        critic = (Role(CRITIC, self.settings.model, head=True),) if self.settings.has_critic else ()
        return policies + critic

    @property
    def learning_roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.players().values()))

    def players(self) -> dict[str, str]:
        """One policy plays all agents, or each agent has its own."""
        agents = agents_of(self.environment)
        each = self.settings.policies == "each" and len(agents) > 1
        return {agent: agent if each else POLICY for agent in agents}

    def plan(self) -> Plan:
        return reinforced_plan(self.settings, self.settings, super().plan)

    def training_tasks(self) -> int:
        return self.settings.rollout.tasks * self.settings.steps.count

    def dialogues(self) -> int:
        return self.settings.paths

    async def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        return await reinforce(self, self.settings, run, i, progress, roles=self.learning_roles)
