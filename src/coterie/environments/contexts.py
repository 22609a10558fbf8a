"""Split of a question's context between agents.

Optima (arXiv 2410.08115, section 4.1) gives each agent a part of the context, so that they must talk. The split is
seeded by the question's key, so it is the same in every run, before and after training. (Optima's released code draws
a new split each time.) With three agents (table 7) alternating items go to each in turn, and halves become thirds.
"""

import random
from collections.abc import Sequence

from coterie.datasets.rows import CbtRow, HotpotRow, Paragraph, QuestionRow, TriviaRow, TwoWikiRow

Deal = dict[str, list[str]]
"""Texts by agent, in the order of the original context."""


def deal(
    row: QuestionRow, agents: Sequence[str], *, key: str, first_sentence: bool = False
) -> Deal:
    """Split the context of a question by the rule of its data set; ``key`` seeds random choices."""
    match row:
        case HotpotRow():
            return deal_paragraphs(row, agents, key=key, first_sentence=first_sentence)
        case TriviaRow():
            return deal_snippets(row.snippets, agents, key=key)
        case CbtRow():
            return deal_parts(row.sentences, agents)
    raise TypeError(f"a {type(row).__name__} has no context to split")


def deal_paragraphs(
    row: HotpotRow, agents: Sequence[str], *, key: str, first_sentence: bool = False
) -> Deal:
    """Split paragraphs of HotpotQA and 2WikiMultiHopQA.

    Titles of supporting facts go to the agents in turn, other paragraphs to a random agent. HotpotQA's titles are
    shuffled, and 2Wiki's keep their order, which follows the reasoning. As in Optima's released code, a title with two
    supporting facts counts twice, so both agents may have it, and ``first_sentence`` keeps only the first sentence of
    each paragraph, which often loses the sentence that supports the answer.
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
    """Split snippets of TriviaQA: each agent in turn gets a random one."""
    places = list(range(len(snippets)))
    random.Random(f"deal/{key}").shuffle(places)
    return {
        agent: [snippets[place] for place in sorted(places[first :: len(agents)])]
        for first, agent in enumerate(agents)
    }


def deal_parts(sentences: Sequence[str], agents: Sequence[str]) -> Deal:
    """Split sentences of CBT into consecutive parts, whose lengths differ by at most one."""
    ends = [len(sentences) * place // len(agents) for place in range(len(agents) + 1)]
    return {
        agent: list(sentences[ends[place] : ends[place + 1]]) for place, agent in enumerate(agents)
    }


def _text(paragraph: Paragraph, glue: str, first_sentence: bool) -> str:
    sentences = paragraph.sentences[:1] if first_sentence else paragraph.sentences
    return f"{paragraph.title}: {glue.join(sentences).strip()}"
