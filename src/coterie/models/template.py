"""A tokenizer's chat template: its text of a chat, and how it writes headers and thoughts, found by trying it.

Some templates write the date. It is the day on which the template was loaded, or the pinned one
(``config.day``): a run takes days and is resumed, and its prompts must not change.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from coterie.config.day import today
from coterie.errors import UserError
from coterie.models.call_syntaxes import END_OF_THOUGHT, THOUGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Sequence[Mapping[str, Any]]
"""Messages with ``role`` and ``content``, and those with ``tool_calls``."""

REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""Exceptions that a template raises on a chat that it was not written for."""
OWN_ARGS = ("tools", "tokenize", "add_generation_prompt", "strftime_now", "messages")
"""Arguments of a template that coterie sets itself."""
NONCE = secrets.token_hex(8)
WORD = f"word{NONCE}"
"""A text that no message has."""
_ASKED = {"role": "user", "content": "a"}
_MARK = re.compile(r"<[^<>]*>\s*")
_LAST_MARK = re.compile(r"<[^<>]*>\s*$")
_MARKS = (
    (f"{THOUGHT}\n", f"\n{END_OF_THOUGHT}\n\n"),
    ("<|channel>thought\n", "\n<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Marks of thoughts in contents, which templates drop or only name."""
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Split:
    """A sampled message: ``lead + thought + close + content`` is its text."""

    lead: str
    """Markup before the thought; of a message without one, markup before the content."""
    thought: str
    close: str
    content: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How a template writes the thought of an assistant's message."""

    key: str
    """Message key that takes thoughts; empty if the template looks for them in the content."""
    open: str
    """Text after the header and before a thought."""
    close: str
    """Text after a thought and before the answer."""
    answer: str
    """Text after the header and before an answer without a thought."""
    opened: bool
    """Whether generation prompts end inside a thought."""

    def split(self, text: str, *, opened: bool | None = None) -> Split:
        """Split the text of a message at its leading thought; an unclosed thought takes all of it."""
        start = 0
        if not (self.opened if opened is None else opened):
            found = _lenient(self.open, text) or _lenient(THOUGHT, text)
            if found is None:
                plain = _lenient(self.answer, text)
                at = plain.end() if plain else 0
                return Split(text[:at], "", "", text[at:])
            start = found.end()
        mark = self.close.strip()
        first = _MARK.match(mark)
        begin = first.group().strip() if first else mark
        further = (
            mark.partition((_MARK.match(self.open.strip()) or [mark])[0])[0] + self.open.strip()
        )
        if text[:start].strip() == THOUGHT:
            begin = mark = END_OF_THOUGHT
        start += len(text[start:]) - len(text[start:].lstrip())
        end = text.find(mark, start)
        end = text.find(begin, start) if end < 0 else end
        while end >= 0 and text.startswith(further, end):  # another message of thought (gpt-oss)
            end = text.find(begin, end + len(further))
        if end < 0:
            return Split(text[:start], text[start:], "", "")
        same = commonprefix([text[end:], mark])  # noqa: RUF071
        if same != mark:  # a call follows: keep whole marks and words
            part = r"<[^<>]*$" if text[end + len(same) :][:1].isspace() else r"(<|\s)[^<>\s]*$"
            same = re.sub(part, "", same)
        thought = text[start:end].rstrip()
        stop = end + len(same)
        stop += len(text[stop:]) - len(text[stop:].lstrip()) if same == mark else 0
        return Split(text[:start], thought, text[start + len(thought) : stop], text[stop:])


def _lenient(pattern: str, text: str) -> re.Match[str] | None:
    """Match ``pattern`` at the beginning of a text, whatever white space is around it."""
    mark = pattern.strip()
    return re.match(rf"\s*{re.escape(mark)}\s*", text) if mark else None


class ChatTemplate:
    """The template of one tokenizer, with the arguments ``args`` (``enable_thinking=False``).

    Raises ``UserError`` if the tokenizer has none, or one that cannot show a user's message.
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
        self.day = today()
        sources = tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])
        self.source = "\n".join(dict.fromkeys(sources))
        self.args = dict(args or {})
        self._tokenizer = tokenizer
        for name in self.args:
            if name in OWN_ARGS or not re.search(rf"\b{re.escape(name)}\b", self.source):
                raise UserError(
                    f"the chat template of {self.name} has no argument {name!r}",
                    "remove it from template_args, or use one that the template names",
                )
        # Vision templates read contents as lists of parts only.
        self._listed = False
        asked = {"role": "user", "content": WORD}
        self._listed = WORD not in self._tried([asked], True)
        if self._listed and WORD not in self._tried([asked], True):
            self._listed = False
            self.text([asked], True)
            raise UserError(
                f"the chat template of {self.name} shows nothing of a user's message",
                "use another template",
            )
        said = self.text([asked, {"role": "assistant", "content": f"{WORD}s"}], False)
        prompt = self.text([asked], True)
        lead = said.removeprefix(prompt).partition(f"{WORD}s")[0]
        if not self._header and said.startswith(prompt) and lead.strip():
            raise UserError(
                f"the chat template of {self.name} has no generation prompt",
                "use another template: an agent's turn must begin where its prompt ends",
            )

    @property
    def has_clock(self) -> bool:
        return "strftime_now" in self.source

    @cached_property
    def prompt(self) -> str:
        return self.text([_ASKED], True)

    def header(self) -> str:
        """The text that begins an assistant's message, with the thought that prompts open; may be empty."""
        return self._header

    @cached_property
    def _header(self) -> str:
        closed, begun = self.text([_ASKED], False), self.prompt
        cut = len(commonprefix([closed, begun]))  # noqa: RUF071
        if cut < len(closed):  # the end of a chat is written otherwise: begin with a whole token
            found = self._tokenizer(begun, add_special_tokens=False, return_offsets_mapping=True)
            cut = max((a for a, b in found["offset_mapping"] if a <= cut < b), default=cut)
        return begun[cut:]

    @cached_property
    def core(self) -> str:
        """The header without the thought that it opens, or opens and closes."""
        header = self._header
        if self.thoughts is None:
            return header
        at = header.rfind(self.thoughts.open.strip())
        at = header.find(END_OF_THOUGHT) if at < 0 else at  # closed at once (DeepSeek V3.1)
        return header if at < 0 else header[:at]

    @cached_property
    def padding(self) -> str:
        """White space that the template writes between a prompt and an answer, and that models sample themselves."""
        whole = self.text([_ASKED, {"role": "assistant", "content": WORD}], False)
        lead = whole.removeprefix(self.prompt).partition(WORD)[0]
        return lead if whole.startswith(self.prompt) and lead.isspace() else ""

    @property
    def opener(self) -> str:
        """The thought that generation prompts open, or open and close."""
        return self._header[len(self.core) :]

    @cached_property
    def thoughts(self) -> Thoughts | None:
        """How thoughts are written; ``None`` for a template that knows none."""
        found = self._thought_marks()
        if found is None:
            return None
        key, open_, close = found
        at = self._header.rfind(open_.strip())
        core = self._header if at < 0 else self._header[:at]
        opened = (
            at >= 0
            and (_MARK.match(close.strip()) or [close.strip()])[0].strip()
            not in (self._header[at:])
        )
        said = self._tried([_ASKED, {"role": "assistant", "content": WORD}], False)
        before = said.partition(WORD)[0]
        answer = before[before.rfind(core) + len(core) :] if core and core in before else ""
        return Thoughts(key, open_, close, answer, opened)

    def _thought_marks(self) -> tuple[str, str, str] | None:
        """The message key of thoughts, and the text before and after one."""
        thought, said = f"{WORD}t", f"{WORD}s"
        call = {"id": "call00000", "type": "function",
                "function": {"name": "call", "arguments": {"value": "a"}}}  # fmt: skip
        for calls in ({}, {"tool_calls": [call]}):
            for key in _THOUGHT_KEYS:
                message = {"role": "assistant", "content": "" if calls else said, key: thought}
                text = self._tried([_ASKED, {**message, **calls}], False)
                before, found, after = text.partition(thought)
                if not found:
                    continue
                close = after.partition(said)[0]
                if calls:
                    close = (re.match(r"\s*<[^<>]*>\s*", after) or [""])[0]
                common = commonprefix([before, self.prompt])  # noqa: RUF071
                rest = before[len(common) :]
                mark = "" if rest.strip() else (_LAST_MARK.search(common) or [""])[0]
                if (mark + rest).strip() and close.strip():
                    return key, mark + rest, close
        for open_, close in _MARKS:
            content = f"{open_}{thought}{close}{said}"
            text = self._tried([_ASKED, {"role": "assistant", "content": content}, _ASKED], False)
            opened = self._header.rstrip().endswith(open_.strip())
            named = open_.strip() in self.source and close.strip() in self.source
            if opened or named or (said in text and thought not in text):
                return "", open_, close
        return None

    def _tried(self, chat: Chat, generation: bool) -> str:
        """The text of a chat; empty if the template refuses it."""
        try:
            return self.text(chat, generation)
        except UserError:
            return ""

    def takes_for_own(self, role: str, chat: Chat) -> bool:
        """Whether messages of ``role`` are written like the assistant's (``{% else %}`` of a template)."""
        own = [{**one, "role": "assistant"} if one["role"] == role else one for one in chat]
        text = self._tried(chat, True) if own != list(chat) else ""
        return text != "" and text == self._tried(own, True)

    def text(self, chat: Chat, generation: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The template's text of a chat; ``generation`` adds the header of an assistant's turn.

        Raises ``UserError`` for a chat that the template refuses.
        """
        messages = [dict(message) for message in chat]
        if self._listed:
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
            raise UserError(
                f"the chat template refuses messages of roles "
                f"{[message['role'] for message in chat]}: {error}",
                "change the order or roles of the messages, or use another template",
            ) from error
        assert isinstance(text, str)
        return text
