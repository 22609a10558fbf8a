"""Reads a plan as a model writes it: a list of tasks, or an XML graph.

Lenient about case, spaces, bullets and bold type, and strict about what the graph is. Time grows with the length of
the text, not with its square.
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
    """The plan of a text, with or without ``<plan>`` around it. Raises :class:`BrokenPlan`, and nothing else."""
    _, opened, inside = text.partition("<plan>")
    body = (inside if opened else text).partition("</plan>")[0]
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
        said = (line[: waits.start()] if waits else line).strip()
        said = said.rstrip("-–([* \t") if waits else said
        if ids and after[-1] is None and said.strip(_AROUND):
            texts[-1].append(said.strip(" \t*"))
        if waits:
            if not ids:
                raise BrokenPlan("dependencies before the first task", f"line {number}")
            if after[-1] is not None:
                raise BrokenPlan("a second list of dependencies", ids[-1])
            after[-1] = _dependencies(line[waits.end() :], ids[-1])
    plain = (_WRITTEN.sub(lambda one: f"{{T{int(one[1])}}}", " ".join(text)) for text in texts)
    return tuple(Task(*one) for one in zip(ids, plain, (one or () for one in after), strict=True))


def _dependencies(said: str, id_: str) -> tuple[str, ...]:
    said = said.strip(_AROUND)
    if not said or said.lower() in _NONE or said.lower().startswith(("none ", "none,", "none(")):
        return ()
    found: dict[str, None] = {}
    for word in _SPLIT.split(said):
        name = _ID.fullmatch(word.strip(_AROUND))
        if name:
            found[f"T{int(name[1])}"] = None
        elif word.lower() not in ("and", ""):
            raise BrokenPlan(f"{word[:80]!r} is not the id of a task", id_)
    return tuple(found)


# -- an XML graph ---------------------------------------------------------------------------------


class _Graph:
    """Takes the nodes from expat's events."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.depth = 0
        self.node: tuple[str, tuple[str, ...]] | None = None
        self.said: list[str] = []

    def opened(self, name: str, given: dict[str, str]) -> None:
        if name != ("graph", "node")[min(self.depth, 1)] or self.node is not None:
            raise BrokenPlan(f"<{name[:80]}> can't stand here", self.node[0] if self.node else "")
        self.depth += 1
        if name == "node":
            id_ = given.get("id", "").strip()
            if not _NODE_ID.fullmatch(id_):
                raise BrokenPlan(f"{id_[:80]!r} can't be the id of a node")
            waits = given.get("depends", "").strip()
            listed = () if waits.lower() in _NONE else _SPLIT.split(waits)
            self.node = id_, tuple(dict.fromkeys(one for one in listed if one))
            self.said = []

    def text(self, said: str) -> None:
        if self.node is not None:
            self.said.append(said)

    def closed(self, name: str) -> None:
        self.depth -= 1
        if self.node is not None:
            tool, text = _called("".join(self.said).strip())
            self.tasks.append(Task(self.node[0], text, self.node[1], tool))
            self.node = None


def _graph(body: str) -> tuple[Task, ...]:
    """Of a text that begins with ``<graph``, so that no entity can be declared; those that are named stay text."""
    end = body.find("</graph>")
    if end < 0:
        raise BrokenPlan("<graph> is not closed")
    graph, parser = _Graph(), expat.ParserCreate()
    parser.StartElementHandler = graph.opened
    parser.CharacterDataHandler = graph.text
    parser.EndElementHandler = graph.closed
    source = _LONE.sub("&amp;", body[: end + len("</graph>")])
    try:
        parser.Parse(source.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise BrokenPlan(
            f"not XML: {expat.ErrorString(error.code)}", f"line {error.lineno}"
        ) from None
    return tuple(graph.tasks)


def _called(said: str) -> tuple[str | None, str]:
    """The tool and its argument of ``search("...")``; no tool where it is plain text."""
    call = _CALL.fullmatch(said)
    if not call:
        return None, said
    argument = call[2].strip()
    if len(argument) > 1 and argument[0] == argument[-1] and argument[0] in "\"'":
        argument = argument[1:-1]
    return call[1], argument
