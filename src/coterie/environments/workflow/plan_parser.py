"""Parser of plans in model output: a list of tasks, or an XML graph.

It is lenient about case, spaces, bullets and bold type, and strict about the graph. Its time is linear in the length of
the text.
"""

import re
from xml.parsers import expat

from coterie.environments.workflow.plan import BrokenPlan, Plan, Task

_TASK = re.compile(r"[\s\-*•#>]*T([0-9]{1,6})[ \t*]*[:.)](.*)", re.IGNORECASE | re.DOTALL)
_WAITS = re.compile(r"\b(?:dependency|dependencies|depends on)\b[ \t*]*:", re.IGNORECASE)
_ID = re.compile(r"T([0-9]{1,6})", re.IGNORECASE)
_WRITTEN = re.compile(r"\{[ \t]{0,4}T([0-9]{1,6})[ \t]{0,4}\}", re.IGNORECASE)
_SPLIT = re.compile(r"[\s,;&+]+")
_NONE = {"none", "nothing", "n/a", "na", "-", "–", "no", "null"}
_AROUND = " \t-–*([])."
_LONE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});)")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63})\((.*)\)", re.DOTALL)
_NODE_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def parse_plan(text: str) -> Plan:
    """Parse a plan, with or without ``<plan>`` around it. Raise only :class:`BrokenPlan`."""
    _, tag, inside = text.partition("<plan>")
    body = (inside if tag else text).partition("</plan>")[0]
    start = body.find("<graph")
    return Plan(_graph(body[start:]) if start >= 0 else _list(body))


# -- a list of tasks ------------------------------------------------------------------------------


def _list(body: str) -> tuple[Task, ...]:
    ids: list[str] = []
    texts: list[list[str]] = []
    after: list[tuple[str, ...] | None] = []
    for number, line in enumerate(body.splitlines(), 1):
        if task := _TASK.match(line):
            ids.append(f"T{int(task[1])}")
            texts.append([])
            after.append(None)
            line = task[2]
        waits = _WAITS.search(line)
        text = (line[: waits.start()] if waits else line).strip()
        text = text.rstrip("-–([* \t") if waits else text
        if ids and after[-1] is None and text.strip(_AROUND):
            texts[-1].append(text.strip(" \t*"))
        if waits:
            if not ids:
                raise BrokenPlan("dependencies before the first task", f"line {number}")
            if after[-1] is not None:
                raise BrokenPlan("a second list of dependencies", ids[-1])
            after[-1] = _dependencies(line[waits.end() :], ids[-1])
    plain = (_WRITTEN.sub(lambda one: f"{{T{int(one[1])}}}", " ".join(text)) for text in texts)
    return tuple(Task(*one) for one in zip(ids, plain, (one or () for one in after), strict=True))


def _dependencies(text: str, id_: str) -> tuple[str, ...]:
    text = text.strip(_AROUND)
    if not text or text.lower() in _NONE or text.lower().startswith(("none ", "none,", "none(")):
        return ()
    ids: dict[str, None] = {}
    for word in _SPLIT.split(text):
        name = _ID.fullmatch(word.strip(_AROUND))
        if name:
            ids[f"T{int(name[1])}"] = None
        elif word.lower() not in ("and", ""):
            raise BrokenPlan(f"{word[:80]!r} is not the id of a task", id_)
    return tuple(ids)


# -- an XML graph ---------------------------------------------------------------------------------


class _Graph:
    """Handler of expat's events that collects the nodes."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.depth = 0
        self.node: tuple[str, tuple[str, ...]] | None = None
        self.pieces: list[str] = []

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        if name != ("graph", "node")[min(self.depth, 1)] or self.node is not None:
            raise BrokenPlan(f"<{name[:80]}> can't stand here", self.node[0] if self.node else "")
        self.depth += 1
        if name == "node":
            id_ = attributes.get("id", "").strip()
            if not _NODE_ID.fullmatch(id_):
                raise BrokenPlan(f"{id_[:80]!r} can't be the id of a node")
            waits = attributes.get("depends", "").strip()
            listed = () if waits.lower() in _NONE else _SPLIT.split(waits)
            self.node = id_, tuple(dict.fromkeys(one for one in listed if one))
            self.pieces = []

    def text(self, data: str) -> None:
        if self.node is not None:
            self.pieces.append(data)

    def end_element(self, name: str) -> None:
        self.depth -= 1
        if self.node is not None:
            tool, text = _parse_call("".join(self.pieces).strip())
            self.tasks.append(Task(self.node[0], text, self.node[1], tool))
            self.node = None


def _graph(body: str) -> tuple[Task, ...]:
    """Parse a text that begins with ``<graph``, so it can't declare entities; named entities stay text."""
    end = body.find("</graph>")
    if end < 0:
        raise BrokenPlan("<graph> is not closed")
    graph, parser = _Graph(), expat.ParserCreate()
    parser.StartElementHandler = graph.start_element
    parser.CharacterDataHandler = graph.text
    parser.EndElementHandler = graph.end_element
    source = _LONE.sub("&amp;", body[: end + len("</graph>")])
    try:
        parser.Parse(source.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise BrokenPlan(
            f"not XML: {expat.ErrorString(error.code)}", f"line {error.lineno}"
        ) from None
    return tuple(graph.tasks)


def _parse_call(text: str) -> tuple[str | None, str]:
    """Return the tool and the argument of ``search("...")``, or ``None`` and the plain text."""
    call = _CALL.fullmatch(text)
    if not call:
        return None, text
    argument = call[2].strip()
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'":
        argument = argument[1:-1]
    return call[1], argument
