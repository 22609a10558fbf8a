"""Explain invalid settings: the full key, its value, the allowed values and the nearest known key."""

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
"""Training keys by their names in other libraries."""
OWN_CHECKS = ("value_error", "assertion_error")


def explain(error: ValidationError, known: Mapping[str, "SettingsKey"]) -> str:
    problems: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        where, problem = _problem(detail, known)
        problems.setdefault(where, []).append(problem)
    lines = [f"{where}{' or '.join(dict.fromkeys(texts))}" for where, texts in problems.items()]
    return "these settings can't be used:\n  " + "\n  ".join(lines)


def nearest_key(path: str, known: Mapping[str, object]) -> str | None:
    """Return the known key that is most similar to ``path``, by its full name or its last part."""
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


def _problem(error: ErrorDetails, known: Mapping[str, "SettingsKey"]) -> tuple[str, str]:
    path, place = _split(error["loc"], known)
    if error["type"] == "extra_forbidden":
        near = nearest_key(path, known)
        return f"unknown key {path!r}", f"; did you mean {near!r}?" if near else ""
    if error["type"] == "missing":
        inner = [key for key, k in known.items() if key.startswith(f"{path}.") and k.is_required]
        return " and ".join(inner or [path]), " must be given"
    if path not in known:
        return _group_problem(error, path, known), ""
    key = known[path]
    item = f", item {place}" if place else ""
    value = "" if key.quiet else f"={_display(error['input'])}"
    return f"{path}{item}{value}: ", _key_problem(error, key)


def _key_problem(error: ErrorDetails, key: "SettingsKey") -> str:
    problem = wrong(error)
    if error["type"] in OWN_CHECKS:
        return problem
    if error["type"] in ("tuple_type", "list_type"):
        return f"{problem}, such as {key.path}=[{_display(error['input'])}]"
    if error["type"] == "string_pattern_mismatch":
        return f"{problem}: {key.meaning}"
    choices = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    near = nearest(str(error["input"]), choices, cutoff=0.5)
    return f"{problem}; did you mean {near}?" if near else problem


def _group_problem(error: ErrorDetails, path: str, known: Mapping[str, "SettingsKey"]) -> str:
    """Explain a failed check of several keys, with their full names, or a value for a group."""
    if error["type"] in OWN_CHECKS:
        return _in_full(wrong(error), path, known)
    inside = [key for key in known if key.startswith(f"{path}.")]
    if inside:
        examples = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
        return f"{path}={_display(error['input'])}: {path} is a group of keys: {examples}"
    return f"{path}: {wrong(error)}" if path else wrong(error)


def _in_full(text: str, group: str, known: Mapping[str, "SettingsKey"]) -> str:
    """Replace keys of a group in a message by their full names.

    Keys that may be plain words are replaced only before ``=``.
    """
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
    """Split a location into a key and the place within its value; without a known key, return the full location."""
    for count in range(len(place), 0, -1):
        path = ".".join(map(str, place[:count]))
        if path in known:
            inside = [step for step in place[count:] if isinstance(step, int)]
            return path, ".".join(str(step + 1) for step in inside)
    return ".".join(map(str, place)), ""


def _display(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, dict | list) or value == "" else str(value)
