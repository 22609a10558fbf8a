"""Base class of executors, which run actions one after another, and word overlap of texts."""

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.tools.actions.grammar import MAX_ACTIONS, Action

SECONDS = 300.0
"""Time limit for all actions of a text. Includes waiting for other actions, so it is high; each tool has its own
limit."""
MAX_VALUE = 8000
"""Characters of a value; longer values are truncated."""


_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")


class Failed(Exception):
    """An action failed. The message is for the model that wrote it."""


@dataclass(frozen=True, slots=True)
class Executed:
    """Results of running actions."""

    values: Mapping[str, str]
    """New results by name, including results before an error."""
    answer: str | None
    """Value of ``Output``, else of the highest ``R``; ``None`` after an error."""
    error: str | None = None
    """Why an action failed; later actions did not run."""


class Executor(ABC):
    """Base class that runs the actions of one domain."""

    variables: tuple[str, ...] = ()
    """Variables that are not results, such as ``Env``."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        """Time limit for all actions of one :meth:`run`."""

    @abstractmethod
    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """Run one action with the results so far; return its value. Raises :class:`Failed`."""

    async def run(self, actions: Sequence[Action], values: Mapping[str, str]) -> Executed:
        """Run the actions; stop at the first failure or at the time limit.

        ``values`` are the results of earlier steps. Failures of actions are returned, not raised.
        """
        if not actions:
            return Executed({}, None, "there is no action")
        if len(actions) > MAX_ACTIONS:
            what = f"there are {len(actions)} actions, and {MAX_ACTIONS} are allowed"
            return Executed({}, None, what)
        new: dict[str, str] = {}
        deadline = asyncio.get_running_loop().time() + self.seconds
        for action in actions:
            known = {**values, **new}
            used = [name for argument in action.arguments for name in argument.variables]
            try:
                if missing := [name for name in used if name not in {*known, *self.variables}]:
                    raise Failed(f"{missing[0]} has no value")
                async with asyncio.timeout_at(deadline):
                    new[action.result] = (await self.do(action, known))[:MAX_VALUE]
            except Failed as error:
                return Executed(new, None, f"{action.result} = {action.tool}: {error}")
            except TimeoutError:
                why = f"it takes more than {self.seconds:g} seconds"
                return Executed(new, None, f"{action.result} = {action.tool}: {why}")
        return Executed(new, answer_of(new))


def answer_of(values: Mapping[str, str]) -> str | None:
    """Return the value of ``Output``, else of the highest ``R``, else ``None``."""
    if "Output" in values:
        return values["Output"]
    ranks = {int(name[1:]): name for name in values if name[:1] == "R" and name[1:].isdecimal()}
    return values[ranks[max(ranks)]] if ranks else None


def words_of(text: str) -> list[str]:
    """Return the lowercase words and numbers of a text, without a plural ``s``."""
    words = _WORD.findall(text.lower())
    return [
        one[:-1] if len(one) > 3 and one.endswith("s") and one[-2] != "s" else one for one in words
    ]


def word_f1(first: str, second: str) -> float:
    """Return the F1 of the word multisets of two texts, in [0, 1]; 0 if one has no words."""
    a, b = words_of(first), words_of(second)
    if not a or not b:
        return 0.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def rank(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts that share a word with the query, best first, ties in order.

    A word in ``n`` of the ``N`` texts has the weight ``ln(1 + N / n)``, once per text.
    """
    sets = [set(words_of(text)) for text in texts]
    counts = Counter(word for one in sets for word in one)
    weights = {
        word: math.log(1 + len(sets) / counts[word]) for word in words_of(query) if counts[word]
    }
    scores = [sum(weight for word, weight in weights.items() if word in one) for one in sets]
    return sorted(
        (at for at, score in enumerate(scores) if score), key=lambda at: (-scores[at], at)
    )
