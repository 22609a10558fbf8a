"""The tiny model of the `persona` micro-world: its tokenizer and the rows that it learns from.

Scripted dialogues give one row each, with the agent's turns as targets. First the skills (copying, good questions,
the line of code for each reply), then the habits that post-training is to change.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import replace

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from coterie.environments.persona.choices import ASPECTS, CHOICES, KINDS, source_of
from coterie.environments.persona.scripts import (
    HABITS,
    SKILL,
    PersonaDialogue,
    PersonaMix,
    answer_text,
    corpus,
)
from coterie.environments.persona.tasks import NAMES, SIZES, split_of
from coterie.microworlds.model import (
    MicroWorld,
    chat_row,
    copy_row,
    drill_rows,
    fast_tokenizer,
    train_bpe,
)
from coterie.trajectories.row import Row

DRILL_WORDS: tuple[str, ...] = tuple(
    sorted(
        {word for kind in KINDS for word in re.findall(r"[a-z]+", kind.told)}
        | {*NAMES, *"0123456789"}
    )
)
"""What is copied in drills."""
CURRICULUM: tuple[tuple[float, PersonaMix], ...] = (
    (0.1, PersonaMix(guess=1.0, vague=0.0, several=0.0, again=0.0, shown=1.0)),
    (0.3, replace(SKILL, shown=0.15)),
    (0.35, HABITS),
)
"""The stages after the drills: share of the tokens, and what dialogues are drawn from."""
HABITS_SHARE = 0.20
"""Tokens of the second phase as a share of the first."""


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on scripted dialogues; decoding restores every text, newlines and indents too.

    Each digit is a piece of its own, and every name and every word of the code is one piece. Raises `ValueError`
    if one is not.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bpe(tokenizer, vocabulary, _tokenizer_texts(seed))
    split = [word for word in code_words() if len(tokenizer.encode(word).ids) != 1]
    if split:
        raise ValueError(
            f"words of the code that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return fast_tokenizer(tokenizer)


def code_words() -> list[str]:
    """The words that functions are written in, as they stand in the code: names and what follows a space with it."""
    source = source_of(NAMES[0], [choice for aspect in ASPECTS for choice in CHOICES[aspect]])
    words = {word for word in re.findall(r" ?[A-Za-z]+", source) if word != "def"}
    return sorted({*words, "def", *(f" {name}" for name in NAMES)})


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """What is said in scripted dialogues."""
    for dialogue in corpus(seed, 3000):
        yield dialogue.prompt
        yield dialogue.task.opening
        yield from dialogue.turns
        yield from dialogue.replies


def pretraining_row(dialogue: PersonaDialogue, tokenizer: PreTrainedTokenizerBase) -> Row:
    """The agent's view of a dialogue: ids as the chat template renders them, masked to its own turns."""
    heard = (dialogue.task.opening, *dialogue.replies)
    messages = [("system", dialogue.prompt)]
    for text, said in zip(heard, dialogue.turns, strict=True):
        messages += [("user", text), ("assistant", said)]
    return chat_row(tokenizer, messages, "script:persona", dialogue.task.task_id)


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Random digits and words of the micro-world three times over, the repeats as targets: the quickest way to copy."""
    return copy_row(tokenizer, " ".join(rng.choices(DRILL_WORDS, k=rng.randint(6, 24))))


def code_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """A function's choices told at once, in any order, then the function: the quickest way to learn its lines.

    The functions are of the `corpus` split, or have more choices than any task.
    """
    while True:
        aspects = rng.sample(ASPECTS, rng.randint(2, len(ASPECTS)))
        choices = [rng.choice(CHOICES[aspect]) for aspect in ASPECTS if aspect in aspects]
        if len(choices) > max(SIZES) or split_of(choices) == "corpus":
            break
    name = rng.choice(NAMES)
    told = [f"def {name}(xs)", *(choice.told for choice in rng.sample(choices, len(choices)))]
    messages = [("user", " ".join(told)), ("assistant", answer_text(source_of(name, choices)))]
    return chat_row(tokenizer, messages, "script:drill", "drill")


DRILLS = ((0.1, copy_drill), (0.15, code_drill))
"""What comes first: share of the tokens, and the drill."""


def skill_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of `tokens` tokens in all: copy drills, then the stages of the curriculum."""
    rng = random.Random(f"persona/drills/{seed}")
    for share, drill in DRILLS:
        yield from drill_rows(tokenizer, drill, share * tokens, rng)
    for number, (share, mix) in enumerate(CURRICULUM):
        yield from stage_rows(tokenizer, mix, share * tokens, seed + 1000 * number)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, mix: PersonaMix, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of `tokens` tokens of dialogues of one mix, made in blocks."""
    left, block = tokens, 0
    while left > 0:
        block += 1
        for dialogue in corpus(seed + block, 1000, mix):
            row = pretraining_row(dialogue, tokenizer)
            left -= len(row.ids)
            yield row
            if left <= 0:
                break


def _habit_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of the full mix of habits."""
    return stage_rows(tokenizer, HABITS, tokens, seed)


PERSONA = MicroWorld(build_tokenizer, skill_rows, _habit_rows, HABITS_SHARE, tokens=4_500_000)
