"""Answers: how they are marked in an utterance, and how right they are (exact match and token F1, as in SQuAD).

Source: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text",
section 6.1, and its evaluation script. Tokens are the words of the normalised answer, not pieces of
some model's tokenizer, so a score means the same for every model.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

from coterie.datasets.problems import boxed_answer
from coterie.environments.numbers import number

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


_MARKED = re.compile(r"<A>((?:(?!<A>).)*?)</A", re.DOTALL)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single spaces between words."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """1.0 if the prediction equals one of the golds after normalisation, else 0.0.

    ``golds`` are the right answer and its aliases. A prediction of ``None`` (no answer) scores 0.0.
    """
    _check(golds)
    if prediction is None:
        return 0.0
    return float(normalize_answer(prediction) in {normalize_answer(gold) for gold in golds})


def f1(prediction: str | None, golds: Sequence[str]) -> float:
    """F1 of the words of prediction and gold as multisets, in [0, 1]; the best over all golds.

    Precision is the share of the predicted words that are in the gold, recall the share of the
    gold's words that were predicted, each word counted as often as both have it. Where
    normalisation leaves no words of either, the two are equal or not (1.0 or 0.0), as in the
    SQuAD 2.0 script. A prediction of ``None`` (no answer) scores 0.0.
    """
    _check(golds)
    if prediction is None:
        return 0.0
    words = normalize_answer(prediction).split()
    return max(_word_f1(words, normalize_answer(gold).split()) for gold in golds)


def _word_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    common = (Counter(predicted) & Counter(gold)).total()
    return 2 * common / (len(predicted) + len(gold))


def _check(golds: Sequence[str]) -> None:
    if isinstance(golds, str):
        raise TypeError(f"golds must be a sequence of answers, not one string: use [{golds!r}]")
    if not golds:
        raise ValueError("golds is empty: an answer can't be scored without a right one")


def same_text(first: str, second: str) -> bool:
    """Equal texts, whatever their spacing."""
    return first.split() == second.split()


def same_words(first: str, second: str) -> bool:
    """Equal texts, whatever their case, spacing, articles and punctuation."""
    return exact_match(second, [first]) == 1.0


def option_of(answer: str, options: Sequence[str]) -> str:
    """The option that an answer names: in its own case, or in any if only one is spelled so.

    An answer that names none, or one of several that differ in their case only, is left as it is.
    """
    words = answer.split()
    if any(option.split() == words for option in options):
        return answer
    folded = answer.casefold().split()
    named = {tuple(o.split()): o for o in options if o.casefold().split() == folded}
    return next(iter(named.values())) if len(named) == 1 else answer


def marked_answer(text: str) -> str | None:
    """The last ``<A>answer</A>`` of an utterance with something in it, stripped; ``None`` if there is none.

    A mark that is opened and never closed, as in talk about the mark, is not an answer and hides none.
    """
    return next((one.strip() for one in reversed(_MARKED.findall(text)) if one.strip()), None)


def boxed_number(text: str) -> str | None:
    r"""The number in the last ``\boxed{...}``, in one spelling; what is not a number, as it is."""
    box = boxed_answer(text)
    return None if box is None else (number(box) or box)
