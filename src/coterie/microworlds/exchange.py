"""The tiny model of the `exchange` micro-world: its tokenizer and the rows that it learns from.

Scripted dialogues; each gives two rows, one per agent's view, and only the agent's own turns are targets. A
curriculum goes from one fact and terse formats to the full mix.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from coterie.environments.exchange.lexicon import words
from coterie.environments.exchange.prompts import prompt_text, system_prompt
from coterie.environments.exchange.scripts import ExchangeDialogue, ExchangeMix, corpus
from coterie.environments.exchange.tasks import AGENTS
from coterie.microworlds.model import (
    MicroWorld,
    chat_row,
    copy_row,
    drill_rows,
    fast_tokenizer,
    train_bpe,
    with_visible_marks,
)
from coterie.trajectories.row import Row

ANSWER_MARKS = ("<A>", "</A>")
TERSE = ("arrow", "pairs", "call", "table")


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum."""

    share: float
    """Its share of the tokens that the drills leave."""
    mix: ExchangeMix
    """What its dialogues are drawn from."""


DRILL_TOKENS = 550_000
"""Tokens of copy drills before the dialogues: enough for copying to appear, with some to spare."""
CURRICULUM: tuple[Stage, ...] = (
    Stage(
        0.10,
        ExchangeMix(
            levels=(1,),
            facts_per_agent=(1, 3),
            hint_share=1.0,
            hint_styles=("list", *TERSE),
            deaf_share=0.0,
        ),
    ),
    Stage(
        0.15,
        ExchangeMix(
            levels=(1, 2, 2),
            facts_per_agent=(2, 3),
            hint_share=1.0,
            hint_styles=("list", "qa", *TERSE),
            deaf_share=0.0,
        ),
    ),
    Stage(
        0.25,
        ExchangeMix(
            levels=(1, 2, 2),
            facts_per_agent=(2, 4),
            guess_share=0.42,
            hint_share=0.8,
            deaf_share=0.0,
        ),
    ),
    Stage(0.40, ExchangeMix(guess_share=0.42, hint_share=0.4, deaf_share=0.0)),
)
"""First the skill: hints are obeyed, so that formats are learned well."""
HABITS = Stage(0.20, ExchangeMix())
"""Then the habits, at a lower rate: guesses come in spite of hints, and remain the commonest thing to do
without one, so that neither a hint nor training on whatever was sampled cures anybody."""


def pretraining_rows(
    dialogue: ExchangeDialogue, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Row]:
    """The two agents' views of a dialogue: ids as the chat template renders them, masked to the agent's own turns."""
    for me, agent in enumerate(AGENTS):
        messages = [("system", prompt_text(scripted_prompt(dialogue, agent)))]
        for number, text in enumerate(dialogue.utterances):
            messages.append(("assistant" if number % 2 == me else "user", text))
        origin = f"{dialogue.task.task_id}/{agent}"
        yield chat_row(tokenizer, messages, f"script:{dialogue.style}", origin)


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Random words of the lexicon three times over, the repeats as targets: the quickest way to learn to copy."""
    return copy_row(tokenizer, " ".join(rng.sample(words(), rng.randint(5, 24))))


def curriculum_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of `tokens` tokens in all: copy drills, then dialogues, stage after stage."""
    rng = random.Random(f"drills/{seed}")
    yield from drill_rows(tokenizer, copy_drill, min(DRILL_TOKENS, tokens), rng)
    for number, stage in enumerate(CURRICULUM):
        share = stage.share * max(tokens - DRILL_TOKENS, 0)
        yield from stage_rows(tokenizer, stage.mix, share, seed + 1000 * number)


def stage_rows(
    tokenizer: PreTrainedTokenizerFast, mix: ExchangeMix, tokens: float, seed: int
) -> Iterator[Row]:
    """Rows of `tokens` tokens of dialogues of one mix, made in blocks."""
    left, block = tokens, 0
    while left > 0:
        block += 1
        for dialogue in corpus(seed + block, 1500, mix):
            for row in pretraining_rows(dialogue, tokenizer):
                left -= len(row.ids)
                yield row
            if left <= 0:
                break


def build_tokenizer(vocabulary: int, seed: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on scripted dialogues, in which every word of the lexicon is one piece.

    A text always begins as if a space preceded it, also right after `<A>`, and the space before `<A>` is part of
    it; decoding restores the text.
    Raises `ValueError` if a word of the lexicon needs more than one piece.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("<A> ", " <A>"), decoders.Strip(" ", 1, 0)]
    )
    marks = [
        AddedToken(mark, normalized=False, special=False, lstrip=mark == "<A>")
        for mark in ANSWER_MARKS
    ]
    train_bpe(tokenizer, vocabulary, _tokenizer_texts(seed), marks)
    tokenizer = with_visible_marks(tokenizer, ANSWER_MARKS)
    split = [word for word in words() if len(tokenizer.encode(word).ids) != 1]
    if split:
        raise ValueError(
            f"words of the lexicon that are not one piece: {split}; allow more than {vocabulary} pieces"
        )
    return fast_tokenizer(tokenizer)


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """Prompts and utterances of scripted dialogues, and the lexicon often enough to be merged first."""
    for dialogue in corpus(
        seed, 4000, ExchangeMix(guess_share=0.42, hint_share=0.4, deaf_share=0.0)
    ):
        yield prompt_text(scripted_prompt(dialogue, AGENTS[0]))
        yield from (
            part
            for text in dialogue.utterances
            for part in text.replace("</A>", "<A>").split("<A>")
        )
    yield from (word for word in words() for _ in range(500))


def scripted_prompt(dialogue: ExchangeDialogue, agent: str) -> list[tuple[str, frozenset[str]]]:
    """The system prompt of one agent of a dialogue."""
    partner = AGENTS[1 - AGENTS.index(agent)]
    return system_prompt(
        agent, partner, dialogue.task.question, dialogue.task.facts[agent], dialogue.hint
    )


def _habit_rows(tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[Row]:
    """Rows of the full mix of habits."""
    return stage_rows(tokenizer, HABITS.mix, tokens, seed)


EXCHANGE = MicroWorld(build_tokenizer, curriculum_rows, _habit_rows, HABITS.share, tokens=5_000_000)
