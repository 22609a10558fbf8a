"""Who holds what: the pieces of a question's context are dealt out to the agents.

Optima (arXiv 2410.08115, section 4.1) gives each agent a part of the context, so that they must
talk. A deal is seeded by the question's own key: every run, before and after training, asks a
question with the same deal (the released code drew it anew each time).
"""

import random
from collections.abc import Sequence

from coterie.datasets.rows import HotpotRow, Paragraph

Deal = dict[str, list[str]]
"""Texts by agent, in the order of the original context."""


def deal_paragraphs(
    row: HotpotRow, agents: Sequence[str], *, key: str, first_sentence: bool = False
) -> Deal:
    """HotpotQA: titles of supporting facts, in random order, go to the agents in turn; every other
    paragraph goes to one of them by chance.

    A title that supports twice counts twice, so both agents may hold it, as in the released code.
    ``first_sentence`` keeps only that of each paragraph, also as in the released code; the sentence
    that supports the answer is then often nobody's.
    """
    rng = random.Random(f"deal/{key}")
    titles = [fact.title for fact in row.supporting_facts]
    rng.shuffle(titles)
    holders: dict[str, set[str]] = {}
    for place, title in enumerate(titles):
        holders.setdefault(title, set()).add(agents[place % len(agents)])
    for paragraph in row.context:
        if paragraph.title not in holders:
            holders[paragraph.title] = {rng.choice(list(agents))}
    return {
        agent: [
            _text(paragraph, first_sentence)
            for paragraph in row.context
            if agent in holders[paragraph.title]
        ]
        for agent in agents
    }


def _text(paragraph: Paragraph, first_sentence: bool) -> str:
    sentences = paragraph.sentences[:1] if first_sentence else paragraph.sentences
    return f"{paragraph.title}: {''.join(sentences).strip()}"
