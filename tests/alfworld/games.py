"""Games in ALFWorld's layout, made from generated rows: ``python -m tests.alfworld.games FOLDER ROWS.jsonl...``

The name of each file of rows is its split. The rows in ``rows/`` were made from the package ``alfworld`` (MIT): scenes
with random, type-legal placements, each with a plan that wins.
"""

import gzip
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROWS = sorted(Path(__file__).with_name("rows").glob("*.jsonl.gz"))


def write_game(folder: Path, row: Mapping[str, Any]) -> Path:
    """Write a game and its ``traj_data.json``, and return the game's file."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    grammar = Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", row["goal"])
    game = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": grammar,
        "pddl_problem": row["pddl_problem"],
        "solvable": True,
        "walkthrough": row["expert_actions"],
    }
    place = folder / row["game_id"]
    place.mkdir(parents=True)
    about = {"task_type": row["task_type"], "pddl_params": row["pddl_params"]}
    (place / "traj_data.json").write_text(json.dumps(about))
    (place / "game.tw-pddl").write_text(json.dumps(game))
    return place / "game.tw-pddl"


def write_games(folder: Path, files: Iterable[Path] = ROWS) -> Path:
    for file in files:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
        for line in text.splitlines():
            write_game(folder / file.name.partition(".")[0], json.loads(line))
    return folder


if __name__ == "__main__":
    write_games(Path(sys.argv[1]), map(Path, sys.argv[2:]))
