"""Tasks out of the released code's records, and what of a task goes back into them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.environments.dialogue import GRADER
from coterie.recipes.optima_files.records import AGENTS, Result
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
"""By our name; ``exchange`` is our own world, under its own name there too."""
OURS = {original.name: name for name, original in ORIGINALS.items()}
"""Our name of a data set, by theirs."""
_FACT = re.compile(r"(\S+) (\S+): (.+)")


def task_of(dataset: str, id_: str, result: Result) -> Task:
    """The task of a record: question and notes are public, right answers are secrets.

    Raises ``ValueError`` for notes that are no facts of the world ``exchange``.
    """
    notes = {AGENTS[0]: result.context_first, AGENTS[1]: result.context_second}
    public: dict[str, object] = {"question": result.question}
    if dataset == "exchange":
        public["facts"] = {agent: [_fact(note) for note in notes[agent]] for agent in AGENTS}
    elif ORIGINALS[dataset].data_type == "qa":
        public["notes"] = notes
    answer = Secret(result.golds[0].strip(), name="answer", readers=frozenset({GRADER}))
    return Task(id_, public, {"answer": answer})


def notes_of(task: Task, agent: str) -> list[str]:
    """What an agent holds, a text for each piece; the inverse of :func:`task_of`."""
    facts: dict[str, list[list[str]]] = task.public.get("facts", {})  # type: ignore[assignment]
    notes: dict[str, list[str]] = task.public.get("notes", {})  # type: ignore[assignment]
    stated = [f"{subject} {relation}: {value}" for subject, relation, value in facts.get(agent, [])]
    return stated or list(notes.get(agent, []))


def _fact(note: str) -> list[str]:
    found = _FACT.fullmatch(note)
    if found is None:
        raise ValueError(f"{note!r} is no fact of the world `exchange` (`Nora home: Oslo`)")
    return list(found.groups())
