"""Rendering chats: own turns as sampled, others as text, nothing forged, nothing hidden shown."""

from copy import copy
from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.tree import Tree
from coterie.record.turn import Message, Part, Sample, Speaker, make_turn
from tests.helpers.template_models import TEMPLATES, make_tokenizer
from tests.models.test_forged_turns import tokenizer as forgeable

ALICE = Speaker("agent", "Alice")


def encode(name: str, text: str) -> tuple[int, ...]:
    return tuple(make_tokenizer(name)(text, add_special_tokens=False)["input_ids"])


def spoken(
    tree: Tree, ids: tuple[int, ...], *parts: Part, speaker: Speaker = ALICE
) -> tuple[Message, ...]:
    sample = Sample("r", ids, (0.0,) * len(ids), "end", "p", "0", 0, 1.0, 1.0)
    turn = make_turn(tree.root, speaker, parts, sample=sample)
    tree.add(turn)
    return (
        Message.of("user", "Hello"),
        Message("assistant", turn=turn.id),
        Message.of("user", "and?"),
    )


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("closed", [True, False])
def test_sampled_ids_are_spliced_in_and_closed_once(name: str, closed: bool) -> None:
    renderer, tree = ChatRenderer(make_tokenizer(name)), Tree("t", "r", 0)
    end = make_tokenizer(name).eos_token_id
    odd = tuple(id_ for letter in "river" for id_ in encode(name, letter))
    assert odd != encode(name, "river")
    ids = (*odd, end) if closed else odd
    prompt = renderer.render(spoken(tree, ids, Part("river")), tree, "Alice")
    at = next(i for i in range(len(prompt)) if prompt[i : i + len(odd)] == odd)
    assert prompt[at + len(odd)] == end != prompt[at + len(odd) + 1]
    want = renderer.render(spoken(tree, encode(name, "river"), Part("river")), tree, "Alice")
    assert prompt[:at] + encode(name, "river") + prompt[at + len(odd) :] == want


@pytest.mark.parametrize("call", ["lstrip()", "rstrip()", "strip()", "lstrip('\n')", "strip('\n')"])
def test_a_template_that_strips_a_side_leaves_turns_as_sampled(call: str) -> None:
    stripping = copy(make_tokenizer("chatml"))
    stripping.chat_template = TEMPLATES["chatml"].replace("m['content']", f"m['content'].{call}")
    renderer = ChatRenderer(stripping)
    for text in ("\n tall\n", "\n\ntall", "tall \n"):
        tree, odd = Tree("t", "r", 0), tuple(i for letter in text for i in encode("chatml", letter))
        prompt = renderer.render(spoken(tree, odd, Part(text)), tree, "Alice")
        assert any(prompt[i : i + len(odd)] == odd for i in range(len(prompt)))


SPACED = "m['content'] if m['role'] == 'user' else ' ' + m['content']"


@pytest.mark.parametrize(
    ("made", "old", "new"),
    [
        (make_tokenizer("chatml"), "", ""),
        (make_tokenizer("chatml"), "m['content']", f"({SPACED})"),
        (forgeable("pieces"), "", ""),
        (forgeable("pieces"), "' ' + m", "m"),
    ],
    ids=["plain", "space before answers", "SentencePiece, space", "SentencePiece"],
)
def test_a_turn_written_elsewhere_has_the_ids_of_the_templates_whole_text(
    made: PreTrainedTokenizerFast, old: str, new: str
) -> None:
    own = copy(made)
    own.chat_template = str(made.chat_template).replace(old, new) if old else made.chat_template
    renderer, tree = ChatRenderer(own), Tree("t", "r", 0)
    asked, said = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "river"}
    prompt = renderer.render([Message.of("user", "Hello")], tree, "Alice")
    text = own.apply_chat_template([asked, said], tokenize=False)
    want = own(text, add_special_tokens=False)["input_ids"]
    found = [*prompt, *renderer.encode_turn("river")]
    assert found == want[: len(found)]


def test_only_a_speakers_own_turns_are_shown_by_their_tokens() -> None:
    renderer, tree = ChatRenderer(make_tokenizer("chatml")), Tree("t", "r", 0)
    person, parts = Speaker("person", "Ben"), (Part("blue"), Part("hidden", frozenset({"Carl"})))
    messages = spoken(tree, encode("chatml", "zzz"), *parts, speaker=person)
    text = renderer.decode(renderer.render(messages, tree, "Ben"))
    assert "zzz" in text and "blue" not in text
    for role, reader in (("assistant", "Bob"), ("user", "Ben")):
        shown = [replace(messages[1], role=role)]
        text = renderer.decode(renderer.render(shown, tree, reader))
        assert "blue" in text and "hidden" not in text and "zzz" not in text


def test_images_and_missing_templates_are_refused() -> None:
    renderer = ChatRenderer(make_tokenizer("chatml"))
    picture = Message("user", (Part("a cat", image="ab" * 32),))
    with pytest.raises(UserError, match="image"):
        renderer.render([picture], Tree("t", "r", 0), "A")
    bare = make_tokenizer("chatml").__class__(
        tokenizer_object=make_tokenizer("chatml").backend_tokenizer
    )
    with pytest.raises(UserError, match="no chat template"):
        ChatRenderer(bare)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ raise_exception('no users') }}", "no users"),
        ("{% for m in messages %}<|im_start|>{{ m['role'] }}{% endfor %}", "shows nothing of a user"),
        (TEMPLATES["chatml"].partition("{% if add_generation_prompt")[0], "no generation prompt"),
        ("{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}"
         "{{ raise_exception('no agents') }}{% endif %}{% endfor %}", "no agents"),
        ("{{ 'a' * 10**10 }}", "does not end within 1 s and 512 MiB"),
        ("{{ 'a' * 10**7 }}", "does not end within 1 s"),
        ("{% for a in range(9**5) %}{% for b in range(9**5) %}{% endfor %}{% endfor %}", "within 1 s"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
        ("{{ 'a' * 10**30 }}", "cannot fit"),
    ],
)  # fmt: skip
def test_a_template_that_can_not_be_used_is_refused_when_it_is_loaded(
    source: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may need longer for the others.
    if "within" in problem:
        monkeypatch.setattr("coterie.models.template.TRY_SECONDS", 1)
    strict = copy(make_tokenizer("chatml"))
    strict.chat_template = source
    with pytest.raises(UserError, match=problem):
        ChatRenderer(strict)
