"""Chats to token ids, in which every turn of one's own is exactly the ids that were sampled.

The template's text of a chat is taken apart (``models.layout``), recorded ids are put in the places of
own turns, and what lies between is tokenised so that no content can make a control token
(``models.control``).

A template may rewrite history, for example drop earlier thoughts. A turn that the template would
not show as it was, but for white space at its ends, is shown as the template gives it, tokenised
anew; the prompt then no longer extends the running tokens, and the view opens a new segment.

A turn that a stop string ended has no end of turn among its ids. The template's follows it, as prompt.

The results of a turn's calls are shown in the order of the calls: in a ``tool`` message each, or as one ``user``
message where that is the message's role, where the template has no tool messages, or where the environment's syntax
has made text of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from os.path import commonprefix

from transformers import PreTrainedTokenizerBase

from coterie.config.text import encoded
from coterie.errors import UserError
from coterie.models.control import ControlTokens
from coterie.models.layout import Layout, Shown, Slot, TextPiece
from coterie.models.template import ChatTemplate
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Part, PrivilegeError, Turn

PREFILL = "prefill"
"""Source of the parts of a turn that were given to the model and not sampled by it."""


class ChatRenderer:
    """Renders messages with a tokenizer's chat template. Usable as ``trajectories.view.Render``."""

    end_ids: frozenset[int]
    """Ids that end a turn: the tokenizer's, those given, and the one the template writes."""
    has_tool_messages: bool
    """Whether the template has messages for results, each of one call."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        self.control = ControlTokens(tokenizer, self.template)
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._end = self._template_end() or tuple(ends)
        self.end_ids = frozenset([*end_ids, *ends, *self._end])
        self.has_tool_messages = self._shows_results()

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
        chat = [one for m in messages for one in self._shown(m, tree, reader, eyes)]
        pieces = Layout(self.template, chat, generation, self.control.hidden).pieces()
        if generation and prefill:
            pieces.append(self._slot(prefill, "assistant", "the prefill"))
        return self._splice(pieces)

    __call__ = render

    def written(self, text: str) -> tuple[int, ...]:
        """Ids of a turn that nobody sampled: its text, and the token that ends a turn.

        What spells a control token is broken up, so that the text can't forge another turn.
        """
        slot = self._slot(text, "assistant", "a turn that was written elsewhere")
        return self.control.encode([slot]) + self._end

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

    def _shown(
        self, message: Message, tree: Tree, reader: str, eyes: Sequence[str]
    ) -> tuple[Shown, ...]:
        """A message for the template, seen by readers of these names (``eyes``) together."""
        role = "user" if message.role == "tool" else message.role
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
            if turn.results and not turn.parts:
                if message.role == "tool" and self.has_tool_messages:
                    return self._results(tree, turn)
                text = "\n".join(result.text for result in turn.results)
        if any(part.image for part in parts):
            raise UserError(
                f"a {message.role} message has an image, and this model reads only text",
                "describe the image in words, or use a model that sees",
            )
        if (own := _own_turn(message, tree, reader)) is not None:
            return (Shown("assistant", self._own(own)),)
        content = "".join(part.text for part in parts) + text
        slot = self._slot(content, role, f"a {message.role} message")
        return (Shown(role, (slot,) if content else ()),)

    def _results(self, tree: Tree, turn: Turn) -> tuple[Shown, ...]:
        """A message for each result of a turn, in the order of the calls."""
        before = (one.calls for one in reversed(tree.path(turn.id)) if one.calls)
        names = {call.id: call.name for call in next(before, ())}
        return tuple(
            Shown(
                "tool",
                (self._slot(result.text, "tool", "a tool's result"),) if result.text else (),
                result.call_id,
                self._slot(names.get(result.call_id, "tool"), "tool", "the name of a tool"),
            )
            for result in turn.results
        )

    def _own(self, turn: Turn) -> tuple[Slot, ...]:
        """An own turn: what it was given to begin with, and what was sampled."""
        given = "".join(part.text for part in turn.parts if part.source == PREFILL)
        said = "".join(part.text for part in turn.parts if part.source != PREFILL)
        what = "a turn of the agent's own"
        begun, sampled = (self._slot(text, "assistant", what) for text in (given, said))
        return (*((begun,) if given else ()), replace(sampled, turn=turn))

    def _slot(self, text: str, role: str, what: str) -> Slot:
        """Text as it is shown; ``UserError`` for what is not text."""
        encoded(text, what)
        return Slot(self.control.broken(text, role), role=role)

    def _splice(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Token ids of the pieces, own turns as the ids that were sampled."""
        ids: list[int] = []
        between: list[TextPiece] = []
        closed: tuple[int, ...] = ()
        for piece in pieces:
            turn = None if isinstance(piece, str) else piece.turn
            if turn is None:
                between.append(piece)
                continue
            ids += self._after(closed, between) + turn.ids
            between, closed = [], turn.ids[-1:]
        return (*ids, *self._after(closed, between))

    def _after(self, last: tuple[int, ...], pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Ids of what stands after an own turn's ``last`` one, which may have ended it already."""
        ids = self.control.encode(pieces)
        return ids[1:] if last and last[0] in self.end_ids and last == ids[:1] else ids

    def _shows_results(self) -> bool:
        """Whether the template shows two tool messages that follow each other, with what is in them."""
        words = [Slot(f"word{number}") for number in range(2)]
        results = [Shown("tool", (w,), f"c{n}", Slot("name")) for n, w in enumerate(words)]
        spoken = [Shown(role, (Slot("word"),)) for role in ("user", "assistant")]
        try:
            layout = Layout(self.template, [*spoken, *results], True, self.control.hidden)
            return set(words) <= set(layout.pieces())
        except UserError:
            return False

    def _template_end(self) -> tuple[int, ...]:
        """The control token that the template writes after an assistant's turn, if it does."""
        chat = [Shown(role, (Slot("word"),)) for role in ("user", "assistant")]
        pieces = Layout(self.template, chat, False, self.control.hidden).pieces()
        after = self.control.encode(pieces[-1:])
        return after[:1] if set(after[:1]) <= self.control.ids else ()


def _own_turn(message: Message, tree: Tree, reader: str) -> Turn | None:
    """The turn of a message if it is the reader's own and has recorded ids."""
    if message.turn is None or message.role != "assistant":
        return None
    turn = tree.turns[message.turn]
    own = turn.speaker.kind in ("agent", "person") and turn.speaker.name == reader and turn.ids
    return turn if own else None
