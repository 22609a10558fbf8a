"""Answers: references as secrets, marked answers in a message, exact match and F1, and votes.

Scores follow Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text", section 6.1, and its
evaluation script. Tokens are words of the normalized answer, so scores do not depend on a model's tokenizer.

A vote groups answers greedily by F1, and the largest group wins. Exact equality would separate answers that F1 rates as
nearly equal.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coterie.record.tree import Secret, Task

if TYPE_CHECKING:  # reports read answers without data sets
    from coterie.datasets.rows import QuestionRow

GRADER = "grader"
"""Role that grades, and may read all gold answers."""
TEACHER = "teacher"
"""Role whose log-probs a policy distills. It may read what helps to solve a task."""


def grader_secret(name: str, text: str, *readers: str) -> dict[str, Secret]:
    """Return a secret of the grader and further ``readers``, by name."""
    return {name: Secret(text, name=name, readers=frozenset({GRADER, *readers}))}


def secret_answers(row: "QuestionRow") -> dict[str, Secret]:
    aliases = getattr(row, "aliases", ())
    text = json.dumps(aliases, ensure_ascii=False)
    answer = grader_secret("answer", row.answer, TEACHER)
    return answer | (grader_secret("aliases", text) if aliases else {})


def gold_answer(task: Task) -> str:
    return task.secrets["answer"].reveal(GRADER)


def question_of(task: Task) -> str:
    # Tasks of games have no question, so their public fields describe them.
    fields = ", ".join(f"{name}: {value}" for name, value in task.public.items())
    return str(task.public.get("question") or fields)


def known_answers(task: Task) -> tuple[str, ...]:
    """Return the right answers of a task, for reports; it may have none."""
    return tuple(gold_answers(task)) if "answer" in task.secrets else ()


def gold_answers(task: Task) -> list[str]:
    """Return the right answer of a task and its aliases, for graders."""
    aliases = task.secrets.get("aliases")
    return [gold_answer(task), *(json.loads(aliases.reveal(GRADER)) if aliases else ())]


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# The answer begins at the last opening mark, so an unclosed one before it is ignored.
_MARKED = re.compile(r"<A>((?:(?!<A>).)*?)</A", re.DOTALL)


def normalize_answer(text: str) -> str:
    """Convert to lower case and remove ASCII punctuation, English articles and repeated spaces."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """Return 1.0 if the normalized prediction equals one of the normalized golds, else 0.0.

    ``golds`` are the right answer and its aliases. A prediction of ``None`` (no answer) scores 0.0.
    """
    _check(golds)
    if prediction is None:
        return 0.0
    return float(normalize_answer(prediction) in {normalize_answer(gold) for gold in golds})


def f1(prediction: str | None, golds: Sequence[str]) -> float:
    """Return the maximum F1 of the prediction's words over all golds, in [0, 1].

    Words are compared as multisets after normalization. If one side has no words, the score is 1.0 if both have none
    and else 0.0, as in the SQuAD 2.0 script. A prediction of ``None`` (no answer) scores 0.0.
    """
    _check(golds)
    if prediction is None:
        return 0.0
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, normalize_answer(gold).split()) for gold in golds)


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    # Intersection of multisets: a word counts as often as both sides have it.
    common = (Counter(predicted) & Counter(gold)).total()
    # F1 = 2PR / (P + R), with P = common / predicted words and R = common / gold words.
    return 2 * common / (len(predicted) + len(gold))


def _check(golds: Sequence[str]) -> None:
    if isinstance(golds, str):
        raise TypeError(f"golds must be a sequence of answers, not one string: use [{golds!r}]")


def same_text(text: str, second: str) -> bool:
    return text.split() == second.split()


def same_words(text: str, second: str) -> bool:
    return exact_match(second, [text]) == 1.0


def option_of(answer: str, options: Sequence[str]) -> str:
    """Return the option that an answer names, ignoring case if that is unambiguous.

    An answer that names no option, or one of several that differ only in case, is returned unchanged.
    """
    words = answer.split()
    # An exact match comes first, because some options differ only in case.
    if any(option.split() == words for option in options):
        return answer
    folded = answer.casefold().split()
    matches = {tuple(o.split()): o for o in options if o.casefold().split() == folded}
    return next(iter(matches.values())) if len(matches) == 1 else answer


def marked_answer(text: str) -> str | None:
    """Return the last non-empty ``<A>answer</A>`` of a message, stripped, or ``None``.

    A mark that is never closed is ignored.
    """
    return next(
        (answer.strip() for answer in reversed(_MARKED.findall(text)) if answer.strip()), None
    )


def doubling(limit: int) -> list[int]:
    """Return numbers of answers to report: 1, 2, 4, ... and ``limit``; nothing for a limit of 0."""
    powers = [2**power for power in range(limit.bit_length())] if limit > 0 else []
    return powers if powers[-1:] in ([], [limit]) else [*powers, limit]


ALIKE = 0.9
"""Minimum similarity at which two answers count as equal."""

Similarity = Callable[[str, str], float]
"""Similarity of two answers, in [0, 1] (:class:`~coterie.environments.protocol.Votes`)."""


class Vote:
    """Incremental count of answers.

    An answer joins the first group with a similar member, or else starts a group. In a tie the oldest group wins.
    """

    def __init__(self, similarity: Similarity) -> None:
        self._similarity = similarity
        self._groups: list[list[int]] = []
        self._answers: dict[int, str] = {}

    def add(self, voter: int, answer: str | None) -> None:
        """Count the answer of ``voter``, a unique number. ``None`` (no answer) is not a vote."""
        if answer is None:
            return
        self._answers[voter] = answer
        for group in self._groups:
            # One similar member is enough: similarity is not transitive.
            if any(self._alike(answer, self._answers[member]) for member in group):
                group.append(voter)
                return
        self._groups.append([voter])

    @property
    def winners(self) -> tuple[int, ...]:
        largest = max(map(len, self._groups), default=0)
        # Groups are in the order of their first members, so ties go to the oldest group.
        return next((tuple(group) for group in self._groups if len(group) == largest), ())

    def _alike(self, answer: str, earlier: str) -> bool:
        return answer == earlier or self._similarity(answer, earlier) >= ALIKE
