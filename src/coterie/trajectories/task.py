"""A task: fields that anyone may read, and secrets that only named roles open.

A :class:`Secret` never shows its value by accident: ``str``, ``repr`` and formatting redact it.
The only ways to its value are :meth:`Secret.reveal`, which checks the role, and
:meth:`Secret.part`, which gives a :class:`~coterie.trajectories.turn.Part` whose audience is
limited to the secret's readers, so that rendering it for anybody else is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.trajectories.turn import Part, PrivilegeError


class Secret:
    """A privileged text (gold answer, reference solution) that only ``readers`` may open."""

    __slots__ = ("_text", "name", "readers")

    def __init__(self, text: str, *, name: str, readers: frozenset[str]) -> None:
        if not readers:
            raise ValueError(f"secret {name!r} has no readers; nobody could ever use it")
        self._text = text
        self.name = name
        self.readers = readers

    def reveal(self, role: str) -> str:
        """The text, for a role that may read it; raises :class:`PrivilegeError` otherwise."""
        if role not in self.readers:
            raise PrivilegeError(
                f"role {role!r} may not read secret {self.name!r} "
                f"(readers: {', '.join(sorted(self.readers))})"
            )
        return self._text

    def part(self, role: str) -> Part:
        """The secret as prompt text that only its readers can be shown."""
        return Part(self.reveal(role), audience=self.readers, source=f"secret:{self.name}")

    def __str__(self) -> str:
        return f"<secret {self.name}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._text, self.name, self.readers) == (
            other._text,
            other.name,
            other.readers,
        )

    def __hash__(self) -> int:
        return hash((self._text, self.name, self.readers))


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: an id that is unique in its environment, public fields, and secrets."""

    id: str
    public: Mapping[str, object]
    """Plain data (JSON) that builds prompts; who sees which piece is the environment's rule."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Privileged fields by name."""
