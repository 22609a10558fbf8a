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

from collections.abc import Mapping

from coterie.engines.run_engines import POLICY
from coterie.environments.checking import drawn
from coterie.environments.traits import agents_of
from coterie.models.loading import load_renderer
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import Plan, check_room, check_served, plain_plan, shortest_prompt
from coterie.recipes.reinforcing import (
    CRITIC,
    STAGE,
    check_reinforce,
    depends,
    reinforce,
)
from coterie.recipes.rl.settings import GrpoSettings
from coterie.runs.folder import Run, Step
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
        """The policies that are trained."""
        return tuple(dict.fromkeys(self.players().values()))

    def players(self) -> dict[str, str]:
        """One policy plays all agents, or each agent has its own."""
        agents = agents_of(self.environment)
        each = self.settings.policies == "each" and len(agents) > 1
        return {agent: agent if each else POLICY for agent in agents}

    def plan(self) -> Plan:
        """What the run costs."""
        s = self.settings
        check_reinforce(s)
        check_served(s.engine, {"update": s.update})
        found = plain_plan(s, self.environment, self.roles(), self.stages())
        renderer, context = load_renderer(s.model)
        train = drawn(self.environment, "train", s.rollout.tasks, s.seed)
        shortest = shortest_prompt(self.environment, renderer, train)
        check_room("update", s.update, context, shortest)
        if s.has_critic:
            check_room("critic.train", s.critic.train, context, shortest)
        return found

    def trial_sizes(self, tasks: int) -> Mapping[str, int]:
        """Of a run with one step, of one round."""
        sizes = {"rollout.tasks": tasks, "rollout.rounds": 1}
        steps = {"steps.count": 1, "steps.minibatches": tasks}
        return {**super().trial_sizes(tasks), **sizes, **steps}

    def amount(self, step: Step) -> int:
        """How many groups a stage has, or tasks."""
        if step.stage != STAGE:
            return super().amount(step)
        return self.settings.rollout.tasks * self.settings.steps.count

    async def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        """The steps."""
        return await reinforce(self, self.settings, run, i, progress, roles=self.learning_roles)
