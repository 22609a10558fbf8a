"""Control tokens: those that a chat template writes, and that no content may write.

Content gets no control token by any spelling, since text is encoded by a *twin* of the tokenizer in
which the control tokens have secret names. What the template wrote is given these names first; all
else is ordinary text to the twin, however it is normalised and whatever it is joined with. Text
without control tokens gets the ids that the tokenizer itself gives.

So that decoded prompts can be read without doubt, a control token that is spelled out in content is
also broken up with a space, as is what can't be told apart by ids: markers that are plain text.
"""

import json
import re
import secrets
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from coterie.errors import UserError
from coterie.models.layout import Shown, Slot, TextPiece, probe
from coterie.models.template import ChatTemplate

CACHED = 8192
BREAKS = 8
"""Times that a content is broken up before it is refused."""
_BRACKETED = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)
"""A token of a model's own vocabulary that looks like a role marker, such as ``[INST]``."""
_SIGNED = re.compile(r"[^\w\s]")
CharacterSpan = tuple[int, int, int]
"""A token and the half-open range of the text that it stands for."""


class ControlTokens:
    """The control tokens of a tokenizer with a chat template.

    Raises ``UserError`` if they can't be kept from contents.
    """

    ids: frozenset[int]
    """Special tokens, and all added ones that the template writes, but for white space."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: ChatTemplate) -> None:
        if not tokenizer.is_fast:
            raise UserError(
                f"the tokenizer {tokenizer.name_or_path or '(unnamed)'} has no tokenizer.json, so "
                "control tokens can't be kept out of what people say",
                "convert it to a fast tokenizer, or use another model",
            )
        self._tokenizer = tokenizer
        self._scan = lru_cache(CACHED)(self._scanned)
        self._named = lru_cache(CACHED)(self._renamed)
        self._encode = lru_cache(CACHED)(self._encoded)
        self.broken = lru_cache(CACHED)(self._broken)
        probes = list(probe(template))
        self._texts = {i: t.content for i, t in tokenizer.added_tokens_decoder.items()}
        written = {one for pieces in probes for one in self._written(pieces)}
        self.ids = self._control(template, written)
        self._meant = self.ids - ({tokenizer.unk_token_id} - written)
        self._words = self._word_markers(probes)
        self._markers = _pattern(_plain_markers(self._bare(probe) for probe in probes))
        self._signed = {
            i for i in self.ids if len(t := self._texts[i].strip()) > 1 and _SIGNED.search(t)
        }
        self._firsts = {_fold(self._texts[i].lstrip())[:1] for i in self.ids}
        nonce = secrets.token_hex(8)
        self._names = {i: f"\ue000{nonce}n{i}\ue001" for i in self.ids}
        self._twin = self._made_twin()
        self._back = self._twin_ids()
        marks = template.thoughts
        self.acted = frozenset(
            self.written(marks.open + marks.close + marks.answer) if marks else ()
        )
        """Control tokens with which thoughts are written."""
        added = tokenizer.added_tokens_decoder
        self._kept = frozenset(one for one in self.acted if not added[one].special)
        self._check(probes)

    def encode(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Ids of a text without turns; only what the template wrote makes control tokens.

        Raises ``UserError`` where that can't be had.
        """
        return self._encode(tuple(pieces))

    def hidden(self, shown: Shown) -> Iterator[tuple[str, bool]]:
        """A content, split at characters that might begin a control token: (text, whether so).

        Control tokens of calls in an assistant's message stay whole.
        """
        kept, text, at = self.kept(shown.role), shown.text, 0
        spans = [(start, stop) for one, start, stop in self._scan(text) if one in kept]
        for start, stop in [*spans, (len(text), len(text))]:
            yield from ((c, _fold(c)[:1] in self._firsts) for c in text[at:start])
            yield text[start:stop], False
            at = stop

    def kept(self, role: str) -> frozenset[int]:
        """Control tokens that a message of this role may spell: those of thoughts and calls."""
        return self._kept if role == "assistant" else frozenset()

    def keep(self, ids: Collection[int]) -> None:
        """Let an assistant's messages spell these control tokens, with which it writes calls."""
        self._kept |= frozenset(ids)
        for cached in (self._encode, self.broken):
            cached.cache_clear()

    def written(self, text: str) -> list[int]:
        return [one for one, *_ in self._scan(text) if one in self.ids]

    # -- which they are ---------------------------------------------------------------------------

    def _written(self, pieces: Sequence[TextPiece]) -> Iterator[int]:
        return (one for text in _written(pieces) for one, *_ in self._scan(text))

    def _control(self, template: ChatTemplate, written: Collection[int]) -> frozenset[int]:
        added = self._tokenizer.added_tokens_decoder
        return frozenset(
            one
            for one, text in self._texts.items()
            if added[one].special
            or (text.strip() and one in written)
            or (_SIGNED.search(text) and text in template.source)
        )

    def _word_markers(self, probes: Sequence[Sequence[TextPiece]]) -> frozenset[int]:
        """Tokens of the model's own that the template writes as role markers."""
        return frozenset(
            one
            for pieces in probes
            for text in _written(pieces)
            for one, start, stop in self._scan(text)
            if one not in self._texts and _BRACKETED.fullmatch(text[start:stop].strip())
        )

    def _bare(self, pieces: Sequence[TextPiece]) -> list[list[str]]:
        found = []
        for text in _written(pieces):
            runs, at = [], 0
            for one, start, stop in self._scan(text):
                if one in self.ids:
                    runs.append(text[at:start])
                    at = stop
            found.append([*runs, text[at:]])
        return found

    # -- the twin ---------------------------------------------------------------------------------

    def _made_twin(self) -> Tokenizer:
        state: dict[str, Any] = json.loads(self._tokenizer.backend_tokenizer.to_str())
        state |= {"truncation": None, "padding": None, "post_processor": None}
        for token in state["added_tokens"]:
            if token["id"] in self._names:
                name = self._names[token["id"]]
                token |= {"content": name, "normalized": False, "single_word": False}
        _rename(state["model"], {self._texts[i]: name for i, name in self._names.items()})
        return Tokenizer.from_str(json.dumps(state))

    def _twin_ids(self) -> dict[int, int]:
        names = self._texts | self._names
        found = {self._twin.token_to_id(name): i for i, name in names.items()}
        return {twin: i for twin, i in found.items() if twin is not None and twin != i}

    def _encoded(self, pieces: tuple[TextPiece, ...]) -> tuple[int, ...]:
        ids = self._read(pieces)
        if [one for one in ids if one in self._meant] != self._wanted(pieces):
            raise self._forged()
        if self._words:
            bare = [p if isinstance(p, str) else Slot("x" * bool(p.text)) for p in pieces]
            if self._count_words(ids) > self._count_words(self._read(bare)):
                raise self._forged()
        return ids

    def _read(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        named = "".join(self._named(*self._free(piece)) for piece in pieces)
        ids = self._twin.encode(named, add_special_tokens=False).ids if named else []
        return tuple(self._back.get(i, i) for i in ids)

    def _free(self, piece: TextPiece) -> tuple[str, frozenset[int]]:
        """A piece's text, and the control tokens that it may write.

        What an assistant spells of calls is as if the template had written it.
        """
        return (piece, self.ids) if isinstance(piece, str) else (piece.text, self.kept(piece.role))

    def _wanted(self, pieces: Sequence[TextPiece]) -> list[int]:
        free = map(self._free, pieces)
        return [
            one
            for text, which in free
            if which
            for one, *_ in self._scan(text)
            if one in which and one in self._meant
        ]

    def _renamed(self, text: str, which: frozenset[int]) -> str:
        found, at = "", 0
        for one, start, stop in self._scan(text) if which else ():
            if one in which:
                found += text[at:start] + self._names[one]
                at = stop
        return found + text[at:]

    def _forged(self) -> UserError:
        texts = self._tokenizer.convert_ids_to_tokens(sorted(self._meant | self._words))
        return UserError(
            "what messages say adds up to a control token of the chat template",
            f"remove from the messages what looks like one of {', '.join(texts)}",
        )

    def _check(self, probes: Sequence[Sequence[TextPiece]]) -> None:
        for pieces in probes:
            text = "".join(p if isinstance(p, str) else p.text for p in pieces)
            if self._read(pieces) != tuple(one for one, *_ in self._scan(text)):
                raise UserError(
                    f"the tokenizer {self._tokenizer.name_or_path or '(unnamed)'} reads its chat "
                    "template's control tokens in a way that can't be kept from what people say",
                    "use another model, or report this with the model's name",
                )

    # -- contents ---------------------------------------------------------------------------------

    def _broken(self, text: str, role: str) -> str:
        """A content in which no control token and no marker of the template is spelled out.

        What can't be broken up (a token of one character) is left to the twin.
        """
        for _ in range(BREAKS):
            at = self._spelled(text, role)
            if not at:
                return text
            cuts = [0, *at, len(text)]
            text = " ".join(text[start:stop] for start, stop in pairwise(cuts))
        if self._count_words(one for one, *_ in self._scan(text)):
            raise UserError(
                "a message spells a role marker of the chat template that can't be broken up",
                "remove it from the message",
            )
        return text

    def _spelled(self, text: str, role: str) -> list[int]:
        kept = self.kept(role)
        at = {
            start + len(text[start:stop]) - len(text[start:stop].lstrip()) + 1
            for one, start, stop in self._scan(text)
            if (one in self._signed and one not in kept) or one in self._words
        }
        if self._markers is not None:
            folded = "".join(map(_fold, text))
            at |= {found.start() + 1 for found in self._markers.finditer(folded)}
        return sorted(at)

    def _scanned(self, text: str) -> tuple[CharacterSpan, ...]:
        if not text:
            return ()
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
        return tuple((one, *span) for one, span in pairs)

    def _count_words(self, ids: Collection[int] | Iterator[int]) -> int:
        return sum(one in self._words for one in ids)


def _written(pieces: Sequence[TextPiece]) -> Iterator[str]:
    return (piece for piece in pieces if isinstance(piece, str))


def _plain_markers(probes: Iterator[list[list[str]]]) -> set[str]:
    """Lines by which a template tells turns apart where no control token does.

    ``probes`` have, for each text that a template wrote, its runs between control tokens. A mere
    word is not a marker: it could not be broken up without harm.
    """
    found: set[str] = set()
    for texts in probes:
        if any(len(runs) == 1 and _SIGNED.search(runs[0]) for runs in texts[1:]):
            lines = (line.strip() for runs in texts for run in runs for line in run.split("\n"))
            found |= {line for line in lines if len(line) > 1 and _SIGNED.search(line)}
    return found


def _pattern(markers: Collection[str]) -> re.Pattern[str] | None:
    folded = sorted(("".join(map(_fold, marker)) for marker in markers), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, folded))) if folded else None


def _fold(character: str) -> str:
    folded = unicodedata.normalize("NFKC", character).casefold()
    return folded if len(folded) == 1 else character


def _rename(model: dict[str, Any], names: dict[str, str]) -> None:
    """Give tokens of a tokenizer's model other names; merges that made them are dropped."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): i for text, i in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [
            pair for pair in model["merges"] if not names.keys() & {*pair, "".join(pair)}
        ]
