"""Tasks: public fields, and secrets that only named roles may read.

``str``, ``repr`` and formatting redact a :class:`Secret`. Its value is accessible only by :meth:`Secret.reveal`, which
checks the role, and :meth:`Secret.part`, which returns a :class:`~coterie.trajectories.turn.Part` with the secret's
readers as its audience, so that rendering for other readers is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.trajectories.turn import Part, PrivilegeError


class Secret:
    """A privileged text (gold answer, reference solution) that only ``readers`` may open."""

    __slots__ = ("_text", "name", "readers")

    def __init__(self, text: str, *, name: str, readers: frozenset[str]) -> None:
        if not readers:
            raise ValueError(f"secret {name!r} has no readers")
        self._text = text
        self.name = name
        self.readers = readers

    def reveal(self, role: str) -> str:
        """Return the text for one of its readers; raise :class:`PrivilegeError` for other roles."""
        if role not in self.readers:
            raise PrivilegeError(
                f"role {role!r} may not read secret {self.name!r} "
                f"(readers: {', '.join(sorted(self.readers))})"
            )
        return self._text

    def part(self, role: str) -> Part:
        """Return the secret as a prompt part that only its readers may see."""
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
    """A task of an environment, with an id that is unique there."""

    id: str
    public: Mapping[str, object]
    """Plain data (JSON) to build prompts from; the environment decides who sees which field."""
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    """Privileged fields by name."""
