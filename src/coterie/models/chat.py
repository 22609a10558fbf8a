"""Chats to token ids, in which every turn of one's own is exactly the ids that were sampled.

The template's text of a chat is taken apart (``models.layout``), recorded ids are put in the places of
own turns, and what lies between is tokenised so that no content can make a control token
(``models.control``).

A template may rewrite history, for example drop earlier thoughts. A turn that the template would
not show as it was, but for white space at its ends, is shown as the template gives it, tokenised
anew; the prompt then no longer extends the running tokens, and the view opens a new segment.

Some prompts open a thought (``<think>``), which is then no part of what is sampled. A template that wants to see it in
earlier turns is given it with them.

A turn that a stop string ended has no end of turn among its ids. The template's follows it, as prompt.

The results of a turn's calls are shown in the order of the calls: in a ``tool`` message each, or as one ``user``
message where that is the message's role, where the template has no tool messages, or where the environment's syntax
has made text of them. An ``inline`` message goes on right after what was said, without a word of the template's.

Tools are shown by the template (``tools=``), in the order and with the keys that they have. A turn that calls stays
what was sampled: it is never written again from its calls, but for one that has no tokens (an endpoint's).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from os.path import commonprefix

from transformers import PreTrainedTokenizerBase

from coterie.config.text import encoded
from coterie.errors import UserError
from coterie.models.call_syntaxes import END_OF_THOUGHT, THOUGHT
from coterie.models.control import ControlTokens
from coterie.models.layout import WORD, Layout, Shown, Slot, TextPiece
from coterie.models.template import ChatTemplate
from coterie.models.tool_calls import ToolTemplate, mapped, safe_call, tool_template
from coterie.trajectories.calls import Tool, ToolCall, place
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Finish, Message, Part, PrivilegeError, Turn

INLINE = "inline"
PREFILL = "prefill"
"""Source of the parts of a turn that were given to the model and not sampled by it."""


class ChatRenderer:
    """Renders messages with a tokenizer's chat template. Usable as ``trajectories.view.Render``."""

    end_ids: frozenset[int]
    """Ids that end a turn: the tokenizer's, those given, and those that the template writes."""
    tools: ToolTemplate

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer)
        self.control = ControlTokens(tokenizer, self.template)
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._end = self._template_end() or tuple(ends)
        self.tools = tool_template(tokenizer, self.template, self.control)
        self._opener = self._opened_thought()
        opened = "".join(slot.text for slot in self._opener)
        self.control.keep(self.tools.markup.union(self.control.written(opened)))
        self.end_ids = frozenset([*end_ids, *ends, *self._end, *self.tools.ends])

    def render(
        self,
        messages: Sequence[Message],
        tree: Tree,
        reader: str,
        *,
        generation: bool = True,
        prefill: str = "",
        privileges: str | None = None,
        tools: Sequence[Tool] = (),
    ) -> tuple[int, ...]:
        """Prompt ids of ``messages`` as ``reader`` sees them, and of the ``tools`` that the template is to show.

        ``generation`` adds the header of the reader's next turn, and ``prefill`` text after it.
        ``privileges`` names a role whose rights count besides the reader's: a critic's context is all
        that the agent saw and what only the critic may see, around the agent's own turns as sampled.
        Raises :class:`PrivilegeError` for a part that none of them may see, and ``UserError`` for
        what the model or its template can't show.
        """
        eyes = (reader,) if privileges is None else (reader, privileges)
        offered = self._offered(tools)
        chat = self._joined(
            one for m in messages for one in self._shown(m, tree, reader, eyes, bool(tools))
        )
        begun = chat.pop().slots if generation and chat and _goes_on(chat[-1]) else ()
        pieces = Layout(self.template, chat, generation, self.control.hidden, offered).pieces()
        pieces += self._without_opener(begun)
        if generation and prefill:
            pieces.append(self._slot(prefill, "assistant", "the prefill"))
        return self._splice(pieces)

    __call__ = render

    def written(self, text: str, *, ended: bool = True) -> tuple[int, ...]:
        """Ids of a turn that nobody sampled: its text, and the token that ends a turn.

        A turn that a stop string ended has no such token (``ended=False``). What spells a control token is broken up,
        so that the text can't forge another turn.
        """
        slot = self._slot(text, "assistant", "a turn that was written elsewhere")
        return self.control.encode([slot]) + (self._end if ended else ())

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

    def calls(self, text: str, finish: Finish, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The calls of a message that was sampled, as the model writes them; ``UserError`` if it has no such way."""
        return self.tools.required().parse(text, finish, tools)

    def _offered(self, tools: Sequence[Tool]) -> list[Tool]:
        """Tools in whose texts no control token is spelled out; ``UserError`` for a model that can't call them."""
        if not tools:
            return []
        self.tools.required()

        def safe(text: str) -> str:
            return self._slot(text, "tool", "the description of a tool").text

        return [
            Tool(safe(tool.name), safe(tool.description), mapped(tool.parameters, safe))
            for tool in tools
        ]

    def _joined(self, shown: Iterable[Shown]) -> list[Shown]:
        """Messages for the template, in which what goes on in one turn is one message."""
        chat: list[Shown] = []
        for one in shown:
            last = chat[-1] if chat else None
            if one.role == INLINE and (last is None or not self._is_open(last)):
                one = replace(one, role="user")
            if last and (one.role == INLINE or (one.role == "assistant" and _goes_on(last))):
                chat[-1] = replace(last, slots=(*last.slots, *self._without_opener(one.slots)))
            elif last and self._speaks_after_results(last, one):
                chat[-1] = replace(last, slots=(*last.slots, Slot("\n\n"), *one.slots))
            else:
                chat.append(one)
        return chat

    def _speaks_after_results(self, last: Shown, one: Shown) -> bool:
        """Whether a user speaks right after results, and the template does not take that."""
        return (last.role, one.role) == ("tool", "user") and not self.tools.users_after_results

    def _without_opener(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        opened = bool(self._opener) and slots[:1] == self._opener
        return slots[1:] if opened else slots

    def _is_open(self, shown: Shown) -> bool:
        """Whether a message can go on: its last turn was sampled and has no end of turn."""
        if shown.role != "assistant" or not shown.slots:
            return False
        turn = shown.slots[-1].turn
        return _goes_on(shown) or (turn is not None and turn.ids[-1] not in self.end_ids)

    def _shown(
        self, message: Message, tree: Tree, reader: str, eyes: Sequence[str], native: bool
    ) -> tuple[Shown, ...]:
        """A message for the template, seen by readers of these names (``eyes``) together.

        ``native``: calls are written in the model's own syntax.
        """
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
                instead = "".join(part.text for part in message.parts)
                if message.role == "tool" and self.tools.results != "user":
                    return self._results(tree, turn, instead)
                text = "" if instead else "\n".join(result.text for result in turn.results)
        if any(part.image for part in parts):
            raise UserError(
                f"a {message.role} message has an image, and this model reads only text",
                "describe the image in words, or use a model that sees",
            )
        said = tree.turns[message.turn] if message.turn and role == "assistant" else None
        if (own := _own_turn(message, tree, reader)) is not None:
            return (self._with_calls(Shown("assistant", self._own(own)), own, native),)
        content = "".join(part.text for part in parts) + text
        slot = self._slot(content, role, f"a {message.role} message")
        shown = Shown(role, (slot,) if content else ())
        return (shown if said is None else self._with_calls(shown, said, native),)

    def _with_calls(self, shown: Shown, turn: Turn, native: bool) -> Shown:
        """A message that calls, as the template takes it.

        The template writes the calls of a turn without tokens. A turn that has some says its calls itself; where
        results must follow calls it stands in their place.
        """
        if not native or not turn.calls:
            return shown
        ids = tuple(self.tools.call_id(place) for place in range(len(turn.calls)))
        if turn.ids:
            return (
                replace(shown, call_ids=ids, stands_in=True)
                if self.tools.results == "calls"
                else shown
            )

        def safe(text: str) -> str:
            return self._slot(text, "tool", "a call").text

        return replace(shown, calls=tuple(safe_call(one, safe) for one in turn.calls), call_ids=ids)

    def _results(self, tree: Tree, turn: Turn, instead: str) -> tuple[Shown, ...]:
        before = (one.calls for one in reversed(tree.path(turn.id)) if one.calls)
        names = {call.id: call.name for call in next(before, ())}
        return tuple(
            Shown(
                "tool",
                (self._slot(text, "tool", "a tool's result"),) if text else (),
                self.tools.call_id(place(call)),
                self._slot(names.get(call) or "tool", "tool", "the name of a tool"),
            )
            for call, text in ((one.call_id, instead or one.text) for one in turn.results)
        )

    def _own(self, turn: Turn) -> tuple[Slot, ...]:
        given = "".join(part.text for part in turn.parts if part.source == PREFILL)
        said = "".join(part.text for part in turn.parts if part.source != PREFILL)
        what = "a turn of the agent's own"
        begun, sampled = (self._slot(text, "assistant", what) for text in (given, said))
        return (*self._opener, *((begun,) if given else ()), replace(sampled, turn=turn))

    def _slot(self, text: str, role: str, what: str) -> Slot:
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

    def _opened_thought(self) -> tuple[Slot, ...]:
        """The thought that prompts open, where the template wants to see that again in what was said then."""
        header = self.template.header()
        opened = header[header.rfind(THOUGHT) :] if THOUGHT in header else ""
        if opened.strip() != THOUGHT:
            return ()
        said, asked = f"{WORD}\n{END_OF_THOUGHT}\n\n{WORD}", {"role": "user", "content": "a"}
        prompt = self.template.text([asked], True)
        for given in ("", opened):
            chat = [asked, {"role": "assistant", "content": given + said}]
            if self.template.text(chat, False).startswith(prompt + said):
                return (Slot(given, role="assistant"),) if given else ()
        return ()

    def _template_end(self) -> tuple[int, ...]:
        """The control token that the template writes after an assistant's turn, if it does."""
        chat = [Shown(role, (Slot("word"),)) for role in ("user", "assistant")]
        pieces = Layout(self.template, chat, False, self.control.hidden).pieces()
        after = self.control.encode(pieces[-1:])
        return after[:1] if set(after[:1]) <= self.control.ids else ()


def _goes_on(shown: Shown) -> bool:
    """Whether a message ends with what was put into it while it was being written."""
    return bool(shown.slots) and shown.role == "assistant" and shown.slots[-1].role == INLINE


def _own_turn(message: Message, tree: Tree, reader: str) -> Turn | None:
    if message.turn is None or message.role != "assistant":
        return None
    turn = tree.turns[message.turn]
    own = turn.speaker.kind in ("agent", "person") and turn.speaker.name == reader and turn.ids
    return turn if own else None
