"""From a preset and ``key=value`` words to validated settings, with errors a person can act on.

``coterie run RECIPE rollout.samples=4`` reads ``rollout.samples=4`` here.
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
    Raises :class:`UserError` for an unknown key (naming the nearest right one), a word without ``=``, a
    value out of range, or a combination that can't work.
    """
    values = overlaid(*layers)
    known = {key.path: key for key in keys(settings)}
    mains = dict(_mains(settings))
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            raise UserError(
                f"{word!r} is not a setting", "write key=value without blanks, such as iterations=2"
            )
        path = mains.get(path, path)
        _check_known(path, known, where)
        _put(values, path, _value(known[path], text))
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, known), where) from None


def keys(settings: type[Settings], prefix: str = "") -> Iterator[SettingsKey]:
    """Every key, nested groups in dotted form, in the order of declaration."""
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from keys(kind, f"{prefix}{name}.")
            continue
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        default = NEEDED if field.is_required() else _shown(field.get_default())
        yield SettingsKey(
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


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is there twice; YAML itself would take the last one."""

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
    """A mapping from a YAML file; raises :class:`UserError` if it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        loaded = yaml.load(text, Loader=_OnceLoader) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: of a date
        raise UserError(
            f"can't read settings from {path}: {_yaml_reason(error)}",
            "correct the file, or put it back from a copy",
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(
            f"{path} holds no settings",
            "it needs lines such as `iterations: 2`: put it back from a copy",
        )
    return loaded


def _yaml_reason(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}: {getattr(error, 'problem', None) or 'no YAML'}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def overlaid(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, group by group; later ones win."""
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
    """Nested mappings as dotted keys."""
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
    """The value that a text means; a key of text, or of a few words, takes it as it stands."""
    encoded(text, f"the value of {key.path}")
    if key.type.endswith("| None") and text in ("none", "null"):
        return None
    if key.type.startswith(("str", "[")):
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        return text[1:-1] if quoted else text
    try:
        return yaml.safe_load(text) if text else ""
    except (yaml.YAMLError, ValueError):  # ValueError: of a date such as 2024-13-45
        return text


def _put(values: dict[str, Any], path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        values = values.setdefault(group, {})
    values[name] = value


def _shown(value: object) -> str:
    return "none" if value is None else f"{value}"


def _type_name(kind: Any) -> str:
    kind = _plain_type(kind)
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text.replace("typing.Literal", "").replace("typing.", "")


def _plain_type(kind: Any) -> Any:
    """A type without what is demanded of its values: ``tuple[float, ...]`` has no bounds of its numbers."""
    inside = get_args(kind)
    if get_origin(kind) is Annotated:
        return _plain_type(inside[0])
    found = tuple(map(_plain_type, inside))
    return GenericAlias(tuple, found) if get_origin(kind) is tuple else kind
