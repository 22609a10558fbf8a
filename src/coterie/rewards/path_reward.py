"""The reward of one agent's path in reinforcement learning: what its environment gave it, and what a run adds to it.

    R = given + sum of weight * measure - repeats - overlong + own terms

``given`` is what the environment gave the agent; an environment that gives nothing has its score. A path that was not
graded has no reward, which is not 0. With ``malformed``, a path that breaks the form that its prompt asks for has this
in place of the first two: what is taken off for repeats and length still is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Self

from pydantic import field_validator, model_validator

from coterie.config.plugins import Plugin, absolute_name
from coterie.config.settings import Settings, key
from coterie.environments.protocol import VIOLATIONS, WELL_FORMED
from coterie.errors import UserError
from coterie.rewards.combined import Sampled as Dialogue
from coterie.rewards.conduct import leaks, repeats
from coterie.rewards.own import found_terms, sources, value
from coterie.trajectories.tree import CONTEXT, LENGTH, Ending, Outcome
from coterie.trajectories.turn import Finish, Turn, digest

TERMS = ("environment", "measures", "malformed", "repeats", "overlong")


def overlong_penalty(
    sampled: int,
    finish: Finish,
    ending: Ending,
    *,
    limit: int,
    buffer: int,
    weight: float = 1.0,
) -> float:
    """From 0 down to ``-weight`` (DAPO, arXiv 2503.14476, equation 13).

    ``sampled`` is the number of tokens that the agent sampled on the path; what it was shown does not count. 0 up to
    ``limit - buffer`` of them, then falling in a straight line to ``-weight`` at ``limit``, and so beyond it. A path
    that was cut off for its length or its context, or whose last turn was (``finish``), costs the whole ``weight``,
    however short: which token it ended with says nothing about that. Raises ``ValueError`` unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"the buffer has to be within 1 and the limit of {limit}, got {buffer}")
    if finish == "length" or ending in (LENGTH, CONTEXT):
        return -weight
    return -weight * min(max(sampled - (limit - buffer), 0) / buffer, 1.0)


class PathRewardSettings(Settings):
    """What is added to the reward that the environment gives."""

    measures: dict[str, float] = key(
        {},
        "Weights of what the environment measures of a path, such as {rounds: -0.05}; see its page for the names.",
    )
    gated: bool = key(
        True,
        "Measures count only where the score is above 0, so that nobody gets better by being wrong in few rounds.",
    )
    malformed: float | None = key(
        None,
        "What a path is worth that breaks the form that its prompt asks for, in place of what it was given and of its "
        "measures; default: as any other. The environment says so: `well_formed` is 0, or `violations` are above 0.",
        source="AFM: 0 (answer times form), or -1",
    )
    repeats: float = key(
        0.0, "Taken off for each message of the agent that repeats an earlier one.", ge=0
    )
    overlong: float = key(
        0.0,
        "Taken off at most for a path that is too long, by the tokens that were sampled (DAPO's soft penalty).",
        source="DAPO: 1",
        ge=0,
    )
    overlong_limit: int | None = key(
        None, "Sampled tokens of a path from which all of it is taken off.", ge=1
    )
    overlong_buffer: int | None = key(
        None, "Tokens below the limit over which the penalty grows.", source="GAP: an eighth", ge=1
    )
    kl: float = key(
        0.0, "Weight of the divergence from the reference as a cost of each token (k1).", ge=0
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

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> Self:
        limits = (self.overlong_limit, self.overlong_buffer)
        if self.overlong and None in limits:
            raise ValueError("overlong needs overlong_limit and overlong_buffer; give both")
        if not self.overlong and limits != (None, None):
            raise ValueError("overlong_limit and overlong_buffer mean nothing without overlong")
        if (
            self.overlong_limit
            and self.overlong_buffer
            and self.overlong_buffer > self.overlong_limit
        ):
            raise ValueError(
                f"overlong_buffer={self.overlong_buffer} is more than overlong_limit={self.overlong_limit}"
            )
        return self

    def own(self) -> dict[str, Plugin]:
        """The functions of the run's own terms, by what these are called. Raises ``UserError`` for broken ones."""
        return found_terms(tuple(self.terms), TERMS)

    def identity(self) -> str:
        """What rewards depend on: the weights, and the content of the run's own terms."""
        return digest(self.model_dump_json(exclude={"terms"}), sources(self.terms))


@dataclass(frozen=True, slots=True)
class Graded:
    """What is known of one agent's path when it has ended."""

    outcome: Outcome
    path: tuple[Turn, ...]
    agent: str
    given: float | None
    """What the environment gave the agent for the path as a whole; ``None`` where it could not be graded."""
    measures: Mapping[str, float | int | str]

    @property
    def own(self) -> tuple[Turn, ...]:
        return tuple(turn for turn in self.path if turn.speaker.name == self.agent and turn.ids)


def total(terms: Mapping[str, float] | None) -> float | None:
    """Return the sum of terms, added one by one, so that it is the same in every version of Python."""
    return None if terms is None else reduce(add, terms.values())


class PathReward:
    """The rule under given settings. Raises ``UserError`` for terms that are not found."""

    def __init__(self, settings: PathRewardSettings) -> None:
        self.settings = settings
        self._own = settings.own()

    def of(self, graded: Graded) -> float | None:
        """R, without the costs of single tokens; ``None`` of a path that was not graded. Raises as :meth:`terms`."""
        return total(self.terms(graded))

    def terms(self, graded: Graded) -> dict[str, float] | None:
        """Return the terms of R by name; ``None`` of a path that was not graded.

        Raises ``UserError`` for a measure that is not a number, for an environment that does not say whether a path
        breaks its form where that counts, and for an own term that fails.
        """
        if graded.given is None or graded.outcome.score is None:
            return None
        if self.settings.malformed is not None and _breaks_form(graded):
            found = {"malformed": self.settings.malformed}
        else:
            found = {"environment": graded.given, "measures": self._measures(graded)}
        return {
            **found,
            "repeats": -self.settings.repeats * repeats(graded.own),
            "overlong": self._overlong(graded),
            **self._terms(graded),
        }

    def _measures(self, graded: Graded) -> float:
        if self.settings.gated and not (graded.outcome.score or 0.0) > 0:
            return 0.0
        # One that a path does not have, such as that of a plan that was not made, is 0.
        return sum(
            weight * _number(name, graded.measures.get(name, 0.0))
            for name, weight in self.settings.measures.items()
        )

    def _overlong(self, graded: Graded) -> float:
        s = self.settings
        if not s.overlong:
            return 0.0
        assert s.overlong_limit is not None and s.overlong_buffer is not None, "that was checked"
        last = graded.own[-1].sample if graded.own else None
        return overlong_penalty(
            sum(len(turn.ids) for turn in graded.own),
            last.finish if last else "end",
            graded.outcome.ending,
            limit=s.overlong_limit,
            buffer=s.overlong_buffer,
            weight=s.overlong,
        )

    def _terms(self, graded: Graded) -> dict[str, float]:
        if not self._own:
            return {}
        tokens = sum(len(turn.ids) for turn in graded.path)
        said = [turn for turn in graded.path if turn.speaker.kind == "agent"]
        speakers = sorted({turn.speaker.name for turn in said})
        dialogue = Dialogue(
            *(graded.outcome, tokens, math.nan, leaks(said, speakers), repeats(said), graded.path)
        )
        own = zip(self._own.items(), self.settings.terms.values(), strict=True)
        return {name: weight * value(term, dialogue) for (name, term), weight in own}


def _number(name: str, value: float | int | str) -> float:
    if isinstance(value, str):
        raise UserError(
            f"reward.measures weighs {name}, which is not a number here but {value!r}",
            f"leave out {name}, or weigh a measure that is a number",
        )
    return float(value)


def _breaks_form(graded: Graded) -> bool:
    """Whether the answer, or anything else that was said, has another form than the one that was asked for."""
    well, wrong = (graded.measures.get(name) for name in (WELL_FORMED, VIOLATIONS))
    if well is None and wrong is None:
        raise UserError(
            "reward.malformed says what paths are worth that break their form, and the environment does not say "
            f"whether they do: it measures neither {WELL_FORMED} nor {VIOLATIONS}",
            f"leave out reward.malformed, or let the environment's grade give {WELL_FORMED} (0 or 1)",
        )
    return well == 0 or float(wrong or 0) > 0
