"""The chat templates that models are published with, as TRL ships them, and tokenizers for them."""

import re
from functools import cache
from pathlib import Path

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(trl.__file__).parent / "chat_templates"
PUBLISHED = tuple(
    sorted(one.stem for one in FOLDER.glob("*.jinja") if not one.stem.endswith("_training"))
)
_MARK = re.compile(
    r"<\|[^|<>\s]+\|?>|<[a-z_]+\|>|<｜[^｜]+｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<sop>|</?s>"
    r"|<(?:start|end)_of_turn>|\[/?[A-Z_]{3,}\]|\[gMASK\]"
)
_ENDS = {"gptoss": "<|return|>", "glm": "<|user|>", "gemma": "<turn|>", "deepseek": "<｜end▁of▁sentence｜>",
         "llama": "<|eot_id|>", "muse": "<|eot|>"}  # fmt: skip


@cache
def published(name: str, before: str = "") -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with a published template, whose marks are added tokens.

    ``before`` is put in front of the template.
    """
    template = before + (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    end = next((one for start, one in _ENDS.items() if name.startswith(start)), "<|im_end|>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({one: at for at, one in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    marks = dict.fromkeys(["<bos>", end, *_MARK.findall(template)])
    plain = re.compile(r"</?[a-z_]+>")
    inner.add_tokens(
        [AddedToken(one, special=not plain.fullmatch(one), normalized=False) for one in marks]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token=end)
    tokenizer.chat_template = template
    return tokenizer
