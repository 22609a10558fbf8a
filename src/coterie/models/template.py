"""Chat template of a tokenizer: text of chats, its headers and thoughts, and which text is content.

Headers and thoughts are detected by trials. Templates that write the date get the day on which they were loaded, or the
pinned one (``config.folders``), since prompts must not change during a run or when it resumes.
"""

import json
import os
import re
import resource
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, time
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from coterie.config.folders import today
from coterie.errors import UserError
from coterie.models.call_syntaxes import (
    END_OF_THOUGHT,
    THOUGHT,
    json_text,
    openai_call,
    openai_tool,
    past_space,
)
from coterie.record.turn import Tool, ToolCall, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Sequence[Mapping[str, Any]]
"""Messages with ``role``, ``content`` and perhaps ``tool_calls``."""
REFUSALS = (
    *(TemplateError, TypeError, ValueError, LookupError, AttributeError),
    *(RecursionError, OverflowError),
)
"""Exceptions of a template for a chat that it does not support."""
OWN_ARGS = ("tools", "tokenize", "add_generation_prompt", "strftime_now", "messages")
"""Template arguments that coterie sets."""
NONCE = secrets.token_hex(8)
WORD = f"word{NONCE}"
"""Random text that no message contains."""
_NUMBERED = re.compile(rf"{WORD}\d+x")
_SENTINEL = re.compile(rf"(turn|sign){NONCE}n(\d+)z")
_SWITCH = re.compile(r"/(?:no_)?think\b")
"""Words that some templates act on and remove from messages (SmolLM3, Nemotron Nano 2)."""
USER = {"role": "user", "content": "a"}
_ANSWER = {"role": "assistant", "content": WORD}
_MARK = re.compile(r"<[^<>]*>\s*")
_LAST_MARK = re.compile(r"<[^<>]*>\s*$")
_MARKS = (
    (f"{THOUGHT}\n", f"\n{END_OF_THOUGHT}\n\n"),
    ("<|channel>thought\n", "\n<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Marks of thoughts in contents, for templates that drop thoughts."""
TRY_SECONDS, TRY_BYTES, TRY_CHARACTERS = 5, 1 << 29, 1 << 20
"""Limits of the first rendering of a template: seconds of CPU, more memory than before, and length of a text."""
_TOOLS = [{"type": "function", "function": {"name": "a", "description": "a", "parameters": {}}}]
_tried = set[str]()
"""Sources of templates that keep these limits."""
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Split:
    """Parts of a sampled message, whose text is ``lead + thought + close + content``; ``lead`` is markup."""

    lead: str
    thought: str
    close: str
    content: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Markup of thoughts in a template, each after its header.

    ``key`` is the message key for thoughts (empty if the template reads them from contents), ``open`` and ``close`` the
    text before and after a thought, ``answer`` the text between header and answer without one, and ``plain`` its part
    after a prompt. ``opened``: generation prompts end inside a thought.
    """

    key: str
    open: str
    close: str
    answer: str
    plain: str
    opened: bool

    def split(self, text: str, *, opened: bool | None = None) -> Split:
        """Split the text of a message at its leading thought; an unclosed thought extends to the end."""
        start = 0
        if not (self.opened if opened is None else opened):
            # Models also write the common mark where their template has another.
            opening = _match_mark(self.open, text) or _match_mark(THOUGHT, text)
            if opening is None:
                thought_start = answer.end() if (answer := _match_mark(self.answer, text)) else 0
                return Split(text[:thought_start], "", "", text[thought_start:])
            start = opening.end()
        mark = self.close.strip()
        begin = _first_mark(mark)
        another = mark.partition((_MARK.match(self.open.strip()) or [mark])[0])[0]
        another += self.open.strip()
        if text[:start].strip() == THOUGHT:
            begin = mark = END_OF_THOUGHT
        start = past_space(text, start)
        end = text.find(mark, start)
        end = text.find(begin, start) if end < 0 else end
        while end >= 0 and text.startswith(another, end):  # another message of thought (gpt-oss)
            end = text.find(begin, end + len(another))
        if end < 0:
            return Split(text[:start], text[start:], "", "")
        same = commonprefix([text[end:], mark])  # noqa: RUF071
        if same != mark:  # a call follows: keep whole marks and words
            part = r"<[^<>]*$" if text[end + len(same) :][:1].isspace() else r"(<|\s)[^<>\s]*$"
            same = re.sub(part, "", same)
        thought = text[start:end].rstrip()
        stop = past_space(text, end + len(same)) if same == mark else end + len(same)
        return Split(text[:start], thought, text[start + len(thought) : stop], text[stop:])


def _first_mark(marks: str) -> str:
    return (_MARK.match(marks) or [marks])[0].strip()


def _match_mark(pattern: str, text: str) -> re.Match[str] | None:
    """Match ``pattern`` at the beginning of a text, with any white space around it."""
    mark = pattern.strip()
    return re.match(rf"\s*{re.escape(mark)}\s*", text) if mark else None


class ChatTemplate:
    """Chat template of a tokenizer, with the arguments ``args`` (such as ``enable_thinking=False``).

    Raises ``UserError`` if the tokenizer has no template, or it does not show a user's message.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", args: Mapping[str, Any] | None = None
    ) -> None:
        self.name = tokenizer.name_or_path or "(unnamed)"
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer {self.name} has no chat template, so turns can't be told apart",
                "use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer",
            )
        # Prompts must not change at midnight, or when a run resumes on another day.
        self.day = today()
        # Some tokenizers have a second template, for chats with tools.
        sources = tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])
        self.source = "\n".join(dict.fromkeys(sources))
        self.has_clock = "strftime_now" in self.source
        self.args = dict(args or {})
        parser = self.args.pop("reasoning_parser", "auto")
        self._tokenizer = tokenizer
        for name in self.args:
            if name in OWN_ARGS or not re.search(rf"\b{re.escape(name)}\b", self.source):
                raise UserError(
                    f"the chat template of {self.name} has no argument {name!r}",
                    "remove it from template_args, or use one that the template names",
                )
        self._takes_lists = False
        if self.source not in _tried:
            self._try_out()
            _tried.add(self.source)
        user = {"role": "user", "content": WORD}
        for takes_lists in (False, True, False):  # vision templates read lists of parts only
            self._takes_lists = takes_lists
            if WORD in self.try_text([user], True):
                break
        else:
            self.text([user], True)
            problem = f"the chat template of {self.name} shows nothing of a user's message"
            raise UserError(problem, "use another template")
        self.prompt = prompt = self.text([USER], True)
        # The header is the end of the prompt that the chat without a generation prompt does not have.
        closed, with_answer = self.text([USER], False), self.text([USER, _ANSWER], False)
        cut = len(commonprefix([closed, prompt]))  # noqa: RUF071
        if cut < len(closed):  # the chat ends with other text: begin with a whole token
            tokens = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
            cut = max((a for a, b in tokens["offset_mapping"] if a <= cut < b), default=cut)
        self.header = prompt[cut:]
        """Text that begins an assistant's message, with the thought that prompts open; may be empty."""
        # Text between a prompt and an answer that is more than white space would have to be sampled.
        lead = with_answer.removeprefix(prompt).partition(WORD)[0]
        if not self.header and with_answer.startswith(prompt) and lead.strip():
            raise UserError(
                f"the chat template of {self.name} has no generation prompt",
                "use another template: an agent's turn must begin where its prompt ends",
            )
        self.padding = lead if with_answer.startswith(prompt) and lead.isspace() else ""
        """White space of the template between a prompt and an answer, which models sample."""
        self.thoughts = self._find_thoughts(with_answer.partition(WORD)[0])
        """Markup of thoughts; ``None`` for a template without thoughts."""
        plain = Thoughts("", f"{THOUGHT}\n", f"\n{END_OF_THOUGHT}\n\n", "", "", opened=False)
        self.plain_marks = plain if parser == "auto" else None
        """Markup of thoughts in sampled replies, if the template has none."""
        position = (
            self.header.rfind(self.thoughts.open.strip()) if self.thoughts else len(self.header)
        )
        position = (
            self.header.find(END_OF_THOUGHT) if position < 0 else position
        )  # closed at once (DeepSeek V3.1)
        self.core = self.header if position < 0 else self.header[:position]
        """Header without its thought."""
        self.opener = self.header[len(self.core) :]
        """Thought that generation prompts open, or open and close."""

    def _try_out(self) -> None:
        """Render chats in a forked process first, since a downloaded template may loop or grow without end.

        Raises ``UserError`` if it exceeds :data:`TRY_SECONDS`, :data:`TRY_BYTES` or :data:`TRY_CHARACTERS`.
        """
        chats = [USER], [{**USER, "role": "system"}, USER, _ANSWER, USER]
        with warnings.catch_warnings():  # the fork has one thread, which only renders
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            code = 0
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (TRY_SECONDS, TRY_SECONDS + 1))
                with suppress(OSError):  # no /proc
                    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
                    limit = pages * resource.getpagesize() + TRY_BYTES
                    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                texts = [
                    self.try_text(chat, True, tools) for chat in chats for tools in ((), _TOOLS)
                ]
                code = int(max(map(len, texts)) > TRY_CHARACTERS)
            except MemoryError:
                code = 1
            finally:
                os._exit(code)  # other exceptions come from the renderings below
        if os.waitpid(child, 0)[1]:
            raise UserError(
                f"the chat template of {self.name} does not end within {TRY_SECONDS} s and "
                f"{TRY_BYTES >> 20} MiB on a short chat",
                "use another model, or correct its chat_template.jinja",
            )

    def _find_thoughts(self, prefix: str) -> Thoughts | None:
        """Return the markup of thoughts; ``prefix`` is the text up to an answer without one."""
        marks = self._thought_marks()
        if marks is None:
            return None
        key, open_, close = marks
        position = self.header.rfind(open_.strip())
        core = self.header if position < 0 else self.header[:position]
        opened = position >= 0 and _first_mark(close.strip()) not in self.header[position:]
        answer = prefix[prefix.rfind(core) + len(core) :] if core and core in prefix else ""
        same = len(commonprefix([self.prompt, prefix]))  # noqa: RUF071
        # A template that opens a thought in prompts may write none.
        plain = close if opened and self.prompt[same:].strip() else prefix[same:]
        return Thoughts(key, open_, close, answer, plain, opened)

    def _thought_marks(self) -> tuple[str, str, str] | None:
        """Return the message key of thoughts, and the text before and after a thought."""
        thought, answer = f"{WORD}t", f"{WORD}s"
        call = openai_call(ToolCall("", "call", '{"value": "a"}'), "call00000")
        # Some templates show thoughts only in messages with calls, so try without and with one.
        for calls in ({}, {"tool_calls": [call]}):
            for key in _THOUGHT_KEYS:
                message = {"role": "assistant", "content": "" if calls else answer, key: thought}
                text = self.try_text([USER, {**message, **calls}], False)
                beginning, mark, remainder = text.partition(thought)
                if not mark:
                    continue
                close = remainder.partition(answer)[0]
                if calls:
                    close = (re.match(r"\s*<[^<>]*>\s*", remainder) or [""])[0]
                common = commonprefix([beginning, self.prompt])  # noqa: RUF071
                rest = beginning[len(common) :]
                mark = "" if rest.strip() else (_LAST_MARK.search(common) or [""])[0]
                if (mark + rest).strip() and close.strip():
                    return key, mark + rest, close
        # Other templates read thoughts from contents: the header opens one, the source has the
        # marks, or a thought between them is not shown.
        for open_, close in _MARKS:
            content = f"{open_}{thought}{close}{answer}"
            text = self.try_text([USER, {"role": "assistant", "content": content}, USER], False)
            opened = self.header.rstrip().endswith(open_.strip())
            named = open_.strip() in self.source and close.strip() in self.source
            if opened or named or (answer in text and thought not in text):
                return "", open_, close
        return None

    def shows(self, chat: Chat, role: str = "") -> bool:
        """Return True if the words of all messages (``WORD``, a number, ``x``) are shown in order.

        Messages of ``role`` must not be written like the assistant's (in an ``{% else %}``).
        """
        texts = json_text(chat), self.try_text(chat, True)
        expected, rendered = (list(dict.fromkeys(_NUMBERED.findall(text))) for text in texts)
        # If the text stays equal under the assistant's role, the template has no form for the role.
        as_assistant = [
            {**message, "role": "assistant"} if message["role"] == role else message
            for message in chat
        ]
        is_other = as_assistant == list(chat) or texts[1] != self.try_text(as_assistant, True)
        return expected == rendered and is_other

    def try_text(self, chat: Chat, generation: bool, tools: Chat = ()) -> str:
        """Return the text of a chat; empty if the template refuses it."""
        try:
            return self.text(chat, generation, tools)
        except UserError:
            return ""

    def text(self, chat: Chat, generation: bool, tools: Chat = ()) -> str:
        """Return the text of a chat; ``generation`` adds the header of an assistant's turn.

        Raises ``UserError`` if the template refuses the chat.
        """
        messages = [dict(message) for message in chat]
        if self._takes_lists:
            for message in messages:
                message["content"] = [{"type": "text", "text": message["content"]}]
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=generation,
                strftime_now=datetime.combine(self.day, time()).strftime,
                **self.args,
            )
        except REFUSALS as error:
            roles = [message["role"] for message in chat]
            raise UserError(
                f"the chat template refuses messages of roles {roles}: {error}",
                "change the order or roles of the messages, or use another template",
            ) from error
        assert isinstance(text, str)
        return text


# -- layout: template text and contents -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slot:
    """Content of a message: text, or a turn whose ids replace the text.

    ``edge`` is ``thought``, or the ``first`` name or ``last`` argument of a stand-in's calls. ``markup`` is the text
    around a turn's thought without white space (``None`` without marks).
    """

    text: str
    turn: Turn | None = None
    role: str = ""
    edge: str = ""
    markup: str | None = None


TextPiece = str | Slot
"""Text of the template, or content."""


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """Message for the template.

    ``call_id`` is the call that a tool's message answers, with ``{name}`` for the tool ``name`` in ids that have it.
    The template writes ``calls`` with the ids ``call_ids``. ``around`` has the beginning of calls and the ends of
    turn of a *stand-in*, whose slots replace the template's text between them. A ``thought`` is given under
    ``thought_key``, or else in the content between ``before`` and ``after``.
    """

    role: str
    slots: tuple[Slot, ...]
    call_id: str = ""
    name: Slot | None = None
    calls: tuple[ToolCall, ...] = ()
    call_ids: tuple[str, ...] = ()
    around: tuple[re.Pattern[str], tuple[str, ...]] | None = None
    thought: Slot | None = None
    thought_key: str = ""
    before: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        return "".join(slot.text for slot in self.slots)

    def message(
        self, text: str, show: Callable[[Slot], str], sign: Callable[[str], str] = str
    ) -> dict[str, Any]:
        """Return the message as a mapping, with slots by ``show`` and texts of calls by ``sign``."""
        text = "" if self.around else text
        thought = show(self.thought) if self.thought else ""
        message: dict[str, Any] = {"role": self.role, "content": text}
        if not self.thought_key:
            message["content"] = self.before + thought + self.after + text
        elif thought:
            message[self.thought_key] = thought
        calls = self.calls
        if self.around:
            value = json_text({"value": show(Slot("call", edge="last"))})
            first_name = show(Slot(calls[0].name, edge="first"))
            names = [first_name, *(sign(call.name) for call in calls[1:])]
            calls, sign = tuple(ToolCall("", name, value) for name in names), str
        if calls:
            message["tool_calls"] = [
                openai_call(call, id_.format(name=sign(call.name)), sign)
                for call, id_ in zip(calls, self.call_ids, strict=True)
            ]
        if self.role == "tool":
            name = show(self.name) if self.name else ""
            message |= {"tool_call_id": self.call_id.format(name=name)} if self.call_id else {}
            message |= {"name": name} if name else {}
        return message


Hidden = Callable[[TemplateMessage], Iterator[tuple[str, bool]]]
"""Function that splits a message's text at characters which may begin a control token: (text, is hidden)."""


class Layout:
    """Pieces of one chat: template text and contents in order.

    Each content is passed to the template as a *sentinel*, a random word, and the text is split there. Putting the
    contents back must give the text of the plain chat; so the template keeps contents or only strips their ends. If it
    rewrites a content, sentinels replace only characters that may begin a control token, as in tools and calls.

    Some templates take results only after a message with calls. A *stand-in* message replaces an own turn there: its
    first name and last argument are sentinels, and the turn replaces the text around them.
    """

    pieces: list[TextPiece]

    def __init__(
        self,
        template: ChatTemplate,
        chat: Sequence[TemplateMessage],
        generation: bool,
        hidden: Hidden,
        tools: Sequence[Tool] = (),
    ) -> None:
        self._template = template
        self._chat = chat
        self._generation = generation
        self._hidden = hidden
        self._slots: list[Slot] = []
        self._order: list[int] = []
        # The text that the pieces have to give again, with all contents in place.
        plain = [message.message(message.text, lambda slot: slot.text) for message in chat]
        self._text = template.text(plain, generation, [openai_tool(tool) for tool in tools])
        self._tools = [openai_tool(tool, self._sign) for tool in tools]
        messages: list[dict[str, Any]] = []
        numbers: list[range] = []
        for message in chat:
            text = "".join(map(self._sentinel, message.slots))
            numbers.append(range(len(self._slots) - len(message.slots), len(self._slots)))
            messages.append(message.message(text, self._sentinel, self._sign))
        everything = range(len(chat))
        # First try: a sentinel in place of each content.
        pieces, indices = self._read(messages), list(everything)
        if pieces is None:
            # The template rewrites some content (it removes a thought, or reads a switch). Try
            # messages one by one, and split only the others into characters.
            trials = [[*plain[:i], messages[i], *plain[i + 1 :]] for i in everything]
            indices = [i for i in everything if self._read(trials[i]) is not None]
            rewrites = [
                message.message(self._hide(message), self._sentinel, self._sign) for message in chat
            ]
            pieces = self._read([messages[i] if i in indices else rewrites[i] for i in everything])
            if pieces is None:
                pieces, indices = self._read(rewrites), []
        if pieces is None:
            raise UserError(
                "the chat template changes what messages say so that their text can't be told from "
                f"its own (roles {[message.role for message in chat]})",
                "use another template, or leave out of the messages what looks like a control token",
            )
        self._check_shown(indices, numbers)
        self._insert_turns(pieces)
        self.pieces = pieces

    def _read(self, messages: Sequence[Mapping[str, Any]]) -> list[TextPiece] | None:
        """Return the pieces; ``None`` if the contents, put back, do not give the text of the plain chat."""
        text = self._template.text(messages, self._generation, self._tools)
        # Three parts for each sentinel: its kind, its number, and the text after it.
        beginning, *parts = _SENTINEL.split(text)
        if not self._text.startswith(beginning):
            return None
        pieces: list[TextPiece] = [beginning]
        position = len(beginning)
        self._order = []
        for kind, number, following in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            slot = self._slots[int(number)] if kind == "turn" else Slot(chr(int(number)))
            self._order.append(int(number) if kind == "turn" else -1)
            # The template may strip a content or write it as JSON. The plain text shows in which form.
            forms = (
                form
                for form in _forms(slot.text)
                if self._text.startswith(form + following, position)
            )
            if (form := next(forms, None)) is None:
                return None
            pieces += [slot if form == slot.text else replace(slot, text=form), following]
            position += len(form + following)
        return pieces if position == len(self._text) else None

    def _check_shown(self, shown_messages: Collection[int], numbers: Sequence[range]) -> None:
        """Check that the text shows all messages; those in ``shown_messages`` have sentinels, with these numbers."""
        seen = set(self._order)
        letters = "" if len(shown_messages) == len(self._chat) else _letters(self._text)
        for i, message in enumerate(self._chat):
            if message.around:
                continue
            if i in shown_messages:
                slots = zip(numbers[i], message.slots, strict=True)
                is_lost = any(n not in seen and slot.text.strip() for n, slot in slots)
            else:  # a message that the template rewrites
                is_read = _SWITCH.search(self._template.source)
                text = _SWITCH.sub("", message.text) if is_read else message.text
                forms = map(_letters, _forms(text))
                is_lost = message.role != "assistant" and all(form not in letters for form in forms)
            if is_lost:
                raise UserError(
                    f"the chat template of {self._template.name} does not show the text of a "
                    f"{message.role} message: {message.text.strip()[:80]!r}",
                    "use another template",
                )

    def _insert_turns(self, pieces: list[TextPiece]) -> None:
        """Replace the template's text of stand-ins, from header or calls to end of turn, by their slots."""
        stand_ins = [message for message in self._chat if message.around]
        firsts, lasts = (
            list(dict.fromkeys(n for n in self._order if n >= 0 and self._slots[n].edge == edge))
            for edge in ("first", "last")
        )
        core = self._template.core
        # From the end, so that indices of earlier pieces stay right.
        for stand_in, first_slot, last_slot in reversed(
            list(zip(stand_ins, firsts, lasts, strict=False))
        ):
            assert stand_in.around is not None
            # Template text is at even indices of the pieces, and slots at odd ones.
            start = 2 * self._order.index(first_slot)
            stop = 2 * (len(self._order) - self._order[::-1].index(last_slot))
            opening_text, closing_text = str(pieces[start]), str(pieces[stop])
            opening = [*stand_in.around[0].finditer(opening_text)]
            end = next(
                (closing_text.index(text) for text in stand_in.around[1] if text in closing_text),
                -1,
            )
            position = opening_text.rfind(core) + len(core) if core and core in opening_text else -1
            if position < 0 and opening:
                position = opening[-1].start()
            if position < 0 or end < 0:
                raise UserError(
                    "the chat template writes calls in another way here than elsewhere",
                    "use tags for calls (tools.calls=tags, or environment.calls=tags)",
                )
            pieces[start : stop + 1] = [
                opening_text[:position],
                *stand_in.slots,
                closing_text[end:],
            ]

    def _sign(self, text: str) -> str:
        """Hide the text of a tool or a call."""
        return self._hide(TemplateMessage("tool", (Slot(text),)))

    def _hide(self, message: TemplateMessage) -> str:
        """Replace the characters of a message that may begin a control token by sentinels."""
        spans = self._hidden(message)
        return "".join(
            f"sign{NONCE}n{ord(character)}z" if hidden else character for character, hidden in spans
        )

    def _sentinel(self, slot: Slot) -> str:
        self._slots.append(slot)
        return f"turn{NONCE}n{len(self._slots) - 1}z"


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _forms(text: str) -> Iterator[str]:
    """Yield a content unchanged, stripped, and as JSON."""
    yield text
    for characters in (None, "\n"):
        yield from (text.strip(characters), text.rstrip(characters), text.lstrip(characters))
    yield from (json.dumps(text, ensure_ascii=plain)[1:-1] for plain in (False, True))


def probe(template: ChatTemplate) -> Iterator[list[TextPiece]]:
    """Yield the pieces of small chats in all roles that the template takes."""
    for roles in (
        ("user",),
        ("user", "assistant"),
        ("user", "assistant", "user", "assistant"),
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "tool", "assistant"),
    ):
        for generation in (False, True):
            chat = [TemplateMessage(role, (Slot(WORD),)) for role in roles]
            try:
                yield Layout(template, chat, generation, lambda message: iter(())).pieces
            except UserError:
                continue
