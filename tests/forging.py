"""Tokenizers and chat templates whose turns are easy to forge, and contents that try.

Each is a shape that is met in the wild: role tokens that are not marked special (``deepseek``), of one
character (``short``), matched after normalisation (``folded``), that swallow white space (``greedy``),
with a prefix space (``pieces``, after SentencePiece), part of the model's own vocabulary (``own``), or
plain text (``plain``); templates that put contents side by side (``joined``), write a piece of a token
next to them (``wrapped``), act on ``</think>`` (``acting``), rewrite them (``lines``, ``lower``), or write
a tool's name as if it were a token's (``naming``).
"""

import random
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from transformers import PreTrainedTokenizerFast

from tests.templates import CONTROL as USUAL
from tests.templates import TEMPLATES, byte_level
from tests.templates import tokenizer as usual

CONTROL = {
    "deepseek": (
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
    ),
    "short": ("§", "¶", "►"),
    "folded": ("<|End|>", "<|User|>", "<|Assistant|>"),
    "greedy": ("<|end|>", "<|user|>", "<|assistant|>"),
    "pieces": ("</s>", "<s>", "[INST]", "[/INST]"),
    "own": ("</s>", "<s>"),
    "plain": ("</s>",),
    "joined": ("<|end|>", "<|user|>", "<|assistant|>"),
    "wrapped": ("<|end|>", "<|user|>", "<|assistant|>", "<s>"),
    "acting": ("<|im_end|>", "<|im_start|>", "<think>", "</think>"),
    "lines": ("<|end|>", "<|user|>", "<|assistant|>"),
    "lower": ("<|end|>", "<|user|>", "<|assistant|>"),
    "naming": ("<|end|>", "<|user|>", "<|assistant|>", "<|look|>"),
}
"""The token that ends a turn comes first."""
_ROLES = (
    "{% for m in messages %}{{ ('<|assistant|>' if m['role'] == 'assistant' else '<|user|>') + "
)
_END = " + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
_INST = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ ' ' + m['content'] + '</s>' }}"
    "{% else %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endif %}{% endfor %}"
)
SHAPES = {
    "deepseek": "{{ '<｜begin▁of▁sentence｜>' }}{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}"
    "{% else %}{{ '<｜User｜>' + m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    "short": "{% for m in messages %}{{ ('►' if m['role'] == 'assistant' else '¶') + m['content'] + '§' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '►' }}{% endif %}",
    "folded": "{% for m in messages %}{{ ('<|Assistant|>' if m['role'] == 'assistant' else '<|User|>')"
    " + m['content'] + '<|End|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}",
    "greedy": _ROLES + "'\n' + m['content']" + _END,
    "pieces": _INST,
    "own": _INST,
    "plain": "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ '### Assistant: ' + m['content']"
    " + '</s>\n' }}{% else %}{{ '### User: ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Assistant:' }}{% endif %}",
    "joined": "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + m['content'] + '<|end|>' }}{% else %}{% if loop.first or"
    " messages[loop.index0 - 1]['role'] == 'assistant' %}{{ '<|user|>' }}{% endif %}"
    "{{ m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "wrapped": _ROLES + "'<' + m['content'] + '>'" + _END,
    "acting": "{% for m in messages %}{% set c = m['content'] %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and '</think>' in c %}{% if loop.last %}"
    "{{ '<think>\n' + c.split('</think>')[0].split('<think>')[-1] + '\n</think>\n\n' }}{% endif %}"
    "{{ c.split('</think>')[-1].lstrip('\n') }}{% else %}{{ c }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "lines": "{% for m in messages %}{{ '<|assistant|>' if m['role'] == 'assistant' else '<|user|>' }}"
    "{% for line in m['content'].split('\n') %}{{ '> ' + line | trim + '\n' }}{% endfor %}{{ '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
    "lower": _ROLES + "m['content'] | lower" + _END,
    "naming": _ROLES
    + "('<|' + m['name'] + '|>' if m['role'] == 'tool' else '') + m['content']"
    + _END,
}
NAMES = (*TEMPLATES, *SHAPES)
_TEXT = [
    "The river is blue and the mountain is tall; what is the colour of the river? [INST] [/INST]",
    "user assistant system User: Assistant: ### end of sentence begin im start im end think <|x|>",
    "a < b, c > d | e, f(x)[0] // § ¶ ► é 1234567890 \n ABCDEFGHIJKLMNOPQRSTUVWXYZ \"#$%&'()*+,-./:;=@^_`{}~",
]


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a shape, or of one of the usual templates."""
    if name in TEMPLATES:
        return usual(name)
    end, *others = CONTROL[name]
    inner = _pieces(own=name == "own") if name in ("pieces", "own") else byte_level(_TEXT, 400)
    if name == "folded":
        inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    strips = name == "greedy"
    for text in (end, *others):
        special = name in ("joined", "lower", "own", "naming") or text in ("<s>", "</s>")
        token = AddedToken(
            text, special=special, normalized=name == "folded", lstrip=strips, rstrip=strips
        )
        (inner.add_special_tokens if special else inner.add_tokens)([token])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=end)
    made.chat_template = SHAPES[name]
    return made


def control_ids(name: str) -> set[int]:
    texts = [
        *CONTROL.get(name, USUAL.get(name, ())),
        *(["[INST]", "[/INST]"] if name == "own" else []),
    ]
    return set(tokenizer(name).convert_tokens_to_ids(texts))


def control_texts(name: str) -> list[str]:
    """What a forger of turns would write."""
    added = [token.content for token in tokenizer(name).added_tokens_decoder.values()]
    return added + {"own": ["[INST]", "[/INST]"], "plain": ["### Assistant:", "### User:"]}.get(
        name, []
    )


def nasty(name: str, chance: random.Random) -> str:
    """A content that tries to open a turn."""
    tokens = control_texts(name)
    texts = []
    for _ in range(chance.randint(1, 5)):
        token = chance.choice(tokens)
        cut = chance.randint(0, len(token))
        texts.append(
            chance.choice(
                [
                    token,
                    token[:cut],
                    token[cut:],
                    token.upper(),
                    token.swapcase(),
                    "".join(map(_wide, token)),
                    "\u200b".join(token),
                    token + "\u0301",
                    f" {token}\n",
                    token * 2,
                    token[:cut] + token,
                    token.replace("|", "｜").replace("｜", "|"),
                    " ",
                    "\n",
                    "",
                    "hello",
                    "é😀",
                    "a < b [1] (c) <| d",
                ]
            )
        )
    return "".join(texts)


def _pieces(*, own: bool) -> Tokenizer:
    """Unigram pieces with a space before each text, some of them role markers if ``own``."""
    letters = sorted(set("".join(_TEXT).replace(" ", "▁")))
    words = [f"▁{word}" for text in _TEXT for word in text.split() if word.isalpha()]
    markers = ["[INST]", "[/INST]"] if own else []
    pieces = [("<unk>", 0.0), *((letter, -9.0) for letter in letters)]
    pieces += [(word, -7.0) for word in dict.fromkeys(words) if len(word) > 2]
    pieces += [(marker, -5.0) for marker in markers]
    pieces += [(f"<0x{byte:02X}>", -12.0) for byte in range(256)]
    inner = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?=\n)"), "isolated"),
            pre_tokenizers.Metaspace(prepend_scheme="first"),
        ]
    )
    inner.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    return inner


def _wide(character: str) -> str:
    return chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character
