"""Things that are found by name: those that ship, and plug-ins.

    debate                 built in
    chess                  an entry point of an installed package, in the group ``coterie.environments``
    package.module:World   a class (or function) of a module that can be imported
    path/file.py:World     a class (or function) of a file

This module imports nothing heavy: what has a name is imported when it is asked for.
"""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from coterie.config.folders import expanded
from coterie.errors import UserError, did_you_mean

OWN = "or bring your own: package.module:NAME, or path/file.py:NAME (docs/howto/bring-your-own.md)"
OF_FILE = "coterie_plugin_"
"""What names of modules begin with that were read from a file."""


NOT_OWN = ("", "abc", "builtins", "coterie", "pydantic", "typing")
"""Packages from which plug-ins are derived, and which are not their own code."""
_used: dict[tuple[str, str], "Found"] = {}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing that has names."""

    name: str
    """In errors, such as ``environment``."""
    built_in: Mapping[str, str] = field(compare=False)
    """What ships: names, each with its ``package.module:NAME``."""

    @property
    def group(self) -> str:
        return f"coterie.{self.name}s"


@dataclass(frozen=True, slots=True)
class Found:
    """What a name stands for."""

    kind: Kind
    name: str
    thing: Any
    """The class, the function or the object."""
    file: Path | None
    """The file of a plug-in; ``None`` if it is built in."""

    @property
    def source(self) -> str:
        """A hash of a plug-in's file; empty if it is built in.

        What a run did with one file is not gone on with under another one.
        """
        return "" if self.file is None else hashlib.sha256(self.file.read_bytes()).hexdigest()

    @property
    def modules(self) -> frozenset[str]:
        """The modules of a plug-in's own code: of its class, of those that it is derived from, and of its settings."""
        settings = getattr(self.thing, "settings_type", None)
        kinds = [kind for one in (self.thing, settings) for kind in getattr(one, "__mro__", (one,))]
        found = {str(getattr(kind, "__module__", "")) for kind in kinds}
        return frozenset(one for one in found if one.partition(".")[0] not in NOT_OWN)

    def has(self, kind: str) -> bool:
        """Whether it is, or is derived from, a class of this name, or is made with settings of this name."""
        settings = getattr(self.thing, "settings_type", None)
        return any(
            one.__name__ == kind
            for thing in (self.thing, settings)
            for one in getattr(thing, "__mro__", ())
        )

    def __str__(self) -> str:
        where = "" if self.file is None else f" ({self.file})"
        return f"the {self.kind.name} {label(self.name)}{where}"


def label(name: str) -> str:
    """A short form of a name, for titles and records: ``World`` of ``path/file.py:World``."""
    return name.rpartition(":")[2]


def is_spec(name: str) -> bool:
    """Whether a name says where a plug-in is, instead of being a plain name."""
    return ":" in name


def settled(name: str) -> str:
    """A name as a run stores it: with the whole path of a file, so that it is found from any folder."""
    place, colon, thing = name.rpartition(":")
    if not colon or not place.endswith(".py"):
        return name
    return f"{expanded(place).absolute()}:{thing}"


def find(kind: Kind, name: str) -> Found:
    """What has a name.

    Raises ``UserError`` if nothing has it, if it can't be imported (with the file, the line, and the error's own last
    line), and if an installed package has an entry point of a built-in name.
    """
    entries = [entry for entry in entry_points(group=kind.group) if entry.name == name]
    if name in kind.built_in:
        if entries:
            raise UserError(
                f"{_package(entries[0])} has an entry point {name!r} in {kind.group}, and {name} is built in",
                "give the entry point another name, or uninstall the package",
            )
        module, _, thing = kind.built_in[name].partition(":")
        return Found(kind, name, getattr(import_module(module), thing), None)
    if len(entries) > 1:
        packages = " and ".join(map(_package, entries))
        raise UserError(
            f"{packages} both have an entry point {name!r} in {kind.group}", "uninstall one of them"
        )
    if entries:
        what = f"the {kind.name} {name!r} of {_package(entries[0])}"
        return _plugin(kind, name, what, lambda: entries[0].load())
    if is_spec(name):
        return _by_place(kind, name)
    known = [*kind.built_in, *installed(kind)]
    listed = f"use one of: {', '.join(known)}; " if known else ""
    raise UserError(
        f"no {kind.name} is called {name!r}", f"{did_you_mean(name, known)}{listed}{OWN}"
    )


def used() -> tuple[Found, ...]:
    """The plug-ins that this process has found so far."""
    return tuple(_used.values())


def installed(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=kind.group)}


def guarded(what: str, do: Callable[[], Any]) -> Any:
    """What a plug-in's code gives; an error in it is a ``UserError`` that says where."""
    try:
        return do()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{what}: {last_line(error)}", "correct the plug-in, or leave it out"
        ) from error


def last_line(error: BaseException) -> str:
    """What an error says, after the file and the line of the plug-in in which it was raised."""
    said = traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {said}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if not _is_machinery(frame.filename)]
    own = [frame for frame in places if not is_installed(frame.filename)] or places
    return f"{own[-1].filename}, line {own[-1].lineno}: {said}" if own else said


def _by_place(kind: Kind, name: str) -> Found:
    place, _, thing = name.rpartition(":")
    in_file = place.endswith(".py")
    what = f"the {kind.name} {name}"
    if not thing.isidentifier() or not place:
        raise UserError(
            f"{name!r} does not name {_article(kind.name)}",
            "write package.module:NAME or path/file.py:NAME",
        )
    module = guarded(
        f"{what} can't be imported", lambda: _file(place) if in_file else _module(place)
    )
    if not hasattr(module, thing):
        names = [one for one, value in vars(module).items() if _is_own(module, value)]
        has = f"it has: {', '.join(names)}" if names else "it defines no class and no function"
        raise UserError(
            f"{module.__file__} has no {thing}, so there is no {kind.name} {name}",
            f"{did_you_mean(thing, names)}{has}",
        )
    return _plugin(kind, settled(name), what, lambda: getattr(module, thing), module.__file__)


def _plugin(
    kind: Kind, name: str, what: str, load: Callable[[], Any], file: str | None = None
) -> Found:
    """Import a thing; its ``file`` is the one that names it, else the file of its module."""
    thing = guarded(f"{what} can't be imported", load)
    module = sys.modules.get(getattr(thing, "__module__", type(thing).__module__))
    file = file or getattr(module, "__file__", None)
    found = _used[kind.name, name] = Found(kind, name, thing, None if file is None else Path(file))
    return found


def _module(name: str) -> Any:
    with_folder(Path.cwd())
    return import_module(name)


def _file(place: str) -> Any:
    """The module of a file; of several names in one file they all have the same. Its neighbours can be imported."""
    path = expanded(place).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {path}", "check the path of the plug-in")
    name = f"{OF_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    with_folder(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is a file of Python"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def place_of(kind: type) -> str:
    """Where another process finds a class: ``package.module:Class`` or ``path/file.py:Class``."""
    module = kind.__module__
    of_file = module.startswith(OF_FILE)
    return f"{sys.modules[module].__file__ if of_file else module}:{kind.__qualname__}"


def at_place(name: str) -> Any:
    """What :func:`place_of` names; raises ``ImportError`` or ``AttributeError`` if nothing is there."""
    place, _, thing = name.rpartition(":")
    return getattr(_file(place) if place.endswith(".py") else import_module(place), thing)


def with_folder(folder: Path) -> None:
    """Let modules of a folder be imported, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_own(module: Any, value: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _is_machinery(file: str) -> bool:
    return file.startswith("<frozen ") or file in (__file__, importlib.__file__)


def is_installed(file: str) -> bool:
    """Whether a file is of a library, or of coterie, and so not where a person would correct a plug-in."""
    package = str(Path(__file__).parents[1])
    return "site-packages" in file or file.startswith(
        (package, str(Path(traceback.__file__).parent))
    )


def _package(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else "a package"


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
