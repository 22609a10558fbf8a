"""Reward of one agent's path in reinforcement learning.

    R = environment's reward + sum of weight * measure - repeats - overlong + custom terms

The environment's reward defaults to its score. A path that was not graded has no reward, which differs from 0. With
``malformed``, a path that violates the requested format gets this value instead of the first two terms; the penalties
still apply.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import ClassVar, Self

from pydantic import model_validator

from coterie.config.settings import key
from coterie.environments.protocol import VIOLATIONS, WELL_FORMED
from coterie.errors import UserError
from coterie.record.tree import CONTEXT, LENGTH, Ending, Outcome
from coterie.record.turn import Finish, Turn
from coterie.rewards.dialogue_reward import (
    DialogueSample,
    TermSettings,
    count_leaks,
    count_repeats,
)


def overlong_penalty(
    sampled: int,
    finish: Finish,
    ending: Ending,
    *,
    limit: int,
    buffer: int,
    weight: float = 1.0,
) -> float:
    """Return DAPO's soft penalty for long paths (arXiv 2503.14476, equation 13), from 0 down to ``-weight``.

    ``sampled`` is the number of tokens that the agent sampled, without observations. The penalty is 0 up to ``limit -
    buffer`` tokens, falls linearly to ``-weight`` at ``limit``, and stays there. A path that was cut off at a token
    limit or the context, or whose last turn was (``finish``), gets ``-weight`` whatever its length. Raises
    ``ValueError`` unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"the buffer must be between 1 and the limit of {limit}, got {buffer}")
    if finish == "length" or ending in (LENGTH, CONTEXT):
        return -weight
    return -weight * min(max(sampled - (limit - buffer), 0) / buffer, 1.0)


class PathRewardSettings(TermSettings):
    """Terms added to the environment's reward."""

    built_in: ClassVar = ("environment", "measures", "malformed", "repeats", "overlong")

    measures: dict[str, float] = key(
        {},
        "Weights of the environment's metrics of a path, such as {rounds: -0.05}; see its page for the names.",
    )
    gated: bool = key(
        True,
        "Count measures only where the score is above 0, so that a wrong answer in few rounds earns nothing.",
    )
    malformed: float | None = key(
        None,
        "Reward of a path that violates the requested format, instead of the environment's reward and the measures. "
        "Default: no exception. The environment reports it: `well_formed` is 0, or `violations` is above 0.",
        source="AFM: 0 (answer times form), or -1",
    )
    repeats: float = key(
        0.0, "Penalty for each message of the agent that repeats an earlier one.", ge=0
    )
    overlong: float = key(
        0.0,
        "Maximum penalty for a path with too many sampled tokens (DAPO's soft penalty).",
        source="DAPO: 1",
        ge=0,
    )
    overlong_limit: int | None = key(
        None, "Sampled tokens of a path from which all of it is taken off.", ge=1
    )
    overlong_buffer: int | None = key(
        None,
        "Number of tokens below the limit over which the penalty grows.",
        source="GAP: an eighth",
        ge=1,
    )
    kl: float = key(
        0.0, "Weight of the KL cost of each token, relative to the reference (k1).", ge=0
    )

    @model_validator(mode="after")
    def _check_overlong(self) -> Self:
        limits = (self.overlong_limit, self.overlong_buffer)
        if self.overlong and None in limits:
            raise ValueError("overlong needs overlong_limit and overlong_buffer; give both")
        if not self.overlong and limits != (None, None):
            raise ValueError(
                "overlong_limit and overlong_buffer need overlong; set it or remove them"
            )
        if (self.overlong_buffer or 0) > (self.overlong_limit or 0):
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} is more than overlong_limit={self.overlong_limit}"
            )
        return self


@dataclass(frozen=True, slots=True)
class GradedPath:
    """A finished path of one agent, with its grade."""

    outcome: Outcome
    path: tuple[Turn, ...]
    agent: str
    environment_reward: float | None
    """Environment's reward of the whole path; ``None`` if it could not be graded."""
    measures: Mapping[str, float | int | str]

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.path if turn.speaker.name == self.agent and turn.ids)


def total(terms: Mapping[str, float] | None) -> float | None:
    """Return the sum of terms, added one by one, so that it is the same in every version of Python."""
    return None if terms is None else reduce(add, terms.values())


class PathReward:
    """Computes rewards of paths. Raises ``UserError`` for missing custom terms."""

    def __init__(self, settings: PathRewardSettings) -> None:
        self.settings = settings
        settings.custom_terms()

    def compute(self, graded: GradedPath) -> float | None:
        """Return R without token costs; ``None`` for a path that was not graded. Raises as :meth:`terms`."""
        return total(self.terms(graded))

    def terms(self, graded: GradedPath) -> dict[str, float] | None:
        """Return the terms of R by name; ``None`` for a path that was not graded.

        Raises ``UserError`` for a measure that is not a number, a missing metric of the format with ``malformed``, and
        a custom term that fails.
        """
        if graded.environment_reward is None or graded.outcome.score is None:
            return None
        if self.settings.malformed is not None and _breaks_form(graded):
            own = {"malformed": self.settings.malformed}
        else:
            own = {
                "environment": graded.environment_reward,
                "measures": self._measures(graded),
            }
        return {
            **own,
            "repeats": -self.settings.repeats * count_repeats(graded.own_turns),
            "overlong": self._overlong(graded),
            **self._custom(graded),
        }

    def _measures(self, graded: GradedPath) -> float:
        if self.settings.gated and not (graded.outcome.score or 0.0) > 0:
            return 0.0
        total = 0.0
        for name, weight in self.settings.measures.items():
            value = graded.measures.get(name, 0.0)  # such as one of a plan that was not made
            if isinstance(value, str):
                raise UserError(
                    f"reward.measures has {name}, whose value {value!r} is not a number",
                    f"remove {name}, or use a measure that is a number",
                )
            total += weight * float(value)
        return total

    def _overlong(self, graded: GradedPath) -> float:
        s = self.settings
        if not s.overlong:
            return 0.0
        assert s.overlong_limit is not None and s.overlong_buffer is not None, (
            "checked in the settings"
        )
        last = graded.own_turns[-1].sample if graded.own_turns else None
        return overlong_penalty(
            sum(len(turn.ids) for turn in graded.own_turns),
            last.finish if last else "end",
            graded.outcome.ending,
            limit=s.overlong_limit,
            buffer=s.overlong_buffer,
            weight=s.overlong,
        )

    def _custom(self, graded: GradedPath) -> dict[str, float]:
        if not self.settings.terms:
            return {}
        tokens = sum(len(turn.ids) for turn in graded.path)
        turns = [turn for turn in graded.path if turn.speaker.kind == "agent"]
        speakers = sorted({turn.speaker.name for turn in turns})
        counts = (count_leaks(turns, speakers), count_repeats(turns))
        dialogue = DialogueSample(graded.outcome, tokens, math.nan, *counts, graded.path)
        return self.settings.custom_values(dialogue)


def _breaks_form(graded: GradedPath) -> bool:
    """Return True if the answer, or any other message, violates the requested format."""
    well, wrong = (graded.measures.get(name) for name in (WELL_FORMED, VIOLATIONS))
    if well is None and wrong is None:
        raise UserError(
            f"reward.malformed needs the metric {WELL_FORMED} or {VIOLATIONS}, but the environment reports neither",
            f"remove reward.malformed, or add {WELL_FORMED} (0 or 1) to the metrics of the environment's grade",
        )
    return well == 0 or float(wrong or 0) > 0
