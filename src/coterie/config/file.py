"""Read settings from a YAML file of a user or a run: `coterie run --config FILE`.

    recipe: NAME
    seed: 3
    rollout:
      samples: 4
    reward.lambda_token: 0.3        # dotted keys work too

Errors name the line.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from coterie.config.explain import nearest_key
from coterie.config.resolve import RECIPE_KEYS, keys
from coterie.config.settings import Settings
from coterie.errors import UserError

RECIPE = "recipe"
OF_RUNS = ("made",)
"""Keys in the config of a run folder that are not settings."""
_KEY = re.compile(r"\s*([\w.]+)")


@dataclass(slots=True)
class SettingsFile:
    """File of settings of one type."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key. A group with a value means its main key."""
    lines: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def line_numbers(self, words: Iterable[str] = ()) -> Iterator[None]:
        """Add line numbers to errors about keys of the file inside the block, unless a word replaces the key."""
        replaced = {word.partition("=")[0] for word in words}
        try:
            yield
        except UserError as error:
            what = "\n".join(self._add_line(line, replaced) for line in error.what.split("\n"))
            raise UserError(what, error.todo) from error

    def _add_line(self, problem: str, replaced: set[str]) -> str:
        match = _KEY.match(problem)
        key = match[1].rstrip(".") if match else ""
        if key not in self.lines or key in replaced:
            return problem
        return f"{problem} ({self.path}, line {self.lines[key]})"


def recipe_in(path: Path) -> str | None:
    """Return the recipe that a file names, if any."""
    for name, value in _items(path, _document(path), ""):
        if name.value == RECIPE and isinstance(value, yaml.ScalarNode):
            return str(value.value)
    return None


def names_in(path: Path, groups: Iterable[str]) -> list[str]:
    """Return the names of groups such as ``dataset`` in a file, as words ``dataset=NAME``."""
    words = []
    for name, value in _items(path, _document(path), ""):
        group, _, key = str(name.value).partition(".")
        if group not in groups or key not in ("", "name"):
            continue
        if isinstance(value, yaml.MappingNode):
            inner = {key.value: one for key, one in _items(path, value, f"{group}.")}
            value = inner.get("name", value)
        if isinstance(value, yaml.ScalarNode):
            words.append(f"{group}={value.value}")
    return words


def read_settings(path: Path, settings: type[Settings]) -> SettingsFile:
    """Read the settings of a file.

    Raises :class:`UserError` with the line for invalid YAML, a duplicate key or an unknown key.
    """
    known, file = {key.path for key in keys(settings)}, SettingsFile(path)

    def read(node: yaml.MappingNode, prefix: str) -> None:
        for name, value in _items(path, node, prefix):
            key, line = f"{prefix}{name.value}", name.start_mark.line + 1
            if key in (RECIPE, *OF_RUNS):
                continue
            if key in file.lines:
                _refuse(path, _twice(key, file.lines[key], line))
            is_group = key not in known
            if is_group and not any(path.startswith(f"{key}.") for path in known):
                raise _unknown(path, line, key, known)
            if is_group and isinstance(value, yaml.MappingNode):
                read(value, f"{key}.")
            elif not (is_group and value.value == ""):  # an empty group sets nothing
                file.lines[key] = line
                file.values[key] = _built(path, value)

    read(_document(path), "")
    return file


def _unknown(path: Path, line: int, key: str, known: Iterable[str]) -> UserError:
    near = nearest_key(key, dict.fromkeys(known))
    todo = f"did you mean {near!r}?" if near else RECIPE_KEYS
    return UserError(f"{path}, line {line}: unknown key {key!r}", todo)


def _twice(key: str, before: int, line: int) -> str:
    return f"the key {key!r} is in line {before} and again in line {line}"


def _document(path: Path) -> yaml.MappingNode:
    try:
        node = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(
            f"can't read {path}: {error.strerror}", "give --config a YAML file of settings"
        ) from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        _refuse(path, _reason(error))
    if node is None:
        return yaml.MappingNode("tag:yaml.org,2002:map", [])
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path} has no settings", "add lines such as `iterations: 2`")
    return node


def _items(
    path: Path, node: yaml.MappingNode, prefix: str
) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Yield the keys and values of a mapping. Raise ``UserError`` for a key that is not a word or a duplicate."""
    seen: dict[str, int] = {}
    for name, value in node.value:
        line = name.start_mark.line + 1
        if not isinstance(name, yaml.ScalarNode):
            _refuse(path, f"the key in line {line} is not a word")
        if name.value in seen:
            _refuse(path, _twice(f"{prefix}{name.value}", seen[name.value], line))
        seen[name.value] = line
        yield name, value


def _built(path: Path, node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: invalid date
        _refuse(path, f"line {node.start_mark.line + 1}: {_reason(error)}")
    finally:
        loader.dispose()


def _reason(error: Exception) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if problem and "'\\t'" in problem:
        problem = "YAML does not allow a tab here; use spaces"
    return f"line {mark.line + 1}: {problem}" if mark is not None and problem else str(error)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise UserError(f"can't read settings from {path}: {reason}", "correct the file")


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *groups, name = key.split(".")
        inside = tree
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[name] = value
    return tree
