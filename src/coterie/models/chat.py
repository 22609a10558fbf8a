"""Chats to token ids, in which every turn of one's own is exactly the ids that were sampled.

The template's text of a chat is taken apart (``models.layout``), recorded ids are put in the places of own turns, and
what lies between is tokenized so that no content can make a control token (``models.control``).

Own turns: the template is given the thought and the content of a turn apart (``models.template.Thoughts``). Where it
writes both back as sampled, but for white space at their ends, the turn's ids stand there, right after the header that
its prompt ended with. Where it writes something else (drops an earlier thought, adds an empty one), the turn is shown
as the template gives it, tokenized anew; the prompt then no longer extends the running tokens, and the view opens a new
segment. An end of turn that the template does not write there gives way to the template's.

Roles: a system message that the template cannot show in its place becomes a user message, and is merged with the user
message that follows. User messages in a row are merged where the template takes none. Both are merged by an empty line.

Results of a turn's calls are shown in the order of the calls: in a ``tool`` message each, or as one ``user`` message
where that is the message's role, where the template has no tool messages, or where the environment's syntax has made
text of them. An ``inline`` message continues right after the turn before it, without a word of the template's. A turn
that calls stays as sampled: it is never written again from its calls, but for one that has no tokens (an endpoint's).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from os.path import commonprefix
from typing import Any

from transformers import PreTrainedTokenizerBase

from coterie.config.text import encoded
from coterie.errors import UserError
from coterie.models.control import ControlTokens
from coterie.models.layout import WORD, Layout, Shown, Slot, TextPiece
from coterie.models.template import ChatTemplate
from coterie.models.tool_calls import ToolTemplate, mapped, safe_call, tool_template
from coterie.trajectories.calls import Tool, ToolCall, place
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import THOUGHT, Finish, Message, Part, PrivilegeError, Turn

INLINE = "inline"
PREFILL = "prefill"
"""Source of the parts of a turn that were given to the model and not sampled by it."""
_BETWEEN = Slot("\n\n")
_HOLE = "\0"
"""The place of a thought between its marks."""


class ChatRenderer:
    """Renders messages with a tokenizer's chat template. Usable as ``trajectories.view.Render``.

    Raises ``UserError`` for a tokenizer whose prompts cannot be rendered.
    """

    end_ids: frozenset[int]
    """Ids that end a turn: the tokenizer's, those given, and those that the template writes."""
    tools: ToolTemplate

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: Iterable[int] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_args)
        self.control = ControlTokens(tokenizer, self.template)
        self._takes = lru_cache(None)(self._takes_roles)
        self._around_thought = lru_cache(None)(self._marks_around)
        ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.end = self._template_end() or tuple(ends)
        """The token that ends a turn that nobody sampled."""
        self.tools = tool_template(tokenizer, self.template, self.control)
        self.control.keep(self.tools.markup)
        self.end_ids = frozenset([*end_ids, *ends, *self.end, *self.tools.ends])

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
        chat = self._arranged(chat)
        pieces = Layout(self.template, chat, generation, self.control.hidden, offered).pieces()
        pieces = [*self._placed(pieces), *begun]
        if generation and prefill:
            pieces.append(self._slot(prefill, "assistant", "the prefill"))
        return self._splice(pieces)

    __call__ = render

    def written(self, text: str, *, ended: bool = True) -> tuple[int, ...]:
        """Ids of a turn that nobody sampled, as they follow a prompt: its text, and the token that ends a turn.

        A turn that a stop string ended has no such token (``ended=False``). What spells a control token is broken up,
        so that the text can't forge another turn.
        """
        ids = self._following(self.template.prompt, self._written(text))
        return ids + (self.end if ended else ())

    def spelled(self, text: str) -> str:
        """The text of :meth:`written`: a thought is closed, or written empty, as the template does it."""
        return "".join(one if isinstance(one, str) else one.text for one in self._written(text))

    def parts(
        self, text: str, agent: str, source: str, ids: Sequence[int] = ()
    ) -> tuple[Part, ...]:
        """The parts of a turn of an agent: the thought with its marks, which nobody else may see, and the rest.

        ``ids`` are its tokens, if they are to be counted.
        """
        marks = self.template.thoughts
        content = marks.split(text).content if marks else text
        if len(content) == len(text):
            return (Part(text, source=source),)
        head = text[: len(text) - len(content)]
        span = (0, self._count(ids, len(head))) if ids else None
        thought = Part(head, frozenset({agent}), THOUGHT, span=span)
        return (thought, Part(content, source=source))

    def _count(self, ids: Sequence[int], characters: int) -> int:
        """The number of tokens that spell the first ``characters``."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self.decode(ids[:middle])) < characters:
                low = middle + 1
            else:
                high = middle
        return low

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

    # -- messages for the template ----------------------------------------------------------------

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
                slots = (replace(slot, markup=None) for slot in one.slots)
                chat[-1] = replace(last, slots=(*last.slots, *slots))
            elif last and self._speaks_after_results(last, one):
                chat[-1] = _merged(last, one)
            else:
                chat.append(one)
        return chat

    def _arranged(self, chat: Sequence[Shown]) -> list[Shown]:
        """Messages in roles that the template shows in their places."""
        found: list[Shown] = []
        folded = False
        for at, one in enumerate(chat):
            folds = one.role == "system" and not self._takes_system(at, chat[at + 1 :])
            one = replace(one, role="user") if folds else one
            last = found[-1] if found else None
            merges = last and last.role == one.role == "user"
            if merges and (folded or not self._takes(("user", "user"))):
                found[-1] = _merged(found[-1], one)
            else:
                found.append(one)
            folded = folds
        return found

    def _takes_system(self, at: int, following: Sequence[Shown]) -> bool:
        if at:
            return self._takes(("user", "assistant", "system", "user"))
        roles = [one.role for one in following]
        if "tool" in roles and not self.tools.system_with_results:
            return False
        if roles[:1] == ["user"]:
            return self._takes(("system", "user"))
        return self._takes(("system",)) and self._takes(("system", "assistant", "user"))

    def _takes_roles(self, roles: Sequence[str]) -> bool:
        """Return True if the template shows messages of these roles, all of them and in their order."""
        chat = [Shown(role, (Slot(f"{WORD}{at}"),)) for at, role in enumerate(roles)]
        if self.template.takes_for_own("system", [one.message(one.text, str) for one in chat]):
            return False
        try:
            pieces = Layout(self.template, chat, True, self.control.hidden).pieces()
        except UserError:
            return False
        words = [slot.text for shown in chat for slot in shown.slots]
        return [one.text for one in pieces if isinstance(one, Slot)] == words

    def _speaks_after_results(self, last: Shown, one: Shown) -> bool:
        """Return True if a user speaks right after results, and the template does not take that."""
        return (last.role, one.role) == ("tool", "user") and not self.tools.users_after_results

    def _is_open(self, shown: Shown) -> bool:
        """Return True if a message can continue: its last turn was sampled and has no end of turn."""
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
            return (self._with_calls(self._own(own), own, native),)
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

        def safe(text: str) -> str:
            return self._slot(text, "tool", "a call").text

        if turn.ids:
            names = tuple(safe(one.name or "tool") for one in turn.calls)
            stands_in = replace(shown, call_ids=ids, stands_in=True, call_names=names)
            return stands_in if self.tools.results == "calls" else shown

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

    def _own(self, turn: Turn) -> Shown:
        given = "".join(part.text for part in turn.parts if part.source == PREFILL)
        said = self.decode(turn.ids[:-1] if turn.ids[-1] in self.end_ids else turn.ids)
        marks, what = self.template.thoughts, "a turn of the agent's own"
        split = marks.split(given + said) if marks else None
        if marks is None or split is None or len(split.content) == len(given + said):
            begun, sampled = (self._slot(text, "assistant", what) for text in (given, said))
            slots = (*((begun,) if given else ()), replace(sampled, turn=turn))
            return Shown("assistant", slots)
        thought = self._slot(split.thought, "assistant", what) if split.thought else None
        markup = split.lead + _HOLE * (thought is not None) + split.close
        opener = self.template.opener if marks.opened else ""
        begun = self._slot(given, "assistant", what)
        content = self._slot(split.content, "assistant", what)
        return Shown(
            "assistant",
            (replace(content, turn=turn, begun=begun.text, markup="".join(markup.split())),),
            thought=thought and replace(thought, edge="thought"),
            thought_key=marks.key,
            before=opener + split.lead if split.close else "",
            after=split.close,
        )

    def _slot(self, text: str, role: str, what: str) -> Slot:
        encoded(text, what)
        return Slot(self.control.broken(text, role), role=role)

    # -- own turns in their places ----------------------------------------------------------------

    def _placed(self, pieces: Sequence[TextPiece]) -> list[TextPiece]:
        """Put turns with thoughts right after their headers, or leave them as the template wrote them."""
        found: list[TextPiece] = []
        padding = self.template.padding
        rewritten = False  # the message that the last pieces belong to
        for piece in pieces:
            if isinstance(piece, str) or piece.turn is None:
                rewritten = rewritten and not (isinstance(piece, str) and piece)
                found.append(piece)
                continue
            if piece.markup is None:
                if padding and isinstance(before := found[-1] if found else None, str):
                    found[-1] = before.removesuffix(padding)
                found.append(replace(piece, turn=None, begun="") if rewritten else piece)
                continue
            above = found[-2] if len(found) > 2 and _HOLE in piece.markup else ""
            shown = isinstance(above, Slot) and above.edge == "thought"
            header, *between = found[-3 if shown else -1 :]
            rest = f"{_HOLE}{''.join(between[1:])}" if shown else ""  # type: ignore[arg-type]
            placed = self._header_before(str(header), "".join(rest.split()), piece.markup)
            if placed is None:
                rewritten = True
                found.append(replace(piece, turn=None, begun="", markup=None))
            else:
                found[-3 if shown else -1 :] = [placed, piece]
        return found

    def _header_before(self, before: str, rest: str, markup: str) -> str | None:
        """Return the template's text up to the place where a turn was sampled.

        Args:
            before: Text of the template before the thought, or else before the content.
            rest: Text of the template from the thought to the content, without white space.
            markup: The turn's own text around its thought, without white space.

        Returns:
            ``before`` up to the end of the prompt, or ``None`` if the template writes the turn in another way.
        """
        core, opener = self.template.core, self.template.opener
        at = before.rfind(core) if core else -1
        if at >= 0:
            at += len(core)
            same = "".join((before[at:] + rest).split()) == "".join(opener.split()) + markup
            return before[:at] + opener if same else None
        # The template writes no header here, such as after results.
        lead = markup.removesuffix(rest)
        at = len(before)
        while lead and at:
            at -= 1
            if before[at].isspace():
                continue
            if before[at] != lead[-1]:
                return None
            lead = lead[:-1]
        return before[:at] if not lead and markup.endswith(rest) else None

    def _splice(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Token ids of the pieces, own turns as the ids that were sampled."""
        ids: list[int] = []
        between: list[TextPiece] = []
        for piece in pieces:
            turn = None if isinstance(piece, str) else piece.turn
            if turn is None:
                between.append(piece)
                continue
            if begun := piece.begun:  # type: ignore[union-attr]
                between.append(Slot(begun, role="assistant"))
            self._extend(ids, between)
            ids += turn.ids
            between = []
        self._extend(ids, between)
        return tuple(ids)

    def _extend(self, ids: list[int], pieces: Sequence[TextPiece]) -> None:
        """Add the ids of what follows an own turn, which may have ended already."""
        found = self._following("\n" if ids else "", pieces)
        if found and ids and ids[-1] in self.end_ids:
            end, first = self.decode(ids[-1:]), pieces[0]
            if found[0] == ids[-1]:
                found = found[1:]
            elif isinstance(first, str) and first.lstrip().startswith(end):
                found = self.control.encode([first.lstrip(), *pieces[1:]])[1:]
            elif found[0] in self.control.ids:
                ids.pop()
        ids += found

    @cached_property
    def _pads_texts(self) -> bool:
        """Whether the tokenizer puts a space before what begins a text, as SentencePiece does."""
        first, whole = self.control.encode(["\n"]), self.control.encode(["\n", "a"])
        return whole[len(first) :] != self.control.encode(["a"])

    def _following(self, before: str, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Return the ids of pieces after a text, without a space of the tokenizer's own."""
        if not self._pads_texts:
            return self.control.encode(pieces)
        first, whole = self.control.encode([before]), self.control.encode([before, *pieces])
        same = whole[: len(first)] == first
        return whole[len(first) :] if same else self.control.encode(pieces)

    # -- turns that nobody sampled ----------------------------------------------------------------

    def _written(self, text: str) -> list[TextPiece]:
        """The text of a turn as it follows a prompt."""
        what = "a turn that was written elsewhere"
        marks = self.template.thoughts
        if marks is None:
            padding = "" if text.startswith(self.template.padding) else self.template.padding
            return [padding, self._slot(text, "assistant", what)]
        begun = marks.split(text, opened=False)
        if marks.opened and not begun.lead and marks.close.split()[0] in text:
            begun = marks.split(text, opened=True)
        thinks = bool(begun.thought) and (marks.opened or not self.template.opener.strip())
        lead, close = self._around_thought(thinks)
        thought = self._slot(begun.thought, "assistant", what)
        content = self._slot(begun.content, "assistant", what)
        return [lead, thought, close, content] if thinks else [lead, content]

    def _marks_around(self, thinks: bool) -> tuple[str, str]:
        """The template's text after a prompt and before a thought, and between it and the content.

        Without a thought the first is all that stands before the content.
        """
        marks = self.template.thoughts
        assert marks is not None
        asked, said, thought = Shown("user", (Slot("a"),)), (Slot(WORD),), f"{WORD}t"
        own = Shown("assistant", said)
        if thinks:
            own = Shown("assistant", said, thought=Slot(thought), thought_key=marks.key,
                        before=marks.open, after=marks.close)  # fmt: skip
        chat = [one.message(one.text, lambda slot: slot.text) for one in (asked, own)]
        prompt, whole = self.template.text(chat[:1], True), self.template.text(chat, False)
        common = commonprefix([prompt, whole])  # noqa: RUF071
        lead, shown, close = whole[len(common) :].partition(thought) if thinks else ("", "", "")
        if thinks and shown and not prompt[len(common) :].strip():
            return lead, close.partition(WORD)[0]
        if thinks:  # the template drops all thoughts
            return ("" if marks.opened else marks.open), marks.close
        if marks.opened and prompt[len(common) :].strip():  # it opens a thought and writes none
            return marks.close, ""
        return whole[len(common) :].partition(WORD)[0], ""

    def _template_end(self) -> tuple[int, ...]:
        """The control token that the template writes after an assistant's turn, if it does."""
        chat = [Shown(role, (Slot("word"),)) for role in ("user", "assistant")]
        pieces = Layout(self.template, chat, False, self.control.hidden).pieces()
        after = self.control.encode(pieces[-1:])
        return after[:1] if set(after[:1]) <= self.control.ids else ()


def _merged(one: Shown, other: Shown) -> Shown:
    return replace(one, slots=(*one.slots, _BETWEEN, *other.slots))


def _goes_on(shown: Shown) -> bool:
    """Return True if a message ends with what was put into it while it was being written."""
    return bool(shown.slots) and shown.role == "assistant" and shown.slots[-1].role == INLINE


def _own_turn(message: Message, tree: Tree, reader: str) -> Turn | None:
    if message.turn is None or message.role != "assistant":
        return None
    turn = tree.turns[message.turn]
    own = turn.speaker.kind in ("agent", "person") and turn.speaker.name == reader and turn.ids
    return turn if own else None
