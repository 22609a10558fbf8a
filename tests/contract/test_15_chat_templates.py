"""Contract 15: on every chat template that TRL ships, prompts are those that the template itself writes.

Turns are sampled as a model of that family writes them: as the template writes them after its own generation prompt.
Tokenizers have the marks of each template (``tests.helpers.published_templates``). Vision templates are used
with text alone.
"""

import json
import re
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

import pytest

import coterie
from coterie.engines.settings import EngineSettings
from coterie.environments.protocol import State
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Tree
from coterie.record.turn import (
    Message,
    Part,
    Role,
    Sample,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    make_turn,
)
from tests.helpers.published_templates import PLAIN
from tests.helpers.published_templates import PUBLISHED as NAMES
from tests.helpers.published_templates import published_tokenizer as tokenizer

KEYS = ("reasoning_content", "reasoning", "thinking")
"""Message keys under which families take thoughts; which one a template reads is found by trying."""


@cache
def renderer(name: str) -> ChatRenderer:
    return ChatRenderer(tokenizer(name))


def own_text(name: str, chat: list[dict[str, Any]], generation: bool, **args: Any) -> str:
    """The template's own text of a chat."""
    listed = name in ("idefics3", "smolvlm", "llava_next")
    if listed:
        chat = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in chat]
    text = tokenizer(name).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=generation, **args
    )
    assert isinstance(text, str)
    return text


def key_of(name: str) -> str:
    """The key under which a template takes thoughts; empty if it has none, or reads contents."""
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for key in KEYS:
        if "THINKS" in own_text(name, [chat[0], {**chat[1], key: "THINKS"}], False):
            return key
    return ""


def spoken(name: str, text: str, thought: str) -> dict[str, Any]:
    """A message as the template takes it; one that reads contents drops thoughts, so it is given none."""
    key = key_of(name) if thought else ""
    return {"role": "assistant", "content": text, **({key: thought} if key else {})}


def sampled(name: str, before: list[dict[str, Any]], said: dict[str, Any], thought: str) -> str:
    """The text that a model of the family samples: what the template writes after its generation prompt."""
    prompt, whole = own_text(name, before, True), own_text(name, [*before, said], False)
    if not whole.startswith(
        prompt
    ):  # the prompt opens a thought, and the template then writes none
        return f"{thought}\n</think>\n\n{said['content']}"
    return whole[len(prompt) : whole.rfind(said["content"]) + len(said["content"])]


class Dialogue:
    """A dialogue of an agent, as our messages and as the template's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.renderer = renderer(name)
        self.tree = Tree("t", "r", 0)
        self.last = self.tree.root
        self.messages: list[Message] = []
        self.chat: list[dict[str, Any]] = []

    def told(self, role: Any, text: str) -> None:
        self.messages.append(Message.of(role, text))
        self.chat.append({"role": role, "content": text})

    def says(self, text: str, thought: str = "", *, cut: bool = False) -> tuple[int, ...]:
        """Sample the turn letter by letter, so that its ids are nobody's tokenization."""
        own, said = self.renderer, spoken(self.name, text, thought)
        raw = sampled(self.name, self.chat, said, thought)
        whole = own.tokenizer(raw, add_special_tokens=False)["input_ids"]
        ids: list[int] = []
        for one in whole:
            letters = own.decode([one])
            marked = one in own.control.ids or PLAIN.fullmatch(letters.strip())
            split = [letters] if marked else letters
            for letter in split:
                ids += (
                    [one]
                    if marked
                    else own.tokenizer(letter, add_special_tokens=False)["input_ids"]
                )
        ids += [] if cut else own.end
        parts = own.parts(raw, "agent", "sampled", ids)
        turn = make_turn(self.last, Speaker("agent", "agent"), parts, ids=tuple(ids))
        self.tree.add(turn)
        self.last = turn.id
        self.messages.append(Message("assistant", turn=turn.id))
        self.chat.append(said)
        assert turn.text.strip() == text
        return tuple(ids)

    def prompt(self) -> tuple[int, ...]:
        return self.renderer.render(self.messages, self.tree, "agent")

    def check(self) -> None:
        """The prompt is the template's own text."""
        assert self.renderer.decode(self.prompt()) == own_text(self.name, self.chat, True)


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_first_prompt_is_the_templates_own_ids(name: str) -> None:
    chat = Dialogue(name)
    chat.told("user", "Is the fox fine?\n\n  a < b")
    text = own_text(name, chat.chat, True)
    want = tokenizer(name)(text, add_special_tokens=False)["input_ids"]
    assert list(chat.prompt()) == want


@pytest.mark.parametrize("name", NAMES)
def test_later_prompts_are_the_templates_own_text_with_the_sampled_ids_in_place(name: str) -> None:
    chat = Dialogue(name)
    for number in range(3):
        chat.told("user", f"Question {number}?")
        chat.check()
        ids = chat.says(f"fine {number}")
    chat.told("user", "And now?")
    chat.check()
    after = chat.prompt()
    plain = renderer(name).parts(renderer(name).decode(ids), "agent", "sampled")[0].text.strip()
    if plain.startswith("fine"):  # nothing but the answer was sampled
        assert any(after[at : at + len(ids)] == ids for at in range(len(after)))


@pytest.mark.parametrize("name", NAMES)
def test_thoughts_are_kept_or_dropped_as_the_template_does_it(name: str) -> None:
    own = renderer(name)
    marks = own.template.thoughts
    if marks is None or not (key_of(name) or marks.opened) or name == "qwen3_5_nothink":
        pytest.skip("the model does not think by its template, or only before calls")
    chat = Dialogue(name)
    for number in range(2):
        chat.told("user", f"Question {number}?")
        ids = chat.says(f"fine {number}", f"plan {number}")
        turn = chat.tree.turns[chat.last]
        assert own.decode(ids[: turn.thought_tokens]).strip().endswith(turn.parts[0].text.strip())
        assert f"plan {number}" in turn.whole_text and "plan" not in turn.text
    chat.told("user", "And now?")
    chat.check()
    after = chat.prompt()
    if "plan 1" in own.decode(after):
        assert any(after[at : at + len(ids)] == ids for at in range(len(after)))


@pytest.mark.parametrize("thought", ["", "plan"])
@pytest.mark.parametrize("name", NAMES)
def test_turns_written_elsewhere_are_what_the_template_writes_after_its_prompt(
    name: str, thought: str
) -> None:
    own = renderer(name)
    if thought and own.template.thoughts is None:
        pytest.skip("the model does not think by its template")
    chat = Dialogue(name)
    chat.told("user", "Is it fine?")
    prompt = own.decode(chat.prompt())
    found = prompt + own.decode(
        own.encode_turn(f"<think>{thought}</think>fine" if thought else "fine")
    )
    assert found == prompt + own.format_turn(
        f"<think>{thought}</think>fine" if thought else "fine"
    ) + own.decode(own.end)
    want = own_text(name, [*chat.chat, spoken(name, "fine", thought)], False)
    if name.startswith("deepseek"):  # its prompts open a thought that it never writes
        want = f"{prompt}{thought}</think>fine{own.decode(own.end)}"
    elif thought and not key_of(name):  # it writes thoughts only before calls
        want = f"{prompt}<|channel>thought\n{thought}\n<channel|>fine{own.decode(own.end)}"
    elif thought and name == "qwen3_5_nothink":  # its prompts close a thought before this one
        want = f"{prompt}<think>plan</think>fine{own.decode(own.end)}"
    elif name == "glm4moe":  # it writes no end of turn
        want += own.decode(own.end)
    assert squeezed(want).startswith(squeezed(found))


ORDERS = ("S", "SU", "SAU", "SUAU", "SUU", "SAUAU", "UU", "USU", "UASU", "SSU")
ROLES: dict[str, Role] = {"S": "system", "U": "user"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_shown_once_in_its_order_by_every_template(name: str, order: str) -> None:
    chat, texts = Dialogue(name), []
    for number, one in enumerate(order):
        texts.append(f"fine number {number}")
        if one == "A":
            parts = chat.renderer.parts(chat.renderer.format_turn(texts[-1]), "agent", "expert")
            ids = chat.renderer.encode_turn(texts[-1])
            turn = make_turn(chat.last, Speaker("agent", "agent"), parts, ids=ids)
            chat.tree.add(turn)
            chat.messages.append(Message("assistant", turn=turn.id))
        else:
            chat.messages.append(Message.of(ROLES[one], texts[-1]))
    prompt = chat.renderer.decode(chat.prompt())
    assert re.findall(r"fine number \d", prompt) == texts
    assert prompt.endswith(chat.renderer.template.core + chat.renderer.template.opener)


@pytest.mark.parametrize(
    "world", ["gsm8k", "math", "hotpot_qa", "lumos_maths", "exchange", "encyclopedia"]
)
def test_the_first_prompts_of_environments_hold_the_whole_task_on_every_template(
    world: str,
) -> None:
    source = {} if world in ("exchange", "encyclopedia") else {"source": "sample"}
    environment = coterie.environment(world, **source)
    task = environment.tasks("heldout", 1, 0)[0]
    state = State(task, 0)
    for actor in environment.next_actors(state):
        shown = environment.observe(state, actor)
        for name in NAMES:
            own = renderer(name)
            prompt = own.decode(own.render(shown, Tree("t", "r", 0), actor))
            for message in shown:
                assert "".join(part.text for part in message.parts).strip() in prompt, name


LOSING = (
    "{% for m in messages %}{% if m['role'] != 'user' or loop.first %}<|im_start|>{{ m['role'] + "
    "m['content'] }}<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


def test_a_prompt_that_lacks_a_message_is_refused_with_the_message() -> None:
    made = copy(tokenizer("qwen2_5"))
    made.chat_template, made.name_or_path = LOSING, "losing"
    own, tree = ChatRenderer(made), Tree("t", "r", 0)
    turn = make_turn(
        tree.root, Speaker("agent", "agent"), [Part("fine")], ids=own.encode_turn("fine")
    )
    tree.add(turn)
    first = Message.of("user", "Hello"), Message("assistant", turn=turn.id)
    own.render(first, tree, "agent")
    with pytest.raises(UserError, match=r"template of losing does not show .* user .*And now"):
        own.render((*first, Message.of("user", "And now?")), tree, "agent")


OTHERS = {
    "else": "{% for m in messages %}{% if m['role'] == 'user' %}<|im_start|>{{ m['content'] }}<think>{% else %}"
    "{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}",
    "last": "{% for m in messages %}{% if m['role'] != 'system' %}<|im_start|>{{ m['role'] }} {% if loop.last and "
    "m['role'] == 'user' and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}"
    "{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant "
    "{% endif %}",
    "closed": "{% for m in messages %}<|im_start|>{{ m['role'] }}{% if m['role'] == 'assistant' %}</think>"
    "{% endif %}{{ m['content'].split('</think>')[-1] }}<|im_end|>{% endfor %}{% if add_generation_prompt %}"
    "<|im_start|>assistant{{ '<think>' if thinking else '</think>' }}{% endif %}",
}
"""Shapes that no template of TRL's has: MiniCPM's roles, Mistral's system message, DeepSeek V3.1's closed thought."""


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("else", "<|im_start|>rules\n\nask<think>said<|im_end|><|im_start|>told<think>"),
        (
            "last",
            "<|im_start|>user rules\n\nask<|im_end|><|im_start|>assistant said<|im_end|>"
            "<|im_start|>tool told<|im_end|><|im_start|>assistant ",
        ),
        (
            "closed",
            "<|im_start|>systemrules<|im_end|><|im_start|>userask<|im_end|><|im_start|>assistant</think>said"
            "<|im_end|><|im_start|>tooltold<|im_end|><|im_start|>assistant</think>",
        ),
    ],
)
def test_roles_are_told_apart_in_shapes_of_other_families(name: str, want: str) -> None:
    made, tree = copy(tokenizer("qwen2_5")), Tree("t", "r", 0)
    made.chat_template = OTHERS[name]
    own = ChatRenderer(made)
    turn = make_turn(tree.root, Speaker("agent", "agent"), [Part("said")],
                     ids=own.encode_turn("<think>a</think>said" if name == "closed" else "said"))  # fmt: skip
    result = make_turn(turn.id, Speaker("tool", "tools"), [], results=(ToolResult("c0", "told"),))
    tree.add(turn)
    tree.add(result)
    told = [Message.of("system", "rules"), Message.of("user", "ask")]
    told += [Message("assistant", turn=turn.id), Message("tool", turn=result.id)]
    assert own.decode(own.render(told, tree, "agent")) == want


SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}}
FIND = Tool("find", "Finds the weather.", SCHEMA)
CALL = {"name": "find", "arguments": {"city": "Paris"}}


class AnySyntax:
    """Reads the one call of these tests from any text, for families whose calls nothing reads."""

    name, stop = "any", ()

    def parse(self, *_: Any) -> tuple[ToolCall, ...]:
        return (ToolCall("c0", "find", json.dumps(CALL["arguments"])),)

    def show(self, results: Any) -> str:
        return ""


@cache
def caller(name: str) -> ChatRenderer:
    """A renderer that reads calls, whatever they look like; results then follow the template's own calls."""
    own = ChatRenderer(tokenizer(name))
    if own.tools.syntax is None and own.tools.shows_tools:
        own.tools = copy(own.tools)
        own.tools.syntax, own.tools.results = AnySyntax(), "calls"  # type: ignore[assignment]
        gemma = own.tokenizer.eos_token if name == "gemma4_v2" else "<|tool_response>"
        ends = {"gptoss": "<|call|>", "glm4moe": "<|observation|>"}
        end = ends.get(name, gemma if "gemma" in name else own.tokenizer.eos_token)
        end_id: Any = own.tokenizer.convert_tokens_to_ids(end)
        own.end_ids |= {end_id}
        own.control.allow(own.control.ids)
    return own


@pytest.mark.parametrize("thought", ["", "plan"])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_after_calls_are_the_templates_own_with_the_sampled_calls_in_place(
    name: str, thought: str
) -> None:
    own = caller(name)
    marks = own.template.thoughts
    if own.tools.syntax is None or (thought and marks is None):
        pytest.skip("the template shows no tools, or no thoughts")
    tools = [
        {
            "type": "function",
            "function": {"name": FIND.name, "description": FIND.description, "parameters": SCHEMA},
        }
    ]
    id_ = own.tools.call_id(0).format(name=FIND.name)
    asked = {"role": "user", "content": "Weather in Paris?"}
    key = marks.key if marks and thought else ""
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id_, "type": "function", "function": CALL}],
    }
    called |= {key: thought} if key else {}
    told = {"role": "tool", "content": "sunny", "tool_call_id": id_, "name": "find"}
    prompt = own_text(name, [asked], True, tools=tools)
    whole = own_text(name, [asked, called], False, tools=tools)
    if not whole.startswith(prompt):
        pytest.skip(
            "the prompt opens a thought, or has closed it, and the template then writes another one"
        )
    ids = own.tokenizer(whole.removeprefix(prompt), add_special_tokens=False)["input_ids"]
    ended = next((at for at, one in enumerate(ids) if one in own.end_ids), len(ids))
    text = own.decode(ids[:ended])
    tree, ids = Tree("t", "r", 0), tuple(ids[: ended + 1])
    turn = make_turn(tree.root, Speaker("agent", "agent"), own.parts(text, "agent", "sampled", ids),
                     ids=ids, calls=own.calls(text, "end", [FIND]))  # fmt: skip
    result = make_turn(turn.id, Speaker("tool", "tools"), [], results=(ToolResult("c0", "sunny"),))
    tree.add(turn)
    tree.add(result)
    messages = [
        Message.of("user", asked["content"]),
        Message("assistant", turn=turn.id),
        Message("tool", turn=result.id),
    ]
    found = own.render(messages, tree, "agent", tools=[FIND])
    assert own.decode(found) == own_text(name, [asked, called, told], True, tools=tools)
    if own.decode(found).startswith(prompt + own.decode(ids)):
        assert any(found[at : at + len(ids)] == ids for at in range(len(found)))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("qwen3", {"enable_thinking": False}),
        ("qwen3_6", {"enable_thinking": False}),
        ("glm4moe", {"enable_thinking": False}),
        ("nemotron_3_super", {"enable_thinking": False}),
        ("gemma4_v5", {"enable_thinking": True}),
        ("gptoss", {"reasoning_effort": "low"}),
        ("qwen3_8", {"reasoning_effort": "low"}),
    ],
)
def test_arguments_of_a_template_reach_every_prompt(name: str, args: dict[str, Any]) -> None:
    own, tree = ChatRenderer(tokenizer(name), template_args=args), Tree("t", "r", 0)
    chat = [{"role": "user", "content": "Is it fine?"}]
    messages = [Message.of("user", "Is it fine?")]
    prompt = own.decode(own.render(messages, tree, "agent"))
    assert prompt == own_text(name, chat, True, **args) != own_text(name, chat, True)
    turn = make_turn(
        tree.root, Speaker("agent", "agent"), [Part("fine")], ids=own.encode_turn("fine")
    )
    tree.add(turn)
    messages += [Message("assistant", turn=turn.id), Message.of("user", "Sure?")]
    chat += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "Sure?"}]
    assert own.decode(own.render(messages, tree, "agent")) == own_text(name, chat, True, **args)


def test_an_argument_that_a_template_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match="no argument 'enable_thinkin'"):
        ChatRenderer(tokenizer("qwen3"), template_args={"enable_thinkin": False})


THINKING = ["qwen3", "qwen3_6", "gptoss", "gemma4_v5", "deepseek_r1_distill", "llama3", "phi3"]
"""Templates of several thought marks; those of the last two know none."""


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_is_seen_by_its_agent_alone_and_answers_are_read_without_it(name: str) -> None:
    own = renderer(name)
    marks = own.template.thoughts or own.template.plain_marks
    assert marks is not None
    text = f"{'' if marks.opened else marks.open}plan{marks.close}fine"
    further = f"<|end|><|start|>assistant{marks.open}plan" if name == "gptoss" else ""
    twice = text.replace("plan", f"plan{further}")
    for said, seen in ((twice, "fine"), (text.partition("plan")[0] + "plan and", "")):
        tree = Tree("t", "r", 0)
        ids = tuple(own.tokenizer(said, add_special_tokens=False)["input_ids"])
        turn = make_turn(
            tree.root, Speaker("agent", "Ann"), own.parts(said, "Ann", "sampled", ids), ids=ids
        )
        tree.add(turn)
        assert (turn.text, turn.whole_text) == (seen, said)
        assert 0 < turn.thought_tokens < len(ids) or not seen
        told = [Message.of("user", "Hello"), Message("user", turn=turn.id)]
        assert "plan" not in own.decode(own.render(told, tree, "Bob"))


@pytest.mark.parametrize("name", ["llama3", "qwen2_5"])
def test_a_thought_that_the_template_does_not_know_stays_in_the_agents_own_history(
    name: str,
) -> None:
    own, tree = renderer(name), Tree("t", "r", 0)
    text = "<think>\nplan\n</think>\n\nfine"
    turn = sample(own, tree.root, text + own.decode(own.end))
    tree.add(turn)
    assert (turn.text, turn.whole_text) == ("fine", text)
    messages = [Message.of("user", "Is it?"), Message("assistant", turn=turn.id)]
    prompt = own.render([*messages, Message.of("user", "Sure?")], tree, "agent")
    chat = [{"role": "user", "content": "Is it?"}, {"role": "assistant", "content": text}]
    assert own.decode(prompt) == own_text(name, [*chat, {"role": "user", "content": "Sure?"}], True)
    assert any(prompt[n : n + len(turn.ids)] == turn.ids for n in range(len(prompt)))
    (row,) = coterie.rows_from_messages(own, chat)
    (target,) = row.targets
    assert own.decode(row.ids[target.start :]) == text + own.decode(own.end)


@pytest.mark.parametrize(
    ("parser", "name", "text"),
    [("auto", "llama3", "fine"), ("template", "llama3", "<think>plan</think>fine"), ("template", "qwen3", "fine")],
)  # fmt: skip
def test_the_reasoning_parser_says_whether_templates_without_thoughts_have_any(
    parser: Any, name: str, text: str
) -> None:
    settings = EngineSettings(reasoning_parser=parser)
    own = ChatRenderer(tokenizer(name), template_args=settings.template)
    assert own.parts("<think>plan</think>fine", "agent", "sampled")[-1].text == text


SWITCHED = (
    "{% for m in messages %}{% set c = m.content.replace('/no_think', '') | trim %}<|im_start|>{{ m.role }}\n"
    "{{ c }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if '/no_think' in messages[0].content %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_a_switch_that_the_template_acts_on_may_stand_in_a_system_message() -> None:
    own: Any = copy(tokenizer("qwen2_5"))
    own.chat_template = SWITCHED
    messages = [Message.of("system", "Be brief. /no_think"), Message.of("user", "Hi")]
    ids = ChatRenderer(own).render(messages, Tree("t", "r", 0), "A")
    chat = [{"role": m.role, "content": m.parts[0].text} for m in messages]
    text = own.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str) and text.endswith("</think>\n\n")
    assert own.decode(ids) == text and "/no_think" not in text


TOOLS = [
    {
        "type": "function",
        "function": {"name": FIND.name, "description": FIND.description, "parameters": SCHEMA},
    }
]
ENDS = {"cohere2": "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "glm4moe": "<|user|>"}
"""Tokens that end an answer, where they are not the tokenizer's end alone."""
CALL_ENDS = {"gptoss": "<|call|>", "glm4moe": "<|observation|>", "gemma4_v2": "<turn|>"}
KINDS = [(calls, thoughts) for calls in (False, True) for thoughts in (False, True)]


def exchanges(name: str, calls: bool, thoughts: bool) -> list[tuple[dict[str, Any], str]]:
    """Return two questions, with one and two calls if any, as the template takes them, and the thought of each."""
    own = renderer(name)
    key = own.template.thoughts.key if own.template.thoughts else ""
    chat: list[tuple[dict[str, Any], str]] = []
    called = 0
    for cities in (["Paris"], ["Rome", "Oslo"]):
        chat.append(({"role": "user", "content": f"Is it fine in {cities}?"}, ""))
        for city in [*(cities if calls else ()), ""]:
            id_ = own.tools.call_id(called).format(name="find")
            function = {"name": "find", "arguments": {"city": city}}
            call = {"tool_calls": [{"id": id_, "type": "function", "function": function}]}
            thought = f"plan{len(chat)}" * (thoughts and own.template.thoughts is not None)
            message: dict[str, Any] = {
                "role": "assistant",
                "content": "" if city else f"fine {len(chat)}",
            }
            message |= (call if city else {}) | ({key: thought} if key and thought else {})
            chat.append((message, thought))
            if city:
                told = {"role": "tool", "content": "sun", "tool_call_id": id_, "name": "find"}
                chat.append((told, ""))
                called += 1
    return chat


def reply(name: str, message: dict[str, Any], thought: str) -> str:
    """Return what a model writes: the template's text of a message after its prompt, and the tokens that end it."""
    tools = {"tools": TOOLS} if "tool_calls" in message else {}
    asked = {"role": "user", "content": "Well?"}
    prompt, whole = (
        own_text(name, chat, generation, **tools)
        for chat, generation in (([asked], True), ([asked, message], False))
    )
    end = ENDS.get(name, tokenizer(name).eos_token)
    if tools:
        end = CALL_ENDS.get(name, "<|tool_response>" if "gemma" in name else end)
    start = next((n for n, one in enumerate(prompt) if whole[n : n + 1] != one), len(prompt))
    text = whole[start:].partition(end)[0]
    if prompt[start:].strip():  # DeepSeek's prompts open a thought, which the template never writes
        text = f"{thought}\n</think>\n\n{text}"
    elif thought not in text:  # Gemma 4 before v5 writes thoughts only before calls, v2 never
        text = f"<|channel>thought\n{thought}\n<channel|>{text}"
    return text + end


@pytest.mark.parametrize(("calls", "thoughts"), KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_two_questions_are_the_templates_own_prompts_and_whole_replies(
    name: str, calls: bool, thoughts: bool
) -> None:
    own, chat = renderer(name), exchanges(name, calls, thoughts)
    tools: dict[str, Any] = {"tools": TOOLS} if calls else {}
    given = [{**one, "reasoning_content": thought} if thought else one for one, thought in chat]
    if (calls and own.tools.syntax is None) or (thoughts and name == "qwen3_5_nothink"):
        with pytest.raises(UserError, match=r"call tools|a thought after its prompts"):
            coterie.rows_from_messages(own, given, **tools)
        return
    rows = coterie.rows_from_messages(own, given, **tools)
    targets = iter([(row.ids, target) for row in rows for target in row.targets])
    for number, (message, thought) in enumerate(chat):
        if message["role"] == "assistant":
            ids, target = next(targets)
            want = own_text(name, [one for one, _ in chat[:number]], True, **tools)
            assert own.decode(ids[: target.start]) == want
            trained = own.decode(ids[target.start : target.stop])
            assert trained == reply(name, message, thought)
    assert next(targets, None) is None


@pytest.mark.parametrize(("calls", "thoughts"), KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_two_questions_are_the_templates_own_with_the_sampled_ids_in_place(
    name: str, calls: bool, thoughts: bool
) -> None:
    own, chat, tree = renderer(name), exchanges(name, calls, thoughts), Tree("t", "r", 0)
    if (calls and own.tools.syntax is None) or (thoughts and name == "qwen3_5_nothink"):
        pytest.skip("the template shows no calls, or its prompts close the thought")
    tools: dict[str, Any] = {"tools": TOOLS} if calls else {}
    messages, replies, parent = list[Message](), list[Turn](), tree.root
    for number, (message, thought) in enumerate(chat):
        if message["role"] == "user":
            messages.append(Message.of("user", message["content"]))
            continue
        if message["role"] == "tool":
            results = (ToolResult("c0", message["content"]),)
            turn = make_turn(parent, Speaker("tool", "tools"), [], results=results)
        else:
            prompt = own.render(messages, tree, "agent", tools=[FIND] if calls else ())
            want = own_text(name, [one for one, _ in chat[:number]], True, **tools)
            if (
                name.startswith("nemotron") and not thoughts
            ):  # as sampled after prompts that open a thought
                want = want.replace("<think></think>", "<think>\n</think>")
            assert own.decode(prompt) == want
            for ids in (turn.ids[:-1] for turn in replies):
                kept = own.decode(ids) in want
                assert kept == any(prompt[n : n + len(ids)] == ids for n in range(len(prompt)))
            turn = sample(own, parent, reply(name, message, thought), [FIND] if calls else ())
            replies.append(turn)
        tree.add(turn)
        messages.append(Message(message["role"], turn=turn.id))
        parent = turn.id


def sample(own: ChatRenderer, parent: str, text: str, tools: Sequence[Tool] = ()) -> Turn:
    """Return a turn that was sampled letter by letter, but for control tokens."""
    ids = list[int]()
    for token in own.tokenizer(text, add_special_tokens=False)["input_ids"]:
        letters = own.decode([token])
        if token in own.control.ids or PLAIN.fullmatch(letters):
            ids.append(token)
        else:
            for letter in letters:
                ids += own.tokenizer(letter, add_special_tokens=False)["input_ids"]
    assert ids[-1] in own.end_ids
    text, zeros = own.decode(ids[:-1]), (0.0,) * len(ids)
    found = Sample("r", tuple(ids), zeros, "end", "p", "0", 0, 1.0, 1.0)
    calls, parts = (
        own.calls(text, "end", tools) if tools else (),
        own.parts(text, "agent", "sampled", ids),
    )
    return make_turn(parent, Speaker("agent", "agent"), parts, sample=found, calls=calls)


def test_a_broken_call_whose_control_tokens_no_content_may_spell_stays_as_sampled() -> None:
    own, tree = renderer("gptoss"), Tree("t", "r", 0)
    broken = " to=functions.find<|channel|>commentary json<|message|>{city<|call|>"
    thought = "<|channel|>analysis<|message|>plan<|end|><|start|>assistant"
    called = sample(own, tree.root, thought + broken, [FIND])
    assert called.calls[0].error
    results = (ToolResult("c0", "not run"),)
    told = make_turn(called.id, Speaker("tool", "tools"), [], results=results)
    answer = sample(own, told.id, "<|channel|>final<|message|>fine<|return|>", [FIND])
    for turn in (called, told, answer):
        tree.add(turn)
    roles: dict[str, Any] = {"agent": "assistant", "tool": "tool"}
    messages = [Message(roles[one.speaker.kind], turn=one.id) for one in (called, told, answer)]
    messages = [Message.of("user", "Is it fine?"), *messages, Message.of("user", "Sure?")]
    prompt = own.render(messages, tree, "agent", tools=[FIND])
    assert "< |" not in own.decode(prompt)
    assert any(prompt[n : n + len(called.ids)] == called.ids for n in range(len(prompt)))


def test_the_tokens_that_end_a_turn_are_no_part_of_its_text() -> None:
    own = renderer("cohere2")
    assert sample(own, "r", "fine" + ENDS["cohere2"]).text == "fine"
