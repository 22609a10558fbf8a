"""Curriculum of ``tiny-encyclopedia``.

It learns to search for one entity, to read what is found, to repeat a fact and to compare values. Whole trajectories,
in which it searches several times, are a small share of what it sees, in both forms (``traces``) equally often:
which form to keep to, and how to go on over several searches, is left to post-training.

Entries are those of small encyclopedias of the split ``corpus``, a new one for each block of rows, and are found by
BM25 as in play.
"""

import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import MappingProxyType

from transformers import PreTrainedTokenizerFast

from coterie.environments.workflow.encyclopedia import (
    COMPARED,
    NAMES,
    PROMPT,
    RELATIONS,
    VALUES,
    Encyclopedia,
    Kind,
    Question,
    QuestionKind,
    comparing,
    expert_trace,
    generate,
    make_encyclopedia,
    rank,
)
from coterie.environments.workflow.plan_graph import SEPARATOR, TraceForm
from coterie.record.rows import Row, Target
from coterie.record.turn import ToolResult, call_id
from coterie.tools.calls import Tag, Tags
from coterie.tools.retrieval import Retriever, build_index
from coterie.tools.search import format_passages
from scripts.tiny.world import END, OPENERS, World, answer_row, chat_row, copy_row, split_by

TOOL = "wiki_search"
TAGS = Tags({TOOL: Tag("query", SEPARATOR)}, inline=True)
TOPK = 2
"""Passages of a query."""
COUNTS: Mapping[Kind, int] = MappingProxyType({"person": 400, "town": 80, "firm": 80})
"""Entries of a block's encyclopedia."""
BLOCK = 500
"""Rows of a block."""
WORLDS = 60
"""Encyclopedias of drills."""
MOST_ORDERED = 6
"""Values of a drill."""
FORMS: tuple[TraceForm, TraceForm] = ("parallel", "sequential")
OF_GIVEN = (3, 1)
"""How often a comparison of which only the end is learned has each form: to tell four facts at once takes practice."""


@dataclass(frozen=True)
class Stage:
    """One part of the curriculum: what share of rows is of which sort. The rest are whole trajectories."""

    lookups: float
    """Questions that take one search."""
    given: float
    """Comparisons of which only the end is learned, when all is found: its values, and the answer."""
    drilled: float
    """Drills of ordering values, without which that skill is forgotten again."""
    compared: tuple[int, ...] = (2,)
    """How many are compared in ``given``, each entry equally often drawn."""
    told: bool = True
    """Whether those always put the values beside each other; else as often as an expert does."""


STAGES = ((0.2, Stage(0.35, 0.3, 0.2)), (0.5, Stage(0.1, 0.5, 0.2, (2, 3, 4))))
"""First the skills, after the drills."""
HABITS = Stage(0.15, 0.35, 0.15, (2, 3, 4), told=False)
"""Then more trajectories with them, as experts write them."""

_FIXED = (
    *("<think>", "</think>\n", "<plan>\n", "</plan>\n", f"<{TOOL}>", f"</{TOOL}>", "<answer>"),
    *(
        "</answer>",
        "<observation>\n",
        "\n</observation>\n",
        SEPARATOR,
        '")\n',
        PROMPT,
        "Question: ",
    ),
    *(". ", ".", ", ", "So I know the answer.", "I search for the first fact."),
    *(
        "I search for the next fact.",
        "Of ",
        " (",
        "), ",
        ") the least is ",
        ") the greatest is ",
        "). ",
    ),
)
_MADE = (
    r'(?:\n\n)?Doc \d \(Title: "',
    r"This takes (?:one task|\d tasks) in (?:one level|\d levels)\.",
    r"Next: T\d(?:, T\d)*\.",
    r"\n- Dependencies: (?:none|T\d)\n",
    r"T\d: ",
    r"\{T\d\}",
)
"""Kinds of pieces, of which each text is one."""


_REST = (r" ?[A-Za-z]+", r"\d+", r" ?[^A-Za-z\d\s]+", r"\s+")


def words() -> tuple[str, ...]:
    """Return all words of names and all values as they occur in text: second words with a leading space."""
    firsts = [word for first, _ in NAMES.values() for word in first]
    seconds = [f" {word}" for _, second in NAMES.values() for word in second]
    return tuple(
        dict.fromkeys([*firsts, *seconds, *(one for row in VALUES.values() for one in row)])
    )


def _chunks() -> list[str]:
    """What stands around names and values in the templates, longest first."""
    found: dict[str, None] = dict.fromkeys(_FIXED)
    for one in RELATIONS:
        for template in (one.sentence, one.question, one.phrase, one.query, *one.comparisons):
            found |= dict.fromkeys(re.split(r"\{[sv]\}", template))
    found |= {f"{one} ": None for one in found if one.endswith("people.")}
    return sorted(filter(None, found), key=len, reverse=True)


def _texts(seed: int) -> Iterator[str]:
    """Yield the texts of trajectories, and often enough what must be a piece."""
    with tempfile.TemporaryDirectory() as folder:
        block = Block(Path(folder), seed)
        for question in block.questions(BLOCK, ("compare", "chain")):
            yield f"Question: {question.text}"
            for form in FORMS:
                yield from block.said(question, form)
    yield from (one for one in _whole() for _ in range(200))


def _whole() -> list[str]:
    return [*_chunks(), *words()]


class Block:
    """A small encyclopedia of the split ``corpus`` that can be searched; its index lies in a folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.encyclopedia: Encyclopedia = make_encyclopedia(seed, COUNTS, ("corpus",))
        self.encyclopedia.write(folder / "passages.jsonl")
        build_index(folder / "passages.jsonl", folder / "index")
        self._retriever = Retriever(folder / "index")

    def questions(
        self,
        count: int,
        kinds: tuple[QuestionKind, ...],
        compared: tuple[int, ...] = (2, 3, 4),
        hops: tuple[int, ...] = (2, 2, 2, 3),
    ) -> list[Question]:
        """Questions over its entries."""
        return generate("corpus", self.seed, self.encyclopedia, kinds, compared, hops)[:count]

    def said(self, question: Question, form: TraceForm, conclusion: str = "") -> list[str]:
        """An expert's messages, and between them what it is shown, as play shows it.

        A ``conclusion`` is said in the last message, whether the expert says it or not.
        """
        trace = expert_trace(question)
        trace = replace(trace, conclusion=conclusion or trace.conclusion)
        found: list[str] = []
        for message, queries in zip(trace.messages(form), [*trace.rounds(form), ()], strict=True):
            found.append(message)
            if queries:
                found.append(self._observed([one.text for one in queries]))
        return found

    def _observed(self, queries: Sequence[str]) -> str:
        found = self._retriever.search(queries, TOPK)
        return TAGS.show(
            [
                ToolResult(call_id(place), format_passages([passage for passage, _ in hits]))
                for place, hits in enumerate(found)
            ]
        )


def trace_row(
    tokenizer: PreTrainedTokenizerFast,
    question: Question,
    said: Sequence[str],
    *,
    ending: bool = False,
) -> Row:
    """A trajectory as an agent is shown it, in one turn: its messages as targets, or the last of them alone."""
    row = chat_row(tokenizer, [("system", PROMPT), ("user", f"Question: {question.text}")], "", "")
    ids = [*row.ids, *tokenizer.encode(OPENERS["assistant"], add_special_tokens=False)]
    targets: list[Target] = []
    for place, text in enumerate(said):
        start = len(ids)
        ids += tokenizer.encode(text, add_special_tokens=False)
        if place % 2 == 0 and (not ending or place == len(said) - 1):
            targets.append(Target(start, len(ids), "script:encyclopedia"))
    ids.append(tokenizer.convert_tokens_to_ids(END))
    last = targets.pop()
    targets.append(Target(last.start, len(ids), last.writer))
    return Row(tuple(ids), tuple(targets), origin=question.question_id)


def _block_rows(
    tokenizer: PreTrainedTokenizerFast, stage: Stage, block: Block, rng: random.Random
) -> Iterator[Row]:
    lookups = iter(block.questions(BLOCK, ("chain",), hops=(1,)))
    compared = iter(block.questions(BLOCK, ("compare",), stage.compared))
    whole = iter(block.questions(BLOCK, ("compare", "chain")))
    for _ in range(BLOCK):
        drawn, form = rng.random(), rng.choice(FORMS)
        if drawn < stage.lookups:
            question = next(lookups)
            yield trace_row(tokenizer, question, block.said(question, "sequential"))
        elif drawn < stage.lookups + stage.given:
            question = next(compared)
            form = rng.choices(FORMS, OF_GIVEN)[0]
            said = block.said(question, form, question.conclusion if stage.told else "")
            yield trace_row(tokenizer, question, said, ending=True)
        elif drawn < stage.lookups + stage.given + stage.drilled:
            yield order_drill(tokenizer, rng)
        else:
            question = next(whole)
            yield trace_row(tokenizer, question, block.said(question, form))


def copy_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Copy names and values."""
    drawn = rng.sample(words(), rng.randint(5, 24))
    return copy_row(tokenizer, "".join(drawn))


def fact_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Repeat the facts of entries in another order: the quickest way to learn to look one up."""
    entries = rng.sample(_small(rng.randrange(WORLDS)).entries, rng.randint(2, 6))
    facts = [fact.text for entry in entries for fact in entry.facts]
    told, again = (f"{' '.join(row)} " for row in (facts, rng.sample(facts, len(facts))))
    return answer_row(tokenizer, told, again)


def order_drill(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Row:
    """Order values as a question asks: the quickest way to learn to compare."""
    relation, world = rng.choice(COMPARED), _small(rng.randrange(WORLDS))
    subjects = rng.sample(world.names["corpus", relation.of], rng.randint(2, MOST_ORDERED))
    drawn = {fact.value: fact for fact in (world.fact(one, relation.name) for one in subjects)}
    facts, greatest = tuple(drawn.values()), rng.random() < 0.5
    ordered = ", ".join(fact.value for fact in sorted(facts, key=rank, reverse=greatest))
    return answer_row(tokenizer, comparing(facts, greatest=greatest), f"{ordered}. ")


@cache
def _small(seed: int) -> Encyclopedia:
    return make_encyclopedia(seed, COUNTS, ("corpus",))


def groups(tokenizer: PreTrainedTokenizerFast, stage: Stage, seed: int) -> Iterator[Sequence[Row]]:
    """Yield single rows, a new encyclopedia for each block."""
    rng = random.Random(f"encyclopedia/stage/{seed}")
    for number in count(1):
        with tempfile.TemporaryDirectory() as folder:
            for row in _block_rows(tokenizer, stage, Block(Path(folder), seed + number), rng):
                yield [row]


WORLD = World(
    drill_rng="encyclopedia/drills",
    texts=_texts,
    pieces=split_by("|".join((*_MADE, *map(re.escape, _chunks()), *_REST))),
    whole=_whole,
    groups=groups,
    drills=((0.08, copy_drill), (0.07, fact_drill), (0.15, order_drill)),
    stages=STAGES,
    habits=(0.2, HABITS),
    tokens=3_600_000,
)
