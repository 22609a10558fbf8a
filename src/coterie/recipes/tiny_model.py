"""The tiny model of a micro-world, untrained: its tokenizer and a Llama of about two million weights."""

import json
from collections.abc import Iterator

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coterie.environments.exchange.lexicon import words
from coterie.environments.exchange.prompts import prompt_text, system_prompt
from coterie.environments.exchange.scripts import Dialogue, Mix, corpus
from coterie.environments.exchange.world import AGENTS

PAD, END = "<|pad|>", "<|end|>"
OPENERS = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
ANSWER_MARKS = ("<A>", "</A>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
ROPE_BASE = 10_000.0
"""The base of the rotary positions' frequencies."""
LOOK_BACK = (1, 1, 2, 3, 4)
"""Distances at which heads of the first layer begin to look back; the sixth head begins free."""


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on scripted dialogues, in which every word of the lexicon is one piece.

    A text always begins as if a space preceded it, also right after `<A>`, and the space before `<A>` is part of
    it; decoding restores the text.
    Raises `ValueError` if a word of the lexicon needs more than one piece.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("<A> ", " <A>"), decoders.Strip(" ", 1, 0)]
    )
    marks = [
        AddedToken(mark, normalized=False, special=False, lstrip=mark == "<A>")
        for mark in ANSWER_MARKS
    ]
    special = [
        AddedToken(piece, normalized=False, special=True) for piece in (PAD, END, *OPENERS.values())
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[*special, *marks],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(seed), trainer)
    tokenizer = _with_visible_marks(tokenizer)
    split = [word for word in words() if len(tokenizer.encode(word).ids) != 1]
    if split:
        raise ValueError(
            f"words of the lexicon that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def _with_visible_marks(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the answer marks as ordinary pieces, which decoding keeps.

    Training makes every reserved piece special, whatever it was given as.
    """
    state = json.loads(tokenizer.to_str())
    for piece in state["added_tokens"]:
        piece["special"] = piece["content"] not in ANSWER_MARKS
    return Tokenizer.from_str(json.dumps(state))


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """Prompts and utterances of scripted dialogues, and the lexicon often enough to be merged first."""
    for dialogue in corpus(seed, 4000, Mix(guess_share=0.42, hint_share=0.4, deaf_share=0.0)):
        yield prompt_text(scripted_prompt(dialogue, AGENTS[0]))
        yield from (
            part
            for text in dialogue.utterances
            for part in text.replace("</A>", "<A>").split("<A>")
        )
    yield from (word for word in words() for _ in range(500))


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


def scripted_prompt(dialogue: Dialogue, agent: str) -> list[tuple[str, frozenset[str]]]:
    """The system prompt of one agent of a dialogue."""
    partner = AGENTS[1 - AGENTS.index(agent)]
    return system_prompt(
        agent, partner, dialogue.task.question, dialogue.task.facts[agent], dialogue.hint
    )
