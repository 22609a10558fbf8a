"""Exports of a store, read back into another one, to show that they have all of it."""

import base64
import json
from pathlib import Path

from pydantic import TypeAdapter

from coterie.record.store import Store
from coterie.record.tree import ItemKey, Outcome, Tree
from coterie.record.turn import Request, Turn


def trees_of(lines: list[dict]) -> dict[ItemKey, Tree]:
    """The trees of exported lines, by the item of each sample; images go to every tree."""
    trees: dict[ItemKey, Tree] = {}
    requests: dict[ItemKey, list[Request]] = {}
    images = [base64.b64decode(line["base64"]) for line in lines if line["kind"] == "blob"]
    for line in lines:
        if line["kind"] not in ("request", "turn", "outcome"):
            continue
        whole = ItemKey(**line["item"] | {"sample": ""})
        tree = trees.setdefault(whole, Tree(whole.task, whole.stage, whole.iteration))
        value = json.dumps(line[line["kind"]])
        if line["kind"] == "request":
            requests.setdefault(whole, []).append(TypeAdapter(Request).validate_json(value))
        elif line["kind"] == "turn":
            tree.add(TypeAdapter(Turn).validate_json(value))
        else:
            tree.end(TypeAdapter(Outcome).validate_json(value))
    for key, tree in trees.items():
        tree.requests |= {one.id: one for one in requests.get(key, ())}
        for image in images:
            tree.add_image(image)
    return trees


def read_export(file: Path, store: Path) -> None:
    """Make a store of the trees of an export."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
    with Store.open(store) as opened:
        for key, tree in trees_of(lines).items():
            opened.finish(key, tree=tree)
