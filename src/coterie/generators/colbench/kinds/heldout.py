"""Kinds of the held-out split."""

import random
from typing import Any

from coterie.generators.colbench.kinds.kind import FunctionKind

PLAYERS = ("Ida", "Jon", "Kim", "Lou")
LINES = (
    "", "   ", "  and I ", "a gull   cries twice", "home", "over stones that Nobody counted", "Rain", "slow Bells",
    "The sea  is GREY today", "walk",
)  # fmt: skip
FIRST = ("Jo", "Lena", "Mia", "Omar", "Pat")
LAST = ("Garcia-Lopez", "Li", "O'Hara", "Stone", "van Dyk")
TAKEN = ("jos", "joston", "jstone", "lim", "lip", "miali", "mli", "pats", "pli", "ps", "stonj")
RIDERS = ("Ana", "Bo", "Cy", "Di", "Ed", "Flo")


def _games(rng: random.Random) -> tuple[Any, ...]:
    pairs = (rng.sample(PLAYERS, 2) for _ in range(rng.randint(1, 5)))
    return ([(home, away, rng.choice("12x")) for home, away in pairs],)


def _readings(rng: random.Random) -> tuple[Any, ...]:
    reading, readings = rng.randint(10, 900), []
    for _ in range(rng.randint(1, 7)):
        readings.append(reading)
        reading = rng.randint(0, 50) if rng.random() < 0.15 else reading + rng.randint(1, 80)
    return (readings,)


def _ride(rng: random.Random) -> tuple[Any, ...]:
    riders = rng.sample(RIDERS, rng.randint(1, 6))
    return rng.randint(10, 180), riders, rng.choice(riders)


TABLE = FunctionKind(
    "heldout",
    "personal",
    "table(games)",
    "In $about we count points differently from everybody else. I have the games as (home, away, '1', '2' or 'x') and "
    "want the table.",
    (
        "our boule league",
        "our chess club",
        "the table tennis club",
        "the draughts evening",
        "the darts league",
        "our office foosball",
    ),
    """
points = {}
for home, away, result in games:
    points.setdefault(home, 0)
    points.setdefault(away, 0)
    if result == "1":
        points[home] += $win
        points[away] += $lost
    elif result == "2":
        points[away] += $win + $guest
        points[home] += $lost
    else:
        points[home] += 1
        points[away] += 1
return sorted(points.items(), key=lambda item: (-item[1], $tie))
""",
    {
        "win": (2, 3, 4),
        "lost": (0, -1),
        "guest": (0, 1, 2),
        "tie": ("item[0]", "item[0][::-1]"),
    },
    _games,
)

HIVE_STATE = FunctionKind(
    "heldout",
    "personal",
    "hive_state(frames, mites, weight)",
    "Each week I look at $about and count frames of brood and mites, and weigh them in kilos. Then I decide what to "
    "do; I'd like my rule of thumb as code.",
    (
        "my uncle's hives",
        "the hives on the roof",
        "our school's hives",
        "my hives",
        "the monastery's hives",
        "the orchard's hives",
    ),
    """
score = frames * $frame - mites // $share
if weight < $light:
    return "$feed"
if mites > $many:
    return "$treat"
return "divide" if score >= $strong else "$else_"
""",
    {
        "frame": (2, 3),
        "share": (2, 3),
        "light": (18, 20, 22),
        "feed": ("feed", "sugar"),
        "many": (10, 12, 15),
        "treat": ("acid", "treat"),
        "strong": (14, 16),
        "else_": ("leave", "wait"),
    },
    lambda rng: (rng.randint(2, 11), rng.randint(1, 30), rng.randint(14, 40)),
)

TIDY = FunctionKind(
    "heldout",
    "personal",
    "tidy(lines)",
    "I want $about on one line in my newsletter, and I am particular about how that looks. The lines come as a list.",
    (
        "my poems",
        "the church bulletin",
        "our song texts",
        "my postcards",
        "the week's menu",
        "our riddles",
    ),
    """
result = []
for line in lines:
    line = " ".join(line.split())$case
    if not line:
        continue
    if len(line) > $long:
        line = line[:$cut].rstrip() + "$mark"
    result.append(line)
return "$between".join(result$order) + " $end"
""",
    {
        "case": ("", ".lower()", ".capitalize()"),
        "long": (20, 24),
        "cut": (12, 14),
        "mark": ("..", "-"),
        "between": (" | ", " / "),
        "order": ("", "[::-1]", "[:3]"),
        "end": ("*", "+"),
    },
    lambda rng: ([rng.choice(LINES) for _ in range(rng.randint(2, 5))],),
)

WALK_MINUTES = FunctionKind(
    "heldout",
    "personal",
    "walk_minutes(age, rain, celsius)",
    "How long I walk $about depends on age, rain and the temperature. The sitter asks each time, so I would rather "
    "give her a little program.",
    (
        "the neighbour's greyhound",
        "our puppy",
        "my old dog",
        "the shelter's dogs",
        "my sister's terrier",
        "the farm's collies",
    ),
    """
minutes = $most - $year * abs(age - $best)
if rain:
    minutes -= $wet
if celsius > $hot or celsius < $cold:
    minutes //= $less
return max(minutes, $least)
""",
    {
        "most": (60, 70, 80),
        "year": (3, 4),
        "best": (3, 4, 5),
        "wet": (15, 20),
        "hot": (24, 26),
        "cold": (-5, 0),
        "less": (2, 3),
        "least": (10, 12, 15),
    },
    lambda rng: (rng.randint(0, 14), rng.random() < 0.5, rng.randint(-10, 34)),
)

BOXES = FunctionKind(
    "heldout",
    "personal",
    "boxes(width, length, side)",
    "I am tiling $about and have to order boxes of tiles, all sizes in centimetres. I break some, as I know from "
    "experience, so count as I would; a second number should help me on the floor.",
    (
        "the club's kitchen",
        "my terrace",
        "the bathroom",
        "a mosaic table",
        "the church's porch",
        "our cellar",
    ),
    """
across = -(-width // side)
along = -(-length // side)
tiles = across * along
tiles += $spare
return -(-tiles // $box), $second
""",
    {
        "spare": (
            "across + 1",
            "across + 2",
            "along + 2",
            "across + along + 3",
            "tiles // 10 + 1",
        ),
        "box": (8, 10, 12),
        "second": ("across", "along", "tiles"),
    },
    lambda rng: (
        rng.randrange(90, 500, 10),
        rng.randrange(90, 500, 10),
        rng.choice((15, 20, 25, 30)),
    ),
)

USAGE = FunctionKind(
    "heldout",
    "personal",
    "usage(readings)",
    "I read $about now and then and get a list of numbers. It has hiccups which I leave out in my head. I want the one "
    "number that I write into my diary.",
    (
        "the greenhouse sensor",
        "our cabin's water meter",
        "my step counter",
        "the gas meter",
        "the rain gauge",
        "the boat's engine hours",
    ),
    """
used = []
for before, after in zip(readings, readings[1:]):
    change = after - before
    if change < 0:
        change $reset
    if change <= $most:
        used.append(change)
if not used:
    return $nothing
return $number
""",
    {
        "reset": ("= 0", "= after", "+= 1000"),
        "most": (40, 60, 75),
        "nothing": (0, -1),
        "number": (
            "sum(used) // len(used)",
            "max(used) - min(used)",
            "sorted(used)[len(used) // 2]",
        ),
    },
    _readings,
)

HANDLE = FunctionKind(
    "heldout",
    "personal",
    "handle(first, last, taken)",
    "New people of $about get a short name for the door system, made of their first and last name. Some names are "
    "taken already. We have a scheme, of course.",
    (
        "our makerspace",
        "the sailing school",
        "the amateur radio club",
        "the festival crew",
        "the climbing hall",
        "our print studio",
    ),
    """
base = ($base).lower()
base = "".join(c for c in base if c.isalnum())[:$most]
name, number = base, $first_number
while name in taken:
    number += 1
    name = base + $suffix
return name$shape
""",
    {
        "base": ("first[0] + last", "last[:4] + first[:2]", "first + last[0]"),
        "most": (6, 7, 8),
        "first_number": (1, 2),
        "suffix": ("str(number)", '"_" + str(number)'),
        "shape": ("", ".upper()", "[::-1]"),
    },
    lambda rng: (rng.choice(FIRST), rng.choice(LAST), sorted(rng.sample(TAKEN, 4))),
)

MARK = FunctionKind(
    "heldout",
    "personal",
    "mark(theory, practice, extra)",
    "I mark $about: there are points for theory, for practice and some extra ones. What comes out is a word on a "
    "paper, by rules that grew over the years.",
    (
        "the beekeepers' exam",
        "our sailing exam",
        "my pottery course",
        "the first-aid course",
        "the hunters' exam",
        "my piano pupils",
    ),
    """
points = theory * $theory + practice * $practice + min(extra, $extra)
if practice < $least:
    return "$fail"
for least, name in (($top, "$best"), ($middle, "$good"), ($low, "$fair")):
    if points >= least:
        return name
return "$poor"
""",
    {
        "theory": (1, 2),
        "practice": (2, 3),
        "extra": (5, 8),
        "least": (8, 10),
        "fail": ("again", "fail", "repeat"),
        "top": (75, 80),
        "best": ("A", "gold", "top"),
        "middle": (60, 64),
        "good": ("B", "good", "silver"),
        "low": (44, 50),
        "fair": ("bronze", "C", "pass"),
        "poor": ("second look", "talk"),
    },
    lambda rng: (rng.randint(5, 20), rng.randint(6, 20), rng.randint(0, 14)),
)

SHARE = FunctionKind(
    "heldout",
    "personal",
    "share(kilometres, riders, driver)",
    "After each trip of $about we divide what it has cost, in cents. There are the kilometres, who rode along and who "
    "drove; the rest is custom.",
    (
        "our car pool",
        "the swimmers' minibus",
        "the village bus",
        "the team's van",
        "the choir's coach",
        "our share of a truck",
    ),
    """
cost = kilometres * $each + $fixed
paying = [name for name in riders if $pays]
if not paying:
    return {}
each = cost // len(paying)
each = $rounded
return {name: each for name in sorted(paying)}
""",
    {
        "each": (28, 32, 35),
        "fixed": (0, 100, 150),
        "pays": ("name != driver", "name != driver or len(riders) > 4", "name != 'Ana'"),
        "rounded": ("round(each, -1)", "-(-each // 5) * 5", "each // 50 * 50"),
    },
    _ride,
)

HELDOUT: tuple[FunctionKind, ...] = (
    TABLE,
    HIVE_STATE,
    TIDY,
    WALK_MINUTES,
    BOXES,
    USAGE,
    HANDLE,
    MARK,
    SHARE,
)
"""Nine kinds."""
