"""Single nodes and training rows of a store for the viewer, with their tokens and what they were trained on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from coterie.record.browse import (
    COLUMNS,
    IN,
    KEY,
    ROW,
    ROWS,
    STAGE,
    TURNS,
    Browser,
    Fields,
    along,
    merged,
    rounded,
)
from coterie.record.rows import DTYPES, Row, prompts, rows, turn_row, unpacked, view
from coterie.record.store import REQUESTS, request_of, turn_of
from coterie.record.tables import plain, whole
from coterie.record.tree import Tree, redact
from coterie.record.turn import Part, Speaker, Turn

OF_ROW = f"{ROWS} WHERE " + " AND ".join(f"{name} = :{name}" for name in KEY)
OF_UPDATE = OF_ROW.replace("position = :position", "TRUE")
"""SQL of the rows of an optimizer step."""
NUMBERS = f"SELECT position, metrics, {', '.join(DTYPES)}, {whole('trained')} AS whole {OF_ROW}"
RECENT = 4
"""Number of paths that are kept in memory."""
DAMAGED = "damaged"
"""Author of a turn that differs from its digest."""


def path(browser: Browser, leaf: str) -> Fields:
    """Return the turns from the root to a node, with their tokens and everything that is recorded on them."""
    tree, scope = read_path(browser, leaf)
    rollouts = browser.rollouts(scope, [*tree.turns])
    credit, facts = browser.credit(scope, tree.turns), browser.facts([tree.root, *tree.turns])
    trained = dict[str, list[Fields]]()
    for row in merged(facts, tree.turns)["trained"]:
        for turn_id, arrays in _by_turn(browser, tree, row).items():
            trained.setdefault(turn_id, []).append({"row": row, **arrays})
    find = f"SELECT t.parent, count(*) {TURNS} {STAGE} AND t.parent {IN} GROUP BY t.parent"
    parents = json.dumps([tree.root, *tree.turns])
    children = dict(browser.fetch(find, {**scope, "nodes": parents}))
    turns = list[Fields]()
    for turn_id, turn in tree.turns.items():
        logprobs = turn.sample and rounded(turn.sample.logprobs)
        tokens = {
            **_decoded(browser, turn.ids, turn.text),
            "logprob": logprobs,
            "trained": trained.get(turn_id, []),
        }
        turns.append({
            **_turn(turn), **merged(facts, [turn_id]), "credit": credit.get(turn_id, {}),
            "siblings": children.get(turn.parent, 1), "tokens": tokens if turn.ids else None,
        })  # fmt: skip
    return {
        **(rollouts or [dict.fromkeys(COLUMNS)])[0], **scope, "leaf": leaf, "is_leaf": leaf not in children,
        "agents": list(dict.fromkeys(turn["speaker"] for turn in turns if turn["kind"] == "agent")),
        "turns": turns, "credit": credit.get(leaf, {}), **merged(facts, [tree.root, *tree.turns]),
    }  # fmt: skip


def prompt(browser: Browser, turn: str) -> Fields:
    """Return the prompt of a turn: its tokens, messages and tools."""
    tree, _ = read_path(browser, turn)
    agent, request_id = tree.turns[turn].speaker.name, tree.turns[turn].prompt
    answer = {"turn": turn, "agent": agent, "hidden": request_id is None}
    if request_id is None:
        return answer
    request, (ids, _) = tree.requests[request_id], prompts(tree, turn, agent)[-1]
    messages = list[Fields]()
    for message in tree.messages(request):
        of_turn = tree.turns[message.turn].parts if message.turn in tree.turns else ()
        parts = [_part(part) for part in message.parts or of_turn]
        messages.append({"role": message.role, "turn": message.turn, "parts": parts})
    return {
        **answer, **_decoded(browser, ids), "messages": messages, "tools": [plain(tool) for tool in request.tools]
    }  # fmt: skip


def row(browser: Browser, *key: Any) -> Fields:
    """Return a training row, by the values of :data:`KEY`: tokens, targets, and numbers of the optimizer step."""
    stored = browser.records(f"SELECT {ROW} {OF_ROW}", dict(zip(KEY, key, strict=True)))
    if not stored:
        raise KeyError(f"there is no training row {'/'.join(map(str, key))}")
    fields = stored[0]
    answer = {
        "row": fields,
        "rows": browser.fetch(f"SELECT count(*) {OF_UPDATE}", fields)[0][0],
        **_numbers(browser, fields),
        **_decoded(browser, ()),
        "targets": [],
        "sampler": None,
    }
    if fields["leaf"]:
        tree, scope = read_path(browser, fields["leaf"])
        nodes = [tree.root, *tree.turns]
        credit = browser.credit(scope, [fields["leaf"]]).get(fields["leaf"], {})
        answer |= {"place": scope, "credit": credit, **merged(browser.facts(nodes), nodes)}
        if training_row := _training_row(tree, fields):
            logprobs = (training_row.logprobs or ())[training_row.unpredicted :]
            targets = [plain(replace(target, spans=None)) for target in training_row.targets]
            answer |= {
                **_decoded(browser, training_row.ids),
                "targets": targets,
                "sampler": rounded(logprobs) or None,
            }
    if fields["pair"] is not None:
        of_pair = OF_ROW.replace("position = :position", "pair = :pair")
        answer["pair"] = browser.records(f"SELECT {ROW} {of_pair}", fields)
    return answer


def turn(browser: Browser, id_: str) -> Fields:
    """Return what a turn trained: rows and selections of all paths through it."""
    tree, scope = read_path(browser, id_)
    below = along(browser.nodes(scope), {id_: 1}, max)
    facts = merged(browser.facts(below), below)
    leaves = [outcome["leaf"] for outcome in browser.outcomes(scope, below)]
    trained = [
        fields for fields in facts.pop("trained") if _trains(browser, fields, tree.turns[id_])
    ]
    return {
        **_turn(tree.turns[id_]), **scope, "leaf": leaves[0] if leaves else id_, "leaves": len(leaves),
        "credit": browser.credit(scope, [id_]).get(id_, {}), "rows": trained, **facts,
    }  # fmt: skip


def read_path(browser: Browser, node: str) -> tuple[Tree, Fields]:
    """Return a tree with one path, to ``node``, and its scope; redacted without secrets.

    A damaged turn has no content. A turn has no sample if its prompt is damaged.
    """
    # An export asks for the turns of a path one after the other, each with its prompt and what it trained.
    version, known = browser.version(), browser.paths.get(node)
    if known is None or known[0] != version:
        earlier, browser.damaged = browser.damaged, []
        known = (version, *_read_path(browser, node), browser.damaged)
        browser.damaged = earlier
        browser.paths = dict([*browser.paths.items()][1 - RECENT :]) | {node: known}
    browser.damaged += known[3]
    return known[1], known[2]


def _read_path(browser: Browser, node: str) -> tuple[Tree, Fields]:
    turns, id_ = dict[str, Any](), node
    while id_ not in turns and (
        row := browser.fetch(f"SELECT *, {whole('turn')} FROM turn WHERE id = ?", (id_,))
    ):
        turns[id_] = row[0]
        id_ = row[0][5]
    if not turns:
        raise KeyError(f"there is no turn {node}")
    key = {"tree": turns[node][1]}
    (scope,) = browser.records("SELECT iteration, stage, task FROM tree WHERE key = :tree", key)
    tree = Tree(scope["task"], scope["stage"], scope["iteration"])
    if id_ != tree.root:
        browser.damaged.append(f"turn {id_} is missing")
    for *columns, is_whole in reversed(turns.values()):
        if is_whole:
            turn = turn_of(columns[4:-1])
        else:
            browser.damaged.append(f"turn {columns[4]} differs from its digest")
            name, parent, kind, speaker = columns[4:8]
            turn = Turn(name, parent, Speaker(kind, speaker), (), author=DAMAGED)
        tree.turns[turn.id] = turn if tree.turns else replace(turn, parent=tree.root)
    ids = json.dumps([turn.prompt for turn in tree.turns.values() if turn.prompt])
    for *values, is_whole in browser.fetch(
        f"{REQUESTS} WHERE tree = :tree AND id {IN}", {**key, "nodes": ids}
    ):
        if is_whole:
            tree.requests[values[0]] = request_of(values)
        else:
            browser.damaged.append(f"prompt {values[0]} differs from its digest")
    for id_, turn in list(tree.turns.items()):
        # A prompt is a change of the agent's previous one, and can't be read without it.
        request = tree.requests.get(turn.prompt or "")
        is_readable = request and (not request.previous or _has_prompt(tree, request.previous))
        if turn.prompt and not is_readable:
            tree.turns[id_] = replace(turn, sample=None, author=turn.writer, request=None)
            tree.requests.pop(turn.prompt, None)
    return (tree if browser.secrets else redact(tree)), scope


def _has_prompt(tree: Tree, turn: str) -> bool:
    return turn in tree.turns and tree.turns[turn].prompt is not None


def _part(part: Part) -> Fields:
    audience = None if part.audience is None else sorted(part.audience)
    return {"text": part.text, "source": part.source, "audience": audience, "image": part.image}


def _turn(turn: Turn) -> Fields:
    sample, empty = turn.sample, {"error": False, "began": 0.0, "seconds": 0.0, "left_out": 0}
    versions = (sample.versions or [(sample.version, len(sample.ids))]) if sample else []
    return {
        "id": turn.id, "parent": turn.parent, "kind": turn.speaker.kind, "speaker": turn.speaker.name,
        "parts": [_part(part) for part in turn.parts], "writer": turn.writer, "draw": turn.draw,
        "calls": [{"error": "", **plain(call)} for call in turn.calls],
        "results": [{**empty, **plain(result)} for result in turn.results],
        **{name: sample and getattr(sample, name) for name in ("finish", "temperature", "top_p")},
        "seed": sample and str(sample.seed), "versions": versions,  # JavaScript has no 64-bit integers
        "has_prompt": turn.prompt is not None, "damaged": turn.author == DAMAGED,
    }  # fmt: skip


def _numbers(browser: Browser, row: Fields) -> Fields:
    """Return metrics and arrays of a training row."""
    numbers: Fields = {"metrics": {}, **dict.fromkeys(DTYPES)}
    for values in browser.records(NUMBERS, row, "training row"):
        arrays = unpacked([values[name] for name in DTYPES], row["tokens"])
        numbers |= {name: rounded(array.tolist()) for name, array in arrays.items()}
        numbers["metrics"] = json.loads(values["metrics"])
    return numbers


def _training_row(tree: Tree, row: Fields) -> Row | None:
    """Return a training row as it was sampled; ``None`` if its prompts are hidden, or were edited for the training."""
    segments = list(rows(view(tree, row["leaf"], row["agent"])))[row["segment"] :]
    training_row = segments[0] if segments else None
    if training_row and row["turn"]:
        training_row = turn_row([training_row], row["turn"])
    # With edited prompts, the targets may be in other segments.
    is_same = training_row and sum(map(len, training_row.predicted)) == row["tokens"]
    return training_row if is_same else None


def _trains(browser: Browser, row: Fields, turn: Turn) -> bool:
    """Return True if a turn is a target of a training row, whose path goes through the turn."""
    if row["turn"] or row["agent"] != turn.speaker.name:
        return bool(row["turn"] == turn.id)
    # An agent's turns are in several rows if its history was rewritten.
    training_row = _training_row(read_path(browser, row["leaf"])[0], row)
    return training_row is None or any(target.turn == turn.id for target in training_row.targets)


def _by_turn(browser: Browser, tree: Tree, row: Fields) -> dict[str, Fields]:
    """Return the arrays of a training row by turn, with ``None`` for a token without numbers."""
    training_row, numbers, position = _training_row(tree, row), _numbers(browser, row), 0
    del numbers["metrics"]
    by_turn = dict[str, Fields]()
    for target in training_row.targets if training_row else ():
        first = [None] * (target.start == 0)
        stop = position + target.stop - target.start - len(first)
        by_turn[target.turn] = {k: v and [*first, *v[position:stop]] for k, v in numbers.items()}
        position = stop
    return by_turn


def _decoded(browser: Browser, ids: Sequence[int], text: str = "") -> Fields:
    """Decode ids by the first tokenizer that gives a text with ``text`` in it; without one, text is ``None``."""
    for tokenizer in browser.tokenizers() if ids else ():
        decoded, offsets = decode(tokenizer, ids)
        if text.strip() in decoded:
            return {"ids": ids, "text": decoded, "offsets": offsets}
    return {"ids": ids, "text": None, "offsets": None}


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, list[int]]:
    """Return the text of ids, and the offsets of the tokens and of the end in UTF-16 units, as JavaScript counts.

    A character of several tokens belongs to the last of them.
    """
    text, pieces = tokenizer.decode(ids, skip_special_tokens=False), list[str]()
    stream, pending = DecodeStream(skip_special_tokens=False), list[int]()
    for token in ids:
        pending.append(token)
        try:
            piece = stream.step(tokenizer, token)
        except Exception:  # the type that the library raises if a token changes the text before it
            piece = tokenizer.decode(pending, skip_special_tokens=False)
            stream = DecodeStream(skip_special_tokens=False)
        pieces.append(piece or "")
        pending = pending if piece is None else []
    offsets, units, start = [0], 0, 0
    for piece in pieces:
        # Some tokenizers move spaces when a later token follows, so that a piece is found without them.
        core = piece if text.startswith(piece, start) else piece.strip()
        position = text.find(core, start, start + len(piece) + 2)
        stop = position + len(core) if position >= 0 else start
        units += len(text[start:stop].encode("utf-16-le", "surrogatepass")) // 2
        offsets.append(units)
        start = stop
    # Bytes that never become a character are at the end.
    offsets[-1] += len(text[start:].encode("utf-16-le", "surrogatepass")) // 2
    return text, offsets
