"""Information exchange: agents with different parts of a context must talk to answer (Optima, section 4.1, table 7).

The split of the context is seeded by the question's key, so it is the same in every run. (Optima's code draws a new
split each time.)
"""

import random
from collections.abc import Sequence
from typing import Literal

from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.rows import (
    BLANK,
    CbtRow,
    HotpotRow,
    Paragraph,
    QuestionRow,
    TriviaRow,
    TwoWikiRow,
)
from coterie.environments.answers import f1, gold_answers, secret_answers
from coterie.environments.settings import RowTasks
from coterie.environments.talk import (
    EXCHANGE_FORMATS,
    LENGTH_RULE,
    NAMES,
    Talk,
    TalkSettings,
    answer_rule,
    named,
    others,
    solo_prompt,
)
from coterie.record.tree import Task
from coterie.record.turn import Part

Deal = dict[str, list[str]]


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


Context = Literal["paragraph", "first_sentence"]
EXAMPLE = "Lake Geneva"


class InformationExchangeSettings(TalkSettings):
    """Settings of information exchange."""

    context: Context = key(
        "paragraph",
        "Part of each paragraph in the context: all of it, or only its first sentence.",
        source="Optima's code: first_sentence (the supporting sentence is then often lost)",
    )


class InformationExchange(RowTasks, Talk):
    """Agents with different notes that answer a question together."""

    metric = "F1"
    example = EXAMPLE
    settings_type = InformationExchangeSettings
    row_types: tuple[type[QuestionRow], ...] = (HotpotRow, TriviaRow, CbtRow)

    def __init__(self, settings: InformationExchangeSettings, rows: Rows) -> None:
        self.name = rows.name
        self.context = settings.context
        self.agents: tuple[str, ...] = NAMES[: settings.agents]
        self.max_turns = settings.turns
        self.formats: tuple[str, ...] = settings.pool(EXCHANGE_FORMATS)
        self.format_agents = self.agents
        self.rows = rows

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        own = frozenset({agent})
        return (
            Part(_role(agent, others(agent, self.agents)), audience=own, source="task"),
            *(Part(f"- {note}\n", audience=own, source="task") for note in notes[agent]),
            Part(_rules(len(self.agents)), source="task"),
            Part(f"\n\nQuestion: {task.public['question']}", source="task"),
        )

    def score(self, task: Task, answer: str | None) -> float:
        return f1(answer, gold_answers(task))

    def similarity(self, answer: str, other: str) -> float:
        return f1(answer, [other])

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        everything = dict.fromkeys(note for agent_notes in notes.values() for note in agent_notes)
        return solo_prompt(str(task.public["question"]), _ending("End your message"), everything)

    def task_of(self, row: QuestionRow) -> Task:
        id_ = f"{self.name}-{row.id}"
        notes = deal(row, self.agents, key=id_, first_sentence=self.context == "first_sentence")
        public = {"question": question_text(row), "notes": notes}
        return Task(id_, public, secret_answers(row))


def question_text(row: QuestionRow) -> str:
    if not isinstance(row, CbtRow):
        return row.question
    options = ", ".join(row.options)
    return f"{row.question}\nWhich of these words does {BLANK} stand for: {options}?"


def _role(agent: str, partners: Sequence[str]) -> str:
    other = "other" if len(partners) == 1 else "others"
    return (
        f"You are {agent}. You answer one question together with {named(partners)}. Each of you has notes that the "
        f"{other} cannot see.\nYour notes:\n"
    )


def _rules(agents: int) -> str:
    partner, both = ("partner", "both") if agents == 2 else ("partners", "two")
    return (
        "Rules:\n"
        f"- Tell your {partner} which facts in your notes matter for the question, and ask for the facts that you "
        "need. Think step by step.\n"
        f"- Use only the facts in your notes and in the messages of your {partner}.\n"
        f"{LENGTH_RULE}"
        f"- The conversation is over when {both} of you have given the same answer.\n"
        f"{_ending('As soon as you know the answer, end your message')}"
    )


def _ending(when: str) -> str:
    return answer_rule(when, "a name or a few words", EXAMPLE, f"<A>{EXAMPLE}</A>")
