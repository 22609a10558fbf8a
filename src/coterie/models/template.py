"""Chat template of a tokenizer: text of chats, and its headers and thoughts, detected by trials.

Templates that write the date get the day on which they were loaded, or the pinned one (``config.folders``), since
prompts must not change during a run or when it resumes.
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

from coterie.config.folders import today
from coterie.errors import UserError
from coterie.models.call_syntaxes import END_OF_THOUGHT, THOUGHT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Chat = Sequence[Mapping[str, Any]]
"""Messages with ``role``, ``content`` and perhaps ``tool_calls``."""

REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""Exceptions of a template for a chat that it does not support."""
OWN_ARGS = ("tools", "tokenize", "add_generation_prompt", "strftime_now", "messages")
"""Template arguments that coterie sets."""
NONCE = secrets.token_hex(8)
WORD = f"word{NONCE}"
"""Random text that no message contains."""
_USER = {"role": "user", "content": "a"}
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
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")


@dataclass(frozen=True, slots=True)
class Split:
    """Parts of a sampled message, whose text is ``lead + thought + close + content``."""

    lead: str
    """Markup before the thought, or before the content without a thought."""
    thought: str
    close: str
    content: str


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Markup of thoughts in a template."""

    key: str
    """Message key for thoughts; empty if the template reads them from the content."""
    open: str
    """Text after the header and before a thought."""
    close: str
    """Text after a thought and before the answer."""
    answer: str
    """Text after the header and before an answer without a thought."""
    opened: bool
    """True if generation prompts end inside a thought."""

    def split(self, text: str, *, opened: bool | None = None) -> Split:
        """Split the text of a message at its leading thought; an unclosed thought extends to the end."""
        start = 0
        if not (self.opened if opened is None else opened):
            opening = _match_mark(self.open, text) or _match_mark(THOUGHT, text)
            if opening is None:
                answer = _match_mark(self.answer, text)
                at = answer.end() if answer else 0
                return Split(text[:at], "", "", text[at:])
            start = opening.end()
        mark = self.close.strip()
        begin = _first_mark(mark)
        another = mark.partition((_MARK.match(self.open.strip()) or [mark])[0])[0]
        another += self.open.strip()
        if text[:start].strip() == THOUGHT:
            begin = mark = END_OF_THOUGHT
        start += len(text[start:]) - len(text[start:].lstrip())
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
        stop = end + len(same)
        stop += len(text[stop:]) - len(text[stop:].lstrip()) if same == mark else 0
        return Split(text[:start], thought, text[start + len(thought) : stop], text[stop:])


def _first_mark(marks: str) -> str:
    return (_MARK.match(marks) or [marks])[0].strip()


def _match_mark(pattern: str, text: str) -> re.Match[str] | None:
    """Match ``pattern`` at the beginning of a text, with any white space around it."""
    mark = pattern.strip()
    return re.match(rf"\s*{re.escape(mark)}\s*", text) if mark else None


class ChatTemplate:
    """Chat template of a tokenizer, with the arguments ``args`` (such as ``enable_thinking=False``).

    Raises:
        UserError: If the tokenizer has no template, or it does not show a user's message.
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
        self._takes_lists = False
        user = {"role": "user", "content": WORD}
        self._takes_lists = WORD not in self._try_text([user], True)
        if self._takes_lists and WORD not in self._try_text([user], True):
            self._takes_lists = False
            self.text([user], True)
            raise UserError(
                f"the chat template of {self.name} shows nothing of a user's message",
                "use another template",
            )
        whole = self.text([user, {"role": "assistant", "content": f"{WORD}s"}], False)
        prompt = self.text([user], True)
        lead = whole.removeprefix(prompt).partition(f"{WORD}s")[0]
        if not self.header and whole.startswith(prompt) and lead.strip():
            raise UserError(
                f"the chat template of {self.name} has no generation prompt",
                "use another template: an agent's turn must begin where its prompt ends",
            )

    @property
    def has_clock(self) -> bool:
        return "strftime_now" in self.source

    @cached_property
    def prompt(self) -> str:
        return self.text([_USER], True)

    @cached_property
    def header(self) -> str:
        """Text that begins an assistant's message, with the thought that prompts open; may be empty."""
        closed, prompt = self.text([_USER], False), self.prompt
        cut = len(commonprefix([closed, prompt]))  # noqa: RUF071
        if cut < len(closed):  # the chat ends with other text: begin with a whole token
            tokens = self._tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
            cut = max((a for a, b in tokens["offset_mapping"] if a <= cut < b), default=cut)
        return prompt[cut:]

    @cached_property
    def core(self) -> str:
        """Header without its thought."""
        header = self.header
        if self.thoughts is None:
            return header
        at = header.rfind(self.thoughts.open.strip())
        at = header.find(END_OF_THOUGHT) if at < 0 else at  # closed at once (DeepSeek V3.1)
        return header if at < 0 else header[:at]

    @cached_property
    def padding(self) -> str:
        """White space of the template between a prompt and an answer, which models sample."""
        whole = self.text([_USER, {"role": "assistant", "content": WORD}], False)
        lead = whole.removeprefix(self.prompt).partition(WORD)[0]
        return lead if whole.startswith(self.prompt) and lead.isspace() else ""

    @property
    def opener(self) -> str:
        """Thought that generation prompts open, or open and close."""
        return self.header[len(self.core) :]

    @cached_property
    def thoughts(self) -> Thoughts | None:
        """Markup of thoughts; ``None`` for a template without thoughts."""
        marks = self._thought_marks()
        if marks is None:
            return None
        key, open_, close = marks
        at = self.header.rfind(open_.strip())
        core = self.header if at < 0 else self.header[:at]
        opened = at >= 0 and _first_mark(close.strip()) not in self.header[at:]
        whole = self._try_text([_USER, {"role": "assistant", "content": WORD}], False)
        before = whole.partition(WORD)[0]
        answer = before[before.rfind(core) + len(core) :] if core and core in before else ""
        return Thoughts(key, open_, close, answer, opened)

    def _thought_marks(self) -> tuple[str, str, str] | None:
        """Return the message key of thoughts, and the text before and after a thought."""
        thought, answer = f"{WORD}t", f"{WORD}s"
        call = {"id": "call00000", "type": "function",
                "function": {"name": "call", "arguments": {"value": "a"}}}  # fmt: skip
        for calls in ({}, {"tool_calls": [call]}):
            for key in _THOUGHT_KEYS:
                message = {"role": "assistant", "content": "" if calls else answer, key: thought}
                text = self._try_text([_USER, {**message, **calls}], False)
                before, mark, after = text.partition(thought)
                if not mark:
                    continue
                close = after.partition(answer)[0]
                if calls:
                    close = (re.match(r"\s*<[^<>]*>\s*", after) or [""])[0]
                common = commonprefix([before, self.prompt])  # noqa: RUF071
                rest = before[len(common) :]
                mark = "" if rest.strip() else (_LAST_MARK.search(common) or [""])[0]
                if (mark + rest).strip() and close.strip():
                    return key, mark + rest, close
        for open_, close in _MARKS:
            content = f"{open_}{thought}{close}{answer}"
            text = self._try_text([_USER, {"role": "assistant", "content": content}, _USER], False)
            opened = self.header.rstrip().endswith(open_.strip())
            named = open_.strip() in self.source and close.strip() in self.source
            if opened or named or (answer in text and thought not in text):
                return "", open_, close
        return None

    def _try_text(self, chat: Chat, generation: bool) -> str:
        """Return the text of a chat; empty if the template refuses it."""
        try:
            return self.text(chat, generation)
        except UserError:
            return ""

    def treats_as_assistant(self, role: str, chat: Chat) -> bool:
        """Return True if the template writes messages of ``role`` like the assistant's (in an ``{% else %}``)."""
        own = [{**one, "role": "assistant"} if one["role"] == role else one for one in chat]
        text = self._try_text(chat, True) if own != list(chat) else ""
        return text != "" and text == self._try_text(own, True)

    def text(self, chat: Chat, generation: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text of a chat; ``generation`` adds the header of an assistant's turn.

        Raises:
            UserError: If the template refuses the chat.
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
            raise UserError(
                f"the chat template refuses messages of roles "
                f"{[message['role'] for message in chat]}: {error}",
                "change the order or roles of the messages, or use another template",
            ) from error
        assert isinstance(text, str)
        return text
