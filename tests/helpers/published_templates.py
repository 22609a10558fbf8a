"""Published chat templates, as TRL ships them, and tokenizers for them."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.helpers.template_models import byte_level

_TRL = find_spec("trl")  # importing it takes seconds
assert _TRL is not None and _TRL.origin is not None
FOLDER = Path(_TRL.origin).parent / "chat_templates"
PUBLISHED = tuple(
    sorted(one.stem for one in FOLDER.glob("*.jinja") if not one.stem.endswith("_training"))
)
_MARK = re.compile(
    r"<\|[^|<>\s]+\|?>|<[a-z_]+\|>|<｜[^｜]+｜>|</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<sop>|</?s>"
    r"|<(?:start|end)_of_turn>|<end_of_utterance>|\[/?[A-Z_]{3,}\]|\[gMASK\]"
)
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Marks that are added tokens but not special."""
_ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>", "deepseek": "<｜end▁of▁sentence｜>", "diffusion": "<turn|>",
    "gemma": "<end_of_turn>", "gemma4": "<turn|>", "gptoss": "<|return|>", "idefics": "<end_of_utterance>",
    "llama": "<|eot_id|>", "llava": "</s>", "muse": "<|eot|>", "phi": "<|end|>", "smol": "<end_of_utterance>",
    "glm": "<|endoftext|>",
}  # fmt: skip
"""Token that ends a turn, by family; ``<|im_end|>`` for all others."""
_TEXT = "system user assistant tool You are a helpful agent. The quick brown fox: is it fine? plan"


@cache
def published_tokenizer(name: str, before: str = "") -> PreTrainedTokenizerFast:
    """Return a small BPE with a published template (after ``before``), whose marks are added tokens."""
    template = before + (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    families = sorted((one for one in _ENDS if name.startswith(one)), key=len)
    end = _ENDS[families[-1]] if families else "<|im_end|>"
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    marks = dict.fromkeys(["<bos>", end, *_MARK.findall(template), *plain])
    inner = byte_level([_TEXT], 300)
    inner.add_tokens(
        [AddedToken(one, special=not PLAIN.fullmatch(one), normalized=False) for one in marks]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token=end)
    tokenizer.chat_template = template
    return tokenizer
