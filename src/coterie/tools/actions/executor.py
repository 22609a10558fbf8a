"""Base of the executors, which run actions one after another, and how well texts fit the words of a query."""

import asyncio
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.tools.actions.grammar import MAX_ACTIONS, Action

SECONDS = 300.0
"""For the actions of a text together. Waiting for the actions of others counts too, so it is generous; each tool has a
limit of its own."""
MAX_VALUE = 8000
"""Characters of a value; what is over is cut off."""


_WORD = re.compile(r"[^\W_]+(?:\.\d+)?")


class Failed(Exception):
    """An action can't be done; the message says why, for the one who wrote it."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of running actions."""

    values: Mapping[str, str]
    """The results that are new, by name; those before an error are kept."""
    answer: str | None
    """The value of ``Output``, else of the highest ``R``; ``None`` after an error."""
    error: str | None = None
    """Why an action could not be done; those after it were not run."""


class Executor(ABC):
    """Runs the actions of one domain."""

    given: tuple[str, ...] = ()
    """Variables that are no results, such as ``Env``."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        """For all actions of one call of :meth:`run`."""

    @abstractmethod
    async def do(self, action: Action, values: Mapping[str, str]) -> str:
        """Do one action with the results so far, and return its value. Raises :class:`Failed`."""

    async def run(self, actions: Sequence[Action], values: Mapping[str, str]) -> Executed:
        """Do each action; stop at the first that fails, or when the time of all is over.

        ``values`` are the results of earlier steps. Raises nothing for what is in the actions.
        """
        if not actions:
            return Executed({}, None, "there is no action")
        if len(actions) > MAX_ACTIONS:
            what = f"there are {len(actions)} actions, and {MAX_ACTIONS} are allowed"
            return Executed({}, None, what)
        new: dict[str, str] = {}
        late = asyncio.get_running_loop().time() + self.seconds
        for action in actions:
            there = {**values, **new}
            used = [name for argument in action.arguments for name in argument.variables]
            try:
                if missing := [name for name in used if name not in {*there, *self.given}]:
                    raise Failed(f"{missing[0]} has no value")
                async with asyncio.timeout_at(late):
                    new[action.result] = (await self.do(action, there))[:MAX_VALUE]
            except Failed as error:
                return Executed(new, None, f"{action.result} = {action.tool}: {error}")
            except TimeoutError:
                why = f"it takes more than {self.seconds:g} seconds"
                return Executed(new, None, f"{action.result} = {action.tool}: {why}")
        return Executed(new, answer_of(new))


def answer_of(values: Mapping[str, str]) -> str | None:
    """The value of ``Output``, else of the highest ``R``; ``None`` if there is neither."""
    if "Output" in values:
        return values["Output"]
    ranks = {int(name[1:]): name for name in values if name[:1] == "R" and name[1:].isdecimal()}
    return values[ranks[max(ranks)]] if ranks else None


def words_of(text: str) -> list[str]:
    """The words and numbers of a text in lower case, in their order; a plural's ``s`` is dropped."""
    found = _WORD.findall(text.lower())
    return [
        one[:-1] if len(one) > 3 and one.endswith("s") and one[-2] != "s" else one for one in found
    ]


def word_f1(first: str, second: str) -> float:
    """F1 of the words of two texts as multisets, in [0, 1]; 0 where one has none."""
    a, b = words_of(first), words_of(second)
    if not a or not b:
        return 0.0
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def ranked(query: str, texts: Sequence[str]) -> list[int]:
    """Places of the texts that share a word with the query, the best first, equal ones in their order.

    A word counts ``ln(1 + N / n)`` where ``n`` of the ``N`` texts have it, once for each text.
    """
    sets = [set(words_of(text)) for text in texts]
    counts = Counter(word for one in sets for word in one)
    wanted = {
        word: math.log(1 + len(sets) / counts[word]) for word in words_of(query) if counts[word]
    }
    scores = [sum(weight for word, weight in wanted.items() if word in one) for one in sets]
    return sorted(
        (at for at, score in enumerate(scores) if score), key=lambda at: (-scores[at], at)
    )
