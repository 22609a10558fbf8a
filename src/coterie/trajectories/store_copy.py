"""Copy of a stage from one store to another by SQL, without loading the record.

The other store is attached as ``source`` (:meth:`~coterie.trajectories.store.Store.beside`). Its row keys are shifted
behind the existing ones. Ids of turns and trees are content hashes, so they stay.
"""

import sqlite3
from collections.abc import Mapping

from coterie.trajectories.table import kind_key

OF_STEP = "iteration = :iteration AND stage = :stage"
TREES = f"(SELECT key FROM source.tree WHERE {OF_STEP})"


def copy_step(
    db: sqlite3.Connection,
    iteration: int,
    stage: str,
    renamed: Mapping[str, str],
    *,
    marks: bool = False,
) -> None:
    """Copy a stage's items, their tasks, and its trees with their credit, but no selections.

    Args:
        renamed: Maps settings keys of credit in the source to keys in the target.
        marks: Also copy items of the whole stage, such as the mark that it is finished.
    """
    behind = {
        f"{table}s": db.execute(f"SELECT coalesce(max(key), 0) FROM main.{table}").fetchone()[0]
        for table in ("item", "tree")
    }
    values = {"iteration": iteration, "stage": stage, "marks": marks, **behind}
    of_request = {"tree": "tree + :trees", "toolset": "t.key", "digest": "r.digest"}
    of_task = f"(SELECT task FROM source.item WHERE {OF_STEP})"
    for statement in (
        f"INSERT OR IGNORE INTO main.task SELECT * FROM source.task WHERE id IN {of_task}",
        f"INSERT OR IGNORE INTO main.secret SELECT * FROM source.secret WHERE task IN {of_task}",
        f"INSERT INTO main.item SELECT {_moved(db, 'item', key='key + :items')} FROM source.item "
        f"WHERE {OF_STEP} AND (task != '' OR :marks)",
        f"INSERT INTO main.tree SELECT {_moved(db, 'tree', key='key + :trees')} FROM source.tree "
        f"WHERE {OF_STEP}",
        "INSERT OR IGNORE INTO main.blob SELECT * FROM source.blob",
        "INSERT OR IGNORE INTO main.toolset (tools, digest) SELECT tools, digest FROM source.toolset",
        f"INSERT INTO main.request SELECT {_moved(db, 'request', **of_request)} "
        "FROM source.request r LEFT JOIN source.toolset s ON s.key = r.toolset "
        f"LEFT JOIN main.toolset t ON t.tools = s.tools WHERE tree IN {TREES}",
        f"INSERT INTO main.turn SELECT {_moved(db, 'turn', key='NULL', tree='tree + :trees')} "
        f"FROM source.turn WHERE tree IN {TREES}",
        f"INSERT INTO main.outcome SELECT {_moved(db, 'outcome', tree='tree + :trees')} "
        f"FROM source.outcome WHERE tree IN {TREES}",
    ):
        db.execute(statement, values)
    for kind, settings, name in db.execute("SELECT * FROM source.credit_kind").fetchall():
        own = kind_key(db, renamed.get(settings, settings), name)
        db.execute(
            "INSERT INTO main.credit SELECT :own, tree + :trees, node, value, digest FROM source.credit "
            f"WHERE kind = :kind AND tree IN {TREES}",
            {**values, "own": own, "kind": kind},
        )


def _moved(db: sqlite3.Connection, table: str, **instead: str) -> str:
    names = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return ", ".join(instead.get(name, name) for name in names)
