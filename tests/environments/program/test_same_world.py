"""A world that is played natively and as a program is the same world."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.helpers import program_worlds
from tests.helpers.program_worlds import write_exchange
from tests.helpers.run_rl import final_weights, informative_overrides, make_recipe, run_to_end


def read_turns(folder: Path) -> list[tuple[object, ...]]:
    """The turns and scores of a run, with the prompts' tokens."""
    queries = (
        "SELECT id, parent, speaker, ids, version, seed FROM turn",
        "SELECT agent, previous, keep, ids FROM request",
        "SELECT leaf, sample, score FROM outcome",
    )
    with closing(sqlite3.connect(folder / "store.sqlite")) as store:
        return [row for query in queries for row in sorted(store.execute(query), key=repr)]


def test_exchange_as_a_program_trains_equal_weights(tmp_path: Path) -> None:
    rows = write_exchange(tmp_path / "exchange.jsonl")
    file = program_worlds.__file__
    overrides = [*informative_overrides(tmp_path), f"dataset={rows}", "model=tiny-exchange"]
    overrides += ["policies.weights=each", "steps.count=1"]
    native = [f"environment={file}:NativeExchange"]
    program = ["environment=program", f"environment.agent={file}:play_exchange"]
    program += ["environment.roles=[Alice,Bob]", "environment.reward=exact"]
    for name, world in (("native", native), ("program", program)):
        run_to_end(make_recipe("rl/grpo", [*overrides, *world]), tmp_path / name)
    assert read_turns(tmp_path / "native") == read_turns(tmp_path / "program")
    for role in ("Alice", "Bob"):
        weights = {final_weights(tmp_path / name, role) for name in ("native", "program")}
        assert len(weights) == 1
