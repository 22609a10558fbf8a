"""A tokenizer's chat template: its text of a chat, on a day that does not change.

Some templates write the date. It is that on which the template was loaded, or the pinned one
(``config.day``): a run takes days and is resumed, and its prompts stay what they were.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from coterie.config.day import today
from coterie.errors import UserError

Chat = Sequence[Mapping[str, Any]]
"""Messages with ``role`` and ``content``, and those with ``tool_calls``."""

REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises on a chat that it was not written for."""


class ChatTemplate:
    """The template of one tokenizer. Raises ``UserError`` if the tokenizer has none."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path or '(unnamed)'} has no chat template, so "
                "turns can't be told apart",
                "use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer",
            )
        self.day = today()
        sources = tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])
        self.source = "\n".join(dict.fromkeys(sources))
        self._tokenizer = tokenizer

    @property
    def has_clock(self) -> bool:
        return "strftime_now" in self.source

    def header(self) -> str:
        """What begins an agent's message; empty where that can't be told."""
        asked = [{"role": "user", "content": "a"}]
        closed, begun = (self.text(asked, generation) for generation in (False, True))
        return begun.removeprefix(closed) if begun.startswith(closed) else ""

    def text(self, chat: Chat, generation: bool, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The template's text of a chat; ``generation`` adds the header of an assistant's turn.

        Raises ``UserError`` for a chat that the template refuses.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in chat],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=generation,
                strftime_now=datetime.combine(self.day, time()).strftime,
            )
        except REFUSALS as error:
            raise UserError(
                f"the chat template refuses messages of roles "
                f"{[message['role'] for message in chat]}: {error}",
                "change the order or roles of the messages, or use another template",
            ) from error
        assert isinstance(text, str)
        return text
