"""Why settings can't be used: every key with its full name, the value, what is allowed, the nearest key."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coterie.config.plain import wrong
from coterie.errors import nearest

if TYPE_CHECKING:
    from coterie.config.resolve import SettingsKey

SYNONYMS = {
    "lr": "learning_rate",
    "batch_size": "batch_rows",
    "per_device_train_batch_size": "batch_rows",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_seq_length": "max_length",
    "lora_rank": "lora_r",
    "group_size": "samples",
    "num_generations": "samples",
    "max_completion_length": "max_tokens",
}
"""Names of other libraries for keys of a training."""
OWN_CHECKS = ("value_error", "assertion_error")


def explain(error: ValidationError, known: Mapping[str, "SettingsKey"]) -> str:
    found: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        where, said = _found(one, known)
        found.setdefault(where, []).append(said)
    lines = [f"{where}{' or '.join(dict.fromkeys(said))}" for where, said in found.items()]
    return "these settings can't be used:\n  " + "\n  ".join(lines)


def nearest_key(path: str, known: Mapping[str, object]) -> str | None:
    """The key that is most like an unknown one, by its whole name or by its last part."""
    group, dot, last = path.rpartition(".")
    last = SYNONYMS.get(last, last)
    path = f"{group}{dot}{last}"
    same = [key for key in known if key.rpartition(".")[2] == last]
    if same:
        return min(
            same,
            key=lambda key: (
                key != path,
                bool(group) and not key.startswith(f"{group}."),
                key.count(".") != path.count("."),
                key.startswith(("evaluate.", "engine.")),
            ),
        )
    leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(list(known))}
    leaf = nearest(path.rsplit(".", 1)[-1], leaves, cutoff=0.75)
    return nearest(path, known, cutoff=0.75) or (leaves[leaf] if leaf else nearest(path, known))


def _found(error: ErrorDetails, known: Mapping[str, "SettingsKey"]) -> tuple[str, str]:
    path, place = _split(error["loc"], known)
    if error["type"] == "extra_forbidden":
        near = nearest_key(path, known)
        return f"unknown key {path!r}", f"; did you mean {near!r}?" if near else ""
    if error["type"] == "missing":
        inner = [key for key, k in known.items() if key.startswith(f"{path}.") and k.needed]
        return " and ".join(inner or [path]), " must be given"
    if path not in known:
        return _of_group(error, path, known), ""
    key = known[path]
    item = f", item {place}" if place else ""
    value = "" if key.quiet else f"={_written(error['input'])}"
    return f"{path}{item}{value}: ", _said(error, key)


def _said(error: ErrorDetails, key: "SettingsKey") -> str:
    if error["type"] in OWN_CHECKS:
        return wrong(error)
    said = wrong(error)
    if error["type"] in ("tuple_type", "list_type"):
        return f"{said}, such as {key.path}=[{_written(error['input'])}]"
    if error["type"] == "string_pattern_mismatch":
        return f"{said}: {key.meaning}"
    choices = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    near = nearest(str(error["input"]), choices, cutoff=0.5)
    return f"{said}; did you mean {near}?" if near else said


def _of_group(error: ErrorDetails, path: str, known: Mapping[str, "SettingsKey"]) -> str:
    """What a check of several keys says, with their full names; or a value where a group is meant."""
    if error["type"] in OWN_CHECKS:
        return _in_full(wrong(error), path, known)
    inside = [key for key in known if key.startswith(f"{path}.")]
    if inside:
        shown = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
        return f"{path}={_written(error['input'])}: {path} is a group of keys: {shown}"
    return f"{path}: {wrong(error)}" if path else wrong(error)


def _in_full(text: str, group: str, known: Mapping[str, "SettingsKey"]) -> str:
    """A group's message in which its keys, where it gives them a value or they can't be a plain word,
    have their full names."""
    if not group:
        return text
    for key in known:
        inner = key.removeprefix(f"{group}.")
        if inner == key:
            continue
        after = r"(?![\w.])" if "_" in inner or "." in inner else r"(?==)"
        text = re.sub(rf"(?<![\w.]){re.escape(inner)}{after}", key, text)
    return text


def _split(place: tuple[int | str, ...], known: Mapping[str, object]) -> tuple[str, str]:
    """(key, place within its value); of a place that is not a key, all of it."""
    for count in range(len(place), 0, -1):
        path = ".".join(map(str, place[:count]))
        if path in known:
            inside = [step for step in place[count:] if isinstance(step, int)]
            return path, ".".join(str(step + 1) for step in inside)
    return ".".join(map(str, place)), ""


def _written(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, dict | list) or value == "" else str(value)
