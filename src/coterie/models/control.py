"""Control tokens: tokens that a chat template writes, and that no content may write.

An encoder copy of the tokenizer has secret names for the control tokens, which only the template's text gets. Contents
that spell one, or a plain-text marker, also get a space inside it, so that decoded prompts are unambiguous.
"""

import json
import re
import secrets
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from coterie.errors import UserError
from coterie.models.template import ChatTemplate, Slot, TemplateMessage, TextPiece, probe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CACHED = 8192
BREAKS = 8
"""Rounds of breaking up a content before it is refused."""
_BRACKETED = re.compile(r"[^\w\s].*\w.*[^\w\s]", re.DOTALL)
"""Vocabulary token that looks like a role marker, such as ``[INST]``."""
_SIGNED = re.compile(r"[^\w\s]")
_UNUSUAL = re.compile(r"[^\n\t -~]")
"""Character that a normalizer may drop, or change to another."""
CharacterSpan = tuple[int, int, int]
"""Token id and its half-open range in the text."""


class ControlTokens:
    """Control tokens of a tokenizer with a chat template. Raises ``UserError`` if contents could write them."""

    ids: frozenset[int]
    """Special tokens, and added tokens that the template writes, except white space."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: ChatTemplate) -> None:
        self._name = tokenizer.name_or_path or "(unnamed)"
        if not tokenizer.is_fast:
            problem = f"the tokenizer {self._name} has no tokenizer.json"
            fix = "convert it to a fast tokenizer, or use another model"
            raise UserError(
                f"{problem}, so control tokens can't be kept out of what people say", fix
            )
        self._tokenizer = tokenizer
        self._scan = lru_cache(CACHED)(self._scan_text)
        self._rename = lru_cache(CACHED)(self._rename_controls)
        self._encode = lru_cache(CACHED)(self._encode_pieces)
        self.break_up = lru_cache(CACHED)(self._break_up)
        added = tokenizer.added_tokens_decoder
        self._texts = {i: token.content for i, token in added.items()}
        # Small chats in all roles show which tokens and markers the template writes.
        probes = list(probe(template))
        texts = [[piece for piece in pieces if isinstance(piece, str)] for pieces in probes]
        spans = [(text, *span) for chat in texts for text in chat for span in self._scan(text)]
        in_template = {token for _, token, *_ in spans}
        # Also tokens that only the template's source names, such as tokens of tools.
        self.ids = frozenset(
            token
            for token, text in self._texts.items()
            if added[token].special
            or (text.strip() and token in in_template)
            or (_SIGNED.search(text) and text in template.source)
        )
        # Names of control tokens in the encoder copy: random, so that no content can spell them.
        nonce = secrets.token_hex(8)
        self._names = {i: f"\ue000{nonce}n{i}\ue001" for i in self.ids}
        # Any content may have characters that the vocabulary lacks, which become unknown tokens.
        self._checked = self.ids - ({tokenizer.unk_token_id} - in_template)
        self._words = {  # role markers that the template writes, and that are no added tokens
            token
            for text, token, start, stop in spans
            if token not in self._texts and _BRACKETED.fullmatch(text[start:stop].strip())
        }
        self._markers = self._plain_markers(texts, re.compile(rf"\ue000{nonce}n\d+\ue001"))
        self._signed = {
            i for i in self.ids if len(t := self._texts[i].strip()) > 1 and _SIGNED.search(t)
        }
        self._firsts = {_fold(self._texts[i].lstrip())[:1] for i in self.ids}
        spelled = [self._texts[i] for i in self._signed]
        spelled += [text[start:stop] for text, token, start, stop in spans if token in self._words]
        words = (
            text.replace("\u2581", " ").casefold().split() for text in spelled
        )  # SentencePiece
        patterns = {r"\s+".join(map(re.escape, word)) for word in words}
        self._spelled = re.compile("|".join(sorted(patterns)))
        self._encoder = self._make_encoder()
        names = (self._texts | self._names).items()
        # Added tokens may have other ids in the encoder copy; `_read` maps them back.
        encoded = {self._encoder.token_to_id(name): i for i, name in names}
        self._original = {variant: i for variant, i in encoded.items() if variant not in (None, i)}
        marks = template.thoughts
        # Agents write thoughts themselves, so their messages may have the marks.
        of_thoughts = self.find_ids(marks.open + marks.close + marks.answer) if marks else []
        self._allowed = frozenset(token for token in of_thoughts if not added[token].special)
        # Self-test: the encoder copy has to read the template's text as the original does.
        for pieces in probes:
            text = "".join(piece if isinstance(piece, str) else piece.text for piece in pieces)
            if self._read(pieces) != tuple(token for token, *_ in self._scan(text)):
                problem = f"the tokenizer {self._name} reads its chat template's control tokens in"
                fix = "use another model, or report this with the model's name"
                raise UserError(f"{problem} a way that can't be kept from what people say", fix)

    def encode(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        """Encode a text without turns; only template text makes control tokens.

        Raises ``UserError`` if the contents make a control token anyway.
        """
        return self._encode(tuple(pieces))

    def hidden(self, message: TemplateMessage) -> Iterator[tuple[str, bool]]:
        """Split a content at characters that may begin a control token: (text, is hidden).

        Allowed control tokens stay whole.
        """
        allowed, text, position = self.allowed_ids(message.role), message.text, 0
        spans = [(start, stop) for token, start, stop in self._scan(text) if token in allowed]
        # The end of the text closes its last part, as an allowed token would.
        for start, stop in [*spans, (len(text), len(text))]:
            yield from ((c, _fold(c)[:1] in self._firsts) for c in text[position:start])
            yield text[start:stop], False
            position = stop

    def allowed_ids(self, role: str) -> frozenset[int]:
        """Return the control tokens that messages of this role may spell: thoughts and calls."""
        return self._allowed if role == "assistant" else frozenset()

    def allow(self, ids: Collection[int]) -> None:
        """Let assistant messages spell these control tokens, which write calls."""
        self._allowed |= frozenset(ids)
        # Cached results were made with the earlier set of tokens.
        for cached in (self._encode, self.break_up):
            cached.cache_clear()

    def find_ids(self, text: str) -> list[int]:
        return [token for token, *_ in self._scan(text) if token in self.ids]

    def _plain_markers(
        self, chats: Sequence[Sequence[str]], control: re.Pattern[str]
    ) -> re.Pattern[str] | None:
        """Return a pattern of lines, but for plain words, that separate turns where no control token does."""
        markers: set[str] = set()
        for chat in chats:
            runs = [control.split(self._rename(text, self.ids)) for text in chat]
            # No control token separates the turns of this template, so lines of text do (`User:`).
            if any(len(run_) == 1 and _SIGNED.search(run_[0]) for run_ in runs[1:]):
                lines = (
                    line.strip()
                    for text_runs in runs
                    for run in text_runs
                    for line in run.split("\n")
                )
                markers |= {_fold(line) for line in lines if len(line) > 1 and _SIGNED.search(line)}
        longest = sorted(markers, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest))) if markers else None

    # -- encoding ---------------------------------------------------------------------------------

    def _make_encoder(self) -> Tokenizer:
        state: dict[str, Any] = json.loads(self._tokenizer.backend_tokenizer.to_str())
        # Nothing may be cut off, and the template has written all special tokens already.
        state |= {"truncation": None, "padding": None, "post_processor": None}
        for token in state["added_tokens"]:
            if token["id"] in self._names:
                name = self._names[token["id"]]
                token |= {"content": name, "normalized": False, "single_word": False}
        model, names = state["model"], {self._texts[i]: name for i, name in self._names.items()}
        # A dict for BPE and WordPiece, a list with scores for Unigram.
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
        else:
            model["vocab"] = [[names.get(text, text), score] for text, score in model["vocab"]]
        if "unk_token" in model:
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        if "merges" in model:  # drop those that made control tokens
            pairs = [pair for pair in model["merges"] if not names.keys() & {*pair, "".join(pair)}]
            model["merges"] = pairs
        return Tokenizer.from_str(json.dumps(state))

    def _encode_pieces(self, pieces: tuple[TextPiece, ...]) -> tuple[int, ...]:
        ids = self._read(pieces)
        # Each piece may write certain control tokens. If the whole has others, or in another order,
        # contents add up to one across the borders of pieces.
        expected = [
            token
            for text, allowed in map(self._writable, pieces)
            for token, *_ in (self._scan(text) if allowed else ())
            if token in allowed and token in self._checked
        ]
        is_forged = [token for token in ids if token in self._checked] != expected
        if self._words and not is_forged:
            # Role markers that are ordinary tokens of the vocabulary have no secret names: count
            # them with and without the contents.
            bare = [p if isinstance(p, str) else Slot("x" * bool(p.text)) for p in pieces]
            is_forged = self._count_words(ids) > self._count_words(self._read(bare))
        if is_forged:
            texts = self._tokenizer.convert_ids_to_tokens(sorted(self._checked | self._words))
            problem = "what messages say adds up to a control token of the chat template"
            fix = f"remove from the messages what looks like one of {', '.join(texts)}"
            raise UserError(problem, fix)
        return ids

    def _read(self, pieces: Sequence[TextPiece]) -> tuple[int, ...]:
        text = "".join(self._rename(*self._writable(piece)) for piece in pieces)
        ids = self._encoder.encode(text, add_special_tokens=False).ids if text else []
        return tuple(self._original.get(i, i) for i in ids)

    def _writable(self, piece: TextPiece) -> tuple[str, frozenset[int]]:
        """Return a piece's text, and the control tokens that it may write."""
        if isinstance(piece, str):
            return piece, self.ids
        return piece.text, self.allowed_ids(piece.role)

    def _rename_controls(self, text: str, ids: frozenset[int]) -> str:
        result, position = "", 0
        for token, start, stop in self._scan(text) if ids else ():
            if token in ids:
                result += text[position:start] + self._names[token]
                position = stop
        return result + text[position:]

    # -- contents ---------------------------------------------------------------------------------

    def _break_up(self, text: str, role: str) -> str:
        """Insert spaces into the control tokens and markers that a content spells.

        Tokens of one character stay whole; the encoder handles them.
        """
        allowed = self.allowed_ids(role)
        # A space may change how its neighbors are tokenized, so the result is checked again.
        for _ in range(BREAKS):
            # Right after the first visible character of the token, so that it is no longer spelled.
            breaks = {
                start + len(text[start:stop]) - len(text[start:stop].lstrip()) + 1
                for token, start, stop in (self._scan(text) if self._may_spell(text) else ())
                if (token in self._signed and token not in allowed) or token in self._words
            }
            if self._markers is not None:
                breaks |= {match.start() + 1 for match in self._markers.finditer(_fold(text))}
            if not breaks:
                return text
            text = " ".join(text[a:b] for a, b in pairwise([0, *sorted(breaks), len(text)]))
        if self._count_words(token for token, *_ in self._scan(text)):
            problem = "a message spells a role marker of the chat template that can't be broken up"
            raise UserError(problem, "remove it from the message")
        return text

    def _may_spell(self, text: str) -> bool:
        """Return False if a content cannot spell a control token or role marker; scans are 20 times slower."""
        return bool(_UNUSUAL.search(text) or self._spelled.search(text.casefold()))

    def _scan_text(self, text: str) -> tuple[CharacterSpan, ...]:
        if not text:
            return ()
        tokens = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(tokens["input_ids"], tokens["offset_mapping"], strict=True)
        return tuple((token, *span) for token, span in pairs)

    def _count_words(self, ids: Iterable[int]) -> int:
        return sum(token in self._words for token in ids)


def _fold(text: str) -> str:
    """Fold width and case of each character that stays one character."""
    folded = (unicodedata.normalize("NFKC", character).casefold() for character in text)
    return "".join(new if len(new) == 1 else old for new, old in zip(folded, text, strict=True))
