"""Curriculum of ``tiny-exchange``.

Scripted dialogues; each gives two rows, one per agent's view, and only the agent's own turns are targets. A
curriculum goes from one fact and terse formats to the full mix.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

from tokenizers import AddedToken, decoders, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from coterie.environments.exchange import AGENTS, PEOPLE, RELATIONS, system_prompt
from coterie.record.rows import Row
from scripts.tiny.exchange_dialogues import ExchangeDialogue, ExchangeMix, corpus
from scripts.tiny.world import World, chat_row, copy_row

ANSWER_MARKS = ("<A>", "</A>")
TERSE = ("arrow", "pairs", "call", "table")
DRILL_TOKENS = 550_000
"""Tokens of copy drills before the dialogues: enough for copying to appear, with some to spare."""
FIRST = ExchangeMix(
    levels=(1,),
    facts_per_agent=(1, 3),
    hint_share=1.0,
    hint_styles=("list", *TERSE),
    deaf_share=0.0,
)
SECOND = replace(
    FIRST, levels=(1, 2, 2), facts_per_agent=(2, 3), hint_styles=("list", "qa", *TERSE)
)
SKILL = ExchangeMix(guess_share=0.42, hint_share=0.4, deaf_share=0.0)
STAGES = (
    (0.10, FIRST),
    (0.15, SECOND),
    (0.25, replace(SKILL, levels=(1, 2, 2), facts_per_agent=(2, 4), hint_share=0.8)),
    (0.40, SKILL),
)
"""First the skill: hints are obeyed, so that formats are learned well."""
HABITS = (0.20, ExchangeMix())
"""Then the habits, at a lower rate: guesses come in spite of hints, and remain the commonest thing to do
without one, so that neither a hint nor training on whatever was sampled cures anybody."""


def words() -> tuple[str, ...]:
    """Return all names, relations and values without duplicates, in a fixed order."""
    all_words = [*PEOPLE, *(r.name for r in RELATIONS), *(v for r in RELATIONS for v in r.values)]
    return tuple(dict.fromkeys(all_words))


def pretraining_rows(
    dialogue: ExchangeDialogue, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Row]:
    """Yield both agents' views of a dialogue, with the agent's own turns as targets."""
    for me, agent in enumerate(AGENTS):
        messages = [("system", scripted_prompt(dialogue, agent))]
        for number, text in enumerate(dialogue.utterances):
            messages.append(("assistant" if number % 2 == me else "user", text))
        origin = f"{dialogue.task.task_id}/{agent}"
        yield chat_row(tokenizer, messages, f"script:{dialogue.style}", origin)


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Copy random words of the lexicon."""
    return copy_row(tokenizer, " ".join(rng.sample(words(), rng.randint(5, 24))))


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """Yield prompts and utterances, and the lexicon often enough to be merged first."""
    for dialogue in corpus(seed, 4000, SKILL):
        yield scripted_prompt(dialogue, AGENTS[0])
        yield from (
            part
            for text in dialogue.utterances
            for part in text.replace("</A>", "<A>").split("<A>")
        )
    yield from (word for word in words() for _ in range(500))


def scripted_prompt(dialogue: ExchangeDialogue, agent: str) -> str:
    """Return the system prompt of one agent of a dialogue."""
    task, partner = dialogue.task, AGENTS[1 - AGENTS.index(agent)]
    parts = system_prompt(agent, partner, task.question, task.facts[agent])
    hint = "" if dialogue.hint is None else f"\nFormat: {dialogue.hint}"
    return "".join(part.text for part in parts) + hint


def groups(
    tokenizer: PreTrainedTokenizerFast, mix: ExchangeMix, seed: int
) -> Iterator[Sequence[Row]]:
    """Yield both rows of dialogues of one mix."""
    for block in count(1):
        for dialogue in corpus(seed + block, 1500, mix):
            yield list(pretraining_rows(dialogue, tokenizer))


WORLD = World(
    drill_rng="drills",
    texts=_tokenizer_texts,
    pieces=pre_tokenizers.ByteLevel(add_prefix_space=True),
    # A text always begins as if a space preceded it, also right after `<A>`, and the space before `<A>` is part of it.
    decoder=decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace("<A> ", " <A>"), decoders.Strip(" ", 1, 0)]
    ),
    marks=[
        AddedToken(mark, normalized=False, special=False, lstrip=mark == "<A>")
        for mark in ANSWER_MARKS
    ],
    whole=words,
    groups=groups,
    drills=((1.0, copy_drill),),
    drill_tokens=DRILL_TOKENS,
    stages=STAGES,
    habits=HABITS,
    tokens=5_000_000,
)
