"""Reinforcement learning on the sampled tokens: PPO, GRPO and DAPO.

    evaluate   the initial policy on held-out tasks
    reinforce  steps, each with the newest policy:
                 sample     G = ``rollout.samples`` rollouts for each of ``rollout.tasks`` tasks
                 reward     R_i of rollout i: the environment's rewards or score, plus the run's own terms
                 advantage  A_i = (R_i - mean R) / std R over the G rollouts of a task by an agent (std is unbiased)
                            (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476), or GAE (PPO, arXiv 1707.06347):
                            delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}
                 update     with rho_t = pi(a_t | s_t) / pi_old(a_t | s_t), on the agents' own tokens:
                            L = mean_t max(-rho_t A_t, -clip(rho_t, 1 - eps_low, 1 + eps_high) A_t) + kl D(pi, pi_ref)
                            (where A_t < 0, the maximum is at most -c A_t with c = ``loss.dual_clip``)
    evaluate   the trained policy on the same held-out tasks

The methods differ only in their settings. GRPO divides advantages by the group's standard deviation and adds the
divergence D to the loss (``loss.mean`` selects the mean over tokens or over rollouts). DAPO has a higher upper clip, a
mean over all tokens, no divergence, dynamic sampling until enough groups have different rewards, and a soft penalty
for long answers. PPO has a critic V. The steps are in :mod:`coterie.runs.reinforce`, the loss in
:mod:`coterie.training.policy_gradient`, the advantages in :mod:`coterie.rewards.advantages`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from coterie.engines.protocol import POLICY
from coterie.environments.protocol import agents_of
from coterie.errors import UserError
from coterie.progress import Progress
from coterie.recipes.base import Recipe
from coterie.recipes.plan import (
    Plan,
    check_ranks,
    check_room,
    check_served,
    check_training,
    max_dialogue_tokens,
    planned,
    rank_count,
)
from coterie.recipes.rl_settings import ReinforceRecipeSettings, RLSettings
from coterie.record.tree import Metrics
from coterie.reports.charts import Chart, Point, Series
from coterie.reports.examples import Example, Shown, described, example
from coterie.reports.page import Section
from coterie.rewards.advantages import group_advantages
from coterie.rewards.dialogue_reward import PathReward
from coterie.runs.group_queue import groups_taken
from coterie.runs.loop import REINFORCE, Role, Stage
from coterie.runs.reinforce_batch import AgentPath, paths_of, step_stage
from coterie.runs.reinforce_record import (
    OF_ROLES,
    TERM,
    heldout_means,
    learning_warnings,
    sampling_warnings,
    step_records,
    trained_roles,
)
from coterie.runs.reinforce_settings import ReinforceSettings
from coterie.runs.run import Run
from coterie.training.memory import MemoryPlan, TrainedModel, cache_memory, training_memory
from coterie.training.settings import Reads, weight_dtype

CRITIC = "critic"
"""Role of the value function."""


def reinforce_uses(s: ReinforceSettings) -> list[str]:
    """Return the settings that the RL stage depends on."""
    uses = ["engine", "rollout", "reward", "advantage", "steps", "loss", "policy_training"]
    uses += ["critic.loss", "critic_training"] * s.has_critic
    return uses + ["evaluate"] * (s.steps.keep == "best")


def plan_reinforcement(s: ReinforceRecipeSettings, plan: Callable[[], Plan]) -> Plan:
    """Check the settings of the stage, and add its memory to a run's plan.

    Raises ``UserError`` if the settings cannot work.
    """
    # Imports the user's own reward functions, so that errors in them show first.
    PathReward(s.reward)
    s = planned(s)
    if s.steps.minibatches > s.rollout.tasks:
        problem = f"steps.minibatches={s.steps.minibatches} is more than rollout.tasks"
        fix = f"use at most {s.rollout.tasks}, because the group of a task is not split"
        raise UserError(f"{problem}={s.rollout.tasks}", fix)
    trainings = {"update": s.policy_training}
    check_served(s, {"train": s.policy_training})
    if s.has_critic:
        trainings["critic.train"] = s.critic_training
    for training in trainings.values():
        check_training("train", training, s, s.model)
    check_ranks(s, s.policy_training, "update")
    result = plan()
    for name, training in trainings.items():
        check_room(name, training, result.context, result.shortest_prompt)
    memory = _training_memory(s, result)
    memory.check(result.available, result.device, s.model)
    # One evaluation every `evaluate_every` steps, rounded up.
    during = -(-s.steps.count // s.steps.evaluate_every) if s.steps.evaluate_every else 0
    evaluations = result.evaluations + during * result.heldout
    return replace(result, memory=(*result.memory, memory), evaluations=evaluations)


def _training_memory(s: ReinforceRecipeSettings, plan: Plan) -> MemoryPlan:
    # Without a limit of turns, only the context bounds a dialogue.
    turns = plan.turns or plan.context
    longest = max_dialogue_tokens(plan.longest_prompt, turns, s.rollout.max_tokens)
    length, engine = min(plan.context, longest), s.engine
    attention = engine.attention or "sdpa"
    # The entropy bonus needs gradients of the entropies; without it they are only shown.
    reads: Reads = "entropies" if s.loss.entropy else "shown entropies"
    policies, critics, sampling = [], [], Counter[str]()
    for role, shape in plan.shapes.items():
        if role == CRITIC:
            training = s.critic_training
            critics.append(TrainedModel(shape, training, length, 1, None, "states", attention))
            continue
        policies.append(TrainedModel(shape, s.policy_training, length, 1, None, reads, attention))
        # A sampler in this process keeps its cache while the policy trains.
        if engine.kind == "inprocess":
            dialogues = max(plan.heldout, s.rollout.draw_count * s.rollout.samples)
            size = weight_dtype(s).itemsize
            sampling.update(cache_memory(shape, engine, size, dialogues, length))
    # An adapter's base is its reference.
    copied = (s.loss.kl or s.reward.kl) and s.train.method == "full"
    ranks, sharded = rank_count(s.policy_training, "update")
    return training_memory(
        "update",
        [*policies, *critics],
        shared="train",
        device=engine.device_name,
        ranks=ranks,
        sharded=sharded,
        references=len(policies) if copied else 0,
        sampling=sampling,
    )


async def reinforce(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    progress: Progress,
    *,
    roles: Sequence[str],
) -> Metrics:
    """Run the RL stage: train ``roles`` from their newest versions."""
    from coterie.runs.reinforce import ReinforcementLoop  # torch takes seconds to import
    from coterie.runs.roles import LearnerConfig
    from coterie.training.losses import ValueLoss
    from coterie.training.policy_gradient import PolicyGradient

    players, updates = recipe.players(), s.steps.updates
    policies, critic = list[LearnerConfig](), None
    # Log-probs are taken at the temperature of sampling, so that rho compares the same
    # distributions.
    training, loss = recipe.seeded(s.policy_training, iteration), s.loss.at(s.rollout.temperature)
    for role in roles:
        version = recipe.newest(run, role, iteration)
        agents = tuple(agent for agent, player in players.items() if player == role)
        objective = PolicyGradient(loss)
        policies.append(LearnerConfig(role, version, agents, objective, training, updates))
    if s.has_critic:
        # A critic needs a single policy, which the settings guarantee.
        (policy,) = policies
        training = recipe.seeded(s.critic_training, iteration)
        # The critic starts from the weights of the policy, with a new head.
        critic = replace(
            policy,
            role=CRITIC,
            objective=ValueLoss(s.critic.loss),
            settings=training,
            like=policy.role,
        )
    async with recipe.actors(run) as actors:
        work = ReinforcementLoop(
            *(run, iteration, recipe.environment, actors, recipe.models(run), s),
            *(PathReward(s.reward), recipe.settings.seed, policies, critic),
            heldout=recipe.heldout_tasks() if s.steps.evaluate_every else (),
            heldout_temperature=recipe.settings.evaluate.temperature,
        )
        return await work.learn(progress)


class Reinforce(Recipe):
    """The reinforcement learning recipe."""

    settings: RLSettings

    def stages(self) -> list[Stage]:
        first_evaluation, uses = self.evaluation(0), reinforce_uses(self.settings)
        training = self.stage(0, REINFORCE, self.learn, uses=uses, trains=self.learning_roles)
        return [first_evaluation, training, self.evaluation(1, [training])]

    def sections(self, run: Run) -> tuple[Section, ...]:
        return step_sections(self, self.settings, run, 0)

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
        return plan_reinforcement(self.settings, super().plan)

    def training_tasks(self) -> int:
        return self.settings.rollout.tasks * self.settings.steps.count

    def dialogues(self) -> int:
        return self.settings.paths

    async def learn(self, run: Run, i: int, progress: Progress) -> Metrics:
        return await reinforce(self, self.settings, run, i, progress, roles=self.learning_roles)


ROWS, POINTS, GROUPS = 40, 100, 2
"""Maximum number of steps in the table and in the chart, evenly spaced with the last one, and of groups of a step."""
COLUMNS = (
    ("reward", "reward"),
    ("score", "score"),
    ("tokens", "tokens"),
    ("turns", "turns"),
    ("limit reached", "truncated"),
    ("groups with an advantage", "groups_telling"),
    ("all rewards equal", "groups_flat"),
    ("failed", "samples_failed"),
    ("without a reward", "paths_failed"),
    ("staleness", "staleness"),
    ("older weights", "paths_stale"),
    ("rows too long", "rows_too_long"),
)
LEARNED = (
    ("entropy", "entropy"),
    ("KL to the reference", "reference_kl"),
    ("KL to the sampler", "policy_kl"),
    ("clipped", "clip_share"),
    ("ratio", "ratio"),
    ("gradient", "grad_norm"),
)
"""Headings of the tables with their metrics: what was sampled, and what a role learned."""
RULES = {
    "mean": "reward - mean of the group",
    "mean_std": "(reward - mean of the group) / standard deviation of the group",
    "leave_one_out": "reward - mean of the other rewards of the group",
}


def step_sections(
    recipe: Recipe, s: ReinforceSettings, run: Run, iteration: int
) -> tuple[Section, ...]:
    """Return warnings, and sections on the steps of an iteration and their groups, by role if there are several.

    There are none before the first step is finished.
    """
    records = step_records(run.store, iteration, REINFORCE)
    if not records:
        return ()
    greedy = not recipe.settings.evaluate.temperature
    texts = [*sampling_warnings(run, iteration, greedy=greedy), *learning_warnings(records)]
    rows = tuple((text,) for text in texts)
    sections = [Section(f"warnings-{iteration}", "Warnings", "", ("warning",), rows)]
    charts = list[Chart]()
    if len(means := heldout_means(run, iteration)) > 1:
        scores = {n: float(means[n]["score"]) for n in sorted(means)}
        points = [Point(n, scores[n], f"step {n}: held-out score {scores[n]:.3f}") for n in scores]
        charts.append(_chart(f"score-{iteration}", "Held-out score by step", "score", points))
    roles = trained_roles(records[max(records)])
    several, id_ = len(roles) > 1, f"reinforce-{iteration}"
    # With several roles, the whole step has one section, and each role another.
    if several:
        sections.append(_steps(records, id_, COLUMNS, charts))
        charts = []
    names = dict.fromkeys(name for record in records.values() for name in record)
    rule = RULES.get(s.advantage.baseline, "estimated for each token by the critic (not recorded)")
    for role in roles:
        ending, prefix, of = (f"-{role}", f"{role}/", f" of {role}") if several else ("", "", "")
        columns = [
            (f"tokens{of}" if name == "tokens" else head, f"{prefix}{name}")
            for head, name in COLUMNS
            if not several or name in OF_ROLES
        ]
        start = f"{prefix}{TERM}"
        columns += [(f"= {n.removeprefix(start)}", n) for n in names if n.startswith(start)]
        columns += [(head, f"{role}/{name}") for head, name in LEARNED]
        groups = Section(
            f"groups-{iteration}{ending}",
            f"Groups{of}: which rollouts were made more likely",
            f"All rollouts of a task, by reward. Marked tokens are trained, weighted by the advantage: {rule}. A "
            "positive advantage makes tokens more likely, a negative one less likely, 0 teaches nothing. The reward is "
            "the sum of its terms.",
            examples=tuple(_groups(recipe, s, run, iteration, sorted(records), role)),
        )
        sections += [_steps(records, f"{id_}{ending}", columns, charts, prefix, of), groups]
    return tuple(sections)


def _steps(
    records: Mapping[int, Metrics],
    id_: str,
    columns: Sequence[tuple[str, str]],
    charts: Sequence[Chart],
    prefix: str = "",
    of: str = "",
) -> Section:
    """Return the rewards by step, and a table of the columns in which anything happened."""
    numbers, points = sorted(records), []
    # Columns in which nothing happened are left out.
    columns = [
        (head, name)
        for head, name in columns
        if head in ("reward", "score") or {_text(records[n], name) for n in numbers} - {"", "0"}
    ]
    for n in _spaced(numbers, POINTS):
        names = (f"{prefix}reward", f"{prefix}reward_error")
        reward, error = (float(records[n].get(name, 0.0)) for name in names)
        title = f"step {n + 1}: reward{of} {reward:.3f}, standard error {error:.3f}"
        points.append(Point(n + 1, reward, title, reward - error, reward + error))
    return Section(
        id_,
        f"Steps of reinforcement learning{of}",
        "Each step samples from the newest policy. Reward and score are means over all rollouts of a step; the band is "
        "one standard error of the reward.",
        ("step", *(head for head, _ in columns)),
        tuple(
            (f"{n + 1}", *(_text(records[n], name) for _, name in columns))
            for n in _spaced(numbers, ROWS)
        ),
        (_chart(f"reward-{id_}", f"Reward{of} by step", "reward", points), *charts),
    )


def _chart(id_: str, title: str, name: str, points: Sequence[Point]) -> Chart:
    return Chart(id_, title, "step", name, (Series(name, tuple(points)),))


def _groups(
    recipe: Recipe,
    s: ReinforceSettings,
    run: Run,
    iteration: int,
    numbers: Sequence[int],
    role: str,
) -> list[Example]:
    """Return groups of a role with advantages of the first, middle and last step, and one group without."""
    informative, flat = list[Example](), list[Example]()
    agents = [agent for agent, player in recipe.players().items() if player == role]
    records = step_records(run.store, iteration, REINFORCE)
    for number in dict.fromkeys((numbers[0], numbers[len(numbers) // 2], numbers[-1])):
        count, stage = 0, step_stage(REINFORCE, number)
        # A step may train on groups that an earlier draw sampled, so its record names the draws.
        groups = [
            (step_stage(REINFORCE, draw), task) for draw, task in groups_taken(records[number])
        ]
        groups = groups or [(stage, task) for task in run.store.tree_tasks(iteration, stage)]
        for drawn_iteration, task in groups:
            paths = paths_of(
                run.store, iteration, drawn_iteration, [task], agents, PathReward(s.reward)
            )
            for agent in agents:
                group = [path for path in paths if path.agent == agent]
                # Only groups with different rewards have advantages that are not 0.
                totals = {path.sampled.total for path in group}
                if len(totals) > 1 and count < GROUPS:
                    informative.append(_group(recipe, s, run, number, group))
                    count += 1
                elif len(totals) == 1 and not flat and len(group) > 1:
                    flat.append(_group(recipe, s, run, number, group))
            if count == GROUPS:
                break
    return informative + flat


def _group(
    recipe: Recipe, s: ReinforceSettings, run: Run, number: int, paths: Sequence[AgentPath]
) -> Example:
    advantages: Sequence[float | None] = [None] * len(paths)
    rewards = [total for path in paths if (total := path.sampled.total) is not None]
    if s.advantage.baseline != "values":
        # Computed again, for the report only.
        group = group_advantages([path.sampled for path in paths], s.advantage.baseline)
        advantages = group.values
    # Rollouts without a reward come last.
    order = [-1e9 if path.sampled.total is None else path.sampled.total for path in paths]
    samples = []
    for n in sorted(range(len(paths)), key=lambda n: -order[n]):
        path, advantage = paths[n], advantages[n]
        left_out = s.advantage.truncated == "mask" and path.outcome.ending.truncated
        side = (
            "" if left_out or not advantage else "more likely" if advantage > 0 else "less likely"
        )
        facts = described(path.outcome, _facts(path, advantage))
        rows = tuple((path.agent, row) for row in path.rows)
        # With a critic, each token has its own advantage, and all rollouts are trained on.
        is_trained = (bool(advantage) or s.has_critic) and not left_out
        name = f"rollout {path.outcome.sample}"
        samples.append(Shown(name, facts, rows, trained=is_trained, side=side))
    several = f", {paths[0].agent}" if len(agents_of(recipe.environment)) > 1 else ""
    intro = f"Step {number + 1}{several}: {len(rewards)} of {len(paths)} rollouts have a reward"
    if len(set(rewards)) > 1:
        intro += f", from {min(rewards):.3f} to {max(rewards):.3f}, mean {sum(rewards) / len(rewards):.3f}."
    else:
        same = f", all {rewards[0]:.3f}: every advantage is 0, and" if rewards else ":"
        intro += f"{same} nothing is learned from this group."
    if s.reward.kl:
        intro += " The divergence from the reference is also taken off for each token."
    return example(run.store.task(paths[0].task), samples, recipe.renderer, intro)


def _facts(path: AgentPath, advantage: float | None) -> dict[str, float | str]:
    total = path.sampled.total
    facts: dict[str, float | str] = {"reward": "none" if total is None else total}
    facts |= {f"= {name}": f"{value:+.3f}" for name, value in path.all_terms.items() if value}
    if advantage is not None:
        facts["advantage"] = f"{advantage:+.3f}"
    return facts


def _text(record: Metrics, name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _spaced(numbers: Sequence[int], limit: int) -> list[int]:
    # Counted from the end, so that the last step is always included.
    every = -(-len(numbers) // limit)
    return sorted({*numbers[::-1][::every]})
