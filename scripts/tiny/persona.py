"""Curriculum of ``tiny-persona``.

Scripted dialogues give one row each, with the agent's turns as targets. First the skills (copying, good questions,
the line of code for each reply), then the habits that post-training is to change.
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import count

from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from coterie.environments.persona import (
    ASPECTS,
    CHOICES,
    KINDS,
    NAMES,
    SENTENCES,
    WISHES,
    canonical_key,
    source_of,
)
from coterie.environments.settings import split_of_key
from coterie.record.rows import Row
from scripts.tiny.persona_dialogues import (
    HABITS,
    SKILL,
    PersonaDialogue,
    PersonaMix,
    answer_text,
    corpus,
)
from scripts.tiny.world import World, chat_row, copy_row

DRILL_WORDS: tuple[str, ...] = tuple(
    sorted(
        {word for kind in KINDS for word in re.findall(r"[a-z]+", kind.sentence)}
        | {*NAMES, *"0123456789"}
    )
)
"""What is copied in drills."""


STAGES = ((0.4, SKILL), (0.4, HABITS))


def code_words() -> list[str]:
    """Return the words of functions, with the space before those that follow one in the code, and themes."""
    source = source_of(NAMES[0], [choice for aspect in ASPECTS for choice in CHOICES[aspect]])
    words = {word for word in re.findall(r" ?[A-Za-z]+", source) if word != "def"}
    return sorted({*words, "def", *(f" {name}" for name in (*NAMES, *SENTENCES))})


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """Yield the texts of scripted dialogues."""
    for dialogue in corpus(seed, 3000):
        yield dialogue.prompt
        yield dialogue.task.opening
        yield from dialogue.turns
        yield from dialogue.replies


def pretraining_row(dialogue: PersonaDialogue, tokenizer: PreTrainedTokenizerBase) -> Row:
    """Build the agent's view of a dialogue, with its own turns as targets."""
    heard = (dialogue.task.opening, *dialogue.replies)
    messages = [("system", dialogue.prompt)]
    for text, said in zip(heard, dialogue.turns, strict=True):
        messages += [("user", text), ("assistant", said)]
    return chat_row(tokenizer, messages, "script:persona", dialogue.task.task_id)


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Copy random digits and words of the micro-world."""
    return copy_row(tokenizer, " ".join(rng.choices(DRILL_WORDS, k=rng.randint(6, 24))))


def code_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Tell a function's choices at once, in any order, then write it: the quickest way to learn its lines.

    The functions are of the `corpus` split, or have another number of choices than tasks.
    """
    while True:
        aspects = rng.sample(ASPECTS, rng.randint(1, 5))
        choices = [rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects]
        if len(choices) != WISHES or split_of_key(canonical_key(choices)) == "corpus":
            break
    name = rng.choice(NAMES)
    told = [f"def {name}(xs)", *(choice.sentence for choice in rng.sample(choices, len(choices)))]
    messages = [("user", " ".join(told)), ("assistant", answer_text(source_of(name, choices)))]
    return chat_row(tokenizer, messages, "script:drill", "drill")


def groups(
    tokenizer: PreTrainedTokenizerFast, mix: PersonaMix, seed: int
) -> Iterator[Sequence[Row]]:
    """Yield the row of each dialogue of one mix."""
    for block in count(1):
        for dialogue in corpus(seed + block, 1000, mix):
            yield [pretraining_row(dialogue, tokenizer)]


WORLD = World(
    drill_rng="persona/drills",
    texts=_tokenizer_texts,
    pieces=pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
    whole=code_words,
    groups=groups,
    drills=((0.05, copy_drill), (0.15, code_drill)),
    stages=STAGES,
    habits=(0.25, HABITS),
    tokens=2_200_000,
)
