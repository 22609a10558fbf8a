r"""Conversations and preferences of a user's file, in the formats that people have.

| format | columns of a row |
|---|---|
| messages | ``messages``, also ``tools`` (OpenAI, Hugging Face) |
| sharegpt | ``conversations`` of ``from`` and ``value``, also ``system`` and ``tools`` |
| alpaca | ``instruction`` and ``output``, also ``input``, ``system``, ``history`` |
| prompt and completion | ``prompt`` and ``completion`` or ``response``: texts or messages |
| verl | ``prompt`` messages, and the reply in ``extra_info.answer`` or ``reward_model.ground_truth`` |
| question and answer | ``question`` and ``answer`` |
| preference | ``chosen`` and ``rejected``: texts or messages, with the prompt in ``prompt``, ``instruction`` or \
``conversations``, or as what both sides begin with; dialogues in one text after ``Human:`` and ``Assistant:`` |
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from coterie.config.folders import expanded
from coterie.config.home import sha256
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.files import numbered
from coterie.datasets.load import DatasetSettings, user_splits
from coterie.datasets.rows import Frozen, QuestionRow
from coterie.errors import UserError
from coterie.trajectories.calls import Tool, ToolCall, call_id

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool", "function": "tool",
    "observation": "tool", "function_call": "assistant", "ipython": "tool",
}  # fmt: skip
"""Our name of each role that files have."""
Targets = Literal["all", "last"]
"""Trained messages of a conversation: all of the assistant's, or the last one."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message under which files keep its thought."""
NAMED = 5
"""Rows of one fault that an error names."""


class ChatMessage(Frozen):
    """A message of a conversation."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    role: Role
    content: str = ""
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: str = ""
    """For a tool's message: id of the call that it answers, ``c0``, ``c1``, ..."""

    @property
    def text(self) -> str:
        """Content and calls as one text, for comparison and display."""
        calls = [f"{call.name}({call.arguments})" for call in self.calls]
        return "\n".join(filter(None, (self.content.strip(), *calls)))


class Conversation(QuestionRow):
    """A conversation that ends with a message of the assistant; with ``rejected``, the worse way to end it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    rejected: tuple[ChatMessage, ...] = ()
    start: int = 0
    """For a preference: place of the first message after the prompt."""
    place: str = ""
    """Line or row of the file, for errors."""

    @property
    def key(self) -> str:
        """Hash of all messages before the assistant's first, so that no opening is in both splits."""
        first = [one.role for one in self.messages].index("assistant")
        return _hash([[one.role, " ".join(one.content.split())] for one in self.messages[:first]])


class Preference(Conversation):
    """A prompt with a better and a worse way to continue."""


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# -- messages -------------------------------------------------------------------------------------


def parse_messages(value: Any, system: Any = None) -> tuple[ChatMessage, ...]:
    """Return the messages of a list of OpenAI's or ShareGPT's form.

    Args:
        value: List of objects with ``role`` and ``content``, or ``from`` and ``value``.
        system: Text of a system message that the format keeps apart.

    Raises:
        ValueError: If it is not such a list.
    """
    if not isinstance(value, list | tuple):
        raise ValueError(f"its messages are {_kind(value)}, not a list")
    messages = [ChatMessage(role="system", content=system)] if _has_text(system) else []
    ids: dict[str, str] = {}
    for number, raw in enumerate(value, 1):
        if not isinstance(raw, Mapping):
            raise ValueError(f"message {number} is {_kind(raw)}, not an object")
        name = raw.get("role", raw.get("from"))
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise ValueError(f"message {number} has the role {name!r}")
        content = _content(raw["content"] if "content" in raw else raw.get("value"), number)
        if name == "function_call":
            called: Any = _json(content, f"message {number}")
            calls = _calls(called if isinstance(called, list) else [called], number)
            content = ""
        else:
            calls = _calls(raw.get("tool_calls") or (), number)
        if calls:
            ids, answered = {}, 0
            for at, (given, _) in enumerate(calls):
                ids[given or f"#{at}"] = call_id(at)
        thought = next((raw[one] for one in THOUGHTS if _has_text(raw.get(one))), "")
        results = ""
        if role == "tool":
            if not ids:
                raise ValueError(f"message {number} is of a tool, and no call comes before it")
            results = ids.get(raw.get("tool_call_id") or "", "") or call_id(answered)
            answered += 1
        messages.append(
            ChatMessage(
                role=role,
                content=content,
                thought=thought,
                calls=tuple(one for _, one in calls),
                results=results,
            )
        )
    return tuple(messages)


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Return tools of OpenAI's form, plain function schemas, or JSON text of either."""
    if isinstance(value, str):
        value = _json(value, "tools") if value.strip() else None
    tools = []
    for raw in value or ():
        own = raw.get("function", raw) if isinstance(raw, Mapping) else None
        if not isinstance(own, Mapping) or not isinstance(own.get("name"), str):
            raise ValueError("its tools are not of OpenAI's form")
        schema = _without_nulls(own.get("parameters")) or {"type": "object", "properties": {}}
        tools.append(Tool(own["name"], own.get("description") or "", schema))
    return tuple(tools)


def flaw_of(messages: Sequence[ChatMessage]) -> str:
    """Return why a conversation cannot be trained on; empty if it can be."""
    if not messages:
        return "it has no messages"
    turns = [one.role for one in messages if one.role != "system"]
    if any(one.role == "system" and before.role != "system" for before, one in pairwise(messages)):
        return "a system message follows other messages"
    if turns[:1] != ["user"]:
        return "its first message is not the user's"
    if turns[-1] != "assistant":
        return "its last message is not the assistant's"
    for number, (before, one) in enumerate(zip(("", *turns), turns, strict=False), 1):
        if before == one == "assistant":
            return f"messages {number - 1} and {number} are both the assistant's"
    for number, message in enumerate(messages, 1):
        if not message.content.strip() and not message.calls and message.role != "tool":
            return f"message {number} ({message.role}) is empty"
    return ""


def _content(value: Any, number: int) -> str:
    if isinstance(value, list | tuple):
        kinds = {part.get("type") if isinstance(part, Mapping) else None for part in value}
        if kinds - {"text"}:
            raise ValueError(f"message {number} has a part that is not text")
        return "".join(part["text"] for part in value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"the content of message {number} is {_kind(value)}, not a text")
    return value or ""


def _calls(value: Iterable[Any], number: int) -> list[tuple[str, ToolCall]]:
    """Return each call with the id that the file gives it."""
    calls = []
    for at, raw in enumerate(value):
        own = raw.get("function") or raw if isinstance(raw, Mapping) else {}
        name, arguments = own.get("name"), own.get("arguments", own.get("parameters"))
        if not isinstance(name, str):
            raise ValueError(f"a call of message {number} has no name")
        if isinstance(arguments, str):
            arguments = _json(arguments, f"a call of message {number}") if arguments else {}
        text = json.dumps(_without_nulls(arguments) or {}, ensure_ascii=False)
        calls.append((str(raw.get("id") or ""), ToolCall(call_id(at), name, text)))
    return calls


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{what} is not JSON ({error})") from error


def _without_nulls(value: Any) -> Any:
    """Drop the nulls that Parquet puts into columns of objects with different keys."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list | tuple) else value


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


# -- formats --------------------------------------------------------------------------------------

Raw = Mapping[str, Any]
Messages = tuple[ChatMessage, ...]


def _said(role: str, text: Any) -> Messages:
    return parse_messages([{"role": role, "content": text}])


def _prompt(value: Any) -> Messages:
    return _said("user", value) if isinstance(value, str) else parse_messages(value)


def _reply(value: Any) -> Messages:
    if isinstance(value, Mapping):
        value = [value]
    return _said("assistant", value) if isinstance(value, str) else parse_messages(value)


def _instruction(row: Raw) -> Messages:
    """Return the prompt of Alpaca's form; earlier rounds are in ``history``."""
    text = "\n\n".join(row[name] for name in ("instruction", "input") if _has_text(row.get(name)))
    rounds = [
        said
        for pair in row.get("history") or ()
        for said in zip(("user", "assistant"), pair, strict=False)
    ]
    messages = [{"role": role, "content": said} for role, said in (*rounds, ("user", text))]
    return parse_messages(messages, row.get("system"))


def _verl_reply(row: Raw) -> Messages:
    extra, gold = row.get("extra_info") or {}, row.get("reward_model") or {}
    reply = extra.get("answer") or gold.get("ground_truth")
    if not isinstance(reply, str):
        raise ValueError("neither extra_info.answer nor reward_model.ground_truth is a text")
    return _said("assistant", reply)


Parse = Callable[[Raw], Messages]
CONVERSATIONS: dict[str, tuple[tuple[str, ...], Parse]] = {
    "messages": (("messages",), lambda row: parse_messages(row["messages"])),
    "sharegpt": (
        ("conversations",),
        lambda row: parse_messages(row["conversations"], row.get("system")),
    ),
    "alpaca": (
        ("instruction", "output"),
        lambda row: _instruction(row) + _said("assistant", row["output"]),
    ),
    "prompt and completion": (
        ("prompt", "completion"),
        lambda row: _prompt(row["prompt"]) + _reply(row["completion"]),
    ),
    "prompt and response": (
        ("prompt", "response"),
        lambda row: _prompt(row["prompt"]) + _reply(row["response"]),
    ),
    "verl": (("prompt", "reward_model"), lambda row: _prompt(row["prompt"]) + _verl_reply(row)),
    "question and answer": (
        ("question", "answer"),
        lambda row: _prompt(row["question"]) + _reply(row["answer"]),
    ),
}
"""Columns that a format has, and how a row of it is read. The first format that a row has the columns of is its."""
PREFERENCES: dict[str, tuple[tuple[str, ...], Parse]] = {
    "preference with a prompt": (
        ("prompt", "chosen", "rejected"),
        lambda row: _prompt(row["prompt"]),
    ),
    "alpaca preference": (("instruction", "chosen", "rejected"), _instruction),
    "sharegpt preference": (
        ("conversations", "chosen", "rejected"),
        lambda row: parse_messages(row["conversations"], row.get("system")),
    ),
    "preference without a prompt": (("chosen", "rejected"), lambda row: ()),
}
"""The same for preferences; a format's function reads the prompt."""
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


def _side(value: Any, prompt: Messages) -> Messages:
    """Return a side of a preference without its prompt, if it repeats it."""
    if isinstance(value, str) and not prompt and HUMAN in f"\n\n{value}":
        return _transcript(value)
    side = _reply(value)
    own = [(one.role, one.content.strip()) for one in prompt]
    same = [(one.role, one.content.strip()) for one in side[: len(own)]] == own
    return side[len(own) :] if own and same else side


def _common(one: Messages, other: Messages) -> int:
    """Return how many messages two conversations begin with in common."""
    shared = takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False))
    return sum(1 for _ in shared)


def _transcript(text: str) -> Messages:
    """Return the messages of a dialogue in one text (Anthropic's hh-rlhf)."""
    messages: list[ChatMessage] = []
    for piece in f"\n\n{text.strip()}".split(HUMAN)[1:]:
        asked, *replies = piece.split(ASSISTANT)
        messages += _said("user", asked.strip())
        messages += [one for reply in replies for one in _said("assistant", reply.strip())]
    return tuple(messages)


def format_of(row: Any, formats: Mapping[str, tuple[tuple[str, ...], Parse]]) -> str:
    """Return the name of a row's format; empty if it has none of these."""
    if not isinstance(row, Mapping):
        return ""
    return next((one for one, (columns, _) in formats.items() if set(columns) <= row.keys()), "")


def parse_conversation(row: Raw, name: str, place: str = "") -> Conversation:
    """Return the conversation of a row of a format. Raises ``ValueError`` for a row that cannot be trained on."""
    messages, tools = CONVERSATIONS[name][1](row), parse_tools(row.get("tools"))
    if flaw := flaw_of(messages):
        raise ValueError(flaw)
    return Conversation(**_question(messages), messages=messages, tools=tools, place=place)


def parse_preference(row: Raw, name: str, place: str = "") -> Preference:
    """Return the preference of a row of a format. Raises ``ValueError`` for a row that cannot be trained on."""
    prompt, tools = PREFERENCES[name][1](row), parse_tools(row.get("tools"))
    chosen, rejected = (_side(row[side], prompt) for side in ("chosen", "rejected"))
    if not prompt:
        common = _common(chosen, rejected)
        while common and chosen[common - 1].role == "assistant":
            common -= 1
        prompt, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
    if flaw := next(filter(None, (flaw_of((*prompt, *side)) for side in (chosen, rejected))), ""):
        raise ValueError(flaw)
    if chosen == rejected:
        raise ValueError("chosen and rejected are equal")
    messages = (*prompt, *chosen)
    return Preference(
        **_question(messages),
        messages=messages,
        tools=tools,
        rejected=rejected,
        start=len(prompt),
        place=place,
    )


def _question(messages: Messages) -> dict[str, Any]:
    """Return what rows of all data sets have: an id, the user's last message, and the last reply."""
    asked = next(one.text for one in reversed(messages) if one.role == "user")
    whole = [[one.role, one.thought, one.text] for one in messages]
    return {"id": _hash(whole), "question": asked, "answer": messages[-1].text}


# -- files ----------------------------------------------------------------------------------------


class FileSettings(DatasetSettings):
    """Which file, and what becomes of rows that cannot be trained on."""

    source: str = key(
        "",
        "A file (JSONL, JSON, Parquet, CSV), or a folder with one for each split, such as train.jsonl and "
        "heldout.jsonl. It must be given.",
    )
    heldout: float = key(0.1, "Of one file: share of the rows that is held out.", gt=0, lt=1)
    broken: Literal["refuse", "skip"] = key(
        "refuse", "Rows that cannot be trained on (empty messages, roles out of order, ...)."
    )


class Conversations:
    """Conversations of a file."""

    settings_type = FileSettings
    row: ClassVar[type[Conversation]] = Conversation
    formats: ClassVar[Mapping[str, tuple[tuple[str, ...], Parse]]] = CONVERSATIONS
    parse: ClassVar[Callable[..., Conversation]] = staticmethod(parse_conversation)
    environment = "conversation"

    def __init__(self, settings: FileSettings) -> None:
        self.settings = settings
        self.skipped: dict[str, list[str]] = {}
        """Places of skipped rows, by reason."""

    def rows(self, split: Split) -> list[Conversation]:
        """Return the rows of a split. Raises ``UserError`` for rows that cannot be trained on."""
        return self._splits[split]

    def content(self) -> str:
        """Return a hash of the files and of how they are divided."""
        path = expanded(self.settings.source)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        sums = [sha256(file) for file in files if file.is_file()]
        return _hash([sums, self.settings.heldout, self.settings.broken])

    @cached_property
    def _splits(self) -> Mapping[Split, list[Conversation]]:
        name = str(self.settings.name)
        return user_splits(name, self.settings.source, self._read, self.settings.heldout)

    def _read(self, file: Path) -> list[Conversation]:
        rows, first = dict[str, Conversation](), ""
        faults: dict[str, list[str]] = defaultdict(list)
        for place, raw in numbered(file):
            name = format_of(raw, self.formats)
            if not name:
                raise self._unknown(f"{file}, {place}", raw)
            first = first or name
            try:
                if name != first:
                    raise ValueError(f"it has the form {name!r}, and the first row {first!r}")
                row = type(self).parse(raw, name, place)
            except (ValueError, KeyError, TypeError) as error:
                faults[str(error)].append(place)
            else:
                rows.setdefault(f"{row.id} {_hash([one.text for one in row.rejected])}", row)
        self.skipped |= faults
        if faults and self.settings.broken == "refuse":
            raise _refusal(file, faults)
        if not rows:
            raise UserError(f"all rows of {file} are broken", "look at one of them")
        return list(rows.values())

    def _unknown(self, where: str, raw: Any) -> UserError:
        has = f"it has {', '.join(map(str, raw))}" if isinstance(raw, Mapping) else _kind(raw)
        known = " | ".join(" and ".join(columns) for columns, _ in self.formats.values())
        return UserError(f"{where} is of no known form: {has}", f"rename its columns to {known}")


class Preferences(Conversations):
    """Preferences of a file."""

    row: ClassVar[type[Conversation]] = Preference
    formats: ClassVar[Mapping[str, tuple[tuple[str, ...], Parse]]] = PREFERENCES
    parse: ClassVar[Callable[..., Conversation]] = staticmethod(parse_preference)


def _refusal(file: Path, faults: Mapping[str, Sequence[str]]) -> UserError:
    """Return the error that names rows of each fault."""
    count = sum(map(len, faults.values()))
    listed = [
        f"{', '.join(places[:NAMED])}{', ...' * (len(places) > NAMED)}: {why}"
        for why, places in sorted(faults.items(), key=lambda one: -len(one[1]))[:NAMED]
    ]
    return UserError(
        f"{count} rows of {file} cannot be trained on ({'; '.join(listed)})",
        "correct them, or leave them out with dataset.broken=skip",
    )
