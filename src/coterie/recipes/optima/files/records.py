"""The lines of the released code's files, as they are on disk, and reading them with their numbers.

Raw and rewarded files have a line for each task, with all its dialogues:

    {"task_id": 0, "results": [{"question", "context_first", "context_second", "conversation",
     "answer", "final_answer", ..., and when rewarded "reward", "correct_score", "token_score",
     "ppl_score"}, ...]}

Pair files have a line for each task, with its pairs; a side is a system prompt and the utterances:

    {"task_id": 0, "dpo_results": [{"chosen": [...], "rejected": [...], "chosen_value", "distance"}]}
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coterie.errors import UserError
from coterie.recipes.line_files import LineFile, write_objects

RecordKind = Literal["raw", "rewarded", "dpo"]
LARGE = "large"
"""Stands last in a conversation that an utterance of 2000 tokens or more ended."""
ERROR = "error"
"""Stands for an utterance that the server refused, and for the answer of a search that gave none."""
AGENTS = ("Alice", "Bob")

Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


def _listed(value: object) -> object:
    """One text as a list of it; nothing as an empty one."""
    return [value] if isinstance(value, str) and value else value or []


Texts = Annotated[list[str], BeforeValidator(_listed)]


class _OptimaLine(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class DialogueResult(_OptimaLine):
    """One dialogue of a task."""

    question: str = Field(pattern=r"\S")
    prompt: str = ""
    first_prompt: str = ""
    second_prompt: str = ""
    context_first: Texts = []
    context_second: Texts = []
    conversation: list[str]
    """Utterances, most of them with their speaker's name in front."""
    answer: str | Annotated[list[str], Field(min_length=1)]
    """The gold answer, or all right ones."""
    final_answer: str | None = ""
    token_count: Count = 0
    score_type: str = ""
    data_type: str = ""
    dataset_name: str = ""
    correct_score: Annotated[float, Field(ge=0, le=1)] | None = None
    reward: Number | None = None
    token_score: Number | None = None
    ppl_score: Number | None = None

    @property
    def golds(self) -> list[str]:
        """All right answers."""
        return [self.answer] if isinstance(self.answer, str) else self.answer


class OptimaTaskLine(_OptimaLine):
    """A line of a raw or rewarded file."""

    task_id: Count
    results: list[DialogueResult] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_task(self) -> "OptimaTaskLine":
        if len({result.question for result in self.results}) > 1:
            raise ValueError("its results have different questions")
        return self


class PairRecord(_OptimaLine):
    """Two ways to go on, the better one first."""

    chosen: list[str] = Field(min_length=2)
    rejected: list[str] = Field(min_length=2)
    chosen_value: Number
    distance: Number = Field(gt=0)
    """By how much the chosen one's value is greater."""

    @model_validator(mode="after")
    def _fits(self) -> "PairRecord":
        if self.chosen[:-1] != self.rejected[:-1]:
            raise ValueError(
                "chosen and rejected have no common beginning up to the last utterance"
            )
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected are equal")
        return self


class PairsLine(_OptimaLine):
    """A line of a pair file; a task may have no pairs."""

    task_id: Count
    dpo_results: list[PairRecord]


L = TypeVar("L", OptimaTaskLine, PairsLine)


class Lines(LineFile):
    """A file of one kind."""

    def kind(self) -> RecordKind:
        """What the first line says: pairs, dialogues with rewards, or without."""
        for number, fields in self.objects():
            if "dpo_results" in fields:
                return "dpo"
            results = fields.get("results")
            if not isinstance(results, list) or not results or not isinstance(results[0], dict):
                raise self.broken(number, "it has neither `results` nor `dpo_results`")
            rewarded = {"reward", "correct_score", "token_score", "ppl_score"} <= results[0].keys()
            return "rewarded" if rewarded else "raw"
        raise UserError(f"{self.path} has no lines", "give a file that a run has written")

    def read(self, kind: type[L]) -> Iterator[tuple[int, L]]:
        """(number, line) of each line. Raises ``UserError`` that names the first broken one."""
        seen: dict[int, int] = {}
        for number, fields in self.objects():
            line = self.validated(number, fields, kind)
            if line.task_id in seen:
                before = seen[line.task_id]
                raise self.broken(number, f"task_id {line.task_id} is that of line {before} too")
            seen[line.task_id] = number
            yield number, line


def write_lines(path: Path, lines: Iterable[BaseModel]) -> None:
    """Write a new file of lines; it appears when it is whole. Fields that are not known are left out."""
    write_objects(path, (line.model_dump(mode="json", exclude_none=True) for line in lines))
