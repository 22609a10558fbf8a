"""Contract 1: a segment's pieces are exactly what the engine received and returned."""

from collections import Counter

from coterie.engines.inprocess import InProcessEngine
from coterie.engines.protocol import Sampling
from coterie.record.rows import rows, view
from tests.helpers.recorded_dialogues import AGENTS, Played, play_exchange

SETTINGS = (
    Sampling(max_tokens=20),
    Sampling(max_tokens=300),
    Sampling(max_tokens=200, stop=("a", "e ", "the")),
    Sampling(max_tokens=1),
)
"""Turns that end by length, by an end-of-turn token, by a stop string."""


def played(engine: InProcessEngine, seed: int = 0) -> Played:
    return play_exchange(
        engine, lambda number: SETTINGS[number % len(SETTINGS)], turns=8, seed=seed
    )


def test_each_call_is_a_prefix_of_its_segment_up_to_what_it_returned(
    engine: InProcessEngine,
) -> None:
    game = played(engine)
    for agent in AGENTS:
        beginnings = []
        for segment in view(game.tree, game.leaf, agent).segments:
            ids: tuple[int, ...] = ()
            for piece in segment.pieces:
                ids += piece.ids
                if piece.turn is not None:
                    beginnings.append((ids[: len(ids) - len(piece.ids)], piece.ids))
            assert ids == segment.ids
        assert beginnings == [
            (prompt, said.ids) for who, prompt, said in game.calls if who == agent
        ]


def test_turns_end_in_every_way(engine: InProcessEngine) -> None:
    ends = {said.finish for seed in range(3) for _, _, said in played(engine, seed * 100).calls}
    assert ends == {"end", "length", "stop_string"}


def test_each_sampled_token_is_trained_once_in_the_segment_where_it_was_sampled(
    engine: InProcessEngine,
) -> None:
    game = played(engine)
    trained: Counter[str] = Counter()
    for agent in AGENTS:
        for row in rows(view(game.tree, game.leaf, agent)):
            for target in row.targets:
                turn = game.tree.turns[target.turn]
                assert row.ids[target.start : target.stop] == turn.ids
                trained[target.turn] += 1
    assert trained == Counter({turn.id: 1 for turn in game.tree.path(game.leaf)})


def test_a_template_that_keeps_history_gives_one_segment(
    template: str, engine: InProcessEngine
) -> None:
    game = played(engine)
    segments = [len(view(game.tree, game.leaf, agent).segments) for agent in AGENTS]
    if template != "thinking":
        assert segments == [1, 1]


def test_only_the_template_that_drops_thoughts_opens_new_segments(
    template: str, engine: InProcessEngine
) -> None:
    thought = engine.loaded.tokenizer.convert_tokens_to_ids("</think>")
    for seed in range(0, 400, 10):
        game = play_exchange(engine, lambda _: Sampling(max_tokens=60), turns=8, seed=seed)
        if any(thought in said.ids[:-1] for _, _, said in game.calls[:4]):
            break
    counts = [len(view(game.tree, game.leaf, agent).segments) for agent in AGENTS]
    assert (max(counts) > 1) == (template == "thinking")
