"""Reinforcement learning on the sampled tokens: PPO, GRPO and DAPO.

    evaluate   the initial policy on held-out tasks
    reinforce  steps, each with the newest policy:
                 sample     G = ``rollout.samples`` rollouts for each of ``rollout.tasks`` tasks
                 reward     R_i of rollout i: the environment's rewards or score, plus the run's own terms
                 advantage  A_i = (R_i - mean R) / std R over the G rollouts of a task
                            (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476), or GAE (PPO, arXiv 1707.06347):
                            delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}
                 update     with rho_t = pi(a_t | s_t) / pi_old(a_t | s_t), on the agents' own tokens:
                            L = mean_t max(-rho_t A_t, -clip(rho_t, 1 - eps_low, 1 + eps_high) A_t) + kl D(pi, pi_ref)
    evaluate   the trained policy on the same held-out tasks

The methods differ only in their settings. GRPO divides advantages by the group's standard deviation and adds the
divergence D to the loss (``loss.mean`` selects the mean over tokens or over rollouts). DAPO has a higher upper clip, a
mean over all tokens, no divergence, dynamic sampling until enough groups have different rewards, and a soft penalty
for long answers. PPO has a critic V. The steps are in :mod:`coterie.runs.reinforce.loop`, the loss in
:mod:`coterie.training.policy_gradient`, the advantages in :mod:`coterie.rewards.advantages`.
"""

from coterie.engines.protocol import POLICY
from coterie.environments.protocol import agents_of
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan
from coterie.recipes.rl.settings import GrpoSettings
from coterie.recipes.trainings import (
    CRITIC,
    STAGE,
    plan_reinforcement,
    reinforce,
    reinforcement_settings,
)
from coterie.record.tree import Metrics
from coterie.runs.folder import Run
from coterie.runs.loop import Stage
from coterie.runs.roles import Role


class Reinforce(Recipe):
    """The reinforcement learning recipe."""

    settings: GrpoSettings

    def stages(self) -> list[Stage]:
        """Return the RL stage, with an evaluation before and after it."""
        before = self.evaluation(0)
        training = self.stage(
            *(
                0,
                STAGE,
                self.learn,
                (),
                reinforcement_settings(self.settings, self.settings.engine),
            ),
            trains=self.learning_roles,
        )
        return [before, training, self.evaluation(1, [training])]

    def roles(self) -> tuple[Role, ...]:
        """Return one policy, or one per agent, and the critic of PPO."""
        policies = tuple(Role(name, self.settings.model) for name in self.learning_roles)
        critic = (Role(CRITIC, self.settings.model, head=True),) if self.settings.has_critic else ()
        return policies + critic

    @property
    def learning_roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.players().values()))

    def players(self) -> dict[str, str]:
        """Map each agent to the policy that plays it."""
        agents = agents_of(self.environment)
        each = self.settings.policies == "each" and len(agents) > 1
        return {agent: agent if each else POLICY for agent in agents}

    def plan(self) -> Plan:
        return plan_reinforcement(self.settings, self.settings, super().plan)

    def training_tasks(self) -> int:
        return self.settings.rollout.tasks * self.settings.steps.count

    def dialogues(self) -> int:
        return self.settings.paths

    async def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """Take the RL steps: sample, reward, advantage, update."""
        return await reinforce(self, self.settings, run, i, progress, roles=self.learning_roles)
