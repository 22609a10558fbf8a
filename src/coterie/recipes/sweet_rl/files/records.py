"""The lines of SWEET-RL's released code's files, as they are on disk.

A trajectory row is one dialogue, from the person's request to the agent's last turn:

    {"task": {"problem_description", "ground_truth", "test_cases", ...},
     "dialogue_history": [{"role": "user", "content"},
                          {"role": "assistant", "content", "input", "output"}, ...],
     "answer", "reward"}

``content`` is what the other side sees; an agent's turn also has the whole prompt as a string (``input``) and
the raw completion (``output``). A file of k repeats has them one after another: repeat j of task i is row
``j * tasks + i``.

A preference row has ``chosen`` and ``rejected``, both texts (with or without a ``prompt``) or both ``{"input",
"output"}``.

Fields that are not known are kept, so a file that was read and written again says the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, TypeVar, overload

from pydantic import BaseModel, ConfigDict, Field, model_validator

from coterie.datasets.code_rows import CodeRow
from coterie.errors import UserError
from coterie.recipes.line_files import LineFile, write_objects

Number = Annotated[float, Field(allow_inf_nan=False)]


class _SweetLine(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class TaskFields(_SweetLine):
    """The whole row of a task."""

    problem_description: str = Field(pattern=r"\S")
    ground_truth: str = Field(pattern=r"\S")
    """The reference: of a function, or of a page."""
    test_cases: dict[str, str] | tuple[str, ...] = ()
    """Calls; a page has none."""

    def code_row(self) -> CodeRow:
        """The task as a row of ``colbench_code``."""
        return CodeRow.model_validate(self.model_dump())


class HistoryTurn(_SweetLine):
    """One turn."""

    role: Literal["user", "assistant"]
    content: str
    input: str | None = None
    """Of the agent's turns: the prompt with all special tokens, up to the beginning of its reply."""
    output: str | None = None
    """Of the agent's turns: the completion, without the end-of-turn token."""


class TrajectoryRow(_SweetLine):
    """One dialogue about a task."""

    task: TaskFields
    dialogue_history: tuple[HistoryTurn, ...] = Field(min_length=2)
    answer: str | None = None
    """The final answer, ``No answer``, or the path of an image."""
    reward: Number | None = None
    """Share of tests passed, or similarity; ``None`` where the released code has lost it."""

    @model_validator(mode="after")
    def _alternating(self) -> "TrajectoryRow":
        for place, turn in enumerate(self.dialogue_history):
            expected = "assistant" if place % 2 else "user"
            if turn.role != expected:
                raise ValueError(
                    f"turn {place + 1} of the dialogue is of {turn.role}, not {expected}"
                )
        if len(self.dialogue_history) % 2:
            raise ValueError("the dialogue doesn't end with a turn of the agent")
        return self


class Side(_SweetLine):
    """A prompt and a completion."""

    input: str
    output: str


class PreferenceRow(_SweetLine):
    """Two ways to go on, or two whole dialogues as strings, the better one first."""

    prompt: str | None = None
    """What both begin with, where they don't hold it themselves."""
    chosen: str | Side
    rejected: str | Side

    @model_validator(mode="after")
    def _two_of_a_kind(self) -> "PreferenceRow":
        if isinstance(self.chosen, str) != isinstance(self.rejected, str):
            raise ValueError("one side is a text and the other one has input and output")
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are equal")
        return self


L = TypeVar("L", TrajectoryRow, PreferenceRow)


def read_lines(path: Path, kind: type[L]) -> Iterator[tuple[int, L]]:
    """(number, row) of each line, one in memory at a time; ``UserError`` names the first broken one."""
    file = LineFile(path)
    for number, fields in file.objects():
        yield number, file.validated(number, fields, kind)


def write_lines(path: Path, rows: Iterable[TrajectoryRow | PreferenceRow]) -> None:
    """Write a new file; it appears when it is whole. A field that was never given is left out."""
    write_objects(path, (row.model_dump(mode="json", exclude_unset=True) for row in rows))


class Trajectories(Sequence[TrajectoryRow]):
    """A file of trajectories as a sequence that reads a row when it is asked for.

    Only where each line begins is kept: the released file of 15,000 has 436 MB.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        """(line number, first byte) of each line that isn't blank."""
        found, at = list[tuple[int, int]](), 0
        try:
            with self.path.open("rb") as file:
                for number, data in enumerate(file, 1):
                    if data.strip():
                        found.append((number, at))
                    at += len(data)
        except OSError as error:
            raise UserError(
                f"{self.path} can't be read: {error.strerror}", "check the path"
            ) from error
        return found

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> TrajectoryRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[TrajectoryRow]: ...

    def __getitem__(self, index: int | slice) -> TrajectoryRow | list[TrajectoryRow]:
        """A row, or several; raises ``UserError`` for a broken one, by the number of its line."""
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        number, at = self._lines[index]
        with self.path.open("rb") as file:
            file.seek(at)
            data = file.readline()
        line = LineFile(self.path)
        return line.validated(number, line.parsed(number, data), TrajectoryRow)

    def broken(self, index: int, reason: str) -> UserError:
        """The error that names the line of a row."""
        return LineFile(self.path).broken(self._lines[index][0], reason)


def blocks(rows: Sequence[TrajectoryRow], repeats: int) -> Iterator[tuple[TrajectoryRow, ...]]:
    """The repeats of each task, task by task.

    Raises ``UserError`` if the number of rows is not a multiple of ``repeats``, and at the first task whose
    repeats have different descriptions.
    """
    tasks, rest = divmod(len(rows), repeats)
    where = str(rows.path) if isinstance(rows, Trajectories) else "the file"
    if rest or not tasks:
        raise UserError(
            f"{where} has {len(rows):,} rows, which are not {repeats} repeats of each task",
            "give the number of repeats that it was sampled with",
        )
    for task in range(tasks):
        block = tuple(rows[repeat * tasks + task] for repeat in range(repeats))
        if len({row.task.problem_description for row in block}) > 1:
            numbers = ", ".join(str(repeat * tasks + task + 1) for repeat in range(repeats))
            raise UserError(
                f"rows {numbers} of {where} should be repeats of one task, and their descriptions differ",
                f"give another number of repeats than {repeats}, or the whole file as it was sampled",
            )
        yield block
