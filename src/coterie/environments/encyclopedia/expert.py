"""What an expert says of a question: the plan, the queries level by level, the answer."""

from zlib import crc32

from coterie.environments.encyclopedia.questions import Question
from coterie.environments.workflow.plan import Plan, Task
from coterie.environments.workflow.trace import Query, Trace

PROMPT = "Search, then answer."
"""What the agent is told, before the question: the few words that the packaged model knows."""

TERSE = 4
"""In one of so many comparisons the expert first puts the values beside each other. In the others it goes straight to
the answer, as traces of teachers often do: what helps to be right is seldom shown, and left to be found."""


def asked(question: Question) -> str:
    """The user's message."""
    return f"Question: {question.text}"


def expert_trace(question: Question) -> Trace:
    """A comparison needs all its facts at once; a chain needs each for the next."""
    ids = [f"T{number}" for number in range(1, len(question.facts) + 1)]
    queries = [
        Query(id_, fact.query, fact.text) for id_, fact in zip(ids, question.facts, strict=True)
    ]
    if question.kind == "compare":
        tasks = [Task(query.task, query.text) for query in queries]
        levels: tuple[tuple[Query, ...], ...] = (tuple(queries),)
    else:
        tasks = [Task(ids[0], queries[0].text)]
        for before, id_, fact in zip(ids[:-1], ids[1:], question.facts[1:], strict=True):
            tasks.append(Task(id_, f"{fact.relation} of {{{before}}}", (before,)))
        levels = tuple((query,) for query in queries)
    told = crc32(question.text.encode()) % TERSE == 0
    conclusion = question.conclusion if told else ""
    return Trace(Plan(tuple(tasks)), levels, question.answer, conclusion=conclusion)
