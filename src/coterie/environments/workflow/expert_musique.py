"""What an expert does with a row of MuSiQue: its hops, each of which names those that it waits for."""

import re
from collections.abc import Sequence

from coterie.datasets.answers import Hop, MusiqueRow
from coterie.environments.workflow.names import alike, says, words
from coterie.environments.workflow.relations import asked, searched, told
from coterie.environments.workflow.steps import NoTrace, Step, name_of, traced
from coterie.environments.workflow.trace import Trace

NO_HOPS = "it has no decomposition"
LATER = "a hop waits for a later one"
NOWHERE = "a hop leads nowhere"
OTHER_ANSWER = "the answer is not what the last hop finds"
SAYS_MORE = "a hop names what the question does not"
_REFERENCE = re.compile(r"#([1-9])(\s+(?='s\b))?")
_RELATION = ">>"


def trace_of_musique(row: MusiqueRow) -> Trace:
    """The trace of a row. Raises :class:`NoTrace`."""
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
    return traced(row.question, row.answer, steps)


def _step(row: MusiqueRow, hop: Hop, number: int, steps: Sequence[Step]) -> Step:
    said = " ".join(hop.question.split()).rstrip("?. ")
    places = dict.fromkeys(int(one[1]) - 1 for one in _REFERENCE.finditer(said))
    if any(place >= number for place in places):
        raise NoTrace(LATER)
    if not places and _names_more(row, said):
        raise NoTrace(SAYS_MORE)
    known = _REFERENCE.sub(lambda one: steps[int(one[1]) - 1].result, said)
    unknown = _REFERENCE.sub(lambda one: f"{{{name_of(int(one[1]) - 1)}}}", said)
    sentence = _told(known, hop.answer)
    return Step(
        _asked(unknown), _searched(known), hop.answer, sentence, tuple(map(name_of, places))
    )


def _asked(said: str) -> str:
    subject, divided, relation = said.partition(_RELATION)
    return asked(relation, subject.strip()) if divided else said


def _searched(said: str) -> str:
    subject, divided, relation = said.partition(_RELATION)
    return searched(relation, subject.strip()) if divided else said


def _told(said: str, answer: str) -> str:
    subject, divided, relation = said.partition(_RELATION)
    if divided:
        return told(relation, subject.strip(), answer)
    return f"{said[:1].upper()}{said[1:]}: {answer.rstrip('.')}."


def _names_more(row: MusiqueRow, said: str) -> bool:
    """Whether a hop that waits for nothing has a name or a number that is not in the question.

    Many hops are written without capitals: a word counts as a name if the row's paragraphs never write it small.
    """
    subject, divided, _ = said.partition(_RELATION)
    if divided:
        return not says(row.question, subject)
    texts = [one.text for one in row.paragraphs]
    written = {word for text in texts for word in re.findall(r"[^\W_]+", text)}
    small = {word for word in written if word.islower()}
    large = {word.casefold() for word in written if word[:1].isupper()} - small
    known = set(words(row.question))
    return any(
        word not in known and (word in large or any(sign.isdigit() for sign in word))
        for word in words(said)
    )
