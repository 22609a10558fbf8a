"""The prompt of an agent that answers a question alone: all notes, step-by-step reasoning, format of the answer.

Chain of thought without examples (Kojima et al. 2022, "Large Language Models are Zero-Shot
Reasoners"), for the baselines of ``environments.baselines``.
"""

from collections.abc import Iterable

from coterie.environments.rules import LENGTH
from coterie.trajectories.turn import Part


def solo_prompt(question: str, ending: str, notes: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return the prompt of an agent that has the whole problem; ``ending`` is the rule for its answer."""
    listed = tuple(Part(f"- {note}\n", source="task") for note in notes)
    rules = "Rules:\n- Think step by step, and write down the steps before the answer.\n"
    if listed:
        listed = (Part("Your notes:\n", source="task"), *listed)
        rules += "- Use only the facts in the notes.\n"
    return (
        Part("Answer the question below.\n", source="task"),
        *listed,
        Part(f"{rules}{LENGTH}{ending}\n\n", source="task"),
        Part(f"Question: {question}", source="task"),
    )
