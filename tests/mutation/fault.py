"""A fault: a callable or constant of the package, how it goes wrong, and the tests that notice.

    Fault("coterie.rewards.advantages:gae", given(lam=1.0), killed_by=["tests/rewards/test_advantages.py"])

A fault changes objects at run time, never source text, so it survives renames inside functions. A
change is a function from the original to its replacement; the makers below cover most faults.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Fault:
    """A change of one object of the package."""

    target: str
    """``module:qualified name`` of a function, method, property or constant."""
    change: Change
    killed_by: Sequence[str]
    """Pytest node ids, or files of fast tests; at least one test must fail by an assertion."""

    @property
    def name(self) -> str:
        """Target and change."""
        return f"{self.target} {getattr(self.change, '__name__', 'changed')}"

    def resolve(self) -> tuple[Any, str, Any]:
        """Return the target's owner (module or class), its name there, and the object."""
        module, _, path = self.target.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        return owner, name, vars(owner)[name]

    def apply(self) -> None:
        """Replace the target; where it is defined, also in every module that imported it by name.

        A target named in a module that only imports it (``coterie.training.losses:logsigmoid``) is
        replaced there alone.
        """
        owner, name, old = self.resolve()
        if isinstance(old, property):
            new: Any = property(self.change(old.fget))
        elif isinstance(old, classmethod | staticmethod):
            new = type(old)(self.change(old.__func__))
        else:
            new = self.change(old)
        setattr(owner, name, new)
        if not isinstance(owner, ModuleType) or getattr(old, "__module__", name) != owner.__name__:
            return
        for module in [m for key, m in sys.modules.items() if key.split(".")[0] == "coterie"]:
            for other, value in list(vars(module).items()):
                if value is old:
                    setattr(module, other, new)

    def problems(self) -> list[str]:
        """Return why the fault does not fit the code: an unknown target or test."""
        found = [] if self.killed_by else ["it names no test"]
        try:
            old = self.resolve()[2]
        except (ImportError, AttributeError, KeyError) as error:
            found.append(f"there is no {self.target} ({error!r})")
        else:
            names = getattr(self.change, "arguments", ())
            known = inspect.signature(getattr(old, "__func__", old)).parameters if names else ()
            found += [
                f"{self.target} has no argument {name}" for name in names if name not in known
            ]
        return found + [f"there is no test {test}" for test in self.killed_by if not _exists(test)]


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    function = name.rpartition("::")[2].partition("[")[0]
    return path.is_file() and (not name or f"def {function}(" in path.read_text(encoding="utf-8"))


def _named(name: str) -> Callable[[Change], Change]:
    def set_name(change: Change) -> Change:
        change.__name__ = name
        return change

    return set_name


def result(edit: Callable[..., Any], name: str = "") -> Change:
    """Edit what the target returns (of a generator, the list of its items)."""

    @_named(name or f"result({_label(edit)})")
    def change(original: Any) -> Any:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return edit(original(*args, **kwargs))

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return edit(await original(*args, **kwargs))

        @functools.wraps(original)
        def items(*args: Any, **kwargs: Any) -> Any:
            yield from edit(list(original(*args, **kwargs)))

        if inspect.iscoroutinefunction(original):
            return awaited
        return items if inspect.isgeneratorfunction(original) else wrapped

    return change


def given(**values: Any) -> Change:
    """Replace arguments, defaults included: by a value, or by a function of the value given."""

    def replace_values(arguments: dict[str, Any]) -> None:
        for key, value in values.items():
            arguments[key] = value(arguments[key]) if callable(value) else value

    names = ", ".join(f"{key}={_label(value)}" for key, value in values.items())
    return _arguments(replace_values, f"given({names})", tuple(values))


def swap(one: str, other: str) -> Change:
    """Exchange two arguments."""

    def exchange(arguments: dict[str, Any]) -> None:
        arguments[one], arguments[other] = arguments[other], arguments[one]

    return _arguments(exchange, f"swap({one}, {other})", (one, other))


def _arguments(edit: Callable[[dict[str, Any]], None], name: str, names: tuple[str, ...]) -> Change:
    @_named(name)
    def change(original: Any) -> Any:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            edit(bound.arguments)
            return original(*bound.args, **bound.kwargs)

        return wrapped

    change.arguments = names  # type: ignore[attr-defined]
    return change


def returns(value: Any) -> Change:
    """Return the same value whatever is given."""

    @_named(f"returns({_label(value)})")
    def change(original: Any) -> Any:
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return value

        def constant(*args: Any, **kwargs: Any) -> Any:
            return value

        chosen = awaited if inspect.iscoroutinefunction(original) else constant
        return functools.wraps(original)(chosen)

    return change


def becomes(value: Any) -> Change:
    """Replace the target itself: a constant by a value, a function by another one."""
    return _named(f"becomes({_label(value)})")(lambda original: value)


def around(replacement: Callable[..., Any]) -> Change:
    """Call ``replacement(original, *args, **kwargs)`` instead of the target."""

    @_named(f"around({_label(replacement)})")
    def change(original: Any) -> Any:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        return wrapped

    return change


def edited(**values: Any) -> Callable[[Any], Any]:
    """Return a function that changes fields of settings or of a dataclass; values may be functions."""

    def edit(old: Any) -> Any:
        new = {key: v(getattr(old, key)) if callable(v) else v for key, v in values.items()}
        return old.model_copy(update=new) if hasattr(old, "model_copy") else replace(old, **new)

    edit.__name__ = f"edited({', '.join(f'{key}={_label(v)}' for key, v in values.items())})"
    return edit


def settings(**values: Any) -> Change:
    """Change fields of the argument ``settings``."""
    return given(settings=edited(**values))


def each(edit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that changes each item of a sequence."""

    def edit_all(items: Any) -> Any:
        return type(items)(map(edit, items))

    edit_all.__name__ = f"each({_label(edit)})"
    return edit_all


def _label(value: Any) -> str:
    if not callable(value):
        return repr(value)[:40]
    name = getattr(value, "__name__", repr(value))
    return f"line {value.__code__.co_firstlineno}" if name == "<lambda>" else name


negated = result(lambda value: -value, "negated")
doubled = result(lambda value: value * 2, "doubled")
one_more = result(lambda value: value + 1, "one more")
one_less = result(lambda value: value - 1, "one less")
opposite = result(lambda value: not value, "opposite")
reverse = result(lambda value: type(value)(reversed(value)), "reversed")
without_last = result(lambda value: value[:-1], "without the last")
without_first = result(lambda value: value[1:], "without the first")
swapped_pair = result(lambda value: (value[1], value[0]), "swapped pair")
