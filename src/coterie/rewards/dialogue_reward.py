"""Reward of a dialogue, with Optima's terms and custom terms.

    R = R_task - lambda_token * tokens / max tokens + lambda_loss * 1 / R_loss

(arXiv 2410.08115, equation 1). The maximum is over the samples of the same task, or a parameter. Penalties follow the
released code, see :class:`RewardSettings`. A dialogue with a repeat gets no likelihood term.

In Optima's code, an utterance leaks if it has both speakers' names as prefixes, or one of them twice. There, every
utterance begins with its speaker's name; here the name is optional, and the rule is the same.

A plan that quotes the right actions makes them likely, and leaves nothing to do for the agent that should write them.
:func:`quotes` detects such a plan.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import ClassVar, Literal

from pydantic import field_validator

from coterie.config.plugins import Kind, Plugin, absolute_name, find, guarded, label
from coterie.config.settings import Settings, key
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Outcome
from coterie.record.turn import Turn, digest

REWARDS = Kind("reward", {})


def load_terms(names: tuple[str, ...], built_in: tuple[str, ...]) -> dict[str, Plugin]:
    """Load functions, by the names of their terms.

    Raises ``UserError`` for a function that can't be loaded, and for two terms with one name.
    """
    terms: dict[str, Plugin] = {}
    for name in names:
        short = label(name)
        if short in (*built_in, *terms):
            raise UserError(
                f"reward.terms has {name}, but there is already a term {short!r}",
                "rename the function; for built-in terms set their own weights",
            )
        terms[short] = _find(name)
    return terms


@cache
def _find(name: str) -> Plugin:
    term = find(REWARDS, name)
    if not callable(term.thing) or isinstance(term.thing, type):
        raise UserError(
            f"{term} is not a function", "write def NAME(sample): ... that returns a number"
        )
    return term


def term_value(term: Plugin, sample: object) -> float:
    value = guarded(f"{term} failed", lambda: term.thing(sample))
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{term} returned {value!r}", "return a finite number")
    return float(value)


class TermSettings(Settings):
    """Custom terms of a reward."""

    built_in: ClassVar[tuple[str, ...]] = ()
    """Names of the other terms."""
    terms: dict[str, float] = key(
        {},
        "Custom terms and their weights: {path/file.py:NAME: 0.5}. A term is a function that returns a number for a "
        "dialogue (`coterie.rewards.dialogue_reward.DialogueSample`).",
    )

    @field_validator("terms")
    @classmethod
    def _resolve_names(cls, terms: dict[str, float]) -> dict[str, float]:
        return {absolute_name(name): weight for name, weight in terms.items()}

    def custom_terms(self) -> dict[str, Plugin]:
        """Load the functions of custom terms, by name. Raises ``UserError``."""
        return load_terms(tuple(self.terms), self.built_in)

    def custom_values(self, sample: object) -> dict[str, float]:
        """Return the weighted custom terms of a dialogue, by name. Raises ``UserError`` if a term fails."""
        own = zip(self.custom_terms().items(), self.terms.values(), strict=True)
        return {name: weight * term_value(term, sample) for (name, term), weight in own}

    def identity(self) -> str:
        """Return a hash of the weights and of the files of custom terms."""
        sources = [(label(n), _find(n).source, weight) for n, weight in self.terms.items()]
        return digest(self.model_dump_json(exclude={"terms"}), sources)


def count_leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """Count the utterances with an agent's name as a prefix (``Bob:``), except the speaker's own at the beginning."""
    return sum(_leaks(turn, agents) for turn in path)


def _leaks(turn: Turn, agents: Sequence[str]) -> bool:
    text = turn.text.lstrip().removeprefix(f"{turn.speaker.name}:")
    return any(f"{agent}:" in text for agent in agents)


def count_repeats(path: Sequence[Turn]) -> int:
    """Count the utterances that repeat an earlier one, ignoring case, outer spaces and the speaker's name."""
    texts = [
        turn.text.strip().removeprefix(f"{turn.speaker.name}:").strip().casefold() for turn in path
    ]
    return len(texts) - len(set(texts))


SHORTEST = 6
"""Minimum length of a quote in characters, without spaces."""
_NAME = re.compile(r"^\s*\w+\s*=\s*")


def quotes(text: str, hidden: Sequence[str]) -> bool:
    """Return True if a text contains a hidden text, ignoring spaces and the name of its result."""
    bare = _bare(text)
    needles = (_bare(_NAME.sub("", one)) for one in hidden)
    return any(len(needle) >= SHORTEST and needle in bare for needle in needles)


def _bare(text: str) -> str:
    return "".join(text.split()).lower()


class RewardSettings(TermSettings):
    """Weights of the terms of the reward."""

    built_in: ClassVar = ("task", "tokens", "loss", "leaks")

    lambda_token: float = key(
        0.6,
        "Weight of the token term: tokens of the dialogue over the maximum of its task's samples.",
        source="Optima table 8 (information exchange: 0.6)",
        ge=0,
    )
    lambda_loss: float = key(
        1.0,
        "Weight of 1/loss, where loss is the maximum over turns under the frozen base model.",
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
        "Lower bound of the loss, in nats a token. At this loss the base model gives each token a probability of 0.9; "
        "below, 1/loss grows without bound.",
        source="ours; Optima's 1/loss lies between about 0.3 and 1",
        gt=0,
    )
    leak_penalty: float = key(
        10.0,
        "Penalty for each utterance that speaks for another agent (`Bob: ...` in Alice's turn).",
        source="Optima's code",
        ge=0,
    )
    leaks_lose_task: bool = key(
        False,
        "Set the task term to 0 in a dialogue with such an utterance.",
        source="Optima's code: in tree search, instead of the penalty",
    )
    repeats_lose_loss: bool = key(
        True,
        "Set the loss term to 0 in a dialogue with a repeated utterance.",
        source="Optima's code",
    )
    short_tokens: int = key(
        0,
        "Dialogues of at most this number of tokens get a token term of -1, like truncated dialogues.",
        source="Optima's code: 40 (trained models average 32 to 40 on some sets)",
        ge=0,
    )

    def names(self) -> tuple[str, ...]:
        return (*self.built_in, *self.custom_terms())

    @property
    def max_reward(self) -> float:
        if self.terms:
            return math.inf
        bound = 1.0 if self.loss_term == "bounded" else 1 / self.min_loss
        return 1.0 + self.lambda_loss * bound


@dataclass(frozen=True, slots=True)
class DialogueSample:
    """A dialogue with the numbers that its reward is computed from."""

    outcome: Outcome
    tokens: int
    loss: float
    """Maximum mean loss of its turns, in nats a token; NaN in ``rl`` recipes, which do not compute it."""
    leaks: int = 0
    """Number of utterances that speak for another agent."""
    repeats: int = 0
    path: tuple[Turn, ...] = ()

    @property
    def truncated(self) -> bool:
        """True if a turn was cut off at its token limit."""
        return self.outcome.ending == LENGTH


@dataclass(frozen=True, slots=True)
class Reward:
    """Reward of one dialogue, as the sum of its terms."""

    leaf: str
    sample: int
    terms: Mapping[str, float]
    """Weighted terms by name, in the order of addition (built-in, then custom terms)."""

    @property
    def total(self) -> float:
        """R. Added one by one, for the same result in every version of Python."""
        return reduce(add, self.terms.values())

    @property
    def score(self) -> float:
        return self.terms["task"]


def rewards(
    samples: Sequence[DialogueSample], settings: RewardSettings, *, max_tokens: int | None = None
) -> list[Reward]:
    """Return the rewards of samples of one task.

    Tokens are divided by ``max_tokens``, by default the maximum of the samples that were not truncated.
    """
    if max_tokens is None:
        counts = [s.tokens for s in samples if not s.truncated] or [s.tokens for s in samples]
        max_tokens = max(counts, default=1)
    result = []
    for sample in samples:
        terms = {
            "task": task_term(sample, settings),
            "tokens": token_term(sample, settings, max_tokens),
            "loss": loss_term(sample, settings),
            "leaks": -settings.leak_penalty * sample.leaks,
        }
        terms |= settings.custom_values(sample)
        result.append(Reward(sample.outcome.leaf, sample.outcome.sample, terms))
    return result


def largest_loss(losses: Mapping[str, float], path: Sequence[str]) -> float:
    return max(losses[turn] for turn in path)


def task_term(sample: DialogueSample, settings: RewardSettings) -> float:
    if sample.outcome.score is None:
        raise ValueError(f"the path to {sample.outcome.leaf} was not graded, so it has no reward")
    return 0.0 if sample.leaks and settings.leaks_lose_task else sample.outcome.score


def token_term(sample: DialogueSample, settings: RewardSettings, max_tokens: int) -> float:
    """Return -lambda_token * tokens / max tokens, or -1 for a truncated or too short dialogue."""
    if not settings.lambda_token:
        return 0.0
    if sample.truncated or sample.tokens <= settings.short_tokens:
        return -1.0
    return -settings.lambda_token * sample.tokens / max(max_tokens, 1)


def loss_term(sample: DialogueSample, settings: RewardSettings) -> float:
    """Return lambda_loss / loss (or its bounded form), -1 for a truncated dialogue, or 0 for one with a repeat."""
    if not settings.lambda_loss:
        return 0.0
    if sample.truncated:  # endless loops have a low loss and must not be rewarded
        return -1.0
    if sample.repeats and settings.repeats_lose_loss:
        return 0.0
    if settings.loss_term == "bounded":
        return settings.lambda_loss * math.exp(-sample.loss)
    return settings.lambda_loss / max(sample.loss, settings.min_loss)
