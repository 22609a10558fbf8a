"""Reward of a dialogue with Optima's terms, reward of one agent's path in reinforcement learning, and custom terms.

Dialogue (arXiv 2410.08115, equation 1):

    R = R_task - lambda_token * tokens / max tokens + lambda_loss * 1 / R_loss

The maximum is over the samples of the same task, or a parameter. Penalties follow the released code, see
:class:`RewardSettings`. There, every utterance begins with its speaker's name; here the name is optional.

Path of one agent:

    R = environment's reward + sum of weight * measure - repeats - overlong + custom terms

The environment's reward defaults to its score. A path that was not graded has no reward, which differs from 0. With
``malformed_reward``, a path that violates the requested format gets this value instead of the first two terms.
"""

import inspect
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from operator import add
from typing import ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from coterie.config.plugins import Kind, Plugin, absolute_name, find, guarded, label
from coterie.config.settings import Settings, key
from coterie.config.user_code import SECONDS, as_number
from coterie.environments.protocol import VIOLATIONS, WELL_FORMED
from coterie.errors import UserError
from coterie.record.tree import CONTEXT, LENGTH, Ending, Outcome
from coterie.record.turn import Finish, Turn, digest

REWARDS = Kind("reward", {})


def load_terms(names: tuple[str, ...], built_in: tuple[str, ...]) -> dict[str, Plugin]:
    """Load functions, by the shortest end of their names that no other term has: ``asks``, or ``reward.py:asks``.

    Raises ``UserError``, also for a name of a built-in term.
    """
    ends = {}
    for name in names:
        # From the shortest name to the longest: function, `FILE:FUNCTION`, with one folder, and so on.
        starts = [match.end() for match in re.finditer(r"[/\\]", name)]
        ends[name] = dict.fromkeys([label(name), *(name[n:] for n in starts[::-1]), name])
    # An end that two terms share, or a built-in term has, would be ambiguous in reports.
    counts = Counter(end for name in names for end in ends[name]) + Counter(built_in)
    terms: dict[str, Plugin] = {}
    for name in names:
        short = next((end for end in ends[name] if counts[end] == 1), None)
        if short is None:
            raise UserError(
                f"reward.terms has {name}, but there is already a term {name!r}",
                "rename the function; for built-in terms set their own weights",
            )
        terms[short] = _find(name)
    return terms


@cache
def _find(name: str) -> Plugin:
    term = find(REWARDS, name)
    try:
        # Check the signature when the run starts, not after the first rollouts.
        if isinstance(term.thing, type):
            raise TypeError("it is a class")
        inspect.signature(term.thing).bind("sample")
    except TypeError as error:
        fix = "write def NAME(sample): ... that returns a number"
        raise UserError(f"{term} is not a function of one sample: {error}", fix) from error
    return term


class TermSettings(Settings):
    """Custom terms of a reward."""

    built_in: ClassVar[tuple[str, ...]] = ()
    """Names of the other terms."""
    terms: dict[str, float] = key(
        {},
        "Custom terms and their weights: {path/file.py:NAME: 0.5}. A term is a function that returns a number for a "
        "dialogue (`coterie.recipes.DialogueSample`).",
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
        values: dict[str, float] = {}
        for (name, term), weight in zip(
            self.custom_terms().items(), self.terms.values(), strict=True
        ):
            # Code of users may raise anything or never return; the error then names the term.
            value = guarded(f"{term} failed", partial(term.thing, sample), SECONDS)
            figure = as_number(value)
            if figure is None:
                raise UserError(f"{term} returned {value!r}", "return a finite number")
            values[name] = weight * figure
        return values

    def identity(self) -> str:
        """Return a hash of the weights and of the files of custom terms."""
        # A term whose file was edited is another reward, whatever its name and folder are.
        sources = [(label(n), _find(n).source, weight) for n, weight in self.terms.items()]
        return digest(self.model_dump_json(exclude={"terms"}), sources)


def count_leaks(path: Sequence[Turn], agents: Sequence[str]) -> int:
    """Count the utterances with an agent's name as a prefix (``Bob:``), except the speaker's own at the beginning."""
    # Optima's agents begin with their own name, which is no leak.
    texts = (turn.text.lstrip().removeprefix(f"{turn.speaker.name}:") for turn in path)
    return sum(any(f"{agent}:" in text for agent in agents) for text in texts)


def count_repeats(path: Sequence[Turn]) -> int:
    """Count the utterances that repeat an earlier one, ignoring case, outer spaces and the speaker's name."""
    bare = (turn.text.strip().removeprefix(f"{turn.speaker.name}:") for turn in path)
    texts = [text.strip().casefold() for text in bare]
    return len(texts) - len(set(texts))


SHORTEST = 6
"""Minimum length of a quote in characters, without spaces."""
_NAME = re.compile(r"^\s*\w+\s*=\s*")


def quotes(text: str, hidden: Sequence[str]) -> bool:
    """Return True if a text contains a hidden text, ignoring spaces and the name of its result."""
    bare = _bare(text)
    needles = (_bare(_NAME.sub("", secret)) for secret in hidden)
    # Short values, such as a number, occur in a text by chance.
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
        # Custom terms may return any number.
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
        return add_terms(self.terms)

    @property
    def score(self) -> float:
        return self.terms["task"]


def rewards(
    samples: Sequence[DialogueSample], settings: RewardSettings, *, max_tokens: int | None = None
) -> list[Reward]:
    """Return the rewards of a task's samples (equation 1), each as its weighted terms.

    ``max_tokens`` defaults to the maximum of the samples that are not truncated.
    """
    if max_tokens is None:
        # A truncated dialogue is as long as its limit, and would make all others look short.
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
    # An agent that writes its partner's part may solve the task alone.
    return 0.0 if sample.leaks and settings.leaks_lose_task else sample.outcome.score


def token_term(sample: DialogueSample, settings: RewardSettings, max_tokens: int) -> float:
    """Return -lambda_token * tokens / max tokens, or -1 for a truncated or too short dialogue."""
    if not settings.lambda_token:
        return 0.0
    if sample.truncated or sample.tokens <= settings.short_tokens:
        # Without the weight, as in the released code.
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
    # The paper's 1 / loss grows without bound for fluent text; the other form is at most lambda_loss.
    if settings.loss_term == "bounded":
        return settings.lambda_loss * math.exp(-sample.loss)
    return settings.lambda_loss / max(sample.loss, settings.min_loss)


def overlong_penalty(
    sampled: int, finish: Finish, ending: Ending, *, limit: int, buffer: int, weight: float = 1.0
) -> float:
    """Return DAPO's soft penalty for long paths (arXiv 2503.14476, equation 13), from 0 down to ``-weight``.

    ``sampled`` is the number of tokens that the agent sampled, without observations. The penalty is 0 up to ``limit -
    buffer`` tokens, falls linearly to ``-weight`` at ``limit``, and stays there. A path that was cut off at a token
    limit or the context, or whose last turn was (``finish``), gets ``-weight`` whatever its length. Raises
    ``ValueError`` unless 0 < buffer <= limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"the buffer must be between 1 and the limit of {limit}, got {buffer}")
    # A path that was cut off was too long, even if the cut came before the limit of this penalty.
    if finish == "length" or ending in (LENGTH, CONTEXT):
        return -weight
    # DAPO, equation 13: linear in the last `buffer` tokens before the limit.
    return -weight * min(max(sampled - (limit - buffer), 0) / buffer, 1.0)


class PathRewardSettings(TermSettings):
    """Terms added to the environment's reward."""

    built_in: ClassVar = ("environment", "measures", "malformed", "repeats", "overlong", "acts")

    measures: dict[str, float] = key(
        {},
        "Weights of the environment's metrics of a path, such as {rounds: -0.05}; see its page for the names.",
    )
    measures_only_if_correct: bool = key(
        True,
        "Count measures only where the score is above 0, so that a wrong answer in few rounds earns nothing.",
    )
    malformed_reward: float | None = key(
        None,
        "Reward of a path that violates the requested format, instead of the environment's reward and the measures. "
        "Default: no exception. The environment reports it: `well_formed` is 0, or `violations` is above 0.",
        source="AFM: 0 (answer times form), or -1",
    )
    repeat_penalty: float = key(
        0.0, "Penalty for each message of the agent that repeats an earlier one.", ge=0
    )
    overlong_penalty: float = key(
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
    team_weight: float | None = key(
        None,
        "Weight of the score, which the team shares, in the reward of each agent, beside the rewards that the "
        "environment gives to the agent alone. Default: the agent's own rewards, or the score if there are none.",
        source="AT-GRPO: undocumented",
        ge=0,
    )
    kl_coef: float = key(
        0.0, "Weight of the KL cost of each token, relative to the reference (k1).", ge=0
    )

    @model_validator(mode="after")
    def _check_overlong(self) -> Self:
        limits = (self.overlong_limit, self.overlong_buffer)
        if self.overlong_penalty and None in limits:
            raise ValueError("overlong_penalty needs overlong_limit and overlong_buffer; give both")
        if not self.overlong_penalty and limits != (None, None):
            raise ValueError(
                "overlong_limit and overlong_buffer need overlong_penalty; set it or remove them"
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


def add_terms(terms: Mapping[str, float]) -> float:
    """Return the sum of terms, added one by one, so that it is the same in every version of Python."""
    return reduce(add, terms.values())


class PathReward:
    """Computes rewards of paths. Raises ``UserError`` for missing custom terms."""

    def __init__(self, settings: PathRewardSettings) -> None:
        self.settings = settings
        # Load custom terms now, so that a missing file stops the run before its first rollout.
        settings.custom_terms()

    def terms(self, graded: GradedPath) -> dict[str, float] | None:
        """Return the terms of R by name; ``None`` for a path that was not graded. Raises ``UserError``."""
        # A failed grader must not look like a wrong answer.
        if graded.environment_reward is None or graded.outcome.score is None:
            return None
        if self.settings.malformed_reward is not None and _breaks_form(graded):
            components = {"malformed": self.settings.malformed_reward}
        else:
            measures = self._measures(graded)
            components = {"environment": graded.environment_reward, "measures": measures}
        return {
            **components,
            "repeats": -self.settings.repeat_penalty * count_repeats(graded.own_turns),
            "overlong": self._overlong(graded),
            **self._custom(graded),
        }

    def _measures(self, graded: GradedPath) -> float:
        # Otherwise giving up early would be rewarded for few rounds or calls.
        if self.settings.measures_only_if_correct and not (graded.outcome.score or 0.0) > 0:
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
        if not s.overlong_penalty:
            return 0.0
        limit, buffer, agent_turns = s.overlong_limit, s.overlong_buffer, graded.own_turns
        assert limit is not None and buffer is not None, "checked in the settings"
        # Only the agent's tokens count, not observations. An unsampled turn (of a script) has no
        # finish reason, and counts as ended.
        last_sample = agent_turns[-1].sample if agent_turns else None
        tokens = sum(len(turn.ids) for turn in agent_turns)
        finish, ending = last_sample.finish if last_sample else "end", graded.outcome.ending
        return overlong_penalty(
            tokens, finish, ending, limit=limit, buffer=buffer, weight=s.overlong_penalty
        )

    def _custom(self, graded: GradedPath) -> dict[str, float]:
        if not self.settings.terms:
            return {}
        tokens = sum(len(turn.ids) for turn in graded.path)
        turns = [turn for turn in graded.path if turn.speaker.kind == "agent"]
        speakers = sorted({turn.speaker.name for turn in turns})
        counts = (count_leaks(turns, speakers), count_repeats(turns))
        # No base model scores paths in reinforcement learning, hence the loss NaN.
        dialogue = DialogueSample(graded.outcome, tokens, math.nan, *counts, graded.path)
        return self.settings.custom_values(dialogue)


def _breaks_form(graded: GradedPath) -> bool:
    """Return True if the answer, or any other message, violates the requested format."""
    well, wrong = (graded.measures.get(name) for name in (WELL_FORMED, VIOLATIONS))
    if well is None and wrong is None:
        raise UserError(
            f"reward.malformed_reward needs {WELL_FORMED} or {VIOLATIONS}, but the environment reports neither",
            f"remove reward.malformed_reward, or add {WELL_FORMED} (0 or 1) to the metrics of the environment's grade",
        )
    return well == 0 or float(wrong or 0) > 0
