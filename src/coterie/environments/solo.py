"""The prompt of an agent that answers a question alone: all notes, step-by-step reasoning, a mark.

Chain of thought without examples (Kojima et al. 2022, "Large Language Models are Zero-Shot
Reasoners"), for the baselines of ``environments.baselines``.
"""

from collections.abc import Iterable

from coterie.trajectories.turn import Part


def solo_prompt(question: str, ending: str, notes: Iterable[str] = ()) -> tuple[Part, ...]:
    """What an agent is told who has the whole problem; ``ending`` is the rule for its answer."""
    listed = tuple(Part(f"- {note}\n", source="task") for note in notes)
    rules = "Rules:\n- Think step by step, and write the steps down before the answer.\n"
    if listed:
        listed = (Part("Your notes:\n", source="task"), *listed)
        rules += "- Rely on the notes only.\n"
    rules += f"- {ending}\n"
    return (
        Part("You answer a question.\n", source="task"),
        *listed,
        Part(rules, source="task"),
        Part(f"Question: {question}", source="task"),
    )
