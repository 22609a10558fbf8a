"""What a kind of function is: a vague request, a body with hidden choices, and how calls are drawn."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from string import Template
from typing import Any, Literal

from coterie.datasets.catalogue import Split

Level = Literal["easy", "personal"]
"""`easy`: a line with one choice, often the obvious one, for small models; `personal`: several choices."""
ASK = "Please write me a Python function for it."
"""With what a request ends that is not a request yet."""
DrawArguments = Callable[[random.Random], tuple[Any, ...]]
"""The arguments of one call: plain data."""


@dataclass(frozen=True, slots=True)
class FunctionKind:
    """Functions that differ in hidden choices only.

    ``request`` and ``body`` are ``string.Template``s: `$about` is one of ``abouts``, the names of ``choices`` stand
    for their values.
    """

    split: Split
    level: Level
    signature: str
    """Without ``def``, such as ``fee(days, member)``."""
    request: str
    """What the person says first; it tells no choice."""
    abouts: tuple[str, ...]
    """What it is about; of no matter to the code."""
    body: str
    """Of the function, not indented."""
    choices: Mapping[str, tuple[Any, ...]]
    """The values that each hidden choice may have, as they stand in the code."""
    draw: DrawArguments

    @property
    def name(self) -> str:
        """What the function is called."""
        return self.signature.partition("(")[0]

    @property
    def size(self) -> int:
        """How many different tasks can be drawn of it, calls left out of account."""
        return prod(map(len, (self.abouts, *self.choices.values())))

    def asked(self, about: str) -> str:
        """The request, as a whole sentence."""
        text = Template(self.request).substitute(about=about)
        return text if self.level == "easy" else f"{text} {ASK}"

    def source(self, choices: Mapping[str, Any]) -> str:
        """The function in Python; no newline at its end."""
        lines = Template(self.body.strip("\n")).substitute(choices).splitlines()
        return "\n".join([f"def {self.signature}:", *(f"    {line}" for line in lines)])

    def call(self, rng: random.Random) -> str:
        """An expression that calls the function."""
        return f"{self.name}({', '.join(map(repr, self.draw(rng)))})"
