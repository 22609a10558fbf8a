"""Rules that the prompts of several environments share."""

LENGTH = (
    "- Keep every message short. A message that is longer than the token limit is cut off, and a cut-off answer "
    "counts as wrong.\n"
)
"""What length costs. The limit is the sampler's, which no environment knows, so the rule names no number."""


def answer_rule(when: str, what: str, meaning: str, example: str) -> str:
    """How an answer is given, with an example in its exact form on a line of its own, which ends the rule."""
    return (
        f"- {when} with your answer on a line of its own: {what}, marked as in this example. Nothing else is read as "
        f"your answer. If the answer is {meaning}, the line is:\n{example}"
    )
