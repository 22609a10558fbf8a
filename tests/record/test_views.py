"""Trees written out by hand, and the views, rows and pairs that must come of them."""

from dataclasses import replace

import pytest

from coterie.record.rows import (
    Pair,
    Row,
    Target,
    labeled_trajectory,
    prompts,
    recontext,
    rows,
    trajectory_pair,
    turn_pair,
    view,
)
from coterie.record.tree import Ending, Outcome, Tree
from coterie.record.turn import (
    Message,
    Part,
    Request,
    Sample,
    Speaker,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
    make_turn,
)

ALICE, BOB = Speaker("agent", "Alice"), Speaker("agent", "Bob")
OPENING = (Message.of("system", "be kind"), Message.of("user", "hello"))
HEARD, CUT = Message.of("user", "go on"), Message.of("user", "in short")
FIRST, ANSWER, SECOND, THIRD = (3, 4), (8,), (7,), (6, 6)


def sample(request: Request, ids: tuple[int, ...]) -> Sample:
    logprobs = tuple(-0.25 * token for token in ids)
    return Sample(request.id, ids, logprobs, "end", "policy", "2", 5, 1.0, 1.0)


def say(tree: Tree, parent: str, speaker: Speaker, ids: tuple[int, ...], request: Request) -> Turn:
    turn = make_turn(parent, speaker, [Part(f"said {ids}")], sample=sample(request, ids))
    tree.add(turn, request)
    return turn


def talk() -> tuple[Tree, list[Turn]]:
    """Alice speaks three times and Bob once; Alice's last prompt drops what was said before."""
    tree = Tree("t", "rollout", 0)
    first = Request.make("Alice", tree.root, None, (1, 2), OPENING)
    turns = [say(tree, tree.root, ALICE, FIRST, first)]
    asked = Request.make("Bob", turns[0].id, None, (9,), (HEARD,))
    turns.append(say(tree, turns[0].id, BOB, ANSWER, asked))
    own = (*OPENING, Message("assistant", turn=turns[0].id))
    second = Request.make(
        "Alice", turns[1].id, turns[0].id, (1, 2, *FIRST, 5), (*own, HEARD), (1, 2, *FIRST), own
    )
    turns.append(say(tree, turns[1].id, ALICE, SECOND, second))
    before = ((1, 2, *FIRST, 5, *SECOND), (*own, HEARD, Message("assistant", turn=turns[2].id)))
    third = Request.make(
        "Alice", turns[2].id, turns[2].id, (1, 2, 5, 5), (OPENING[0], CUT), *before
    )
    turns.append(say(tree, turns[2].id, ALICE, THIRD, third))
    return tree, turns


def test_a_target_names_the_writer_of_each_span_of_its_tokens():
    tree = Tree("t", "rollout", 0)
    request = Request.make("Alice", tree.root, None, (1, 2), OPENING)
    spans = (("0", 1), ("0.1", 2))
    own = replace(sample(request, (3, 4, 5)), version="0.1", versions=spans)
    tree.add(turn := make_turn(tree.root, ALICE, [Part("said")], sample=own), request)
    ((target,),) = [row.targets for row in rows(view(tree, turn.id, "Alice"))]
    assert target.writer == "policy@0.1"
    assert target.writers == (("policy@0", 1), ("policy@0.1", 2))
    with pytest.raises(ValueError, match="versions"):
        replace(own, versions=(("0", 2),))


def test_a_view_is_what_went_through_the_engine():
    tree, turns = talk()
    assert prompts(tree, turns[3].id, "Alice") == [
        ((1, 2), turns[0]),
        ((1, 2, 3, 4, 5), turns[2]),
        ((1, 2, 5, 5), turns[3]),
    ]
    segments = view(tree, turns[3].id, "Alice").segments
    assert [one.ids for one in segments] == [(1, 2, 3, 4, 5, 7), (1, 2, 5, 5, *THIRD)]
    whole = segments[0].pieces
    assert [piece.ids for piece in whole] == [(1, 2), FIRST, (5,), SECOND]
    assert [piece.turn for piece in whole] == [None, turns[0], None, turns[2]]
    (own,) = view(tree, turns[3].id, "Bob").segments
    assert own.ids == (9, 8)
    assert len(view(tree, turns[2].id, "Alice").segments) == 1, "what comes after is not seen"


def test_rows_are_segments_with_own_turns_as_targets():
    tree, turns = talk()
    leaf = turns[3].id
    first, second = rows(view(tree, leaf, "Alice"), weight=0.5)
    assert first.ids == (1, 2, 3, 4, 5, 7)
    assert first.targets == (
        Target(2, 4, "policy@2", turns[0].id),
        Target(5, 6, "policy@2", turns[2].id),
    )
    assert first.logprobs == (-0.75, -1.0, -1.75)
    assert first.mask == [False, False, True, True, False, True]
    assert (first.weight, first.context, first.origin) == (0.5, None, f"{leaf}/Alice/0")
    assert (second.logprobs, second.origin) == ((-1.5, -1.5), f"{leaf}/Alice/1")


def test_messages_of_a_request_are_all_that_was_shown():
    tree, turns = talk()
    shown = [tree.messages(tree.requests[turn.prompt]) for turn in (turns[0], *turns[2:])]
    own = Message("assistant", turn=turns[0].id)
    assert shown == [OPENING, (*OPENING, own, HEARD), (OPENING[0], CUT)]
    assert tree.requests[turns[2].prompt].messages == (HEARD,), "stored as a delta"
    assert tree.requests[turns[2].prompt].ids == (5,)


def test_recontext_changes_what_is_around_the_same_turns():
    tree, turns = talk()
    seen = []

    def render(messages, _, reader, tools=()):
        seen.append((messages, reader, tools))
        return tuple(range(20, 20 + len(messages)))

    shorter = recontext(
        tree, turns[3].id, "Alice", name="short", edit=lambda shown: shown[1:], render=render
    )
    own = Message("assistant", turn=turns[0].id)
    shown = [OPENING[1:], (OPENING[1], own, HEARD), (CUT,)]
    assert seen == [(messages, "Alice", ()) for messages in shown]
    found = list(rows(shorter))
    assert [row.ids for row in found] == [(20, *FIRST), (20, 21, 22, *SECOND), (20, *THIRD)]
    assert {(row.logprobs, row.context) for row in found} == {(None, "short")}


def test_what_nobody_sampled_is_a_target_by_its_author_without_logprobs():
    tree = Tree("t", "rollout", 0)
    request = Request.make("Alice", tree.root, None, (1,), OPENING)
    written = make_turn(tree.root, ALICE, [], ids=(2,), author="import:x", request=request.id)
    tree.add(written, request)
    context = make_turn(written.id, ALICE, [Part("only context")], ids=(3,), author="script:y")
    tree.add(context)
    (row,) = rows(view(tree, context.id, "Alice"))
    assert (row.ids, row.targets) == ((1, 2), (Target(1, 2, "import:x", written.id),))
    assert row.logprobs is None
    tree, turns = talk()
    asked = Request.make("Bob", turns[1].id, turns[1].id, (9, 8, 1), (HEARD,), (9, 8))
    written = make_turn(turns[1].id, BOB, [], ids=(2,), author="import:x", request=asked.id)
    tree.add(written, asked)
    (row,) = rows(view(tree, written.id, "Bob"))
    assert [target.writer for target in row.targets] == ["policy@2", "import:x"]
    assert row.logprobs is None, "of no target, since one of them was not sampled"


def turn(**changes: object) -> Turn:
    values = {"parent": "root", "speaker": ALICE, "parts": [Part("hi")], **changes}
    return make_turn(**values)


RESULT = ToolResult("c0", "12")
SEARCH = Tool("search", "Finds pages.", {"type": "object", "properties": {"q": {"type": "string"}}})


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": "other"}, {"speaker": BOB}, {"speaker": Speaker("person", "Alice")}, {"parts": [Part("ho")]},
        {"parts": [Part("hi", image="ab")]}, {"ids": (1,)}, {"draw": 1}, {"calls": (ToolCall("c0", "search", "{}"),)},
        {"results": (RESULT,)},
    ],
    ids=str,
)  # fmt: skip
def test_a_turn_is_told_from_others_by_what_it_is(changes):
    assert turn(**changes).id != turn().id
    assert turn(**changes).id == turn(**changes).id
    assert turn(author="import:x").id == turn().id, "not by who wrote it down"
    for other in ({"text": "13"}, {"call_id": "c1"}, {"error": True}):
        assert turn(results=(replace(RESULT, **other),)).id != turn(results=(RESULT,)).id


def request(**changes: object) -> Request:
    values = {
        "agent": "Alice",
        "parent": "p",
        "previous": None,
        "prompt": (1,),
        "messages": OPENING,
    }
    return Request.make(**{**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"agent": "Bob"}, {"parent": "q"}, {"previous": "t"}, {"prompt": (2,)}, {"messages": OPENING[:1]},
        {"messages": (OPENING[0], HEARD)}, {"running": (1,)}, {"tools": (SEARCH,)},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_is_told_from_others_by_what_was_asked(changes):
    assert request(**changes).id != request().id == "a30e26e7dd53a00a9daee8006b5bd01f"
    less, more = (request(prompt=prompt, running=(1, 1)) for prompt in ((1, 2), (1, 1, 2)))
    assert (less.ids, more.ids) == ((2,), (2,))
    assert less.id != more.id, "they keep more or less"


def test_a_request_is_told_from_others_by_its_tools():
    offered = request(tools=(SEARCH,))
    assert offered.tools == (SEARCH,)
    changes = {"name": "find", "description": "", "parameters": {"type": "object"}, "alone": True}
    for name, value in changes.items():
        other = replace(SEARCH, **{name: value})
        assert request(tools=(other,)).id != offered.id != request(tools=(SEARCH, other)).id


def forked() -> tuple[Tree, list[Turn]]:
    """Two samples of one opening, added and ended out of order."""
    tree = Tree("t", "rollout", 0)
    opened = turn(parent=tree.root)
    ends = [turn(parent=opened.id, speaker=BOB, draw=draw) for draw in (1, 0)]
    for one in (opened, *ends):
        tree.add(one)
    for number, end in zip((1, 0), ends, strict=True):
        tree.end(Outcome(end.id, number, Ending("agreed"), "42", 1.0))
    return tree, [opened, *ends]


def test_a_trees_paths_run_from_the_beginning_in_order_of_sample():
    tree, (opened, late, early) = forked()
    assert tree.path(late.id) == [opened, late]
    tree.add(opened)
    assert tree.children(tree.root) == [opened], "an equal turn is there once"
    assert tree.children(opened.id) == tree.leaves() == [late, early]
    paths = [(outcome.sample, path) for outcome, path in tree.trajectories()]
    assert paths == [(0, [opened, early]), (1, [opened, late])]
    keys = (("t", "a", 0), ("t", "a", 1), ("t", "b", 0), ("u", "a", 0))
    assert len({Tree(*key).root for key in keys}) == 4
    with pytest.raises(KeyError, match="parent gone"):
        tree.add(turn(parent="gone"))
    with pytest.raises(ValueError, match="separate draws"):
        tree.end(Outcome(late.id, 2, Ending("agreed"), "42", 1.0))


def sides() -> tuple[Tree, Turn, Turn]:
    """Alice's second turn said in two ways."""
    tree, turns = talk()
    other = Request.make("Alice", turns[1].id, None, (1, 2, *FIRST, 5), (HEARD,))
    return tree, turns[2], say(tree, turns[1].id, ALICE, (31, 32), other)


def test_a_pair_has_the_better_side_first():
    tree, better, worse = sides()
    chosen, rejected = (view(tree, one.id, "Alice") for one in (better, worse))
    pair = trajectory_pair(chosen, rejected, weight=0.5, group="g")
    assert [row.ids for row in pair.chosen] == [(1, 2, 3, 4, 5, 7)]
    assert [len(row.targets) for row in pair.chosen] == [2], "all own turns are compared"
    assert pair.rejected[-1].ids[-2:] == (31, 32)
    assert (pair.weight, pair.group) == (0.5, "g")
    assert trajectory_pair(chosen, rejected).weight == turn_pair(chosen, rejected).weight == 1
    last = turn_pair(chosen, rejected, weight=0.5, group="g")
    assert (last.weight, last.group) == (0.5, "g")
    assert [row.targets for row in last.chosen] == [(Target(5, 6, "policy@2", better.id),)]
    assert [row.ids[-2:] for row in last.rejected] == [(31, 32)]
    with pytest.raises(ValueError, match="needs one agent"):
        trajectory_pair(chosen, view(tree, worse.id, "Bob"))
    with pytest.raises(ValueError, match="has no turn"):
        turn_pair(view(tree, tree.path(better.id)[0].id, "Bob"), view(tree, worse.id, "Bob"))


def test_sides_are_equal_if_tokens_and_targets_are():
    row = Row((1, 2, 3), (Target(1, 2, "a"),))
    assert Pair((row,), (replace(row, weight=2.0, origin="x"),)).equal_sides
    assert not Pair((row,), (replace(row, ids=(1, 2, 4)),)).equal_sides
    assert not Pair((row,), (replace(row, targets=(Target(1, 3, "a"),)),)).equal_sides


def test_a_labelled_trajectory_is_of_the_segments_in_which_its_agent_speaks():
    tree, turns = talk()
    silent = Request.make("Alice", turns[3].id, None, (30,), (HEARD,))
    end = say(tree, turns[3].id, ALICE, (), silent)
    found = labeled_trajectory(view(tree, end.id, "Alice"), True, weight=0.5, group="g")
    assert [row.ids for row in found.rows] == [(1, 2, 3, 4, 5, 7), (1, 2, 5, 5, *THIRD)]
    assert (found.success, found.weight, found.group) == (True, 0.5, "g")


@pytest.mark.parametrize(
    "targets", [[(1, 2), (1, 3)], [(2, 3), (0, 1)], [(1, 1)], [(2, 4)], [(-1, 2)]], ids=str
)
def test_targets_that_overlap_or_are_out_of_order_empty_or_outside_are_refused(targets):
    with pytest.raises(ValueError, match="ordered, non-empty ranges"):
        Row((1, 2, 3), tuple(Target(*place, "a") for place in targets))


def test_messages_of_a_conversation_of_any_length_can_be_read():
    tree, turns, previous = Tree("t", "rollout", 0), 1500, None
    node = tree.root
    for number in range(turns):
        messages = (Message.of("user", f"{number}"),)
        place = (f"r{number}", "Alice", node, previous)
        request = Request(*place, 0, (number,), 2 * number, messages)
        turn = say(tree, node, ALICE, (number,), request)
        node = previous = turn.id
    found = tree.messages(request)
    assert len(found) == 2 * turns - 1 and found[-1].parts[0].text == f"{turns - 1}"
