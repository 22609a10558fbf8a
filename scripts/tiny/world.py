"""Tokenizer, curriculum and untrained model of a packaged ``tiny`` model."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from coterie.record.rows import Row, Target

PAD, END = "<|pad|>", "<|end|>"
OPENERS = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ROPE_BASE = 10_000.0
"""The base of the rotary positions' frequencies."""
LOOK_BACK = (1, 1, 2, 3, 4)
"""Distances at which heads of the first layer begin to look back; the sixth head begins free."""
Drill = Callable[[PreTrainedTokenizerFast, random.Random], Row]
"""Makes one row."""


@dataclass(frozen=True)
class World:
    """One micro-world: the texts of its tokenizer, and the rows of its curriculum."""

    drill_rng: str
    """Seed of the drills, before the run's own."""
    texts: Callable[[int], Iterable[str]]
    """Training texts of the tokenizer, by seed."""
    pieces: pre_tokenizers.PreTokenizer
    """What no piece crosses."""
    whole: Callable[[], Iterable[str]]
    """Texts that must be one piece each."""
    groups: Callable[[PreTrainedTokenizerFast, Any, int], Iterator[Sequence[Row]]]
    """Endless groups of rows, by tokenizer, stage and seed. A group is never cut."""
    drills: Sequence[tuple[float, Drill]]
    """The first rows. As below, by shares of the tokens."""
    stages: Sequence[tuple[float, Any]]
    """First phase, easy ones first."""
    habits: tuple[float, Any]
    """Second phase: what post-training is to change."""
    tokens: int
    """Tokens of the first phase; the second one's are a share of it."""
    budget: int = 1536
    """Maximum of padded tokens in a batch."""
    peak: float = 2.5e-3
    """Peak learning rate of the first phase."""
    drill_tokens: int | None = None
    """Tokens of the drills, where the stages share the rest; else both have shares of all tokens."""
    decoder: decoders.Decoder = field(default_factory=decoders.ByteLevel)
    marks: Sequence[AddedToken] = ()
    """Pieces of its own that are in its texts."""

    def build_tokenizer(self, vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
        """Train a byte-level BPE of at most ``vocabulary`` pieces.

        Raises ``ValueError`` if a text that must be one piece is not.
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = self.pieces, self.decoder
        special = [
            AddedToken(piece, normalized=False, special=True)
            for piece in (PAD, END, *OPENERS.values())
        ]
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[*special, *self.marks],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(self.texts(seed), trainer)
        if self.marks:
            tokenizer = with_visible_marks(tokenizer, [mark.content for mark in self.marks])
        split = [one for one in self.whole() if len(tokenizer.encode(one).ids) != 1]
        if split:
            raise ValueError(f"not one piece: {split}; allow more than {vocabulary} pieces")
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=END,
            pad_token=PAD,
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
            model_max_length=1024,
        )

    def skill_rows(
        self, tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int
    ) -> Iterator[Row]:
        """Yield rows of ``tokens`` tokens in all: drills, then the stages."""
        drilled = tokens if self.drill_tokens is None else min(self.drill_tokens, tokens)
        rest = max(tokens - (self.drill_tokens or 0), 0)
        rng = random.Random(f"{self.drill_rng}/{seed}")
        for share, drill in self.drills:
            yield from limited(([drill(tokenizer, rng)] for _ in count()), share * drilled)
        for number, (share, stage) in enumerate(self.stages):
            groups = self.groups(tokenizer, stage, seed + 1000 * number)
            yield from limited(groups, share * rest)

    def habit_rows(
        self, tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int
    ) -> Iterator[Row]:
        """Yield rows of the second phase of ``tokens`` tokens."""
        return limited(self.groups(tokenizer, self.habits[1], seed), tokens)


def load(name: str) -> World:
    """Import a micro-world by name."""
    world: World = import_module(f"scripts.tiny.{name}").WORLD
    return world


def limited(groups: Iterator[Sequence[Row]], tokens: float) -> Iterator[Row]:
    """Yield rows until there are ``tokens`` tokens; the last group is whole."""
    while tokens > 0:
        for row in next(groups):
            tokens -= len(row.ids)
            yield row


def with_visible_marks(tokenizer: Tokenizer, marks: Sequence[str]) -> Tokenizer:
    """Make marks ordinary pieces, which decoding keeps: training makes every reserved piece special."""
    state = json.loads(tokenizer.to_str())
    for piece in state["added_tokens"]:
        piece["special"] = piece["content"] not in marks
    return Tokenizer.from_str(json.dumps(state))


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Split texts into what pieces do not cross."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def chat_row(
    tokenizer: PreTrainedTokenizerBase,
    messages: Iterable[tuple[str, str]],
    author: str,
    origin: str,
) -> Row:
    """Render messages (role, text) as the chat template does; the assistant's, with their ends, are targets."""
    ids: list[int] = []
    targets: list[Target] = []
    for role, text in messages:
        said = tokenizer.encode(text, add_special_tokens=False)
        opener = tokenizer.encode(OPENERS[role], add_special_tokens=False)
        ids += [*opener, *said, tokenizer.eos_token_id]
        if role == "assistant":
            targets.append(Target(len(ids) - len(said) - 1, len(ids), author))
    return Row(tuple(ids), tuple(targets), origin=origin)


def copy_row(tokenizer: PreTrainedTokenizerBase, text: str) -> Row:
    """Build a row of a text three times over, the repeats as targets: the quickest way to learn to copy."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Row(tuple(ids * 3), (Target(len(ids), 3 * len(ids), "script:drill"),))


def answer_row(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> Row:
    """Build a row of a text and a second one, which is the target."""
    first, second = (tokenizer.encode(one, add_special_tokens=False) for one in (prompt, answer))
    ids = (*first, *second)
    return Row(ids, (Target(len(first), len(ids), "script:drill"),))


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return an untrained Llama of about two million weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=6,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        attention_bias=True,
        initializer_range=0.07,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    _look_back(model)
    return model


@torch.no_grad()
def _look_back(model: LlamaForCausalLM) -> None:
    """Begin the first layer's heads at fixed distances back, by their query and key biases.

    Copying from a prompt needs heads that tell what stood one to four tokens before. From a plain start
    these take longer to appear than all the rest takes to learn.
    With rotary positions, a key bias (a, 0) and a query bias (a cos dw, -a sin dw) in the pair of
    frequency w add a^2 cos((distance - d) w) to the attention score: greatest at distance d.
    """
    attention, pairs, strength = model.model.layers[0].self_attn, 8, 5.0
    half = attention.head_dim // 2
    frequencies = ROPE_BASE ** (-torch.arange(pairs) / half)
    for head, distance in enumerate(LOOK_BACK):
        start = head * attention.head_dim
        attention.k_proj.bias[start : start + pairs] = strength
        attention.q_proj.bias[start : start + pairs] = strength * torch.cos(distance * frequencies)
        sines = -strength * torch.sin(distance * frequencies)
        attention.q_proj.bias[start + half : start + half + pairs] = sines
