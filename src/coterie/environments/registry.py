"""Registry of environments, and of the data sets that they use.

The keys of the groups ``dataset`` and ``environment`` depend on the chosen data set and environment, so
:func:`played_type` creates the settings type from this choice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from pydantic import create_model

from coterie.config.folders import expanded
from coterie.config.plugins import (
    Kind,
    Plugin,
    absolute_name,
    construct,
    find,
    installed,
    is_spec,
    label,
    settings_type_of,
)
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
from coterie.environments.protocol import Environment, check_parts
from coterie.environments.settings import EnvironmentSettings
from coterie.errors import UserError
from coterie.record.turn import digest
from coterie.tools.registry import ToolsSettings, sources_of, syntax_of

ENVIRONMENTS = Kind(
    "environment",
    {
        "exchange": "coterie.environments.exchange:Exchange",
        "persona": "coterie.environments.persona:Persona",
        "pages": "coterie.environments.pages.micro_world:Pages",
        "problems": "coterie.environments.plans.problems:Problems",
        "sums": "coterie.environments.plans.python_maths:Sums",
        "debate": "coterie.environments.discussion:Debate",
        "question": "coterie.environments.question:Question",
        "plan_ground": "coterie.environments.plans.plan_ground:PlanGround",
        "shop": "coterie.environments.plans.shop:ShopErrands",
        "python_maths": "coterie.environments.plans.python_maths:PythonMaths",
        "information_exchange": "coterie.environments.discussion:InformationExchange",
        "backend_programming": "coterie.environments.coding:BackendProgramming",
        "frontend_design": "coterie.environments.pages.frontend:FrontendDesign",
        "babyai": "coterie.environments.games.babyai:BabyAI",
        "textworld": "coterie.environments.games.textworld:TextWorld",
        "pddl": "coterie.environments.games.pddl:PDDL",
        "alfworld": "coterie.environments.games.alfworld:ALFWorld",
        "agentgym": "coterie.environments.bridges.agentgym:AgentGym",
        "reasoning_gym": "coterie.environments.bridges.reasoning_gym:ReasoningGym",
        "openenv": "coterie.environments.bridges.openenv:OpenEnv",
        "verifiers": "coterie.environments.bridges.verifiers:Verifiers",
        "nemo_gym": "coterie.environments.bridges.nemo_gym:NemoGym",
        "encyclopedia": "coterie.environments.workflow.encyclopedia:EncyclopediaQuestions",
        "mhqa": "coterie.environments.workflow.agent:Mhqa",
        "web": "coterie.environments.workflow.agent:Web",
        "all_tools": "coterie.environments.workflow.agent:AllTools",
        "code": "coterie.environments.workflow.code:Code",
        "code_maths": "coterie.environments.workflow.code:CodeMaths",
        "conversation": "coterie.environments.conversation:ConversationReply",
    },
)
EXCHANGES = ("hotpot_qa", "2wiki", "trivia_qa", "cbt")
SUBJECTS = {
    "gsm8k": "arithmetic",
    "svamp": "arithmetic",
    "math": "mathematics",
    "arc_c": "choice",
    "mmlu": "choice",
}
PLANS = ("gsm8k_plans", "gsm8k_socratic", "lumos_maths", "strategyqa_plans", "lumos_complex_qa")
WEB = ("lumos_web", "mind2web")
"""Data sets of tasks on web pages, done step by step (environment.form=iterative)."""
HOPS = ("nq", "popqa", "musique", "bamboogle")
"""Data sets of questions without a context, for an agent that searches an encyclopedia."""
SEARCHES = ("webwalkerqa", "gaia", "hle", "browsecomp")
CONTESTS = ("livecodebench", "code_contests", "codeforces", "humaneval")
EXAMS = ("math500", "aime24", "aime25", "amc23", "olympiadbench")
"""Mathematics data sets that are only for evaluation, for an agent that runs programs."""
CONVERSATIONS = ("conversations", "preferences", "ultra_interact", "ultra_feedback")
"""Conversations and preferences of a user's source, and published preferences."""
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
    "websight": {"name": "frontend_design"},
    **{name: {"name": "conversation"} for name in CONVERSATIONS},
    "qa": {"name": "question"},
}
ENCYCLOPEDIA = "coterie.environments.workflow.encyclopedia:EncyclopediaSearch"
PROGRAMS = {"use": ["code"], "calls": "inline", "rounds": 11, "max_characters": 1536}
"""Settings of AFM's evaluation of code agents: 12 turns, 512 tokens per result."""
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "encyclopedia": {"use": [ENCYCLOPEDIA], "calls": "inline"},
    "mhqa": {"use": ["wiki_search"], "calls": "inline"},
    "web": {"use": ["web_search", "crawl_page"], "calls": "inline"},
    "all_tools": {
        "use": ["web_search", "crawl_page", "code", "visual_inspector"],
        "calls": "inline",
    },
    "code": PROGRAMS,
    "code_maths": PROGRAMS,
}
BRIDGES = ("reasoning_gym", "openenv", "verifiers", "nemo_gym")
"""Environments of other frameworks."""
MICRO_WORLDS = (
    "exchange",
    "persona",
    "pages",
    "problems",
    "shop",
    "sums",
    "babyai",
    "textworld",
    "pddl",
    "alfworld",
    "agentgym",
    "encyclopedia",
    *BRIDGES,
)
ALIASES = {"colbench_frontend": "websight"}
"""Other names of benchmarks."""
CODING = ("persona", "colbench_code")
GAMES = ("textworld", "alfworld", "agentgym", "pddl")
OPEN = (*GAMES, *BRIDGES, "qa", "mind2web", *CONVERSATIONS, *HOPS, *SEARCHES, *CONTESTS, *EXAMS)
"""Games of any size, or of users' files and servers, and data sets of users' rows or for users' tools. Any method
accepts them; few have default values for them."""
NAMES = tuple(name for name in (*MICRO_WORLDS, *PLAYED_IN) if name not in OPEN)
"""Packaged benchmarks, which need no setting but their name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of a data set and an environment."""

    dataset: str | None = None
    environment: str | None = None

    @classmethod
    def among(cls, words: Iterable[str]) -> "Choice":
        names: dict[str, str | None] = {}
        for word in words:
            path, _, text = word.partition("=")
            # ``dataset=NAME`` is short for ``dataset.name=NAME``.
            if (kind := path.removesuffix(".name")) in ("dataset", "environment"):
                names[kind] = absolute_name(text) if text not in ("", "none", "null") else None
        return cls(**names)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Choice":
        groups = (values.get("dataset"), values.get("environment"))
        return cls(*(group.get("name") if isinstance(group, Mapping) else None for group in groups))

    def over(self, before: "Choice", questions: str | None = None) -> "Choice":
        """Return the choice after this one replaces parts of ``before``.

        ``questions`` is the environment for data sets of plain questions: ``debate`` or ``question``.
        """
        if self.dataset is None and self.environment is None:
            return before
        if self.dataset is None:
            # Another environment may not read the rows of the earlier data set.
            same = self.environment == before.environment
            return Choice(before.dataset if same else None, self.environment)
        # The same data set keeps the environment that was chosen for it before.
        if self.environment is None and self.dataset == before.dataset:
            return before
        name = self.environment or _played_in(self.dataset)["name"]
        if self.environment is None and questions and name in ("debate", "question"):
            name = questions
        return Choice(self.dataset, name)

    def names(self) -> dict[str, Any]:
        return {"dataset": {"name": self.dataset}, "environment": {"name": self.environment}}

    def values(self) -> dict[str, Any]:
        """Return the settings of the environment and its tools that the data set implies."""
        environment = _played_in(self.dataset) if self.dataset is not None else {}
        tools = TOOLS.get(self.environment or "", {})
        # Settings of the data set's usual environment have no meaning in another one.
        return {
            "environment": environment if environment.get("name") == self.environment else {},
            **({"tools": dict(tools)} if tools else {}),
        }


class PlayedSettings(Settings):
    """Settings of an environment and its data set, if it does not generate its tasks."""

    dataset: DatasetSettings = DatasetSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    tools: ToolsSettings = ToolsSettings()

    @property
    def played(self) -> str:
        """Label of the data set, or of the environment without one."""
        return label(self.dataset.name or self.environment.name or "")

    @property
    def choice(self) -> Choice:
        """Names of the data set and the environment."""
        return Choice(self.dataset.name, self.environment.name)


P = TypeVar("P", bound=PlayedSettings)


def is_played(name: str) -> bool:
    """Return True if a name is a known data set or environment, a plug-in, or a file of rows."""
    plugins = (*installed(ENVIRONMENTS), *installed(DATASETS))
    names = (*NAMES, *OPEN, *ENVIRONMENTS.built_in, *plugins)
    return name in names or is_spec(name) or is_data_file(name)


def is_micro_world(name: str) -> bool:
    return name in MICRO_WORLDS


def is_name_word(word: str) -> bool:
    """Return True if a ``key=value`` word names a data set or an environment."""
    return word.partition("=")[0].removesuffix(".name") in ("dataset", "environment")


def is_data_file(name: str) -> bool:
    return name.endswith(SUFFIXES)


def with_file(words: Iterable[str]) -> list[str]:
    result: list[str] = []
    for word in words:
        path, _, text = word.partition("=")
        if path in ("dataset", "dataset.name") and is_data_file(text):
            # The file is a source of the data set ``qa``, also for a run that resumes in another
            # folder.
            result += ["dataset=qa", f"dataset.source={expanded(text).absolute()}"]
        else:
            result.append(word)
    return result


def task_word(name: str) -> str:
    """Return the ``key=value`` word that selects an environment or a data set."""
    return f"{'environment' if is_micro_world(name) or name in TOOLS else 'dataset'}={name}"


def is_environment(name: str) -> bool:
    """Return True if a plug-in is an environment, False if it is a data set."""
    thing = find(ENVIRONMENTS, name).thing
    # Data sets are plug-ins, too, but have none of these methods.
    return any(hasattr(thing, method) for method in ("grade", "acting", "see", "act"))


def played_type(base: type[P], choice: Choice) -> type[P]:
    assert choice.environment is not None, "the choice is complete"
    plugin = find(ENVIRONMENTS, choice.environment)
    settings_type = settings_type_of(plugin, EnvironmentSettings)
    rows = DatasetSettings if choice.dataset is None else dataset_type(choice.dataset)
    _check_together(plugin, choice)
    return _type(base, settings_type, rows, choice)


def make_environment(settings: PlayedSettings) -> Environment:
    name = settings.environment.name
    assert name is not None, "resolved settings have an environment"
    plugin = find(ENVIRONMENTS, name)
    rows = [] if settings.dataset.name is None else [Rows(settings.dataset)]
    environment: Environment = construct(plugin, EnvironmentSettings, settings.environment, *rows)
    check_parts(environment)
    tools = settings.tools
    sources = sources_of(tools.use, tools.config) if tools.use else ()
    if hasattr(environment, "write_as_tags"):  # conversations of a file, with calls in them
        if tools.calls == "tags":
            environment.write_as_tags(sources)
        elif sources or tools.calls == "inline":
            tools_word = f"tools={list(tools.use)} in {tools.calls} calls"
            problem = f"conversations of a file have tools of their own, not {tools_word}"
            raise UserError(problem, "leave tools out, or write calls as tags: tools.calls=tags")
        return environment
    if not sources:
        return environment
    # Most environments are played without tools.
    from coterie.environments.with_tools import with_tools

    syntax = syntax_of(sources, tools)
    # An environment may adapt the form of calls, such as tags without a description.
    if hasattr(environment, "tool_syntax"):
        syntax = environment.tool_syntax(tools, syntax)
    return with_tools(environment, sources, tools, syntax)


def check_no_tools(settings: PlayedSettings, subject: str) -> None:
    """Raise ``UserError`` if the settings have tools, which ``subject`` does not support."""
    if settings.tools.use:
        problem = f"{subject} does not support tools={list(settings.tools.use)}"
        raise UserError(problem, "leave tools out")


def content(settings: PlayedSettings, environment: Environment) -> str:
    """Return a hash of an environment's code, settings and rows, independent of the paths of files."""
    name = settings.environment.name
    assert name is not None, "resolved settings have an environment"
    rows = ""
    if settings.dataset.name is not None:
        rows = f"{label(settings.dataset.name)} {Rows(settings.dataset).content()}"
    source, identity = find(ENVIRONMENTS, name).source, settings.environment.identity()
    return digest(label(name), source, environment.version, identity, rows)


def _played_in(dataset: str) -> Mapping[str, Any]:
    environment = PLAYED_IN.get(dataset)
    return {"name": absolute_name(environment_of(dataset))} if environment is None else environment


def _check_together(plugin: Plugin, choice: Choice) -> None:
    """Raise ``UserError`` if an environment lacks the rows that it needs, or can't read the rows that it has."""
    kinds: tuple[type, ...] = getattr(plugin.thing, "row_types", ())
    if choice.dataset is None and kinds:
        names = ", ".join(DATASETS.built_in)
        fix = f"add dataset=FILE, or dataset=NAME with one of: {names}, or your own"
        raise UserError(f"environment={choice.environment} needs a data set", fix)
    if choice.dataset is None:
        return
    if not kinds:
        raise UserError(
            f"environment={choice.environment} generates its own tasks and ignores dataset={choice.dataset}",
            "leave one of them out (an environment that reads rows declares their types: row_types)",
        )
    row = row_type(choice.dataset)
    if not issubclass(row, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        problem = f"environment={choice.environment} reads rows of type {names}"
        problem += f", but dataset={choice.dataset} has {row.__name__}"
        raise UserError(problem, "leave environment out, or choose another data set")


# Equal choices must give one type, since settings of different types are never equal.
@cache
def _type(
    base: type[P],
    environment: type[EnvironmentSettings],
    rows: type[DatasetSettings],
    choice: Choice,
) -> type[P]:
    model: type[P] = create_model(
        base.__name__,
        __base__=base,
        __module__=base.__module__,
        __doc__=base.__doc__,
        dataset=(rows, rows.model_construct(name=choice.dataset)),
        environment=(environment, environment.model_construct(name=choice.environment)),
    )
    return model
