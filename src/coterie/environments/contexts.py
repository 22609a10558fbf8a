"""Who holds what: the pieces of a question's context are dealt out to the agents.

Optima (arXiv 2410.08115, section 4.1) gives each agent a part of the context, so that they must
talk. A deal is seeded by the question's own key: every run, before and after training, asks a
question with the same deal (the released code drew it anew each time). With three agents (table 7)
what alternates goes round, and what is halved is cut into three.
"""

import random
from collections.abc import Sequence

from coterie.datasets.rows import CbtRow, HotpotRow, Paragraph, QuestionRow, TriviaRow, TwoWikiRow

Deal = dict[str, list[str]]
"""Texts by agent, in the order of the original context."""


def deal(
    row: QuestionRow, agents: Sequence[str], *, key: str, first_sentence: bool = False
) -> Deal:
    """The context of a question, dealt out by the rule of its data set; ``key`` seeds the draws."""
    match row:
        case HotpotRow():
            return deal_paragraphs(row, agents, key=key, first_sentence=first_sentence)
        case TriviaRow():
            return deal_snippets(row.snippets, agents, key=key)
        case CbtRow():
            return deal_parts(row.sentences, agents)
    raise TypeError(f"a {type(row).__name__} has no context to deal out")


def deal_paragraphs(
    row: HotpotRow, agents: Sequence[str], *, key: str, first_sentence: bool = False
) -> Deal:
    """HotpotQA and 2WikiMultiHopQA: titles of supporting facts go to the agents in turn; every other
    paragraph goes to one of them by chance.

    HotpotQA's titles are in random order, 2Wiki's in the given one (that of the reasoning). A title that
    supports twice counts twice, so both agents may hold it, as in the released code. ``first_sentence``
    keeps only that of each paragraph, also as in the released code for HotpotQA; the sentence that
    supports the answer is then often nobody's.
    """
    rng = random.Random(f"deal/{key}")
    titles = [fact.title for fact in row.supporting_facts]
    if not isinstance(row, TwoWikiRow):
        rng.shuffle(titles)
    holders: dict[str, set[str]] = {}
    for place, title in enumerate(titles):
        holders.setdefault(title, set()).add(agents[place % len(agents)])
    for paragraph in row.context:
        if paragraph.title not in holders:
            holders[paragraph.title] = {rng.choice(list(agents))}
    return {
        agent: [
            _text(paragraph, row.glue, first_sentence)
            for paragraph in row.context
            if agent in holders[paragraph.title]
        ]
        for agent in agents
    }


def deal_snippets(snippets: Sequence[str], agents: Sequence[str], *, key: str) -> Deal:
    """TriviaQA: the snippets go to the agents in turn, in random order."""
    places = list(range(len(snippets)))
    random.Random(f"deal/{key}").shuffle(places)
    return {
        agent: [snippets[place] for place in sorted(places[first :: len(agents)])]
        for first, agent in enumerate(agents)
    }


def deal_parts(sentences: Sequence[str], agents: Sequence[str]) -> Deal:
    """CBT: the first part of the sentences to the first agent, and so on; parts differ by one at most."""
    ends = [len(sentences) * place // len(agents) for place in range(len(agents) + 1)]
    return {
        agent: list(sentences[ends[place] : ends[place + 1]]) for place, agent in enumerate(agents)
    }


def _text(paragraph: Paragraph, glue: str, first_sentence: bool) -> str:
    sentences = paragraph.sentences[:1] if first_sentence else paragraph.sentences
    return f"{paragraph.title}: {glue.join(sentences).strip()}"
