"""Rules in the prompts of several environments."""

LENGTH = (
    "- Keep every message short. A message that is longer than the token limit is cut off, and a cut-off answer "
    "counts as wrong.\n"
)
"""Cost of length. The rule names no number, because the limit is a setting of the sampler."""


def answer_rule(when: str, what: str, meaning: str, example: str) -> str:
    """Return the rule for the format of an answer, which ends with an example on a line of its own."""
    return (
        f"- {when} with your answer on a line of its own: {what}, marked as in this example. Nothing else is read as "
        f"your answer. If the answer is {meaning}, the line is:\n{example}"
    )
