"""Files with plans: Lumos' plan and ground files, and Mind2Web's tasks on web pages.

A line of Lumos has the keys ``dataset``, ``id`` and ``messages`` (https://github.com/allenai/lumos). Dialogues have two
forms. In ``onetime`` files, one message requests the full plan or all actions. ``iterative`` files have one turn per
subgoal, and may be ``unrolled`` into one line per step. Instructions around a task are ignored.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from coterie.datasets.columns import Columns
from coterie.datasets.files import read_rows
from coterie.datasets.plans import ConvertedRow, Domain, PageElement, PlanRow, PlanStep, one_line
from coterie.datasets.question_files import ColumnNames, TaskFileSettings, UserFileSet
from coterie.datasets.rows import Frozen, LeftOut, Raw, SetRow, Text, parsed_json, question_key
from coterie.errors import UserError

STOP = "Yes, I will stop planning."
GO_ON = "No, I will keep planning."
PLAN_GIVEN = "Subgoals to be grounded:"
STEP_GIVEN = "Subgoal to be grounded:"

_TASK = re.compile(r"^Task:", re.MULTILINE)
_DESCRIPTION = re.compile(r";?\s*Initial Environment Description:")
_GROUNDED = re.compile(r"\s*Subgoals? to be grounded:")
_SUBGOAL = re.compile(r"(?:^|(?<=[;.?!\s]))\s*Subgoal\s+(\d+):\s*")
_ACTION = re.compile(r";\s*(?=(?:R\d+(?:\s*,\s*R\d+)*|Output)\s*=)")
_OUTPUT = re.compile(r"\bOutput\b(?=\s*=)")
_NAMES = re.compile(r"(R\d+(?:\s*,\s*R\d+)*)\s*=")
_RESULT = re.compile(
    r"The executed result for Subgoal\s+(\d+) is (.*)\. Should we stop planning\?\s*$", re.S
)


class Request(NamedTuple):
    """Parts of a first message."""

    task: str
    description: str
    subgoals: str
    """Text after ``Subgoal(s) to be grounded:``; empty in a plan file."""


def parse_request(text: str) -> Request:
    """Parse a first message, with any instruction before the task. Raise ``ValueError`` without a task."""
    # An instruction may mention a task within a line, so a line that begins with it is preferred.
    match = _TASK.search(text) or re.search("Task:", text)
    if match is None:
        raise ValueError("has no 'Task:'")
    rest = text[match.end() :]
    description = subgoals = ""
    # Only ground files have subgoals after the task, and only plan files a description.
    if marker := _GROUNDED.search(rest):
        rest, subgoals = rest[: marker.start()], rest[marker.end() :]
    elif marker := _DESCRIPTION.search(rest):
        rest, description = rest[: marker.start()], rest[marker.end() :]
        description = description.strip().removesuffix(".")
        # Upstream writes `None` where there is no description.
        description = "" if description.casefold() == "none" else description
    if not rest.strip():
        raise ValueError("has an empty task")
    return Request(rest.strip(), description.strip(), subgoals.strip())


def split_subgoals(text: str, first_number: int = 1) -> list[str]:
    """Split ``Subgoal 1: ...; Subgoal 2: ...`` into texts without numbers.

    A later ``Subgoal 1:`` is part of the surrounding text. Raises ``ValueError`` if the text does not begin with
    subgoal ``first_number`` or skips a number.
    """
    starts: list[re.Match[str]] = []
    # A subgoal's text may mention another subgoal, so a number counts only in sequence.
    for match in _SUBGOAL.finditer(text):
        number = int(match[1])
        if number == first_number + len(starts):
            starts.append(match)
        # A later number after a semicolon begins a subgoal, so one is missing before it.
        elif number > first_number + len(starts) and text[: match.start()].rstrip().endswith(";"):
            raise ValueError(
                f"has Subgoal {number} where Subgoal {first_number + len(starts)} should be"
            )
    if not starts or text[: starts[0].start()].strip():
        raise ValueError(f"does not begin with 'Subgoal {first_number}:'")
    ends = [match.start() for match in starts[1:]] + [len(text)]
    parts = [text[match.end() : end] for match, end in zip(starts, ends, strict=True)]
    # Semicolons separate subgoals; the last text may end with one of its own.
    texts = [one_line(part.rstrip().removesuffix(";")) for part in parts[:-1]]
    texts.append(one_line(parts[-1]))
    if not all(texts):
        raise ValueError("has a subgoal without text")
    return texts


def split_actions(text: str, last_number: int = 0) -> list[str]:
    """Split ``R1 = ...; R2 = ...`` into actions.

    ``Output`` becomes the next name, as in upstream. ``last_number`` is the number of the last name before the text.
    """
    parts = []
    for part in _ACTION.split(text):
        action = one_line(part).removesuffix(";").rstrip()
        if not action:
            continue
        action = (
            _OUTPUT.sub(f"R{last_number + 1}", action) if action.startswith("Output") else action
        )
        last_number = _last_number(action) or last_number
        parts.append(action)
    return parts


def _last_number(action: str) -> int:
    """Return the number of the last name that an action assigns; 0 without a name."""
    names = _NAMES.match(action)
    return int(names[1].rsplit("R", 1)[1]) if names else 0


DOMAINS: Mapping[str, Domain] = {"maths": "maths", "complex_qa": "complex_qa", "web_agent": "web"}


class LumosMessage(Frozen):
    """Turn of a dialogue."""

    role: Literal["system", "user", "assistant"]
    content: str


class LumosLine(SetRow):
    """Line of a plan file or ground file."""

    dataset: Literal["maths", "complex_qa", "web_agent"]
    id: Text
    messages: tuple[LumosMessage, ...] = Field(min_length=2)


@dataclass(frozen=True, slots=True)
class PlanDialogue:
    """Parsed line of a plan file or ground file."""

    id: str
    request: Request
    subgoals: tuple[str, ...]
    """Subgoals; in iterative ground files the requests with their numbers."""
    results: tuple[str, ...] = ()
    """Result of each subgoal; empty in one-time plans and ground files."""
    actions: tuple[tuple[str, ...], ...] = ()
    """Actions of each subgoal in a ground file; a single group in one-time files."""
    at_once: bool = False
    """True for one-time ground files."""

    @property
    def task(self) -> str:
        return one_line(self.request.task)


def parse_plan(id_: str, requests: Sequence[str], replies: Sequence[str]) -> PlanDialogue:
    request = parse_request(requests[0])
    # A one-time file has the whole plan in a single reply.
    if len(replies) == 1:
        return PlanDialogue(id_, request, tuple(split_subgoals(replies[0])))
    *turns, end = replies
    if end.strip().casefold().rstrip(".") != STOP.casefold().rstrip("."):
        raise ValueError("has a plan without an end")
    texts = []
    # After the first turn, a reply begins with the sentence that planning continues.
    for number, text in enumerate(turns, 1):
        texts += split_subgoals(text.strip().removeprefix(GO_ON).strip(), number)
    if len(texts) != len(turns):
        raise ValueError("has several subgoals in one turn")
    # Each request after the first reports the result of the previous subgoal.
    matches = map(_RESULT.search, requests[1:])
    results = tuple(match[2].strip() if match else "" for match in matches)
    return PlanDialogue(id_, request, tuple(texts), results)


def parse_ground(id_: str, requests: Sequence[str], replies: Sequence[str]) -> PlanDialogue:
    request = parse_request(requests[0])
    at_once = PLAN_GIVEN in requests[0]
    if at_once:
        subgoals = split_subgoals(request.subgoals)
    else:
        later = (request.partition(STEP_GIVEN)[2].strip() for request in requests[1:])
        subgoals = [request.subgoals, *later]
    # Names of results are numbered through the whole dialogue, so the last number carries over.
    groups, last_number = [], 0
    for text in replies:
        group = tuple(split_actions(text, last_number))
        if not group:
            raise ValueError(NO_ACTIONS)
        last_number = _last_number(group[-1]) or last_number
        groups.append(group)
    return PlanDialogue(id_, request, tuple(subgoals), (), tuple(groups), at_once)


NO_ACTIONS = "has a subgoal without actions"
NO_PARTNER = "has no line with its id or task in the other file"
JOINED = 0.5
"""Minimum share of the longer file's dialogues that must join."""
_PREPARING = ("KnowledgeQuery", "ParagraphRetrieve", "SetEquation", "Define")
"""Tools whose actions are not the last of their subgoal."""


def join(files: Sequence[Path]) -> Iterator[PlanRow | LeftOut]:
    """Yield the rows of a plan file and a ground file, in any order, and then the lines without a row.

    Raises ``UserError`` for a broken line, for files of other kinds, and if less than half of the lines join.
    """
    read = {file: list(read_rows(file, LumosLine)) for file in files}
    # The first request tells plan and ground files apart, whatever the files are called.
    grounds = [file for file, lines in read.items() if _is_ground(lines[0])]
    plans = [file for file in read if file not in grounds]
    if len(plans) != 1 or len(grounds) != 1:
        names = ", ".join(file.name for file in files)
        raise UserError(
            f"{len(plans)} plan files and {len(grounds)} ground files are given ({names})",
            "give a folder with one of each as dataset.source",
        )
    (plan,), (ground,) = plans, grounds
    plan_lines, ground_lines = read[plan], read[ground]
    # A first line with one exchange in a file with longer lines means one line for each step.
    if len(plan_lines[0].messages) == 2 and any(len(line.messages) > 2 for line in plan_lines):
        plan_lines, ground_lines = _last_steps(plan_lines), _last_steps(ground_lines)
    left_out: list[LeftOut] = []
    dialogues = _parsed(plan_lines, parse_plan, left_out)
    actions = _parsed(ground_lines, parse_ground, left_out)
    domain = DOMAINS[plan_lines[0].dataset]
    items = [_row(*two, domain) for two in _pairs(dialogues, actions, left_out)]
    rows = [item for item in items if isinstance(item, PlanRow)]
    left_out += [item for item in items if isinstance(item, LeftOut)]
    # Few common dialogues mean that the files belong to different sets; single losses are only
    # counted.
    if len(rows) < JOINED * max(len(plan_lines), len(ground_lines)):
        examples = "; ".join(f"{omission.where} {omission.reason}" for omission in left_out[:3])
        raise UserError(
            f"only {len(rows):,} rows can be made of {plan.name} and {ground.name}; {len(left_out):,} lines "
            f"make none: {examples}",
            "give a plan file and a ground file of the same data set and form",
        )
    yield from rows
    yield from left_out


def _is_ground(line: LumosLine) -> bool:
    text = next((message.content for message in line.messages if message.role == "user"), "")
    return PLAN_GIVEN in text or STEP_GIVEN in text


def _last_steps(lines: Iterable[LumosLine]) -> list[LumosLine]:
    """Keep the last line of each unrolled dialogue, which contains all steps, with the dialogue's id."""
    longest: dict[str, LumosLine] = {}
    for line in lines:
        # The id ends with the number of the step: `ID_0`, `ID_1`, ...
        base = line.id.rpartition("_")[0]
        if base not in longest or len(line.messages) > len(longest[base].messages):
            longest[base] = line.model_copy(update={"id": base})
    return list(longest.values())


def _parsed(
    lines: Iterable[LumosLine],
    parse: Callable[[str, Sequence[str], Sequence[str]], PlanDialogue],
    left_out: list[LeftOut],
) -> list[PlanDialogue]:
    """Parse lines. Append unparsable lines and duplicate ids to ``left_out``."""
    by_id: dict[str, PlanDialogue] = {}
    for line in lines:
        turns = [message for message in line.messages if message.role != "system"]
        roles, texts = [turn.role for turn in turns], [turn.content for turn in turns]
        try:
            if roles != ["user", "assistant"] * (len(roles) // 2) or not roles:
                raise ValueError("has no alternating turns of user and assistant")
            if line.id in by_id:
                raise ValueError("has a duplicate id")
            by_id[line.id] = parse(line.id, texts[::2], texts[1::2])
        except ValueError as error:
            left_out.append(LeftOut(str(error), line.id))
    return list(by_id.values())


def _pairs(
    plans: Sequence[PlanDialogue], grounds: Sequence[PlanDialogue], left_out: list[LeftOut]
) -> Iterator[tuple[PlanDialogue, PlanDialogue]]:
    """Pair lines with equal id and task, then lines with a task that occurs once in each file.

    Upstream dropped lines before it numbered each file.
    """
    by_id = {ground.id: ground for ground in grounds}
    both = ((plan, by_id[plan.id]) for plan in plans if plan.id in by_id)
    partners = {plan.id: ground for plan, ground in both if ground.task == plan.task}
    alone, free = (
        [dialogue for dialogue in dialogues if dialogue.id not in partners]
        for dialogues in (plans, grounds)
    )
    once, once_free = _by_task(alone), _by_task(free)
    partners |= {once[task].id: once_free[task] for task in once.keys() & once_free.keys()}
    used = {partner.id for partner in partners.values()}
    yield from ((plan, partners[plan.id]) for plan in plans if plan.id in partners)
    left_out += [LeftOut(NO_PARTNER, plan.id) for plan in alone if plan.id not in partners]
    left_out += [LeftOut(NO_PARTNER, ground.id) for ground in free if ground.id not in used]


def _by_task(dialogues: Sequence[PlanDialogue]) -> dict[str, PlanDialogue]:
    counts = Counter(dialogue.task for dialogue in dialogues)
    return {dialogue.task: dialogue for dialogue in dialogues if counts[dialogue.task] == 1}


def _row(plan: PlanDialogue, ground: PlanDialogue, domain: Domain) -> PlanRow | LeftOut:
    count = len(plan.subgoals)
    if count != len(ground.subgoals):
        return LeftOut("differs in its number of subgoals from its line in the other file", plan.id)
    numbered = [f"Subgoal {number}: {text}" for number, text in enumerate(plan.subgoals, 1)]
    groups, aligned = ground.actions, True
    expected = plan.subgoals if ground.at_once else numbered
    for ours, theirs in zip(expected, ground.subgoals, strict=True):
        # A ground file may have more text after the subgoal, so only its beginning is compared.
        if not one_line(theirs).startswith(ours):
            return LeftOut("differs in its subgoals from its line in the other file", plan.id)
    if ground.at_once:
        groups, aligned = _group_actions(groups[0], count)
    if len(groups) != count:
        return LeftOut(NO_ACTIONS, plan.id)
    results = plan.results if len(plan.results) == count else ("",) * count
    # The answer of a web task is its last action, of other tasks the result of the last subgoal.
    answer = groups[-1][-1] if domain == "web" else results[-1]
    steps = tuple(
        PlanStep(subgoal=subgoal, actions=group, result=result)
        for subgoal, group, result in zip(plan.subgoals, groups, results, strict=True)
    )
    values = {"id": plan.id, "question": plan.request.task, "answer": answer, "steps": steps}
    about = {"domain": domain, "description": plan.request.description, "aligned": aligned}
    return PlanRow.model_validate(values | about)


def _group_actions(flat: Sequence[str], count: int) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """Group the actions of a full plan by subgoal. Return the groups and True if the assignment is certain.

    It is certain if there is one action per subgoal, or if the tools show which actions end a subgoal. Too few actions
    give too few groups.
    """
    if len(flat) <= count:
        return tuple((action,) for action in flat), len(flat) == count
    groups: list[tuple[str, ...]] = [()]
    for action in flat:
        groups[-1] += (action,)
        # A query or an equation only prepares a later action of the same subgoal.
        if not action.partition("=")[2].strip().startswith(_PREPARING):
            groups.append(())
    if not groups[-1] and len(groups) == count + 1:
        return tuple(groups[:-1]), True
    # The assignment is not certain: one action for each subgoal, and all remaining ones for the
    # last.
    return (*((action,) for action in flat[: count - 1]), tuple(flat[count - 1 :])), False


# -- Mind2Web (Deng et al. 2023) --------------------------------------------------------------

# Candidates of a page, as many as Mind2Web's ranker keeps (top 50).
MOST = 50
MAX_TEXT = 200
DEPTH = 512
"""Maximum depth of nodes, as in browsers. Deeper nodes count as part of the last one."""
_SAYING = (
    "aria_label", "aria-label", "label", "placeholder", "title", "alt", "name", "value", "input_value",
)  # fmt: skip
_VOID = frozenset(
    {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_SILENT = frozenset({"script", "style"})
_ID = "backend_node_id"
_WORD = re.compile(r"[^\W_]+")
_REPR = re.compile(r"\s*\[([^\]]*)\]\s*(.*?)\s*->\s*([A-Z]+)(?::\s?(.*))?", re.DOTALL)
_DIVIDES = re.compile(r"[\[\]{};\"`]+")
_SUBGOALS = {
    "CLICK": "Click the {tag} {text}",
    "TYPE": "Type {value} into the {tag} {text}",
    "SELECT": "Select {value} in the {tag} {text}",
}


class Mind2WebRow(ConvertedRow):
    """Task of Mind2Web as a plan, with one subgoal, one action and one page per step.

    Upstream's keys are ``annotation_id``, ``confirmed_task``, ``website``, ``action_reprs``, and ``actions`` with
    ``operation``, ``pos_candidates``, ``neg_candidates`` and ``cleaned_html``. Candidates may have a ``rank``, a
    ``score`` and a ``text``. Rows that are already plans with ``pages`` are read unchanged.
    """

    @classmethod
    def convert(cls, raw: Raw) -> Raw:
        task, reprs, actions = (raw[name] for name in ("confirmed_task", "action_reprs", "actions"))
        website = str(raw.get("website") or "")
        description = f"a page of {website}" if website else ""
        values = {"id": raw.get("annotation_id") or question_key(task), "question": one_line(task)}
        values |= {"answer": "", "domain": "web", "description": description}
        if len(reprs) != len(actions):
            return {**values, "left_out": "has different numbers of action_reprs and actions"}
        steps = []
        for number, (text, action) in enumerate(zip(reprs, actions, strict=True), 1):
            operation = action.get("operation") or {}
            read = _REPR.fullmatch(one_line(str(text)))
            if operation.get("op") not in _SUBGOALS or read is None:
                return {**values, "left_out": "has an action other than CLICK, TYPE and SELECT"}
            if operation["op"] != "CLICK" and not _plain(str(operation.get("value") or "")):
                return {**values, "left_out": "has an action without the text to type or select"}
            steps.append(_step(number, read, action, operation, task))
        last_action = steps[-1]["actions"][-1] if steps else ""
        return {**values, "answer": last_action, "steps": steps}


class Mind2Web(UserFileSet):
    """Data set of Mind2Web files."""

    settings_type = TaskFileSettings
    row = Mind2WebRow

    def columns_of(self, row: Columns, first_columns: ColumnNames) -> ColumnNames:
        # Rows with steps are already plans.
        columns = ("steps",) if "steps" in row else ("confirmed_task", "action_reprs", "actions")
        if missing := [name for name in columns if name not in row]:
            problem = f"has no {' and no '.join(missing)}: it has {', '.join(row)}"
            raise UserError(problem, "give a file of Mind2Web's tasks")
        return columns

    def parse(self, row: Columns, columns: ColumnNames, file: Path, position: str) -> Mind2WebRow:
        row.read.update(row)  # most keys of a task are not meant to be read
        return Mind2WebRow.model_validate(row)


def _step(
    number: int, read: re.Match[str], action: Any, operation: Any, task: str
) -> dict[str, Any]:
    operation_name, value = str(operation["op"]), one_line(str(operation.get("value") or ""))
    value = "" if operation_name == "CLICK" else value
    # A separator of actions in a label would break the parsing of the plan later.
    tag, text = _plain(read[1]), _plain(read[2])
    # The first action is on the initial environment, each other one on the page that the last one
    # led to.
    query, input_name = text or tag, f"R{number - 1}" if number > 1 else "Env"
    typed = f", TEXT: {_plain(value)}" if operation_name != "CLICK" else ""
    subgoal = _SUBGOALS[operation_name].format(tag=tag, text=text, value=value)
    right, negatives = (_candidates(action, name) for name in ("pos_candidates", "neg_candidates"))
    page = {
        "elements": elements([*right, *negatives], str(action.get("cleaned_html") or ""), task),
        "right": frozenset(str(candidate[_ID]) for candidate in right),
        "kind": operation_name,
        "value": value,
    }
    call = f"R{number} = {operation_name}({input_name}, QUERY: {query}{typed})"
    return {"subgoal": one_line(subgoal), "actions": (call,), "pages": (page,)}


def _candidates(action: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Parse candidates and their attributes, which upstream stores as JSON text."""
    parsed = []
    for raw in action.get(name) or ():
        read = parsed_json(raw, "a candidate")
        if not str(read.get(_ID) or "").strip():
            raise ValueError(f"a candidate has no {_ID}")
        attributes = parsed_json(read.get("attributes") or {}, "the attributes of a candidate")
        parsed.append({**read, "attributes": attributes if isinstance(attributes, Mapping) else {}})
    return parsed


def _plain(text: str) -> str:
    """Remove separators of actions from a text, and parentheses unless they are balanced."""
    # Parentheses are balanced if the depth never falls below zero and ends there.
    words, depth, lowest = _DIVIDES.sub(" ", text), 0, 0
    for sign in words:
        depth += (sign == "(") - (sign == ")")
        lowest = min(lowest, depth)
    return one_line(words if depth == lowest == 0 else re.sub(r"[()]", " ", words))


def elements(
    candidates: Iterable[Mapping[str, Any]], page: str, task: str
) -> tuple[PageElement, ...]:
    """Return the best candidates in order of ``rank`` (0 is best), else ``score``, else words in common with the task.

    Word overlap finds fewer right elements than a trained ranker. ``page`` is HTML whose nodes have a
    ``backend_node_id``; it may be empty. Equal candidates are ordered by a hash, since upstream lists the right
    elements separately.
    """
    texts = texts_of(page) if page else {}
    # A candidate that is listed twice is kept once, by its node.
    by_id = {
        element.id: (element, raw) for raw in candidates for element in (_element(raw, texts),)
    }

    def place(two: tuple[PageElement, Mapping[str, Any]]) -> tuple[float, float, str]:
        return *_place(two[1], two[0], task), hashlib.sha256(two[0].id.encode()).hexdigest()

    return tuple(element for element, _ in sorted(by_id.values(), key=place)[:MOST])


def _element(raw: Mapping[str, Any], texts: Mapping[str, str]) -> PageElement:
    node, attributes = str(raw[_ID]), raw["attributes"]
    # The file's own text is preferred, then the node's text in the page, then its attributes.
    texts_of_node = [str(raw["text"])] if raw.get("text") else [texts.get(node, "")]
    texts_of_node += [str(attributes[name]) for name in _SAYING if attributes.get(name)] * (
        not texts_of_node[0]
    )
    text = one_line(" ".join(texts_of_node))[:MAX_TEXT]
    return PageElement(id=node, tag=str(raw.get("tag") or ""), text=text)


def _place(raw: Mapping[str, Any], element: PageElement, task: str) -> tuple[float, float]:
    # The first number is the kind of evidence: ranks precede scores, and scores precede common
    # words.
    for rank, name in enumerate(("rank", "score")):
        with suppress(TypeError, ValueError):
            number = float(raw[name]) if name in raw else float("nan")
            if isfinite(number):
                return rank, -number if name == "score" else number
    words, task_words = (set(_WORD.findall(text.casefold())) for text in (element.text, task))
    return 2, -len(words & task_words)


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

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs, ends=tag in _VOID)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._begin(tag, attrs, ends=True)

    def handle_endtag(self, tag: str) -> None:
        # An end tag also closes elements left open inside; one without a start tag is ignored.
        depths = [depth for depth, (name, _) in enumerate(self._open) if name == tag]
        if depths:
            del self._open[depths[-1] :]

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1][0] not in _SILENT:
            self._add(data)

    def _begin(self, tag: str, attrs: Sequence[tuple[str, str | None]], *, ends: bool) -> None:
        attributes = dict(attrs)
        self._open.append((tag, attributes.get(_ID) or ""))
        # Labels, placeholders and similar attributes count as text of the node.
        self._add(*(attributes.get(name) or "" for name in _SAYING))
        if ends or len(self._open) > DEPTH:
            self._open.pop()

    def _add(self, *texts: str) -> None:
        parts = [text.strip() for text in texts if text.strip()]
        # A text belongs to all open nodes. The limit bounds the work for deeply nested pages.
        for _, node in self._open if parts else ():
            if node and self._length[node] < MAX_TEXT:
                self.texts.setdefault(node, []).extend(parts)
                self._length[node] += sum(map(len, parts))
