"""Kinds of the training split whose calls are single values: fees, amounts, labels."""

from coterie.generators.colbench.kinds.kind import FunctionKind

FLOURS = ("rye", "spelt", "wholemeal", "white")
THINGS = (
    "green walnut", "No. 7 mix", "oak", "old rope", "red onion", "rose-hip", "sloe & gin", "St. John", "wild plum", "x",
)  # fmt: skip
COUNTRIES = ("AT", "BE", "DE", "FR", "IE", "NO", "SE", "UK", "US")

PROVING = FunctionKind(
    "train",
    "personal",
    "proving_minutes(grams, celsius, flour)",
    "For $about I always guess how long a dough has to prove. It hangs on its weight, the room and the flour, and I "
    "have my own rules for that.",
    (
        "my sourdough stall",
        "our village bakery",
        "the bread club I run",
        "my brother's pizza oven",
        "the camp kitchen",
        "my Saturday rolls",
    ),
    """
minutes = grams // 100 * $each + $least
if celsius < $cold:
    minutes += $more
if flour == $quick:
    minutes = minutes * 3 // 4
return minutes // $step * $step
""",
    {
        "each": (15, 20, 25),
        "least": (60, 90, 120),
        "cold": (16, 18, 20),
        "more": (30, 45, 60),
        "quick": ("'rye'", "'spelt'", "'white'"),
        "step": (5, 10, 15),
    },
    lambda rng: (rng.randrange(200, 1450, 50), rng.randint(14, 28), rng.choice(FLOURS)),
)

LATE_FEE = FunctionKind(
    "train",
    "personal",
    "late_fee(days, items, member)",
    "At $about we charge something when things come back late, and we are kinder to members. I need the amount in "
    "cents from the days, the number of things and whether it is a member.",
    (
        "the seed library",
        "the toy library",
        "the tool library",
        "our school library",
        "the costume store",
        "the board game café",
    ),
    """
late = max(0, days - $free)
fee = min(late, 7) * $first + max(0, late - 7) * $then
fee = min(fee * items, $most)
if member:
    fee = $member
return fee
""",
    {
        "free": (1, 3, 5),
        "first": (10, 15, 20),
        "then": (25, 30, 40),
        "most": (400, 750, 900),
        "member": ("fee // 2", "fee - fee // 4", "fee * 3 // 5"),
    },
    lambda rng: (rng.randint(0, 29), rng.randint(1, 4), rng.random() < 0.5),
)

WATER = FunctionKind(
    "train",
    "personal",
    "water(moisture, celsius, pots)",
    "My $about get water by the soil's moisture and the heat of the day. I know by heart how much each time, but the "
    "neighbour who looks after them doesn't.",
    ("orchids", "ferns", "tomatoes", "chillies", "olive trees", "herbs"),
    """
if moisture > $wet:
    return 0
amount = $some if moisture >= $dry else 2 * $some
if celsius >= $hot:
    amount += $extra
return amount * pots + ($rest if pots > $few else 0)
""",
    {
        "wet": (40, 45, 50),
        "some": (50, 75, 100),
        "dry": (20, 25),
        "hot": (26, 28, 30),
        "extra": (25, 40),
        "rest": (10, 20),
        "few": (3, 4, 5),
    },
    lambda rng: (rng.randint(5, 69), rng.randint(20, 34), rng.randint(1, 8)),
)

LABEL = FunctionKind(
    "train",
    "personal",
    "label(name, year, number)",
    "I label my $about in a way of my own, from the name, the year and a running number. My labels should all look the "
    "same.",
    ("jam jars", "film rolls", "seed bags", "spare parts", "wine bottles", "sketch books"),
    """
letters = "".join(c for c in name if c.isalpha())[:$letters].$case()
short = str(year)[-2:] if year >= $since else str(year)
return "$between".join([$parts, str(number).zfill($digits)])
""",
    {
        "letters": (3, 4, 5),
        "case": ("upper", "lower"),
        "since": (2000, 2010),
        "between": ("-", "/", "."),
        "parts": ("letters, short", "short, letters"),
        "digits": (3, 4),
    },
    lambda rng: (rng.choice(THINGS), rng.randint(1985, 2024), rng.randint(1, 120)),
)

POSTAGE = FunctionKind(
    "train",
    "personal",
    "postage(grams, country, cents)",
    "Customers of $about should see what sending costs: I go by the parcel's weight, where it goes and what they have "
    "spent, in cents.",
    (
        "my yarn shop",
        "the honey farm",
        "my pottery shop",
        "our print shop",
        "the tea room",
        "my soap works",
    ),
    """
if grams <= $light:
    price = $small
elif grams <= $middle:
    price = $medium
else:
    price = $large
if country not in $near:
    price = price * 2 + $abroad
return 0 if cents >= $free and country in $near else price
""",
    {
        "light": (500, 750),
        "middle": (2000, 2500),
        "small": (390, 450),
        "medium": (590, 640),
        "large": (990, 1090, 1190),
        "near": ("('DE', 'AT')", "('FR', 'BE')", "('IE', 'UK')", "('NO', 'SE')"),
        "abroad": (50, 100, 150),
        "free": (5000, 6000),
    },
    lambda rng: (
        rng.randrange(100, 4600, 50),
        rng.choice(COUNTRIES),
        rng.randrange(1000, 10000, 500),
    ),
)

WEEKS_TO_SAVE = FunctionKind(
    "train",
    "personal",
    "weeks_to_save(price, weekly, start)",
    "I am saving for $about with a bit of money every week, in the odd way in which I do it. How many weeks will it "
    "take?",
    ("a long trip", "a kayak", "a new roof", "a piano", "a loom", "a second-hand van"),
    """
saved, weeks = start, 0
while saved < price and weeks < $most:
    weeks += 1
    saved += weekly
    if weeks % $every == 0:
        saved += $change
return weeks if saved >= price else -1
""",
    {
        "most": (104, 156, 208),
        "every": (4, 5, 6),
        "change": ("10", "weekly", "-15", "-weekly // 2"),
    },
    lambda rng: (
        rng.randrange(400, 2850, 50),
        rng.choice((10, 15, 20, 25, 30, 40, 50)),
        rng.randrange(0, 180, 20),
    ),
)

TRAIN: tuple[FunctionKind, ...] = (PROVING, LATE_FEE, WATER, LABEL, POSTAGE, WEEKS_TO_SAVE)
"""Six kinds."""
