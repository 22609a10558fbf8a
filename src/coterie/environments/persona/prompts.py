"""What the agent of the `persona` micro-world is told."""

ANSWER_MARK = "I WANT TO ANSWER:"
"""What an answer begins with; the code follows on the next line."""

SYSTEM_PROMPT = (
    "You write a Python function for a person. Ask short questions, one thing at a time. "
    f"Once you know enough, write {ANSWER_MARK} and then the code."
)
"""The agent's instructions."""


def with_reference(source: str) -> str:
    """What follows the instructions where a reader may see the reference, such as a critic; the policy never does."""
    return f"\nReference:\n{source}"
