"""Settings of reinforcement learning."""

from contextlib import suppress
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from coterie.config.settings import Settings, key
from coterie.environments.protocol import Environment, agents_of, most_turns
from coterie.errors import UserError
from coterie.rewards.advantages import Baseline
from coterie.rewards.dialogue_reward import PathRewardSettings
from coterie.training.settings import (
    PhaseSettings,
    PolicyLossSettings,
    Schedule,
    TrainerSettings,
    TrainingSettings,
    ValueLossSettings,
    combine,
)

CRITIC = "critic"
"""Role of the value function, which may read the secrets that name it as a reader."""
TreeShape = Literal["none", "spine", "full"]
JointActions = Literal["aligned", "crossed"]
AdvantageGroup = Literal["path", "turn", "state", "sibling", "role"]
Returns = Literal["to_go", "immediate"]
LARGEST_TREE = 10_000
"""Maximum number of rollouts of a task: more would take hours, and one more turn multiplies them."""


class GroupSettings(Settings):
    """Sampling of a step: a group of paths for each task."""

    tasks: int = key(32, "Tasks per step. Each has one group.", source="GAP: 32", ge=1)
    rollouts_per_task: int = key(8, "Rollouts per task (the group size).", source="GAP: 8", ge=1)
    oversample_tasks: int | None = key(
        None,
        "Tasks per round of dynamic sampling. Default: tasks per step.",
        source="GAP, DAPO: twice the tasks of a step",
        ge=1,
    )
    rounds: int = key(
        1,
        "Maximum rounds of dynamic sampling: draw tasks until enough groups have different rewards, and train only on "
        "these. 1: train on all groups of one draw.",
        source="DAPO section 3.2: unbounded",
        ge=1,
    )
    pass_rates: tuple[float, float] | None = key(
        None,
        "Draw only tasks whose mean score in the newest earlier step that played them is within these bounds, such as "
        "[0.1, 0.9], and tasks that no step has played. Default: all tasks.",
    )
    max_staleness: int = key(
        0,
        "Sample while a step trains, and train on tokens that are at most this number of steps old. Older groups are "
        "dropped. 0: sampling and training take turns.",
        ge=0,
    )
    temperature: float = key(1.0, "Sampling temperature.", source="GAP: 1", gt=0, le=2)
    max_tokens: int = key(256, "Maximum tokens per turn.", ge=1)
    tree: TreeShape = key(
        "none",
        "Groups of sibling turns: `spine` samples alternatives of each turn of a task's first rollout, `full` of each "
        "turn of all its rollouts. Alternatives are played to the end, except in a `spine` with "
        "advantage.returns=immediate. `none`: independent rollouts.",
        source="C3, VinePPO: spine; MAGRPO: full",
    )
    tree_depth: int | None = key(
        None, "Maximum turns of a path at which a tree branches. Default: all turns.", ge=1
    )
    continue_with: Literal["first", "best"] = key(
        "first",
        "Alternative whose path a spine follows: the `first`, which is a sample of the policy, or the `best` by the "
        "reward of its turn.",
        source="AT-GRPO: best",
    )
    joint: JointActions = key(
        "aligned",
        "Alternatives of agents that act at the same time: the k-th turn of each (`aligned`), or all combinations of "
        "their turns (`crossed`).",
        source="MAGRPO: both",
    )

    def identity(self) -> dict[str, object]:
        """Return the settings that results depend on, without unused ones, so that older runs stay the same."""
        added = {"max_staleness": self.max_staleness > 0}
        added["pass_rates"] = self.pass_rates is not None
        added |= dict.fromkeys(
            ("tree", "tree_depth", "joint", "continue_with"), self.tree != "none"
        )
        names = [name for name in type(self).model_fields if added.get(name, True)]
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        if self.rounds > 1 and self.rollouts_per_task < 2:
            raise ValueError(
                f"rounds={self.rounds} needs groups with different rewards, and "
                f"rollouts_per_task={self.rollouts_per_task} gives each task one path; raise it, or use rounds=1"
            )
        if self.tree == "none" and (self.tree_depth or self.joint == "crossed"):
            raise ValueError(
                "tree_depth and joint are settings of a tree; use tree=spine or tree=full, or remove them"
            )
        if self.continue_with == "best" and self.tree != "spine":
            raise ValueError("continue_with=best is a setting of tree=spine; remove it")
        if (self.tree != "none" or self.pass_rates) and self.max_staleness:
            raise ValueError(
                "trees and tasks by pass_rates cannot be sampled while a step trains; set max_staleness=0"
            )
        if self.pass_rates and not 0 <= self.pass_rates[0] <= self.pass_rates[1] <= 1:
            raise ValueError("pass_rates must be two numbers from 0 to 1, the lower one first")
        return self

    def rollouts_of_task(self, environment: Environment, *, stop: bool = False) -> int:
        """Return the maximum number of rollouts of a task. Raises ``UserError`` if a tree has no useful limit.

        Alternatives that ``stop`` after their turn count as that part of a rollout.
        """
        if self.tree == "none":
            return self.rollouts_per_task
        # If an environment has no limit of turns, only `tree_depth` can limit its trees.
        states = self.tree_depth or LARGEST_TREE
        with suppress(UserError):
            states = min(states, most_turns(environment))
        agents = len(agents_of(environment)) if self.joint == "crossed" else 1
        size = self.rollouts_per_task**agents
        # Each later group continues a rollout of an earlier one, so it has one less that is new.
        count = size**states if self.tree == "full" else size + (states - 1) * (size - 1)
        if count > LARGEST_TREE:
            raise UserError(
                f"rollout.tree={self.tree} with {size} alternatives of a turn can have more than {LARGEST_TREE:,} "
                "rollouts of one task",
                "set rollout.tree_depth, such as 2, or lower rollout.rollouts_per_task",
            )
        if stop:
            # The turns of `size` rollouts, and a new rest of the path after each best turn.
            return size + (states - 1) * (self.continue_with == "best")
        return count

    @property
    def tasks_per_round(self) -> int:
        return self.oversample_tasks or self.tasks if self.rounds > 1 else self.tasks


class AdvantageSettings(Settings):
    """Advantages of paths or tokens."""

    baseline: Baseline | Literal["values"] = key(
        "mean",
        "`mean`: reward minus the mean of the group. `mean_std`: also divided by the group's standard deviation. "
        "`leave_one_out`: minus the mean of the other paths. `best`: 1 for the highest reward of the group and 0 for "
        "the others (expert iteration). `values`: GAE with a critic (PPO).",
    )
    group: AdvantageGroup = key(
        "path",
        "What the baseline compares. `path`: whole trajectories; all turns have one advantage. `turn`: the returns to "
        "go of the agent's k-th turns, where ended trajectories count as 0. `state`: the returns to go of turns after "
        "equal observations, added to the advantage of the path (GiGPO). `sibling`: turns from one state of "
        "rollout.tree. `role`: a running mean of the agent's rewards over all steps (RAE).",
    )
    returns: Returns = key(
        "to_go",
        "Return of a turn (group=turn, state or sibling): the rewards from it to the end, or only its own reward.",
        source="AT-GRPO: immediate",
    )
    turn_gamma: float = key(
        1.0, "Discount per turn of returns to go.", source="GiGPO: 0.95", gt=0, le=1
    )
    state_weight: float = key(
        1.0, "Weight of the advantage within equal states (group=state).", source="GiGPO: 1", gt=0
    )
    role_decay: float = key(
        0.95,
        "Decay of the running mean (group=role). 1 keeps it at 0, so that rewards are the advantages.",
        source="SPIRAL: 0.95",
        ge=0,
        le=1,
    )
    gamma: float = key(
        1.0, "Discount per token (joint critic: per turn).", source="GAP: 1", gt=0, le=1
    )
    gae_lambda: float = key(1.0, "GAE lambda (baseline=values).", source="GAP: 1", ge=0, le=1)
    normalize: bool = key(
        True,
        "Normalize the advantages of all tokens of a step to mean 0 and deviation 1 (baseline=values).",
    )
    truncated: Literal["train", "mask"] = key(
        "train",
        "`mask` leaves paths that a limit cut off out of the training, and turns of a tree if all rollouts of their "
        "return were cut off. They count for the group's baseline either way.",
        source="DAPO section 3.4: mask, or a length penalty",
    )

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        fields = type(self).model_fields
        # One number per path leaves nothing to discount, and groups have their own normalization.
        gae_keys = ("gamma", "gae_lambda", "normalize")
        changed = [name for name in gae_keys if getattr(self, name) != fields[name].default]
        if changed and self.baseline != "values":
            raise ValueError(
                f"{', '.join(changed)} have no effect with baseline={self.baseline}, where a path has one advantage; "
                "remove them, or use baseline=values"
            )
        if self.baseline == "values" and self.group != "path":
            raise ValueError(
                f"group={self.group} has no effect with baseline=values, where a critic gives each token an advantage; "
                "remove one of them"
            )
        if self.group == "role" and self.baseline != "mean":
            raise ValueError("group=role subtracts a running mean; use baseline=mean")
        used = {
            "returns": ("turn", "state", "sibling"),
            "turn_gamma": ("turn", "state", "sibling"),
            "state_weight": ("state",),
            "role_decay": ("role",),
        }
        for name, groups in used.items():
            if getattr(self, name) != fields[name].default and self.group not in groups:
                raise ValueError(f"{name} is a setting of group={' or '.join(groups)}; remove it")
        return self


class StepSettings(Settings):
    """Number of steps and updates per step."""

    count: int = key(50, "Steps. Each samples from the newest policy.", source="GAP: 200", ge=1)
    minibatches_per_step: int = key(
        1, "Minibatches per step and epoch, with one optimizer step each.", source="GAP: 1", ge=1
    )
    epochs: int = key(1, "Epochs over the groups of a step.", source="GAP: 1", ge=1)
    patience: int = key(
        10, "Stop after this number of consecutive steps without a non-zero advantage.", ge=1
    )
    save_every: int = key(5, "Steps between checkpoints.", ge=1)
    keep_last: int = key(
        2,
        "Newest checkpoints to keep. Each is a model (`RUN@STEP`) and the start of a fork (`--from-step`).",
        ge=1,
    )
    evaluate_every: int | None = key(
        None,
        "Steps between evaluations on the held-out tasks, with the settings of `evaluate`. The last step is evaluated, "
        "too.",
        ge=1,
    )
    keep: Literal["last", "best"] = key(
        "last",
        "Result of the stage: the policy after the last step, or the one with the highest held-out score.",
    )

    @property
    def updates(self) -> int:
        return self.count * self.minibatches_per_step * self.epochs

    def identity(self) -> dict[str, object]:
        """Return the settings that results depend on."""
        # How often checkpoints are saved changes no result. Evaluations do if they choose the
        # weights.
        names = ["count", "minibatches_per_step", "epochs"]
        names += ["keep", "evaluate_every"] if self.keep == "best" else []
        return self.model_dump(include={*names})

    @model_validator(mode="after")
    def _refuse_unmeasured(self) -> Self:
        if self.keep == "best" and self.evaluate_every is None:
            raise ValueError("keep=best needs held-out scores; set evaluate_every, such as 10")
        return self


class UpdateSettings(PhaseSettings):
    """Optimizer settings of reinforcement learning. ``steps`` has the number of optimizer steps."""

    learning_rate: float = key(1e-6, "peak learning rate", source="GAP: 1e-6", gt=0)
    schedule: Schedule = key(
        "constant", "learning rate schedule after warmup", source="GAP's scripts"
    )
    warmup_ratio: float = key(0.0, "share of steps with a rising learning rate", ge=0, le=1)
    weight_decay: float = key(0.0, "AdamW's weight decay of matrices (not norms, biases)", ge=0)


class PolicyTrainingSettings(TrainerSettings, UpdateSettings):
    """Training of the policies, and the settings that the critic's training shares."""


class CriticSettings(Settings):
    """Critics for advantage.baseline=values. Each starts from a policy's weights with a new value head."""

    view: Literal["agent", "joint"] = key(
        "agent",
        "What a critic reads. `agent`: the context of each token of its policy; each trained role has a critic. "
        "`joint`: one critic for all, with a value before each turn, reads the views and turns of all agents, and the "
        "secrets of the task whose readers include `critic`.",
        source="IPPO: agent; MAPPO: joint",
    )
    train: UpdateSettings = UpdateSettings(learning_rate=1e-5, warmup_ratio=0.05)
    loss: ValueLossSettings = ValueLossSettings()


class ReinforceSettings(Settings):
    """Settings of reinforcement learning, also used as a mixin for settings of recipes."""

    policy_group: ClassVar[str] = "train"
    """Group of the policies' learning rate and row length."""

    rollout: GroupSettings = GroupSettings()
    reward: PathRewardSettings = PathRewardSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    steps: StepSettings = StepSettings()
    loss: PolicyLossSettings = PolicyLossSettings()
    critic: CriticSettings = CriticSettings()
    train: TrainerSettings = TrainerSettings()

    @property
    def policy_training(self) -> TrainingSettings:
        return TrainingSettings.model_validate(self.train.model_dump())

    @property
    def critic_training(self) -> TrainingSettings:
        return combine(self.train, self.critic.train)

    @property
    def has_critic(self) -> bool:
        return self.advantage.baseline == "values"

    @property
    def stops_alternatives(self) -> bool:
        """True if the alternatives of a spine end after their turn, because only its own reward counts."""
        return self.rollout.tree == "spine" and self.advantage.returns == "immediate"

    def rollouts(self, environment: Environment) -> int:
        """Return the maximum number of rollouts of all steps."""
        rollout = self.rollout
        tasks = self.steps.count * rollout.rounds * rollout.tasks_per_round
        return tasks * rollout.rollouts_of_task(environment, stop=self.stops_alternatives)

    @model_validator(mode="after")
    def _refuse_lone_paths(self) -> Self:
        has_tree, by_sibling = self.rollout.tree != "none", self.advantage.group == "sibling"
        if has_tree != by_sibling:
            raise ValueError(
                "rollout.tree samples the groups of advantage.group=sibling; set both, or neither"
            )
        if has_tree and self.reward.kl_coef:
            raise ValueError(
                "reward.kl_coef is a cost of each token of a whole path, and a tree trains single turns; use "
                "loss.kl_coef"
            )
        unsupported = not self.has_critic or self.reward.kl_coef or self.rollout.max_staleness
        if self.critic.view == "joint" and unsupported:
            raise ValueError(
                "critic.view=joint has one value per turn and samples before each step; set "
                "advantage.baseline=values, reward.kl_coef=0 and rollout.max_staleness=0"
            )
        alone = self.has_critic or self.advantage.group == "role"
        if not alone and self.rollout.rollouts_per_task < 2:
            raise ValueError(
                "rollout.rollouts_per_task=1 gives no other path of a task to compare with; use 2 or more, or "
                "advantage.baseline=values"
            )
        return self
