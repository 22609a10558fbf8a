"""System prompt of the agents of the ``exchange`` micro-world, and the pool of formats."""

from collections.abc import Iterable
from dataclasses import dataclass

from coterie.environments.exchange.tasks import AGENTS, Fact


@dataclass(frozen=True)
class Format:
    """A message format, which the last line of the system prompt requests."""

    id: str
    """Name of the format and of the scripted style."""
    instruction: str
    """The line in the system prompt."""


FORMAT_POOL: tuple[Format, ...] = (
    Format("arrow", "Write only facts with arrows: name relation > value."),
    Format("pairs", "Write only name . relation = value pairs."),
    Format("call", "Write like code: get ( name ) and got ( value )."),
    Format("table", "Write rows of a table, with | between cells."),
    Format("json", "Write each fact as a JSON object."),
    Format("list", "Write a list of all your facts, one to a line."),
    Format("qa", "Write questions and answers in short sentences."),
    Format("plain", "Write plain, friendly sentences."),
    Format("steps", "Think in numbered steps."),
    Format("dump", "Tell your partner all your facts in full sentences first."),
    Format("letter", "Write polite letters with a greeting and a signature."),
    Format("chatty", "Chat like old friends, with small talk."),
)
"""Formats of the first iteration, from the tersest to the most verbose."""

PromptPiece = tuple[str, frozenset[str]]


def system_prompt(
    agent: str, partner: str, question: str, facts: Iterable[Fact], format_hint: str | None = None
) -> list[PromptPiece]:
    """Return the system prompt of an agent as pieces of text with their audiences.

    ``format_hint`` is the instruction of a :class:`Format`, or None. The facts precede the question, so that a model
    reads the question with the facts in its context.
    """
    both, own = frozenset(AGENTS), frozenset({agent})
    pieces = [
        (
            f"You are {agent}, talking to {partner}. Share facts, then both write <A>answer</A>.\n",
            own,
        ),
        ("Your facts:\n", own),
        *((f"- {fact.subject} {fact.relation}: {fact.value}\n", own) for fact in facts),
        (f"Question: {question}", both),
    ]
    if format_hint is not None:
        pieces.append((f"\nFormat: {format_hint}", both))
    return pieces


def prompt_text(pieces: Iterable[PromptPiece]) -> str:
    return "".join(text for text, _ in pieces)
