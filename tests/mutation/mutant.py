"""A fault as an edit of one file, the lists of them, and whether they still fit the code."""

import ast
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from tests import mutants

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "coterie"


SURVIVORS = ROOT / "tests" / "mutants" / "survivors.md"
"""Which of mutmut's faults no test notices, each with the reason."""


class Fault(Protocol):
    """An edit of one file, and the tests that may notice it."""

    by_hand: ClassVar[bool]
    """Whether a person thought it up; then an assertion must fail, and not just anything."""

    @property
    def name(self) -> str:
        """Unique over all."""
        ...

    @property
    def file(self) -> str:
        """Path below ``src/coterie``."""
        ...

    @property
    def breaks(self) -> str:
        """What is wrong, in one line."""
        ...

    @property
    def tests(self) -> tuple[str, ...]:
        """Pytest node ids."""
        ...

    def text(self) -> str:
        """The file with the fault in it."""
        ...


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, and who must notice it."""

    by_hand: ClassVar[bool] = True
    name: str
    """Unique over all lists."""
    file: str
    """Path below ``src/coterie``."""
    find: str
    """Text that occurs in the file exactly once."""
    replace: str
    breaks: str
    """What goes wrong for a user, in one line."""
    tests: tuple[str, ...]
    """Pytest node ids; one of them must fail by an assertion."""

    def text(self) -> str:
        """The file with the fault in it."""
        return (PACKAGE / self.file).read_text(encoding="utf-8").replace(self.find, self.replace)

    def misfit(self) -> str | None:
        """Why the edit cannot be applied to the code as it is; ``None`` if it can."""
        path = PACKAGE / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        source = path.read_text(encoding="utf-8")
        if (times := source.count(self.find)) != 1:
            return f"its text occurs {times} times in {self.file}"
        for test in self.tests:
            if not _exists(test):
                return f"there is no test {test}"
        if not self.tests:
            return "it names no test"
        if path.suffix != ".py":
            return None if self.text() != source else "it changes nothing"
        try:
            changed = ast.dump(ast.parse(self.text())) != ast.dump(ast.parse(source))
        except SyntaxError as error:
            return f"it is no Python any more: {error}"
        return None if changed else "it changes nothing"


def _exists(test: str) -> bool:
    """Whether there is a file and a function for a node id."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}" in path.read_text(encoding="utf-8")


def all_mutants() -> list[Mutant]:
    """Those of all lists, in order of list and place in it."""
    found: list[Mutant] = []
    for module in sorted(pkgutil.iter_modules(mutants.__path__), key=lambda m: m.name):
        found += importlib.import_module(f"{mutants.__name__}.{module.name}").MUTANTS
    return found


def known_survivors() -> set[str]:
    """Names in the first column of the table of survivors."""
    lines = SURVIVORS.read_text(encoding="utf-8").splitlines()
    return {line.split("|")[1].strip(" `") for line in lines if line.startswith("| `")}


def misfits(chosen: list[Mutant]) -> list[str]:
    """A line for every mutant that does not fit the code, or whose name is taken."""
    names = [one.name for one in chosen]
    twice = [f"{name}: two mutants have this name" for name in set(names) if names.count(name) > 1]
    return sorted(twice) + [f"{one.name}: {why}" for one in chosen if (why := one.misfit())]
