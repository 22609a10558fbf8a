"""Registry of environments, and of the data sets that they use.

The keys of the groups ``dataset`` and ``environment`` depend on the chosen data set and environment, so
:func:`task_settings_type` creates the settings type from this choice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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

PROGRAMS = {"use": ["code"], "calls": "inline", "rounds": 11, "max_characters": 1536}
"""Settings of AFM's evaluation of code agents: 12 turns, 512 tokens per result."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Facts about a built-in environment, without an import of its module."""

    path: str
    """Module in this package and class."""
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Data sets that are played in it by default, with the settings that they imply."""
    tools: Mapping[str, Any] = field(default_factory=dict)
    """Default settings of the tools."""
    open: bool | tuple[str, ...] = False
    """True if it needs users' files, rows or servers, or the names of such data sets. Any method accepts these, and few
    have default values for them."""
    generates_tasks: bool = True
    """False for an environment without data sets that reads rows."""


def _datasets(names: str, **settings: str) -> dict[str, Mapping[str, Any]]:
    return dict.fromkeys(names.split(), settings)


BUILT_IN: Mapping[str, Entry] = {
    "exchange": Entry("exchange:Exchange"),
    "persona": Entry("persona:Persona"),
    "pages": Entry("pages.micro_world:Pages"),
    "problems": Entry("plans.problems:Problems"),
    "shop": Entry("plans.shop:ShopErrands"),
    "sums": Entry("plans.python_maths:Sums"),
    "babyai": Entry("games.babyai:BabyAI"),
    "textworld": Entry("games.textworld:TextWorld", open=True),
    "pddl": Entry("games.pddl:PDDL", open=True),
    "alfworld": Entry("games.alfworld:ALFWorld", open=True),
    "agentgym": Entry("bridges.agentgym:AgentGym", open=True),
    "encyclopedia": Entry(
        "workflow.encyclopedia:EncyclopediaQuestions",
        tools={
            "use": [f"{__package__}.workflow.encyclopedia:EncyclopediaSearch"],
            "calls": "inline",
        },
    ),
    "reasoning_gym": Entry("bridges.reasoning_gym:ReasoningGym", open=True),
    "openenv": Entry("bridges.openenv:OpenEnv", open=True),
    "verifiers": Entry("bridges.verifiers:Verifiers", open=True),
    "nemo_gym": Entry("bridges.nemo_gym:NemoGym", open=True),
    "question": Entry("question:Question", _datasets("qa"), open=True),
    "program": Entry("program:Program", open=True, generates_tasks=False),
    "external": Entry("external:External", open=True),
    "conversation": Entry(
        "conversation:ConversationReply",
        _datasets(
            "conversations preferences recorded recorded_pairs ultra_interact ultra_feedback"
        ),
        open=True,
    ),
    "information_exchange": Entry(
        "discussion:InformationExchange", _datasets("hotpot_qa 2wiki trivia_qa cbt")
    ),
    "debate": Entry(
        "discussion:Debate",
        _datasets("gsm8k svamp", subject="arithmetic")
        | _datasets("math", subject="mathematics")
        | _datasets("arc_c mmlu", subject="choice"),
    ),
    "python_maths": Entry("plans.python_maths:PythonMaths", generates_tasks=False),
    "plan_ground": Entry(
        "plans.plan_ground:PlanGround",
        _datasets("gsm8k_plans gsm8k_socratic lumos_maths strategyqa_plans lumos_complex_qa")
        | _datasets("lumos_web mind2web", form="iterative"),
        open=("mind2web",),
    ),
    "backend_programming": Entry("coding:BackendProgramming", _datasets("colbench_code")),
    "frontend_design": Entry("pages.frontend:FrontendDesign", _datasets("websight")),
    "mhqa": Entry(
        "workflow.agent:Mhqa",
        _datasets("nq popqa musique bamboogle"),
        {"use": ["wiki_search"], "calls": "inline"},
        open=True,
    ),
    "web": Entry(
        "workflow.agent:Web",
        _datasets("webwalkerqa gaia hle browsecomp"),
        {"use": ["web_search", "crawl_page"], "calls": "inline"},
        open=True,
    ),
    "all_tools": Entry(
        "workflow.agent:AllTools",
        tools={"use": ["web_search", "crawl_page", "code", "visual_inspector"], "calls": "inline"},
        generates_tasks=False,
    ),
    "code": Entry(
        "workflow.code:Code",
        _datasets("livecodebench code_contests codeforces humaneval"),
        PROGRAMS,
        open=True,
    ),
    "code_maths": Entry(
        "workflow.code:CodeMaths",
        _datasets("math500 aime24 aime25 amc23 olympiadbench"),
        PROGRAMS,
        open=True,
    ),
}
ENVIRONMENTS = Kind(
    "environment", {name: f"{__package__}.{entry.path}" for name, entry in BUILT_IN.items()}
)
PLAYED_IN: Mapping[str, Mapping[str, Any]] = {
    dataset: {"name": name, **settings}
    for name, entry in BUILT_IN.items()
    for dataset, settings in entry.datasets.items()
}
"""The environment of each data set, and the settings that it implies."""
ALIASES = {"colbench_frontend": "websight"}
"""Other names of benchmarks."""
NAMES = (*BUILT_IN, *PLAYED_IN)
PACKAGED = tuple(
    benchmark
    for name, entry in BUILT_IN.items()
    if entry.open is not True
    for benchmark in entry.datasets or ((name,) if entry.generates_tasks else ())
    if not (entry.open and benchmark in entry.open)
)
"""Benchmarks that need no setting but their name."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Names of a data set and an environment."""

    dataset: str | None = None
    environment: str | None = None

    @classmethod
    def among(cls, overrides: Iterable[str]) -> "Choice":
        names: dict[str, str | None] = {}
        for pair in overrides:
            path, _, text = pair.partition("=")
            # ``dataset=NAME`` is short for ``dataset.name=NAME``.
            if (kind := path.removesuffix(".name")) in ("dataset", "environment"):
                names[kind] = absolute_name(text) if text not in ("", "none", "null") else None
        return cls(**names)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Choice":
        groups = (values.get("dataset"), values.get("environment"))
        return cls(*(group.get("name") if isinstance(group, Mapping) else None for group in groups))

    def with_defaults(self, before: "Choice", questions: str | None = None) -> "Choice":
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
        entry = BUILT_IN.get(self.environment or "")
        # Settings of the data set's usual environment have no meaning in another one.
        return {
            "environment": environment if environment.get("name") == self.environment else {},
            **({"tools": dict(entry.tools)} if entry and entry.tools else {}),
        }


class TaskSettings(Settings):
    """Settings of an environment and its data set, if it does not generate its tasks."""

    dataset: DatasetSettings = DatasetSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    tools: ToolsSettings = ToolsSettings()

    @property
    def benchmark(self) -> str:
        """Label of the data set, or of the environment without one."""
        return label(self.dataset.name or self.environment.name or "")

    @property
    def choice(self) -> Choice:
        """Names of the data set and the environment."""
        return Choice(self.dataset.name, self.environment.name)


P = TypeVar("P", bound=TaskSettings)


def is_played(name: str) -> bool:
    """Return True if a name is a known data set or environment, a plug-in, or a file of rows."""
    plugins = (*installed(ENVIRONMENTS), *installed(DATASETS))
    return name in (*NAMES, *plugins) or is_spec(name) or is_data_file(name)


def is_micro_world(name: str) -> bool:
    entry = BUILT_IN.get(name)
    return entry is not None and entry.generates_tasks and not entry.datasets


def is_task_pair(pair: str) -> bool:
    """Return True if a ``key=value`` pair names a data set or an environment."""
    return pair.partition("=")[0].removesuffix(".name") in ("dataset", "environment")


def is_data_file(name: str) -> bool:
    return name.endswith(SUFFIXES)


def with_file(overrides: Iterable[str]) -> list[str]:
    result: list[str] = []
    for pair in overrides:
        path, _, text = pair.partition("=")
        if path in ("dataset", "dataset.name") and is_data_file(text):
            # The file is a source of the data set ``qa``, also for a run that resumes in another
            # folder.
            result += ["dataset=qa", f"dataset.source={expanded(text).absolute()}"]
        else:
            result.append(pair)
    return result


def task_pair(name: str) -> str:
    """Return the ``key=value`` pair that selects an environment or a data set."""
    return f"{'environment' if name in BUILT_IN else 'dataset'}={name}"


def is_environment(name: str) -> bool:
    """Return True if a plug-in is an environment, False if it is a data set."""
    thing = find(ENVIRONMENTS, name).thing
    # Data sets are plug-ins, too, but have none of these methods.
    return any(hasattr(thing, method) for method in ("grade", "next_actors", "observe", "act"))


def task_settings_type(base: type[P], choice: Choice) -> type[P]:
    assert choice.environment is not None, "the choice is complete"
    plugin = find(ENVIRONMENTS, choice.environment)
    settings_type = settings_type_of(plugin, EnvironmentSettings)
    rows = DatasetSettings if choice.dataset is None else dataset_type(choice.dataset)
    _check_together(plugin, choice)
    return _type(base, settings_type, rows, choice)


def make_environment(settings: TaskSettings) -> Environment:
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


def check_no_tools(settings: TaskSettings, subject: str) -> None:
    """Raise ``UserError`` if the settings have tools, which ``subject`` does not support."""
    if settings.tools.use:
        problem = f"{subject} does not support tools={list(settings.tools.use)}"
        raise UserError(problem, "leave tools out")


def content(settings: TaskSettings, environment: Environment) -> str:
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
