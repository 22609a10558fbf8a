"""Answers of the viewer's server for a small run, as its page gets them, with any texts in them."""

from typing import Any

NAMES = {
    "task": "train-0",
    "agent": "Ann",
    "tool": "search",
    "reason": "agreed",
    "text": "A: I know that",
}
"""Texts that the run's models and files write, by where they occur."""


def trained(position: int, advantage: float, tokens: int) -> dict[str, Any]:
    """Return the trained tokens of a turn: those of one row."""
    row = {
        "iteration": 0, "stage": "reinforce", "role": "policy", "updates": 3, "step": 1, "position": position,
        "leaf": f"{0:032x}", "agent": "Ann", "segment": 0, "turn": None, "context": None, "side": "", "pair": None,
        "weight": 1.0, "tokens": tokens,
    }  # fmt: skip
    return {
        "row": row,
        "advantage": [advantage] * tokens,
        "logprob": [-0.1 - 0.4 * (i % 5) for i in range(tokens)],
        "reference": None,
        "teacher": None,
        "entropy": [0.3 * (i % 6) for i in range(tokens)],
        "clipped": [i == 2 for i in range(tokens)],
    }


def tokens(text: str, rows: list[dict[str, Any]], size: int = 3) -> dict[str, Any]:
    """Return a text cut into tokens of ``size`` characters."""
    offsets = [*range(0, len(text), size), len(text)]
    n = len(offsets) - 1
    return {
        "ids": [*range(300, 300 + n)], "text": text, "offsets": offsets,
        "logprob": [-0.3 * (i % 9) for i in range(n)], "trained": rows,
    }  # fmt: skip


def make_answers(texts: dict[str, str] = NAMES, n_tasks: int = 40, long: int = 1) -> dict[str, Any]:
    """Return answers by route; those of a path or turn do not depend on which."""
    names = [texts["task"], *(f"train-{i}" for i in range(1, n_tasks))]
    n, agent = 4 * n_tasks, texts["agent"]
    place = {"iteration": 0, "stage": "reinforce/00001", "task": names[0]}
    said = texts["text"] * long
    reply = tokens(said, [])
    reply["trained"] = [trained(0, 0.75, len(reply["ids"]))]
    row = reply["trained"][0]["row"]
    left = [{"node": f"{3:032x}", "iteration": 0, "stage": "reinforce", "agent": "",
             "reason": f"equal_rewards {texts['reason']}", "number": 0.5}]  # fmt: skip
    leaves = [f"{i:032x}" for i in range(n)]
    credit = {f"reward:{agent}": 1.0, f"advantage:{agent}": 0.75}
    rollouts = [
        {"leaf": leaves[i], "sample": f"{i:04}", "score": 1.0 - i / 4, "answer": said[:80], "reason": texts["reason"],
         "cut_off": i == 2, "tokens": 20 + i, "failure": None, "metrics": {}, "credit": credit,
         "path": [1, i + 2], "selected": 0, "left_out": left[0]["reason"] if i == 3 else None, "trained": int(i < 3)}
        for i in range(4)
    ]  # fmt: skip
    turn = {
        "parent": "f" * 32, "speaker": agent, "kind": "agent", "calls": [], "results": [], "writer": "policy@0",
        "parts": [{"text": said, "source": "sampled", "audience": None, "image": None}], "finish": "end",
        "temperature": 1.0, "top_p": 1.0, "seed": "7", "versions": [["0", 5], ["1", len(reply["ids"]) - 5]],
        "draw": 0, "siblings": 2, "has_prompt": True, "prompt_tokens": 12, "credit": {}, "selected": [],
        "left_out": [], "damaged": False,
        "plan": [[{"id": "T1", "text": said[:200], "after": []}, {"id": "T2", "text": "Look.", "after": []}],
                 [{"id": "T3", "text": "Answer.", "after": ["T1", "T2"]}]],
    }  # fmt: skip
    call = {"id": "c0", "name": texts["tool"], "arguments": said[:200], "error": ""}
    result = {
        "call_id": "c0",
        "text": said[:200],
        "error": False,
        "began": 0.1,
        "seconds": 0.2,
        "left_out": 0,
    }
    tool_turn = turn | {"id": "e" * 32, "speaker": texts["tool"], "kind": "tool", "tokens": None, "has_prompt": False,
                        "calls": [call], "results": [result], "versions": []}  # fmt: skip
    path = place | {
        "sample": "0000", "leaf": leaves[0], "score": 1.0, "answer": said[:80], "reason": texts["reason"],
        "cut_off": False, "metrics": {"well_formed": 1.0}, "failure": None, "is_leaf": True, "agents": [agent, "Bob"],
        "credit": credit, "selected": [], "left_out": [], "trained": [row],
        "turns": [tool_turn, turn | {"id": leaves[0], "tokens": reply}], "damaged": [],
    }  # fmt: skip
    evaluations = [
        {"iteration": i, "stage": "evaluate", "label": f"iteration {i}", "tasks": 24, "score": 0.4 + 0.3 * i,
         "low": 0.3 + 0.3 * i, "high": 0.5 + 0.3 * i, "tokens": 98.0 - 40 * i, "failed": 0}
        for i in range(2)
    ]  # fmt: skip
    stages = [
        {"iteration": 0, "stage": "reinforce", "seconds": 63.3, "metrics": {"reward": 0.5}, "tasks": 0, "rollouts": 0,
         "failed": 0, "has_trees": False, "finished": True},
        {"iteration": 0, "stage": place["stage"], "seconds": 12.0, "metrics": {}, "tasks": n_tasks, "rollouts": n,
         "failed": 1, "has_trees": True, "finished": True},
    ] + [
        {"iteration": i, "stage": "evaluate", "seconds": 9.0, "metrics": {"score": 0.5}, "tasks": 24, "rollouts": 24,
         "failed": 0, "has_trees": True, "finished": True}
        for i in range(2)
    ]  # fmt: skip
    steps = [*range(12)]
    curves = {"reward": [0.5 + 0.03 * i for i in steps], "entropy": [1 / (1 + i) for i in steps]}
    return {
        "version": {"version": "1", "running": True},
        "overview": {
            "name": "grpo", "folder": "runs/grpo", "recipe": "rl/grpo", "created": "2026-11-29", "model": "tiny",
            "seed": 0, "benchmark": "exchange", "metric": "f1", "secrets": False, "compare": None,
            "commands": ["coterie run rl/grpo steps.count=12"],
            "evaluations": evaluations, "stages": stages, "roles": ["policy"], "trained": True,
            "last_updates": [{**{name: row[name] for name in ("iteration", "stage", "role", "updates")}, "rows": 1,
                              "position": 0}],
            "facts": [["recipe", "rl/grpo"], ["model", said]],
            "sides": [[f"0/{s['iteration']}/{s['stage']}", f"grpo: {s['stage']} of iteration {s['iteration']}"]
                      for s in stages if s["has_trees"]],
        },
        "words": {"words": {"advantage": f"reward - mean {said}", "selected": "the best"}},
        "sections": {"sections": [
            {"id": "steps", "title": f"Steps {said}", "intro": said, "heads": [], "rows": [], "words": {},
             "folded": False, "steps": steps, "charts": [
                 {"title": name, "x": "step", "series": [{"name": said, "values": values}]}
                 for name, values in curves.items()
             ]},
            {"id": "table", "title": "Table", "intro": "", "heads": [said, "n"], "rows": [[said, 1], [None, 0.5]],
             "words": {said: said}, "folded": False,
             "charts": [{"title": said, "x": said, "steps": [said, "b"],
                         "series": [{"name": name, "values": [0.5, None], "low": [0.4, None], "high": [0.6, None]}
                                    for name in (said, "second")]}]},
        ]},
        "health": {"checks": [{"id": "equal", "title": "Groups with equal rewards", "level": "warning", "value": 0.6,
                               "limit": 0.5, "agent": None, "detail": "They teach nothing.",
                               "links": ["#/tasks?where=equal", "javascript:alert(1)"]}]},
        "tasks": place | {
            "tasks": names, "task": [i // 4 for i in range(n)], "sample": [f"{i % 4:04}" for i in range(n)],
            "leaf": [None if i == 7 else leaf for i, leaf in enumerate(leaves)],
            "score": [None if i == 7 else (i * 7 % 5) / 4 for i in range(n)],
            "reward": [None if i == 7 else (i * 7 % 5) / 4 for i in range(n)],
            "tokens": [20 + i % 31 for i in range(n)], "turns": [2 + i % 3 for i in range(n)],
            "cut_off": [int(i % 11 == 0) for i in range(n)], "reason": [texts["reason"]] * n,
            "answer": [said[:80]] * n, "failure": [texts["reason"] if i == 7 else None for i in range(n)],
            "selected": [i % 3 for i in range(n)], "trained": [i % 2 for i in range(n)],
            "left_out": ["equal_rewards" if i % 9 == 0 else None for i in range(n)],
            "credit": {f"advantage:{agent}": [0.5] * n}, "metrics": {}, "damaged": [],
        },
        "search": {"leaves": leaves[8:12], "tasks": [], "more": False},
        "task": place | {
            "root": "f" * 32, "public": {"question": said[:200]}, "secrets": None, "nodes": 31, "is_tree": True,
            "agents": [agent], "rollouts": rollouts, "damaged": [],
            "ids": ["f" * 32, "e" * 32, *leaves[:4]],
            "facts": {"selected": {}, "left_out": {leaves[3]: left}, "trained": {leaf: [row] for leaf in leaves[:3]}},
            "turns": {leaf: {"sample": "0000", "speaker": agent, "kind": "agent", "text": said[:2000],
                             "clipped": False, "tokens": 19, "credit": {"value": 0.7}}
                      for leaf in ["e" * 32, *leaves[:4]]},
            "pairs": [{"iteration": 0, "stage": "select", "agent": agent, "side": "chosen", "node": leaves[0],
                       "against": leaves[3], "weight": 1.0, "context": None}],
        },
        "path": path,
        "prompt": {"turn": leaves[0], "agent": agent, "hidden": False, "ids": [2], "text": said[:80], "offsets": [0],
                   "messages": [], "tools": [], "damaged": []},
        "tree": make_tree(place, agent, said),
        "row": {
            "row": row, "rows": 1, "place": place,
            **tokens(f"<|user|>Where?{said}", []),
            "trained": [row], "targets": [{"start": 5, "stop": 8, "turn": leaves[0], "writer": "policy@0"}],
            "advantage": [0.75] * 3, "logprob": [-0.1] * 3, "sampler": [-0.2] * 3, "reference": None,
            "teacher": None, "entropy": [0.5] * 3, "clipped": None, "metrics": {"loss": 0.1}, "credit": credit,
            "selected": [], "left_out": [], "damaged": [],
        },
        "turn": place | {
            "id": leaves[0], "speaker": agent, "kind": "agent", "writer": "policy@0", "versions": [["0", 5]],
            "parts": turn["parts"], "leaf": leaves[0], "leaves": 3, "credit": {"value": 0.7}, "rows": [row],
            "selected": [], "left_out": left, "damaged": [],
        },
        "compare": {
            "a": {"run": 0, "iteration": 0, "stage": "evaluate"}, "b": {"run": 0, "iteration": 1, "stage": "evaluate"},
            "tasks": names, "a_score": [i % 2 for i in range(n_tasks)], "b_score": [1] * n_tasks,
            "a_leaf": leaves[:n_tasks], "b_leaf": leaves[n_tasks : 2 * n_tasks],
        },
    }  # fmt: skip


def make_tree(
    place: dict[str, Any], agent: str, said: str, width: int = 3, levels: int = 4
) -> dict[str, Any]:
    """Return a full tree of turns, each followed by a turn of the world."""
    nodes: list[tuple[int, int]] = [(-1, 0)]

    def grow(parent: int, level: int) -> None:
        for _ in range(width if level < levels else 0):
            nodes.extend([(parent, 2 * level + 1), (len(nodes), 2 * level + 2)])
            grow(len(nodes) - 1, level + 1)

    grow(0, 0)
    n = len(nodes)
    return place | {
        "root": "f" * 32, "id": [f"{i:032x}" for i in range(n)], "parent": [parent for parent, _ in nodes],
        "depth": [depth for _, depth in nodes], "speakers": [["agent", agent], ["environment", "world"]],
        "speaker": [-1 if depth == 0 else 1 - depth % 2 for _, depth in nodes], "tokens": [19] * n,
        "label": [f"{i} {said[:60]}" for i in range(n)],
        "value": [None if i % 50 == 3 else (i * 13 % 29) / 29 for i in range(n)],
        "visits": [1 + i % 4 for i in range(n)], "score": [None] * n, "reason": [None] * n, "sample": [None] * n,
        "side": [{5: 1, 11: 2}.get(i % 17, 0) for i in range(n)],
        "left_out": ["margin" if i % 13 == 6 else None for i in range(n)],
        "credit": {"value": [0.5] * n}, "damaged": [],
    }  # fmt: skip
