"""Conversations and preferences of a user's source, in the formats of docs/recipes/sft.md."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product, takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict

from coterie.config.folders import read_json
from coterie.datasets.columns import Columns, check_media, check_training_keys, is_empty, peek
from coterie.datasets.files import is_chat, numbered
from coterie.datasets.messages import Messages, flaw_of, has_text, parse_messages, parse_tools
from coterie.datasets.problems import usual_name
from coterie.datasets.question_files import (
    QUESTIONS,
    ColumnNames,
    UserFileSet,
    has_options,
    hash_json,
    read_prompt,
    system_of,
)
from coterie.datasets.rows import QuestionRow, Raw, first_of, kind_of, parsed_json
from coterie.errors import UserError
from coterie.record.rows import Row
from coterie.record.turn import Tool

Targets = Literal["all", "last"]
"""Trained messages of a conversation: all of the assistant's messages, or the last one."""


class Conversation(QuestionRow):
    """Conversation that ends with a message of the assistant. ``rejected`` is the worse ending of a preference."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    messages: Messages
    tools: tuple[Tool, ...] = ()
    rejected: Messages = ()
    start: int = 0
    """Index of the first message after the prompt of a preference."""
    origin: str = ""
    """Line or row of the file."""
    recorded: tuple[tuple[Row, ...], ...] = ()
    """Rows of each side whose tokens were sampled in a run; they are trained instead of the messages."""

    @property
    def key(self) -> str:
        """Hash of all messages before the last one."""
        # The question of a preference is its prompt; of a conversation, all but its last message.
        return _hash_texts(self.messages[: self.start or -1])

    @property
    def split_group(self) -> str:
        """Hash of all messages before the assistant's first, so that openings are in one split if possible."""
        roles = [message.role for message in self.messages]
        return _hash_texts(self.messages[: roles.index("assistant")])


class Preference(Conversation):
    """Prompt with a better and a worse continuation."""


C = TypeVar("C", bound=Conversation)


def _hash_texts(messages: Messages) -> str:
    # White space is collapsed, so that copies with other line breaks count as the same text.
    return hash_json([[message.role, " ".join(message.text.split())] for message in messages])


# -- formats --------------------------------------------------------------------------------------

CHATS = ("messages", "conversations", "conversation")
PROMPTS = ("instruction", "prompt", "question", "query", "problem")
REPLIES = ("output", "completion", "response", "solution")
OPTIONS, VERL = ("a question", "its options"), ("prompt", "reward_model")
CONVERSATIONS: tuple[ColumnNames, ...] = (
    *((column,) for column in CHATS),
    *product(PROMPTS, REPLIES),
    VERL,
    # Options come before a plain `answer`, which is then often only a letter or an index.
    OPTIONS,
    *((prompt, "answer") for prompt in PROMPTS),
)
"""Columns of each format: the prompt, which is not trained, and the reply. A row has the first format that fits."""
PREFERENCES: tuple[ColumnNames, ...] = (
    *((prompt, "chosen", "rejected") for prompt in (*PROMPTS, *CHATS)),
    ("chosen", "rejected"),
)
SIDES = {
    "chosen_response": "chosen", "rejected_response": "rejected",
    "preferred_output": "chosen", "non_preferred_output": "rejected",
}  # fmt: skip
"""Other names of the sides: axolotl's and OpenAI's."""
JSON_COLUMNS = {name for form in (*CONVERSATIONS, *PREFERENCES) for name in form}
"""Columns that may hold messages as JSON text."""
HUMAN, ASSISTANT = "\n\nHuman:", "\n\nAssistant:"


def _prompt(row: Raw, column: str) -> Messages:
    """Return the messages of a prompt, with earlier rounds from ``history``."""
    value = row[column]
    # A prompt in messages already contains its earlier rounds, so only texts have a history.
    if not isinstance(value, str) or column in CHATS:
        return parse_messages(value, system_of(row))
    prompt, rounds = read_prompt(row, value, column, None), list[dict[str, Any]]()
    # LLaMA-Factory and ms-swift store each earlier round as a pair of the user's text and the
    # reply.
    for pair in parsed_json(row.get("history") or (), "its history"):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ValueError("its history is not a list of pairs")
        roles = zip(("user", "assistant"), pair, strict=True)
        rounds += [{"role": role, "content": text} for role, text in roles]
    return parse_messages([*rounds, {"role": "user", "content": prompt.text}], prompt.system)


def _reply(value: Any) -> Messages:
    # Replies may be numbers in a table, such as the label of a class.
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        value = {"role": "assistant", "content": str(value)}
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError(f"its reply is {kind_of(value)}, not a text or messages")
    return parse_messages(value)


def _verl_reply(row: Raw) -> Messages:
    # A worked solution is preferred to the ground truth, which is often only a number.
    names = ("extra_info.answer", "reward_model.ground_truth")
    reply = next(filter(None, [first_of(row, (name,)) for name in names]), None)
    if not isinstance(reply, str):
        raise ValueError(f"neither {' nor '.join(names)} is a text")
    return _reply(reply)


def repeated_prompts(rows: Iterable[Raw]) -> tuple[bool, float]:
    """Return whether the sides of a file of preferences in texts repeat the prompt, and the share of rows that may.

    Both sides of all rows, with several prompts, then begin with the prompt and a space or line break. A single prompt
    is no evidence: a reply to ``Hello`` may begin with ``Hello``.
    """
    prompts, count, separated = list[str](), 0, 0
    for row in rows:
        texts = [peek(row, name) for name in ("prompt", "chosen", "rejected")]
        if not all(has_text(text) for text in texts):
            continue
        prompt, *sides = texts
        rests = [side.removeprefix(prompt) for side in sides if side.startswith(prompt)]
        # White space must follow the prompt, which excludes sides that only begin with the same word.
        ends = prompt[-1].isspace() or all(rest[:1].isspace() for rest in rests)
        count += 1
        if len(rests) == 2:
            prompts.append(prompt)
            separated += ends
    is_repeated = separated == count and len(set(prompts)) > 1
    return is_repeated, len(prompts) / max(count, 1)


def _name_sides(row: dict[str, Any]) -> None:
    """Give the sides and the prompt of OpenAI's, axolotl's and ms-swift's preferences their usual names."""
    # ms-swift has the chosen reply as the last message, and the rejected one in its own column.
    if "messages" in row and "chosen" not in row and isinstance(row["messages"], list):
        for name in ("rejected_response", "rejected_messages"):
            if not is_empty(row.get(name)):
                *row["messages"], row["chosen"] = row["messages"]
                row["rejected"] = row[name]
    for name, side in SIDES.items():
        if name in row:
            row.setdefault(side, row[name])
    # OpenAI nests the prompt and the tools of a preference in `input`.
    if isinstance(row.get("input"), dict) and "messages" in row["input"]:
        row.update(prompt=row["input"]["messages"], tools=row["input"].get("tools"))


def _split_sides(row: dict[str, Any], is_repeated: bool) -> None:
    """Remove what the sides of a preference in texts repeat, and split transcripts into messages."""
    prompt: Any
    sides: list[Any]
    prompt, *sides = (row.get(name) for name in ("prompt", "chosen", "rejected"))
    # Sides in messages are not split here; `_side` removes a repeated prompt from them.
    if not all(isinstance(text, str) for text in (prompt or "", *sides)):
        return
    repeats = bool(prompt) and all(side.startswith(prompt) for side in sides)
    # The added line breaks also match a transcript that begins with its first `Human:`.
    is_transcript, *are_transcripts = (HUMAN in f"\n\n{text or ''}" for text in (prompt, *sides))
    # Only the prompt is a transcript, and the sides are plain replies to it.
    if is_transcript and not repeats:
        prompt = _transcript(prompt)
    # Each side is a whole dialogue, as in hh-rlhf; `parse_preference` finds their common prompt.
    elif all(are_transcripts) and (is_transcript or prompt is None):
        prompt, sides = [], [_transcript(side) for side in sides]
    # One row may match by coincidence, so the prompt is removed only if the whole file repeats it.
    elif is_repeated and repeats:
        sides = [side.removeprefix(prompt) for side in sides]
    row.update(chosen=sides[0], rejected=sides[1])
    if prompt is not None:
        row["prompt"] = prompt


def _transcript(text: str) -> list[dict[str, str]]:
    """Return the messages of a dialogue in one text (Anthropic's hh-rlhf); an empty last reply is left out."""
    system, *pieces = f"\n\n{text.strip()}".split(HUMAN)
    # Text before the first turn is a system message; parsing drops it if it is empty.
    messages = [{"role": "system", "content": system.strip()}]
    for piece in pieces:
        user, *replies = piece.split(ASSISTANT)
        messages.append({"role": "user", "content": user.strip()})
        messages += [{"role": "assistant", "content": reply.strip()} for reply in replies]
    return messages if messages[-1]["content"] else messages[:-1]


def _side(value: Any, prompt: Messages, name: str) -> Messages:
    """Return a side of a preference without its prompt, if it repeats it, with or without the system message."""
    side = _reply(value)
    # Some sides repeat the prompt without its system message, so both beginnings are tried.
    for opening in (prompt, prompt[bool(prompt) and prompt[0].role == "system" :]):
        # Pairing stops at the shorter list, so a side shorter than the prompt is excluded by its
        # length.
        both = zip(opening, side, strict=False)
        is_equal = all(a.role == b.role and a.content.strip() == b.content.strip() for a, b in both)
        if opening and is_equal and len(side) >= len(opening):
            side = side[len(opening) :]
            break
    if prompt and (not side or side[0].role != "assistant"):
        raise ValueError(f"its {name} does not begin with the assistant's message after the prompt")
    return side


def parse_preference(
    row: dict[str, Any], form: ColumnNames, origin: str = "", is_repeated: bool = False
) -> Preference:
    """Parse a preference. ``is_repeated``: its sides in texts begin with the prompt, which is removed.

    Raises ``ValueError`` if it cannot be trained on.
    """
    _split_sides(row, is_repeated)
    column = form[0]
    prompt = () if column == "chosen" and not row.get("prompt") else _prompt(row, column)
    chosen, rejected = sides = [_side(row[side], prompt, side) for side in ("chosen", "rejected")]
    # Without a prompt, the messages that both sides begin with are the prompt.
    if not prompt:
        both = zip(*sides, strict=False)
        common = sum(1 for _ in takewhile(lambda two: two[0] == two[1], both))
        # A prompt ends before the assistant's turn, so an equal first reply belongs to the sides.
        while common and chosen[common - 1].role == "assistant":
            common -= 1
        if not common:
            raise ValueError("chosen and rejected begin with different messages")
        prompt, sides = chosen[:common], [chosen[common:], rejected[common:]]
    preference = _build(Preference, row, prompt, sides, len(prompt), origin)
    texts = [[(m.role, m.thought, m.text) for m in side] for side in sides]
    if texts[0] == texts[1]:
        raise ValueError("chosen and rejected are equal")
    return preference


def _build(
    of: type[C], row: Raw, prompt: Messages, sides: Sequence[Messages], start: int, origin: str
) -> C:
    """Return a row of a prompt and its replies, or the two sides of a preference.

    Raises ``ValueError`` if one of them cannot be trained on.
    """
    tools, messages = parse_tools(row.get("tools")), (*prompt, *sides[0])
    for side in sides:
        # Each side is checked as a whole dialogue, because a chat template renders it like that.
        if flaw := flaw_of((*prompt, *side), tools):
            raise ValueError(flaw)
        trained = (*prompt, *side)[start:]
        if not any(message.role == "assistant" and message.is_trained for message in trained):
            raise ValueError("none of its replies is trained")
    # The id covers the messages, tools and untrained replies, so that rows with another mask or
    # other tools are no duplicates.
    everything = (*prompt, *chain(*sides))
    texts = [message.model_dump(mode="json", exclude={"is_trained"}) for message in everything]
    schemas = [[tool.name, tool.description, tool.parameters] for tool in tools]
    untrained = [index for index, message in enumerate(everything) if not message.is_trained]
    return of(
        id=hash_json([texts, len(messages), schemas, *untrained]),
        question=next(message.text for message in reversed(messages) if message.role == "user"),
        answer=messages[-1].text,
        messages=messages,
        tools=tools,
        rejected=() if len(sides) == 1 else sides[1],
        start=start,
        origin=origin,
    )


# -- files ----------------------------------------------------------------------------------------


class Conversations(UserFileSet):
    """Conversations of a user's source."""

    kind = "sft"
    row: ClassVar[type[Conversation]] = Conversation
    formats: ClassVar[tuple[ColumnNames, ...]] = CONVERSATIONS
    usual: ClassVar[str] = "messages, or to prompt and completion"
    environment = "conversation"

    def parse(self, row: Columns, columns: ColumnNames, file: Path, position: str) -> Conversation:
        """Parse a row of a format. Raise ``ValueError`` if it cannot be trained on."""
        column, *reply = columns if columns != OPTIONS else (usual_name(row, QUESTIONS),)
        column = "question" if columns == VERL and "question" in row else column
        prompt = _prompt(row, column)
        replies: Messages = ()
        if columns == OPTIONS:
            replies = _reply(read_prompt(row, row[column], column).right)
        elif reply:
            replies = _verl_reply(row) if columns == VERL else _reply(row[reply[0]])
        # Replies of a history are trained, as in LLaMA-Factory and ms-swift; replies in a prompt of messages are not.
        has_history = isinstance(row[column], str) and not is_empty(peek(row, "history"))
        start = len(prompt) if replies and not has_history else 0
        return _build(Conversation, row, prompt, [replies], start, position)

    def format_of(self, row: Columns) -> ColumnNames:
        """Return the first format that has its columns in a row, or nothing."""
        for form in self.formats:
            is_options = form == OPTIONS and has_options(row, usual_name(row, QUESTIONS))
            if is_options or set(form) <= row.keys():
                return form
        return ()

    def columns_of(self, row: Columns, first_columns: ColumnNames) -> ColumnNames:
        columns = self.format_of(row)
        if not columns:
            # A file of the other recipe's rows is the most frequent mistake.
            readers = ((Preferences, "dpo"), (Conversations, "sft"))
            fitting = [
                f"use `coterie run {recipe} {self.settings.source or 'FILE'}` for such rows, or "
                for reader, recipe in readers
                if type(self) is not reader and reader(self.settings).format_of(row)
            ]
            fix = f"rename its columns to {self.usual}, or to another form of docs/recipes/sft.md"
            names = ", ".join(row) or "no columns"
            raise UserError(f"is of no known form: it has {names}", f"{''.join(fitting)}{fix}")
        if first_columns and columns != first_columns:
            forms = map(" and ".join, (columns, first_columns))
            raise ValueError("it has the form {!r}, and the first row {!r}".format(*forms))
        check_media(row, "it")
        check_training_keys(row)
        return columns

    def open_row(self, raw: Any, file: Path) -> Columns:
        """Return a row whose columns and messages record reads."""
        # A line may be a bare list of messages.
        row = super().open_row({"messages": raw} if raw and is_chat(raw) else raw, file)
        for name, value in row.items():
            # Tables and some JSONL files store messages as JSON text.
            if name in JSON_COLUMNS and isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
                value = _chat_in_json(value)
            # Parquet adds nulls to objects with different keys.
            value = _without_nulls(value) if file.suffix == ".parquet" else value
            if is_chat(value):
                value = [Columns(message, self.settings.ignore) for message in value]
            row[name] = value
        return row


class Preferences(Conversations):
    """Preferences of a user's source."""

    kind = "prefs"
    row = Preference
    formats = PREFERENCES
    usual = "prompt, chosen and rejected"
    is_repeated = False
    """True if both sides of all rows of the file that is read repeat the prompt."""

    def read_file(self, file: Path) -> list[Conversation]:
        # The file is read twice, because all rows decide whether prompts are repeated. Broken lines
        # are reported by the second pass.
        rows = (raw for _, raw in numbered(file, broken=[]) if isinstance(raw, dict))
        self.is_repeated, share = repeated_prompts(rows)
        if self.is_repeated:
            self.remarks.append(("prompts that both sides repeat", "removed from them"))
        elif share > 0.5:
            text = f"both sides begin with their prompt in {share:.0%} of the rows of {file.name}"
            self.remarks.append(("warning", f"{text}, and keep it"))
        return super().read_file(file)

    def format_of(self, row: Columns) -> ColumnNames:
        _name_sides(row)
        return super().format_of(row)

    def parse(self, row: Columns, columns: ColumnNames, file: Path, position: str) -> Preference:
        return parse_preference(row, columns, position, self.is_repeated)


def _chat_in_json(text: str) -> Any:
    """Return messages, or a message, that a text holds as JSON. Return other texts unchanged."""
    try:
        value = read_json(text)
    except ValueError:
        return text
    # Only chats are parsed: a prompt or reply may be JSON that the model is to write.
    return value if value and is_chat(value if isinstance(value, list) else [value]) else text


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
