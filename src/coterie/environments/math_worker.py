r"""A process that tells whether two answers are the same mathematics. Started by ``environments.equality``.

    echo '["\\frac12", "0.5"]' | python -m coterie.environments.math_worker

Prints ``ready`` once it can answer, then a line ``true`` or ``false`` for each line with the right and the
given answer. Answers are read as LaTeX only: math-verify's reader of plain expressions would go
through Python's ``eval``, and a model wrote them. It has a process of its own because its time limits are
signals, which only a main thread gets, and because an answer such as ``9^{9^{9}}`` takes all the memory that it can.
"""

import json
import logging
import resource
import sys

DIGITS = 12
"""After the point, to which numbers are compared that are not rational ones."""
SECONDS = 3
"""For reading an answer, and for a comparison."""
MEMORY = 4 * 2**30
"""Bytes of address space."""


def main() -> None:
    """Answer until there are no more lines."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    reading = [LatexExtractionConfig()]
    print("ready", flush=True)
    for line in sys.stdin:
        texts = [f"${text.strip().strip('$')}$" for text in json.loads(line)]
        gold, given = (parse(text, reading, parsing_timeout=SECONDS) for text in texts)
        print(
            json.dumps(verify(gold, given, float_rounding=DIGITS, timeout_seconds=SECONDS)),
            flush=True,
        )


if __name__ == "__main__":
    main()
