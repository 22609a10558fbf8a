"""``mind2web``: tasks on web pages with the elements of each page, in the format of Mind2Web (Deng et al. 2023).

A line (or an entry of a JSON list) is a task with upstream's keys: ``annotation_id``, ``confirmed_task``, ``website``,
``action_reprs``, and ``actions`` with ``operation``, ``pos_candidates``, ``neg_candidates`` and ``cleaned_html``. Its
plan is made by rules, with one subgoal and one action per step. Candidates may have a ``rank``, a ``score`` and a
``text``. Rows that are already plans with ``pages`` are read unchanged.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from html.parser import HTMLParser
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import model_validator

from coterie.config.folders import read_json
from coterie.config.settings import key
from coterie.datasets.catalogue import Split
from coterie.datasets.files import read_rows
from coterie.datasets.load import DatasetSettings
from coterie.datasets.plans import ConvertedRow, PageElement, one_line
from coterie.datasets.rows import question_key
from coterie.datasets.sources import user_splits
from coterie.errors import UserError
from coterie.progress import Silent

MOST = 50
"""Maximum number of elements of a page."""
MAX_TEXT = 200
"""Maximum characters of the text of an element."""
DEPTH = 512
"""Maximum depth of nodes, as in browsers. Deeper nodes count as part of the last one."""
_SAYING = (
    "aria_label",
    "aria-label",
    "label",
    "placeholder",
    "title",
    "alt",
    "name",
    "value",
    "input_value",
)
_VOID = frozenset(
    {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_SILENT = frozenset({"script", "style"})
"""Tags with invisible text."""
_ID = "backend_node_id"
_WORD = re.compile(r"[^\W_]+")


def elements(
    candidates: Iterable[Mapping[str, Any]], page: str, task: str
) -> tuple[PageElement, ...]:
    """Return the best candidates in order of ``rank`` (0 is best), else ``score``, else words in common with the task.

    Word overlap finds fewer right elements than a trained ranker. ``page`` is HTML whose nodes have a
    ``backend_node_id``; it may be empty.
    """
    texts = texts_of(page) if page else {}
    by_id = {one.id: (one, raw) for raw in candidates for one in (_element(raw, texts),)}
    ordered = sorted(
        by_id.values(), key=lambda pair: (*_place(pair[1], pair[0], task), _hash(pair[0].id))
    )
    return tuple(one for one, _ in ordered[:MOST])


def candidate(raw: Any) -> dict[str, Any]:
    """Parse a candidate and its attributes, which upstream stores as JSON text. Raise ``ValueError`` without an id."""
    read = read_json(raw) if isinstance(raw, str) else raw
    if not isinstance(read, Mapping) or not str(read.get(_ID) or "").strip():
        raise ValueError(f"a candidate has no {_ID}")
    attributes = read.get("attributes") or {}
    attributes = read_json(attributes) if isinstance(attributes, str) else attributes
    return {**read, "attributes": attributes if isinstance(attributes, Mapping) else {}}


def texts_of(page: str) -> dict[str, str]:
    """Return the text of each node and its descendants by id, cut after about ``MAX_TEXT`` characters.

    For a broken page, return the text before the error.
    """
    reader = _Reader()
    with suppress(AssertionError):  # html.parser raises it for unknown declarations
        reader.feed(page)
        reader.close()
    return {node: one_line(" ".join(parts)) for node, parts in reader.texts.items()}


class _Reader(HTMLParser):
    """Parser that collects texts and descriptive attributes for all open nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self._length: Counter[str] = Counter()
        self._open: list[tuple[str, str]] = []
        """Tags and ids of the open nodes."""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs, ends=tag in _VOID)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs, ends=True)

    def handle_endtag(self, tag: str) -> None:
        places = [place for place, (name, _) in enumerate(self._open) if name == tag]
        if places:
            del self._open[places[-1] :]

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1][0] not in _SILENT:
            self._add(data)

    def _begin(self, tag: str, attrs: Sequence[tuple[str, str | None]], *, ends: bool) -> None:
        attributes = dict(attrs)
        self._open.append((tag, attributes.get(_ID) or ""))
        self._add(*(attributes.get(name) or "" for name in _SAYING))
        if ends or len(self._open) > DEPTH:
            self._open.pop()

    def _add(self, *texts: str) -> None:
        parts = [text.strip() for text in texts if text.strip()]
        for _, node in self._open if parts else ():
            if node and self._length[node] < MAX_TEXT:
                self.texts.setdefault(node, []).extend(parts)
                self._length[node] += sum(map(len, parts))


def _element(raw: Mapping[str, Any], texts: Mapping[str, str]) -> PageElement:
    node, attributes = str(raw[_ID]), raw["attributes"]
    own = [str(raw["text"])] if raw.get("text") else [texts.get(node, "")]
    own += [str(attributes[name]) for name in _SAYING if attributes.get(name)] * (not own[0])
    return PageElement(
        id=node, tag=str(raw.get("tag") or ""), text=one_line(" ".join(own))[:MAX_TEXT]
    )


def _place(raw: Mapping[str, Any], element: PageElement, task: str) -> tuple[float, float]:
    rank, score = _number(raw.get("rank")), _number(raw.get("score"))
    if rank is not None:
        return 0, rank
    if score is not None:
        return 1, -score
    return 2, -len(_words(element.text) & _words(task))


def _number(value: Any) -> float | None:
    """Parse a finite number; ``None`` for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _hash(node: str) -> str:
    """Return a hash for a neutral order, since upstream lists the right elements separately."""
    return hashlib.sha256(node.encode()).hexdigest()


_REPR = re.compile(r"\s*\[([^\]]*)\]\s*(.*?)\s*->\s*([A-Z]+)(?::\s?(.*))?", re.DOTALL)
_DIVIDES = re.compile(r"[\[\]{};\"`]+")
KINDS = ("CLICK", "TYPE", "SELECT")


class Mind2WebRow(ConvertedRow):
    """Task of Mind2Web as a plan, converted from upstream's rows."""

    @model_validator(mode="before")
    @classmethod
    def _from_upstream(cls, value: Any) -> Any:
        return _convert(value) if isinstance(value, Mapping) and "actions" in value else value


class Mind2WebSettings(DatasetSettings):
    """Source of Mind2Web rows."""

    source: str = key(
        "",
        "A file (JSONL, a JSON list as upstream's, or Parquet), or a folder with one for each split, such as "
        "train.jsonl and heldout.jsonl. It must be given.",
    )
    heldout: float = key(0.2, "Of one file: the share of its tasks that is held out.", gt=0, lt=1)


class Mind2Web:
    """Data set of Mind2Web files. A single file is divided by hashes of its tasks."""

    settings_type = Mind2WebSettings
    row = Mind2WebRow

    def __init__(self, settings: Mind2WebSettings) -> None:
        self.settings = settings

    def rows(self, split: Split) -> list[Mind2WebRow]:
        """Return the tasks of a split. Raise ``UserError`` for a broken line or too few tasks."""
        return self._splits[split]

    @cached_property
    def _splits(self) -> dict[Split, list[Mind2WebRow]]:
        return user_splits("mind2web", self.settings.source, _usable, self.settings.heldout)


def _usable(file: Path) -> list[Mind2WebRow]:
    rows = [row for row in read_rows(file, Mind2WebRow, Silent()) if not row.flaw]
    if not rows:
        raise UserError(f"{file} has no task with known actions", "give another file")
    return rows


def _convert(raw: Mapping[str, Any]) -> dict[str, Any]:
    task, reprs, actions = (raw.get(name) for name in ("confirmed_task", "action_reprs", "actions"))
    if (
        not isinstance(task, str)
        or not isinstance(reprs, Sequence)
        or not isinstance(actions, Sequence)
    ):
        raise ValueError("expected a text confirmed_task, and lists action_reprs and actions")
    website = str(raw.get("website") or "")
    known = {
        "id": raw.get("annotation_id") or question_key(task),
        "question": one_line(task),
        "answer": "",
        "domain": "web",
        "description": f"a page of {website}" if website else "",
    }
    if len(reprs) != len(actions):
        return {**known, "left_out": "has different numbers of action_reprs and actions"}
    steps = []
    for number, (text, action) in enumerate(zip(reprs, actions, strict=True), 1):
        operation = action.get("operation") if isinstance(action, Mapping) else None
        read = _REPR.fullmatch(one_line(str(text)))
        if not isinstance(operation, Mapping) or operation.get("op") not in KINDS or read is None:
            return {**known, "left_out": "has an action other than CLICK, TYPE and SELECT"}
        if operation["op"] != "CLICK" and not _plain(str(operation.get("value") or "")):
            return {**known, "left_out": "has an action without the text to type or select"}
        steps.append(_step(number, read, action, operation, task))
    last = steps[-1]["actions"][-1] if steps else ""
    return {**known, "answer": last, "steps": steps}


def _step(
    number: int,
    read: re.Match[str],
    action: Mapping[str, Any],
    operation: Mapping[str, Any],
    task: str,
) -> dict[str, Any]:
    kind, value = str(operation["op"]), one_line(str(operation.get("value") or ""))
    value = "" if kind == "CLICK" else value
    tag, text = _plain(read[1]), _plain(read[2])
    what, before = text or tag, f"R{number - 1}" if number > 1 else "Env"
    typed = f", TEXT: {_plain(value)}" if kind != "CLICK" else ""
    subgoal = {
        "CLICK": f"Click the {tag} {text}",
        "TYPE": f"Type {value} into the {tag} {text}",
        "SELECT": f"Select {value} in the {tag} {text}",
    }[kind]
    right, others = (_candidates(action, name) for name in ("pos_candidates", "neg_candidates"))
    page = {
        "elements": elements([*right, *others], str(action.get("cleaned_html") or ""), task),
        "right": frozenset(str(one["backend_node_id"]) for one in right),
        "kind": kind,
        "value": value,
    }
    call = f"R{number} = {kind}({before}, QUERY: {what}{typed})"
    return {"subgoal": one_line(subgoal), "actions": (call,), "pages": (page,)}


def _candidates(action: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    candidates = action.get(name) or []
    if not isinstance(candidates, list):
        raise ValueError(f"{name} must be a list")
    return [candidate(raw) for raw in candidates]


def _plain(text: str) -> str:
    """Remove separators of actions from a text, and parentheses unless they are balanced."""
    words, depth, lowest = _DIVIDES.sub(" ", text), 0, 0
    for sign in words:
        depth += (sign == "(") - (sign == ")")
        lowest = min(lowest, depth)
    return one_line(words if depth == lowest == 0 else re.sub(r"[()]", " ", words))
