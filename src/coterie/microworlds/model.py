"""The tiny models of micro-worlds, untrained: what a micro-world must give, and a Llama of about two million
weights."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tokenizers import AddedToken, Tokenizer, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from coterie.trajectories.row import Row, Target

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
class MicroWorld:
    """What the pre-training of a tiny model needs from its micro-world."""

    tokenizer: Callable[[int, int], PreTrainedTokenizerFast]
    """Builds the tokenizer from the greatest number of pieces and a seed."""
    skills: Callable[[PreTrainedTokenizerFast, int, int], Iterator[Row]]
    """Rows of the first phase, easy ones first: tokenizer, tokens in all, seed."""
    habits: Callable[[PreTrainedTokenizerFast, int, int], Iterator[Row]]
    """Rows of the second phase, from what the model is to do when it is left alone: the same arguments."""
    habits_share: float
    """Tokens of the second phase as a share of the first."""
    tokens: int
    """Tokens of the first phase."""
    budget: int = 1536
    """Most padded tokens of a batch."""
    peak: float = 2.5e-3
    """Peak learning rate of the first phase."""


def special_pieces() -> list[AddedToken]:
    """The pieces that no text holds: padding, the end of a turn, the openers of turns."""
    pieces = (PAD, END, *OPENERS.values())
    return [AddedToken(piece, normalized=False, special=True) for piece in pieces]


def train_bpe(
    tokenizer: Tokenizer, vocabulary: int, texts: Iterable[str], marks: Sequence[AddedToken] = ()
) -> None:
    """Train a byte-level BPE of at most ``vocabulary`` pieces; ``marks`` are pieces of a micro-world's own."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[*special_pieces(), *marks],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)


def with_visible_marks(tokenizer: Tokenizer, marks: Sequence[str]) -> Tokenizer:
    """The tokenizer with its marks as ordinary pieces, which decoding keeps.

    Training makes every reserved piece special, whatever it was given as.
    """
    state = json.loads(tokenizer.to_str())
    for piece in state["added_tokens"]:
        piece["special"] = piece["content"] not in marks
    return Tokenizer.from_str(json.dumps(state))


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A trained tokenizer as Transformers takes it, with the chat template of all tiny models."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def chat_row(
    tokenizer: PreTrainedTokenizerBase,
    messages: Iterable[tuple[str, str]],
    author: str,
    origin: str,
) -> Row:
    """Messages (role, text) as the chat template renders them; the assistant's, with their ends, are targets."""
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
    """A text three times over, the repeats as targets: the quickest way to learn to copy."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return Row(tuple(ids * 3), (Target(len(ids), 3 * len(ids), "script:drill"),))


def drill_rows(
    tokenizer: PreTrainedTokenizerFast, drill: Drill, tokens: float, rng: random.Random
) -> Iterator[Row]:
    """Rows of a drill, of ``tokens`` tokens in all."""
    left = tokens
    while left > 0:
        row = drill(tokenizer, rng)
        left -= len(row.ids)
        yield row


def tiny_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A fresh Llama of about two million weights."""
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
