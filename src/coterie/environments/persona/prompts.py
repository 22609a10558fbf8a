"""System prompt of the agent of the ``persona`` micro-world."""

ANSWER_MARK = "I WANT TO ANSWER:"
"""First line of an answer; the code follows on the next line."""

SYSTEM_PROMPT = (
    "You write a Python function for a person. Ask short questions, one thing at a time. "
    f"Once you know enough, write {ANSWER_MARK} and then the code."
)


def with_reference(source: str) -> str:
    """Return the text after the instructions for a critic, which sees the reference, unlike the policy."""
    return f"\nReference:\n{source}"
