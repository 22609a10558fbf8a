"""The tools of an MCP server, which are those of a whole run."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.tools.tags import Tag
from coterie.trajectories.calls import Tool


@dataclass(frozen=True, slots=True)
class Listed:
    """The tools of a server."""

    tools: tuple[Tool, ...]
    names: Mapping[str, str]
    """By our name of a tool: the server's, which may have other characters."""
    identity: str
    """A hash of all names, descriptions, schemas and whether they only read."""

    @property
    def tags(self) -> dict[str, Tag]:
        """Tools that can be called by a tag: those with one parameter that is a text, or one that must be given."""
        found = {}
        for tool in self.tools:
            if name := _only_text(tool.parameters):
                found[tool.name] = Tag(name)
        return found


def changes(before: Listed, now: Listed) -> str:
    """What is different between two lists, for a person."""
    old, new = ({one.name: one for one in each.tools} for each in (before, now))
    parts = {
        "new": sorted(new.keys() - old.keys()),
        "gone": sorted(old.keys() - new.keys()),
        "changed": sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
    }
    found = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    return "; ".join(found) or "their order"


def _only_text(parameters: Mapping[str, object]) -> str | None:
    """The one parameter that a tag can hold."""
    properties, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    names = required if len(required) == 1 else list(properties)
    if len(names) != 1 or len(required) > 1:
        return None
    schema = properties.get(names[0])
    return names[0] if isinstance(schema, Mapping) and schema.get("type") == "string" else None
