"""The ``encyclopedia`` micro-world: questions over invented entries that a real retriever finds.

    When was the first of Ada Vell, Olga Quist, Rolf Birk born?    three entries, in any order
    Where does the mayor of Upper Tarn live?                       the town's entry, then its mayor's

A name has two words, each a single token of the tiny tokenizer (checked by ``scripts/tiny/encyclopedia.py``). Names
share words, so a search also returns irrelevant entries. A hash of an entity's name decides its split, and facts relate
only entities of the same split. The search covers one encyclopedia with the entries of all splits.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from zlib import crc32

from coterie.config.folders import home
from coterie.config.settings import MOST_SEED, Settings, key
from coterie.datasets.catalogue import Split
from coterie.datasets.load import write_passages
from coterie.datasets.rows import QuestionRow
from coterie.environments.qa_metrics import TEACHER, grader_secret
from coterie.environments.settings import (
    SPLIT_SHARES,
    MicroSplit,
    distinct,
    series,
    split_of_key,
    split_random,
    split_words,
)
from coterie.environments.workflow.agent import Workflow, WorkflowSettings
from coterie.environments.workflow.expert import has_passages
from coterie.environments.workflow.plan_graph import Plan, Query, Trace
from coterie.environments.workflow.plan_graph import Task as PlanTask
from coterie.record.tree import Task
from coterie.record.turn import digest
from coterie.tools.calls import Function
from coterie.tools.search import RetrieverSettings, RetrieverTool

Kind = Literal["person", "town", "firm"]
Scale = Literal["year", "number"]


_FIRSTS = split_words(
    "Ada Bram Cleo Dov Edda Finn Gerda Hedy Ilse Jory Kasia Leif Mavis Nils Olga Piet Quin Rolf Signe Tove Ulla Vito "
    "Wanda Ximo Yola Zeno Anouk Bodo Cosima Drago Elke Falk Gitta Hektor Ingo Jutta Knut Lotte Malte Nadja Oskar "
    "Petra Ragna Silas Thea Ugo Vera Wim Xenia Ylva Zora Arne Britt Corin Dagny Emeric Frida Gustav Helga Ivar Jelka "
    "Klaas Ludek Mirza"
)
_LASTS = split_words(
    "Vell Quill Dorn Hask Lund Pryce Tamm Brandt Corvo Dahl Erhart Fenn Galt Hobb Isley Jarre Keel Lorne Mott Nagel "
    "Orme Pell Quist Rusk Stroud Thorn Umber Voss Wick Yarrow Zell Ambler Bexley Crane Draper Eames Frost Grimm Hale "
    "Ibsen Jost Kerr Lisle Marsh Nye Oakes Pike Quade Rigby Sloan Teague Usher Vance Wray Yates Zahn Arden Birk Cobb "
    "Dunne Ekman Foss Gable Holt"
)
_SIDES = split_words("Upper Lower Old New Great Little East West North South Long High Dry Green")
_PLACES = split_words(
    "Tarn Moor Ford Glen Harbour Ridge Mill Abbey Bridge Castle Dale Haven Kirk Lea Marsh Oak Pool Quay Rock Stow "
    "Thorpe Vale Weir Wold Barrow Combe Down Fell Grove Heath Isle Knoll Meadow Nook Pass Reach"
)
_TRADES = split_words("Bank Mills Press Motors Mining Foods Timber Glass Lines Steel Tools Cloth")

NAMES: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "person": (_FIRSTS, _LASTS),
    "town": (_SIDES, _PLACES),
    "firm": (_LASTS[:40], _TRADES),  # 480 names, for 400 firms
}
"""First and second words of names, by kind. Firms are named after people."""
VALUES: dict[str, tuple[str, ...]] = {
    "year": tuple(map(str, range(1921, 1951))),
    "number": tuple(f"{hundreds}00" for hundreds in range(21, 51)),
}
"""Values of each scale, from the least to the greatest."""


class Relation(NamedTuple):
    """A relation in an entry. In templates ``{s}`` is the entity and ``{v}`` the value."""

    name: str
    of: Kind
    to: Kind | Scale
    sentence: str
    question: str
    extremes: tuple[str, ...] = ()
    """Words for the least and the greatest of several comparable values."""

    @property
    def query(self) -> str:
        """Template of the expert's search: ``mayor of {s}``."""
        return f"{self.name} of {{s}}"

    @property
    def phrase(self) -> str:
        """Template that stands for the value in a longer question: ``the mayor of {s}``; "" for a year or number."""
        return f"the {self.query}" if self.to in NAMES else ""

    @property
    def comparisons(self) -> tuple[str, ...]:
        """Templates of questions for the least and the greatest of several values, which ``{s}`` lists."""
        return tuple(self.question.format(s=f"the {extreme} of {{s}}") for extreme in self.extremes)


FIRST_LAST = ("first", "last")
SIZES = ("smallest", "largest")
RELATIONS = (
    Relation("birth", "person", "year", "{s} was born in {v}.", "When was {s} born?", FIRST_LAST),
    Relation("home", "person", "town", "{s} lives in {v}.", "Where does {s} live?"),
    Relation("size", "town", "number", "{s} has {v} people.", "How many people has {s}?", SIZES),
    Relation("mayor", "town", "person", "The mayor of {s} is {v}.", "Who is the mayor of {s}?"),
    Relation(
        "founding", "firm", "year", "{s} was founded in {v}.", "When was {s} founded?", FIRST_LAST
    ),
    Relation("seat", "firm", "town", "{s} has its seat in {v}.", "Where is the seat of {s}?"),
    Relation("head", "firm", "person", "The head of {s} is {v}.", "Who is the head of {s}?"),
)
BY_NAME = {relation.name: relation for relation in RELATIONS}
OF_KIND: dict[Kind, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS if relation.of == kind) for kind in NAMES
}
COMPARED = tuple(relation for relation in RELATIONS if relation.extremes)


def paths(hops: int) -> tuple[tuple[Relation, ...], ...]:
    """Return all chains of ``hops`` relations, each of which begins at the kind of entity where the last one ends."""
    chains: list[tuple[Relation, ...]] = [(relation,) for relation in RELATIONS]
    for _ in range(hops - 1):
        chains = [
            (*path, relation)
            for path in chains
            for relation in RELATIONS
            if relation.of == path[-1].to
        ]
    return tuple(chains)


ENTRIES: Mapping[Kind, int] = MappingProxyType({"person": 2600, "town": 400, "firm": 400})
"""Number of entries by kind."""
SPLITS: tuple[MicroSplit, ...] = tuple(SPLIT_SHARES)
ByKind = Mapping[tuple[MicroSplit, str], tuple[str, ...]]
"""Names of entities by split and kind."""


class Fact(NamedTuple):
    """A fact about an entity."""

    subject: str
    relation: str
    value: str

    @property
    def text(self) -> str:
        return BY_NAME[self.relation].sentence.format(s=self.subject, v=self.value)

    @property
    def query(self) -> str:
        return BY_NAME[self.relation].query.format(s=self.subject)


class Entry(NamedTuple):
    """The entry of an entity."""

    name: str
    kind: Kind
    facts: tuple[Fact, ...]

    @property
    def split(self) -> MicroSplit:
        return split_of_key(self.name)

    @property
    def text(self) -> str:
        return " ".join(fact.text for fact in self.facts)


@dataclass(frozen=True, eq=False)
class Encyclopedia:
    """All entries, in the order of the search index."""

    entries: tuple[Entry, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    def fact(self, subject: str, relation: str) -> Fact:
        return next(fact for fact in self.by_name[subject].facts if fact.relation == relation)

    @cached_property
    def names(self) -> ByKind:
        return _by_split((entry.name, entry.kind) for entry in self.entries)

    def passages(self) -> Iterator[tuple[str, str]]:
        for entry in self.entries:
            yield entry.name, entry.text

    def write(self, file: Path) -> int:
        """Write a new JSONL file for ``coterie data index``. Return the number of passages."""
        return write_passages(self.passages(), file)


def make_encyclopedia(
    seed: int, counts: Mapping[Kind, int] = ENTRIES, splits: Sequence[MicroSplit] = SPLITS
) -> Encyclopedia:
    # The sizes are part of the seed: an encyclopedia of another size is another world.
    rng = random.Random(f"encyclopedia/{seed}/{sorted(counts.items())}/{sorted(splits)}")
    names = [(name, kind) for kind in NAMES for name in _names(kind, counts[kind], splits, rng)]
    groups = _by_split(names)
    entries = [Entry(name, kind, _facts(name, kind, groups, rng)) for name, kind in names]
    # Kinds and splits are mixed in the search index.
    rng.shuffle(entries)
    return Encyclopedia(tuple(entries))


def _by_split(names: Iterable[tuple[str, Kind]]) -> ByKind:
    groups: dict[tuple[MicroSplit, str], list[str]] = {key: [] for key in product(SPLITS, NAMES)}
    for name, kind in names:
        groups[split_of_key(name), kind].append(name)
    return {key: tuple(row) for key, row in groups.items()}


def _names(
    kind: Kind, count: int, splits: Sequence[MicroSplit], rng: random.Random
) -> tuple[str, ...]:
    every = [" ".join(pair) for pair in product(*NAMES[kind])]
    return tuple(rng.sample([name for name in every if split_of_key(name) in splits], count))


def _facts(name: str, kind: Kind, names: ByKind, rng: random.Random) -> tuple[Fact, ...]:
    split = split_of_key(name)
    return tuple(
        # Values are entities of the same split, so training never shows held-out facts.
        Fact(name, relation.name, rng.choice(VALUES.get(relation.to) or names[split, relation.to]))
        for relation in OF_KIND[kind]
    )


QuestionKind = Literal["compare", "chain"]
COMPARED_ENTITIES = (2, 3, 4)
HOPS = (2, 2, 2, 3)
"""Numbers of facts in a chain; each entry is equally likely."""
PATHS = {hops: paths(hops) for hops in (1, *HOPS)}


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the facts that its answer depends on."""

    question_id: str
    kind: QuestionKind
    facts: tuple[Fact, ...]
    """The compared facts in the order of the question, or the facts of a chain from its beginning."""
    greatest: bool = False

    @property
    def answer(self) -> str:
        """Gold answer: the least or greatest value of a comparison, or the last value of a chain."""
        if self.kind == "chain":
            return self.facts[-1].value
        choose = max if self.greatest else min
        return choose(self.facts, key=rank).value

    @property
    def conclusion(self) -> str:
        """Sentence with the values of a comparison and the answer; "" for a chain."""
        if self.kind == "chain":
            return ""
        return f"{comparing(self.facts, greatest=self.greatest)}{self.answer}."

    @property
    def text(self) -> str:
        if self.kind == "compare":
            compared = ", ".join(fact.subject for fact in self.facts)
            relation = BY_NAME[self.facts[0].relation]
            return relation.comparisons[self.greatest].format(s=compared)
        # Phrases are nested from the first fact on: the mayor of (the seat of X).
        *links, last_fact = self.facts
        subject = self.facts[0].subject
        for fact in links:
            subject = BY_NAME[fact.relation].phrase.format(s=subject)
        return BY_NAME[last_fact.relation].question.format(s=subject)


def comparing(facts: Iterable[Fact], *, greatest: bool) -> str:
    """Return the text before the answer in the conclusion of a comparison."""
    values = ", ".join(f"{fact.value} ({fact.subject})" for fact in facts)
    return f"Of {values} the {'greatest' if greatest else 'least'} is "


def canonical_key(question: Question) -> str:
    """Return the identity of a question: its kind and its facts, in any order for a comparison."""
    facts = [f"{fact.subject}|{fact.relation}|{fact.value}" for fact in question.facts]
    if question.kind == "compare":
        facts.sort()
    return ";".join((question.kind, str(question.greatest), *facts))


@series
def generate(
    split: MicroSplit,
    seed: int,
    encyclopedia: Encyclopedia,
    kinds: tuple[QuestionKind, ...] = ("compare", "chain"),
    compared: tuple[int, ...] = COMPARED_ENTITIES,
    hops: tuple[int, ...] = HOPS,
) -> Iterator[Question]:
    """Yield the questions of a split, with alternating kinds. Raise ``UserError`` if there are no more."""
    rng = split_random(split, f"encyclopedia/questions/{split}/{seed}/{kinds}/{compared}/{hops}")

    def draw(number: int) -> Question | None:
        name, kind = f"{split}-{seed}-{number}", kinds[number % len(kinds)]
        if kind == "compare":
            size, relation = rng.choice(compared), rng.choice(COMPARED)
            subjects = rng.sample(encyclopedia.names[split, relation.of], size)
            facts = [encyclopedia.fact(subject, relation.name) for subject in subjects]
            question = Question(name, "compare", tuple(facts), greatest=rng.random() < 0.5)
        else:
            path, facts = rng.choice(PATHS[rng.choice(hops)]), []
            subject = rng.choice(encyclopedia.names[split, path[0].of])
            for relation in path:
                facts.append(encyclopedia.fact(subject, relation.name))
                subject = facts[-1].value
            question = Question(name, "chain", tuple(facts))
        # An ambiguous question is drawn again.
        return question if _fair(question) else None

    return distinct(split, draw, canonical_key)


def _fair(question: Question) -> bool:
    """Return True if compared values differ, or a chain visits no entity twice."""
    values = [fact.value for fact in question.facts]
    if question.kind == "chain":
        # The entity where the chain begins counts as visited.
        values.append(question.facts[0].subject)
    return len(set(values)) == len(values)


def rank(fact: Fact) -> int:
    """Return the position of a fact's value on its scale."""
    return VALUES[BY_NAME[fact.relation].to].index(fact.value)


PROMPT = "Search, then answer."
"""Short system prompt that the packaged model knows."""

COMPARISONS_PER_CONCLUSION = 4
"""Of this number of comparisons, the expert first lists the values in one. Otherwise it answers directly, like many
traces of teachers, so that training has to discover the helpful step."""


def expert_trace(question: Question) -> Trace:
    """Return the trace of an expert: one level for all facts of a comparison, one level for each fact of a chain."""
    queries = tuple(
        Query(f"T{number}", fact.query, fact.text) for number, fact in enumerate(question.facts, 1)
    )
    tasks = [PlanTask(query.task, query.text) for query in queries]
    levels: tuple[tuple[Query, ...], ...] = (queries,)
    if question.kind == "chain":
        levels = tuple((query,) for query in queries)
        # Each later task of a chain asks about the result of the task before it.
        for number, fact in enumerate(question.facts[1:], 1):
            previous = f"T{number}"
            text = f"{fact.relation} of {{{previous}}}"
            tasks[number] = PlanTask(f"T{number + 1}", text, (previous,))
    # A hash of the question decides, so the trace is the same in every run.
    has_conclusion = crc32(question.text.encode()) % COMPARISONS_PER_CONCLUSION == 0
    conclusion = question.conclusion if has_conclusion else ""
    return Trace(Plan(tuple(tasks)), levels, question.answer, conclusion=conclusion)


class EncyclopediaSearchSettings(Settings):
    """Settings of the encyclopedia search."""

    seed: int = key(0, "Seed of the encyclopedia.", ge=0, le=MOST_SEED)
    topk: int = key(2, "Number of entries per query; the packaged model was trained with 2.", ge=1)
    delay: float = key(0.0, "Minimum seconds per call, to simulate a remote search.", ge=0)


class EncyclopediaSearch(RetrieverTool):
    """A source of the tool ``wiki_search``."""

    settings_type = EncyclopediaSearchSettings  # type: ignore[assignment]

    def __init__(self, settings: EncyclopediaSearchSettings) -> None:
        corpus = str(_corpus(settings.seed))
        super().__init__(RetrieverSettings(topk=settings.topk, corpus=corpus))
        self.delay = settings.delay

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Mapping[str, Function]]:
        async with super().open() as functions:
            yield {name: self._delayed(do) for name, do in functions.items()}

    def _delayed(self, do: Function) -> Function:
        async def later(arguments: Mapping[str, Any]) -> str:
            began = time.monotonic()
            result = await do(arguments)
            # The delay is a minimum, so a slow search is not delayed further.
            await asyncio.sleep(max(0.0, self.delay - (time.monotonic() - began)))
            return result

        return later


def _corpus(seed: int) -> Path:
    encyclopedia = make_encyclopedia(seed)
    folder = home() / "encyclopedias"
    # The content is part of the name, so an encyclopedia of changed code gets a new file.
    file = folder / f"{digest(seed, list(encyclopedia.passages()))[:16]}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        encyclopedia.write(file)
    return file


class EncyclopediaSettings(WorkflowSettings):
    """Settings of the micro-world."""

    world: int = key(0, "Seed of the encyclopedia.", ge=0, le=MOST_SEED)
    kinds: tuple[QuestionKind, ...] = key(
        ("compare", "chain"), "Kinds of questions, in turn.", min_length=1
    )


class EncyclopediaQuestions(Workflow):
    """Questions about invented entries: by default half compare entities, and half are chains."""

    kind = "mhqa"
    settings_type = EncyclopediaSettings
    # The tasks are generated, so no data set is read.
    row_types: tuple[type[QuestionRow], ...] = ()

    def __init__(self, settings: EncyclopediaSettings | None = None) -> None:
        settings_or_default = settings or EncyclopediaSettings()
        self._configure(settings_or_default, "encyclopedia")
        self.world, self.kinds = settings_or_default.world, settings_or_default.kinds
        self._questions: dict[str, Question] = {}
        """Questions by task id, which :meth:`tasks` notes for :meth:`trace` and :meth:`grounded`."""

    @cached_property
    def encyclopedia(self) -> Encyclopedia:
        return make_encyclopedia(self.world)

    def tasks(
        self, split: Split, count: int, seed: int, previous_counts: Sequence[int] = ()
    ) -> list[Task]:
        tasks = []
        for _, question in generate(split, seed, self.encyclopedia, self.kinds).draw(
            split, count, previous_counts
        ):
            name = f"encyclopedia-{question.question_id}"
            public = {"question": question.text, "type": question.kind}
            tasks.append(Task(name, public, grader_secret("answer", question.answer, TEACHER)))
            self._questions[name] = question
        return tasks

    @property
    def terse(self) -> bool:
        return True  # the tiny model knows the format

    def instructions(self) -> str:
        return PROMPT

    def trace(self, task: Task) -> Trace:
        """Return the expert's trace of a task that :meth:`tasks` has returned."""
        return expert_trace(self.question(task))

    def question(self, task: Task) -> Question:
        """Return the question of a task that :meth:`tasks` has returned, with its facts."""
        return self._questions[task.id]

    def grounded(self, task: Task, results: Sequence[str]) -> bool:
        """Return True if the results of searches have the entries of all facts of a task."""
        return has_passages(results, [fact.subject for fact in self.question(task).facts])
