"""The protocol of environments in which agents talk in turn until they agree, and its state.

Used by ``rollout.episodes``. An environment of this kind says who speaks next, what that agent is shown,
and when the talk ends. States are frozen, so a branch of a tree is a copy of nothing.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeGuard, runtime_checkable

from coterie.datasets.catalogue import Split
from coterie.datasets.rows import QuestionRow
from coterie.environments.faults import faults_of
from coterie.environments.protocol import Grade
from coterie.environments.services import NO_SERVICES, Services
from coterie.environments.user_simulator import PERSON
from coterie.trajectories.task import Secret, Task
from coterie.trajectories.tree import LENGTH, TURNS, Ending
from coterie.trajectories.turn import Message, Part, Speaker, Turn, make_turn

FORMAT_SOURCE = "format"
"""Source of the prompt part that asks for a format; ``drop_format`` removes exactly these parts."""
GRADER = "grader"
"""The only role that may read a gold answer."""
WELL_FORMED = "well_formed"
"""The metric of a grade that says whether an answer was found in the form that was asked for, 0 or 1."""
AGREED = Ending("agreed")
ANSWERED = Ending("answered")
"""One answer, where one is enough."""


@dataclass(frozen=True, slots=True)
class DialogueState:
    """Where a dialogue stands."""

    task: Task
    format: str | None
    """Instruction of the format prompt of this episode, if it has one."""
    turns: tuple[Turn, ...] = ()
    answer: str | None = None
    """The most recent answer that anybody gave."""
    end: Ending | None = None
    """How it ended; ``None`` while it goes on."""


class DialogueEnvironment(Protocol):
    """An environment of agents who talk in turn."""

    name: str
    agents: tuple[str, ...]
    max_turns: int
    metric: str
    """What a grade's score is, in the words of a report: ``F1``, ``exact match``."""
    formats: tuple[str, ...]
    """The pool of format prompts for the first iteration; may be empty."""
    format_agents: tuple[str, ...]
    """The agents that a format prompt is shown to."""

    def tasks(self, split: Split, count: int, seed: int, drawn: Sequence[int] = ()) -> list[Task]:
        """``count`` tasks of ``train`` or ``heldout``; the splits share no task.

        ``drawn`` are the counts of the draws before this one, of which these training tasks are the
        continuation: none comes again before all have come. A data set that has fewer gives what it has.
        """
        ...

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """What an agent is told at the beginning, without a format prompt."""
        ...

    def answer(self, text: str) -> str | None:
        """The answer that an utterance gives, in one spelling; ``None`` if it gives none."""
        ...

    def same(self, first: str, second: str) -> bool:
        """Whether two answers that :meth:`answer` gave are the same one. May take seconds and is
        called from any thread.
        """
        ...

    def similarity(self, answer: str, other: str) -> float:
        """How much two answers are the same, in [0, 1]: the metric of one if the other were right."""
        ...

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """What an agent is told who holds all that the agents hold, and works alone."""
        ...


@runtime_checkable
class ScoredByAnswer(Protocol):
    """What an environment has besides if the final answer alone tells what a dialogue is worth."""

    def score(self, task: Task, answer: str | None) -> float:
        """The benchmark's metric for a final answer, in [0, 1]."""
        ...

    def well_formed(self, answer: str) -> bool:
        """Whether an answer that was found is more than a copy of what the prompt shows as an example."""
        ...


class QuestionEnvironment(DialogueEnvironment, ScoredByAnswer, Protocol):
    """An environment of agents who look for the answer to a question."""


@runtime_checkable
class WithOptions(Protocol):
    """What an environment has besides if answers name options of a task."""

    def option(self, task: Task, answer: str) -> str:
        """The option that an answer names, as the task spells it; else the answer as it is."""
        ...


@runtime_checkable
class OwnRules(Protocol):
    """What an environment has besides if its agents do not simply talk until they agree."""

    def heard(self, state: DialogueState, agent: str) -> tuple[Turn, ...]:
        """The turns that ``agent`` is shown now, in the order in which it is shown them."""
        ...

    async def settle(self, state: DialogueState, *, truncated: bool) -> DialogueState:
        """Bring answer and end up to date after the newest of ``state.turns``; ``truncated`` as in :func:`step`."""
        ...


@runtime_checkable
class WithPerson(Protocol):
    """What an environment has besides if its agent talks with a person, whose turns no policy makes."""

    def opening(self, task: Task) -> str:
        """The person's first message."""
        ...

    def visible(self, text: str) -> str:
        """What of the agent's utterance the person can read, and stays in the history."""
        ...

    async def follow(self, state: DialogueState, services: Services) -> DialogueState:
        """After the newest of ``state.turns``, which is the agent's: the end, or the person's turn too."""
        ...

    async def grade(self, state: DialogueState, services: Services) -> Grade:
        """The grade of a dialogue that has ended."""
        ...


@cache
def _is(kind: Any, protocol: Any) -> bool:
    """``issubclass`` of a protocol, which takes long enough to be felt in every turn."""
    return issubclass(kind, protocol)


def has_person(environment: Any) -> TypeGuard[WithPerson]:
    """Whether the agent of an environment talks with a person."""
    return _is(environment.__class__, WithPerson)


def _is_scored(environment: Any) -> TypeGuard[ScoredByAnswer]:
    return _is(environment.__class__, ScoredByAnswer)


def _has_options(environment: Any) -> TypeGuard[WithOptions]:
    return _is(environment.__class__, WithOptions)


def _has_rules(environment: Any) -> TypeGuard[OwnRules]:
    return _is(environment.__class__, OwnRules)


def begin(
    environment: DialogueEnvironment, task: Task, root: str, format: str | None = None
) -> DialogueState:
    """How a dialogue begins; ``root`` is that of its tree."""
    if not has_person(environment):
        return DialogueState(task, format)
    with faults_of(environment):
        said = Part(environment.opening(task), source="task")
    first = make_turn(root, Speaker("person", PERSON), [said], author="task")
    return DialogueState(task, format, (first,))


def next_agent(environment: DialogueEnvironment, state: DialogueState) -> str:
    """Whose turn it is: they speak in turn, the first agent begins."""
    return environment.agents[len(state.turns) % len(environment.agents)]


def messages(
    environment: DialogueEnvironment, state: DialogueState, agent: str
) -> tuple[Message, ...]:
    """What ``agent`` is shown now: its system prompt, then every turn (own ones as assistant).

    An environment with rules of its own (:class:`OwnRules`) says which turns.
    """
    with faults_of(environment):
        parts = environment.system_parts(state.task, agent)
        if state.format is not None and agent in environment.format_agents:
            parts += (Part(f"\nFormat: {state.format}", source=FORMAT_SOURCE),)
        heard = environment.heard(state, agent) if _has_rules(environment) else state.turns
        return (Message("system", parts), *(_shown(environment, turn, agent) for turn in heard))


def _shown(environment: DialogueEnvironment, turn: Turn, agent: str) -> Message:
    """A turn as ``agent`` is shown it; its own thoughts, if they are not to be kept, are left out."""
    if turn.speaker.name != agent:
        return Message("user", turn=turn.id)
    if has_person(environment) and (seen := environment.visible(turn.text)) != turn.text:
        return Message("assistant", (Part(seen, source=f"turn:{turn.id}"),))
    return Message("assistant", turn=turn.id)


def drop_format(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The recontext rule of iteration 0: the same messages without any format prompt."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != FORMAT_SOURCE)) for m in messages
    )


async def step(
    environment: DialogueEnvironment,
    state: DialogueState,
    turn: Turn,
    *,
    truncated: bool,
    services: Services = NO_SERVICES,
) -> DialogueState:
    """The state after ``turn``; ``truncated`` says that it ran to the limit of tokens.

    Ends when a newly given answer is the same as the one before it (Optima, section 3: both agents
    mark the same answer), when a turn was cut, or when no turns are left; or by the environment's own
    rules, if it has any (:class:`OwnRules`, :class:`WithPerson`).
    """
    now = replace(state, turns=(*state.turns, turn))
    with faults_of(environment):
        if has_person(environment):
            return await environment.follow(now, services)
        if _has_rules(environment):
            return await environment.settle(now, truncated=truncated)
        return await _talk(environment, now, truncated)


async def _talk(
    environment: DialogueEnvironment, now: DialogueState, truncated: bool
) -> DialogueState:
    """The state after the newest turn of agents who talk until they agree."""
    turn = now.turns[-1]
    answer = answer_of(environment, now.task, turn.text)
    end: Ending | None = None
    if truncated:
        end = LENGTH
    elif await _same(environment, now.answer, answer):
        end = AGREED
    elif len(now.turns) >= environment.max_turns:
        end = TURNS
    return replace(now, answer=answer or now.answer, end=end)


def answer_of(environment: DialogueEnvironment, task: Task, text: str) -> str | None:
    """The answer to a task that an utterance gives, in one spelling; ``None`` if it gives none."""
    answer = environment.answer(text)
    if answer is None or not _has_options(environment):
        return answer
    return environment.option(task, answer)


async def graded(
    environment: DialogueEnvironment, state: DialogueState, services: Services = NO_SERVICES
) -> Grade:
    """The grade of a dialogue that has ended; 0 for a truncated dialogue. Comparing mathematics may take seconds."""
    with faults_of(environment):
        if has_person(environment):
            return await environment.grade(state, services)
        answer = state.answer
        if state.end == LENGTH or answer is None:
            return Grade(0.0, {WELL_FORMED: 0.0})
        assert _is_scored(environment), "an environment without a person is graded by its answers"
        score = await asyncio.to_thread(environment.score, state.task, answer)
        return Grade(score, {WELL_FORMED: float(score > 0 or environment.well_formed(answer))})


async def _same(environment: DialogueEnvironment, before: str | None, answer: str | None) -> bool:
    if before is None or answer is None or before == answer:
        return answer is not None and before == answer
    return await asyncio.to_thread(environment.same, before, answer)


def secret_answers(row: QuestionRow, aliases: tuple[str, ...] = ()) -> dict[str, Secret]:
    """The right answer of a row and its aliases, which only a grader may read."""
    readers = frozenset({GRADER})
    answer = Secret(row.answer, name="answer", readers=readers)
    if not aliases:
        return {"answer": answer}
    text = json.dumps(aliases, ensure_ascii=False)
    return {"answer": answer, "aliases": Secret(text, name="aliases", readers=readers)}


def gold_answer(task: Task) -> str:
    """The right answer of a task, for graders and reports."""
    return task.secrets["answer"].reveal(GRADER)


def gold_answers(task: Task) -> list[str]:
    """All right answers of a task, for graders: the answer itself and its aliases."""
    aliases = task.secrets.get("aliases")
    return [gold_answer(task), *(json.loads(aliases.reveal(GRADER)) if aliases else ())]
