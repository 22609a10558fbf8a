"""Conversion of an environment's transition into the record: turns, limits, an immutable state.

Invalid values and timeouts are the environment's own faults and fail only the branch that met them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from coterie.environments.protocol import Grade, Observation, State, Syntax, Transition
from coterie.errors import UserError
from coterie.record.tree import TURNS, Ending, Task
from coterie.record.turn import Part, Turn, digest, in_order, make_turn
from coterie.rollout.samplers import AgentContext

CALLS = Ending("calls", truncated=True)


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a branch after a whole transition."""

    node: str
    """Id of the last turn, or of the tree's root."""
    state: State
    contexts: Mapping[str, AgentContext] = field(default_factory=dict)
    """Running prompt of each actor, which its next request is stored as a delta on."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one transition."""

    position: Position
    observations: tuple[Turn, ...]
    rewards: Mapping[tuple[str, str], float]
    """Rewards by (last of the simultaneous turns, actor), since they may depend on all of these turns."""

    @property
    def content(self) -> tuple[object, ...]:
        """Everything that a replay has to repeat."""
        state = self.position.state
        return (self.position.node, self.observations, self.rewards, state.answer, state.end)


def make_step_result(
    node: str,
    state: State,
    actions: Sequence[Turn],
    transition: Transition,
    contexts: Mapping[str, AgentContext],
    syntax: Syntax | None,
) -> StepResult:
    """Apply a transition after ``node``.

    Raises:
        TypeError, ValueError: The transition is invalid.
    """
    _check_frozen(transition.data)
    rewards = _rewards(actions, transition.rewards)
    observations = _observation_turns(node, transition.seen, syntax)
    end = _limit(state.left) if transition.end is None else transition.end
    answer = state.answer if transition.answer is None else transition.answer
    turns = (*state.turns, *observations)
    state = replace(state, turns=turns, data=transition.data, answer=answer, end=end)
    last = observations[-1].id if observations else node
    return StepResult(Position(last, state, contexts), observations, rewards)


def check_grade(grade: Grade, actors: Iterable[str]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for an invalid grade."""
    if grade.score is not None and not math.isfinite(grade.score):
        raise ValueError(f"the score is {grade.score}; use None for what can't be graded")
    for name, reward in grade.rewards.items():
        if name not in actors or not math.isfinite(reward):
            raise ValueError(f"the grade gives {name!r} {reward}")


def left_after(left: Mapping[str, int], actions: Sequence[Turn]) -> Mapping[str, int]:
    """Count actions against the limits."""
    now = dict(left)
    for turn in actions:
        for key in ("turns", f"turns:{turn.speaker.name}"):
            if key in now:
                now[key] = max(0, now[key] - 1)
        if "calls" in now:
            now["calls"] = max(0, now["calls"] - len(turn.calls))
    return MappingProxyType(now)


def environment_seed(seed: int, task: Task) -> int:
    """Return the environment's seed, which all samples and branches of a task share."""
    return int(digest("environment", seed, task.id)[:15], 16)


def _observation_turns(
    parent: str, observations: Iterable[Observation], syntax: Syntax | None
) -> tuple[Turn, ...]:
    """Chain observations as turns. Results without parts are rendered by the syntax."""
    turns: list[Turn] = []
    for one in observations:
        parts, results = one.parts, in_order(one.results)
        if results and not parts and syntax is not None and (text := syntax.show(results)):
            parts = (Part(text, source="results"),)
        try:
            turn = make_turn(parent, one.speaker, parts, results=results, author="environment")
        except UserError as error:  # invalid text: the fault of this item alone
            raise ValueError(error.what) from error
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _rewards(actions: Sequence[Turn], rewards: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Key rewards by last turn and actor. Each must be finite and for an actor who acted."""
    names = {turn.speaker.name for turn in actions}
    for name, reward in rewards.items():
        if name not in names:
            raise ValueError(f"a reward is for {name!r}, who did not act")
        if not math.isfinite(reward):
            raise ValueError(f"the reward of {name!r} is {reward}")
    return {(actions[-1].id, name): float(reward) for name, reward in rewards.items()}


def _check_frozen(data: object) -> None:
    """Refuse mutable data, which would leak changes between branches.

    Mutable objects have no hash, or the identity hash of ``object``.
    """
    kind, fix = type(data), "give a tuple or a frozen dataclass, or keep it in a session"
    try:
        hash(data)
    except TypeError as error:
        raise TypeError(f"the state's data is not frozen ({error}): {fix}") from error
    if data is None:
        return
    params = getattr(kind, "__dataclass_params__", None)
    if kind.__hash__ is object.__hash__ and not (params is not None and params.frozen):
        raise TypeError(f"the state's data is not frozen (a {kind.__name__}): {fix}")


def _limit(left: Mapping[str, int]) -> Ending | None:
    exhausted = [key for key, count in left.items() if count <= 0]
    if not exhausted:
        return None
    return CALLS if exhausted == ["calls"] else TURNS
