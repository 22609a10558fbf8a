"""What one agent saw and said on one path, as segments of exact tokens.

A request that extends the running tokens extends the last segment; any other (a template that
rewrites history, a cut context) opens a new one. Each sampled token is in exactly one segment: the
one in which it was sampled. A turn that no policy sampled, and that came with a prompt, is as good an
own turn as a sampled one; what has no prompt is only seen by others.

:func:`recontext` is the only way to put sampled tokens under a context other than theirs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.trajectories.calls import Tool
from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Message, Turn


class Render(Protocol):
    """Prompt ids of messages, own sampled turns spliced in as the ids sampled."""

    def __call__(
        self, messages: Sequence[Message], tree: Tree, reader: str, *, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]: ...


Edit = Callable[[tuple[Message, ...]], tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens of a segment: prompt (``turn`` is ``None``) or a turn of the agent's own."""

    ids: tuple[int, ...]
    turn: Turn | None = None


@dataclass(slots=True)
class Segment:
    """Tokens that one model call after another extended, oldest first."""

    pieces: list[Piece]

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens: exactly what the engine received and returned."""
        return tuple(token for piece in self.pieces for token in piece.ids)


@dataclass(frozen=True, slots=True)
class View:
    """One agent's segments of one path. ``context`` names the recontext rule, if one was used."""

    agent: str
    leaf: str
    segments: tuple[Segment, ...]
    context: str | None = None


def view(tree: Tree, leaf: str, agent: str) -> View:
    return View(agent, leaf, assemble(prompts(tree, leaf, agent)))


def prompts(tree: Tree, leaf: str, agent: str) -> list[tuple[tuple[int, ...], Turn]]:
    """(prompt ids, turn) of the turns of ``agent`` on the path to ``leaf`` that have a prompt, oldest first."""
    running: tuple[int, ...] = ()
    found = []
    for turn in _own(tree, leaf, agent):
        request = tree.requests[turn.prompt]  # type: ignore[index]
        prompt = running[: request.keep] + request.ids
        found.append((prompt, turn))
        running = prompt + turn.ids
    return found


def recontext(tree: Tree, leaf: str, agent: str, *, name: str, edit: Edit, render: Render) -> View:
    """The view under edited prompts (a format prompt dropped, a privileged field added).

    Sampled tokens stay as they are; the behaviour log-probs no longer apply. ``name`` marks every
    row made from it.
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
