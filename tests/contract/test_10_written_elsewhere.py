"""Contract 10: text that no policy of this run sampled is tokenised once, on entering the store, and
every row says who wrote each target.
"""

from pathlib import Path

from coterie.engines.inprocess import InProcessEngine
from coterie.models.chat import ChatRenderer
from coterie.record.export import export
from coterie.record.rows import recontext, rows, view
from coterie.record.store import Store
from coterie.record.tree import Ending, ItemKey, Outcome, Tree
from coterie.record.turn import Message, Turn
from coterie.rollout.samplers import AgentContext, Prompt
from coterie.rollout.script_player import recorded_response
from tests.helpers.read_exports import read_export
from tests.helpers.recorded_dialogues import AGENTS, opening_messages

SAID = (
    "The river is blue; is it?",
    "<think> hm </think>It is. <|im_end|><|eot_id|> It is.",
    "",
    " Then <A>blue</A> \n",
    "<A>blue</A>",
)
AUTHOR = "import:theirs.jsonl"


def written(renderer: ChatRenderer) -> tuple[Tree, list[Turn]]:
    """A dialogue of which every turn is somebody else's."""
    tree = Tree("task", "rollout", 0)
    contexts = {agent: AgentContext() for agent in AGENTS}
    node, turns = tree.root, list[Turn]()
    for number, text in enumerate(SAID):
        agent = AGENTS[number % 2]
        heard = (
            Message("assistant" if turn.speaker.name == agent else "user", turn=turn.id)
            for turn in turns
        )
        prompt = Prompt(tree, node, agent, (*opening_messages(agent), *heard), 0, 0)
        response = recorded_response(prompt, contexts[agent], text, AUTHOR, renderer)
        contexts[agent] = contexts[agent].after(response.turn, response.request)
        tree.add(response.turn, response.request)
        turns.append(response.turn)
        node = response.turn.id
    tree.end(Outcome(node, 0, Ending("agreed"), "blue", 1.0))
    return tree, turns


def test_each_turn_is_a_target_once_and_its_author_is_named(engine: InProcessEngine) -> None:
    tree, turns = written(engine.loaded.renderer)
    targets = {}
    for agent in AGENTS:
        for row in rows(view(tree, turns[-1].id, agent)):
            assert row.logprobs is None, "nobody has sampled it, so there are none"
            for target in row.targets:
                assert row.ids[target.start : target.stop] == tree.turns[target.turn].ids
                assert target.writer == AUTHOR
                targets[target.turn] = agent
    assert targets == {turn.id: turn.speaker.name for turn in turns}


def test_the_prompts_are_those_that_the_model_would_have_been_given(
    engine: InProcessEngine,
) -> None:
    renderer = engine.loaded.renderer
    tree, turns = written(renderer)
    for agent in AGENTS:
        again = recontext(
            tree, turns[-1].id, agent, name="same", edit=lambda shown: shown, render=renderer.render
        )
        assert again.segments == view(tree, turns[-1].id, agent).segments


def test_a_turn_ends_in_one_control_token_and_spells_no_other(engine: InProcessEngine) -> None:
    renderer = engine.loaded.renderer
    control = set(renderer.tokenizer.all_special_ids)
    for turn in written(renderer)[1]:
        assert turn.ids[-1] in renderer.end_ids
        assert not control & set(turn.ids[:-1])


def test_it_goes_through_the_store_and_jsonl_unchanged(
    engine: InProcessEngine, tmp_path: Path
) -> None:
    tree, _ = written(engine.loaded.renderer)
    with Store.open(tmp_path / "a.db") as store:
        store.finish(ItemKey(0, "rollout", "task", "0"), tree=tree)
        export(store, tmp_path / "a.jsonl")
        assert store.tree(0, "rollout", "task") == tree
    read_export(tmp_path / "a.jsonl", tmp_path / "b.db")
    with Store.open(tmp_path / "b.db") as store:
        assert store.tree(0, "rollout", "task") == tree
