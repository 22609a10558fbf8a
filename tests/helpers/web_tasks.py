"""Made-up tasks in the form that Mind2Web has, for tests: a page of a garden shop."""

import json
import re
from pathlib import Path
from typing import Any

PAGE = """<html backend_node_id="1"><body backend_node_id="2">
<form backend_node_id="3"><label backend_node_id="4">What are you looking for?</label>
<input backend_node_id="10" placeholder="Search plants"/>
<select backend_node_id="11" aria_label="Size of pot"><option backend_node_id="12">small</option>
<option backend_node_id="13">large</option></select>
<button backend_node_id="14"><text backend_node_id="15">Find</text> plants</button></form>
<a backend_node_id="16">Opening hours</a><div backend_node_id="17"><br>Basket</div></body></html>"""


def candidate(node: int, tag: str, **more: Any) -> dict[str, Any]:
    """A candidate; its attributes are JSON in a text."""
    return {
        "backend_node_id": str(node),
        "tag": tag,
        "attributes": json.dumps({"class": "x"}),
        **more,
    }


CANDIDATES = {10: "input", 11: "select", 14: "button", 16: "a", 17: "div"}


def action(
    right: int, kind: str, value: str = "", *, more: int = 0, ranks: dict[int, int] | None = None
) -> dict[str, Any]:
    """A step whose right element is one of the candidates; on its page all ids are ``more``."""
    page = re.sub(r'(?<=_id=")\d+', lambda found: str(int(found[0]) + more), PAGE)
    found = {
        node: candidate(node + more, tag, **({"rank": ranks[node]} if ranks else {}))
        for node, tag in CANDIDATES.items()
    }
    return {
        "action_uid": f"a{right}", "cleaned_html": page, "raw_html": "<html></html>",
        "operation": {"op": kind, "original_op": kind, "value": value},
        "pos_candidates": [found.pop(right)], "neg_candidates": list(found.values()),
    }  # fmt: skip


def web_task(number: int) -> dict[str, Any]:
    plant = ("roses", "ferns", "mosses", "tulips", "lilies", "ivies", "oaks", "elms")[number % 8]
    return {
        "annotation_id": f"t{number}", "website": "garden", "domain": "Shopping", "subdomain": "Plants",
        "confirmed_task": f"Search plants called {plant} {number} in a large pot",
        "action_reprs": [
            f"[input]  Search plants -> TYPE: {plant} (red)",
            "[select]  Size of pot -> SELECT: large",
            "[button]  Find plants -> CLICK",
        ],
        "actions": [
            action(10, "TYPE", f"{plant} (red)"), action(11, "SELECT", "large", more=100),
            action(14, "CLICK", more=200),
        ],
    }  # fmt: skip


def write_tasks(file: Path, count: int = 10) -> Path:
    file.write_text("".join(json.dumps(web_task(n)) + "\n" for n in range(count)))
    return file
