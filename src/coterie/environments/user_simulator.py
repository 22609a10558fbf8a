"""Simulated users: persons of an environment, who may know secrets of a task and talk to agents.

A person is a script of the environment, a model that coterie loads, or a model at an endpoint. A model gets a prompt:
a template of the environment or of the settings. A reply that quotes a secret is a leak, which is counted.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self
from unicodedata import normalize

from pydantic import model_validator

from coterie.config.settings import key
from coterie.engines.chat_model import ChatModel, ChatModelSettings, check_chat
from coterie.engines.endpoint import Utterance
from coterie.environments.protocol import Environment, Grade, State, innermost, persons_of
from coterie.environments.settings import fill_template, template_names
from coterie.errors import UserError
from coterie.record.tree import Task
from coterie.record.turn import Turn

PERSON = "person"
SCRIPT = "script"
LEAKED = 25
"""Length of a common substring of a reply and a secret, without spaces and quotation marks, that is a leak."""
PIECE = 6
"""Letters and digits in a row of a secret that count as quoted from it; half of its letters and digits are a leak."""
# What a reply may change when it quotes: indentation, quotation marks, invisible characters.
_DROPPED = re.compile(r"^[ \t>|]+|[\s\\\"'`‘’“”\u200b-\u200d\ufeff]", re.MULTILINE)
_SENTENCE = re.compile(r"[.!?](?=\s|$)")

TranscriptLine = tuple[str, str]
"""Speaker (:data:`PERSON` or the agent's name), and the text visible to the listener."""


class UserSimulatorSettings(ChatModelSettings):
    """Settings of the simulated user."""

    model: str = key(
        SCRIPT,
        "`script` of the environment, if it has one, a model that coterie loads, or, with `user_simulator.url`, the "
        "name of a model there.",
        source="SWEET-RL: Llama-3.1-70B-Instruct",
        min_length=1,
    )
    max_tokens: int = key(128, "Maximum tokens of a reply.", source="SWEET-RL: 4096", ge=1)
    max_characters: int | None = key(
        None,
        "Maximum characters of a reply; longer replies are cut at the end of a sentence. None: 1000 about pages, else "
        "400.",
        source="SWEET-RL: 400 and 1000, cut anywhere",
        ge=20,
    )
    prompt: str | None = key(
        None,
        "Prompt of the model. `{transcript}` is the dialogue so far, `{max_characters}` the setting, and `{NAME}` a "
        "public value of the task or a secret that the user may read; `{{` and `}}` are braces. The default is the "
        "environment's prompt.",
        min_length=1,
    )

    def identity(self) -> tuple[object, ...]:
        return (*super().identity(), self.max_characters, self.prompt)

    @property
    def is_script(self) -> bool:
        return self.url is None and self.model == SCRIPT

    @model_validator(mode="after")
    def _refuse_prompt_of_script(self) -> Self:
        if self.prompt is not None and self.is_script:
            raise ValueError("prompt has no effect on the script; set user_simulator=MODEL")
        return self


class UserSimulator(Protocol):
    """A simulated user that replies to an agent."""

    name: str
    """Author of its turns: ``script``, ``model:NAME`` or ``endpoint:NAME``."""

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """Return the next reply. ``transcript`` begins with the user's first message."""


def check_user(
    environment: Environment, settings: UserSimulatorSettings, tasks: Iterable[Task]
) -> None:
    """Raise ``UserError`` if persons have neither a script nor a prompt that can be filled in all tasks."""
    check_chat("user_simulator", settings, SCRIPT)
    persons = persons_of(environment)
    if persons and settings.is_script:
        check_script(environment)
    elif persons and (template := user_prompt(environment, settings)):
        visible = ("transcript", *getattr(environment, "user_values", ()))
        if not {*visible} & {*template_names(template)}:
            names = " or ".join(map("{{{}}}".format, visible))
            problem = "user_simulator.prompt does not show the dialogue"
            raise UserError(problem, f"put {names} into it")
        # Values of the dialogue are known only during the episode.
        values = dict.fromkeys((*visible, "max_characters"), "")
        for task in tasks:
            for person in persons:
                fill_prompt(template, task, person, values)


def check_script(environment: Environment) -> UserSimulator:
    """Return the script of an environment. Raise ``UserError`` if it has no script."""
    script: UserSimulator | None = getattr(environment, "script", None)
    if script is None:
        raise UserError(
            f"the environment {environment.name} needs a simulated user, because it has no script",
            "set user_simulator=MODEL (coterie loads it), or user_simulator.url=URL user_simulator.model=NAME",
        )
    return script


def user_prompt(environment: Environment, settings: UserSimulatorSettings) -> str:
    """Return the template of a person's prompt; empty if a simulator of the environment's own needs none."""
    template = settings.prompt or str(getattr(environment, "user_prompt", ""))
    if not template and not hasattr(environment, "chat_user"):
        problem = f"the environment {environment.name} has no prompt for a simulated user"
        fix = "set user_simulator.prompt='... {transcript} ...', which may name values and secrets of a task"
        raise UserError(problem, fix)
    return template


def readable_secrets(task: Task, person: str) -> dict[str, str]:
    """Return the texts of the secrets that a person may read, by name."""
    secrets = task.secrets.items()
    return {name: secret.reveal(person) for name, secret in secrets if person in secret.readers}


def fill_prompt(template: str, task: Task, person: str, more: Mapping[str, str]) -> str:
    """Fill a template with what a person knows of a task, and ``more``. Raises ``UserError`` for other names."""
    values = {**task.public, **readable_secrets(task, person), **more}

    def text(name: str) -> str:
        if name not in values:
            problem = f"the prompt of the simulated user has {{{name}}}, which {person} does not"
            fix = f"use {', '.join(map('{{{}}}'.format, values))}; write {{{{{name}}}}} for braces"
            raise UserError(f"{problem} know in task {task.id}", fix)
        value = values[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return fill_template(template, text)


class ModelUserSimulator:
    """A chat model in the role of a person, with a template as its prompt."""

    max_characters = 400

    def __init__(
        self,
        chat: ChatModel,
        settings: UserSimulatorSettings,
        environment: Environment,
        person: str = PERSON,
    ) -> None:
        self.chat, self.person, self.name = chat, person, chat.name
        self.template = user_prompt(environment, settings)
        self.max_characters = settings.max_characters or self.max_characters

    async def reply(self, task: Task, transcript: Sequence[TranscriptLine], seed: int) -> str:
        """Generate a reply, cut at a sentence. Some models repeat the label before it, which is removed."""
        prompt = await self.prompt(task, transcript)
        reply = await self.chat.ask([prompt], seed)
        text = reply.text.strip().removeprefix("You:")
        return cut_reply(text, self.max_characters, unfinished=reply.truncated)

    async def prompt(
        self, task: Task, transcript: Sequence[TranscriptLine], **more: str
    ) -> Utterance:
        lines = [
            f"{'You' if speaker == PERSON else 'Assistant'}: {text}" for speaker, text in transcript
        ]
        more |= {"max_characters": str(self.max_characters)}
        more |= {"transcript": "\n".join([*lines, "You:"])}
        return Utterance("user", fill_prompt(self.template, task, self.person, more))


def cut_reply(text: str, max_characters: int, *, unfinished: bool = False) -> str:
    """Cut a reply to at most ``max_characters`` characters, after a whole sentence or else a whole word.

    An ``unfinished`` reply, which reached the model's token limit, also loses its incomplete last sentence.
    """
    text = text.strip()
    if len(text) <= max_characters and not unfinished:
        return text
    ends = [end for match in _SENTENCE.finditer(text) if (end := match.end()) <= max_characters]
    if ends:
        return text[: ends[-1]]
    return text[: max_characters - 1].rsplit(None, 1)[0] + "…" if text else ""


def _plain(text: str) -> str:
    """Return a text without spacing, line breaks, quotation marks and case."""
    # A model may write a line break of quoted code as two characters.
    text = normalize("NFKC", text.replace("\\n", "\n"))
    return _DROPPED.sub("", text).casefold()


def quotes(reply: str, secret: str) -> bool:
    """Return True if a reply has a long part of a secret, or most of it in pieces with other text between them."""
    text, hidden = _plain(reply), _plain(secret)
    if any(text[i : i + LEAKED] in hidden for i in range(len(text) - LEAKED + 1)):
        return True
    text, hidden = (re.sub(r"[\W_]+", "", part) for part in (text, hidden))
    pieces: set[str] = set()
    start = 0
    while len(piece := text[start : start + PIECE]) == PIECE:
        if piece in hidden:
            pieces.add(piece)
        start += PIECE if piece in hidden else 1
    return sum(map(len, pieces)) >= max(LEAKED, len(hidden) / 2)


async def with_leaks(environment: Environment, state: State, grade: Grade) -> Grade:
    """Count replies that quote a secret of the person (``leaks``), and apply ``on_leak`` of the environment."""
    secrets = {
        person: [*readable_secrets(state.task, person).values()]
        for person in persons_of(environment)
    }
    if not any(secrets.values()):
        return grade

    def is_leak(turn: Turn) -> bool:
        return any(quotes(turn.text, secret) for secret in secrets.get(turn.speaker.name, ()))

    # What a person says before its simulator is asked is part of the task.
    replies = [turn for turn in state.turns if any(part.source == PERSON for part in turn.parts)]
    leaks = await asyncio.to_thread(lambda: sum(map(is_leak, replies)))
    on_leak = getattr(innermost(environment), "on_leak", "keep") if leaks else "keep"
    # A dialogue without a score (``None``) stays without one.
    score = {"keep": grade.score, "fail": grade.score and 0.0, "drop": None}[on_leak]
    return replace(grade, score=score, metrics={**grade.metrics, "leaks": leaks})
