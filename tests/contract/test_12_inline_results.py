"""Contract 12: a result within the turn that called (GAP's form) goes on right after the sampled ids.

No end of turn and no other word of the template stands between a call, its result, and what the agent says next.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from coterie.models.chat import ChatRenderer
from coterie.record.rows import recontext
from coterie.record.turn import Sample, ToolResult
from coterie.tools.calls import Tag, Tags
from tests.contract.test_11_native_calls import played, renderer
from tests.helpers.native_templates import SHAPES
from tests.helpers.play_native_calls import THOUGHTS, call_and_result, odd_ids, syntax_of

NAMES = [name for name in SHAPES if name not in THOUGHTS]
"""Without those that rewrite thoughts; see the last test."""


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_goes_on_after_the_call_with_the_result_alone(name: str) -> None:
    game, own = played(name, "tags", inline=True), renderer(name)
    turns = game.path
    for number, ((before, said), (prompt, _)) in enumerate(pairwise(game.heard[:6])):
        begun = before + said.ids
        result = turns[2 * number + 1]
        assert prompt[: len(begun)] == begun
        shown = own.control.encode([own._slot(result.text, "inline", "a result")])
        assert prompt[len(begun) :] == shown
        assert said.ids[-1] not in own.end_ids


@pytest.mark.parametrize("name", NAMES)
def test_all_of_it_is_one_segment_and_only_what_was_sampled_is_trained(name: str) -> None:
    game = played(name, "tags", inline=True)
    (segment,) = game.segments()
    assert segment.ids[: len(game.heard[-1][0])] == game.heard[-1][0]
    assert game.targets() == [said.ids for _, said in game.heard]
    again = recontext(
        game.tree, game.leaf, "agent",
        name="same", edit=lambda m: m, render=renderer(name).render,
    )  # fmt: skip
    assert list(again.segments) == game.segments()


@pytest.mark.parametrize("name", NAMES)
def test_no_inline_result_forges_anything(name: str) -> None:
    hostile, peaceful = (
        played(name, "tags", inline=True),
        played(name, "tags", "a word", inline=True),
    )
    control = renderer(name).control.ids
    for (one, _), (other, _) in zip(hostile.heard, peaceful.heard, strict=True):
        assert [i for i in one if i in control] == [i for i in other if i in control]


def told(own: ChatRenderer, *, ended: bool) -> tuple[str, str]:
    """A prompt after a call and an inline result, and the call as it is in the prompt."""
    text, end = "<look>1</look>", own.encode_turn("") if ended else ()
    ids = odd_ids(own, text) + end
    sample = Sample("r", ids, (0.0,) * len(ids), "stop_string", "p", "0", 0, 1.0, 1.0)
    shown = syntax_of("tags", inline=True).show((ToolResult("c0", "blue"),))
    tree, (*chat, last) = call_and_result("{}", "blue", sample=sample, text=text, result=shown)
    chat.append(replace(last, role="inline"))
    return own.decode(own.render(chat, tree, "agent")), own.decode(ids)


@pytest.mark.parametrize("name", NAMES)
def test_after_an_end_of_turn_a_result_is_a_users_message(name: str) -> None:
    own = renderer(name)
    text, call = told(own, ended=False)
    assert text.endswith(call + "\n<observation>\nblue\n</observation>\n")
    text, call = told(own, ended=True)
    between = text.partition(call)[2].partition("<observation>")[0]
    assert between and not text.endswith("</observation>\n")


def test_tags_and_their_results_have_names_that_can_be_chosen() -> None:
    tags = Tags({"look": Tag("what")}, observation="result")
    assert tags.show([ToolResult("c0", "blue")]) == "<result>\nblue\n</result>"
    assert tags.role == "user"
    assert Tags({"look": Tag("what")}, inline=True).role == "inline"


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_that_a_template_keeps_stay_as_sampled_around_an_inline_result(name: str) -> None:
    game = played(name, "tags", inline=True)
    for (before, said), (prompt, _) in pairwise(game.heard[:6]):
        assert prompt[: len(before) + len(said.ids)] == before + said.ids
