"""Calls in the syntaxes of models: what is read as a call, what is answered and never run, and what is no call."""

import json
from collections import Counter
from copy import copy
from functools import cache
from typing import Any

import pytest

from coterie.errors import UserError
from coterie.models.call_syntaxes import SYNTAXES, CallSyntax, openai_call
from coterie.models.chat import ChatRenderer
from coterie.models.control import ControlTokens
from coterie.models.template import ChatTemplate
from coterie.models.tool_calls import ToolTemplate
from coterie.record.turn import Message, Tool, ToolCall
from coterie.tools.calls import validate_calls
from tests.helpers.native_templates import NATIVE, SHAPES, make_native_tokenizer
from tests.helpers.play_native_calls import call_and_result
from tests.helpers.published_templates import PUBLISHED, published_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "what": {"type": "string"},
        "count": {"type": "integer"},
        "deep": {"type": "boolean"},
        "near": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": "object"}},
}
TOOLS = (Tool("look", "Looks.", SCHEMA), Tool("push", "Pushes.", {"type": "object"}))


def hermes(name: str, **given: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"


def xml(name: str, **given: str) -> str:
    inside = "".join(f"<parameter={key}>\n{one}\n</parameter>\n" for key, one in given.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def llama(name: str, **given: Any) -> str:
    return json.dumps({"name": name, "parameters": given})


def mistral(*calls: tuple[str, dict[str, Any]]) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": one} for name, one in calls])


def named(name: str, **given: Any) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}"


def read(syntax: str, text: str, finish: Any = "end") -> list[tuple[str, Any]]:
    """The calls that could be run, as names and arguments; all are checked by the tools' schemas."""
    calls = validate_calls(SYNTAXES[syntax].parse(text, finish, TOOLS), TOOLS)
    assert [call.id for call in calls] == [f"c{n}" for n in range(len(calls))]
    assert not any(call.error for call in calls), calls
    return [(call.name, json.loads(call.arguments)) for call in calls]


def errors(syntax: str, text: str, finish: Any = "end") -> list[str]:
    return [call.error for call in SYNTAXES[syntax].parse(text, finish, TOOLS)]


A, B, PUSH = ("look", {"what": "a"}), ("look", {"what": "b"}), ("push", {})
BARE = "<function=look><parameter=what>a</parameter></function>"
SAID = '<|message|>{"what": "a"}'
KIMI = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
MINIMAX = '<invoke name="look">\n<parameter name="what">a</parameter>\n</invoke>\n'


@pytest.mark.parametrize(
    ("syntax", "text", "calls"),
    [
        ("hermes", '<tool_call>{"name": "push"}</tool_call>', [("push", {})]),
        ("llama", f"\n<|python_tag|>{llama('look', what='a')};  {llama('look', what='b')}", [A, B]),
        ("llama", f"Let me see. <|python_tag|>{llama('look', what='a')}", [A]),
        ("llama", f"{llama('look', what='a')}\n{llama('look', what='b')}", [A, B]),
        ("llama", '{"name": "Ada", "age": 36}', []),
        ("llama", f"It is {llama('look', what='a')}", []),
        ("mistral", f"I look.{mistral(A, B)}", [A, B]),
        ("mistral", named("look", what="a") + named("look", what="b"), [A, B]),
        ("mistral", '[TOOL_CALLS]look[CALL_ID]ab12[ARGS]{"what": "a"}', [A]),
        ("mistral", f"[THINK]{mistral(B)}[/THINK]{mistral(A)}", [A]),
        ("hermes", hermes("look", what="a").replace("arguments", "parameters"), [A]),
        ("qwen", xml("look", what="a").removeprefix("<tool_call>"), [A]),
        ("qwen", f"I look.\n{BARE}\n{BARE}</tool_call>{xml('look', what='b')}", [A, A, B]),
        ("harmony", f"<|channel|>commentary to=functions.look <|constrain|>json{SAID}<|call|>", [A]),
        ("harmony", f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
                    f"<|channel|>commentary to=functions.look<|channel|>commentary json{SAID}", [A]),
        ("harmony", "<|channel|>final<|message|>Use to=functions.look or <|message|>.", []),
        ("python", r"""<|tool_call_start|>look(what="\x61")<|tool_call_end|>""", [A]),
        ("minimax", f"<minimax:tool_call>\n{MINIMAX}{MINIMAX}</minimax:tool_call>", [A, A]),
        ("kimi", "I look.<|tool_calls_section_begin|>" + KIMI.format("functions.look:0", json.dumps(A[1]))
                 + KIMI.format("functions.push:1", "{}") + "<|tool_calls_section_end|>", [A, PUSH]),
        ("kimi", KIMI.format("look:12 ", json.dumps(A[1])), [A]),
    ],
)  # fmt: skip
def test_calls_are_read_in_their_order(syntax: str, text: str, calls: list[Any]) -> None:
    assert read(syntax, text) == calls


MARKS = "</tool_call> <think> [TOOL_CALLS] </parameter> ; } \" ' \\ \n é😀 <|python_tag|>"


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("hermes", hermes("look", what=MARKS) + hermes("look", what="b")),
        ("qwen", xml("look", what=MARKS) + xml("look", what="b")),
        ("llama", llama("look", what=MARKS) + ";" + llama("look", what="b")),
        ("mistral", mistral(("look", {"what": MARKS}), B)),
        ("mistral", named("look", what=MARKS) + named("look", what="b")),
    ],
)
def test_markup_in_an_argument_is_text(syntax: str, text: str) -> None:
    assert read(syntax, text) == [("look", {"what": MARKS}), B]


def test_no_call_runs_that_the_end_of_a_cut_message_leaves_open() -> None:
    for syntax, text in (
        ("hermes", hermes("look", what="a") + hermes("look", what="b")[:30]),
        ("llama", llama("look", what="a") + "; " + llama("look", what="b")),
        ("mistral", named("look", what="a") + named("look", what="b")),
    ):
        first, second = errors(syntax, text, "length")
        assert not first and "cut off" in second
    for syntax, text in (("llama", llama("look", what="a")), ("mistral", mistral(A, B)[:-1])):
        (error,) = errors(syntax, text, "length")
        assert "cut off before its end" in error
    assert errors("llama", llama("look", what="a"), "stop_string") != [""]
    assert errors("hermes", hermes("look", what="a"), "stop_string") == [""]


DEEP: Any = json.loads("[" * 700 + "]" * 700)
"""What Python reads, and what it can't go through where the stack is high already."""


@pytest.mark.parametrize(
    ("syntax", "text", "why"),
    [
        ("hermes", "<tool_call>{'name': 'look'}</tool_call>", "can't be read"),
        ("hermes", '<tool_call>{"name": "look", "arguments": "{}"}</tool_call>', "are a text"),
        ("hermes", '<tool_call>{"name": "look", "arguments": [1]}</tool_call>', "not an object"),
        ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "nests too deep"),
        ("hermes", hermes("look", what=DEEP), "nests too deep"),
        ("qwen", xml(""), "has no name"),
        ("qwen", xml("look", what="a").replace("</parameter>", ""), "<parameter=what> is not closed"),
        ("qwen", xml("look", what="a").replace("</function>", ""), "is not closed"),
        ("qwen", "<tool_call><function=look><parameter=what>a</parameter><parameter=what>b</parameter>"
                "</function></tool_call>", "is there twice"),
        ("llama", '{"name": "look", "parameters": {', "can't be read"),
        ("hermes", '<tool_call>{"name": "look", "args": {"what": "a"}}</tool_call>', 'no "arguments"'),
        ("qwen", "Call <function=look> with a thing", "is not closed"),
        ("glm", "<tool_call>look<arg_key>what</arg_key></tool_call>", "something follows"),
        ("harmony", "<|channel|>commentary to=functions.look <|constrain|>json<|call|>", "calls are "),
        ("deepseek", "<｜tool▁calls▁begin｜>look", "is not closed"),
        ("gemma", '<|tool_call>call:look{what:<|"|>a}<tool_call|>', "can't be read"),
        ("gemma", f"<|tool_call>call:look{{what:{'[' * 9999}}}<tool_call|>", "nests too deep"),
        ("python", "<|tool_call_start|>[look('a')]<|tool_call_end|>", "not all named"),
        ("python", "<|tool_call_start|>[look(what=open('a'))]<|tool_call_end|>", "can't be read"),
        ("python", f"<|tool_call_start|>[look(what={'(' * 9999})]<|tool_call_end|>", "can't be read"),
        ("minimax", f"<minimax:tool_call>{MINIMAX}", "is not closed"),
        ("kimi", KIMI.format("functions.look:0", "{what}"), "can't be read"),
    ],
)  # fmt: skip
def test_broken_calls_are_answered_and_never_run(syntax: str, text: str, why: str) -> None:
    (told,) = errors(syntax, text)
    assert told.startswith("not run: ") and why in told


def test_a_broken_call_does_not_hide_the_next_one() -> None:
    open_ = hermes("look", what="a").removesuffix("</tool_call>")
    for text in (
        "<tool_call>{oops</tool_call>",
        '<tool_call>{"name": "look", "arg',
        "<tool_call>",
        open_,
    ):
        first, second = errors("hermes", text + hermes("look", what="a"))
        assert first and not second
    whole = xml("look", what="a")
    first, second = errors("qwen", whole.removesuffix("</tool_call>") + whole)
    assert "<tool_call> is not closed" in first and not second


def test_values_of_tags_are_typed_by_the_tools_schema() -> None:
    for key, value, expected in (
        ("what", "12", "12"),
        ("what", "\n a\n\nb ", "\n a\n\nb "),
        ("count", "twelve", "twelve"),
        ("deep", "True", True),
        ("near", "None", None),
        ("near", "3", 3),
        ("place", '{"x": [1]}', {"x": [1]}),
        ("other", '{"x": 1}', {"x": 1}),
        ("other", "words", "words"),
    ):
        (call,) = SYNTAXES["qwen"].parse(xml("look", **{key: value}), "end", TOOLS)
        given = json.loads(call.arguments)[key]
        assert given == expected and type(given) is type(expected)


def test_half_a_character_in_a_call_can_be_stored_and_is_not_run() -> None:
    (call,) = SYNTAXES["hermes"].parse(
        '<tool_call>{"name": "look", "arguments": {"what": "\\ud800"}}</tool_call>', "end"
    )
    assert call.arguments.encode()
    (told,) = validate_calls((call,), TOOLS)
    assert "half a character" in told.error


# -- published templates --------------------------------------------------------------------------

VALUES = {
    "what": 'Zoë said "no" & \'yes\'\n\n \\ {x: [1], "y": 2}; <b> 😀 ',
    "empty": "",
    "count": -12,
    "near": None,
    "size": 0.5,
    "deep": True,
    "place": {"a": [1, {"b": "ü, \"c\": 'd'"}, []], "e": {}, "f": None, "g": [True, "h"]},
    "list": ["a, b", "c=(d)", 3],
}
PUBLISHED_TOOLS = (
    Tool("look", "Looks.", {
        "type": "object",
        "properties": {
            "what": {"type": "string"}, "empty": {"type": "string"}, "count": {"type": "integer"},
            "near": {"type": ["string", "null"]}, "size": {"type": "number"}, "deep": {"type": "boolean"},
            "place": {"type": "object"}, "list": {"type": "array"},
        },
    }),
    Tool("push-it", "Pushes.", {"type": "object", "properties": {"from": {"type": "string"}}}),
)  # fmt: skip
SHOWN = {"deepseekv3": "{{ tools | tojson if tools }}"}
"""What a template without tools is given to show them; DeepSeek's users write them into the system's message."""
WRITE_CALLS = {
    "deepseek": ["deepseekv3"],
    "gemma": ["diffusion_gemma", "gemma4", *(f"gemma4_v{n}" for n in range(2, 6))],
    "glm": ["glm4moe"],
    "harmony": ["gptoss"],
    "hermes": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"],
    "llama": ["llama3_1", "llama3_2"],
    "muse": ["muse_glimmer"],
    "python": ["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_v2"],
    "qwen": ["nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra",
                "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"],
}  # fmt: skip
FAMILIES = {name: kind for kind, names in WRITE_CALLS.items() for name in names}
ENDS = {
    "deepseek": "<｜tool▁calls▁end｜>", "gemma": "<|tool_response>", "glm": "<|observation|>",
    "harmony": "<|call|>", "llama": "<|eot_id|>", "muse": "<|eot|>", "gemma4_v2": "<turn|>",
}  # fmt: skip
"""The token that ends a message with calls, by syntax or template; ``<|im_end|>`` for all others."""
AFTER_CALLS = {*WRITE_CALLS["gemma"], "gptoss", "muse_glimmer"} - {"gemma4_v2"}
"""Those that take results only after a message with calls, or begin such a message in another way."""
ONE_CALL = ("gptoss", "llama3_1", "llama3_2")
THOUGHTS = {
    "gemma": "<|channel>thought\n{}<channel|>",
    "harmony": "<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
    "muse": " to=self<|message|>{}<|eom|><|start|>assistant",
}


def templates_tools(tokenizer: Any) -> ToolTemplate:
    template = ChatTemplate(tokenizer)
    return ToolTemplate(template, ControlTokens(tokenizer, template))


@cache
def published_calls(name: str) -> tuple[ToolTemplate, list[tuple[str, Any]], str]:
    """What is found of a template, calls, and the text that the template itself writes of them."""
    tokenizer = published_tokenizer(name, SHOWN.get(name, ""))
    values = dict(VALUES)
    if name in ("lfm2_2_5", "lfm2_2_5_v2"):  # which write backslashes as they are
        values["what"] = VALUES["what"].replace("\\", "")
    calls = [("look", values), ("push-it", {"from": "Oslo"})][: 1 if name in ONE_CALL else 2]
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            openai_call(ToolCall("", tool, json.dumps(given)), f"c{place}")
            for place, (tool, given) in enumerate(calls)
        ],
    }
    template = ChatTemplate(tokenizer)
    text = template.text([{"role": "user", "content": "ASKED"}, said], False)
    found = templates_tools(tokenizer)
    text = text.rpartition("ASKED")[2].partition(template.header.removesuffix("<think>\n"))[2]
    if found.syntax.thinks and "</think>" not in text:
        text = f"</think>{text}"
    return found, calls, text.removeprefix("<think>")


def read_back(syntax: CallSyntax, text: str, finish: Any = "end") -> list[tuple[str, Any]]:
    calls = syntax.parse(text, finish, PUBLISHED_TOOLS)
    return [(one.name, None if one.error else json.loads(one.arguments)) for one in calls]


@pytest.mark.parametrize("name", PUBLISHED)
def test_calls_that_a_published_template_writes_are_read_back(name: str) -> None:
    if name not in FAMILIES:
        with pytest.raises(UserError, match="can't call tools in a syntax of its own"):
            templates_tools(published_tokenizer(name)).required()
        return
    found, calls, text = published_calls(name)
    assert found.required().name == SYNTAXES[FAMILIES[name]].name
    end = ENDS.get(name, ENDS.get(FAMILIES[name], "<|im_end|>"))
    assert found.ends == {published_tokenizer(name).convert_tokens_to_ids(end)}
    assert found.parallel == (len(calls) == 2)
    assert found.results == ("calls" if name in AFTER_CALLS else "tool")
    assert read_back(found.required(), text) == calls
    wrong = [other for key, other in SYNTAXES.items() if key != FAMILIES[name]]
    assert not any(read_back(other, text) == calls for other in wrong)


@pytest.mark.parametrize("name", FAMILIES)
def test_cut_and_damaged_calls_are_errors_that_the_agent_sees(name: str) -> None:
    found, calls, text = published_calls(name)
    syntax = found.required()
    marks = [one.end() for one in syntax.opening.finditer(text)] or [text.index('"name"') + 7]
    start = next(n for n in marks if "<think>" not in text[:n] or "</think>" in text[:n])
    for cut in range(start, len(text)):
        for finish in ("length", "end"):
            read = read_back(syntax, text[:cut], finish)
            assert read and all(one in [*calls, (one[0], None)] for one in read), text[:cut]
        assert syntax.parse(text[:cut] + text[cut + 1 :], "end", PUBLISHED_TOOLS), text[cut:]


@pytest.mark.parametrize("name", FAMILIES)
def test_calls_in_a_thought_are_no_calls(name: str) -> None:
    found, calls, text = published_calls(name)
    thought = THOUGHTS.get(FAMILIES[name], "<think>{}</think>")
    thought = thought.removeprefix("<think>") if found.syntax.thinks else thought
    text = text.rpartition("</think>")[2]
    inside = text.replace("<|eom|>", "")
    assert read_back(found.required(), thought.replace("{}", inside) + text) == calls
    begin, syntax = thought.partition("{}")[0], found.required()
    looks_like_call = bool(syntax.opening.search(begin + inside, len(begin)))
    assert read_back(syntax, begin + inside) == [("", None)] * looks_like_call
    assert read_back(syntax, begin + inside, "length") == []


@pytest.mark.parametrize("name", FAMILIES)
def test_no_argument_of_a_call_makes_a_control_token(name: str) -> None:
    """The template writes the calls of a turn without tokens."""
    tokenizer = published_tokenizer(name, SHOWN.get(name, ""))
    renderer = ChatRenderer(tokenizer)
    counts = []
    for word in ("word", "".join(tokenizer.get_added_vocab())):
        tree, chat = call_and_result(json.dumps({"what": word, word: [word]}), "blue")
        ids = renderer.render(chat, tree, "agent", tools=PUBLISHED_TOOLS)
        text = renderer.decode(ids).rpartition("Hello")[2]
        assert "look" in text and "blue" in text
        counts.append(Counter(one for one in ids if one in renderer.control.ids))
    assert counts[0] == counts[1]


# -- which syntax is a model's --------------------------------------------------------------------


def test_a_models_syntax_is_what_reads_back_the_calls_that_its_template_writes() -> None:
    for name, kind, results, id_ in (
        ("coder", "qwen", "tool", "c3"),
        ("mistral", "mistral", "calls", "call00003"),
        ("kimi", "kimi", "calls", "functions.{name}:3"),
        ("minimax", "minimax", "calls", "c3"),
        ("granite", "hermes", "tool", "c3"),
    ):
        tools = ChatRenderer(make_native_tokenizer(name)).tools
        assert tools.required().name == SYNTAXES[kind].name
        assert (tools.shows_tools, tools.results, tools.parallel) == (True, results, True)
        assert tools.call_id(3) == id_


def test_a_model_whose_template_shows_no_tools_is_refused() -> None:
    renderer = ChatRenderer(make_native_tokenizer("smol"))
    assert renderer.tools.syntax is None and renderer.tools.results == "user"
    with pytest.raises(UserError, match="shows no tools") as refused:
        renderer.tools.required()
    assert "tools.calls=tags" in refused.value.todo


def test_a_way_to_write_calls_that_nothing_reads_is_refused() -> None:
    for old, new in (
        ("\\n<tool_call>\\n{", "\\n<call>\\n{"),
        ("arguments | tojson", "arguments | tojson | lower"),
        ('n{"name": "\'', 'n{"tool": "\''),
    ):
        made = copy(make_native_tokenizer("qwen2"))
        made.chat_template = SHAPES["qwen2"].replace(old, new)
        renderer = ChatRenderer(made)
        assert renderer.tools.syntax is None
        with pytest.raises(UserError, match="can't call tools in a syntax of its own"):
            renderer.calls(hermes("look", what="a"), "end", TOOLS)


@pytest.mark.parametrize("name", NATIVE)
def test_words_of_a_user_right_after_results_are_shown_by_every_template(name: str) -> None:
    renderer = ChatRenderer(make_native_tokenizer(name))
    tree, (first, call, result) = call_and_result("{}", "blue", "tall")
    calls = [call] if name != "llama31" else []
    chat = [first, *calls, result, Message.of("user", "Now answer.")]
    shown = renderer.decode(renderer.render(chat, tree, "agent", tools=TOOLS))
    words = ("blue", "tall", "Now answer.")
    assert sorted(words, key=shown.rfind) == [one for one in words if one in shown] == list(words)
    assert renderer.tools.users_after_results == (name != "mistral")
    assert ('"tall\\n\\nNow answer."' in shown) == (name == "mistral")
