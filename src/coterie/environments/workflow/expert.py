"""Expert that turns the gold evidence of a HotpotQA, MuSiQue or 2Wiki row into a trace that answers the question.

There is no teacher model. A query uses only the question and earlier results. A row without a sound trace is rejected
with a reason. Thoughts state gold facts. If no result contains them, an agent trained on them learns to hallucinate.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from coterie.datasets.rows import Evidence, Hop, HotpotRow, MusiqueRow, QuestionRow, TwoWikiRow
from coterie.environments.settings import split_words
from coterie.environments.workflow.plan_graph import (
    BrokenPlan,
    Plan,
    Query,
    Task,
    Trace,
    format_plan,
    parse_plan,
)
from coterie.record.tree import Task as EpisodeTask
from coterie.tools.search import titles_in


class NoTrace(Exception):
    """A row has no sound trace. The message is one of a few texts, which are counted."""


# A word may contain combining accents, as in decomposed Unicode text.
_WORD = re.compile(r"[^\W_]+(?:[\u0300-\u036f]+[^\W_]*)*")
_BRACKETS = re.compile(r"\s*\([^()]*\)")
LEAST = 2
"""Minimum words of a partial name that identifies the whole name, since a single word is ambiguous."""

_EMPTY = frozenset(
    split_words(
        "a an the of in on at to for from by with and or but is are was were be been being do does did has have had "
        "that this these those which who whom whose what when where why how it its he she his her they their them as "
        "than then also both s there can could would will about into"
    )
)


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text without case, accents and punctuation."""
    return tuple(map(_fold, _WORD.findall(text)))


def telling(question: str) -> list[str]:
    """Return the words of a question that are no stop words, in their spelling."""
    stripped = (word.strip("\"'.,;:?!()[]") for word in question.split())
    return [word for word in stripped if not _EMPTY.issuperset(words(word))]


def contains_name(text: str, name: str) -> bool:
    """Return True if a text contains the words of a name in sequence; False for a name without words."""
    return bool(_places(words(text), words(name)))


def spelling_in(text: str, name: str) -> str:
    """Return the spelling of a name in a text, preferably with a capital letter, or ""."""
    matches, target = list(_WORD.finditer(text)), words(name)
    spans = [
        (matches[start].start(), matches[start + len(target) - 1].end())
        for start in _places(tuple(_fold(match[0]) for match in matches), target)
    ]
    if not spans:
        return ""
    start, stop = min(spans, key=lambda span: text[span[0]].islower())
    span = text[start:stop]
    # The words of ``Titanic (1997 film)`` end before the bracket, which still belongs to the name.
    closed = text[stop : stop + 1] == ")" and span.count("(") > span.count(")")
    return span + ")" * closed


def bare(name: str) -> str:
    """Return a name without text in brackets, such as ``(1929 film)``."""
    return _BRACKETS.sub("", name).strip() or name


def is_same_name(name: str, second_name: str) -> bool:
    """Return True if two names are equal or one contains the other."""
    # The shorter name may be a part of the longer one.
    shorter, second = sorted((words(bare(name)), words(bare(second_name))), key=len)
    if shorter == second:
        return bool(shorter)
    return len(shorter) >= LEAST and bool(_places(second, shorter))


def places_of(name: str, among: Sequence[str]) -> list[int]:
    """Return the indices of equal names, or else of names that are :func:`is_same_name`."""
    equal = [index for index, candidate in enumerate(among) if words(candidate) == words(name)]
    return equal or [
        index for index, candidate in enumerate(among) if is_same_name(candidate, name)
    ]


def _fold(word: str) -> str:
    # This form separates accents from letters, so that the accents can be dropped.
    plain = unicodedata.normalize("NFKD", word)
    return "".join(
        character for character in plain if not unicodedata.combining(character)
    ).casefold()


def _places(text: tuple[str, ...], part: tuple[str, ...]) -> list[int]:
    starts = range(len(text) - len(part) + 1) if part else ()
    return [start for start in starts if text[start : start + len(part)] == part]


LEAK = "a query or a task says what is not known then"
TWICE = "two tasks ask the same"
UNPLANNED = "its tasks are no plan that can be written and read"


@dataclass(frozen=True, slots=True)
class Step:
    """A search. The ids of steps are ``T1``, ``T2``, ... in order."""

    task: str
    """Text of the task in the plan, with placeholders such as ``{T1}`` for unknown results."""
    query: str
    result: str
    fact: str
    after: tuple[str, ...] = ()


def name_of(index: int) -> str:
    return f"T{index + 1}"


def without_dependents(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the steps that no other step depends on."""
    waited = {dependency for step in steps for dependency in step.after}
    return [index for index in range(len(steps)) if name_of(index) not in waited]


def is_yes_or_no(answer: str) -> bool:
    return words(answer) in (("yes",), ("no",))


def make_trace(
    question: str, answer: str, steps: Sequence[Step], *, compare: bool = False
) -> Trace:
    """Return the trace of these steps.

    ``compare`` adds a last task without a search, which depends on all tasks without other dependents.
    """
    by_id = {name_of(index): step for index, step in enumerate(steps)}
    tasks = [Task(id_, step.task, step.after) for id_, step in by_id.items()]
    if compare:
        final_ids = tuple(map(name_of, without_dependents(steps)))
        text = f"compare {' and '.join(f'{{{final_id}}}' for final_id in final_ids)}"
        tasks.append(Task(name_of(len(tasks)), text, final_ids))
    try:
        plan = Plan(tuple(tasks))
        # The policy is trained on the text of the plan, so it must survive writing and parsing.
        if parse_plan(format_plan(plan)) != plan:
            raise BrokenPlan
    except BrokenPlan as error:
        raise NoTrace(UNPLANNED) from error
    # A comparison needs no search, so its level may have no query.
    searches = ([id_ for id_ in level if id_ in by_id] for level in plan.levels)
    levels = [level for level in searches if level]
    results = [[by_id[id_].result for id_ in level] for level in levels]
    # A query may use the question and earlier results, but nothing that is found later.
    for number, level in enumerate(levels):
        visible = [question, *(result for row in results[:number] for result in row)]
        hidden = [answer, *(result for row in results[number:] for result in row)]
        texts = [by_id[id_].query for id_ in level]
        # The plan is written before the first search, so its tasks must not contain results either.
        if number == 0:
            texts += [task.text for task in plan.tasks]
        if any(_leaks(visible_text, hidden, visible) for visible_text in texts):
            raise NoTrace(LEAK)
    if len({words(step.query) for step in steps}) < len(steps):
        raise NoTrace(TWICE)
    queries = {id_: Query(id_, step.query, step.fact) for id_, step in by_id.items()}
    return Trace(plan, tuple(tuple(map(queries.__getitem__, level)) for level in levels), answer)


def _leaks(text: str, hidden: Sequence[str], visible: Sequence[str]) -> bool:
    # A name that is known already, for instance from the question, is not leaked.
    return any(
        contains_name(text, secret)
        and not any(contains_name(visible_text, secret) for visible_text in visible)
        for secret in hidden
    )


_RELATIONS: Mapping[str, tuple[str, str]] = {
    "country of citizenship": ("nationality", ""),
    "country of origin": ("country", ""),
    "country": ("country", ""),
    "publication date": ("release date", "released"),
    "inception": ("date of founding", "founded"),
    "founded by": ("founder", "founded by"),
    "award received": ("award", "award"),
    "educated at": ("school", "educated"),
    "employer": ("employer", "worked"),
    "screenwriter": ("writer", "writer"),
    "director": ("director", "directed by"),
    "performer": ("performer", "song by"),
    "composer": ("composer", "music composed by"),
    "date of birth": ("date of birth", "born"),
    "place of birth": ("place of birth", "born"),
    "date of death": ("date of death", "died"),
    "place of death": ("place of death", "died"),
    "cause of death": ("cause of death", "died"),
    "spouse": ("spouse", "married"),
    "child": ("child", "children"),
    "located in the administrative territorial entity": ("region", "located in"),
    "located on terrain feature": ("terrain", "terrain"),
    "location of formation": ("place of founding", "place of founding"),
    "member of sports team": ("team", "team"),
    "member of political party": ("political party", "political party"),
    "member of": ("organization", "organization"),
    "part of": ("whole", "whole"),
    "named after": ("namesake", "namesake"),
    "shares border with": ("neighbor", "border"),
    "capital of": ("region with the capital", "region with the capital"),
    "cast member": ("actor", "actor"),
    "work location": ("place of work", "place of work"),
    "position held": ("position", "position"),
    "followed by": ("successor", "successor"),
    "contains administrative territorial entity": ("district", "district"),
}
"""Natural names of relations of Wikidata, and the words that pages use for them.

Keyword search finds the wrong pages for ``date of birth``.
"""


def relation_step(
    subject: str,
    relation: str,
    result: str,
    planned: tuple[str, str],
    dependencies: tuple[str, ...] = (),
) -> Step:
    """Return a search for the ``relation`` of ``subject``, for which the plan has the names ``planned``.

    The task is ``director of Devotion``, the query ``Devotion directed by``, and the fact ``The director of Devotion is
    Guido Brignone.``
    """
    name, query = _names(relation)
    fact = f"The {name} of {subject} is {result.rstrip('.')}."
    planned_subject, planned_relation = planned
    task = f"{_names(planned_relation)[0]} of {planned_subject}"
    return Step(task, f"{subject} {query}".strip(), result, fact, dependencies)


def _names(relation: str) -> tuple[str, str]:
    plain = _plain(relation.lower())
    return _RELATIONS.get(plain, (plain, plain))


def _plain(text: str) -> str:
    return " ".join(text.split())


def gold_titles(row: QuestionRow) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_plain(passage.title) for passage in row.passages if passage.gold))


def has_passages(results: Iterable[str], titles: Iterable[str]) -> bool:
    """Return True if results of ``tools.retrieval.tool`` contain passages with all titles."""
    all_titles = {_plain(title) for result in results for title in titles_in(result)}
    return all_titles.issuperset(map(_plain, titles))


@runtime_checkable
class Demonstrates(Protocol):
    """An environment with expert traces of its tasks."""

    def trace(self, task: EpisodeTask) -> Trace:
        """Return the expert trace of a training task."""

    def grounded(self, task: EpisodeTask, results: Sequence[str]) -> bool:
        """Return True if tool results contain the facts that the answer depends on."""


MAX_FACT_WORDS, MAX_QUERY_WORDS = 20, 12


class Page(NamedTuple):
    """A gold page."""

    title: str
    text: str
    clause: str


def trace_of_hotpot(row: HotpotRow) -> Trace:
    pages = _pages(row)
    if len(pages) != 2:
        raise NoTrace("it does not rest on two pages")
    if not any(_has_answer(row, page) for page in pages):
        raise NoTrace("the answer is not in the pages")
    question = row.question
    # The spelling of each title in the question; empty if the question does not name it.
    names = {
        page.title: spelling_in(question, page.title) or spelling_in(question, bare(page.title))
        for page in pages
    }
    # The question names both pages, so the searches are independent of each other.
    if all(names.values()):
        sides = [
            Step(name, name, page.title, page.clause)
            for page, name in zip(pages, names.values(), strict=True)
        ]
        return make_trace(question, row.answer, sides, compare=row.type == "comparison")
    if row.type == "comparison":
        raise NoTrace("the question does not name what it compares")
    return make_trace(row.question, row.answer, _bridge(row, pages, names))


def _bridge(row: HotpotRow, pages: Sequence[Page], names: Mapping[str, str]) -> list[Step]:
    # Begin with the page that the question names, or else with which it shares more words.
    first_gold, second_page = sorted(
        pages, key=lambda page: (not names[page.title], -_overlap(row.question, page))
    )
    # The search can only go from a page to one that it names.
    orders = [
        pair
        for pair in ((first_gold, second_page), (second_page, first_gold))
        if contains_name(pair[0].text, bare(pair[1].title))
    ]
    if not orders:
        raise NoTrace("neither page names the other")
    # The last step reads the answer, so it must be on the second page.
    orders = [pair for pair in orders if _has_answer(row, pair[1])]
    if not orders:
        raise NoTrace("the answer is on the page that comes first")
    bridge_page, second = orders[0]
    name, title = names[bridge_page.title], bare(second.title)
    name_words = set(words(name))
    # The name alone is often too little for a search, so other words of the question follow.
    query_words = [word for word in telling(row.question) if not name_words.issuperset(words(word))]
    query = " ".join((name, *query_words[:MAX_QUERY_WORDS])).strip()
    # If the answer is the second page itself, a sentence of the page is the fact.
    fact = (
        second.clause if is_same_name(title, row.answer) else f"{title}: {row.answer.rstrip('.')}."
    )
    return [
        Step(query, query, second.title, f"{bare(bridge_page.title)} leads to {title}."),
        Step("what {T1} says of the question", title, row.answer, fact, ("T1",)),
    ]


def _has_answer(row: HotpotRow, page: Page) -> bool:
    text = f"{page.title}\n{page.text}"
    return (
        is_yes_or_no(row.answer)
        or contains_name(text, row.answer)
        or is_same_name(page.title, row.answer)
    )


def _overlap(question: str, page: Page) -> int:
    asks = set(words(" ".join(telling(question))))
    return len(asks & set(words(f"{page.title} {page.text}")))


def _pages(row: HotpotRow) -> list[Page]:
    texts = {page.title: page.sentences for page in row.context}
    sentence_of: dict[str, int] = {}
    # The first supporting sentence of a page is enough for the thought.
    for fact in row.supporting_facts:
        sentence_of.setdefault(fact.title, fact.sentence)
    return [
        Page(title, row.glue.join(texts[title]), _clause(texts[title], sentence))
        for title, sentence in sentence_of.items()
        if title in texts
    ]


def _clause(sentences: Sequence[str], index: int) -> str:
    """Return the beginning of a sentence, or of the first sentence if the index is out of range upstream."""
    sentence_words = (sentences[index] if index < len(sentences) else sentences[0]).split()
    if len(sentence_words) <= MAX_FACT_WORDS:
        return " ".join(sentence_words)
    return f"{' '.join(sentence_words[:MAX_FACT_WORDS]).rstrip(',;:')}..."


_REFERENCE = re.compile(r"#([1-9])(\s+(?='s\b))?")
_RELATION = ">>"


def trace_of_musique(row: MusiqueRow) -> Trace:
    if not row.hops:
        raise NoTrace("it has no decomposition")
    steps: list[Step] = []
    for hop in row.hops:
        steps.append(_hop_step(row, hop, steps))
    if len(without_dependents(steps)) > 1:
        raise NoTrace("a hop leads nowhere")
    if not any(is_same_name(gold, steps[-1].result) for gold in row.answers):
        raise NoTrace("the answer is not what the last hop finds")
    return make_trace(row.question, row.answer, steps)


def _hop_step(row: MusiqueRow, hop: Hop, steps: Sequence[Step]) -> Step:
    text = _plain(hop.question).rstrip("?. ")
    # ``#1`` in a hop stands for the result of the first hop.
    indices = dict.fromkeys(int(match[1]) - 1 for match in _REFERENCE.finditer(text))
    if any(index >= len(steps) for index in indices):
        raise NoTrace("a hop waits for a later one")
    # A search before any result can only use names from the question.
    if not indices and _names_more(row, text):
        raise NoTrace("a hop names what the question does not")
    filled = _REFERENCE.sub(lambda match: steps[int(match[1]) - 1].result, text)
    template = _REFERENCE.sub(lambda match: f"{{{name_of(int(match[1]) - 1)}}}", text)
    dependencies = tuple(map(name_of, indices))
    # Some hops are questions, others have the form ``subject >> relation``.
    subject, divided, relation = filled.partition(_RELATION)
    if not divided:
        fact = f"{filled[:1].upper()}{filled[1:]}: {hop.answer.rstrip('.')}."
        return Step(template, filled, hop.answer, fact, dependencies)
    planned_subject, _, planned_relation = template.partition(_RELATION)
    planned = planned_subject.strip(), planned_relation
    return relation_step(subject.strip(), relation, hop.answer, planned, dependencies)


def _names_more(row: MusiqueRow, hop: str) -> bool:
    """Return True if a hop without dependencies has a name or a number that is not in the question.

    Many hops have no capital letters, so a word counts as a name if the row's paragraphs never write it in lower case.
    """
    subject, divided, _ = hop.partition(_RELATION)
    if divided:
        return not contains_name(row.question, subject)
    texts = [paragraph.text for paragraph in row.paragraphs]
    all_words = {word for text in texts for word in re.findall(r"[^\W_]+", text)}
    small = {word for word in all_words if word.islower()}
    large = {word.casefold() for word in all_words if word[:1].isupper()} - small
    question_words = set(words(row.question))
    return any(
        word not in question_words and (word in large or any(sign.isdigit() for sign in word))
        for word in words(hop)
    )


CHAINS = ("compositional", "inference")
COMPARISONS = ("comparison", "bridge_comparison")
OTHER_ANSWER = "the answer is not what the facts come to"
UNCLEAR = "it can't be told how the facts are compared"
_YEAR = re.compile(r"\b\d{3,4}\b")
_DAY = re.compile(r"\b\d{1,2}\b")
_EARLIER = {"first", "earlier", "older", "earliest", "oldest"}
_LATER = {"later", "younger", "recently", "recent", "last", "latest", "youngest"}
_MONTHS = split_words(
    "january february march april may june july august september october november december"
)


def trace_of_2wiki(row: TwoWikiRow) -> Trace:
    if not row.evidences:
        raise NoTrace("it has no evidences")
    if row.type not in (*CHAINS, *COMPARISONS):
        raise NoTrace("its type is none that is known")
    steps: list[Step] = []
    roots: list[str] = []
    for number, fact in enumerate(row.evidences):
        # A fact follows an earlier one whose result is its subject; else the question must name it.
        previous = _before(fact, steps)
        dependencies: tuple[str, ...] = ()
        if previous is not None:
            dependencies, root, subject = (
                (name_of(previous),),
                roots[previous],
                steps[previous].result,
            )
        elif number and row.type in CHAINS:
            raise NoTrace("a fact does not follow from the one before it")
        else:
            subject = root = _name_in_question(row, number)
        planned = f"{{{dependencies[0]}}}" if dependencies else subject
        result, relation = fact.object, fact.relation
        steps.append(relation_step(subject, relation, result, (planned, relation), dependencies))
        roots.append(root)
    compare = row.type in COMPARISONS
    if compare:
        _check_comparison(row, steps, roots)
    elif not is_same_name(row.answer, steps[-1].result):
        raise NoTrace(OTHER_ANSWER)
    return make_trace(row.question, row.answer, steps, compare=compare)


def _before(fact: Evidence, steps: Sequence[Step]) -> int | None:
    """Return the index of the step whose result is the fact's subject, preferably of one without dependents."""
    candidates, free = (
        places_of(fact.subject, [step.result for step in steps]),
        without_dependents(steps),
    )
    return next((index for index in candidates if index in free), next(iter(candidates), None))


def _name_in_question(row: TwoWikiRow, number: int) -> str:
    """Return the question's spelling of the subject of a fact, or of the title of its page."""
    subject = row.evidences[number].subject
    titles = list(dict.fromkeys(fact.title for fact in row.supporting_facts))
    # Without a similar title, take the page at the fact's position if their numbers agree.
    in_order = [number] if len(titles) == len(row.evidences) else []
    title = next((titles[index] for index in (*places_of(subject, titles), *in_order)), "")
    names = (title, subject, bare(title), bare(subject))
    if name := next(
        filter(None, (spelling_in(row.question, candidate) for candidate in names)), ""
    ):
        return name
    raise NoTrace("the question does not name what a fact is about")


def _check_comparison(row: TwoWikiRow, steps: Sequence[Step], roots: Sequence[str]) -> None:
    """Raise :class:`NoTrace` if the answer does not follow from the facts."""
    final_indices = without_dependents(steps)
    results = [steps[index].result for index in final_indices]
    # The compared facts must be about different entities of the question.
    if (
        len(set(map(words, (roots[index] for index in final_indices)))) < len(final_indices)
        or len(final_indices) < 2
    ):
        raise NoTrace(UNCLEAR)
    if is_yes_or_no(row.answer):
        # With equal results the answer can't be no. Different results may still mean the same.
        if len(set(map(words, results))) == 1 and words(row.answer) == ("no",):
            raise NoTrace(OTHER_ANSWER)
        return
    chosen = places_of(row.answer, [roots[index] for index in final_indices])
    if len(chosen) != 1:
        raise NoTrace(OTHER_ANSWER)
    # Words of the names, such as "Last" in a title, say nothing about the comparison.
    asks = set(words(row.question)) - {word for root in roots for word in words(root)}
    earlier, later = bool(asks & _EARLIER), bool(asks & _LATER)
    dates = _dates(results)
    if not dates or earlier == later:
        raise NoTrace(UNCLEAR)
    best = min(dates) if earlier else max(dates)
    if dates.count(best) != 1:
        raise NoTrace(UNCLEAR)
    if dates[chosen[0]] != best:
        raise NoTrace(OTHER_ANSWER)


def _dates(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return dates with the precision of the least precise one, or [] if a text has no date."""
    dates = list(map(_date, texts))
    exact = min(map(len, dates))
    return [date[:exact] for date in dates] if exact else []


def _date(text: str) -> tuple[int, ...]:
    """Return the year, and month and day if known; () without a year."""
    year = _YEAR.search(text)
    if year is None or "BC" in text:
        return ()
    month = next((_MONTHS.index(word) for word in words(text) if word in _MONTHS), None)
    # Without the year, a number of one or two digits is the day.
    day = _DAY.search(text.replace(year[0], ""))
    parts = [int(year[0])]
    if month is not None:
        parts += [month, *([int(day[0])] if day else [])]
    return tuple(parts)


def trace_of(row: QuestionRow) -> Trace:
    """Return the trace of a row. Raise :class:`NoTrace` with a reason without a sound trace."""
    match row:
        case TwoWikiRow():
            return trace_of_2wiki(row)
        case HotpotRow():
            return trace_of_hotpot(row)
        case MusiqueRow():
            return trace_of_musique(row)
    raise NoTrace("rows of this kind do not tell what is to be searched")
