"""Tiny random models with tokenizers of ours, and chat templates in the shape of well-known ones.

``chatml`` is Qwen's shape, which drops nothing; ``thinking`` drops thoughts from earlier turns, and
so rewrites history; ``llama3`` trims contents; ``smollm2`` adds a default system prompt.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coterie.models.chat import ChatRenderer
from coterie.models.loading import LoadedModel

_CHATML = (
    "{{ '<|im_start|>' + m['role'] + '\n' + %s + '<|im_end|>' + '\n' }}{%% endfor %%}"
    "{%% if add_generation_prompt %%}{{ '<|im_start|>assistant\n' }}{%% endif %%}"
)
TEMPLATES = {
    "llama3": "{{ '<|begin_of_text|>' }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim"
    " + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "chatml": "{% for m in messages %}" + _CHATML % "m['content']",
    "smollm2": "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help people.<|im_end|>\n' }}{% endif %}"
    + _CHATML
    % "m['content']",
    "thinking": "{% for m in messages %}{% if m['role'] == 'assistant' and not loop.last"
    " and '</think>' in m['content'] %}{% set c = m['content'].split('</think>')[-1] %}"
    "{% else %}{% set c = m['content'] %}{% endif %}" + _CHATML % "c",
}
CONTROL = {
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    "chatml": ("<|im_end|>", "<|im_start|>"),
    "smollm2": ("<|im_end|>", "<|im_start|>"),
    "thinking": ("<|im_end|>", "<|im_start|>"),
}
_TEXT = (
    "system user assistant tool You are Alice, talking to Bob. Share facts, then both answer.",
    "The river is blue and the mountain is tall; what is the colour of the river? <think> hm </think>",
)


def byte_level(
    texts: Sequence[str], size: int, special: Sequence[str] = (), plain: Sequence[str] = ()
) -> Tokenizer:
    """A byte-level BPE with special tokens, and with added ones that are not."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return inner


@cache
def make_tokenizer(name: str) -> Any:
    """Return a ``PreTrainedTokenizerFast``: a BPE of 400 pieces with the template ``name``."""
    inner = byte_level(_TEXT, 400, CONTROL[name], ("<think>", "</think>"))
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=CONTROL[name][0])
    made.chat_template = TEMPLATES[name]
    return made


def make_model(name: str, *, seed: int = 0, context: int = 2048, heads: int = 2) -> LoadedModel:
    """A random Llama of two layers with that tokenizer; spread enough to say varied things."""
    return random_model(
        make_tokenizer(name), f"random-{name}", seed=seed, context=context, heads=heads
    )


def random_model(
    pieces: PreTrainedTokenizerFast,
    source: str,
    *,
    seed: int = 0,
    context: int = 2048,
    heads: int = 2,
) -> LoadedModel:
    """A random Llama of two layers with a tokenizer."""
    torch.manual_seed(seed)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(pieces),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=heads,
            max_position_embeddings=context,
            tie_word_embeddings=True,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=pieces.eos_token_id,
        )
    ).eval()
    return LoadedModel(llama, pieces, ChatRenderer(pieces), context, source)


def targets(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places before the tokens where ``mask`` is True, and these tokens."""
    flat = mask.flatten().nonzero().squeeze(1)
    return flat - 1, ids.flatten()[flat]
