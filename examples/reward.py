"""Rewards: a function that gives a number for a dialogue becomes a term, with the weight that you give it.
coterie run optima/isft 'reward.terms={examples/reward.py:asks: 0.5, examples/reward.py:thrift: 0.1}'"""

from coterie.recipes import DialogueSample


def asks(sample: DialogueSample) -> float:
    """The share of turns that ask something."""
    return sum("?" in turn.text for turn in sample.path) / len(sample.path)


def thrift(sample: DialogueSample) -> float:
    """1 for an answer in the first turn, and less for each turn more; 0 for a wrong one."""
    return (sample.outcome.score or 0.0) / len(sample.path)
