"""Scripted user of the ``persona`` micro-world, who tells one choice at a time.

It recognizes questions by keywords, so that new wordings of a trained policy still count.
"""

import re
from collections.abc import Sequence

from coterie.environments.persona.choices import ASPECTS, Aspect, Choice

UNCLEAR = "I am not sure what you mean."
"""Reply to a message about no aspect."""
NO_WISH = "I have no wish about that."
"""Reply to a question about an aspect that the function does not have."""
TOO_MUCH = "That is too much at once for me."
"""Reply to a question about several aspects."""

KEYWORDS: dict[Aspect, str] = {
    "keep": r"keep\w*|kept|filter\w*|even|odd|above|below|leave\w*|left|drop\w*|remov\w*|select\w*|choosy|stay\w*",
    "change": r"chang\w*|add|added|adds|plus|minus|times|multipl\w*|subtract\w*|arithmetic|calculat\w*|comput\w*",
    "order": r"order\w*|sort\w*|ascend\w*|descend\w*|up|down|increas\w*|decreas\w*|arrang\w*",
    "part": r"part|parts|how many|first|last|cut|cuts|short|slice\w*|limit\w*|begin\w*|start|end",
    "give": r"return\w*|back|result\w*|output\w*|sum|largest|smallest|total\w*|boil\w*|maximum|minimum",
}
"""Keywords of aspects, as regular expressions of whole words in lower case."""
_PATTERNS = {aspect: re.compile(rf"\b(?:{words})\b") for aspect, words in KEYWORDS.items()}


def aspects_named(text: str) -> list[Aspect]:
    """Return the aspects in a text, in the order of ``ASPECTS``."""
    return [aspect for aspect in ASPECTS if _PATTERNS[aspect].search(text.lower())]


def scripted_reply(choices: Sequence[Choice], text: str) -> str:
    """Return the user's reply to the agent's visible text: one short sentence without code.

    The reply tells a choice if the text asks only about its aspect.
    """
    aspects = aspects_named(text)
    if not aspects:
        return UNCLEAR
    if len(aspects) > 1:
        return TOO_MUCH
    return next((choice.sentence for choice in choices if choice.aspect == aspects[0]), NO_WISH)
