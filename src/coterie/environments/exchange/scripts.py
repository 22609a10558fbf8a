"""Scripted dialogues of the `exchange` micro-world: what the tiny model is pre-trained on.

An honest dialogue says only what follows from the question, the speaker's facts and what was said. In a
dialogue of the `guess` style the first speaker names a value of the right kind without asking, and the
partner gives in: the habit that post-training is to unlearn.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from coterie.environments.exchange.lexicon import BY_NAME
from coterie.environments.exchange.prompts import FORMAT_POOL
from coterie.environments.exchange.styles import (
    GUESS,
    GUESS_OPENING,
    GUESS_REPLY,
    GUESS_SHARE_ELSEWHERE,
    GUESSED_RELATIONS,
    STYLES,
    WITHOUT_HINT,
    Style,
)
from coterie.environments.exchange.tasks import AGENTS, ExchangeTask, Fact, generate_tasks


@dataclass(frozen=True)
class ExchangeDialogue:
    """One scripted dialogue."""

    task: ExchangeTask
    style: str
    """A key of `STYLES`, or `GUESS`."""
    hint: str | None
    """The format line of both system prompts, or None."""
    utterances: tuple[str, ...]
    """What is said, in turn, Alice first."""


@dataclass(frozen=True)
class ExchangeMix:
    """What a corpus is drawn from."""

    levels: tuple[int, ...] = (1, 2)
    """Levels of the tasks, in turn."""
    facts_per_agent: tuple[int, int] = (3, 4)
    """Least and greatest number of facts of an agent."""
    guess_share: float = 0.55
    """How often a first speaker without a hint guesses, about the relations it likes to guess."""
    hint_share: float = 0.6
    """Share of dialogues with a format line, whose style follows it (formats equally often)."""
    hint_styles: tuple[str, ...] = tuple(STYLES)
    deaf_share: float = 0.8
    """How often a first speaker guesses in spite of a hint, about the relations it likes to guess."""


def corpus(seed: int, count: int, mix: ExchangeMix = ExchangeMix()) -> Iterator[ExchangeDialogue]:
    """`count` scripted dialogues on tasks of the `corpus` split."""
    rng = random.Random(f"exchange/corpus/{seed}")
    instructions = {format.id: format.instruction for format in FORMAT_POOL}
    for task in generate_tasks("corpus", count, seed, mix.levels, mix.facts_per_agent):
        if rng.random() < mix.hint_share:
            style = rng.choice(mix.hint_styles)
            hint = instructions[style]
            if mix.deaf_share and _guesses(task, mix.deaf_share, rng):
                style = GUESS
        else:
            style, hint = draw_style(task, mix.guess_share, rng), None
        yield ExchangeDialogue(task, style, hint, tuple(scripted_dialogue(task, style, rng)))


def can_guess(task: ExchangeTask) -> bool:
    """Whether the first speaker lacks a fact that the answer needs."""
    return any(holder != AGENTS[0] for holder, _ in task.key)


def draw_style(task: ExchangeTask, guess_share: float, rng: random.Random) -> str:
    """A style for a dialogue without a hint."""
    if _guesses(task, guess_share, rng):
        return GUESS
    return rng.choices(tuple(WITHOUT_HINT), tuple(WITHOUT_HINT.values()))[0]


def _guesses(task: ExchangeTask, share: float, rng: random.Random) -> bool:
    """Whether the first speaker guesses; `share` is how often, for the relations it likes to guess."""
    if not can_guess(task):
        return False
    liked = task.key[-1][1].relation in GUESSED_RELATIONS
    return rng.random() < (share if liked else GUESS_SHARE_ELSEWHERE)


def scripted_dialogue(task: ExchangeTask, style: str, rng: random.Random) -> list[str]:
    """The utterances of one dialogue, alternating from Alice. Only guesses draw on `rng`."""
    if style == GUESS:
        value = _guess(task, rng)
        return [GUESS_OPENING.format(v=value), GUESS_REPLY.format(v=value)]
    return _honest(task, STYLES[style])


def _guess(task: ExchangeTask, rng: random.Random) -> str:
    """A value of the asked relation: of somebody else among the first speaker's facts, or of the lexicon."""
    asked = task.key[-1][1].relation
    seen = [fact.value for fact in task.facts[AGENTS[0]] if fact.relation == asked]
    return rng.choice(seen or BY_NAME[asked].values)


def _honest(task: ExchangeTask, style: Style) -> list[str]:
    """Each speaker tells the needed fact if it holds the next one, or asks for it, until one can conclude."""
    hops = list(task.key)
    utterances: list[str] = []
    while hops:
        speaker = AGENTS[len(utterances) % 2]
        told = [hops.pop(0)[1]] if hops[0][0] == speaker else []
        acts = _others(task, speaker, told, style) if len(utterances) < 2 else []
        acts += [_word(style.tell, fact) for fact in told]
        acts.append(_word(style.ask, hops[0][1]) if hops else _word(style.conclude, told[0]))
        utterances.append(_frame(style, len(utterances), acts))
    utterances.append(_frame(style, len(utterances), [_word(style.agree, task.key[-1][1])]))
    return utterances


def _others(task: ExchangeTask, speaker: str, told: list[Fact], style: Style) -> list[str]:
    if not style.other:
        return []
    return [_word(style.other, fact) for fact in task.facts[speaker] if fact not in told]


def _word(pattern: str, fact: Fact) -> str:
    relation = BY_NAME[fact.relation]
    question = relation.question.format(s=fact.subject)
    sentence = relation.sentence.format(s=fact.subject, v=fact.value)
    return pattern.format(s=fact.subject, r=fact.relation, v=fact.value, q=question, f=sentence)


def _frame(style: Style, turn: int, acts: list[str]) -> str:
    """An utterance: the acts between the style's opening and closing."""
    me, you = AGENTS[turn % 2], AGENTS[(turn + 1) % 2]
    frame = [style.opening if turn < 2 else style.later, *acts, style.closing]
    parts = [part.replace("{me}", me).replace("{you}", you) for part in frame if part]
    return " ".join(parts)
