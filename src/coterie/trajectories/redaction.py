"""A tree without its secrets, for a record that leaves the house.

A prompt that shows a secret is taken out whole, for its ids spell the secret out, and so is every
later prompt of that agent, which is stored as a delta on it. The turns that answer such prompts
stay, as text by their writer (``POLICY@VERSION`` of a sampled one) without a prompt. What a role
that knows a secret then *said* is conversation, and stays as it was said.
"""

from dataclasses import replace

from coterie.trajectories.tree import Tree
from coterie.trajectories.turn import Part, Request, Turn


def redact(tree: Tree) -> Tree:
    """A copy of ``tree`` in which no part or prompt has a secret as its source."""
    hidden: set[str] = set()
    for request in tree.requests.values():
        if _shows_secret(tree, request):
            hidden.add(request.id)
    result = Tree(tree.task, tree.stage, tree.iteration)
    result.requests = {id_: r for id_, r in tree.requests.items() if id_ not in hidden}
    for turn in tree.turns.values():
        result.add(_redacted(turn, hidden))
    for outcome in tree.outcomes.values():
        result.end(outcome)
    return result


def _shows_secret(tree: Tree, request: Request) -> bool:
    link: Request | None = request
    while link is not None:
        if any(_is_secret(part) for message in link.messages for part in message.parts):
            return True
        before = tree.turns[link.previous].prompt if link.previous else None
        link = tree.requests[before] if before else None
    return False


def _redacted(turn: Turn, hidden: set[str]) -> Turn:
    """The turn without secret parts, and without sample and prompt if its prompt is hidden."""
    if turn.prompt in hidden:
        turn = replace(turn, sample=None, author=turn.writer, request=None)
    if any(_is_secret(part) for part in turn.parts):
        parts = tuple(
            Part(f"<{part.source}>", part.audience) if _is_secret(part) else part
            for part in turn.parts
        )
        turn = replace(turn, parts=parts, ids=turn.ids if turn.sample else ())
    return turn


def _is_secret(part: Part) -> bool:
    return part.source.startswith("secret:")
