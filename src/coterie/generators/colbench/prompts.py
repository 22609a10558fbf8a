"""What a chat model is asked when it writes a task: our own words, with a draw that makes each one another."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

from coterie.config.text import read_json
from coterie.datasets.code_rows import SENTENCE
from coterie.engines.messages import Utterance
from coterie.errors import UserError
from coterie.generators.colbench.checks import TESTS

MAX_LENGTH = 2000
"""Characters of an excerpt that are shown."""

_EXAMPLE = json.dumps(
    {
        "idea": "A librarian charges for late books: the first week is free, then 20 cents a day, at most 3 euros.",
        "ground_truth": "def fine(days):\n    return min(max(days - 7, 0) * 20, 300)",
        "problem_description": "I run a small library and charge for books that come back late. Please write me a "
        f"Python function for the charge. {SENTENCE} def fine(days)",
        "test_cases": {"test1": "fine(5)", "test2": "fine(9)", "test3": "fine(40)"},
    },
    indent=1,
)

SYSTEM = f"""\
You write exercises in which a programmer has to find out what a person really wants. The person asks for a Python \
function in a vague way, and answers questions; only the person knows the exact rules.

Reply with one JSON object and nothing else. Its keys, in this order:
- "idea": one or two sentences: who the person is, and three or four rules of the function that nobody would guess \
(limits, exceptions, rounding, order, names, units).
- "ground_truth": the source of one Python function with these rules, 4 to 25 lines. It uses at most the \
standard library, with imports inside the function, and no input, print, files, clock or random numbers. It returns \
plain data (numbers, text, booleans, lists, tuples, dictionaries), never None, never a set, and never raises on the \
tests. It does not do what a textbook function does.
- "problem_description": what the person says first, two to four sentences in the first person, asking for a Python \
function. It says what the function is about and leaves the rules out: no numbers of the rules, no code. It ends with \
the sentence "{SENTENCE} def NAME(ARGUMENTS)" with the real name and arguments.
- "test_cases": an object with the keys "test1" to "test{TESTS}"; each value is a text with one call of the function \
with literal arguments, such as "NAME(3, 'blue')". No results, no comparisons, no two calls alike. Together they \
reach every branch, and most give different results.

A reply that is cut off is lost, so keep it short. An example of the form, which has only three tests; write about \
something else:
{_EXAMPLE}"""

_WHO = (
    "a beekeeper", "a school librarian", "a dance teacher", "a market gardener", "a ferry captain",
    "a referee of an amateur league", "a piano tuner", "a nurse who plans shifts", "a potter",
    "the treasurer of a club", "a bus driver", "a baker", "somebody who runs a hostel", "a birdwatcher",
    "a game designer", "a translator", "a weather hobbyist", "a stage manager", "a locksmith",
    "a farmer", "a collector of stamps", "a coach of runners", "a caterer", "an archivist",
    "a bicycle mechanic", "somebody who repairs radios", "a tour guide", "a florist", "a notary's clerk",
    "a museum guard", "a grandparent who invents games", "a sailor", "a chess arbiter", "a tailor",
)  # fmt: skip
_ABOUT = (
    "a list of numbers", "two lists that belong together", "a text of one line", "a dictionary of counts",
    "a list of names", "dates given as (year, month, day)", "times given as minutes", "a small grid",
    "a list of (name, number) pairs", "an amount of money in cents", "three whole numbers",
    "a number and a word", "a list of words", "a dictionary of lists", "coordinates", "a score and a level",
)  # fmt: skip


def request(seed: int, number: int, excerpts: Sequence[str] = ()) -> list[Utterance]:
    """The messages of one try. With excerpts, one of them is the inspiration, else a person and a kind of data."""
    draw = random.Random(f"colbench/{seed}/{number}")
    if excerpts:
        text = draw.choice(excerpts)[:MAX_LENGTH]
        wish = (
            "Let this piece of a web page give you the subject, and take nothing from it word by word:\n\n"
            f"{text}\n\nNow the JSON object."
        )
    else:
        wish = f"The person is {draw.choice(_WHO)}, and the function gets {draw.choice(_ABOUT)}. Now the JSON object."
    return [Utterance("system", SYSTEM), Utterance("user", wish)]


def read_excerpts(file: Path) -> tuple[str, ...]:
    """Texts of a file: of each line, or of ``.jsonl`` each line's ``text``. Raises ``UserError`` if there are none."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} can't be read: {error}", "give a text file in UTF-8") from error
    found = []
    for number, line in enumerate(lines, 1):
        text = _text(line, f"{file}, line {number}") if file.suffix == ".jsonl" else line
        if text.strip():
            found.append(text.strip())
    if not found:
        raise UserError(f"{file} has no excerpts", "give a line of text for each")
    return tuple(found)


def _text(line: str, where: str) -> str:
    try:
        fields = read_json(line) if line.strip() else ""
    except ValueError as error:
        raise UserError(f"{where} is broken: no JSON ({error})", "fix or remove it") from error
    text = fields.get("text") if isinstance(fields, dict) else fields
    if not isinstance(text, str):
        raise UserError(f"{where} is broken: it has no text", 'a line is {"text": "..."}')
    return text
