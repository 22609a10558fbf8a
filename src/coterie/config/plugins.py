"""Lookup of built-in objects and plug-ins by name.

    debate                 built in
    chess                  an entry point of an installed package, in the group ``coterie.environments``
    package.module:World   a class (or function) of a module that can be imported
    path/file.py:World     a class (or function) of a file
    object-N:World         an object of this process, under its :func:`object_name`

This module is light to import. Objects are imported when they are looked up.
"""

import hashlib
import importlib.util
import sqlite3
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.config.folders import FULL, expanded
from coterie.config.user_code import OutOfTime, user_code
from coterie.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from coterie.config.settings import Settings

S = TypeVar("S", bound="Settings")
OWN = "or give your own: package.module:NAME, or path/file.py:NAME (docs/howto/bring-your-own.md)"
OF_FILE = "coterie_plugin_"
"""Prefix of the names of modules that were loaded from a file."""

NOT_OWN = ("", "abc", "builtins", "coterie", "pydantic", "typing")
"""Packages of base classes, which are not code of a plug-in."""
_used: dict[tuple[str, str], "Plugin"] = {}
_objects: dict[str, Any] = {}
"""Objects of this process by :func:`object_name`. They are kept, so that no two of them share an id."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of object that can be looked up by name."""

    name: str
    """Name for errors, such as ``environment``."""
    built_in: Mapping[str, str] = field(compare=False)
    """Built-in names, each with its ``package.module:NAME``."""

    @property
    def group(self) -> str:
        return f"coterie.{self.name}s"


@dataclass(frozen=True, slots=True)
class Plugin:
    """Built-in object or plug-in of a kind."""

    kind: Kind
    name: str
    thing: Any
    """Class, function or other object."""
    file: Path | None
    """File of a plug-in; ``None`` for a built-in object."""

    @property
    def source(self) -> str:
        """Return a hash of a plug-in's file, which a resumed run must match; empty for a built-in object."""
        return "" if self.file is None else hashlib.sha256(self.file.read_bytes()).hexdigest()

    @property
    def modules(self) -> frozenset[str]:
        """Return the modules of a plug-in's code: its class, its own base classes and its settings."""
        modules = {str(getattr(kind, "__module__", "")) for kind in self._kinds}
        return frozenset(name for name in modules if name.partition(".")[0] not in NOT_OWN)

    def has(self, kind: str) -> bool:
        """Return True if the plug-in's class or settings, or one of their base classes, has this name."""
        return any(getattr(base, "__name__", "") == kind for base in self._kinds)

    @property
    def _kinds(self) -> list[object]:
        things = (self.thing, getattr(self.thing, "settings_type", None))
        # A function has no base classes.
        return [kind for thing in things for kind in getattr(thing, "__mro__", (thing,))]

    def __str__(self) -> str:
        where = "" if self.file is None else f" ({self.file})"
        return f"the {self.kind.name} {label(self.name)}{where}"


def label(name: str) -> str:
    """Return a short name for titles and records: ``World`` for ``path/file.py:World``."""
    return name.rpartition(":")[2]


def is_spec(name: str) -> bool:
    """Return True if a name is a location such as ``package.module:NAME``."""
    return ":" in name


def absolute_name(name: str) -> str:
    """Return a name with an absolute file path, which a run stores so that it works from any folder."""
    module, colon, thing = name.rpartition(":")
    if not colon or not module.endswith(".py"):
        return name
    return f"{expanded(module).absolute()}:{thing}"


def object_name(thing: Any) -> str:
    """Return a name by which :func:`find` finds a class or function of this process."""
    name = f"object-{id(thing)}:{getattr(thing, '__name__', type(thing).__name__)}"
    _objects[name] = thing
    return name


def find(kind: Kind, name: str) -> Plugin:
    """Find an object by name.

    Raises ``UserError`` if there is no such object, if it can't be imported (with the file, line and message of the
    error), or if an installed package has an entry point with a built-in name.
    """
    entries = [entry for entry in _entries(kind.group, _state()) if entry.name == name]
    if name in kind.built_in:
        if entries:
            problem = f"{_package(entries[0])} has an entry point {name!r} in {kind.group}, but {name} is built in"
            raise UserError(problem, "give the entry point another name, or uninstall the package")
        module, _, thing = kind.built_in[name].partition(":")
        return Plugin(kind, name, getattr(import_module(module), thing), None)
    if len(entries) > 1:
        packages = " and ".join(map(_package, entries))
        problem = f"{packages} both have an entry point {name!r} in {kind.group}"
        raise UserError(problem, "uninstall one of them")
    if entries:
        description = f"the {kind.name} {name!r} of {_package(entries[0])}"
        return _plugin(kind, name, description, lambda: entries[0].load())
    if name in _objects:
        return _plugin(kind, name, name, lambda: _objects[name])
    if is_spec(name):
        return _at_place(kind, name)
    names = [*kind.built_in, *installed(kind)]
    choices = f"use one of: {', '.join(names)}; " if names else ""
    fix = f"{did_you_mean(name, names)}{choices}{OWN}"
    raise UserError(f"no {kind.name} is called {name!r}", fix)


def installed(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in _entries(kind.group, _state())}


@cache
def _entries(group: str, state: tuple[object, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group; reading all packages takes 0.1 s."""
    return tuple(entry_points(group=group))


def _state() -> tuple[object, ...]:
    """Return what changes with the installed packages: the folders of Python's path and their times."""
    # Installing or removing a package changes the time of its folder.
    folders = [folder for folder in sys.path if Path(folder).is_dir()]
    return tuple((folder, Path(folder).stat().st_mtime_ns) for folder in folders)


def settings_type_of(plugin: Plugin, base: type[S]) -> type[S]:
    """Return the ``settings_type`` of a plug-in class; ``base`` by default.

    Raises ``UserError`` if the plug-in is not a class or its settings are not a subclass of ``base``.
    """
    if not isinstance(plugin.thing, type):
        raise UserError(f"{plugin} is not a class", "give the name of a class")
    settings_type = getattr(plugin.thing, "settings_type", base)
    if not (isinstance(settings_type, type) and issubclass(settings_type, base)):
        problem = f"{plugin} has a settings_type that is not settings: {settings_type!r}"
        raise UserError(problem, f"derive it from {base.__name__}")
    return settings_type


def construct(
    plugin: Plugin, base: "type[Settings]", settings: "Settings", *further: object
) -> Any:
    """Construct a plug-in class with its settings, if it declares any, and with ``further`` arguments.

    Raises ``UserError`` if the class is abstract or does not take these arguments.
    """
    # A class without settings of its own does not take the base settings.
    has_settings = settings_type_of(plugin, base) is not base
    arguments = (settings, *further) if has_settings else further
    return guarded(f"{plugin} can't be made", lambda: plugin.thing(*arguments))


# -- errors of plug-ins -------------------------------------------------------------------------


def guarded(task: str, do: Callable[[], Any], seconds: float = 0.0) -> Any:
    """Call code of a plug-in as :class:`user_code`. Convert an error into a ``UserError`` with its file and line."""
    try:
        with user_code(seconds):
            return do()
    except UserError:
        raise
    # A plug-in may call `sys.exit`, which must not end the command without a message.
    except (Exception, SystemExit, OutOfTime) as error:
        fix = "fix the plug-in or remove it"
        if isinstance(error, ModuleNotFoundError) and error.name:
            fix = f"install what it imports: pip install {error.name.partition('.')[0]}; or {fix}"
        raise UserError(f"{task}: {last_line(error)}", fix) from error


@contextmanager
def plugin_errors() -> Iterator[None]:
    """Convert errors raised through plug-in code into a ``UserError`` that names the plug-in and the line.

    Errors of an environment during an episode only fail the item (``coterie.environments.protocol``).
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        plugin = _owner(error)
        if plugin is None:
            raise
        problem = f"{plugin} failed: {last_line(error, plugin.modules)}"
        raise UserError(problem, "fix the plug-in or remove it") from error


def last_line(error: BaseException, modules: Collection[str] = ()) -> str:
    """Return ``FILE, line N: MESSAGE`` of an error; only the message without a place (:func:`error_place`)."""
    position = error_place(error, modules)
    return f"{position}: {error_message(error)}" if position else error_message(error)


def error_message(error: BaseException) -> str:
    lines = traceback.format_exception_only(error)
    return (lines[-1] if isinstance(error, SyntaxError) else lines[0]).strip().partition("\n")[0]


def error_place(error: BaseException, modules: Collection[str] = ()) -> str:
    """Return the file and line of an error: the innermost in files of the user that these modules call, or in them.

    Without any of these in the traceback, return where the error was raised.
    """
    # A syntax error has no frame in the file that cannot be compiled, but it names its line.
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [
        frame_and_line
        for frame_and_line in traceback.walk_tb(error.__traceback__)
        if _file_of(frame_and_line[0]) != __file__
    ]
    # The innermost frame of the plug-in, or a later one in another file of the user.
    own_frames = [n for n, (frame, _) in enumerate(frames) if _module_of(frame) in modules]
    start = own_frames[-1] if own_frames else 0
    outside = [n for n in range(start, len(frames)) if not is_installed(_file_of(frames[n][0]))]
    if not frames:
        return ""
    frame, line = frames[[*own_frames, *outside][-1] if own_frames or outside else -1]
    return f"{_file_of(frame)}, line {line}"


def _owner(error: BaseException) -> Plugin | None:
    """Return the plug-in whose code is innermost in an error's traceback, if any."""
    # A full disk or a locked database is no error of a plug-in.
    if isinstance(error, sqlite3.OperationalError) or getattr(error, "errno", None) in FULL:
        return None
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(error, OSError) and _module_of(frame).partition(".")[0] == "coterie":
            return None  # an error of the machine in coterie's own code
        if owners := [plugin for plugin in _used.values() if _module_of(frame) in plugin.modules]:
            name = frame.f_code.co_qualname.partition(".")[0]
            return next((plugin for plugin in owners if plugin.has(name)), owners[0])
    return None


def is_installed(file: str) -> bool:
    """Return True if a file belongs to a library or to coterie, not to the user."""
    package, library = str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent)
    return "site-packages" in file or file.startswith((package, library, "<frozen "))


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _file_of(frame: FrameType) -> str:
    return frame.f_code.co_filename


# -- lookup -------------------------------------------------------------------------------------


def _at_place(kind: Kind, name: str) -> Plugin:
    module_name, _, thing = name.rpartition(":")
    is_file = module_name.endswith(".py")
    description = f"the {kind.name} {name}"
    if not thing.isidentifier() or not module_name:
        fix = "write package.module:NAME or path/file.py:NAME"
        raise UserError(f"{kind.name}={name} has no name", fix)
    if not is_file:
        # The user's modules are in the working folder, which an installed command does not search.
        with_folder(Path.cwd())
    load = partial(_file if is_file else import_module, module_name)
    module = guarded(f"{description} can't be imported", load)
    if not hasattr(module, thing):
        # Only what the module defines is suggested, and not its imports.
        origins = {
            k: getattr(v, "__module__", None) for k, v in vars(module).items() if callable(v)
        }
        names = [key for key, origin in origins.items() if origin == module.__name__]
        has = f"it has: {', '.join(names)}" if names else "it defines no class or function"
        problem = f"{module.__file__} has no {thing}, so there is no {kind.name} {name}"
        raise UserError(problem, f"{did_you_mean(thing, names)}{has}")
    return _plugin(
        kind, absolute_name(name), description, lambda: getattr(module, thing), module.__file__
    )


def _plugin(
    kind: Kind, name: str, description: str, load: Callable[[], Any], file: str | None = None
) -> Plugin:
    """Load a plug-in; ``file`` is the file in its name, by default the file of its module."""
    thing = guarded(f"{description} can't be imported", load)
    module = sys.modules.get(getattr(thing, "__module__", type(thing).__module__))
    file = file or getattr(module, "__file__", None)
    plugin = Plugin(kind, name, thing, None if file is None else Path(file))
    _used[kind.name, name] = plugin
    return plugin


def _file(path_name: str) -> Any:
    """Load the module of a file, once for all its names. It can import modules of its folder."""
    path = expanded(path_name).absolute()
    if not path.is_file():
        raise UserError(f"there is no file {path}", "check the path of the plug-in")
    # The hash of the path distinguishes files with the same name in different folders.
    name = f"{OF_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    with_folder(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is a Python file"
    module = importlib.util.module_from_spec(spec)
    # The module is registered before it runs, because dataclasses look it up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # A module that failed must not be found half initialized.
    except BaseException:
        del sys.modules[name]
        raise
    return module


def place_of(kind: type) -> str:
    """Return the location of a class for another process: ``package.module:Class`` or ``path/file.py:Class``."""
    module = kind.__module__
    of_file = module.startswith(OF_FILE)
    return f"{sys.modules[module].__file__ if of_file else module}:{kind.__qualname__}"


def at_place(name: str) -> Any:
    """Load the class at a location of :func:`place_of`. Raises ``ImportError`` or ``AttributeError``."""
    module_name, _, thing = name.rpartition(":")
    return getattr(
        _file(module_name) if module_name.endswith(".py") else import_module(module_name), thing
    )


def with_folder(folder: Path) -> None:
    """Make modules of a folder importable, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _package(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else "a package"
