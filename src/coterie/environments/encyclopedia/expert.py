"""Expert traces for questions: the plan, the queries of each level, and the answer."""

from zlib import crc32

from coterie.environments.encyclopedia.questions import Question
from coterie.environments.workflow.plan import Plan, Task
from coterie.environments.workflow.trace import Query, Trace

PROMPT = "Search, then answer."
"""Short system prompt that the packaged model knows."""

TERSE = 4
"""In one of ``TERSE`` comparisons the expert first lists the values. In the others it answers directly, as many teacher
traces do, so that training has to discover the helpful step."""


def user_message(question: Question) -> str:
    """Return the user's message."""
    return f"Question: {question.text}"


def expert_trace(question: Question) -> Trace:
    """Return the trace of an expert: one level for all facts of a comparison, one level for each fact of a chain."""
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
    has_conclusion = crc32(question.text.encode()) % TERSE == 0
    conclusion = question.conclusion if has_conclusion else ""
    return Trace(Plan(tuple(tasks)), levels, question.answer, conclusion=conclusion)
