"""Batch of a reinforcement step: the paths of its groups, with their rewards, advantages and rows to train on."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from coterie.environments.qa_metrics import TEACHER
from coterie.models.chat import ChatRenderer
from coterie.record.export import chat
from coterie.record.rows import Edit, Row, recontext, rows, view
from coterie.record.store import Store
from coterie.record.tree import FINAL_REWARD, Credit, LeftOut, Metrics, Outcome, Task, Tree
from coterie.record.turn import Message, Part, Turn
from coterie.rewards.advantages import (
    GroupAdvantages,
    SampledPath,
    group_advantages,
    kl_rewards,
    turn_ends,
)
from coterie.rewards.dialogue_reward import GradedPath, PathReward, PathRewardSettings, add_terms
from coterie.rollout.episodes import ENVIRONMENT, REWARD
from coterie.runs.joint_critic import JointPath, JointReader
from coterie.runs.loop import REINFORCE
from coterie.runs.reinforce_record import REWARDED, TERM, step_stage
from coterie.training.settings import Rollout

if TYPE_CHECKING:  # torch takes seconds to import
    from coterie.runs.roles import Learner, LearnerConfig


MEAN = "running_mean/"
"""Beginning of the metrics of a step with the running mean of each agent's rewards."""


@dataclass(frozen=True, slots=True)
class AgentPath:
    """Trajectory of one agent in one sampled episode of a task."""

    task: str
    agent: str
    outcome: Outcome
    turns: int
    rows: tuple[Row, ...]
    """Sampled turns of the agent with their prompts, one row per segment."""
    sampled: SampledPath
    thought_tokens: int = 0
    terms: Mapping[str, float] = field(default_factory=dict)
    """Terms of the reward, without the rewards of acts."""
    states: tuple[str, ...] = ()
    """What the agent observed last before each of its trained turns."""
    joint: JointPath | None = None
    """States of all agents, for the critic of the joint state."""
    teacher_rows: tuple[Row, ...] = ()
    """The same turns after prompts with secrets, for a privileged teacher. They are never trained on."""
    call_errors: tuple[bool, ...] = ()
    """For each result of the agent's tool calls, whether it is an error."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.agent, self.sampled.group, self.sampled.path

    @property
    def node(self) -> str:
        """Leaf of the path, or the turn of a sample of a tree."""
        # Samples of trees have the number of the sibling in place of a leaf.
        is_whole = self.sampled.path == self.outcome.leaf
        return self.outcome.leaf if is_whole else self.rows[0].targets[0].turn

    def left_out(self, reason: str, number: float | None = None) -> LeftOut:
        return LeftOut(self.task, self.node, reason, self.agent, number)

    @property
    def tokens(self) -> int:
        return sum(row.target_count for row in self.rows)

    @property
    def all_terms(self) -> dict[str, float]:
        """Terms of the reward by name, with the sum of the rewards of acts."""
        return {**self.terms, "acts": sum(reward for _, reward in self.sampled.steps)}

    @property
    def trained(self) -> int:
        """Number of trainable tokens, which have a token before them."""
        return sum(len(turn) for row in self.rows for turn in row.predicted)


def paths_of(
    store: Store,
    iteration: int,
    stage: str,
    tasks: Sequence[str],
    agents: Sequence[str],
    reward: PathReward,
    joint: JointReader | None = None,
) -> list[AgentPath]:
    """Return the path of each agent with sampled turns, in the order of tasks and samples, without failed ones."""
    paths: list[AgentPath] = []
    for task in tasks:
        items = store.items(iteration, stage, task)
        # The metrics of an episode are stored with its item.
        by_sample = {int(item.key.sample): item.metrics for item in items}
        for tree in map(store.read_tree, store.tree_keys(iteration, stage, task)):
            measures = {
                outcome.leaf: by_sample.get(outcome.sample, {})
                for outcome in tree.outcomes.values()
            }
            paths += paths_of_tree(store, tree, agents, reward, measures, joint)
    return paths


def paths_of_tree(
    store: Store,
    tree: Tree,
    agents: Sequence[str],
    reward: PathReward,
    measures: Mapping[str, Metrics],
    joint: JointReader | None = None,
) -> list[AgentPath]:
    """Return the path of each agent to each leaf of a tree; ``measures`` are the metrics of its grade, by leaf."""
    # Other credit depends on the settings of later stages and is no reward of the environment.
    credits = (credit for credit in store.credit_of(tree) if credit.settings == ENVIRONMENT)
    rewards = {(credit.node, credit.name): credit.value for credit in credits}
    paths = list[AgentPath]()
    for outcome, path in tree.trajectories():
        of_path = measures.get(outcome.leaf, {})
        paths += _of_sample(tree, outcome, path, agents, rewards, of_path, reward, joint)
    return paths


def _of_sample(
    tree: Tree,
    outcome: Outcome,
    path: Sequence[Turn],
    agents: Sequence[str],
    rewards: Mapping[tuple[str, str], float],
    measures: Metrics,
    reward: PathReward,
    joint: JointReader | None,
) -> Iterator[AgentPath]:
    for agent in agents:
        # Context that is rewritten during the episode splits a path into several rows.
        agent_rows = tuple(row for row in rows(view(tree, outcome.leaf, agent)) if row.targets)
        # An agent that never acted, or whose turns were not sampled as tokens.
        if not agent_rows:
            continue
        steps = _steps(path, agent, agent_rows, rewards)
        team_weight = reward.settings.team_weight
        path_reward = _whole(outcome, agent, bool(steps), rewards, team_weight)
        graded = GradedPath(outcome, tuple(path), agent, path_reward, measures)
        terms = reward.terms(graded)
        total_reward = None if terms is None else add_terms(terms)
        sampled = SampledPath(tree.task, outcome.leaf, total_reward, steps, agent)
        thought = sum(turn.thought_tokens for turn in graded.own_turns)
        count = len(graded.own_turns)
        states = tuple(_last_message(tree, turn) for turn in turn_ends(agent_rows))
        speakers = {turn.id: turn.speaker.name for turn in path}
        # Results follow the turn with their calls.
        results = [turn.results for turn in path if speakers.get(turn.parent) == agent]
        yield AgentPath(
            *(tree.task, agent, outcome, count, agent_rows, sampled, thought, terms or {}, states),
            joint.path(tree, outcome, path, agent, rewards) if joint else None,
            call_errors=tuple(result.error for of_turn in results for result in of_turn),
        )


def _last_message(tree: Tree, turn: str) -> str:
    """Return the text of the last message before a sampled turn."""
    prompt = tree.turns[turn].prompt
    assert prompt is not None, "a trained turn was sampled after a prompt"
    messages = tree.requests[prompt].messages
    return "".join(part.text for part in messages[-1].parts) if messages else ""


def _whole(
    outcome: Outcome,
    agent: str,
    stepwise: bool,
    rewards: Mapping[tuple[str, str], float],
    team_weight: float | None = None,
) -> float | None:
    """Return the reward of the whole path: the final reward, else the score, else 0 if single turns had rewards.

    With ``team_weight`` it is that weight times the score plus the agent's final reward.
    """
    final = rewards.get((outcome.leaf, f"{FINAL_REWARD}:{agent}"))
    if team_weight is None:
        return (0.0 if stepwise else outcome.score) if final is None else final
    return None if outcome.score is None else team_weight * outcome.score + (final or 0.0)


def _steps(
    path: Sequence[Turn], agent: str, rows: Sequence[Row], rewards: Mapping[tuple[str, str], float]
) -> tuple[tuple[int, float], ...]:
    """Return (token index, reward) of step rewards, each at the end of the agent's latest turn so far, or its first."""
    ends = turn_ends(rows)
    if not ends:
        return ()
    end, steps = next(iter(ends.values())), []
    # The reward of simultaneous turns is stored on the last of them, which may be another actor's.
    for turn in path:
        end = ends.get(turn.id, end)
        reward = rewards.get((turn.id, f"{REWARD}:{agent}"))
        if reward is not None:
            steps.append((end, reward))
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Paths of a step with advantages, and counts of paths left out."""

    paths: tuple[AgentPath, ...]
    """Paths to train on. Their rows have advantages."""
    informative: frozenset[str]
    counts: Mapping[str, float]
    """Numbers of groups, and of paths left out by reason; running means of rewards (:data:`MEAN`)."""
    critic_paths: tuple[AgentPath, ...] = ()
    """Paths of the critic of the joint state, which has rows of its own."""
    left_out: tuple[LeftOut, ...] = ()
    """What ``counts`` counts: one for each path or group left out."""


def group_counts(advantages: GroupAdvantages) -> dict[str, int]:
    return {
        "groups": advantages.groups,
        "groups_equal": advantages.flat,
        "groups_small": advantages.small,
        "paths_failed": advantages.failed,
    }


def group_left_out(paths: Sequence[AgentPath]) -> list[LeftOut]:
    """Return what :func:`group_counts` counts: failed paths, small groups and equal groups.

    Groups of paths have no node, and groups of turns have their first turn.
    """
    groups: dict[tuple[str, str], list[AgentPath]] = {}
    for path in paths:
        groups.setdefault((path.sampled.group, path.sampled.actor), []).append(path)
    left_out = list[LeftOut]()
    for group in groups.values():
        totals = [total for path in group if (total := path.sampled.total) is not None]
        left_out += [path.left_out("paths_failed") for path in group if path.sampled.total is None]
        node = "" if group[0].node == group[0].outcome.leaf else group[0].node
        if len(totals) < 2:
            of_group = group[0].left_out("groups_small", len(totals))
            left_out.append(replace(of_group, node=node))
        elif max(totals) == min(totals):
            of_group = group[0].left_out("groups_equal", totals[0])
            left_out.append(replace(of_group, node=node))
    return left_out


def left_out_paths(
    before: Sequence[AgentPath], after: Sequence[AgentPath], reason: str
) -> list[LeftOut]:
    """Return the paths that a selection left out; its result may have changed the paths that it kept."""
    keys = {path.key for path in after}
    return [path.left_out(reason) for path in before if path.key not in keys]


def step_credit(samples: "StepSamples", batch: StepBatch, settings: str) -> list[Credit]:
    """Return the rewards, terms and advantages of a step's paths as credit on leaves, or on turns of trees.

    Advantages that differ by turn are on the turns. Samples of equal tokens share a node, which gets their mean.
    """
    values: dict[tuple[str, str], list[float]] = {}

    def add(node: str, name: str, value: float | None) -> None:
        if value is not None and math.isfinite(value):
            values.setdefault((node, name), []).append(value)

    for path in samples.paths if samples.measured is None else samples.measured:
        add(path.outcome.leaf, f"total:{path.agent}", path.sampled.total)
        for name, value in path.all_terms.items():
            # Built-in terms that are not used are 0.
            add(path.outcome.leaf, f"term:{name}:{path.agent}", value or None)
    if samples.measured is not None:
        for path in samples.paths:
            add(path.node, f"return:{path.agent}", path.sampled.total)
    for path in batch.paths:
        name, of_turns = f"advantage:{path.agent}", dict[str, set[float]]()
        for row in path.rows:
            advantages = iter(row.advantages or ())
            for target in row.targets:
                tokens = {*islice(advantages, target.stop - target.start)}
                of_turns[target.turn] = of_turns.get(target.turn, set()) | tokens
        of_path = set[float]().union(*of_turns.values())
        for node, advantage in (
            {path.node: of_path}.items() if len(of_path) == 1 else of_turns.items()
        ):
            if len(advantage) == 1:
                add(node, name, *advantage)
    return [
        Credit(node, name, fmean(of_node), settings) for (node, name), of_node in values.items()
    ]


@dataclass(slots=True)
class StepSamples:
    """Samples of one step."""

    draws: int
    """Number of draws of tasks over all steps so far."""
    rounds: int = 0
    tasks: list[str] = field(default_factory=list)
    paths: list[AgentPath] = field(default_factory=list)
    """Samples of groups: paths, or single turns of trees."""
    measured: list[AgentPath] | None = None
    """Independent paths for the metrics of the step, if ``paths`` are turns of trees."""
    sampled_tokens: int | None = None
    """Sampled tokens, if they differ from the tokens of ``paths``."""
    sample_count: int = 0
    failures: list[LeftOut] | None = None
    """Failed rollouts of trees. Most are not in ``measured``."""
    groups: list[tuple[int, str]] = field(default_factory=list)
    """Draw and task of each group that was taken, if groups are sampled while steps train."""
    stale: Sequence[AgentPath] = ()
    """Dropped paths of older weights, which ``paths`` does not have."""
    staleness: float = 0.0
    """Mean age of the tokens of ``paths`` in steps."""
    staleness_max: int = 0
    teacher: Any = None
    """Model whose log-probs the policies distill, if there is one."""
    trained_roles: Sequence[str] = ()
    """Roles that train in this step."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Running mean of each agent's rewards in earlier steps, for ``advantage.group=role``."""

    def failed(self, rollouts_per_task: int) -> list[LeftOut]:
        """Return the rollouts without a path."""
        if self.failures is not None:
            return self.failures
        samples = {(path.task, path.outcome.sample) for path in self.paths}
        return [
            LeftOut(task, "", "samples_failed", number=number)
            for task in self.tasks
            for number in range(rollouts_per_task)
            if (task, number) not in samples
        ]


HELP = "\n\nFor you alone, to help with your answer:"
"""Text before the secrets in the prompt of a privileged teacher."""


def show_secrets(task: Task) -> Edit:
    """Return the recontext rule that appends the task's secrets for the teacher to the first message."""
    secrets = sorted(item for item in task.secrets.items() if TEACHER in item[1].readers)
    parts = [part for name, s in secrets for part in (Part(f"\n{name}: "), s.part(TEACHER))]

    def edit(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if not parts:
            return messages
        # Parts of a turn's message would replace its text, and an agent's own message has no text.
        is_free = messages and messages[0].turn is None and messages[0].role != "assistant"
        first, *rest = messages if is_free else (Message("system"), *messages)
        return (replace(first, parts=(*first.parts, Part(HELP), *parts)), *rest)

    return edit


def with_teacher_prompts(
    paths: Sequence[AgentPath],
    store: Store,
    iteration: int,
    stages: Sequence[str],
    renderers: Mapping[str, ChatRenderer],
) -> list[AgentPath]:
    """Set ``teacher_rows`` of each path, whose trees are in ``stages``; ``renderers`` by agent."""
    trees: dict[str, list[Tree]] = {}
    result = list[AgentPath]()
    for path in paths:
        if path.task not in trees:
            keys = (key for stage in stages for key in store.tree_keys(iteration, stage, path.task))
            trees[path.task] = [store.read_tree(key) for key in keys]
        tree = next(tree for tree in trees[path.task] if path.outcome.leaf in tree.turns)
        render = partial(renderers[path.agent].render, privileges=TEACHER)
        edit = show_secrets(store.task(path.task))
        context_view = recontext(
            tree, path.outcome.leaf, path.agent, name=TEACHER, edit=edit, render=render
        )
        # A path of a tree may be a single turn, so later turns are not scored.
        turns = {target.turn for row in path.rows for target in row.targets}
        trained_rows = (
            (row, tuple(t for t in row.targets if t.turn in turns)) for row in rows(context_view)
        )
        teacher_rows = (
            replace(row, ids=row.ids[: targets[-1].stop], targets=targets)
            for row, targets in trained_rows
            if targets
        )
        result.append(replace(path, teacher_rows=tuple(teacher_rows)))
    return result


def with_teacher_of(path: AgentPath, scored: AgentPath) -> AgentPath:
    """Set ``teacher`` of a path's rows from the rows that the teacher scored, turn by turn.

    A row with a turn that the teacher could not score gets none.
    """
    by_turn: dict[str, list[float]] = {}
    for row in scored.rows:
        numbers = iter(row.teacher or ())
        for target in row.targets if row.teacher else ():
            by_turn[target.turn] = [next(numbers) for _ in range(target.start, target.stop)]
    path_rows = list[Row]()
    for row in path.rows:
        turns = [by_turn[target.turn] for target in row.targets if target.turn in by_turn]
        teacher = tuple(chain(*turns)) if len(turns) == len(row.targets) else None
        path_rows.append(replace(row, teacher=teacher))
    return replace(path, rows=tuple(path_rows))


def distribution_metrics(paths: Sequence[AgentPath]) -> dict[str, float]:
    """Return metrics of a step's paths beside the means.

    Deciles of the rewards and the shares at their ends; the mean length of right and wrong paths (score above 0.5 or
    not); the mean share of ``distinct`` paths in a group; the share of tool calls with an error.
    """
    metrics = dict[str, float]()
    rewards = sorted(total for path in paths if (total := path.sampled.total) is not None)
    if rewards:
        last = len(rewards) - 1
        metrics |= {f"reward_p{n}": rewards[round(last * n / 100)] for n in (10, 50, 90)}
        metrics |= {
            f"reward_at_{name}": rewards.count(end) / len(rewards)
            for name, end in (("min", rewards[0]), ("max", rewards[-1]))
        }
    lengths: dict[str, list[int]] = {}
    groups: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    for path in paths:
        if path.outcome.score is not None:
            verdict = "right" if path.outcome.score > 0.5 else "wrong"
            lengths.setdefault(f"tokens_{verdict}", []).append(path.tokens)
        of_group = groups.setdefault((path.sampled.group, path.agent), [])
        of_group.append(tuple(row.ids for row in path.rows))
    metrics |= {name: fmean(tokens) for name, tokens in lengths.items()}
    shares = [len(set(group)) / len(group) for group in groups.values() if len(group) > 1]
    metrics |= {"distinct": fmean(shares)} if shares else {}
    errors = [error for path in paths for error in path.call_errors]
    return metrics | ({"call_errors": fmean(errors)} if errors else {})


def shown_rollouts(
    store: Store, iteration: int, step: int, samples: StepSamples, batch: StepBatch, count: int
) -> list[Rollout]:
    """Return ``count`` evenly spaced paths of a step as messages, with rewards and mean advantages."""
    paths = samples.paths if samples.measured is None else samples.measured
    draws = {task: draw for draw, task in samples.groups}
    advantages = {
        (path.agent, path.sampled.path): [n for row in path.rows for n in row.advantages or ()]
        for path in batch.paths
    }
    rollouts = list[Rollout]()
    for path in paths[:: max(1, len(paths) // max(1, count))][:count]:
        stage = step_stage(REINFORCE, draws.get(path.task, step))
        tree, last_turn = store.tree(iteration, stage, path.task), path.rows[-1].targets[-1].turn
        prompt = tree.turns[last_turn].prompt
        assert prompt is not None, "a trained turn was sampled after a prompt"
        # The last prompt of an agent has everything that it saw and said before.
        seen = [*tree.messages(tree.requests[prompt]), Message("assistant", turn=last_turn)]
        values = advantages.get((path.agent, path.sampled.path))
        rollouts.append({
            "task": path.task,
            "agent": path.agent,
            "sample": path.outcome.sample,
            "reward": path.sampled.total,
            "advantage": fmean(values) if values else None,
            "messages": chat(tree, seen, path.agent),
        })  # fmt: skip
    return rollouts


def role_metrics(
    samples: StepSamples, batch: StepBatch, policies: "Sequence[LearnerConfig]"
) -> dict[str, float | int]:
    """Return the means of the terms of the reward, and, of several roles, what each did under ``ROLE/``."""
    metrics: dict[str, float | int] = {}
    for policy in policies:
        sampled_paths = samples.paths if samples.measured is None else samples.measured
        paths = [path for path in sampled_paths if path.agent in policy.agents]
        trained = [path for path in batch.paths if path.agent in policy.agents]
        rewards = [total for path in paths if (total := path.sampled.total) is not None]
        metrics[f"{policy.role}{REWARDED}"] = sum(map(bool, rewards))
        prefix = ""
        if len(policies) > 1:
            prefix = f"{policy.role}/"
            metrics |= {
                f"{prefix}reward": fmean(rewards) if rewards else 0.0,
                f"{prefix}reward_error": standard_error(rewards),
                f"{prefix}tokens": fmean([path.tokens for path in paths]) if paths else 0.0,
                f"{prefix}groups_informative": len(
                    {
                        path.task
                        for path in trained
                        if any(any(row.advantages or ()) for row in path.rows)
                    }
                ),
                **{f"{prefix}{name}": n for name, n in distribution_metrics(paths).items()},
            }
        graded = [path.all_terms for path in paths if path.terms]
        names = dict.fromkeys(name for terms in graded for name in terms)
        means = {name: fmean([terms.get(name, 0.0) for terms in graded]) for name in names}
        # Built-in terms that are not used are 0. A term alone is the reward.
        used = [name for name in means if means[name] or name not in PathRewardSettings.built_in]
        if len(used) > 1:
            metrics |= {f"{prefix}{TERM}{name}": means[name] for name in used}
    return metrics


def running_means(metrics: Metrics) -> dict[str, float]:
    """Return the running mean of each agent's rewards after a step."""
    names = [name for name in metrics if name.startswith(MEAN)]
    return {name.removeprefix(MEAN): float(metrics[name]) for name in names}


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def informative_tasks(paths: Sequence[AgentPath]) -> list[str]:
    """Return the tasks whose paths have different rewards, in the order of drawing."""
    values = group_advantages([path.sampled for path in paths], "mean").values
    tasks = (path.task for path, value in zip(paths, values, strict=True) if value)
    return list(dict.fromkeys(tasks))


def fresh_paths(paths: Sequence[AgentPath], policies: "Sequence[Learner]") -> list[AgentPath]:
    names = {f"{policy.role}@{policy.version}": policy.config.agents for policy in policies}
    writers = {agent: name for name, agents in names.items() for agent in agents}
    # A path counts only if all its turns were sampled with the current weights.
    return [
        path
        for path in paths
        if all(target.writer == writers[path.agent] for row in path.rows for target in row.targets)
    ]


def by_role(
    paths: Sequence[AgentPath],
    policies: "Sequence[Learner]",
    do: "Callable[[Learner, Sequence[Row]], Sequence[Row]]",
) -> list[AgentPath]:
    """Apply ``do`` to the rows of each role, in one batch per role, and return the changed paths."""
    done: dict[int, AgentPath] = {}
    for policy in policies:
        indices = [n for n, path in enumerate(paths) if path.agent in policy.config.agents]
        rows = iter(do(policy, [row for n in indices for row in paths[n].rows]))
        for n in indices:
            done[n] = replace(paths[n], rows=tuple(next(rows) for _ in paths[n].rows))
    return [done[n] for n in range(len(paths))]


def with_kl_cost(path: AgentPath, weight: float) -> AgentPath:
    """Subtract the divergence ``weight * (log p - log p_ref)`` from each token's reward; 0 without a reference."""
    costs: list[float] = []
    for row in path.rows:
        # A target without a token before it has no log-prob, so it is not trained.
        count = row.target_count - row.unpredicted
        if row.reference is None or row.logprobs is None:
            costs += [0.0] * count
        else:
            start = row.unpredicted
            costs += kl_rewards(row.logprobs[start:], row.reference[start:], weight)
    # The costs become step rewards; indices count the trained tokens of the whole path.
    steps = (*path.sampled.steps, *enumerate(costs))
    return replace(path, sampled=replace(path.sampled, steps=steps))
