"""One agent's view of a path: its prompts and turns, as segments of exact tokens.

A prompt that starts with all previous tokens extends the last segment; another prompt (a template that rewrites
history, a truncated context) starts a new segment. Each sampled token is in exactly one segment, the one in which it
was sampled. Unsampled turns with a prompt are own turns like sampled ones; turns without a prompt are only context.

:func:`recontext` is the only way to put sampled tokens under another context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.trajectories.calls import Tool
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Turn


class Render(Protocol):
    """Renders messages to prompt ids, with the agent's sampled turns as their exact ids."""

    def __call__(
        self, messages: Sequence[Message], tree: Tree, reader: str, *, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]: ...


Edit = Callable[[tuple[Message, ...]], tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a segment: a prompt (``turn`` is ``None``) or an own turn of the agent."""

    ids: tuple[int, ...]
    turn: Turn | None = None


@dataclass(slots=True)
class Segment:
    """Tokens of consecutive model calls that extend each other, oldest first."""

    pieces: list[Piece]

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens, exactly as the engine received and returned them."""
        return tuple(token for piece in self.pieces for token in piece.ids)


@dataclass(frozen=True, slots=True)
class View:
    """One agent's segments of a path; ``context`` names the recontext rule, if any."""

    agent: str
    leaf: str
    segments: tuple[Segment, ...]
    context: str | None = None


def view(tree: Tree, leaf: str, agent: str) -> View:
    return View(agent, leaf, assemble(prompts(tree, leaf, agent)))


def prompts(tree: Tree, leaf: str, agent: str) -> list[tuple[tuple[int, ...], Turn]]:
    """Return (prompt ids, turn) of the agent's turns with a prompt on the path to ``leaf``, oldest first."""
    running: tuple[int, ...] = ()
    pairs = []
    for turn in _own(tree, leaf, agent):
        request = tree.requests[turn.prompt]  # type: ignore[index]
        prompt = running[: request.keep] + request.ids
        pairs.append((prompt, turn))
        running = prompt + turn.ids
    return pairs


def recontext(tree: Tree, leaf: str, agent: str, *, name: str, edit: Edit, render: Render) -> View:
    """Return the view under edited prompts (without a format prompt, or with a privileged field).

    Sampled tokens stay; their behavior log-probs no longer apply. ``name`` marks every row of the view.
    """
    edited = []
    for turn in _own(tree, leaf, agent):
        request = tree.requests[turn.prompt]  # type: ignore[index]
        messages = edit(tree.messages(request))
        edited.append((render(messages, tree, agent, tools=request.tools), turn))
    return View(agent, leaf, assemble(edited), context=name)


def assemble(prompts: Sequence[tuple[tuple[int, ...], Turn]]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    running: tuple[int, ...] = ()
    for prompt, turn in prompts:
        if segments and prompt[: len(running)] == running:
            segments[-1].pieces.append(Piece(prompt[len(running) :]))
        else:
            segments.append(Segment([Piece(prompt)]))
        segments[-1].pieces.append(Piece(turn.ids, turn))
        running = prompt + turn.ids
    return tuple(segments)


def _own(tree: Tree, leaf: str, agent: str) -> list[Turn]:
    return [
        turn
        for turn in tree.path(leaf)
        if turn.speaker.kind == "agent" and turn.speaker.name == agent and turn.prompt
    ]
