"""Resolve validated settings from a preset and ``key=value`` words.

``coterie run RECIPE rollout.samples=4`` parses ``rollout.samples=4`` here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import ValidationError

from coterie.config.explain import explain, nearest_key
from coterie.config.settings import Settings
from coterie.config.text import encoded
from coterie.errors import UserError

S = TypeVar("S", bound=Settings)
NEEDED = "(needed)"
RECIPE_KEYS = "`coterie config RECIPE` lists every key"


@dataclass(frozen=True, slots=True)
class SettingsKey:
    """Key of a recipe's settings, as shown by ``coterie config``."""

    path: str
    type: str
    default: str
    meaning: str
    source: str
    quiet: bool
    """True if errors omit its value."""

    @property
    def is_required(self) -> bool:
        return self.default == NEEDED


def resolve(
    settings: type[S],
    layers: Sequence[Mapping[str, Any]],
    words: Iterable[str] = (),
    *,
    where: str = RECIPE_KEYS,
) -> S:
    """Resolve settings from layers and words.

    Args:
        settings: Type of the settings.
        layers: Nested mappings; later ones override earlier ones.
        words: ``key=value`` arguments, which override all layers.
        where: Hint in errors on where keys are listed.

    Raises:
        UserError: A key is unknown (with the nearest key), a word has no ``=``, or values are invalid.
    """
    values = overlaid(*layers)
    known = {key.path: key for key in keys(settings)}
    mains = dict(_mains(settings))
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise UserError(
                f"{word!r} is not a setting", "write key=value without spaces, such as iterations=2"
            )
        path = mains.get(path, path)
        _check_known(path, known, where)
        _put(values, path, _value(known[path], text))
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, known), where) from None


def keys(settings: type[Settings], prefix: str = "") -> Iterator[SettingsKey]:
    """Yield every key in order of declaration, with dotted names for nested groups."""
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from keys(kind, f"{prefix}{name}.")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = NEEDED if field.is_required() else _display(field.get_default())
        yield SettingsKey(
            f"{prefix}{name}",
            _type_name(kind),
            default,
            field.description or "",
            str(extra.get("source", "")),
            bool(extra.get("quiet")),
        )


def _mains(settings: type[Settings], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each group with a main key, and the key."""
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            if kind.main:
                yield f"{prefix}{name}", f"{prefix}{name}.{kind.main}"
            yield from _mains(kind, f"{prefix}{name}.")


class _OnceLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys; YAML itself takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise yaml.YAMLError(f"the key in line {name.start_mark.line + 1} is not a word")
            line = name.start_mark.line + 1
            if name.value in seen:
                raise yaml.YAMLError(
                    f"the key {name.value!r} is in line {seen[name.value]} and again in line {line}"
                )
            seen[name.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file. Raise :class:`UserError` if it can't be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        loaded = yaml.load(text, Loader=_OnceLoader) or {}
    except (
        OSError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:  # ValueError: invalid date
        raise UserError(
            f"can't read settings from {path}: {_yaml_reason(error)}",
            "correct the file or restore it from a backup",
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(
            f"{path} has no settings",
            "add lines such as `iterations: 2`, or restore the file from a backup",
        )
    return loaded


def _yaml_reason(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'invalid YAML'}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def overlaid(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; later ones override earlier ones."""
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if isinstance(value, Mapping):
                under = values.get(name)
                values[name] = overlaid(under if isinstance(under, dict) else {}, value)
            else:
                values[name] = value
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _check_known(path: str, known: Mapping[str, SettingsKey], where: str) -> None:
    if path in known:
        return
    inside = [key for key in known if key.startswith(f"{path}.")]
    if inside:
        raise UserError(f"{path} is a group of keys", f"give one of: {', '.join(inside)}")
    near = nearest_key(path, known)
    raise UserError(f"unknown key {path!r}", f"did you mean {near!r}?" if near else where)


def _value(key: SettingsKey, text: str) -> Any:
    """Parse the text of a value. Keys of text or literals take it unchanged."""
    encoded(text, f"the value of {key.path}")
    if key.type.endswith("| None") and text in ("none", "null"):
        return None
    if key.type.startswith(("str", "[")):
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        return text[1:-1] if quoted else text
    try:
        return yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError):  # ValueError: invalid date such as 2024-13-45
        return text


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def _display(value: object) -> str:
    return "none" if value is None else f"{value}"


def _type_name(kind: Any) -> str:
    kind = _plain_type(kind)
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text.replace("typing.Literal", "").replace("typing.", "")


def _plain_type(kind: Any) -> Any:
    """Remove constraints on values from a type, such as the bounds inside ``tuple[float, ...]``."""
    inside = get_args(kind)
    if get_origin(kind) is Annotated:
        return _plain_type(inside[0])
    plain = tuple(map(_plain_type, inside))
    return GenericAlias(tuple, plain) if get_origin(kind) is tuple else kind
