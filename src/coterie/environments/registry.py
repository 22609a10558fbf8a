"""Environments by the name of their data set, and where its rows are read from."""

import hashlib

from coterie.config.folders import expanded
from coterie.config.settings import Settings, key
from coterie.datasets.local import checksum
from coterie.environments.agents import NAMES as AGENTS
from coterie.environments.coding import Coding
from coterie.environments.colbench import BackendProgramming
from coterie.environments.debate import ARITHMETIC, CHOICE, MATHEMATICS, Debate
from coterie.environments.exchange.environment import Exchange
from coterie.environments.format_pool import read_pool
from coterie.environments.formats import DEBATE_FORMATS, EXCHANGE_FORMATS
from coterie.environments.information_exchange import Context, InformationExchange
from coterie.environments.persona.environment import Persona
from coterie.environments.talk import Talk
from coterie.errors import UserError, did_you_mean
from coterie.tools.sandbox.results import Mode

EXCHANGES = ("hotpot_qa", "2wiki", "trivia_qa", "cbt")
"""Data sets with a context to deal out."""
SUBJECTS = {
    "gsm8k": (ARITHMETIC, ()),
    "math": (MATHEMATICS, ()),
    "arc_c": (CHOICE, DEBATE_FORMATS),
    "mmlu": (CHOICE, DEBATE_FORMATS),
}
"""Data sets to debate on: how, and the packaged pool of formats."""
QUESTIONS = ("exchange", *EXCHANGES, *SUBJECTS)
"""Environments of questions."""
CODING = ("persona", "colbench_code")
"""Data sets of functions that a person wants written."""
NAMES = (*QUESTIONS, *CODING)
GENERATED = ("exchange", "persona")
"""Environments whose tasks a seed makes."""


class DataSettings(Settings):
    """Where the rows of a data set come from, what of them is shown, and to how many agents."""

    source: str = key(
        "prepared",
        "`prepared` (by `coterie data`), `sample` (the rows that ship with coterie), or a folder "
        "with train.jsonl and heldout.jsonl. Generated environments need none.",
    )
    context: Context = key(
        "paragraph",
        "Of each paragraph of the context: all, or its first sentence only.",
        source="Optima's code: first_sentence (the supporting sentence is then often lost)",
    )
    agents: int = key(
        2,
        "Agents that talk: 2, or 3 (a context is dealt to three; a debate has a second critic). "
        "`exchange` has 2.",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int | None = key(
        None,
        "Most turns of a dialogue: of all agents, or with a person of the agent. The default is the environment's own: "
        "10, in `persona` 5, in `exchange` 8.",
        source="Optima: 10; ColBench: 10",
        ge=1,
    )
    grading: Mode = key(
        "module",
        "Of code: `module` runs it as a module; `legacy` as SWEET-RL's grader does, where answers with helpers, "
        "imports at the top or recursion fail: for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    tolerance: float = key(
        0.0, "Of code: two floats are equal that differ by no more, relatively; 0 is exact.", ge=0
    )
    strict: bool = key(
        False,
        "Of code: results must have the right types too. Else 1, 1.0 and True are equal, and an iterator is the list "
        "of what it yields.",
        source="SWEET-RL's code: Python's ==",
    )
    format_pool_file: str | None = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool; `coterie data prompt-pool` "
        "makes one. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )


def content(name: str, data: DataSettings) -> str:
    """A hash of what a data set's tasks and formats are made of.

    Empty for a generated environment, whose rows its seed makes. It is that of the rows alone where there are
    two agents and the packaged pool.
    """
    rows = "" if name in GENERATED else checksum(name, data.source)
    more = [] if data.agents == 2 else [f"{data.agents} agents"]
    if name in CODING and (data.grading != "module" or data.tolerance or data.strict):
        more.append(f"{data.grading} {data.tolerance}" + " strict" * data.strict)
    if data.turns is not None:
        more.append(f"{data.turns} turns")
    if data.format_pool_file is not None:
        pool = "\n".join(read_pool(expanded(data.format_pool_file)))
        more.append(hashlib.sha256(pool.encode()).hexdigest())
    return " ".join([rows, *more]) if more else rows


def make_environment(name: str, data: DataSettings | None = None) -> Talk | Coding:
    """The environment of the data set ``name``.

    Raises ``UserError`` if there is none, for more agents than it can have, and for a broken pool of
    formats.
    """
    if name in CODING:
        return make_coding_environment(name, data)
    if name in QUESTIONS:
        return make_question_environment(name, data)
    raise UserError(
        f"dataset={name!r} is not known",
        f"{did_you_mean(name, NAMES)}use one of: {', '.join(NAMES)}",
    )


def make_question_environment(name: str, data: DataSettings | None = None) -> Talk:
    """The environment of questions ``name``. Raises ``UserError`` as :func:`make_environment`."""
    data = data or DataSettings()
    environment = _make_question_environment(name, data)
    environment.max_turns = data.turns or environment.max_turns
    return environment


def _make_question_environment(name: str, data: DataSettings) -> Talk:
    if name not in QUESTIONS:
        raise UserError(f"dataset={name!r} has no questions", f"use one of: {', '.join(QUESTIONS)}")
    file = data.format_pool_file
    pool = None if file is None else read_pool(expanded(file))
    agents = AGENTS[: data.agents]
    if name in EXCHANGES:
        formats = EXCHANGE_FORMATS if pool is None else pool
        return InformationExchange(name, data.source, data.context, agents, formats)
    if name in SUBJECTS:
        subject, packaged = SUBJECTS[name]
        return Debate(name, data.source, subject, agents, packaged if pool is None else pool)
    if data.agents != 2:
        raise UserError(
            f"data.agents={data.agents}: the micro-world `exchange` is made for two agents",
            f"use data.agents=2, or a data set such as {EXCHANGES[0]}",
        )
    return Exchange() if pool is None else Exchange(formats=pool)


def make_coding_environment(name: str, data: DataSettings | None = None) -> Coding:
    """The coding environment ``name``. Raises ``UserError`` if there is none, and for more than one agent."""
    data = data or DataSettings()
    environment = _make_coding_environment(name, data)
    environment.max_turns = data.turns or environment.max_turns
    return environment


def _make_coding_environment(name: str, data: DataSettings) -> Coding:
    if name not in CODING:
        raise UserError(
            f"dataset={name!r} has no functions to write", f"use one of: {', '.join(CODING)}"
        )
    if data.agents != 2 or data.format_pool_file is not None:
        raise UserError(
            f"{name} has one agent and a person, and no formats",
            "leave data.agents and data.format_pool_file out",
        )
    if name == "persona":
        return Persona(data.grading, data.tolerance, data.strict)
    return BackendProgramming(name, data.source, data.grading, data.tolerance, data.strict)
