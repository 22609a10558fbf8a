"""Examples of prompts, replies and trained tokens, with rewards and advantages.

    example
      prompt     common first tokens of all its samples, including control tokens
      answers    right answers and other privileged fields of the task
      samples    side by side: facts (reward, its terms, advantage, ...) and the rest of each row with trained tokens

Trained tokens are marked.
"""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from os.path import commonprefix
from pathlib import Path
from typing import Any

from coterie.engines.protocol import EngineError
from coterie.environments.protocol import Environment, innermost
from coterie.environments.qa_metrics import question_of
from coterie.errors import UserError
from coterie.models.chat import ChatRenderer
from coterie.record.rows import Row, rows, view
from coterie.record.tree import CONTEXT, LENGTH, STOPPED, TURNS, Outcome, Task, Tree
from coterie.record.turn import Turn, digest
from coterie.rollout.episodes import first_prompts

MAX_SAMPLES = 8
"""Maximum number of samples of an example. Of more samples, the best and the worst are shown."""
MAX_PROMPT, MAX_CONTEXT, MAX_REPLY = 6000, 1500, 4000
"""Maximum characters of a shared prompt, a run of context tokens and a run of reply tokens. Longer texts lose their
middle."""
Kind = str
"""``trained``, ``sampled`` (a reply that is not trained) or ``context``."""
ENDINGS = {
    TURNS.reason: "limit of turns",
    LENGTH.reason: "reply cut off at max_tokens",
    CONTEXT.reason: "context full",
    STOPPED.reason: "stopped after its turn, whose reward is all that counts",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of consecutive tokens of one kind."""

    text: str
    kind: Kind
    tokens: int = 0
    omitted: int = 0
    """Characters left out of its middle."""

    @property
    def halves(self) -> tuple[str, str]:
        half = len(self.text) // 2 if self.omitted else len(self.text)
        return self.text[:half], self.text[half:]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one agent in order: prompts and replies."""

    agent: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt at a task, or one side of a pair."""

    name: str
    facts: tuple[tuple[str, str], ...]
    segments: tuple[Segment, ...]
    side: str = ""
    """``chosen``, ``rejected``, ``more likely``, ``less likely``, or empty."""

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        pieces = (piece for segment in self.segments for piece in segment.pieces)
        return sum(piece.tokens for piece in pieces if piece.kind == "trained")


@dataclass(frozen=True, slots=True)
class Example:
    """Samples of one task side by side, best first."""

    title: str
    reason: str
    """Why the example is shown or trained on."""
    task: str
    answers: tuple[tuple[str, str], ...]
    prompts: tuple[Segment, ...]
    samples: tuple[Sample, ...]
    pictures: tuple[tuple[str, str], ...] = ()
    """Captions and ``data:`` URLs of images, side by side."""


@dataclass(frozen=True, slots=True)
class ExampleSample:
    """A sample with its whole rows by agent, or as plain text."""

    name: str
    facts: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, Row], ...] = ()
    text: str = ""
    """Replies of a model whose tokens are unknown."""
    trained: bool = False
    side: str = ""
    answer: str | None = None


def example(
    task: Task | None,
    samples: Sequence[ExampleSample],
    decoder: Callable[[str], ChatRenderer],
    reason: str = "",
    *,
    title: str = "",
    environment: Environment | None = None,
) -> Example:
    """Put samples of a task (best first) side by side.

    ``task`` is ``None`` for rows of a file. ``decoder`` returns the renderer of an agent's model. ``environment``
    writes the prompt if the tokens of the samples are unknown.
    """
    picks = [*samples]
    if len(picks) > MAX_SAMPLES:
        reason += f" {len(picks)} samples; the best and the worst are shown."
        picks = picks[: MAX_SAMPLES // 2] + picks[-MAX_SAMPLES // 2 :]
    firsts: dict[str, list[Row]] = {}
    for pick in picks:
        # A later row of an agent continues its dialogue, so only first rows share a prompt.
        seen = set[str]()
        for agent, row in pick.rows:
            if agent not in seen:
                firsts.setdefault(agent, []).append(row)
            seen.add(agent)
    shared = {agent: _shared(several, decoder(agent)) for agent, several in firsts.items()}
    prompts = [
        Segment(agent, _pieces(decoder(agent), several[0], 0, shared[agent]))
        for agent, several in firsts.items()
    ]
    # Replies of a server have no tokens, so the environment writes the prompts.
    if not prompts and task is not None and environment is not None:
        prompts = _openings(environment, task)
    shown_samples = [
        Sample(pick.name, pick.facts, _rest(pick, shared, decoder), pick.side) for pick in picks
    ]
    name = title or (question_of(task) if task else "")
    answers = right_answers(task) if task else ()
    return Example(
        name, reason, task.id if task else "", answers, tuple(prompts), tuple(shown_samples)
    )


def rollout(
    tree: Tree,
    outcome: Outcome,
    path: Sequence[Turn],
    name: str,
    facts: Mapping[str, float | str] | None = None,
    *,
    trained: bool = False,
) -> ExampleSample:
    """Return a finished rollout with its score, answer and ending; all its agents' own tokens are targets."""
    agents = dict.fromkeys(turn.speaker.name for turn in path if turn.prompt and turn.ids)
    views = ((agent, view(tree, outcome.leaf, agent)) for agent in agents)
    agent_rows = tuple((agent, row) for agent, v in views for row in rows(v) if row.targets)
    lines = (f"{turn.speaker.name}: {turn.whole_text}" for turn in path)
    text = "" if agent_rows else "\n\n".join(lines)
    texts = described(outcome, facts or {})
    return ExampleSample(name, texts, agent_rows, text, trained, answer=outcome.answer)


def described(
    outcome: Outcome | None, facts: Mapping[str, float | str]
) -> tuple[tuple[str, str], ...]:
    """Return facts as texts, followed by how a rollout ended."""
    texts = [(name, v if isinstance(v, str) else f"{v:.3f}") for name, v in facts.items()]
    if outcome is not None:
        score = "not graded" if outcome.score is None else f"{outcome.score:.3f}"
        texts += [("score", score)] if "score" not in facts else []
        texts.append(("answer", "none" if outcome.answer is None else _short(outcome.answer, 80)))
        texts.append(("ended by", ENDINGS.get(outcome.ending.reason, outcome.ending.reason)))
    return tuple(texts)


def right_answers(task: Task) -> tuple[tuple[str, str], ...]:
    """Return the privileged fields of a task: right answers, references, tests."""
    return tuple(
        # The page is for the author of the run, who may see every secret.
        (name, _short(secret.reveal(min(secret.readers)), MAX_REPLY))
        for name, secret in task.secrets.items()
    )


def _openings(environment: Environment, task: Task) -> list[Segment]:
    try:
        openings = first_prompts(environment, task)
    except UserError:
        return []
    return [
        Segment(
            agent,
            tuple(
                _piece(f"{message.role}: {''.join(part.text for part in message.parts)}\n", "context", 0, MAX_PROMPT)
                for message in prompt.messages
            ),
        )
        for agent, prompt in openings.items()
    ]  # fmt: skip


def _shared(several: Sequence[Row], renderer: ChatRenderer) -> int:
    """Return how many tokens rows share before the first target of any; whole lines or messages if prompts differ."""
    # The first target belongs to a sample, so the shared prompt ends before it.
    stops = {row.targets[0].start for row in several}
    ids = several[0].ids[: len(commonprefix([row.ids[: min(stops)] for row in several]))]  # noqa: RUF071
    # All rows have the same prompt.
    if stops == {len(ids)}:
        return len(ids)
    # Prompts differ, so they are cut at the end of a message or line and not within a word.
    special = renderer.tokenizer.all_special_ids
    ends = (
        n
        for n in range(len(ids), 0, -1)
        if ids[n - 1] in special or renderer.decode(ids[n - 1 : n]).endswith("\n")
    )
    return next(ends, len(ids))


def _rest(
    sample: ExampleSample, shared: Mapping[str, int], decoder: Callable[[str], ChatRenderer]
) -> tuple[Segment, ...]:
    if sample.text:
        return (Segment("", (_piece(sample.text, "sampled", 0),)),)
    segments, agents = [], set[str]()
    for agent, row in sample.rows:
        # Only the first row of an agent begins with the shared prompt.
        start = 0 if agent in agents else shared[agent]
        agents.add(agent)
        pieces = _pieces(decoder(agent), row, start, len(row.ids), trained=sample.trained)
        segments.append(Segment(agent, pieces))
    return tuple(segments)


def _pieces(
    renderer: ChatRenderer, row: Row, start: int, stop: int, *, trained: bool = False
) -> tuple[Piece, ...]:
    """Return the text of a part of a row, cut where trained tokens begin and end."""
    own_kind, limit = "trained" if trained else "sampled", MAX_CONTEXT if start else MAX_PROMPT
    counts = [(is_own, len([*run])) for is_own, run in groupby(row.mask[start:stop])]
    # Texts are decoded from the start of the row, because a token's text may depend on earlier tokens.
    text, pieces, position = renderer.decode(row.ids[:stop]), [], start
    done = _common(text, renderer.decode(row.ids[:start]))
    for is_own, count in counts:
        position += count
        # Text that depends on a later token (a character of several tokens) belongs to that token.
        end = max(
            done, _common(text, text if position == stop else renderer.decode(row.ids[:position]))
        )
        pieces.append(_piece(text[done:end], own_kind if is_own else "context", count, limit))
        done = end
    return tuple(pieces)


def _common(text: str, start: str) -> int:
    return len(commonprefix([text, start]))  # noqa: RUF071


def _piece(text: str, kind: Kind, tokens: int, context: int = MAX_CONTEXT) -> Piece:
    limit = context if kind == "context" else MAX_REPLY
    if len(text) <= limit:
        return Piece(text, kind, tokens)
    half = limit // 2
    return Piece(text[:half] + text[-half:], kind, tokens, len(text) - 2 * half)


def _short(text: str, limit: int) -> str:
    return (
        text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"
    )


def add_pictures(
    examples: Sequence[tuple[Example, Task, Sequence[ExampleSample]]],
    environment: Environment,
    folder: Path,
) -> tuple[Example, ...]:
    """Add pictures to the examples of web pages. Store them in ``folder``. Without a browser add none."""
    pages_environment: Any = innermost(environment)
    # Only environments of web pages write pictures.
    if not hasattr(pages_environment, "write_pictures"):
        return tuple(example for example, *_ in examples)
    pages = [
        [("reference", pages_environment.reference_page(task)), *map(_page, samples)]
        for _, task, samples in examples
    ]
    # Files are named by their pages, so that equal pages are rendered once.
    files = {
        html: folder / f"{digest(html)[:24]}.png"
        for sample_pages in pages
        for _, html in sample_pages
        if html
    }
    missing = {html: file for html, file in files.items() if not file.exists()}
    try:
        if missing:
            asyncio.run(pages_environment.write_pictures(missing))
    # Pictures are optional, so a missing browser is no error of the report.
    except (UserError, EngineError):
        return tuple(example for example, *_ in examples)
    return tuple(
        replace(
            example,
            pictures=tuple((name, _url(files.get(html or ""))) for name, html in sample_pages),
        )
        for (example, *_), sample_pages in zip(examples, pages, strict=True)
    )


def _page(sample: ExampleSample) -> tuple[str, str | None]:
    score = dict(sample.facts).get("score", "")
    return f"{sample.name}: similarity {score}" + ", no page" * (not sample.answer), sample.answer


def _url(file: Path | None) -> str:
    if file is None or not file.exists():
        return ""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
