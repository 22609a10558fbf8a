"""The settings of a data set: its name, and the keys that it has of its own."""

from typing import ClassVar

from coterie.config.settings import Settings, key


class DatasetSettings(Settings):
    """Which data set. A data set that has keys of its own names a subclass of this one as its ``settings_type``."""

    main: ClassVar[str] = "name"

    name: str | None = key(
        None,
        "The data set: a name of `coterie data list`, `qa` (questions and answers of a file), or your own "
        "(package.module:NAME, path/file.py:NAME). None where the environment makes its own tasks.",
    )


class SourceSettings(DatasetSettings):
    """A data set of the catalogue: where its rows come from."""

    source: str = key(
        "prepared",
        "`prepared` (by `coterie data`), `sample` (the rows that ship with coterie; of "
        "colbench_code also `synthetic` and `easy`), or a folder with train.jsonl and heldout.jsonl.",
    )
