"""Settings of environments."""

import hashlib
from typing import ClassVar, Literal

from coterie.config.folders import expanded
from coterie.config.settings import Settings, key
from coterie.environments.format_pool import read_pool
from coterie.tools.sandbox.results import Mode
from coterie.trajectories.turn import digest


class EnvironmentSettings(Settings):
    """Base class of environment settings. An environment with more keys sets ``settings_type`` to a subclass."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The environment: `exchange`, `persona`, `problems`, `sums`, `question`, `debate`, `information_exchange`, "
        "`backend_programming`, `plan_ground`, `shop`, `python_maths`, `babyai`, `encyclopedia`, `mhqa`, `web`, "
        "`code`, `code_maths`, or your own (package.module:NAME, path/file.py:NAME). The default depends on the "
        "data set.",
    )

    def identity(self) -> str:
        """Return a hash of the settings that results depend on, independent of the paths of files."""
        return digest(self.model_dump_json(exclude={"name"}))


class FormatSettings(EnvironmentSettings):
    """Settings of an environment whose prompts may request a format."""

    format_pool_file: str | None = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool. `coterie data prompt-pool` "
        "writes one. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )

    def pool(self, packaged: tuple[str, ...]) -> tuple[str, ...]:
        file = self.format_pool_file
        return packaged if file is None else tuple(read_pool(expanded(file)))

    def identity(self) -> str:
        """Return a hash of the settings and of the formats in the file, not of its path."""
        pool = hashlib.sha256("\n".join(self.pool(())).encode()).hexdigest()
        return digest(self.model_dump_json(exclude={"name", "format_pool_file"}), pool)


class TalkSettings(FormatSettings):
    """Settings of agents that discuss the questions of a data set."""

    agents: int = key(
        2,
        "Number of agents: 2, or 3 (a context is split into three; a debate has a second critic).",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int = key(10, "Maximum turns of all agents together.", source="Optima: 10", ge=1)


class CodingSettings(EnvironmentSettings):
    """Settings of an agent that writes functions for a user."""

    turns: int = key(10, "Maximum turns of the agent.", source="ColBench: 10", ge=1)
    grading: Mode = key(
        "module",
        "`module` runs code as a module. `legacy` runs it like SWEET-RL's grader, where answers with helpers, "
        "imports at the top or recursion fail, for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    on_leak: Literal["keep", "fail", "drop"] = key(
        "keep",
        "Handling of dialogues in which the user quotes the reference: `keep` counts them (`leaks`), `fail` scores "
        "them 0, `drop` gives them no score, so that they are not trained on.",
    )
    tolerance: float = key(0.0, "Relative tolerance for equality of floats; 0 is exact.", ge=0)
    strict: bool = key(
        False,
        "Compare the types of results too. Otherwise 1, 1.0 and True are equal, and an iterator equals the list "
        "of its items.",
        source="SWEET-RL's code: Python's ==",
    )
