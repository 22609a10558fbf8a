"""Agents that discuss the questions of a data set: Optima's two settings (arXiv 2410.08115, section 4.1 and table 7).

In an information exchange each agent has a part of the context. The split is seeded by the question's key, so it is the
same in every run. (Optima's code draws a new split each time.) In a debate one agent solves a problem, and the others
look for mistakes. Only the solver answers. The dialogue ends when it repeats its answer after the critics' messages.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from coterie.config.settings import key
from coterie.datasets.load import Rows
from coterie.datasets.problems import boxed_answer
from coterie.datasets.rows import (
    BLANK,
    CbtRow,
    HotpotRow,
    Paragraph,
    QuestionRow,
    TriviaRow,
    TwoWikiRow,
)
from coterie.environments.dialogue import LENGTH_RULE, Dialogue, FormatSettings, read_pool
from coterie.environments.grading import boxed_number, same_mathematics, same_number
from coterie.environments.qa_metrics import (
    f1,
    gold_answers,
    marked_answer,
    option_of,
    same_text,
    same_words,
    secret_answers,
)
from coterie.environments.settings import RowTasks
from coterie.record.tree import Task
from coterie.record.turn import Part

NAMES = ("Alice", "Bob", "Carol")
"""In speaking order: Optima's two agents, and one for its experiments with three agents."""


def named(names: Sequence[str]) -> str:
    return " and ".join(names)


def others(agent: str, agents: Sequence[str]) -> list[str]:
    return [name for name in agents if name != agent]


def answer_rule(when: str, content: str, meaning: str, example: str) -> str:
    """Return the rule for the format of an answer, which ends with an example on a line of its own."""
    return (
        f"- {when} with your answer on a line of its own: {content}, marked as in this example. Nothing else is read "
        f"as your answer. If the answer is {meaning}, the line is:\n{example}"
    )


def solo_prompt(question: str, ending: str, notes: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return the prompt of an agent that has the whole problem; ``ending`` is the rule for its answer."""
    listed = tuple(Part(f"- {note}\n", source="task") for note in notes)
    rules = "Rules:\n- Think step by step, and write down the steps before the answer.\n"
    if listed:
        listed = (Part("Your notes:\n", source="task"), *listed)
        rules += "- Use only the facts in the notes.\n"
    return (
        Part("Answer the question below.\n", source="task"),
        *listed,
        Part(f"{rules}{LENGTH_RULE}{ending}\n\n", source="task"),
        Part(f"Question: {question}", source="task"),
    )


_POOLS = Path(str(files("coterie") / "assets" / "formats"))
EXCHANGE_FORMATS = read_pool(_POOLS / "exchange.yaml")
DEBATE_FORMATS = read_pool(_POOLS / "debate.yaml")


class DiscussionSettings(FormatSettings):
    """Settings of agents that discuss questions."""

    agents: int = key(
        2,
        "Number of agents: 2, or 3 (a context is split into three; a debate has a second critic).",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int = key(10, "Maximum turns of all agents together.", source="Optima: 10", ge=1)


class Discussion(RowTasks, Dialogue):
    """Agents that answer the questions of a data set together."""

    def __init__(self, settings: DiscussionSettings, rows: Rows, formats: tuple[str, ...]) -> None:
        self.name, self.rows = rows.name, rows
        self.agents = NAMES[: settings.agents]
        self.max_turns = settings.turns
        self.formats = settings.pool(formats)


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
    # 2Wiki's order follows the reasoning, so consecutive facts go to different agents.
    if not isinstance(row, TwoWikiRow):
        rng.shuffle(titles)
    holders: dict[str, set[str]] = {}
    for index, title in enumerate(titles):
        holders.setdefault(title, set()).add(agents[index % len(agents)])
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
    indices = list(range(len(snippets)))
    random.Random(f"deal/{key}").shuffle(indices)
    # Each agent's snippets stay in the order of the data set.
    return {
        agent: [snippets[index] for index in sorted(indices[offset :: len(agents)])]
        for offset, agent in enumerate(agents)
    }


def deal_parts(sentences: Sequence[str], agents: Sequence[str]) -> Deal:
    """Split sentences of CBT into consecutive parts, whose lengths differ by at most one."""
    # Rounded boundaries spread the remainder, so the lengths differ by at most one.
    ends = [len(sentences) * part // len(agents) for part in range(len(agents) + 1)]
    return {
        agent: list(sentences[ends[part] : ends[part + 1]]) for part, agent in enumerate(agents)
    }


def _text(paragraph: Paragraph, glue: str, first_sentence: bool) -> str:
    sentences = paragraph.sentences[:1] if first_sentence else paragraph.sentences
    return f"{paragraph.title}: {glue.join(sentences).strip()}"


Context = Literal["paragraph", "first_sentence"]
EXAMPLE = "Lake Geneva"


class InformationExchangeSettings(DiscussionSettings):
    """Settings of information exchange."""

    context: Context = key(
        "paragraph",
        "Part of each paragraph in the context: all of it, or only its first sentence.",
        source="Optima's code: first_sentence (the supporting sentence is then often lost)",
    )


class InformationExchange(Discussion):
    """Agents with different notes that answer a question together."""

    metric = "F1"
    example = EXAMPLE
    settings_type = InformationExchangeSettings
    row_types: tuple[type[QuestionRow], ...] = (HotpotRow, TriviaRow, CbtRow)

    def __init__(self, settings: InformationExchangeSettings, rows: Rows) -> None:
        super().__init__(settings, rows, EXCHANGE_FORMATS)
        self.context = settings.context
        self.format_agents = self.agents

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        # The audience keeps these notes out of the prompts of all other agents.
        audience = frozenset({agent})
        return (
            Part(_role(agent, others(agent, self.agents)), audience=audience, source="task"),
            *(Part(f"- {note}\n", audience=audience, source="task") for note in notes[agent]),
            Part(_rules(len(self.agents)), source="task"),
            Part(f"\n\nQuestion: {task.public['question']}", source="task"),
        )

    def score(self, task: Task, answer: str | None) -> float:
        return f1(answer, gold_answers(task))

    def similarity(self, answer: str, other: str) -> float:
        return f1(answer, [other])

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        notes: dict[str, list[str]] = task.public["notes"]  # type: ignore[assignment]
        # A paragraph that several agents hold is listed once.
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
    partner_word = "other" if len(partners) == 1 else "others"
    return (
        f"You are {agent}. You answer one question together with {named(partners)}. Each of you has notes that the "
        f"{partner_word} cannot see.\nYour notes:\n"
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


class Subject(NamedTuple):
    """Subject of a debate: prompt of the solver, and parser and comparison of its answers."""

    skill: str
    ending: str
    example: str
    read: Callable[[str], str | None]
    same: Callable[[str, str], bool]
    """Comparison of a reference or an earlier answer (first) with an answer (second)."""
    formats: tuple[str, ...] = ()


NO_MISTAKE = "I found no mistake."
EVERY = "End every message"

SubjectName = Literal["arithmetic", "mathematics", "choice", "text"]
SUBJECTS: Mapping[SubjectName, Subject] = {
    "arithmetic": Subject(
        "arithmetic",
        answer_rule(EVERY, "a number without a unit", "1250", r"\boxed{1250}"),
        "1250",
        boxed_number,
        same_number,
    ),
    "mathematics": Subject(
        "mathematics",
        answer_rule(EVERY, "in LaTeX", "three sevenths", r"\boxed{\frac{3}{7}}"),
        r"\frac{3}{7}",
        boxed_answer,
        same_mathematics,
    ),
    "choice": Subject(
        "answering questions with options",
        answer_rule(
            EVERY,
            "the text of the option that you choose, word for word",
            "the option `a full moon`",
            "<A>a full moon</A>",
        ),
        "a full moon",
        marked_answer,
        same_text,
        DEBATE_FORMATS,
    ),
    "text": Subject(
        "answering questions",
        answer_rule(EVERY, "a name or a few words", "Lake Geneva", "<A>Lake Geneva</A>"),
        "Lake Geneva",
        marked_answer,
        same_words,
        DEBATE_FORMATS,
    ),
}


class DebateSettings(DiscussionSettings):
    """Settings of the debate."""

    subject: SubjectName = key(
        "text",
        "Type of answers, which determines their comparison: numbers (`arithmetic`), `mathematics`, options "
        "(`choice`), or a few words (`text`).",
    )


class Debate(Discussion):
    """A solver and its critics."""

    metric = "exact match"
    settings_type = DebateSettings
    row_types: tuple[type[QuestionRow], ...] = (QuestionRow,)

    def __init__(self, settings: DebateSettings, rows: Rows) -> None:
        self.subject = SUBJECTS[settings.subject]
        super().__init__(settings, rows, self.subject.formats)
        self.example = self.subject.example
        self.format_agents = self.agents[:1]

    def system_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        role, rules = self._solver() if agent == self.agents[0] else self._critic(agent)
        audience = frozenset({agent})
        return (
            Part(f"{role}Rules:\n{rules}", audience=audience, source="task"),
            Part(f"\n\nProblem: {task.public['question']}", source="task"),
        )

    def answer(self, text: str) -> str | None:
        return self.subject.read(text)

    def answer_to(self, task: Task, text: str) -> str | None:
        """Return the answer, spelled like the matching option if the problem has options."""
        answer = self.answer(text)
        return None if answer is None else option_of(answer, _options(task))

    def same(self, first: str, second: str) -> bool:
        return self.subject.same(first, second)

    def score(self, task: Task, answer: str | None) -> float:
        if answer is None:
            return 0.0
        golds = gold_answers(task)
        if self.subject is SUBJECTS["choice"]:  # files of the released code name no options
            answer = option_of(answer, _options(task) or golds)
        return float(any(self.subject.same(gold, answer) for gold in golds))

    def similarity(self, answer: str, other: str) -> float:
        return float(self.subject.same(other, answer))

    def solo_parts(self, task: Task, agent: str) -> tuple[Part, ...]:
        return solo_prompt(str(task.public["question"]), self.subject.ending)

    def _solver(self) -> tuple[str, str]:
        solver, *critics = self.agents
        read, point = ("reads", "points") if len(critics) == 1 else ("read", "point")
        return (
            f"You are {solver}, and you are good at {self.subject.skill}. Solve the problem below. {named(critics)} "
            f"{read} your messages and {point} out mistakes.\n",
            "- Solve the problem step by step.\n"
            "- If you are told of a mistake, check that step. Correct it if it is wrong, and give your answer again.\n"
            f"{LENGTH_RULE}{self.subject.ending}",
        )

    def _critic(self, agent: str) -> tuple[str, str]:
        solver, *critics = self.agents
        other_critics = others(agent, critics)
        also = f", as {named(other_critics)} does," if other_critics else ""
        return (
            f"You are {agent}. {solver} solves the problem below. You read the solution{also} and look for mistakes.\n",
            "- Check the solution step by step. Name each mistake and say how to correct it.\n"
            "- Do not give an answer to the problem yourself.\n"
            f"{LENGTH_RULE}"
            f"- If there is no mistake, reply with this sentence only:\n{NO_MISTAKE}",
        )

    def task_of(self, row: QuestionRow) -> Task:
        public: dict[str, object] = {"question": row.shown_question}
        if choices := getattr(row, "choices", ()):
            public["options"] = list(choices)
        return Task(f"{self.name}-{row.id}", public, secret_answers(row))


def _options(task: Task) -> list[str]:
    return task.public.get("options", [])  # type: ignore[return-value]
