"""Base of environments in which an agent acts step by step, and DensePolicy's format of messages.

    Thought: The price is per pen.          Thought: All are counted.
    Action:                                 Answer: 42
    print(3 * 14)
    End Action

A message is one step: an action or an answer. A message with neither or both does nothing, but costs a step. Of
several actions or answers only the first counts. Text after ``End Action`` is ignored. Replies explain these problems.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from coterie.config.settings import key
from coterie.environments.protocol import AGENT, Observation, OneAgent, State, Syntax, Transition
from coterie.environments.settings import EnvironmentSettings
from coterie.record.tree import Ending, Task
from coterie.record.turn import Message, Part, Speaker, Tool, Turn

ACTION, END_ACTION, ANSWER = "Action:", "End Action", "Answer:"
BOTH = (
    f"You gave an action and an answer in one message. Give one of them: `{ACTION}` or `{ANSWER}`."
)
NEITHER = f"There is no action and no answer in your message. Write `{ACTION}` or `{ANSWER}`."
NOT_ENDED = (
    f"Your action does not end, so it was not carried out. End it with a line `{END_ACTION}`."
)
EMPTY_ACTION = f"Your action is empty. Write it between `{ACTION}` and `{END_ACTION}`."
EMPTY_ANSWER = f"Your answer is empty. Write it after `{ANSWER}`."
CUT = "Your message was too long and was cut off, so nothing was done. Be shorter."
FIRST_ACTION = "You gave several actions in one message. Only the first was carried out."
FIRST_ANSWER = "You gave several answers in one message. Only the first counts."

# A mark counts only at the beginning of a line, so that prose may mention it.
_MARK = re.compile(rf"^[ \t]*({ACTION}|{ANSWER})[ \t]*", re.MULTILINE)
_END = re.compile(rf"^[ \t]*{END_ACTION}[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Move:
    """A parsed message."""

    kind: Literal["action", "answer", "nothing"]
    content: str = ""
    """The lines of the action, or the stripped answer."""
    note: str = ""
    """Note for the agent: the reason why nothing was done, or the ignored text."""


@dataclass(frozen=True, slots=True)
class Form:
    """A message format: instructions and parser."""

    instructions: str
    """Instructions for agents that act and answer."""
    action_instructions: str
    """Instructions for agents that only act."""
    read: Callable[[str], Move]
    """Parser of a message that is not truncated."""
    acts: bool = True


def read(text: str) -> Move:
    actions, answers, has_end = _split(text)
    if actions and answers:
        return Move("nothing", note=BOTH)
    if actions and not has_end:
        return Move("nothing", note=NOT_ENDED)
    if actions:
        note = FIRST_ACTION * (len(actions) > 1)
        return filled("action", actions[0].strip("\n").rstrip(), note, EMPTY_ACTION)
    if answers:
        note = FIRST_ANSWER * (len(answers) > 1)
        return filled("answer", answers[0].strip(), note, EMPTY_ANSWER)
    return Move("nothing", note=NEITHER)


def filled(kind: Literal["action", "answer"], content: str, note: str, empty: str) -> Move:
    """Return the move, or nothing with the note ``empty`` if it has no content."""
    return Move(kind, content, note) if content.strip() else Move("nothing", note=empty)


def _split(text: str) -> tuple[list[str], list[str], bool]:
    """Return all actions and answers, and True if the first action has an end mark.

    Other marks within an action belong to the action.
    """
    actions, answers, first_has_end, position = list[str](), list[str](), False, 0
    while mark := _MARK.search(text, position):
        if mark[1] == ACTION:
            end = _END.search(text, mark.end())
            first_has_end = first_has_end or (not actions and end is not None)
            # Without an end mark, the rest of the message is the action.
            actions.append(text[mark.end() : end.start() if end else len(text)])
            position = end.end() if end else len(text)
        else:
            end_mark = _MARK.search(text, mark.end())
            answers.append(text[mark.end() : end_mark.start() if end_mark else len(text)])
            position = end_mark.start() if end_mark else len(text)
    return actions, answers, first_has_end


def write_action(action: str, thought: str = "") -> str:
    return f"{_thought(thought)}{ACTION}\n{action}\n{END_ACTION}"


def write_answer(answer: str, thought: str = "") -> str:
    return f"{_thought(thought)}{ANSWER} {answer}"


def _thought(thought: str) -> str:
    return f"Thought: {thought}\n" if thought else ""


CODE_ACT = Form(
    "You may begin with a thought. Then do one thing: act, or answer.\n"
    f"To act, write:\n{ACTION}\n<what you do>\n{END_ACTION}\n"
    f"To answer, write:\n{ANSWER} <your answer>",
    f"You may begin with a thought. Then write one action:\n{ACTION}\n<action>\n{END_ACTION}",
    read,
)
"""Format of DensePolicy's agent."""

ENVIRONMENT = Speaker("environment", "environment")
SOLVED = Ending("solved")
NO_ANSWERS = "Nothing is to be answered here: act until the task is done."
SHOTS = "shots"
"""Source of example messages. :func:`drop_shots` removes these messages."""


class ActingSettings(EnvironmentSettings):
    """Settings of an environment in which one agent acts."""

    steps: int = key(30, "Maximum messages of the agent.", ge=1)


class Acting(OneAgent, ABC):
    """Base class for one acting agent, with one session for each branch."""

    name: str
    metric = "success"
    version = "1"
    needs: tuple[type, ...] = ()
    pure = False
    max_sessions = 64
    syntax: Syntax | None = None
    form: Form = CODE_ACT
    has_answers = True

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.limits: Mapping[str, int] = MappingProxyType({"turns": steps})

    @abstractmethod
    def system_prompt(self, task: Task) -> str:
        """Return the system prompt: possible actions and the message format."""

    @abstractmethod
    async def do(self, state: State, action: str, session: Any) -> Transition: ...

    async def on_answer(self, state: State, answer: str) -> Transition:
        """Return the transition after an answer; by default only actions count."""
        return Transition(state.data, observation(NO_ANSWERS))

    def shots(self, task: Task) -> Sequence[Message]:
        return ()

    def commands(self, task: Task) -> Sequence[str]:
        """Return the forms of all actions, such as ``take {} from {}``, for programs (``code_as_policy``)."""
        return ()

    def tools(self, state: State, actor: str) -> tuple[Tool, ...]:
        return ()

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        system = Message("system", (Part(self.system_prompt(state.task), source="task"),))
        return (system, *self.shots(state.task), *map(_message, state.turns))

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        turn = turns[-1]
        # A message that was cut off may hold half an action, so nothing of it is carried out.
        move = Move("nothing", note=CUT) if turn.truncated else self.form.read(turn.text)
        if move.kind == "nothing":
            return Transition(state.data, observation(move.note))
        acts = move.kind == "action"
        done = (
            self.do(state, move.content, session) if acts else self.on_answer(state, move.content)
        )
        transition = await done
        # A note on ignored text is appended to what the agent sees anyway.
        if not move.note or not transition.seen:
            return transition
        first_observation, *rest = transition.seen
        parts = (*first_observation.parts, Part(f"\n{move.note}", source="environment"))
        return replace(transition, seen=(replace(first_observation, parts=parts), *rest))


def observation(text: str) -> tuple[Observation, ...]:
    return (Observation(ENVIRONMENT, (Part(text, source="environment"),)),)


def drop_shots(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without example messages, as a recontext rule."""
    return tuple(m for m in messages if all(part.source != SHOTS for part in m.parts) or m.turn)


def _message(turn: Turn) -> Message:
    return Message("assistant" if turn.speaker.name == AGENT else "user", turn=turn.id)
