"""Chats to token ids, in which every turn of one's own is exactly the ids that were sampled.

A chat template only knows text. So each own turn is handed to it as a *sentinel*, the rendered text
is split there, the text between is tokenised, and the recorded ids are put in their places.

A template may rewrite history, for example drop earlier thoughts. A turn that the template would
not show as it was is shown as the template gives it, tokenised anew; the prompt then no longer
extends the running tokens, and the view opens a new segment.
"""

import re
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from os.path import commonprefix

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from coterie.errors import UserError
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, PrivilegeError, Turn

CACHED_PIECES = 8192
PREFILL = "prefill"
"""Source of the parts of a turn that were given to the model and not sampled by it."""


class ChatRenderer:
    """Renders messages with a tokenizer's chat template. Usable as ``trajectories.view.Render``."""

    end_ids: frozenset[int]
    """Ids that end a turn: the tokenizer's, those given, and the one the template writes."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int] = ()) -> None:
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path or '(unnamed)'} has no chat template, so "
                "turns can't be told apart",
                "use an instruction-tuned model, or put a chat_template.jinja beside its tokenizer",
            )
        self.tokenizer = tokenizer
        self._nonce = secrets.token_hex(8)
        self._mark_pattern = re.compile(rf"turn{self._nonce}n(\d+)z")
        self._tokenise = lru_cache(CACHED_PIECES)(self._encode)
        self._specials = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._end = self._template_end() or tuple(ends)
        self.end_ids = frozenset([*end_ids, *ends, *self._end])

    def render(
        self,
        messages: Sequence[Message],
        tree: Tree,
        reader: str,
        *,
        generation: bool = True,
        prefill: str = "",
        privileges: str | None = None,
    ) -> tuple[int, ...]:
        """Prompt ids of ``messages`` as ``reader`` sees them.

        ``generation`` adds the header of the reader's next turn, and ``prefill`` text after it.
        ``privileges`` names a role whose rights count besides the reader's: a critic's context is all
        that the agent saw and what only the critic may see, around the agent's own turns as sampled.
        Raises :class:`PrivilegeError` for a part that none of them may see, and ``UserError`` for
        what the model or its template can't show.
        """
        eyes = (reader,) if privileges is None else (reader, privileges)
        chat = [self._shown(message, tree, eyes) for message in messages]
        own = {
            index: turn
            for index, message in enumerate(messages)
            if (turn := _own_turn(message, tree, reader)) is not None
        }
        text = self._template(chat, generation)
        marked = self._mark(chat, own, text, generation)
        return self._splice(marked + (prefill if generation else ""), own)

    __call__ = render

    def written(self, text: str) -> tuple[int, ...]:
        """Ids of a turn that nobody sampled: its text, and the token that ends a turn.

        What spells a control token is taken apart, so that the text can't forge another turn.
        """
        return self._encode(self._defuse(text)) + self._end

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each id adds; joined, they are the text of all.

        Text that is only settled by a later id (a character of several tokens, a space that depends
        on what follows) is in the piece of that one.
        """
        text = self.decode(ids)
        starts = (self.decode(ids[:n]) for n in range(1, len(ids)))
        settled = [len(commonprefix([text, start])) for start in starts]  # noqa: RUF071
        stops = list(accumulate([*settled, len(text)], max))
        return [text[start:stop] for start, stop in pairwise([0, *stops])] if ids else []

    def _shown(self, message: Message, tree: Tree, eyes: Sequence[str]) -> dict[str, str]:
        """A message as plain text for the template, seen by readers of these names together."""
        parts: list[Part] = []
        for part in message.parts:
            if not any(map(part.visible_to, eyes)):
                raise PrivilegeError(
                    f"a {message.role} message for {' and '.join(map(repr, eyes))} has a part from {part.source} that "
                    f"only {', '.join(sorted(part.audience or ()))} may see"
                )
            parts.append(part)
        text = ""
        if message.turn is not None:
            turn = tree.turns[message.turn]
            parts += [part for part in turn.parts if any(map(part.visible_to, eyes))]
            text = "\n".join(result.text for result in turn.results) if not turn.parts else ""
        if any(part.image for part in parts):
            raise UserError(
                f"a {message.role} message has an image, and this model reads only text",
                "describe the image in words, or use a model that sees",
            )
        return {
            "role": message.role,
            "content": self._defuse("".join(part.text for part in parts) + text),
        }

    def _defuse(self, text: str) -> str:
        """Content in which no control token is spelled out, so that a turn can't forge another."""
        for token in self._specials:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def _template(self, chat: list[dict[str, str]], generation: bool) -> str:
        """The template's text of a chat."""
        try:
            text = self.tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generation
            )
        except TemplateError as error:
            raise UserError(
                f"the chat template refuses messages of roles "
                f"{[message['role'] for message in chat]}: {error}",
                "change the order or roles of the messages, or use another template",
            ) from error
        assert isinstance(text, str)
        return text

    def _mark(
        self, chat: list[dict[str, str]], own: dict[int, Turn], text: str, generation: bool
    ) -> str:
        """``text`` with a sentinel for each own turn that the template shows as it was."""

        if not own:
            return text
        if (everything := self._marked(chat, own, own, text, generation)) is not None:
            return everything
        same = [i for i in own if self._marked(chat, own, [i], text, generation) is not None]
        return self._marked(chat, own, same, text, generation) or text

    def _marked(
        self,
        chat: list[dict[str, str]],
        own: dict[int, Turn],
        chosen: Iterable[int],
        text: str,
        generation: bool,
    ) -> str | None:
        """The text with the chosen turns as sentinels; ``None`` if the template changes them.

        A template that only trims their ends is taken to show them as they were.
        """
        shown = list(chat)
        for index in chosen:
            content = _given(own[index]) + self._sentinel(index)
            shown[index] = {**chat[index], "content": content}
        marked = self._template(shown, generation)
        said = {index: self._said(turn) for index, turn in own.items()}
        trimmed = {index: content.strip() for index, content in said.items()}
        for contents in (said, trimmed):
            if self._mark_pattern.sub(lambda m, c=contents: c[int(m[1])], marked) == text:  # type: ignore[misc]
                return marked
        return None

    def _said(self, turn: Turn) -> str:
        """The sampled part of an own turn's text, as it is in the chat."""
        return self._defuse("".join(p.text for p in turn.parts if p.source != PREFILL))

    def _sentinel(self, index: int) -> str:
        return f"turn{self._nonce}n{index}z"

    def _splice(self, marked: str, own: dict[int, Turn]) -> tuple[int, ...]:
        """Token ids of a marked text, the turns' ids in their sentinels' places."""
        texts = self._mark_pattern.split(marked)
        ids: list[int] = list(self._tokenise(texts[0]))
        for index, text in zip(texts[1::2], texts[2::2], strict=True):
            turn = own[int(index)]
            after = self._tokenise(text)
            ids += turn.ids
            closed = turn.ids[-1] in self.end_ids and turn.ids[-1:] == after[:1]
            ids += after[1:] if closed else after
        return tuple(ids)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def _template_end(self) -> tuple[int, ...]:
        """The control token that the template writes after an assistant's turn, if it does."""
        sentinel = self._sentinel(0)
        chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": sentinel}]
        after = self._encode(self._template(chat, False).partition(sentinel)[2])
        added = self.tokenizer.added_tokens_decoder
        return after[:1] if after and after[0] in added and added[after[0]].special else ()


def _own_turn(message: Message, tree: Tree, reader: str) -> Turn | None:
    """The turn of a message if it is the reader's own and has recorded ids."""
    if message.turn is None or message.role != "assistant":
        return None
    turn = tree.turns[message.turn]
    own = turn.speaker.kind == "agent" and turn.speaker.name == reader and turn.ids
    return turn if own else None


def _given(turn: Turn) -> str:
    """The pre-filled text of a turn, which is prompt."""
    return "".join(part.text for part in turn.parts if part.source == PREFILL)
