"""Optima's reward of a trajectory: task score, minus tokens, plus likelihood, minus penalties.

R = R_task - lambda_token * tokens / max tokens + lambda_loss * 1 / R_loss
(arXiv 2410.08115, equation 1); the maximum is over the samples of the same task, or given. The
penalties are those of the released code: see :class:`RewardSettings` and ``rewards.conduct``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

from pydantic import field_validator

from coterie.config.plugins import Plugin, absolute_name
from coterie.config.settings import Settings, key
from coterie.rewards.own import found_terms, sources, value
from coterie.trajectories.tree import LENGTH, Outcome
from coterie.trajectories.turn import Turn, digest


class RewardSettings(Settings):
    """Weights of the parts of the reward."""

    lambda_token: float = key(
        0.6,
        "Weight of the token term: tokens of the dialogue over the most of its task's samples.",
        source="Optima table 8 (information exchange: 0.6)",
        ge=0,
    )
    lambda_loss: float = key(
        1.0,
        "Weight of 1/loss, the loss being the largest over turns under the frozen base.",
        source="Optima table 8 (information exchange: 1.0)",
        ge=0,
    )
    loss_term: Literal["inverse", "bounded"] = key(
        "inverse",
        "`inverse` is lambda_loss / loss, at most lambda_loss / min_loss: a fluent wrong dialogue may "
        "outweigh a right one. `bounded` is lambda_loss * exp(-loss), at most lambda_loss.",
        source="Optima equation 1; `bounded` is ours",
    )
    min_loss: float = key(
        0.1,
        "Nats a token; a smaller loss counts as this one. Tokens of which the base is surer than 0.9 "
        "each are as fluent as can be, and 1/loss grows beyond all bounds there.",
        source="ours; Optima's 1/loss lies between about 0.3 and 1",
        gt=0,
    )
    leak_penalty: float = key(
        10.0,
        "Taken off for each utterance that speaks for another agent (`Bob: ...` in Alice's turn).",
        source="Optima's code",
        ge=0,
    )
    leaks_lose_task: bool = key(
        False,
        "A dialogue with such an utterance has a task term of 0.",
        source="Optima's code: in tree search, instead of the penalty",
    )
    repeats_lose_loss: bool = key(
        True,
        "A dialogue in which an utterance repeats an earlier one has a loss term of 0.",
        source="Optima's code",
    )
    short_tokens: int = key(
        0,
        "Dialogues of at most so many tokens have a token term of -1, as truncated dialogues have.",
        source="Optima's code: 40 (trained models average 32 to 40 on some sets)",
        ge=0,
    )

    terms: dict[str, float] = key(
        {},
        "Terms of your own, each with its weight: {path/file.py:NAME: 0.5}. A term is a function that gives a number "
        "for a dialogue (`coterie.rewards.combined.Sampled`).",
    )

    @field_validator("terms")
    @classmethod
    def _settled(cls, terms: dict[str, float]) -> dict[str, float]:
        return {absolute_name(name): weight for name, weight in terms.items()}

    def own(self) -> dict[str, Plugin]:
        """The functions of the run's own terms, by what these are called. Raises ``UserError`` for broken ones."""
        return found_terms(tuple(self.terms), tuple(TERMS))

    def names(self) -> tuple[str, ...]:
        return (*TERMS, *self.own())

    def identity(self) -> str:
        """What rewards depend on: the weights, and the content of the run's own terms."""
        return digest(self.model_dump_json(exclude={"terms"}), sources(self.terms))

    @property
    def max_reward(self) -> float:
        if self.terms:
            return math.inf
        bound = 1.0 if self.loss_term == "bounded" else 1 / self.min_loss
        return 1.0 + self.lambda_loss * bound


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the reward of one trajectory is computed from."""

    outcome: Outcome
    tokens: int
    loss: float
    """The largest mean loss of its turns, in nats a token; NaN in reinforcement learning, which does not compute it."""
    leaks: int = 0
    """Utterances that speak for another agent."""
    repeats: int = 0
    path: tuple[Turn, ...] = ()

    @property
    def truncated(self) -> bool:
        """Whether a turn ran to the limit of tokens."""
        return self.outcome.ending == LENGTH


@dataclass(frozen=True, slots=True)
class Reward:
    """The reward of one trajectory and its parts, each as it is added."""

    leaf: str
    sample: int
    terms: Mapping[str, float]
    """By name, in the order in which they are added (:data:`TERMS`, then the run's own)."""

    @property
    def total(self) -> float:
        """R; added one by one, so that it is the same in every version of Python."""
        return reduce(add, self.terms.values())

    @property
    def score(self) -> float:
        return self.terms["task"]


def rewards(
    samples: Sequence[Sampled], settings: RewardSettings, *, max_tokens: int | None = None
) -> list[Reward]:
    """Rewards of samples of one task.

    Tokens are over ``max_tokens``, or over the most of the samples, truncated dialogues not counted.
    """
    if max_tokens is None:
        counts = [s.tokens for s in samples if not s.truncated] or [s.tokens for s in samples]
        max_tokens = max(counts, default=1)
    own, weights = settings.own(), list(settings.terms.values())
    found = []
    for sample in samples:
        terms = {name: term(sample, settings, max_tokens) for name, term in TERMS.items()}
        for (name, term), weight in zip(own.items(), weights, strict=True):
            terms[name] = weight * value(term, sample)
        found.append(Reward(sample.outcome.leaf, sample.outcome.sample, terms))
    return found


def largest_loss(losses: Mapping[str, float], path: Sequence[str]) -> float:
    return max(losses[turn] for turn in path)


def task_term(sample: Sampled, settings: RewardSettings, max_tokens: int) -> float:
    if sample.outcome.score is None:
        raise ValueError(f"the path to {sample.outcome.leaf} was not graded, so it has no reward")
    return 0.0 if sample.leaks and settings.leaks_lose_task else sample.outcome.score


def token_term(sample: Sampled, settings: RewardSettings, max_tokens: int) -> float:
    """-lambda_token * tokens / max tokens, or -1 of a truncated dialogue; at most 0."""
    if not settings.lambda_token:
        return 0.0
    if sample.truncated or sample.tokens <= settings.short_tokens:
        return -1.0
    return -settings.lambda_token * sample.tokens / max(max_tokens, 1)


def loss_term(sample: Sampled, settings: RewardSettings, max_tokens: int) -> float:
    """lambda_loss / loss (or its bounded form); -1 of a truncated dialogue, 0 of one that repeats itself."""
    if not settings.lambda_loss:
        return 0.0
    if sample.truncated:  # a loop that never ends is fluent: without this it would be trained on
        return -1.0
    if sample.repeats and settings.repeats_lose_loss:
        return 0.0
    if settings.loss_term == "bounded":
        return settings.lambda_loss * math.exp(-sample.loss)
    return settings.lambda_loss / max(sample.loss, settings.min_loss)


def leak_term(sample: Sampled, settings: RewardSettings, max_tokens: int) -> float:
    """-leak_penalty for each leak, at most 0."""
    return -settings.leak_penalty * sample.leaks


Term = Callable[[Sampled, RewardSettings, int], float]
"""A part of the reward of a trajectory; the number is what its tokens are over."""
TERMS: dict[str, Term] = {
    "task": task_term,
    "tokens": token_term,
    "loss": loss_term,
    "leaks": leak_term,
}
"""What is added, by its name as credit. A run adds its own by ``reward.terms``."""
