"""A few passages and a tiny sentence encoder with random weights, for tests of retrieval."""

import string
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from coterie.tools.retrieval import EncoderSettings, build_index
from tests.row_files import jsonl

ROWS = [
    {"id": "w0", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": "w1", "contents": '"Bergen"\nBergen is a city in Norway.\nIt rains there.'},
    {"id": "w2", "contents": '"Rome"\nRome is the capital of Italy.'},
    {"id": "w3", "contents": "A text without a title\nof two lines about Norway."},
    {"id": "w4", "contents": '"The "Fram""\nA ship of Norway.'},
]


def indexed(folder: Path) -> Path:
    assert build_index(jsonl(folder / "rows.jsonl", *ROWS), folder / "index") == len(ROWS)
    return folder / "index"


def encoded(folder: Path) -> Path:
    """The folder, with an encoder in ``bert`` and an index with its vectors in ``index``."""
    pytest.importorskip("faiss")
    encoder = EncoderSettings(model=str(tiny_bert(folder / "bert")), device="cpu", batch=2)
    rows = jsonl(folder / "rows.jsonl", *ROWS)
    assert build_index(rows, folder / "index", encoder=encoder) == len(ROWS)
    return folder


def tiny_bert(folder: Path, *, width: int = 16, seed: int = 0) -> Path:
    """A BERT of one layer that reads letters, saved in a folder."""
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{one}" for one in letters)]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words), hidden_size=width, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=300,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder
