"""The settings of an environment: its name, and the keys that it has of its own."""

import hashlib
from typing import ClassVar, Literal

from coterie.config.folders import expanded
from coterie.config.settings import Settings, key
from coterie.environments.format_pool import read_pool
from coterie.tools.sandbox.results import Mode
from coterie.trajectories.turn import digest


class EnvironmentSettings(Settings):
    """Which environment. One that has keys of its own names a subclass of this one as its ``settings_type``."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The environment: `exchange`, `persona`, `problems`, `sums`, `question`, `debate`, `information_exchange`, "
        "`backend_programming`, `plan_ground`, `shop`, `python_maths`, `babyai`, `encyclopedia`, `mhqa`, `web`, "
        "`code`, `code_maths`, or your own (package.module:NAME, path/file.py:NAME). The default is the one that the "
        "data set is played in.",
    )

    def identity(self) -> str:
        """What results depend on, besides the environment itself: the keys, but not where files lie."""
        return digest(self.model_dump_json(exclude={"name"}))


class FormatSettings(EnvironmentSettings):
    """An environment whose prompts may ask for a format."""

    format_pool_file: str | None = key(
        None,
        "A file of formats (JSONL or YAML) instead of the packaged pool; `coterie data prompt-pool` "
        "makes one. Debates on mathematics have no packaged pool.",
        source="Optima section 3.1 and appendix H.3",
    )

    def pool(self, packaged: tuple[str, ...]) -> tuple[str, ...]:
        file = self.format_pool_file
        return packaged if file is None else tuple(read_pool(expanded(file)))

    def identity(self) -> str:
        """The formats of a file count, not its place."""
        pool = hashlib.sha256("\n".join(self.pool(())).encode()).hexdigest()
        return digest(self.model_dump_json(exclude={"name", "format_pool_file"}), pool)


class TalkSettings(FormatSettings):
    """Agents who talk about the questions of a data set."""

    agents: int = key(
        2,
        "Agents that talk: 2, or 3 (a context is dealt to three; a debate has a second critic).",
        source="Optima: 2; 3 in table 7",
        ge=2,
        le=3,
    )
    turns: int = key(10, "Most turns of all agents together.", source="Optima: 10", ge=1)


class CodingSettings(EnvironmentSettings):
    """An agent who writes functions that a person wants."""

    turns: int = key(10, "Most turns of the agent.", source="ColBench: 10", ge=1)
    grading: Mode = key(
        "module",
        "`module` runs code as a module; `legacy` as SWEET-RL's grader does, where answers with helpers, "
        "imports at the top or recursion fail: for comparison with published numbers.",
        source="SWEET-RL's code: legacy",
    )
    on_leak: Literal["keep", "fail", "drop"] = key(
        "keep",
        "A dialogue in which the person quotes the reference: `keep` counts it (`leaks`), `fail` gives it a score "
        "of 0, `drop` gives it none, so that nothing is trained on it.",
    )
    tolerance: float = key(
        0.0, "Two floats are equal that differ by no more, relatively; 0 is exact.", ge=0
    )
    strict: bool = key(
        False,
        "Results must have the right types too. Else 1, 1.0 and True are equal, and an iterator is the list "
        "of what it yields.",
        source="SWEET-RL's code: Python's ==",
    )
