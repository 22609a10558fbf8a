"""What an agent is told that writes a Python function for a person."""

from coterie.environments.rules import LENGTH

EXAMPLE = """\
def initials(name):
    words = name.split()
    return "".join(word[0] for word in words)"""
"""The function that the prompts show as an example of an answer."""


def work(turns: int, marker: str) -> str:
    """For an agent that asks before it answers, with so many messages in all."""
    return (
        "You write Python functions. A person asks you for one function, but the request leaves out rules that only "
        "the person knows.\n"
        "Rules:\n"
        "- First ask the person about everything that the request leaves open. Do not guess.\n"
        "- Ask one simple question in each message. The person knows no Python and answers in a sentence or two.\n"
        f"- Number of messages that you can send, your answer included: {turns}. Answer before they are used up.\n"
        f"{LENGTH}"
        f"- As soon as you know enough, send your answer. {_form(marker)}"
    )


def at_once(marker: str) -> str:
    """For an agent that cannot ask."""
    return (
        "You write Python functions. A person asks you for one function. You cannot ask questions: your first message "
        "is your answer.\n"
        "Rules:\n"
        f"{LENGTH}"
        f"- {_form(marker)}"
    )


def _form(marker: str) -> str:
    return (
        f"The answer is a message with {marker} on a line of its own, and then one Python block with the complete "
        "function: the first line with the name and the arguments that the person gave, and the whole body. Write "
        "nothing else. If the person wants the first letters of a name, the answer is:\n"
        f"{marker}\n```python\n{EXAMPLE}\n```"
    )
