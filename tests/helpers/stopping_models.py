"""Tiny models that answer every prompt with a word and an end of turn, and that repeat both until they are stopped."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from coterie.record.rows import Row, Target
from tests.helpers.training_models import SETTINGS

WORD = "e"
BARELY = SETTINGS.model_copy(update={"learning_rate": 1e-6, "weight_decay": 0.0, "epochs": 1})
"""Settings of a training after which a model still answers the same."""


def save_stopping(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    end: str,
    eos: str,
    stops: Sequence[str] | None = None,
    **settings: Any,
) -> Path:
    """Save a model that ends its turns with ``end``, while its files may name other ends.

    Args:
        folder: Folder to write to.
        tokenizer: Tokenizer with a chat template.
        end: Token that the model samples after the word.
        eos: New ``eos_token`` of the tokenizer.
        stops: Ends in ``generation_config.json``; ``None`` for a model without that file.
        settings: Other generation settings.
    """
    tokenizer = copy.deepcopy(tokenizer)
    texts = dict.fromkeys([eos, end, *(stops or ())])
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    tokenizer.eos_token = eos
    (word_id,) = tokenizer.encode(WORD, add_special_tokens=False)
    end_id = tokenizer.convert_tokens_to_ids(end)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # The layer adds nothing, so logits depend on the last token alone.
        for name, weight in model.named_parameters():
            weight.fill_(float("norm" in name))
        # Feature 0 is set for all tokens, feature 1 for the word: the end follows the word, and the word all others.
        embeddings, output = (
            model.get_input_embeddings().weight,
            model.get_output_embeddings().weight,
        )
        embeddings[:, 0] = embeddings[word_id, 1] = 1.0
        output[word_id, :2] = torch.tensor([1.0, -10.0])
        output[end_id, 1] = 10.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = folder / "generation_config.json"
    if stops is None:
        file.unlink()
    else:
        file.write_text(
            json.dumps({"eos_token_id": tokenizer.convert_tokens_to_ids(list(stops)), **settings})
        )
    return folder


def stopping_rows() -> list[Row]:
    return [Row((5, 6, 7, 8), (Target(2, 4, "agent"),))]


def generate_reply(folder: Path, model: Any = None, **settings: Any) -> str:
    """Return what Transformers generates with the files of a folder, up to 8 tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = model or AutoModelForCausalLM.from_pretrained(folder)
    chat = [{"role": "user", "content": "How?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = model.generate(**prompt, max_new_tokens=8, do_sample=False, **settings)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :]))
