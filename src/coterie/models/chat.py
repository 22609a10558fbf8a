"""Chat rendering: messages to token ids, with every turn of the reader as the ids that were sampled.

If the template writes a turn's thought and content as sampled (but for white space), the recorded ids follow the turn's
prompt. If it changes them (drops a thought), the prompt has its own text, and the view opens a new segment.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from coterie.config.folders import encoded
from coterie.errors import UserError
from coterie.models.call_syntaxes import json_text, mapped, openai_call
from coterie.models.control import ControlTokens
from coterie.models.template import WORD, ChatTemplate, Layout, Slot, TemplateMessage, TextPiece
from coterie.models.tool_calls import ToolTemplate
from coterie.record.tree import Tree
from coterie.record.turn import (
    SAMPLED,
    THOUGHT,
    Finish,
    Message,
    Part,
    PrivilegeError,
    Tool,
    ToolCall,
    Turn,
    common_length,
    place,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INLINE = "inline"
SHORT = 256
"""Maximum number of ids whose text is kept."""
_HOLE = "\0"
"""Placeholder for a thought between its marks."""


class ChatRenderer:
    """Renderer of messages with a tokenizer's chat template. Implements ``record.rows.Render``.

    A system message that the template cannot show at its position becomes a user message. Results are shown in the
    order of the calls: a ``tool`` message each, or one ``user`` message if that is their role, or the template has no
    tool messages. An ``inline`` message continues the previous turn without template text. The template writes calls
    only for turns without tokens.
    """

    end_ids: frozenset[int]
    """Ids that end a turn: from the tokenizer, the arguments and the template."""
    tools: ToolTemplate

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        end_ids: Iterable[int] = (),
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, template_args)
        self.control = ControlTokens(tokenizer, self.template)
        # Each trial renders a chat, and each prompt asks about the same few sequences of roles.
        self._takes = lru_cache(None)(self._takes_roles)
        self._decode_short = lru_cache(4096)(self._decode)
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.end = self._find_end([*end_ids, *eos]) or tuple(eos)
        """Tokens that end a turn from another source, as the template writes them; engines stop at the last."""
        # Trials of tools need the control tokens, and find those that agents must be able to write.
        self.tools = ToolTemplate(self.template, self.control)
        self.control.allow(self.tools.markup)
        self.end_ids = frozenset([*end_ids, *eos, *self.end[-1:], *self.tools.ends])

    def render(
        self,
        messages: Sequence[Message],
        tree: Tree,
        reader: str,
        *,
        generation: bool = True,
        privileges: str | None = None,
        tools: Sequence[Tool] = (),
    ) -> tuple[int, ...]:
        """Return the prompt ids of ``messages`` for ``reader``, whose own turns appear as sampled.

        Args:
            messages: Messages to show.
            tree: Tree of the turns in ``messages``.
            reader: Name of the agent.
            generation: Add the header of the reader's next turn.
            privileges: Second role whose private parts are visible, such as for a critic.
            tools: Tools that the template shows.

        Raises ``PrivilegeError`` for a part that neither the reader nor ``privileges`` may see.
        """
        viewers = (reader,) if privileges is None else (reader, privileges)
        if tools:
            self.tools.required()
        # Descriptions of tools are content, and may spell control tokens like any other.
        safe_tools = [
            Tool(self._safe(t.name), self._safe(t.description), mapped(t.parameters, self._safe))
            for t in tools
        ]
        callers = _callers(messages, tree)
        chat = self._join_continued(
            item
            for message, caller in zip(messages, callers, strict=True)
            for item in self._prepare(message, tree, reader, viewers, bool(tools), caller)
        )
        # An agent that samples after an inline result continues its turn, without end and header.
        unfinished = chat.pop().slots if generation and chat and _continues(chat[-1]) else ()
        arranged, hidden = self._arrange(chat), self.control.hidden
        pieces = Layout(self.template, arranged, generation, hidden, safe_tools).pieces
        pieces_of_turns, rewritten = self._place_turns(pieces, native=bool(tools))
        if not rewritten:
            return self._splice([*pieces_of_turns, *unfinished])
        # Render again, with these turns as text for which the template writes the calls.
        revised = Tree(tree.task, tree.stage, tree.iteration, {**tree.turns, **rewritten})
        options: dict[str, Any] = {"generation": generation, "privileges": privileges}
        return self.render(messages, revised, reader, tools=tools, **options)

    __call__ = render

    def encode_turn(self, text: str, *, end: bool = True) -> tuple[int, ...]:
        """Encode a turn from another source as it follows a prompt, with an end of turn if ``end``.

        Spelled control tokens are broken up, so the text cannot forge another turn.
        """
        ids = self._encode_after(self.template.prompt, self._turn_pieces(text))
        return ids + (self.end if end else ())

    def encode_content(self, text: str) -> tuple[int, ...]:
        """Encode a text within a message, without the template's text. Spelled control tokens are broken up."""
        return self._encode_after("\n", [self._slot(text, "user", "a text")])

    def format_turn(self, text: str) -> str:
        """Return the text of :meth:`encode_turn`, with a closed or empty thought as the template writes it."""
        return "".join(
            piece if isinstance(piece, str) else piece.text for piece in self._turn_pieces(text)
        )

    def parts(
        self, text: str, agent: str, source: str, ids: Sequence[int] = ()
    ) -> tuple[Part, ...]:
        """Split a turn into its thought (with marks and a span of ``ids``), which only the agent sees, and the rest."""
        text = text.removesuffix(self.decode(self.end[:-1]))
        marks = self.template.thoughts or (self.template.plain_marks if source == SAMPLED else None)
        content = marks.split(text).content if marks else text
        if len(content) == len(text):
            return (Part(text, source=source),)
        head = text[: len(text) - len(content)]
        # The first number of tokens whose text covers the thought. Decoded text grows with the
        # number of tokens, so a binary search finds it.
        count = bisect_left(range(len(ids)), len(head), key=lambda n: len(self.decode(ids[:n])))
        thought = Part(head, frozenset({agent}), THOUGHT, span=(0, count) if ids else None)
        return (thought, Part(content, source=source))

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, including control tokens."""
        # Each prompt of a dialogue decodes the turns before it again.
        return self._decode_short(tuple(ids)) if len(ids) <= SHORT else self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def calls(self, text: str, finish: Finish, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """Parse the calls of a sampled message; ``UserError`` if the model has no call syntax."""
        return self.tools.required().parse(text, finish, tools)

    def _find_end(self, stops: Sequence[int]) -> tuple[int, ...]:
        """Return the control tokens that end each answer, up to one of ``stops`` (such as Cohere 2's two).

        If nothing follows the final answer, a turn ends where the next user message begins (GLM's ``<|user|>``).
        """
        roles = ("user", "assistant", "user")
        chat = [{"role": role, "content": f"{WORD}{role}"} for role in roles]
        texts = (self.template.try_text(chat[:count], False) for count in (2, 3))
        following = [self.control.encode([text.partition(f"{WORD}assistant")[2]]) for text in texts]
        final, middle = (tuple(takewhile(self.control.ids.__contains__, ids)) for ids in following)
        # Tokens after one of the chats only end the chat, or begin the next message.
        run = final[: common_length(final, middle)] or (final or middle)[:1]
        return run[: next((n for n, token in enumerate(run, 1) if token in stops), len(run))]

    # -- messages for the template ----------------------------------------------------------------

    def _slot(self, text: str, role: str, description: str) -> Slot:
        encoded(text, description)
        return Slot(self.control.break_up(text, role), role=role)

    def _safe(self, text: str) -> str:
        return self._slot(text, "tool", "a tool or a call").text

    def _join_continued(self, messages: Iterable[TemplateMessage]) -> list[TemplateMessage]:
        """Join a turn, its inline results and its continuation into one message."""
        chat: list[TemplateMessage] = []
        for message in messages:
            previous = chat[-1] if chat else None
            turn = (
                previous.slots[-1].turn
                if previous and previous.slots and previous.role == "assistant"
                else None
            )
            # A turn that ended at a stop string has no end token: the result and the rest belong to it.
            was_cut = turn is not None and turn.ids[-1] not in self.end_ids
            if message.role == INLINE and not (previous and (was_cut or _continues(previous))):
                message = replace(message, role="user")
            roles = (previous.role if previous else "", message.role)
            if previous and (
                message.role == INLINE or (message.role == "assistant" and _continues(previous))
            ):
                slots = (replace(slot, markup=None) for slot in message.slots)
                chat[-1] = replace(previous, slots=(*previous.slots, *slots))
            elif previous and roles == ("tool", "user") and not self.tools.users_after_results:
                chat[-1] = _merge(previous, message)
            else:
                chat.append(message)
        return chat

    def _arrange(self, chat: Sequence[TemplateMessage]) -> list[TemplateMessage]:
        """Change roles and merge messages so that the template shows all of them."""
        result: list[TemplateMessage] = []
        after_system = False
        for index, message in enumerate(chat):
            # Some templates refuse system messages, or show them only at the beginning.
            is_changed = message.role == "system" and not self._takes_system(
                index, chat[index + 1 :]
            )
            message = replace(message, role="user") if is_changed else message
            # Many templates refuse two user messages in a row, which a changed role may have made.
            follows_user = bool(result) and result[-1].role == message.role == "user"
            if follows_user and (after_system or not self._takes(("user", "user"))):
                message = _merge(result.pop(), message)
            result.append(message)
            after_system = is_changed
        return result

    def _takes_system(self, index: int, rest: Sequence[TemplateMessage]) -> bool:
        if index:
            return self._takes(("user", "assistant", "system", "user"))
        roles = [message.role for message in rest]
        if "tool" in roles and not self.tools.system_with_results:
            return False
        if roles[:1] == ["user"]:
            return self._takes(("system", "user"))
        return self._takes(("system",)) and self._takes(("system", "assistant", "user"))

    def _takes_roles(self, roles: Sequence[str]) -> bool:
        """Return True if the template shows messages of these roles in order."""
        chat = [{"role": role, "content": f"{WORD}{index}x"} for index, role in enumerate(roles)]
        return self.template.shows(chat, "system")

    def _prepare(
        self,
        message: Message,
        tree: Tree,
        reader: str,
        viewers: Sequence[str],
        native: bool,
        caller: Turn | None,
    ) -> tuple[TemplateMessage, ...]:
        """Convert a message for the template.

        ``native``: write calls in the model's own syntax. ``caller``: the last turn with calls before the message.
        """
        role = "user" if message.role == "tool" else message.role
        turn = tree.turns[message.turn] if message.turn is not None else None
        # A part of a prompt that the reader may not see is an error of the environment. Private
        # parts of a turn (thoughts) are left out for others.
        for part in message.parts:
            if not any(map(part.visible_to, viewers)):
                raise PrivilegeError(
                    f"a {message.role} message for {' and '.join(map(repr, viewers))} has a part from {part.source} "
                    f"that only {', '.join(sorted(part.audience or ()))} may see"
                )
        own_parts = turn.parts if turn else ()
        parts = [*message.parts, *(p for p in own_parts if any(map(p.visible_to, viewers)))]
        content = "".join(part.text for part in parts)
        # Results of tools: messages of their own, if the template has a form for them.
        if turn and turn.results and not turn.parts:
            if message.role == "tool" and self.tools.results != "user":
                return self._results(tree, turn, content, caller)
            content = content or "\n".join(result.text for result in turn.results)
        if any(part.image for part in parts):
            problem = f"a {message.role} message has an image, and this model reads only text"
            raise UserError(problem, "describe the image in words, or use a model that sees")
        called = turn if turn and role == "assistant" else None
        has_thought = any(part.source == THOUGHT for part in parts)
        # Own turns appear as their tokens. A thought before calls is given to the template apart.
        if called and (_is_own(called, reader) or (called.calls and has_thought)):
            result = self._own_message(called)
        else:
            slot = self._slot(content, role, f"a {message.role} message")
            result = TemplateMessage(role, (slot,) if content else ())
        if called and called.calls and native:
            result = self._add_calls(result, called, tree)
        return (result,)

    def _add_calls(self, message: TemplateMessage, turn: Turn, tree: Tree) -> TemplateMessage:
        """Add a turn's calls to its message.

        The template writes them for a turn without tokens. The tokens of other turns have the calls already; if the
        template takes results only after calls, these tokens replace its text.
        """
        first_call = _count_calls(tree, turn)
        ids = tuple(self.tools.call_id(first_call + index) for index in range(len(turn.calls)))
        # Calls of a demonstration are content, which must not spell control tokens in the template's text.
        if not turn.ids:
            safe = [openai_call(call, "", self._safe)["function"] for call in turn.calls]
            calls = [
                ToolCall("", function["name"], json_text(function["arguments"]))
                for function in safe
            ]
            return replace(message, calls=tuple(calls), call_ids=ids)
        if self.tools.results != "calls":
            return message
        calls = [ToolCall("", self._safe(call.name or "tool"), "") for call in turn.calls]
        # `(?!)` matches nowhere, for a model without a syntax of calls.
        opening = getattr(self.tools.syntax, "opening", re.compile(r"(?!)"))
        ends = (*turn.ids[-1:], *self.end, *sorted(self.end_ids))
        around = opening, tuple(self.decode([token]) for token in ends if token in self.end_ids)
        return replace(message, calls=tuple(calls), call_ids=ids, around=around)

    def _results(
        self, tree: Tree, turn: Turn, replacement: str, caller: Turn | None
    ) -> tuple[TemplateMessage, ...]:
        # Results name their calls by position in the turn that made them, which a prompt may omit.
        ancestors = (ancestor for ancestor in reversed(tree.path(turn.id)) if ancestor.calls)
        caller = caller or next(ancestors, turn)
        names = {call.id: call.name for call in caller.calls}
        first_call, messages = _count_calls(tree, caller), []
        for result in turn.results:
            text = replacement or result.text
            slots = (self._slot(text, "tool", "a tool's result"),) if text else ()
            name = self._slot(names.get(result.call_id) or "tool", "tool", "the name of a tool")
            id_ = self.tools.call_id(first_call + place(result.call_id))
            messages.append(TemplateMessage("tool", slots, id_, name))
        return tuple(messages)

    def _own_message(self, turn: Turn) -> TemplateMessage:
        """Return a turn with its thought apart; without tokens, the template writes its text."""
        recorded = turn if turn.ids else None
        text = self._without_end(turn.ids) if recorded else turn.whole_text
        marks, label = self.template.thoughts, "a turn of the agent's own"
        split = marks.split(text) if marks else None
        # Without a thought, the tokens follow the header, whatever the template does with thoughts.
        if marks is None or split is None or len(split.content) == len(text):
            sampled = replace(self._slot(text, "assistant", label), turn=recorded)
            return TemplateMessage("assistant", (sampled,))
        thought = self._slot(split.thought, "assistant", label) if split.thought else None
        markup = split.lead + _HOLE * (thought is not None) + split.close
        opener = self.template.opener if marks.opened else ""
        content = self._slot(split.content, "assistant", label)
        content = replace(content, turn=recorded, markup=markup)
        return TemplateMessage(
            "assistant",
            (content,) if recorded or content.text else (),
            thought=thought and replace(thought, edge="thought"),
            thought_key=marks.key,
            before=opener + split.lead if split.close else "",
            # A template that cuts a thought from the content may leave the space after it (DeepSeek).
            after=split.close.rstrip() if recorded else split.close,
        )

    # -- own turns --------------------------------------------------------------------------------

    def _without_calls(self, turn: Turn) -> Turn | None:
        """Return a turn without tokens and calls in its text; ``None`` if the template can't write all of it."""
        text, syntax = self._without_end(turn.ids), self.tools.required()
        content = self.template.thoughts.split(text).content if self.template.thoughts else text
        opening = syntax.opening.search(content)
        lead = content[: opening.start()].rstrip() if opening else content
        *closed, rest = content.rsplit(syntax.closing or _HOLE, 1)
        # Text after the last call, other than tags, would be lost.
        has_more = closed and re.sub(r"<[^<>]*>", "", rest).strip()
        # The template can write only calls that were read, and text without control tokens.
        is_broken = any(call.error for call in turn.calls) or lead != self._safe(lead)
        if not turn.calls or has_more or is_broken:
            return None
        text = text.removesuffix(content) + lead
        return replace(turn, ids=(), sample=None, parts=self.parts(text, turn.speaker.name, ""))

    def _place_turns(
        self, pieces: Sequence[TextPiece], *, native: bool
    ) -> tuple[list[TextPiece], dict[str, Turn]]:
        """Move turns with thoughts right after their headers, or keep the template's text of them.

        Return the pieces, and turns whose calls the template must write (if ``native``), by id: in their text, control
        tokens of calls would be broken up.
        """
        result: list[TextPiece] = []
        rewritten: dict[str, Turn] = {}
        is_rewritten = False  # the message of the previous pieces
        for piece in pieces:
            if isinstance(piece, str) or piece.turn is None:
                is_rewritten = is_rewritten and not (isinstance(piece, str) and piece)
                result.append(piece)
            elif piece.markup is None:
                # Models sample this white space themselves, so it is among the turn's tokens.
                if result and isinstance(previous := result[-1], str):
                    result[-1] = previous.removesuffix(self.template.padding)
                result.append(replace(piece, turn=None) if is_rewritten else piece)
            else:
                thought = result[-2] if len(result) > 2 and _HOLE in piece.markup else ""
                has_thought = isinstance(thought, Slot) and thought.edge == "thought"
                start = -3 if has_thought else -1
                rest = f"{_HOLE}{result[-1]}" if has_thought else ""
                # If the template writes thought and content as sampled, the tokens follow its
                # header. If not (it drops the thought), its own text of the turn stays.
                prompt = self._header_before(str(result[start]), rest, piece)
                is_rewritten = prompt is None
                if prompt is not None:
                    result[start:] = [prompt, piece]
                    continue
                if native and (revised := self._without_calls(piece.turn)):
                    rewritten[revised.id] = revised
                is_broken = piece.text not in self.decode(piece.turn.ids)
                turn = piece.turn if native and piece.turn.calls and is_broken else None
                result.append(replace(piece, turn=turn, markup=None))
        return result, rewritten

    def _header_before(self, prefix: str, rest: str, content: Slot) -> str | None:
        """Return the template's text up to the place where a turn was sampled; ``None`` if it writes it otherwise.

        ``prefix`` is the template's text before the thought (or else the content), ``rest`` its text from there to the
        content. White space may differ, except in turns that were not sampled.
        """
        core, opener, markup = self.template.core, self.template.opener, content.markup or ""
        marks, stop = self.template.thoughts, prefix.rfind(core) if core else -1
        if stop >= 0:
            stop += len(core)
            is_exact = marks and marks.key and content.turn and content.turn.sample is None
            rendered, sampled = prefix[stop:] + rest, opener + markup
            same = rendered == sampled if is_exact else _squeeze(rendered) == _squeeze(sampled)
            return prefix[:stop] + opener if same else None
        # The template writes no header here, such as after results.
        markup, rest = _squeeze(markup), _squeeze(rest)
        lead = r"\s*".join(map(re.escape, markup.removesuffix(rest)))
        match = re.search(rf"{lead}\s*\Z" if lead else r"\Z", prefix)
        return prefix[: match.start()] if match and markup.endswith(rest) else None

    def _splice(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Encode the pieces, with sampled ids for own turns."""
        ids: list[int] = []
        between: list[TextPiece] = []
        for piece in pieces:
            if isinstance(piece, str) or piece.turn is None:
                between.append(piece)
                continue
            # Encode the text between two turns as a whole, since a token may span several pieces.
            self._extend(ids, between)
            ids += piece.turn.ids
            between = []
        self._extend(ids, between)
        return tuple(ids)

    def _extend(self, ids: list[int], pieces: Sequence[TextPiece]) -> None:
        """Append the ids of pieces; the previous turn may already have its end of turn."""
        new = self._encode_after("\n" if ids else "", pieces)
        if new and ids and ids[-1] in {*self.end_ids, *self.end}:
            end, first_piece = self.decode(ids[-1:]), pieces[0]
            # The template writes the end of turn that was sampled already: leave out the second one.
            if size := next((n for n in (len(self.end), 1) if tuple(ids[-n:]) == new[:n]), 0):
                new = new[size:]
            elif isinstance(first_piece, str) and first_piece.lstrip().startswith(end):
                # The template has white space before the end of turn, and the sampled turn has no white space there.
                new = self.control.encode([first_piece.lstrip(), *pieces[1:]])[1:]
            elif new[0] in self.control.ids and ids[-1] not in self.tools.ends:
                # The turn ended with another token than the template writes, which then replaces it.
                ids.pop()
        ids += new

    def _without_end(self, ids: Sequence[int]) -> str:
        """Return the text of a turn without the tokens that end it."""
        text = self.decode(ids[:-1] if ids[-1] in self.end_ids else ids)
        return text.removesuffix(self.decode(self.end[:-1]))

    @cached_property
    def _pads_texts(self) -> bool:
        """True if the tokenizer puts a space before each text, as SentencePiece does."""
        newline, joined = self.control.encode(["\n"]), self.control.encode(["\n", "a"])
        return joined[len(newline) :] != self.control.encode(["a"])

    def _encode_after(self, prefix: str, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Encode pieces that follow a text, without a space from the tokenizer."""
        if self._pads_texts:
            # Encode behind a text that is known to precede, and cut off its tokens.
            prefix_ids = self.control.encode([prefix])
            all_ids = self.control.encode([prefix, *pieces])
            if all_ids[: len(prefix_ids)] == prefix_ids:
                return all_ids[len(prefix_ids) :]
        return self.control.encode(pieces)

    # -- turns from other sources -----------------------------------------------------------------

    def _turn_pieces(self, text: str) -> list[TextPiece]:
        """Split a turn from another source into template text and content."""
        description = "a turn that was written elsewhere"
        marks = self.template.thoughts
        if marks is None:
            padding = "" if text.startswith(self.template.padding) else self.template.padding
            return [padding, self._slot(text, "assistant", description)]
        split = marks.split(text, opened=False)
        # The prompt opens the thought, so a sampled text has the closing mark only.
        if marks.opened and not split.lead and marks.close.split()[0] in text:
            split = marks.split(text, opened=True)
        content = self._slot(split.content, "assistant", description)
        if not split.thought:
            return [marks.plain, content]
        if self.template.opener.strip() and not marks.opened:  # as sampled after a closed thought
            return [self._slot(text, "assistant", description)]
        thought = self._slot(split.thought, "assistant", description)
        return ["" if marks.opened else marks.open, thought, marks.close, content]


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _merge(message: TemplateMessage, following: TemplateMessage) -> TemplateMessage:
    return replace(message, slots=(*message.slots, Slot("\n\n"), *following.slots))


def _continues(message: TemplateMessage) -> bool:
    """Return True if a message ends with an inline result."""
    return bool(message.slots) and message.role == "assistant" and message.slots[-1].role == INLINE


def _callers(messages: Iterable[Message], tree: Tree) -> Iterator[Turn | None]:
    """Yield the last turn with calls before each message: conversations of one speaker may run in parallel."""
    caller = None
    for message in messages:
        yield caller
        turn = None if message.turn is None else tree.turns[message.turn]
        caller = turn if turn and turn.calls and message.role == "assistant" else caller


def _count_calls(tree: Tree, turn: Turn) -> int:
    """Count the calls of a speaker before a turn; models number their calls so (Kimi)."""
    path = tree.path(turn.id)[:-1]
    return sum(len(earlier.calls) for earlier in path if earlier.speaker == turn.speaker)


def _is_own(turn: Turn, reader: str) -> bool:
    is_agent = turn.speaker.kind in ("agent", "person")
    return is_agent and turn.speaker.name == reader and bool(turn.ids)
