"""Exact values of the base's first turns in ``persona``, which a critic can learn, and the pairs that a critic orders.

The base asks about all aspects alike. So its chance to know all wishes in time depends only on how many turns, wishes
and unasked aspects are left, and the advantage of each first turn can be enumerated for each set of aspects.
"""

import json
from functools import cache
from itertools import combinations
from typing import NamedTuple

from coterie.environments.collaboration import answer_in, visible
from coterie.environments.persona import (
    ASPECTS,
    HIDDEN,
    QUESTIONS,
    SENTENCES,
    THEMES,
    WISHES,
    Choice,
    aspect_sets,
    aspects_in,
)
from coterie.environments.protocol import AGENT
from coterie.environments.user_simulator import PERSON
from coterie.recipes.sweet_rl import SECOND, SweetRL
from coterie.record.store import Store
from coterie.record.tree import Task
from coterie.rollout.candidates import candidates
from coterie.runs.run import Run, StageKey
from experiments.claims import HeldOutResult

WASTED, ANSWER = "wasted", "answer"
ACTIONS: tuple[str, ...] = (*ASPECTS, WASTED, ANSWER)
"""What a first turn does: it asks about an aspect, asks about none or several, or answers."""


class Rates(NamedTuple):
    """Shares of the base's turns, while it lacks a wish, that are wasted and that answer."""

    wasted: float
    early: float


def action_of(text: str) -> str:
    if answer_in(text) is not None:
        return ANSWER
    aspects = aspects_in(visible(text))
    return aspects[0] if len(aspects) == 1 else WASTED


def measured_rates(store: Store, version: int, stage: str) -> Rates:
    """Count the turns of dialogues up to the last question. A repeated question is wasted."""
    turns = wasted = early = 0
    for tree in store.trees(version, stage):
        task = store.task(tree.task)
        choices = json.loads(task.secrets[HIDDEN].reveal(PERSON))
        for _, path in tree.trajectories():
            unknown, asked_aspects = {Choice(*choice).aspect for choice in choices}, set[str]()
            texts = [turn.text for turn in path if turn.speaker.name == AGENT]
            for action in map(action_of, texts[:QUESTIONS]):
                # An agent that knows all wishes has nothing left to ask.
                if not unknown:
                    break
                turns += 1
                early += action == ANSWER
                wasted += action == WASTED or action in asked_aspects
                asked_aspects.add(action)
                unknown -= asked_aspects
    return Rates(wasted / turns, early / turns)


def first_turns(rates: Rates) -> dict[str, float]:
    """Return the probability of each first turn of the base."""
    ask = (1 - rates.wasted - rates.early) / len(ASPECTS)
    return {
        action: {WASTED: rates.wasted, ANSWER: rates.early}.get(action, ask) for action in ACTIONS
    }


def first_advantages(rates: Rates) -> dict[str, dict[frozenset[str], dict[str, float]]]:
    """Return the base's advantage of each first turn, by theme and set of aspects."""
    ask, policy = 1 - rates.wasted - rates.early, first_turns(rates)

    @cache
    def value(questions: int, missing: int, unasked: int) -> float:
        """Return the probability that the base knows all wishes in time."""
        if not missing or questions == QUESTIONS:
            return float(not missing)
        hit = missing / unasked
        after_question = hit * value(questions + 1, missing - 1, unasked - 1)
        after_question += (1 - hit) * value(questions + 1, missing, unasked - 1)
        return rates.wasted * value(questions + 1, missing, unasked) + ask * after_question

    def advantages(present: frozenset[str]) -> dict[str, float]:
        values: dict[str, float] = {
            aspect: value(1, WISHES - (aspect in present), len(ASPECTS) - 1) for aspect in ASPECTS
        }
        values |= {WASTED: value(1, WISHES, len(ASPECTS)), ANSWER: 0.0}
        mean = sum(share * values[action] for action, share in policy.items())
        return {action: values[action] - mean for action in ACTIONS}

    return {
        theme: {present: advantages(present) for present in aspect_sets(theme)} for theme in THEMES
    }


def reference_share(rates: Rates) -> float:
    """Return the share of the variance of the first turn's advantage that only the reference explains.

    The theme explains the rest.
    """
    variance = explained_by_theme = 0.0
    for theme, by_set in first_advantages(rates).items():
        probabilities = aspect_sets(theme)
        for action, share in first_turns(rates).items():
            pairs = [
                (probabilities[present], advantages[action])
                for present, advantages in by_set.items()
            ]
            variance += share * sum(p * value**2 for p, value in pairs)
            explained_by_theme += share * sum(p * value for p, value in pairs) ** 2
    return 1 - explained_by_theme / variance


def table_asker() -> float:
    """Return the success of an agent that asks about the likely aspects first, and then about the others."""
    chances = []
    for theme, likely in THEMES.items():
        order = [*likely, *(aspect for aspect in ASPECTS if aspect not in likely)]
        questions = {*order[:QUESTIONS]}
        chances.append(sum(p for present, p in aspect_sets(theme).items() if present <= questions))
    return sum(chances) / len(chances)


def mean_rank(theme: str, action: str) -> int:
    """Return the rank of a first turn in the order of mean advantages over references, the worst first.

    Whatever the rates of the base, a likely aspect is best and an answer is worst. A question about another aspect is
    better than a wasted turn, since fewer aspects are left.
    """
    if action in (ANSWER, WASTED):
        return (ANSWER, WASTED).index(action)
    return 3 if action in THEMES[theme] else 2


def theme_of(task: Task) -> str:
    request = str(task.public["question"])
    return next(theme for theme in THEMES if request.startswith(SENTENCES[theme]))


def critic_accuracy(recipe: SweetRL, run: Run) -> dict[str, HeldOutResult]:
    """Return the share of pairs of first candidates that the critic orders as their mean advantages, by task.

    Equal advantages are half right. Pairs with equal mean advantages are left out.
    """
    settings = recipe.fingerprint(StageKey(SECOND, "reward"))
    results = dict[str, HeldOutResult]()
    for tree in run.store.trees(SECOND, "rollout"):
        theme = theme_of(run.store.task(tree.task))
        right = list[float]()
        for group in candidates(tree):
            # The first turn answers the request, which is the only turn before it.
            if len(tree.path(group[0].id)) != 2:
                continue
            scores = run.store.credit(settings, "advantage", [turn.id for turn in group])
            ranked = [(mean_rank(theme, action_of(turn.text)), scores[turn.id]) for turn in group]
            right += [
                0.5
                if first[1] == second[1]
                else float((first[1] > second[1]) == (first[0] > second[0]))
                for first, second in combinations(ranked, 2)
                if first[0] != second[0]
            ]
        if right:
            results[tree.task] = HeldOutResult(sum(right) / len(right), 0)
    return results
