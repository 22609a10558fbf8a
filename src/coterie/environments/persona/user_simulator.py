"""The scripted person of the `persona` micro-world: knows the choices, and tells one at a time to who asks well.

A question is understood by its keywords, so that wordings which a trained policy drifts into still count.
"""

import re
from collections.abc import Sequence

from coterie.environments.persona.choices import ASPECTS, Aspect, Choice

UNCLEAR = "I am not sure what you mean."
"""To words that ask about no aspect."""
NO_WISH = "I have no wish about that."
"""To a question about an aspect that the function does not have."""
TOO_MUCH = "That is too much at once for me."
"""To a question about two or more aspects."""

KEYWORDS: dict[Aspect, str] = {
    "keep": r"keep\w*|kept|filter\w*|even|odd|above|below|leave\w*|left|drop\w*|remov\w*|select\w*|choosy|stay\w*",
    "change": r"chang\w*|add|added|adds|plus|minus|times|multipl\w*|subtract\w*|arithmetic|calculat\w*|comput\w*",
    "order": r"order\w*|sort\w*|ascend\w*|descend\w*|up|down|increas\w*|decreas\w*|arrang\w*",
    "part": r"part|parts|how many|first|last|cut|cuts|short|slice\w*|limit\w*|begin\w*|start|end",
    "give": r"return\w*|back|result\w*|output\w*|sum|largest|smallest|total\w*|boil\w*|maximum|minimum",
}
"""The words by which a question is about an aspect, as regular expressions of whole words in lower case."""
_PATTERNS = {aspect: re.compile(rf"\b(?:{words})\b") for aspect, words in KEYWORDS.items()}


def aspects_named(said: str) -> list[Aspect]:
    """The aspects that a text asks about, in the order of `ASPECTS`."""
    return [aspect for aspect in ASPECTS if _PATTERNS[aspect].search(said.lower())]


def scripted_reply(choices: Sequence[Choice], said: str) -> str:
    """What the person answers to the agent's visible text: one short sentence, never code.

    Tells a choice if the text asks about its aspect and no other.
    """
    named = aspects_named(said)
    if not named:
        return UNCLEAR
    if len(named) > 1:
        return TOO_MUCH
    return next((choice.told for choice in choices if choice.aspect == named[0]), NO_WISH)
