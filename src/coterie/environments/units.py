"""Units and counted nouns after numbers in answers, which do not change their value.

Units can be listed, but counted things can't. So a phrase after a number is parsed by its form: adjectives, one
**head**, and a tail, as in ``red apples in each box``. The head is a unit (``mile``, ``kg``), a plural noun
(``apples``), or after 1 a singular noun. Nothing else can be the head, so ``18 actually``, ``18 dollars max`` and
``18 gross`` are not 18. There are three closed lists: words that change or deny a value anywhere in a phrase
(``million``, ``not``), asides (``sorry``), and words in ``s`` that are not plurals (``perhaps``).

Limits: verbs that look like plurals (``18 works``) and unlisted hedges in the place of an adjective or after 1 are
accepted. None of these states another number.
"""

import re

LETTERS = re.compile(r"[^\W\d_]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(LETTERS.findall(text))


MONEY = r"(?:(?:US|AU?|CA?|NZ|HK|S)?\$|[€£¥₹¢]|(?:USD|EUR|GBP|Rs\.?)(?![a-zA-Z]))"
_WORD = r"[^\W\d_²³]+"
_PHRASE = re.compile(
    rf" ?(?:%|{MONEY})? ?(?:(?P<words>/? ?{_WORD}(?:(?: ?[/·×] ?| |-){_WORD}){{0,7}})"
    r" ?(?:\^ ?\{?-?[123]\}?|[²³])?)?"
)
# The possessive of an owner, as in ``Ann's apples``.
_OWNER = re.compile(r"(?<=[a-z])['’]s?(?= [a-z])")
_LEFT_OVER = re.compile(r"\bleft over\b")
# Symbols of units with one letter, such as meters or grams.
_UNIT_LETTERS = frozenset("mghstACFJLNVW")
SYMBOLS = _words(
    "mm cm dm km kg mg lb oz ft in yd mi ml cl dl hr hp pm am hz pa kpa kw kwh kj kcal cal kv ma kb mb gb tb "
    "db ha ct pt qt th st nd rd kr min sec yr wk mo gal tsp tbsp tbs mph kph kmh rpm psi btu mol ppm mhz ghz "
    "deg rad usd eur gbp cad aud nzd inr jpy cny"
)
"""Symbols of units, of two letters or more; other pairs of letters are products of variables."""
_UNITS = re.compile(
    r"(?:kilo|centi|milli|deci|micro|nano|mega|giga|tera)?(?:met(?:er|re)|gram|lit(?:er|re)|watt|joule|byte|bit"
    r"|second|hertz|pascal|calorie|volt|ton)|minute|hour|day|week|month|year|decade|century|foot|inch|yard|mile"
    r"|pound|ounce|tonne|stone|gallon|quart|pint|cup|teaspoon|tablespoon|dollar|cent|penny|nickel|dime|euro|yen"
    r"|yuan|won|rupee|peso|franc|degree|radian|percent|percentage|point|unit|knot|acre|hectare|carat|newton"
    r"|kelvin|celsius|fahrenheit|mole|ampere|ohm"
)
# Regular plurals, except for words in ``ss`` and ``us``, then irregular ones.
_PLURAL = re.compile(
    r".+(?<![su])s|.*(?:people|children|feet|teeth|mice|geese|fish|sheep|deer)|(?:wo|.{3,})?men|oxen|dice|cattle"
    r"|shrimp|salmon|trout|squid|moose|bison|offspring|aircraft|data|bacteria|radii|foci|cacti|fungi|fruit|candy"
)
_NO_PLURAL = _words(
    "as was has does its his hers ours yours theirs yes perhaps oops thanks always besides whereas sometimes "
    "nowadays towards afterwards else equals means seems looks is this basis"
)
# What may follow any head, such as ``in each box``.
_TAIL = re.compile(
    r"(?: (?:old|long|wide|high|tall|deep|thick|away|apart|ago|early|late|left|remaining|more|extra|total"
    r"|altogether|overall|together|combined|each|apiece|now|today|(?:/|per|a|an|each|every|in)(?: [^ /]+){1,4}))*"
)
_TAIL_OF_A_NOUN = re.compile(
    r"(?: (?:less|fewer|(?:long|short|heavi|light|old|young|tall|fast|slow|cheap|farth|high|low)er|more))?"
    rf"(?: (?:of|for|from|on|at|to|than)(?: [^ /]+){{1,4}})?{_TAIL.pattern}"
)
_CHANGING = _words(
    "or and nor not but no never isn if unless maybe perhaps possibly probably about around roughly "
    "approximately approx nearly almost circa ish either neither else otherwise except instead is was "
    "are versus vs between most least plus minus negative times over under above below divided "
    "multiplied squared cubed factorial mod modulo root half twice thrice double triple dozen dozens "
    "hundred hundreds thousand thousands million millions billion billions trillion trillions mn bn "
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "wrong incorrect neg ne neq approx sim simeq cong equiv le leq ge geq lt gt mp sqrt pi "
    "tenth tenths hundredth hundredths thousandth thousandths millionth millionths billionths halves thirds "
    "quadrillion lakh lakhs crore crores myriad mil mio mille permille basis doubled tripled quadrupled "
    "halved raised power fold inverse reciprocal opposite negated reversed choose base binary hex "
    "hexadecimal octal false untrue invalid impossible undefined unlikely likely excluded rounded "
    "estimate estimated guess guessed correction oops none unknown forbidden nope however rather fourth"
)
"""Words that change or qualify a number's value. They are not allowed in names either."""
_ASIDES = _words(
    "sorry wait max maximum minimum gross grosses score scores grand hmm um uh er well okay ok sure yeah huh "
    "tops ballpark"
)
"""Asides, and words with a quantity of their own. They are allowed in names (``max = 18``)."""
# Adverbs, without nouns and adjectives in ``ly``.
_ADVERB = re.compile(
    r"(?!(?:week|month|year|hour|quarter|fami|friend|assemb|butterf|dragonf)ly).{4,}ly"
)


def is_unit(rest: str, *, singular: bool = False) -> bool:
    """Return True if a text is empty, a unit or a counted noun, after an optional percent sign or currency.

    ``singular`` allows any singular noun, for a number of at most 1.
    """
    match = _PHRASE.fullmatch(_LEFT_OVER.sub("left", _OWNER.sub("", rest)))
    if match is None:
        return False
    words = re.findall(r"/|[^\W_]+", match["words"] or "")
    # A single letter must be a symbol, an article, or the slash of a rate.
    if any(len(word) == 1 and word not in _UNIT_LETTERS | {"a", "/"} for word in words):
        return False
    words = [word if word in _UNIT_LETTERS else word.casefold() for word in words]
    # ``5 times a week`` counts events; elsewhere the word multiplies.
    if words[:1] == ["times"]:
        words = words[1:]
    return not any(changes_value(word) or word in _ASIDES for word in words) and _is_count(
        words, singular
    )


_SAME = """\
mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre; inch; ft foot feet
yd yard; mi mile; mg milligram; g gram; kg kilogram; oz ounce; lb pound; ml milliliter millilitre; l L liter litre
s sec second; min minute; h hr hour; day; week; month; year yr; rad radian; deg degree circ °; C celsius
F fahrenheit; dollar $ usd; cent ¢; euro eur €; £ gbp"""
_CANONICAL = {
    word: line.split()[0] for line in _SAME.replace("\n", ";").split(";") for word in line.split()
}
_POWER = ((2, re.compile(r"\bsq(?:uare)?\b|\^\{?2\b|²")), (3, re.compile(r"\bcubic\b|\^\{?3\b|³")))


def units_of(text: str) -> frozenset[str]:
    """Return the normalized common units in a text, such as ``cm 2`` for ``square centimeters``."""
    names = []
    for word in re.findall(r"[a-zA-Z]+|\\\$|[¢€£°]", text):
        word = word.removeprefix("\\") if len(word) == 1 or word == r"\$" else word.casefold()
        matches = [_CANONICAL.get(word.removesuffix(end)) for end in ("", "s", "es")]
        names += [name for name in matches if name][:1]
    powers = "".join(f" {power}" for power, pattern in _POWER if pattern.search(text))
    return frozenset(name + powers for name in names)


def changes_value(word: str) -> bool:
    """Return True if a word changes or qualifies a value, such as ``million``, ``not``, ``m²``."""
    return word.casefold() in _CHANGING or any(map(str.isnumeric, word))  # as in m² and x½


def _is_count(words: list[str], singular: bool) -> bool:
    tails = ["".join(f" {word}" for word in words[index:]) for index in range(len(words) + 1)]
    # A tail without a head, such as ``each``.
    if _TAIL.fullmatch(tails[0]):
        return True
    # Try each word as the head. Adjectives may precede it, but an adverb ends the search.
    for index, word in enumerate(words):
        if _is_head(word, singular) and _TAIL_OF_A_NOUN.fullmatch(tails[index + 1]):
            return True
        # an adjective, or a letter before another symbol, as in ``N m``
        if _ADVERB.fullmatch(word) if len(word) > 1 else not _is_symbol(*words[index + 1 :][:1]):
            return False
    return False


def _is_head(word: str, singular: bool) -> bool:
    if _is_symbol(word) or _UNITS.fullmatch(word):
        return True
    if _ADVERB.fullmatch(word) or len(word) < 3 or word in _NO_PLURAL:
        return False
    return singular or _PLURAL.fullmatch(word) is not None


def _is_symbol(word: str = "") -> bool:
    return word in _UNIT_LETTERS or word in SYMBOLS
