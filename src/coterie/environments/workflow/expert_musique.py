"""Expert traces for MuSiQue: one step for each hop, with its dependencies."""

import re
from collections.abc import Sequence

from coterie.datasets.answers import Hop, MusiqueRow
from coterie.environments.workflow.names import alike, says, words
from coterie.environments.workflow.relations import query_text, sentence, task_text
from coterie.environments.workflow.steps import NoTrace, Step, make_trace, name_of
from coterie.environments.workflow.trace import Trace

NO_HOPS = "it has no decomposition"
LATER = "a hop waits for a later one"
NOWHERE = "a hop leads nowhere"
OTHER_ANSWER = "the answer is not what the last hop finds"
SAYS_MORE = "a hop names what the question does not"
_REFERENCE = re.compile(r"#([1-9])(\s+(?='s\b))?")
_RELATION = ">>"


def trace_of_musique(row: MusiqueRow) -> Trace:
    """Return the trace of a row. Raise :class:`NoTrace` without a sound trace."""
    if not row.hops:
        raise NoTrace(NO_HOPS)
    steps: list[Step] = []
    for number, hop in enumerate(row.hops):
        steps.append(_step(row, hop, number, steps))
    waited = {other for one in steps for other in one.after}
    if any(name_of(place) not in waited for place in range(len(steps) - 1)):
        raise NoTrace(NOWHERE)
    if not any(alike(one, steps[-1].result) for one in row.answers):
        raise NoTrace(OTHER_ANSWER)
    return make_trace(row.question, row.answer, steps)


def _step(row: MusiqueRow, hop: Hop, number: int, steps: Sequence[Step]) -> Step:
    text = " ".join(hop.question.split()).rstrip("?. ")
    places = dict.fromkeys(int(one[1]) - 1 for one in _REFERENCE.finditer(text))
    if any(place >= number for place in places):
        raise NoTrace(LATER)
    if not places and _names_more(row, text):
        raise NoTrace(SAYS_MORE)
    filled = _REFERENCE.sub(lambda one: steps[int(one[1]) - 1].result, text)
    template = _REFERENCE.sub(lambda one: f"{{{name_of(int(one[1]) - 1)}}}", text)
    after = tuple(map(name_of, places))
    subject, divided, relation = filled.partition(_RELATION)
    if not divided:
        fact = f"{filled[:1].upper()}{filled[1:]}: {hop.answer.rstrip('.')}."
        return Step(template, filled, hop.answer, fact, after)
    unknown, _, unknown_relation = template.partition(_RELATION)
    subject = subject.strip()
    return Step(
        task_text(unknown_relation, unknown.strip()),
        query_text(relation, subject),
        hop.answer,
        sentence(relation, subject, hop.answer),
        after,
    )


def _names_more(row: MusiqueRow, hop: str) -> bool:
    """Return True if a hop without dependencies has a name or a number that is not in the question.

    Many hops have no capital letters, so a word counts as a name if the row's paragraphs never write it in lower case.
    """
    subject, divided, _ = hop.partition(_RELATION)
    if divided:
        return not says(row.question, subject)
    texts = [one.text for one in row.paragraphs]
    all_words = {word for text in texts for word in re.findall(r"[^\W_]+", text)}
    small = {word for word in all_words if word.islower()}
    large = {word.casefold() for word in all_words if word[:1].isupper()} - small
    question_words = set(words(row.question))
    return any(
        word not in question_words and (word in large or any(sign.isdigit() for sign in word))
        for word in words(hop)
    )
