"""Agents that talk: base of the environments, parts of prompts, and pools of message formats.

Optima (arXiv 2410.08115, section 3.1) samples a format for each dialogue, which gives selection more variety. Training
rows omit the instruction. Debates on mathematics have no pool (appendix H.3). Optima's authors generated their pool
with a stronger model, which saw the existing formats. Here a generated format is rejected if it is empty, too long,
truncated, or similar to another.
"""

import asyncio
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, StringConstraints, ValidationError
from rapidfuzz import fuzz

from coterie.config.folders import expanded
from coterie.config.resolve import wrong_at
from coterie.config.settings import Settings, key
from coterie.datasets.files import append_line, numbered, resume_lines
from coterie.engines.endpoint import Endpoint, EndpointSettings, Utterance
from coterie.environments.answers import marked_answer
from coterie.environments.protocol import (
    WELL_FORMED,
    ActorKind,
    Answers,
    Grade,
    Pure,
    State,
    Transition,
)
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.tree import LENGTH, Ending, Task
from coterie.record.turn import Message, Part, Turn, digest

NAMES = ("Alice", "Bob", "Carol")
"""In speaking order: Optima's two agents, and one for its experiments with three agents."""


def named(names: Sequence[str]) -> str:
    """Join names in a sentence: ``Bob``, or ``Bob and Carol``."""
    return " and ".join(names)


def others(agent: str, agents: Sequence[str]) -> list[str]:
    return [name for name in agents if name != agent]


LENGTH_RULE = (
    "- Keep every message short. A message that is longer than the token limit is cut off, and a cut-off answer "
    "counts as wrong.\n"
)
"""Cost of length. The rule names no number, because the limit is a setting of the sampler."""


def answer_rule(when: str, what: str, meaning: str, example: str) -> str:
    """Return the rule for the format of an answer, which ends with an example on a line of its own."""
    return (
        f"- {when} with your answer on a line of its own: {what}, marked as in this example. Nothing else is read as "
        f"your answer. If the answer is {meaning}, the line is:\n{example}"
    )


def solo_prompt(question: str, ending: str, notes: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return the prompt of an agent that has the whole problem; ``ending`` is the rule for its answer."""
    listed = tuple(Part(f"- {note}\n", source="task") for note in notes)
    rules = "Rules:\n- Think step by step, and write down the steps before the answer.\n"
    if listed:
        listed = (Part("Your notes:\n", source="task"), *listed)
        rules += "- Use only the facts in the notes.\n"
    return (
        Part("Answer the question below.\n", source="task"),
        *listed,
        Part(f"{rules}{LENGTH_RULE}{ending}\n\n", source="task"),
        Part(f"Question: {question}", source="task"),
    )


FORMAT_SOURCE = "format"
"""Source of prompt parts that request a format. :func:`drop_format` removes these parts."""
AGREED = Ending("agreed")
ANSWERED = Ending("answered")


class Talk(Answers, Pure, ABC):
    """Agents that talk in turn. Subclasses define tasks, prompts and answers."""

    name: str
    metric: str
    agents: tuple[str, ...]
    max_turns = 10
    example: str | None = None
    """Example answer in the prompt, which is not well formed as an answer."""
    formats: tuple[str, ...] = ()
    format_agents: tuple[str, ...] = ()

    @property
    def actors(self) -> Mapping[str, ActorKind]:
        return dict.fromkeys(self.agents, "agent")

    @property
    def limits(self) -> Mapping[str, int]:
        return {"turns": self.max_turns}

    @abstractmethod
    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the system prompt of an agent, without a format prompt."""

    @abstractmethod
    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        """Return the prompt of an agent that has all information and works alone."""

    def answer(self, text: str) -> str | None:
        return marked_answer(text)

    @abstractmethod
    def similarity(self, answer: str, other: str) -> float:
        """Return the metric of one answer with the other as the reference, in [0, 1]."""

    @abstractmethod
    def score(self, task: Task, answer: str | None) -> float:
        """Return the benchmark's metric for a final answer, in [0, 1]. May take seconds."""

    def well_formed(self, answer: str) -> bool:
        return answer != self.example

    def acting(self, state: State) -> tuple[str, ...]:
        return (self.agents[len(state.turns) % len(self.agents)],)

    def see(self, state: State, actor: str) -> tuple[Message, ...]:
        """Return the system prompt and the dialogue, with the actor's own turns as assistant messages."""
        parts = self.system_parts(state.task, actor)
        if state.variant is not None and actor in self.format_agents:
            parts += (Part(f"\nFormat: {state.variant}", source=FORMAT_SOURCE),)
        return (
            Message("system", parts),
            *(
                Message("assistant" if turn.speaker.name == actor else "user", turn=turn.id)
                for turn in self.prompt_turns(state, actor)
            ),
        )

    def prompt_turns(self, state: State, agent: str) -> tuple[Turn, ...]:
        return state.turns

    async def act(
        self, state: State, turns: tuple[Turn, ...], live: Any, *, recorded: tuple[Turn, ...] = ()
    ) -> Transition:
        """End when an answer equals the previous answer (agreement: Optima, section 3) or a turn is truncated."""
        turn = turns[-1]
        answer = self.answer_to(state.task, turn.text)
        if turn.truncated:
            return Transition(answer=answer, end=LENGTH)
        before = state.answer
        agreed = before is not None and before == answer
        if before is not None and answer is not None and not agreed:
            agreed = await asyncio.to_thread(self.same, before, answer)
        return Transition(answer=answer, end=AGREED if agreed else None)

    async def grade(self, state: State, live: Any) -> Grade:
        """Score the final answer, or 0 for a truncated dialogue. Comparing mathematics may take seconds."""
        answer = state.answer
        if state.end == LENGTH or answer is None:
            return Grade(0.0, {WELL_FORMED: 0.0})
        score = await asyncio.to_thread(self.score, state.task, answer)
        return Grade(score, {WELL_FORMED: float(score > 0 or self.well_formed(answer))})


def drop_format(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages without format prompts: the recontext rule of iteration 0."""
    return tuple(
        replace(m, parts=tuple(p for p in m.parts if p.source != FORMAT_SOURCE)) for m in messages
    )


MAX_LENGTH = 400
"""Maximum characters of a format, which is a short instruction in every prompt."""
ADVICE = (
    'use a JSONL file with lines such as {"index": 0, "format": "Write key = value pairs."}, or a YAML '
    "list of texts; `coterie data prompt-pool` writes one"
)


class FormatLine(BaseModel):
    """One line of a pool file. The index is for readers of the file; only the order of the lines counts."""

    index: int = 0
    format: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_LENGTH)
    ]


def read_pool(file: Path) -> tuple[str, ...]:
    """Return the formats of a file, in order. Raise ``UserError`` for a broken file or line, or a duplicate."""
    pool: dict[str, str] = {}
    for place, raw in _yaml(file) if file.suffix in (".yaml", ".yml") else numbered(file):
        try:
            one = FormatLine.model_validate({"format": raw} if isinstance(raw, str) else raw)
        except ValidationError as error:
            why = wrong_at(error.errors()[0])
            raise UserError(f"{file}, {place} is broken: {why}", ADVICE) from error
        if one.format in pool:
            raise UserError(
                f"{file}, {place} is broken: it repeats the format of {pool[one.format]}", ADVICE
            )
        pool[one.format] = place
    return tuple(pool)


def _yaml(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: dates
        raise UserError(f"the format pool {file} can't be read: {error}", ADVICE) from error
    if not isinstance(values, list) or not values:
        raise UserError(f"the format pool {file} is not a list, or is empty", ADVICE)
    return ((f"item {number}", value) for number, value in enumerate(values, 1))


EXCHANGE_FORMATS: tuple[str, ...] = (
    "Write facts with arrows, such as: Lima -> capital of -> Peru.",
    "Write key = value pairs, one to a line.",
    "Write rows of a table with | between the cells; the first row names the columns.",
    "Write JSON objects with short keys.",
    "Write like function calls: ask(x), tell(x, y), sure(y).",
    "Write a bullet list, at most six words to a bullet.",
    "Write telegrams: no articles, no filler, STOP between statements.",
    "Write triples in brackets: (subject, relation, object).",
    "Number your statements, and refer to your partner's by number.",
    "Write YAML with two levels at most.",
    "Write a tree: indent what belongs to the line above it.",
    "Abbreviate every name to its initials after its first mention.",
    "Write logic with names, AND, OR, NOT and =>.",
    "Begin each line with ? for what you need and ! for what you know.",
    "Write equations between names, and put a question mark in place of what is unknown.",
    "Write one line of tags, such as #film #1994 #director=Lee.",
    "Quote only the few words of your notes that matter, each in quotation marks.",
    "Write queries like SQL, and answer with values only.",
    "Write paths with slashes: person/born/city.",
    "Answer in one sentence of at most fifteen words.",
    "Draw a timeline: year: event; year: event.",
    "Write set notation: A = {x, y}; say what is in both sets.",
)

DEBATE_FORMATS: tuple[str, ...] = (
    "Write each step as: premise => conclusion.",
    "Write a table with the columns option | for | against.",
    "Strike out one option a line: not X, because Y.",
    "Write key: value lines with the keys fact, rule, result.",
    "Write a JSON object with the keys facts, steps and choice.",
    "Give each option a score from 0 to 5 and three words why.",
    "Write telegram style: nouns and verbs only, STOP after each step.",
    "Number the steps and refer to them by number instead of repeating them.",
    "Write pseudocode: if ... then ... else ..., one step a line.",
    "Write a chain with arrows: cause -> effect -> effect.",
    "Write a tree: the question, under it the options, under each what speaks for it.",
    "Use the signs + for supports, - for contradicts, ? for unknown, = for follows.",
    "Write a proof by cases, one line to a case.",
    "Ask yourself a short question and answer it in up to five words; three times at most.",
    "Write definitions first (X := ...), then a single line that uses them.",
    "Write YAML: given, wanted, so.",
    "Shorten every option to its first letters, and write about these.",
    "Write three bullets of up to eight words: what is asked, what decides, what follows.",
    "Write set notation: the options that fit the first clue, those that fit the second, what is in both.",
    "Write a rule and the case in one line: all A are B; this is A; so B.",
    "Write inequalities between options: A > B, because of one word.",
    "Write like function calls: known(x), rules_out(x, y), choose(z).",
)
"""For a solver of questions with options, who must show how it got there."""

FormatSetting = Literal["exchange", "debate"]
NEAR = 85.0
"""Similarity in percent (100: the same words in any order) from which two formats are duplicates."""
TRIES = 5
"""Maximum average number of replies for each new format."""
MAX_TOKENS = 200
_FRAME = re.compile(r"^(?:[-*]|\d+[.)])\s+|^[\"'`]+|[\"'`]+$")


class FormatPoolSettings(Settings):
    """Settings of the model that writes formats."""

    endpoint: EndpointSettings
    temperature: float = key(1.0, "Sampling temperature.", ge=0, le=2)


def clean(reply: str, known: Sequence[str]) -> str:
    """Return the format in a reply, on one line without list marks and quotation marks.

    Raises ``ValueError`` for a format that is empty, too long, or similar to a known one.
    """
    text = _FRAME.sub("", _FRAME.sub("", " ".join(reply.split())).strip()).strip()
    if not text:
        raise ValueError("it is empty")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_LENGTH}")
    for other in known:
        if fuzz.token_sort_ratio(text.lower(), other.lower()) >= NEAR:
            raise ValueError(f"it is too similar to {other!r}")
    return text


async def write_pool(
    endpoint: Endpoint,
    file: Path,
    count: int,
    setting: FormatSetting,
    temperature: float,
    tell: Callable[[str], None],
) -> None:
    """Add formats to a pool file, as they arrive, until it has ``count``.

    The model sees the packaged pool of the setting too, and formats similar to it are rejected. Raises ``UserError``
    for an invalid file, or a model that returns too few usable formats.
    """
    pool = list(read_pool(file)) if resume_lines(file) else []
    packaged = EXCHANGE_FORMATS if setting == "exchange" else DEBATE_FORMATS
    attempt = len(pool)
    last = attempt + TRIES * (count - len(pool))
    while len(pool) < count:
        if attempt == last:
            raise UserError(
                f"{endpoint.settings.model} wrote only {len(pool)} of {count} usable formats",
                f"they are in {file}; run the command again with another model or a higher temperature",
            )
        attempt += 1
        known = (*packaged, *pool)
        listed = "\n".join(["These are there:", *(f"- {one}" for one in known), _LAST])
        request = [Utterance("system", _TASK[setting]), Utterance("user", listed)]
        reply = await endpoint.chat(
            request, max_tokens=MAX_TOKENS, temperature=temperature, seed=attempt
        )
        try:
            if reply.finish == "length":
                raise ValueError("it is truncated")
            new = clean(reply.text, known)
        except ValueError as error:
            tell(f"rejected: {error}")
            continue
        append_line(file, FormatLine(index=len(pool), format=new).model_dump())
        pool.append(new)
        tell(f"{len(pool)} of {count}: {new}")


_TASK: dict[FormatSetting, str] = {
    "exchange": (
        "Language models solve a task together: each knows a part of the facts, and they write short messages to each "
        "other. You invent forms in which such messages can be written. A form is shorter than plain sentences, and "
        "the reader still understands it."
    ),
    "debate": (
        "A language model answers a question with options and shows its steps to another one, which looks for "
        "mistakes. You invent forms in which the steps can be written. A form is shorter than plain sentences, and "
        "still easy to check."
    ),
}
_LAST = (
    "Write one more instruction, for a form that is unlike all of these. It has one sentence, and a short example if "
    "it needs one. Do not use codes that a reader must decipher, such as Morse or binary. A reply that is cut off is "
    "lost. Reply with the instruction alone, in this form:\nWrite key = value pairs, one to a line."
)


class FormatSettings(EnvironmentSettings):
    """Settings of an environment whose prompts may request a format."""

    format_pool_file: str | None = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool. `coterie data prompt-pool` "
        "writes one. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )

    def pool(self, packaged: tuple[str, ...]) -> tuple[str, ...]:
        file = self.format_pool_file
        return packaged if file is None else tuple(read_pool(expanded(file)))

    def identity(self) -> str:
        """Return a hash of the settings and of the formats in the file, not of its path."""
        pool = hashlib.sha256("\n".join(self.pool(())).encode()).hexdigest()
        return digest(self.model_dump_json(exclude={"name", "format_pool_file"}), pool)


class TalkSettings(FormatSettings):
    """Settings of agents that discuss the questions of a data set."""

    agents: int = key(
        2,
        "Number of agents: 2, or 3 (a context is split into three; a debate has a second critic).",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int = key(10, "Maximum turns of all agents together.", source="Optima: 10", ge=1)
