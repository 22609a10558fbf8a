r"""Conversations and preferences of a user's source, in the usual formats, and published sets of preferences.

| format | columns of a row |
|---|---|
| messages | ``messages``, also ``tools`` (OpenAI, Hugging Face) |
| sharegpt | ``conversations`` of ``from`` and ``value``, also ``system`` and ``tools`` |
| alpaca | ``instruction`` and ``output``, also ``input``, ``system``, ``history`` |
| prompt and completion | ``prompt`` and ``completion`` or ``response``: texts or messages |
| verl | ``prompt`` messages, and the reply in ``extra_info.answer`` or ``reward_model.ground_truth`` |
| question and answer | ``question`` and ``answer`` |
| preference | ``chosen`` and ``rejected``: texts or messages, with the prompt in ``prompt``, ``instruction`` or \
``conversations``, or as the common beginning of both sides; dialogues in one text after ``Human:`` and ``Assistant:`` |
"""

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeGuard

from pydantic import ConfigDict

from coterie.config.folders import expanded, sha256
from coterie.config.settings import key
from coterie.datasets.catalogue import PREFERENCE_SETS, DataSet, Split
from coterie.datasets.files import SUFFIXES, divided, download, numbered, source_files
from coterie.datasets.load import DatasetSettings, UserFileSet, UserFileSettings
from coterie.datasets.rows import Frozen, QuestionRow, Raw, parsed_json, question_key
from coterie.errors import UserError, did_you_mean
from coterie.record.turn import Tool, ToolCall, call_id

Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "model": "assistant", "bot": "assistant", "tool": "tool", "function": "tool",
    "observation": "tool", "function_call": "assistant", "ipython": "tool",
}  # fmt: skip
Targets = Literal["all", "last"]
"""Trained messages of a conversation: all of the assistant's messages, or the last one."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
NAMED = 5


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


Messages = tuple[ChatMessage, ...]


class Conversation(QuestionRow):
    """Conversation that ends with a message of the assistant. ``rejected`` is the worse ending of a preference."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages: Messages
    tools: tuple[Tool, ...] = ()
    rejected: Messages = ()
    start: int = 0
    """Index of the first message after the prompt of a preference."""
    place: str = ""
    """Line or row of the file, for errors."""

    @property
    def key(self) -> str:
        """Hash of all messages before the assistant's first, so that no opening is in both splits."""
        first = [one.role for one in self.messages].index("assistant")
        return _hash([[one.role, " ".join(one.content.split())] for one in self.messages[:first]])


class Preference(Conversation):
    """Prompt with a better and a worse continuation."""


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# -- messages -------------------------------------------------------------------------------------


def parse_messages(value: Any, system: Any = None) -> Messages:
    """Parse messages in the format of OpenAI or ShareGPT. ``system`` is the system message in a column of its own."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"its messages are {_kind(value)}, not a list")
    messages = [ChatMessage(role="system", content=system)] if _has_text(system) else []
    ids: list[str] = []  # ids in the file of the last message's calls
    waiting: list[int] = []  # indices of these calls that have no result yet
    for number, raw in enumerate(value, 1):
        if not isinstance(raw, Mapping):
            raise ValueError(f"message {number} is {_kind(raw)}, not an object")
        name = raw.get("role", raw.get("from"))
        role = ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise ValueError(f"message {number} has the role {name!r}")
        content = _content(raw["content"] if "content" in raw else raw.get("value"), number)
        called = raw.get("tool_calls") or raw.get("function_call") or ()
        if name == "function_call":
            called, content = parsed_json(content, f"message {number}"), ""
        calls = _calls([called] if isinstance(called, Mapping) else called, number)
        results = ""
        if role == "tool":
            at = _answered(raw.get("tool_call_id"), ids, waiting, number)
            waiting.remove(at)
            results = call_id(at)
        elif role != "system":
            ids, waiting = [one for one, _ in calls], list(range(len(calls)))
        thought = next((raw[one] for one in THOUGHTS if _has_text(raw.get(one))), "")
        own = tuple(call for _, call in calls)
        messages.append(
            ChatMessage(role=role, content=content, thought=thought, calls=own, results=results)
        )
    return tuple(messages)


def _answered(id_: Any, ids: Sequence[str], waiting: Sequence[int], number: int) -> int:
    """Return the index of the call that a result belongs to: by its id, else the next call without a result."""
    if not waiting:
        raise ValueError(f"message {number} is of a tool, and no call waits for a result")
    if id_ in (None, "") or not any(ids):
        return waiting[0]
    at = ids.index(str(id_)) if str(id_) in ids else -1
    if at not in waiting:
        waits = "which does not wait for a result"
        raise ValueError(f"message {number} answers the call {id_!r}, {waits}")
    return at


def parse_tools(value: Any) -> tuple[Tool, ...]:
    """Parse tools in OpenAI's format, plain function schemas, or JSON text of either."""
    if isinstance(value, str):
        value = parsed_json(value, "tools") if value.strip() else None
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"its tools are {_kind(value)}, not a list")
    tools = []
    for raw in value or ():
        own = raw.get("function", raw) if isinstance(raw, Mapping) else None
        own = own if isinstance(own, Mapping) else {}
        name, text, schema = map(own.get, ("name", "description", "parameters"))
        if not isinstance(name, str):
            raise ValueError("its tools are not of OpenAI's form")
        if not (isinstance(text, str | None) and isinstance(schema, Mapping | None)):
            raise ValueError(f"the tool {name!r} is not of OpenAI's form")
        schema = _without_nulls(schema) or {"type": "object", "properties": {}}
        tools.append(Tool(name, text or "", schema))
    return tuple(tools)


def flaw_of(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
    """Return why a conversation cannot be trained on, or an empty text."""
    if not tools and any(one.calls for one in messages):
        return "its assistant calls tools, and it has no tools"
    if not messages:
        return "it has no messages"
    turns = [one.role for one in messages if one.role != "system"]
    if any(one.role == "system" and before.role != "system" for before, one in pairwise(messages)):
        return "a system message follows other messages"
    if turns[:1] != ["user"]:
        return "its first message is not the user's"
    if turns[-1] != "assistant":
        return "its last message is not the assistant's"
    for number, two in enumerate(pairwise(turns), 1):
        if two == ("assistant", "assistant"):
            return f"messages {number} and {number + 1} are both the assistant's"
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
    """Return each call with its id in the file."""
    calls: list[tuple[str, ToolCall]] = []
    for at, raw in enumerate(value):
        own = raw.get("function", raw) if isinstance(raw, Mapping) else None
        if not isinstance(own, Mapping) or not isinstance(own.get("name"), str):
            raise ValueError(f"a call of message {number} has no name")
        arguments = own.get("arguments", own.get("parameters")) or {}
        if isinstance(arguments, str):
            arguments = parsed_json(arguments, f"a call of message {number}")
        else:
            arguments = _without_nulls(arguments)
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of a call of message {number} are not an object")
        id_ = "" if raw.get("id") is None else str(raw["id"])
        if id_ and id_ in [one for one, _ in calls]:
            raise ValueError(f"two calls of message {number} have the id {id_!r}")
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        calls.append((id_, ToolCall(call_id(at), own["name"], text)))
    return calls


def _without_nulls(value: Any) -> Any:
    """Drop the nulls that Parquet adds to columns of objects with different keys."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list | tuple) else value


def _has_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


# -- formats --------------------------------------------------------------------------------------

Formats = Mapping[str, tuple[str, ...]]
CONVERSATIONS: Formats = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "alpaca": ("instruction", "output"),
    "prompt and completion": ("prompt", "completion"),
    "prompt and response": ("prompt", "response"),
    "verl": ("prompt", "reward_model"),
    "question and answer": ("question", "answer"),
}
"""Columns of each format: the prompt, which is not trained, and the reply. A row has the first format that fits."""
PREFERENCES: Formats = {
    "preference with a prompt": ("prompt", "chosen", "rejected"),
    "alpaca preference": ("instruction", "chosen", "rejected"),
    "sharegpt preference": ("conversations", "chosen", "rejected"),
    "preference without a prompt": ("chosen", "rejected"),
}
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


def _prompt(row: Raw, column: str) -> Messages:
    """Return the messages of a prompt; in Alpaca's format with earlier rounds from ``history``."""
    value, before = row[column], list[dict[str, Any]]()
    if column == "instruction":
        for name in ("instruction", "input"):
            if not isinstance(row.get(name), str | None):
                raise ValueError(f"its {name} is {_kind(row[name])}, not a text")
        texts = (row.get(name) for name in ("instruction", "input"))
        value = "\n\n".join(filter(_has_text, texts))
        for pair in parsed_json(row.get("history") or (), "its history"):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise ValueError("its history is not a list of pairs")
            roles = zip(("user", "assistant"), pair, strict=True)
            before += [{"role": role, "content": text} for role, text in roles]
    if isinstance(value, str):
        value = [*before, {"role": "user", "content": value}]
    return parse_messages(value, row.get("system"))


def _reply(value: Any) -> Messages:
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str):
        value = [{"role": "assistant", "content": value}]
    if not isinstance(value, list | tuple):
        raise ValueError(f"its reply is {_kind(value)}, not a text or messages")
    return parse_messages(value)


def _verl_reply(row: Raw) -> Messages:
    columns = [row.get("extra_info"), row.get("reward_model")]
    extra, gold = (one if isinstance(one, Mapping) else {} for one in columns)
    reply = extra.get("answer") or gold.get("ground_truth")
    if not isinstance(reply, str):
        raise ValueError("neither extra_info.answer nor reward_model.ground_truth is a text")
    return _reply(reply)


def _texts(row: Raw) -> Raw:
    """Return a preference of texts without what its sides repeat, and transcripts as messages."""
    sides: list[Any]
    prompt, *sides = (row.get(name) for name in ("prompt", "chosen", "rejected"))
    if not all(isinstance(one, str) for one in sides) or not isinstance(prompt, str | None):
        return row
    is_transcript = bool(prompt) and HUMAN in f"\n\n{prompt}"
    if prompt and all(one.startswith(prompt) for one in sides):
        sides = sides if is_transcript else [one.removeprefix(prompt) for one in sides]
        prompt = None if is_transcript else prompt
    if prompt is None and all(HUMAN in f"\n\n{one}" for one in sides):
        prompt, sides = [], [_transcript(one) for one in sides]
    elif is_transcript:
        prompt = _transcript(prompt or "")
    known = {"chosen": sides[0], "rejected": sides[1]}
    return {**row, **known} if prompt is None else {**row, **known, "prompt": prompt}


def _transcript(text: str) -> list[dict[str, str]]:
    """Return the messages of a dialogue in one text (Anthropic's hh-rlhf); an empty last reply is left out."""
    messages = []
    for piece in f"\n\n{text.strip()}".split(HUMAN)[1:]:
        user, *replies = piece.split(ASSISTANT)
        messages.append({"role": "user", "content": user.strip()})
        messages += [{"role": "assistant", "content": reply.strip()} for reply in replies]
    return messages if not messages or messages[-1]["content"] else messages[:-1]


def _side(value: Any, prompt: Messages, name: str) -> Messages:
    """Return a side of a preference without its prompt, if it repeats it, with or without the system message."""
    side = _reply(value)
    for own in (prompt, prompt[bool(prompt) and prompt[0].role == "system" :]):
        texts = [[(one.role, one.content.strip()) for one in some] for some in (own, side)]
        if own and texts[1][: len(own)] == texts[0]:
            side = side[len(own) :]
            break
    if prompt and (not side or side[0].role != "assistant"):
        raise ValueError(f"its {name} does not begin with the assistant's message after the prompt")
    return side


def parse_conversation(row: Raw, name: str, place: str = "") -> Conversation:
    column, *reply = CONVERSATIONS[name]
    messages, tools, start = _prompt(row, column), parse_tools(row.get("tools")), 0
    if reply:
        start = len(messages)
        messages += _verl_reply(row) if name == "verl" else _reply(row[reply[0]])
    if flaw := flaw_of(messages, tools):
        raise ValueError(flaw)
    return Conversation(**_fields(messages, tools, start, place))


def parse_preference(row: Raw, name: str, place: str = "") -> Preference:
    row, column = _texts(row), PREFERENCES[name][0]
    prompt = () if column == "chosen" else _prompt(row, column)
    tools = parse_tools(row.get("tools"))
    chosen, rejected = (_side(row[side], prompt, side) for side in ("chosen", "rejected"))
    if not prompt:
        both = zip(chosen, rejected, strict=False)
        common = sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))
        while common and chosen[common - 1].role == "assistant":
            common -= 1
        if not common:
            raise ValueError("chosen and rejected begin with different messages")
        prompt, chosen, rejected = chosen[:common], chosen[common:], rejected[common:]
    messages = (*prompt, *chosen)
    if flaw := flaw_of(messages, tools) or flaw_of((*prompt, *rejected), tools):
        raise ValueError(flaw)
    texts = [[(one.role, one.thought, one.text) for one in side] for side in (chosen, rejected)]
    if texts[0] == texts[1]:
        raise ValueError("chosen and rejected are equal")
    return Preference(**_fields(messages, tools, len(prompt), place, rejected))


def _fields(
    messages: Messages, tools: Sequence[Tool], start: int, place: str, rejected: Messages = ()
) -> dict[str, Any]:
    """Return the fields of a row: id, the user's last message, the last reply, and the messages."""
    question = next(one.text for one in reversed(messages) if one.role == "user")
    whole = [one.model_dump(mode="json") for one in (*messages, *rejected)]
    schemas = [[one.name, one.description, one.parameters] for one in tools]
    id_ = _hash([whole, len(messages), schemas])
    own = {"messages": messages, "tools": tools, "rejected": rejected, "start": start}
    return {"id": id_, "question": question, "answer": messages[-1].text, "place": place, **own}


# -- files ----------------------------------------------------------------------------------------


class FileSettings(UserFileSettings):
    """Settings of a file or data set, and of rows that cannot be trained on."""

    source: str = key(
        "",
        "A file (JSONL, JSON, Parquet, CSV), a folder with files for each split, such as train.jsonl and "
        "heldout.jsonl, or a data set of the Hugging Face hub: OWNER/NAME, OWNER/NAME:CONFIG, OWNER/NAME:CONFIG:SPLIT.",
    )
    heldout: float = key(
        0.1, "Share of the rows that is held out where there is one split.", gt=0, lt=1
    )
    broken: Literal["refuse", "skip"] = key(
        "refuse", "Rows that cannot be trained on (empty messages, roles out of order, ...)."
    )


class Conversations(UserFileSet):
    """Conversations of a user's source."""

    settings_type = FileSettings
    kind = "sft"
    row: ClassVar[type[Conversation]] = Conversation
    formats: ClassVar[Formats] = CONVERSATIONS
    parse: ClassVar[Callable[..., Conversation]] = staticmethod(parse_conversation)
    environment = "conversation"

    def rows(self, split: Split) -> list[Conversation]:
        """Return the different rows of a split, which may repeat in several files."""
        return list({row.id: row for row in super().rows(split)}.values())

    def content(self) -> str:
        """Return a hash of the files and their split."""
        files, _ = source_files(str(self.settings.name), self.settings.source, self.kind)
        sums = [sha256(file) for some in files.values() for file in some if file.is_file()]
        return _hash([sums, self.settings.heldout, self.settings.broken])

    def read_file(self, file: Path) -> list[Conversation]:
        rows, first = dict[str, Conversation](), ""
        faults: dict[str, list[str]] = defaultdict(list)
        for place, raw in numbered(file):
            has = raw.keys() if isinstance(raw, Mapping) else set()
            name = next((one for one, some in self.formats.items() if set(some) <= has), "")
            if not name:
                known = " | ".join(" and ".join(columns) for columns in self.formats.values())
                raise UserError(
                    f"{file}, {place} is of no known form: it has {', '.join(has) or 'no columns'}",
                    f"rename its columns to {known}",
                )
            first = first or name
            try:
                if name != first:
                    raise ValueError(f"it has the form {name!r}, and the first row {first!r}")
                row = type(self).parse(raw, name, place)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                faults[str(error)].append(place)
            else:
                self.left_out["duplicates"] += row.id in rows
                rows.setdefault(row.id, row)
        self.left_out["broken"] += sum(map(len, faults.values()))
        if faults and self.settings.broken == "refuse":
            raise _refusal(file, faults)
        if not rows:
            raise UserError(f"all rows of {file} are broken", "look at one of them")
        return list(rows.values())


class Preferences(Conversations):
    """Preferences of a user's source."""

    kind = "prefs"
    row = Preference
    formats = PREFERENCES
    parse = staticmethod(parse_preference)


def _refusal(file: Path, faults: Mapping[str, Sequence[str]]) -> UserError:
    count = sum(map(len, faults.values()))
    listed = [
        f"{', '.join(places[:NAMED])}{', ...' * (len(places) > NAMED)}: {why}"
        for why, places in sorted(faults.items(), key=lambda one: -len(one[1]))[:NAMED]
    ]
    return UserError(
        f"{count} rows of {file} cannot be trained on ({'; '.join(listed)})",
        "correct them, or leave them out with dataset.broken=skip",
    )


# -- published sets of preferences ----------------------------------------------------------------

Pairs = Iterator[tuple[str, dict[str, Any]]]
"""Names of pairs, and pairs in the format ``preference with a prompt``."""


def interaction_pairs(row: Raw) -> Pairs:
    """Yield the pair of a row of UltraInteract: an interaction, and a right and a wrong next action."""
    sides = {name: row[name] for name in ("chosen", "rejected")}
    yield row["id"], {"prompt": row["trajectory"], **sides}


def feedback_pairs(row: Raw) -> Pairs:
    """Yield all pairs of replies of a row of UltraFeedback whose overall scores differ."""
    replies = enumerate(row["completions"])
    scored = [(n, one["response"], one.get("overall_score")) for n, one in replies]
    known = [one for one in scored if one[2] is not None]
    prompt = [{"role": "user", "content": row["instruction"]}]
    for two in combinations(known, 2):
        (better, chosen, high), (worse, rejected, low) = sorted(two, key=lambda one: -one[2])
        if high > low:
            name = f"{question_key(row['instruction'])}-{better}-{worse}"
            yield name, {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def published_pairs(
    data_set: DataSet, left_out: Counter[str] | None = None
) -> Iterator[Preference]:
    """Yield each distinct pair of the hub's files once. Count other rows in ``left_out`` by reason."""
    reasons, seen = Counter[str]() if left_out is None else left_out, set[str]()
    for file in preference_files(data_set):
        for place, row in numbered(file):
            try:
                pairs = list(data_set.row(row))
            except (KeyError, TypeError, AttributeError) as error:
                problem = f"{file}, {place} is broken: {type(error).__name__} {error}"
                raise UserError(problem, "download it again") from error
            reasons["no two replies with different scores"] += not pairs
            for name, raw in pairs:
                place = f"{data_set.name}/{name}"
                try:
                    pair = parse_preference(raw, "preference with a prompt", place)
                except ValueError as error:
                    reasons[str(error)] += 1
                    continue
                reasons["duplicates"] += pair.id in seen
                if pair.id not in seen:
                    seen.add(pair.id)
                    yield pair


def preference_files(data_set: DataSet) -> list[Path]:
    """Download the files of a set into the hub's cache, if they are not there."""
    (repo,) = data_set.repos
    return [download(data_set.name, repo, file) for file in repo.train]


class HeldOutSettings(DatasetSettings):
    """Settings of a published set."""

    heldout: float = key(0.1, "Share of the rows that is held out.", gt=0, lt=1)


class PublishedPreferences:
    """A published set of preferences as a data set of tasks."""

    settings_type = HeldOutSettings
    row = Preference

    def __init__(self, settings: HeldOutSettings) -> None:
        self.name, self.heldout = str(settings.name), settings.heldout
        self.left_out = Counter[str]()

    def rows(self, split: Split) -> list[Preference]:
        return self._splits[split]

    def content(self) -> str:
        return f"{MixedPreferences(self.name).content()} {self.heldout:g}"

    @cached_property
    def _splits(self) -> dict[Split, list[Preference]]:
        pairs = list(published_pairs(PREFERENCE_SETS[self.name], self.left_out))
        return divided(pairs, self.heldout, self.name)


@dataclass(frozen=True, slots=True)
class MixedPreferences:
    """Pairs of a published set (by its name) or of a file (by its path)."""

    source: str

    def __post_init__(self) -> None:
        if self.source not in PREFERENCE_SETS and not self.source.endswith(SUFFIXES):
            raise UserError(
                f"there is no set of preferences {self.source!r}",
                f"{did_you_mean(self.source, PREFERENCE_SETS)}known sets: {', '.join(PREFERENCE_SETS)} "
                f"(`coterie data list`); or give the path of a file ({', '.join(SUFFIXES)})",
            )

    @property
    def name(self) -> str:
        return Path(self.source).name

    def files(self) -> list[Path]:
        if self.source in PREFERENCE_SETS:
            return preference_files(PREFERENCE_SETS[self.source])
        file = expanded(self.source)
        if not file.is_file():
            raise UserError(f"there is no file {file}", "check the path")
        return [file]

    def pairs(self) -> Iterator[Preference]:
        if self.source in PREFERENCE_SETS:
            return published_pairs(PREFERENCE_SETS[self.source])
        rows = Preferences(FileSettings(name=self.name)).read_file(expanded(self.source))
        return (row.model_copy(update={"place": f"{self.name}, {row.place}"}) for row in rows)  # type: ignore[misc]

    def content(self) -> str:
        """Return the revision of a set, or the checksum of a file; ``missing`` if there is no file."""
        if self.source in PREFERENCE_SETS:
            (repo,) = PREFERENCE_SETS[self.source].repos
            return f"{repo.name}@{repo.revision}"
        file = expanded(self.source)
        return sha256(file) if file.is_file() else "missing"

    def draw(self, most: int, seed: str) -> list[Preference]:
        """Draw at most ``most`` pairs without replacement, in a random order.

        Reads the pairs twice, so that a large set is never in memory as a whole.
        """
        total = sum(1 for _ in self.pairs())
        places = random.Random(seed).sample(range(total), min(most, total))
        chosen = set(places)
        by_place = {place: pair for place, pair in enumerate(self.pairs()) if place in chosen}
        return [by_place[place] for place in places]
