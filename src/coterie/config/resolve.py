"""From a preset and ``key=value`` words to validated settings, with errors a person can act on.

``coterie run RECIPE rollout.samples=4`` reads ``rollout.samples=4`` here.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from coterie.config.settings import Settings
from coterie.config.text import encoded
from coterie.errors import UserError

S = TypeVar("S", bound=Settings)
NEEDED = "(needed)"
RECIPE_KEYS = "`coterie config RECIPE` lists every key"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a recipe's settings, as shown by ``coterie config``."""

    path: str
    type: str
    default: str
    meaning: str
    source: str
    quiet: bool
    """Whether errors leave its value out."""

    @property
    def needed(self) -> bool:
        """Whether it has no default."""
        return self.default == NEEDED


def resolve(
    settings: type[S],
    layers: Sequence[Mapping[str, Any]],
    words: Iterable[str] = (),
    *,
    where: str = RECIPE_KEYS,
) -> S:
    """Settings from nested mappings (later ones win) and ``key=value`` words (which win over all).

    ``where`` says to a person where the keys are listed.
    Raises :class:`UserError` for an unknown key (naming the nearest right one), a word without
    ``=``, a value out of range, or a combination that can't work.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        _merge(values, layer)
    known = {key.path: key for key in keys(settings)}
    mains = dict(_mains(settings))
    for word in words:
        path, equals, text = word.partition("=")
        if not equals:
            raise UserError(f"{word!r} is not a setting", "write key=value, such as iterations=2")
        path = mains.get(path, path)
        _check_known(path, known, where)
        _put(values, path, _value(path, text))
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise UserError(_explain(error, known), where) from None


def keys(settings: type[Settings], prefix: str = "") -> Iterator[Key]:
    """Every key, nested groups in dotted form, in the order of declaration."""
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from keys(kind, f"{prefix}{name}.")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = NEEDED if field.is_required() else _shown(field.get_default())
        yield Key(
            f"{prefix}{name}",
            _type_name(kind),
            default,
            field.description or "",
            str(extra.get("source", "")),
            bool(extra.get("quiet")),
        )


def _mains(settings: type[Settings], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Groups that stand for one of their keys when they are given a value: the group, and that key."""
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            if kind.main:
                yield f"{prefix}{name}", f"{prefix}{name}.{kind.main}"
            yield from _mains(kind, f"{prefix}{name}.")


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file; raises :class:`UserError` if it is none."""
    try:
        loaded = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"can't read settings from {path}: {error}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds {type(loaded).__name__}, not key: value lines")
    return loaded


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_known(path: str, known: Mapping[str, Key], where: str) -> None:
    if path in known:
        return
    leaves = {key.rsplit(".", 1)[-1]: key for key in known}
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    near = near or [leaves[m] for m in difflib.get_close_matches(path, leaves, n=1, cutoff=0.5)]
    todo = f"did you mean {near[0]!r}?" if near else where
    raise UserError(f"unknown key {path!r}", todo)


def _value(path: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        raise UserError(
            f"{path}={text!r} is not a value", "quote text that has : or { in it"
        ) from None
    if isinstance(value, str):
        encoded(value, f"{path}={text!a}")
    return value


def _explain(error: ValidationError, known: Mapping[str, Key]) -> str:
    lines = []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            lines.append(f"unknown key {path!r}{hint}")
        elif item["type"] == "missing":
            inner = [key for key, k in known.items() if key.startswith(f"{path}.") and k.needed]
            lines.append(f"{' and '.join(inner or [path])} must be given")
        elif path:
            quiet = path in known and known[path].quiet
            lines.append(
                f"{path}: {item['msg']}" if quiet else f"{path}={item['input']!r}: {item['msg']}"
            )
        else:
            lines.append(item["msg"])
    return "these settings can't be used:\n  " + "\n  ".join(lines)


def _merge(values: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping) and isinstance(values.get(name), dict):
            _merge(values[name], value)
        else:
            values[name] = dict(value) if isinstance(value, Mapping) else value


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def _shown(value: object) -> str:
    return "none" if value is None else f"{value}"


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text.replace("typing.Literal", "").replace("typing.", "")
