"""Base of environments in which an agent makes something for a user who knows how it must be (ColBench, arXiv
2503.15478).

The user asks for it in vague words. The agent and the user alternate, until the agent marks its answer or has no turn
left. Marks divide a message of the agent: one before the answer, one after thoughts, and fences. In an answer or a
fence, marks inside strings, docstrings and comments of code are ignored.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.environments.code_blocks import MARKER, marks_in
from coterie.environments.protocol import (
    AGENT,
    ActorKind,
    Answers,
    Grade,
    Observation,
    Pure,
    State,
    Transition,
)
from coterie.environments.qa_metrics import GRADER, TEACHER
from coterie.environments.settings import PersonSettings
from coterie.environments.user_simulator import PERSON, TranscriptLine, UserSimulator
from coterie.record.tree import ANSWERED, TURNS, Ending, Secret, Task
from coterie.record.turn import Message, Part, Role, Speaker, Turn

REFERENCE = "reference"
"""Name of the secret with what the user wants."""
CRITIC = "critic"
"""Role that rates the agent's turns in training and may read the reference."""
SHOWN_REFERENCE = "\nReference:\n"


def visible(text: str) -> str:
    """Return the text after ``OUTPUT:`` (up to a second one). An answer marker before it is kept."""
    marks = list(marks_in(text, code=False))
    outputs = [mark for mark in marks if mark.kind == "output"]
    if not outputs:
        return text
    end = outputs[1].start if len(outputs) > 1 else len(text)
    result = text[outputs[0].end : end].strip()
    markers = [mark.start for mark in marks if mark.kind == "marker"]
    has_earlier = any(start < outputs[0].start for start in markers)
    has_later = any(outputs[0].end <= start < end for start in markers)
    return f"{MARKER} {result}" if has_earlier and not has_later else result


def answer_in(text: str) -> str | None:
    """Return the visible text after the answer marker, up to a second one; ``None`` without a marker."""
    visible_text = visible(text)
    markers = [mark for mark in marks_in(visible_text, code=False) if mark.kind == "marker"]
    if not markers:
        return None
    end = markers[1].start if len(markers) > 1 else len(visible_text)
    return visible_text[markers[0].end : end].strip()


class CollaborationSettings(PersonSettings):
    """Settings of an agent that works for a user."""

    turns: int = key(10, "Maximum turns of the agent.", source="ColBench: 10", ge=1)


class Collaboration(Answers, Pure, ABC):
    """Dialogue of an agent and a user. Subclasses define the tasks, the prompts and the grade."""

    name: str
    metric: str
    reward: str
    """Metric of grades by which dialogues are selected."""
    actors: Mapping[str, ActorKind] = MappingProxyType({AGENT: "agent", PERSON: "person"})
    max_turns: int
    script: UserSimulator | None = None

    def __init__(self, settings: CollaborationSettings) -> None:
        self.settings = settings
        self.max_turns, self.on_leak = settings.turns, settings.on_leak

    @abstractmethod
    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]: ...

    @abstractmethod
    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]: ...

    @abstractmethod
    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt of an agent that must answer at once: the benchmark's single-turn baseline."""

    @abstractmethod
    async def grade(self, state: State, session: Any) -> Grade: ...

    @property
    def limits(self) -> Mapping[str, int]:
        return {f"turns:{AGENT}": self.max_turns}

    def answer(self, text: str) -> str | None:
        return answer_in(text)

    def request(self, task: Task) -> str:
        return str(task.public["question"])

    async def begin(self, task: Task, session: Any) -> Transition:
        request = Part(self.request(task), source="task")
        return Transition(seen=(Observation(Speaker("person", PERSON), (request,)),))

    def next_actors(self, state: State) -> tuple[str, ...]:
        # The user opens the dialogue, then both take turns.
        return (AGENT,) if state.turns[-1].speaker.name == PERSON else (PERSON,)

    def observe(self, state: State, actor: str) -> tuple[Message, ...]:
        messages = tuple(self._message(turn, actor) for turn in state.turns)
        if actor == PERSON:
            return messages
        return (Message("system", self.system_parts(state.task, actor)), *messages)

    async def act(
        self,
        state: State,
        turns: tuple[Turn, ...],
        session: Any,
        *,
        replayed: tuple[Turn, ...] = (),
    ) -> Transition:
        """End at an answer, or at the agent's last turn, which then counts as the answer."""
        turn = turns[-1]
        if turn.speaker.name == PERSON:
            return Transition()
        answer = self.answer(turn.text)
        end: Ending | None = None if answer is None else ANSWERED
        # Without another turn, the whole visible message counts as the answer.
        if end is None and not state.left[f"turns:{AGENT}"]:
            answer, end = visible(turn.text).strip(), TURNS
        return Transition(answer=answer, end=end)

    def _message(self, turn: Turn, actor: str) -> Message:
        """Return a turn as a message. Thoughts of the agent are removed, also in its own history."""
        role: Role = "assistant" if turn.speaker.name == actor else "user"
        # A reference to the turn would show its thoughts, too, so the visible text is copied.
        if turn.speaker.name == AGENT and (seen := visible(turn.text)) != turn.text:
            return Message(role, (Part(seen, source=f"turn:{turn.id}"),))
        return Message(role, turn=turn.id)


def collaboration_task(
    id_: str, request: str, reference: str, extra_secrets: Mapping[str, Secret] | None = None
) -> Task:
    """Return a task whose reference the user, the critic, the teacher and the grader may read."""
    readers = frozenset({PERSON, CRITIC, GRADER, TEACHER})
    secrets = {REFERENCE: Secret(reference, name=REFERENCE, readers=readers)}
    return Task(id_, {"question": request}, {**secrets, **(extra_secrets or {})})


def with_reference(task: Task) -> Callable[[tuple[Message, ...]], tuple[Message, ...]]:
    """Return the recontext rule of the critic, which appends the reference to the system prompt."""
    secret = (Part(SHOWN_REFERENCE, source="task"), task.secrets[REFERENCE].part(CRITIC))

    def edit(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        system, *rest = messages
        return (replace(system, parts=(*system.parts, *secret)), *rest)

    return edit


def transcript(turns: Sequence[Turn]) -> list[TranscriptLine]:
    names = [turn.speaker.name for turn in turns]
    texts = (visible(turn.text) if turn.speaker.name == AGENT else turn.text for turn in turns)
    return list(zip(names, texts, strict=True))
