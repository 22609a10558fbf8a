"""Tasks out of the released code's records, and what of a task goes back into them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.environments.gold import GRADER, gold_answer
from coterie.errors import UserError
from coterie.recipes.optima.files.records import AGENTS, DialogueResult
from coterie.trajectories.task import Secret, Task


@dataclass(frozen=True, slots=True)
class Original:
    """What the released code calls a data set."""

    name: str
    data_type: str
    score_type: str


ORIGINALS: Mapping[str, Original] = {
    "hotpot_qa": Original("hotpot_qa", "qa", "f1-score"),
    "2wiki": Original("mwh_qa", "qa", "f1-score"),
    "trivia_qa": Original("trival_qa", "qa", "f1-score"),
    "cbt": Original("cbt", "qa", "f1-score"),
    "gsm8k": Original("gsm8k", "math", "exact-match"),
    "math": Original("math", "math", "exact-match"),
    "arc_c": Original("arc", "debate", "exact-match"),
    "mmlu": Original("mmlu", "debate", "exact-match"),
    "exchange": Original("exchange", "qa", "exact-match"),
}
"""By our name; ``exchange`` is our own environment, under its own name there too."""
OURS = {original.name: name for name, original in ORIGINALS.items()}
"""Our name of a data set, by theirs."""
WITH_OPTIONS = ("cbt", "arc_c", "mmlu")
"""Sets in which a question's last line names the options, in other words here than there."""
_FACT = re.compile(r"(\S+) (\S+): (.+)")


def original_of(played: str) -> Original:
    """What the released code calls what was played; ``UserError`` if it has nothing like it."""
    if played not in ORIGINALS:
        raise UserError(
            f"the released code has no data set like {played}",
            f"its formats are for {', '.join(ORIGINALS)}",
        )
    return ORIGINALS[played]


def task_of(dataset: str, id_: str, result: DialogueResult) -> Task:
    """The task of a record: question and notes are public, right answers are secrets.

    Raises ``ValueError`` for notes that are not facts of the micro-world ``exchange``.
    """
    notes = {AGENTS[0]: result.context_first, AGENTS[1]: result.context_second}
    public: dict[str, object] = {"question": result.question}
    if dataset == "exchange":
        public["facts"] = {agent: [_fact(note) for note in notes[agent]] for agent in AGENTS}
    elif original_of(dataset).data_type == "qa":
        public["notes"] = notes
    return Task(id_, public, _secrets([gold.strip() for gold in result.golds]))


def answers_of(task: Task) -> str | list[str]:
    """The right answer of a task, or all of them; the inverse of :func:`task_of`."""
    aliases = task.secrets.get("aliases")
    first = gold_answer(task)
    return [first, *json.loads(aliases.reveal(GRADER))] if aliases else first


def content(dataset: str, task: Task) -> tuple[str, str]:
    """What makes two tasks of a data set the same: the question, in ``exchange`` with its facts."""
    question = str(task.public["question"]).strip()
    if dataset in WITH_OPTIONS:
        question = question.rpartition("\n")[0] or question
    return " ".join(question.casefold().split()), json.dumps(
        task.public.get("facts"), sort_keys=True
    )


def notes_of(task: Task, agent: str) -> list[str]:
    """What an agent holds, a text for each piece; the inverse of :func:`task_of`."""
    facts: dict[str, list[list[str]]] = task.public.get("facts", {})  # type: ignore[assignment]
    notes: dict[str, list[str]] = task.public.get("notes", {})  # type: ignore[assignment]
    stated = [f"{subject} {relation}: {value}" for subject, relation, value in facts.get(agent, [])]
    return stated or list(notes.get(agent, []))


def _secrets(golds: list[str]) -> dict[str, Secret]:
    """The first right answer, and the others as its aliases."""
    named = {"answer": golds[0]}
    if golds[1:]:
        named["aliases"] = json.dumps(golds[1:], ensure_ascii=False)
    return {
        name: Secret(text, name=name, readers=frozenset({GRADER})) for name, text in named.items()
    }


def _fact(note: str) -> list[str]:
    found = _FACT.fullmatch(note)
    if found is None:
        raise ValueError(
            f"{note!r} is not a fact of the micro-world `exchange` (`Nora home: Oslo`)"
        )
    return list(found.groups())
