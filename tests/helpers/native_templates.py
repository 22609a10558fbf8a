"""Chat templates with tools, and tokenizers for them.

Published ones: ``qwen2`` (Qwen2.5), ``qwen3`` (which drops thoughts from before the last question), ``llama31``.
Written here in well-known shapes: ``opens`` (whose prompts open the thought, and which wants to see that again),
``coder`` (Qwen3-Coder), ``mistral`` (which takes results only after calls, and long ids), ``kimi`` (Kimi K2, whose call
ids have the tools' names), ``minimax`` (MiniMax M2, whose prompts open the thought), ``granite`` (Granite 4),
``smol`` (SmolLM2: a default system prompt, no tool messages).
"""

import re
from functools import cache

from transformers import PreTrainedTokenizerFast

from coterie.models.loading import LoadedModel
from tests.helpers.published_templates import FOLDER
from tests.helpers.template_models import byte_level, random_model

_HEADER = "{{ '<|im_start|>' + m.role + '\n' }}"
_END = "{{ '<|im_end|>\n' }}"
_TOOL_LINES = (
    '{{ \'Call a tool like this: <tool_call>{"name": ..., "arguments": {...}}</tool_call>\n<tools>\' }}'
    "{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}{{ '\n</tools>' }}"
)
_SYSTEM = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% if messages[0].role == 'system' %}"
    "{{ messages[0].content + '\n\n' }}{% endif %}" + _TOOL_LINES + _END
    + "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content }}" + _END
    + "{% endif %}"
)  # fmt: skip
_RESPONSE = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}" + _END + "{% endif %}"
)
_HERMES_CALLS = (
    "{% for c in m.tool_calls %}{% if not loop.first or content %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)
_GENERATION = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_TURNS = (
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    + _HEADER + "{{ m.content }}" + _END
    + "{% elif m.role == 'assistant' %}" + _HEADER + "BODY" + _END
    + "{% elif m.role == 'tool' %}" + _RESPONSE + "{% endif %}{% endfor %}"
)  # fmt: skip
_PLAIN = "{% set content = m.content or '' %}{{ content }}"
_KEPT = (
    "{% set content = m.content or '' %}{% if '</think>' in content and loop.index0 < ns.asked %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ content }}"
)
_ASKED = (
    "{% set ns = namespace(asked=messages | length - 1, looking=true) %}{% for m in messages[::-1] %}"
    "{% if ns.looking and m.role == 'user' and not (m.content.startswith('<tool_response>')"
    " and m.content.endswith('</tool_response>')) %}{% set ns.looking = false %}"
    "{% set ns.asked = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}"
)
"""The last message of a user that is not a tool's response: thoughts from before it are dropped."""
_XML_CALLS = (
    "{% for c in m.tool_calls %}{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for k, v in c.function.arguments | items %}{{ '<parameter=' + k + '>\n' }}"
    "{{ v if v is string else v | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}{% endfor %}"
)
SHAPES = {
    **{name: (FOLDER / f"{file}.jinja").read_text(encoding="utf-8") for name, file in (
        ("qwen2", "qwen2_5"), ("qwen3", "qwen3"), ("llama31", "llama3_1"))},
    "opens": _SYSTEM + _ASKED
    + _TURNS.replace("BODY", _KEPT + "{% if m.tool_calls %}" + _HERMES_CALLS + "{% endif %}")
    + _GENERATION.replace("assistant\n", "assistant\n<think>\n"),
    "coder": _SYSTEM + _TURNS.replace("BODY", _PLAIN + "{% if m.tool_calls %}" + _XML_CALLS + "{% endif %}")
    + _GENERATION,
    "kimi": "{% if tools %}{{ '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_' + (m.role if m.role in ('user', 'assistant') else 'system') + '|>' }}"
    "{{ (m.name or m.role) + '<|im_middle|>' }}"
    "{% if m.role == 'tool' %}{{ '## Return of ' + m.tool_call_id + '\n' }}{% endif %}{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}{% for c in m.tool_calls %}"
    "{{ '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' }}{{ c.function.arguments | tojson }}"
    "{{ '<|tool_call_end|>' }}{% endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %}{{ '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}",
    "minimax": "{% set ns = namespace(asked=-1, called=false) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}{{ ']~!b[' }}{% if tools %}{{ ']~b]system\n<tools>' }}"
    "{% for t in tools %}{{ t.function | tojson }}{% endfor %}{{ '</tools>[e~[\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ ']~b]ai\n' }}"
    "{% if m.reasoning_content and loop.index0 > ns.asked %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content or '' }}"
    "{% set ns.called = m.tool_calls | length > 0 %}{% if m.tool_calls %}{{ '\n<minimax:tool_call>\n' }}"
    "{% for c in m.tool_calls %}{{ '<invoke name=\"' + c.function.name + '\">\n' }}"
    "{% for k, v in c.function.arguments | items %}{{ '<parameter name=\"' + k + '\">' }}"
    "{{ v if v is string else v | tojson }}{{ '</parameter>\n' }}{% endfor %}{{ '</invoke>\n' }}{% endfor %}"
    "{{ '</minimax:tool_call>' }}{% endif %}{{ '[e~[\n' }}{% elif m.role == 'tool' %}"
    "{% if not ns.called %}{{ raise_exception('no call') }}{% endif %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}{{ ']~b]tool' }}{% endif %}"
    "{{ '\n<response>' + m.content + '</response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '[e~[\n' }}{% endif %}"
    "{% else %}{{ ']~b]' + m.role + '\n' + m.content + '[e~[\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ']~b]ai\n<think>\n' }}{% endif %}",
    "mistral": "{% set ns = namespace(n=0) %}{{ '<s>' }}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% if m.role == 'user' %}"
    "{% if tools and ns.n == 1 %}{{ '[AVAILABLE_TOOLS] ' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}"
    "{% endif %}{{ '[INST] ' + m.content + '[/INST]' }}{% elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}"
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}"
    "{% endif %}{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}"
    "{{ c.function.arguments | tojson }}{{ ', \"id\": \"' + c.id + '\"}' }}"
    "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']</s>' }}{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "{{ '[TOOL_RESULTS] {\"content\": ' }}{{ m.content | tojson }}"
    "{{ ', \"call_id\": \"' + m.tool_call_id + '\"}[/TOOL_RESULTS]' }}{% elif m.role == 'assistant' %}"
    "{{ m.content + '</s>' }}{% else %}{{ raise_exception('no role ' + m.role) }}{% endif %}{% endfor %}",
    "smol": "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou help people.<|im_end|>\n' }}{% endif %}{% if m.role == 'tool' %}"
    "{{ raise_exception('no tools') }}{% endif %}" + _HEADER + "{{ m.content }}" + _END
    + "{% endfor %}" + _GENERATION,
}  # fmt: skip
SHAPES["granite"] = re.sub(
    r"<\|im_start\|>(\w+|' \+ m\.role \+ ')\n?",
    r"<|start_of_role|>\1<|end_of_role|>",
    SHAPES["coder"].replace(_XML_CALLS, _HERMES_CALLS).replace("<|im_end|>", "<|end_of_text|>"),
)
_CHATML = ("<|im_end|>", "<|im_start|>")
CONTROL = {
    "qwen2": _CHATML,
    "qwen3": _CHATML,
    "opens": _CHATML,
    "coder": _CHATML,
    "smol": _CHATML,
    "llama31": ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                "<|python_tag|>", "<|eom_id|>"),
    "mistral": ("</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    "kimi": ("<|im_end|>", "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>",
             "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
             "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    "minimax": ("[e~[", "]~!b[", "]~b]"),
    "granite": ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
}  # fmt: skip
"""Special tokens; the one that ends a turn comes first."""
_MARKS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<minimax:tool_call>", "</minimax:tool_call>",
)  # fmt: skip
NATIVE = ("qwen2", "qwen3", "opens", "coder", "llama31", "mistral", "kimi", "minimax", "granite")
"""Those whose models call tools in a syntax of their own."""


@cache
def make_native_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE with the template ``name``; tags of calls are added tokens that are not special, as Qwen's."""
    has_marks = name.startswith("qwen") or name in ("opens", "coder", "minimax", "granite")
    text = '{"name": "look", "arguments": {"what": "river"}} is there'
    inner = byte_level([text], 420, CONTROL[name], _MARKS if has_marks else ())
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=CONTROL[name][0])
    made.chat_template = SHAPES[name]
    return made


def make_native_model(name: str, *, seed: int = 0) -> LoadedModel:
    """A random Llama with that tokenizer."""
    return random_model(make_native_tokenizer(name), f"random-{name}", seed=seed, context=8192)
