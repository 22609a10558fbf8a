"""Environments by name, and the data sets that they are played on.

Settings of a run or a benchmark have two groups, ``dataset`` and ``environment``. Which keys these have depends on what
is chosen, so their type is made when it is known (:func:`played_type`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import create_model

from coterie.config.construct import construct, settings_type_of
from coterie.config.folders import expanded
from coterie.config.plugins import Kind, Plugin, absolute_name, find, installed, is_spec, label
from coterie.config.settings import Settings
from coterie.datasets.files import SUFFIXES
from coterie.datasets.load import (
    DATASETS,
    DatasetSettings,
    Rows,
    dataset_type,
    environment_of,
    row_type,
)
from coterie.environments.checking import check_parts
from coterie.environments.protocol import Environment
from coterie.environments.settings import EnvironmentSettings
from coterie.environments.traits import TakesTools
from coterie.environments.with_tools import with_tools
from coterie.errors import UserError
from coterie.tools.finding import sources_of, syntax_of
from coterie.tools.toolbox import ToolsSettings
from coterie.trajectories.turn import digest

ENVIRONMENTS = Kind(
    "environment",
    {
        "exchange": "coterie.environments.exchange.environment:Exchange",
        "persona": "coterie.environments.persona.environment:Persona",
        "problems": "coterie.environments.problems.environment:Problems",
        "sums": "coterie.environments.acting.sums:Sums",
        "debate": "coterie.environments.debate:Debate",
        "question": "coterie.environments.question:Question",
        "plan_ground": "coterie.environments.plan_ground.environment:PlanGround",
        "shop": "coterie.environments.plan_ground.shop:ShopErrands",
        "python_maths": "coterie.environments.acting.python_maths:PythonMaths",
        "information_exchange": "coterie.environments.information_exchange:InformationExchange",
        "backend_programming": "coterie.environments.colbench:BackendProgramming",
        "babyai": "coterie.environments.acting.babyai:BabyAI",
        "encyclopedia": "coterie.environments.encyclopedia.environment:EncyclopediaQuestions",
        "mhqa": "coterie.environments.workflow.environment:Mhqa",
        "web": "coterie.environments.workflow.environment:Web",
        "code": "coterie.environments.workflow.code:Code",
        "code_maths": "coterie.environments.workflow.code_maths:CodeMaths",
        "conversation": "coterie.environments.conversation:ConversationReply",
    },
)
EXCHANGES = ("hotpot_qa", "2wiki", "trivia_qa", "cbt")
"""Data sets with a context to deal out."""
SUBJECTS = {
    "gsm8k": "arithmetic",
    "svamp": "arithmetic",
    "math": "mathematics",
    "arc_c": "choice",
    "mmlu": "choice",
}
"""Data sets to debate on, each with its subject."""
PLANS = (
    "gsm8k_plans", "gsm8k_socratic", "lumos_maths", "strategyqa_plans", "lumos_complex_qa",
)  # fmt: skip
"""Data sets with plans, for a planner and a grounder."""
WEB = ("lumos_web", "mind2web")
"""Data sets of web pages, which are gone through step by step (environment.form=iterative)."""
HOPS = ("nq", "popqa", "musique", "bamboogle")
"""Data sets of questions without a context, for an agent that searches an encyclopedia."""
SEARCHES = ("webwalkerqa", "gaia", "hle", "browsecomp")
"""Data sets of questions for an agent that searches the web."""
CONTESTS = ("livecodebench", "code_contests")
"""Data sets of programming contests, for an agent that writes programs."""
EXAMS = ("math500", "aime24", "aime25", "amc23", "olympiadbench")
"""Data sets of mathematics for evaluation alone, for an agent that runs programs."""
CONVERSATIONS = ("conversations", "preferences")
"""Conversations and preferences of a user's file."""
PLAYED_IN: Mapping[str, Mapping[str, Any]] = {
    **{name: {"name": "mhqa"} for name in HOPS},
    **{name: {"name": "web"} for name in SEARCHES},
    **{name: {"name": "code"} for name in CONTESTS},
    **{name: {"name": "code_maths"} for name in EXAMS},
    **{name: {"name": "information_exchange"} for name in EXCHANGES},
    **{name: {"name": "debate", "subject": subject} for name, subject in SUBJECTS.items()},
    **{name: {"name": "plan_ground"} for name in PLANS},
    **{name: {"name": "plan_ground", "form": "iterative"} for name in WEB},
    "colbench_code": {"name": "backend_programming"},
    **{name: {"name": "conversation"} for name in CONVERSATIONS},
    "qa": {"name": "question"},
}
"""The environment of each data set, and what it is told."""
ENCYCLOPEDIA = "coterie.environments.encyclopedia.tool:EncyclopediaSearch"
PROGRAMS = {"use": ["code"], "calls": "inline", "rounds": 11, "max_characters": 1536}
"""AFM's evaluation of code agents: 12 turns, 512 tokens of a result."""
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "encyclopedia": {"use": [ENCYCLOPEDIA], "calls": "inline"},
    "mhqa": {"use": ["wiki_search"], "calls": "inline"},
    "web": {"use": ["web_search", "crawl_page"], "calls": "inline"},
    "code": PROGRAMS,
    "code_maths": PROGRAMS,
}
"""Environments that are played with tools, unless others are named."""
MICRO_WORLDS = ("exchange", "persona", "problems", "shop", "sums", "babyai", "encyclopedia")
"""Environments that make their own tasks."""
CODING = ("persona", "colbench_code")
"""Benchmarks of functions that a person wants written."""
OPEN = ("qa", "mind2web", *CONVERSATIONS, *HOPS, *SEARCHES, *CONTESTS, *EXAMS)
"""Data sets of anybody's rows, or for tools of anybody's: any method may be played on them, and none has values for
them."""
NAMES = (*MICRO_WORLDS, *(name for name in PLAYED_IN if name not in OPEN))
"""Benchmarks: what ships, and can be played by its name alone."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be played, by name."""

    dataset: str | None = None
    environment: str | None = None

    @classmethod
    def among(cls, words: Iterable[str]) -> "Choice":
        """What ``key=value`` words ask for; the last one counts."""
        asked: dict[str, str | None] = {}
        for word in words:
            path, _, text = word.partition("=")
            if (kind := path.removesuffix(".name")) in ("dataset", "environment"):
                asked[kind] = absolute_name(text) if text not in ("", "none", "null") else None
        return cls(**asked)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Choice":
        groups = (values.get("dataset"), values.get("environment"))
        return cls(*(group.get("name") if isinstance(group, Mapping) else None for group in groups))

    def over(self, before: "Choice", questions: str | None = None) -> "Choice":
        """Return what is played if this is requested where ``before`` was played.

        ``questions`` is the environment of data sets of plain questions: ``debate`` or ``question``.
        """
        if self.dataset is None and self.environment is None:
            return before
        if self.dataset is None:
            same = self.environment == before.environment
            return Choice(before.dataset if same else None, self.environment)
        if self.environment is None and self.dataset == before.dataset:
            return before
        name = self.environment or _played_in(self.dataset)["name"]
        if self.environment is None and questions and name in ("debate", "question"):
            name = questions
        return Choice(self.dataset, name)

    def names(self) -> dict[str, Any]:
        return {"dataset": {"name": self.dataset}, "environment": {"name": self.environment}}

    def values(self) -> dict[str, Any]:
        """What the data set tells its own environment, as values of settings."""
        told = _played_in(self.dataset) if self.dataset is not None else {}
        tools = TOOLS.get(self.environment or "", {})
        return {
            "environment": told if told.get("name") == self.environment else {},
            **({"tools": dict(tools)} if tools else {}),
        }


class PlayedSettings(Settings):
    """What is played: an environment, on a data set or on tasks that it makes."""

    dataset: DatasetSettings = DatasetSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    tools: ToolsSettings = ToolsSettings()

    @property
    def played(self) -> str:
        """The data set, or the environment that makes its own tasks, in a title."""
        return label(self.dataset.name or self.environment.name or "")

    @property
    def choice(self) -> Choice:
        return Choice(self.dataset.name, self.environment.name)


P = TypeVar("P", bound=PlayedSettings)


def is_played(name: str) -> bool:
    """Whether something can be played by its name alone: what ships, or a plug-in."""
    plugins = (*installed(ENVIRONMENTS), *installed(DATASETS))
    known = (*NAMES, *OPEN, *ENVIRONMENTS.built_in, *plugins)
    return name in known or is_spec(name) or is_data_file(name)


def is_micro_world(name: str) -> bool:
    """Whether something that is played by its name alone makes its own tasks."""
    return name in MICRO_WORLDS


def is_name_word(word: str) -> bool:
    """Whether a ``key=value`` word says which data set or environment there is."""
    return word.partition("=")[0].removesuffix(".name") in ("dataset", "environment")


def is_data_file(name: str) -> bool:
    """Return True if the name of a data set is a file of rows."""
    return name.endswith(SUFFIXES)


def with_file(words: Iterable[str]) -> list[str]:
    """Return ``key=value`` words with ``dataset=FILE`` as ``dataset=qa dataset.source=FILE``."""
    found: list[str] = []
    for word in words:
        path, _, text = word.partition("=")
        if path in ("dataset", "dataset.name") and is_data_file(text):
            found += ["dataset=qa", f"dataset.source={expanded(text).absolute()}"]
        else:
            found.append(word)
    return found


def task_word(name: str) -> str:
    """The word that asks for what is played by its name alone."""
    return f"{'environment' if is_micro_world(name) or name in TOOLS else 'dataset'}={name}"


def is_environment(name: str) -> bool:
    """Whether a plug-in is an environment, and not a data set. Raises ``UserError`` if it can't be imported."""
    return hasattr(find(ENVIRONMENTS, name).thing, "grade")


def played_type(base: type[P], choice: Choice) -> type[P]:
    """Settings whose groups have the keys of what is played.

    Raises ``UserError`` for names that nothing has, for plug-ins that can't be used, and for a data set and an
    environment that do not go together.
    """
    assert choice.environment is not None, "something is played"
    found = find(ENVIRONMENTS, choice.environment)
    own = settings_type_of(found, EnvironmentSettings)
    rows = DatasetSettings if choice.dataset is None else dataset_type(choice.dataset)
    _check_together(found, choice)
    return _type(base, own, rows, choice)


def make_environment(settings: PlayedSettings) -> Environment:
    """The environment that settings say. Raises ``UserError`` for one that lacks what an environment has."""
    name = settings.environment.name
    assert name is not None, "settings that were resolved say what is played"
    found = find(ENVIRONMENTS, name)
    rows = [] if settings.dataset.name is None else [Rows(settings.dataset)]
    made = construct(found, EnvironmentSettings, settings.environment, *rows)
    check_parts(made)
    environment: Environment = made
    asked = settings.tools
    if not asked.use:
        return environment
    sources = sources_of(asked.use, asked.config)
    syntax = syntax_of(sources, asked)
    if isinstance(environment, TakesTools):
        return environment.given(sources, asked, syntax)
    return with_tools(environment, sources, asked, syntax)


def check_no_tools(settings: PlayedSettings, who: str) -> None:
    """Raise ``UserError`` if settings give agents tools, which ``who`` can't play with."""
    if settings.tools.use:
        raise UserError(
            f"{who} can't be played with tools={list(settings.tools.use)}", "leave tools out"
        )


def content(settings: PlayedSettings, environment: Environment) -> str:
    """A hash of what an environment's tasks and what it does with them are made of, wherever files lie."""
    name = settings.environment.name
    assert name is not None, "settings that were resolved say what is played"
    rows = ""
    if settings.dataset.name is not None:
        rows = f"{label(settings.dataset.name)} {Rows(settings.dataset).content()}"
    source, own = find(ENVIRONMENTS, name).source, settings.environment.identity()
    return digest(label(name), source, environment.version, own, rows)


def _played_in(dataset: str) -> Mapping[str, Any]:
    found = PLAYED_IN.get(dataset)
    return {"name": absolute_name(environment_of(dataset))} if found is None else found


def _check_together(found: Plugin, choice: Choice) -> None:
    """Refuse an environment without the rows that it needs, and rows that it does not read."""
    kinds: tuple[type, ...] = getattr(found.thing, "row_types", ())
    if choice.dataset is None and kinds:
        known = ", ".join(DATASETS.built_in)
        raise UserError(
            f"environment={choice.environment} is played on a data set",
            f"add dataset=FILE, or dataset=NAME with one of: {known}, or your own",
        )
    if choice.dataset is None:
        return
    if not kinds:
        raise UserError(
            f"environment={choice.environment} makes its own tasks, so dataset={choice.dataset} would not be read",
            "leave one of them out (an environment that reads rows says of which types: row_types)",
        )
    row = row_type(choice.dataset)
    if not issubclass(row, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UserError(
            f"environment={choice.environment} is played on rows of the type {names}, and dataset="
            f"{choice.dataset} has {row.__name__}",
            "leave environment out, or give another data set",
        )


@cache
def _type(
    base: type[P],
    environment: type[EnvironmentSettings],
    rows: type[DatasetSettings],
    choice: Choice,
) -> type[P]:
    made: type[P] = create_model(
        base.__name__,
        __base__=base,
        __module__=base.__module__,
        __doc__=base.__doc__,
        dataset=(rows, rows.model_construct(name=choice.dataset)),
        environment=(environment, environment.model_construct(name=choice.environment)),
    )
    return made
