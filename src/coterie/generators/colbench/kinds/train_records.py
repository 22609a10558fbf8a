"""Kinds of the training split whose calls are lists and dictionaries: results, shifts, hands of cards."""

import random
from typing import Any

from coterie.generators.colbench.kinds.kind import FunctionKind

TEAMS = ("Ada", "Bo", "Cem", "Dora", "Eli", "fay", "Gus")
WEEKDAYS = ("Monday", "Wednesday", "Saturday", "Sunday")
CARDS = ("A", "K", "Q", "J", "10", "9", "7", "5", "2", "*")
PEOPLE = ("Ana", "Ben", "Cleo", "Dan", "Eve")
STAPLES = {"beans": 400, "carrots": 350, "oats": 500}
SPICES = ("chilli", "cumin", "pepper", "salt")
BIRDS = ("coot", "heron", "kestrel", "robin", "swift", "wren")


def _race(rng: random.Random) -> tuple[Any, ...]:
    teams = rng.sample(TEAMS, rng.randint(2, 5))
    fouls = {team: rng.randint(1, 4) for team in teams if rng.random() < 0.5}
    return {team: rng.randint(200, 369) for team in teams}, fouls


def _shifts(rng: random.Random) -> tuple[Any, ...]:
    shifts = range(rng.randint(1, 3))
    return ([(rng.choice(WEEKDAYS), rng.randrange(24), rng.randint(2, 10)) for _ in shifts],)


def _hand(rng: random.Random) -> tuple[Any, ...]:
    return ([rng.choice(CARDS) for _ in range(rng.randint(1, 6))],)


def _weeks(rng: random.Random) -> tuple[Any, ...]:
    people = rng.sample(PEOPLE, rng.randint(1, 3))
    return ({name: [int(rng.random() < 0.6) for _ in range(rng.randint(2, 7))] for name in people},)


def _recipe(rng: random.Random) -> tuple[Any, ...]:
    staples = rng.sample(list(STAPLES), rng.randint(1, 3))
    amounts = {name: STAPLES[name] + rng.randint(0, 30) for name in staples}
    amounts |= {name: rng.randint(10, 45) for name in rng.sample(SPICES, rng.randint(1, 2))}
    return amounts, rng.randint(1, 20)


def _sightings(rng: random.Random) -> tuple[Any, ...]:
    return ([(rng.choice(BIRDS), rng.randint(1, 14)) for _ in range(rng.randint(2, 6))],)


RANKING = FunctionKind(
    "train",
    "personal",
    "ranking(times, penalties)",
    "I keep the results of $about: seconds for each team, and how often it broke a rule. I want the names in the "
    "order in which they get their prizes.",
    (
        "our orienteering evening",
        "our paddling regatta",
        "the village soapbox race",
        "the swim relay",
        "the three-legged race",
        "our ski day",
    ),
    """
totals = {name: seconds + $penalty * penalties.get(name, 0) for name, seconds in times.items()}
kept = [name for name in totals if totals[name] <= $slow]
return sorted(kept, key=lambda name: (totals[name] // $step, $tie))
""",
    {
        "penalty": (5, 10, 15),
        "slow": (310, 330, 350),
        "step": (1, 2, 10),
        "tie": ("name.lower()", "name[::-1]", "-len(name), name"),
    },
    _race,
)

SHIFT_POINTS = FunctionKind(
    "train",
    "personal",
    "shift_points(shifts)",
    "Volunteers of $about collect points for their shifts; unpleasant hours count for more. Each shift is a "
    "weekday, the hour it begins, and its length.",
    (
        "our food bank",
        "the animal shelter",
        "the museum train",
        "the youth centre",
        "the mountain rescue",
        "the repair café",
    ),
    """
total = 0
for weekday, start, hours in shifts:
    points = hours * ($night if start >= $late or start < $early else $day)
    if weekday == "$special":
        points += $bonus * hours
    if hours > $long:
        points -= 10
    total += points
return total
""",
    {
        "night": (16, 18, 20),
        "late": (20, 22),
        "early": (5, 6),
        "day": (10, 12, 14),
        "special": ("Saturday", "Sunday"),
        "bonus": (2, 3),
        "long": (6, 8),
    },
    _shifts,
)

HAND_VALUE = FunctionKind(
    "train",
    "personal",
    "hand_value(cards)",
    "In $about a hand is counted at the end of each round, and nobody outside knows the rules. Cards are written as "
    "'A', 'K', '7' and so on, a joker as '*'.",
    (
        "our family's card game",
        "the campers' card game",
        "grandmother's rummy",
        "the game we play at the lodge",
        "the sailors' game",
        "our lunch break game",
    ),
    """
worth = {"A": $ace, "K": $face, "Q": $face, "J": $face, "*": $joker}
total = sum(worth[card] if card in worth else int(card) for card in cards)
pairs = {card for card in cards if cards.count(card) > 1}
total += $pair * len(pairs)
return total if len(cards) $enough else total * 2
""",
    {
        "ace": (1, 11, 15),
        "face": (5, 10, 12),
        "joker": (-5, 20, 25),
        "pair": (-3, 5, 7),
        "enough": ("> 2", "> 1", "< 5"),
    },
    _hand,
)

ATTENDANCE = FunctionKind(
    "train",
    "personal",
    "attendance(record)",
    "I write down who comes to $about, a 1 or a 0 for each week. I would like to know for each person what I should do "
    "about it, as I do it by eye now.",
    (
        "the folk dance group",
        "my choir",
        "the drama club",
        "our brass band",
        "the chess evening",
        "my yoga class",
    ),
    """
result = {}
for name, weeks in record.items():
    share = 100 * sum(weeks) // len(weeks)
    missed = 0
    for week in reversed(weeks):
        if week:
            break
        missed += 1
    if missed >= $missed:
        result[name] = "$away"
    else:
        result[name] = "$well" if share >= $share else "$poor"
return result
""",
    {
        "missed": (1, 2, 3),
        "away": ("ask", "call", "phone"),
        "well": ("fine", "good", "ok"),
        "share": (60, 70, 75, 80),
        "poor": ("talk", "watch"),
    },
    _weeks,
)

SCALE = FunctionKind(
    "train",
    "personal",
    "scale(amounts, people)",
    "I cook $about for ever changing numbers of people. Not everything grows in the same way when I cook for more, "
    "and I like round amounts.",
    (
        "my grandmother's stew",
        "the harvest soup",
        "the scouts' porridge",
        "our canteen's curry",
        "the street party's chilli",
        "the hikers' lentils",
    ),
    """
factor = people / $usual
scaled = {}
for name, grams in amounts.items():
    if name in $slow:
        grams = grams * factor ** 0.5
    else:
        grams = grams * factor
    scaled[name] = int(grams / $step + 0.5) * $step
return scaled
""",
    {
        "usual": (4, 6, 8),
        "slow": ("('salt', 'cumin')", "('pepper', 'salt')", "('chilli', 'pepper')"),
        "step": (5, 10, 20),
    },
    _recipe,
)

RAREST = FunctionKind(
    "train",
    "personal",
    "rarest(sightings)",
    "People send me what they saw at $about, pairs of a bird and how many. For the newsletter I pick the rarest one of "
    "the week, with a few habits of mine.",
    (
        "the school garden",
        "my balcony",
        "the estuary",
        "our nature reserve",
        "the old quarry",
        "the mill pond",
    ),
    """
counts = {}
for bird, number in sightings:
    counts[bird] = counts.get(bird, 0) + $number
seen = [bird for bird, total in counts.items() if total >= $least]
if not seen:
    return "$nothing"
return min(seen, key=lambda bird: (counts[bird], $tie))
""",
    {
        "number": ("number", "min(number, 10)", "min(number, 5)"),
        "least": (1, 2, 4),
        "nothing": ("none", "nothing", "-"),
        "tie": ("bird", "len(bird), bird", "bird[::-1]"),
    },
    _sightings,
)

TRAIN_RECORDS: tuple[FunctionKind, ...] = (
    RANKING,
    SHIFT_POINTS,
    HAND_VALUE,
    ATTENDANCE,
    SCALE,
    RAREST,
)
"""Six kinds."""
