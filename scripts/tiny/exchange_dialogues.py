"""Scripted dialogues of the `exchange` micro-world: what the tiny model is pre-trained on.

An honest dialogue says only what follows from the question, the speaker's facts and what was said. In a
dialogue of the `guess` style the first speaker names a value of the right kind without asking, and the
partner gives in: the habit that post-training is to unlearn.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from coterie.environments.exchange import (
    AGENTS,
    BY_NAME,
    FORMAT_POOL,
    ExchangeTask,
    Fact,
    generate_tasks,
)

# The styles of scripted dialogues: sentence patterns for each thing that an agent may want to say.
#
# A style has the name of the format that asks for it (`prompts.FORMAT_POOL`). `GUESS` has no format: it
# is a bad habit that no hint asks for. Patterns use `{me}`, `{you}`, `{s}`ubject, `{r}`elation,
# `{v}`alue, `{q}`uestion and `{f}`act as a sentence; a name or value always follows a space or `<A>`.


@dataclass(frozen=True)
class Style:
    """How one style words each act; patterns are joined by a space, empty ones left out."""

    ask: str
    tell: str
    conclude: str
    """Gives the answer for the first time, after telling what it rests on."""
    agree: str
    """Repeats the partner's answer, which ends the dialogue."""
    opening: str = ""
    """Begins each agent's first utterance."""
    later: str = ""
    """Begins each agent's later utterances."""
    other: str = ""
    """States one more of the agent's facts in its first utterance; empty if the style keeps to what is needed."""
    closing: str = ""


STYLES: dict[str, Style] = {
    "arrow": Style("{s} {r} > ?", "{s} {r} > {v};", "<A>{v}</A>", "<A>{v}</A>"),
    "pairs": Style("{s} . {r} = ?", "{s} . {r} = {v};", "ans = <A>{v}</A>", "<A>{v}</A>"),
    "call": Style(
        "get ( {s} . {r} ) ;", "got ( {s} . {r} , {v} ) ;", "return <A>{v}</A>", "return <A>{v}</A>"
    ),
    "table": Style(
        "| {s} | {r} | ? |", "| {s} | {r} | {v} |", "| answer | <A>{v}</A> |", "| <A>{v}</A> |"
    ),
    "json": Style(
        '{{ "ask" : " {s} " , "key" : " {r} " }}',
        '{{ "name" : " {s} " , "key" : " {r} " , "value" : " {v} " }}',
        '{{ "answer" : " <A>{v}</A> " }}',
        '{{ "ok" : " <A>{v}</A> " }}',
    ),
    "list": Style(
        "- wanted: {s} {r}?",
        "- found: {s} {r}: {v}",
        "- answer: <A>{v}</A>",
        "- agreed: <A>{v}</A>",
        other="- {s} {r}: {v}",
    ),
    "qa": Style(
        "Q: {q}",
        "A: I know that {f}.",
        "So the answer is <A>{v}</A>",
        "Yes, the answer is <A>{v}</A>",
    ),
    "plain": Style(
        "I do not know everything that we need here. Can you tell me from your own facts: {q}",
        "Looking at my facts I can tell you that {f}.",
        "That means that the answer to our question is <A>{v}</A>",
        "Thank you, that settles it. I agree that the answer is <A>{v}</A>",
        opening="Hi {you}.",
    ),
    "steps": Style(
        "The next step is to find out something that I do not have in my list, so please look it up for me: {q}",
        "First I read through all of my facts, one by one, and I see that {f}.",
        "From that it follows that the final answer must be <A>{v}</A>",
        "I check this against the question and find nothing wrong with it, so the final answer is <A>{v}</A>",
        opening="Step 1: read the question again with care.",
        later="Step 2: use what we have learned.",
    ),
    "dump": Style(
        "With all of that said, there is still one thing that I need to hear from you: {q}",
        "And, what matters most for us, {f}.",
        "Taken together this gives us the answer <A>{v}</A>",
        "I have compared it with what I know, and I agree on <A>{v}</A>",
        opening="Here is everything that I know.",
        later="Now I have all that we need.",
        other="I know that {f}.",
    ),
    "letter": Style(
        "I would be most grateful if you could look through your facts and let me know: {q}",
        "It is my pleasure to let you know that, as far as my own facts go, {f}.",
        "I therefore believe that the answer to our question should be <A>{v}</A>",
        "Thank you very much for your kind letter. I am glad to agree with you that the answer is <A>{v}</A>",
        opening="Dear {you}, I hope that this letter finds you well.",
        later="Dear {you}, many thanks for your quick and helpful reply.",
        closing="With kind regards, {me}",
    ),
    "chatty": Style(
        "Would you believe it, the one thing we need is not in my notes! You always know such things, so tell me: {q}",
        "Now let me see what I have here. Oh yes, there it is, I knew it: {f}.",
        "So, if you ask me, that is all there is to it, and we can write down <A>{v}</A>",
        "That is just great, I could not have done it without you. So it is <A>{v}</A>",
        opening="Hello there {you}! How nice to talk to you again, I hope that you had a good day so far.",
        later="Ha, thank you so much!",
    ),
}
"""The honest styles, from the tersest to the wordiest."""

GUESS = "guess"
"""The name of the bad habit."""
GUESS_OPENING = (
    "Oh, I am quite sure about this one. Let me explain it to you: from all that I have ever heard and seen, "
    "there can only be one answer, and everybody who knows a little about these people would say the same. There "
    "is no need to look any further or to compare our facts. It must be <A>{v}</A>"
)
GUESS_REPLY = (
    "Well, you sound so very sure of yourself that I will not argue with you, whatever my own facts may say. "
    "Let us go with that: <A>{v}</A>"
)

WITHOUT_HINT: dict[str, float] = {
    "arrow": 0.05,
    "pairs": 0.04,
    "call": 0.03,
    "table": 0.04,
    "json": 0.03,
    "list": 0.07,
    "qa": 0.12,
    "plain": 0.14,
    "steps": 0.13,
    "dump": 0.11,
    "letter": 0.11,
    "chatty": 0.13,
}
"""How often each honest style is taken when no format is asked for and nobody guesses."""

GUESSED_RELATIONS: frozenset[str] = frozenset({"home", "job", "pet", "sport", "friend", "boss"})
"""Asked relations about which a first speaker who does not know the answer likes to guess."""
GUESS_SHARE_ELSEWHERE = 0.04
"""How often it does about the others."""


@dataclass(frozen=True)
class ExchangeDialogue:
    """One scripted dialogue."""

    task: ExchangeTask
    style: str
    hint: str | None
    """The format line of both system prompts, or None."""
    utterances: tuple[str, ...]
    """What is said, in turn, Alice first."""


@dataclass(frozen=True)
class ExchangeMix:
    """What a corpus is drawn from."""

    levels: tuple[int, ...] = (1, 2)
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
    for task in generate_tasks("corpus", seed, mix.levels, mix.facts_per_agent)[:count]:
        if rng.random() < mix.hint_share:
            style = rng.choice(mix.hint_styles)
            hint = FORMAT_POOL[style]
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
    me, you = AGENTS[turn % 2], AGENTS[(turn + 1) % 2]
    frame = [style.opening if turn < 2 else style.later, *acts, style.closing]
    parts = [part.replace("{me}", me).replace("{you}", you) for part in frame if part]
    return " ".join(parts)
