"""What an environment did, checked and turned into the record: turns, limits, a state that nobody can change."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from coterie.environments.protocol import Grade, Observation, State, Syntax, Transition
from coterie.errors import UserError
from coterie.rollout.samplers import AgentContext
from coterie.trajectories.calls import in_order
from coterie.trajectories.task import Task
from coterie.trajectories.tree import TURNS, Ending
from coterie.trajectories.turn import Part, Turn, digest, make_turn

CALLS = Ending("calls", truncated=True)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a branch stands after a whole transition."""

    node: str
    """The last turn's id, or the tree's root."""
    state: State
    contexts: Mapping[str, AgentContext] = field(default_factory=dict)
    """By actor: what it has seen and said, for storing its next request as a delta."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a transition leads, what the environment says on the way, and what it gives for the turns before."""

    position: Position
    seen: tuple[Turn, ...]
    rewards: Mapping[tuple[str, str], float]
    """By the last of the turns taken, and by actor: what others did at the same time counts."""

    def same(self, other: "Arrival") -> bool:
        here, there = self.position.state, other.position.state
        said = (self.position.node, self.seen, self.rewards, here.answer, here.end)
        return said == (
            *(other.position.node, other.seen, other.rewards),
            *(there.answer, there.end),
        )


def arrive(
    node: str,
    now: State,
    taken: Sequence[Turn],
    found: Transition,
    contexts: Mapping[str, AgentContext],
    syntax: Syntax | None,
) -> Arrival:
    """What comes of a transition after ``node``. Raises ``TypeError`` or ``ValueError`` for one that can't be."""
    _check_frozen(found.data)
    rewards = _rewards(taken, found.rewards)
    seen = _observed(node, found.seen, syntax)
    end = _limit(now.left) if found.end is None else found.end
    answer = now.answer if found.answer is None else found.answer
    state = replace(now, turns=(*now.turns, *seen), data=found.data, answer=answer, end=end)
    return Arrival(Position(seen[-1].id if seen else node, state, contexts), seen, rewards)


def check_grade(grade: Grade, actors: Iterable[str]) -> None:
    """Raises ``TypeError`` or ``ValueError`` for a grade that can't be."""
    if grade.score is not None and not _finite("score", grade.score):
        raise ValueError(f"the score is {grade.score}; what can't be graded has None")
    for name, reward in grade.rewards.items():
        if name not in actors or not _finite(f"reward of {name}", reward):
            raise ValueError(f"the grade gives {name!r} {reward}")


def _finite(name: str, value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]  # what a plug-in gave
    except TypeError:
        raise TypeError(f"the {name} is {value!r:.80}, which is not a number") from None


def left_after(left: Mapping[str, int], taken: Sequence[Turn]) -> Mapping[str, int]:
    now = dict(left)
    for turn in taken:
        for key in ("turns", f"turns:{turn.speaker.name}"):
            if key in now:
                now[key] = max(0, now[key] - 1)
        if "calls" in now:
            now["calls"] = max(0, now["calls"] - len(turn.calls))
    return MappingProxyType(now)


def environment_seed(seed: int, task: Task) -> int:
    """The environment's seed: of the run and the task, whatever the sample and the branch."""
    return int(digest("environment", seed, task.id)[:15], 16)


def _observed(parent: str, seen: Iterable[Observation], syntax: Syntax | None) -> tuple[Turn, ...]:
    """What the environment says, as turns. Their results are shown as the syntax shows them."""
    turns: list[Turn] = []
    for one in seen:
        parts, results = one.parts, in_order(one.results)
        if results and not parts and syntax is not None and (text := syntax.show(results)):
            parts = (Part(text, source="results"),)
        try:
            turn = make_turn(parent, one.speaker, parts, results=results, author="environment")
        except UserError as error:  # of this item alone: the environment said what is not text
            raise ValueError(error.what) from error
        turns.append(turn)
        parent = turn.id
    return tuple(turns)


def _rewards(taken: Sequence[Turn], given: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Rewards by last turn and actor; none may be for somebody who did not act, or be no number."""
    names = {turn.speaker.name for turn in taken}
    for name, reward in given.items():
        if name not in names:
            raise ValueError(f"a reward is for {name!r}, who did not act")
        if not math.isfinite(reward):
            raise ValueError(f"the reward of {name!r} is {reward}")
    return {(taken[-1].id, name): float(reward) for name, reward in given.items()}


def _check_frozen(data: object) -> None:
    """Refuse data that can be changed: a branch would change others.

    Found out by its hash: what can be changed has none, or has an object's own.
    """
    kind, do = type(data), "give a tuple or a frozen dataclass, or keep it in a session"
    try:
        hash(data)
    except TypeError as error:
        raise TypeError(f"the state's data is not frozen ({error}): {do}") from error
    if data is None:
        return
    params = getattr(kind, "__dataclass_params__", None)
    if kind.__hash__ is object.__hash__ and not (params is not None and params.frozen):
        raise TypeError(f"the state's data is not frozen (a {kind.__name__}): {do}")


def _limit(left: Mapping[str, int]) -> Ending | None:
    met = [key for key, count in left.items() if count <= 0]
    if not met:
        return None
    return CALLS if met == ["calls"] else TURNS
