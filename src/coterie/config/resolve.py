"""Run settings from a preset, a YAML file and ``key=value`` arguments.

    recipe: NAME
    seed: 3
    rollout:
      rollouts_per_task: 4
    reward.lambda_token: 0.3        # dotted keys work too

On the command line, ``coterie run RECIPE rollout.rollouts_per_task=4`` sets the same key.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from coterie.config.folders import encoded
from coterie.config.settings import Settings
from coterie.errors import UserError, nearest

OWN_CHECKS = ("value_error", "assertion_error")


def wrong(error: ErrorDetails) -> str:
    """Return the message of a validation error, for coterie's own checks without pydantic's prefix."""
    if error.get("ctx", {}).get("pattern") == r"\S":
        return "must hold some text"  # blank text is too common for the text of a pattern
    return str(error["ctx"]["error"]) if error["type"] in OWN_CHECKS else error["msg"]


def wrong_at(error: ErrorDetails) -> str:
    """Return the message of an error, prefixed by its location."""
    path = ".".join(map(str, error["loc"]))
    return f"{path}: {wrong(error)}" if path else wrong(error)


SYNONYMS = {
    "lr": "learning_rate",
    "per_device_train_batch_size": "batch_size",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_seq_length": "max_length",
    "lora_rank": "lora_r",
    "group_size": "rollouts_per_task",
    "num_generations": "rollouts_per_task",
    "max_completion_length": "max_tokens",
    "loss_type": "kind",
    "importance_sampling_level": "kind",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "delta": "dual_clip",
    "vllm_importance_sampling_mode": "importance_sampling",
}
"""Training keys by their names in other libraries."""
RENAMED = {
    "base": "max_children", "batch_rows": "batch_size", "constant": "length_constant", "divergence": "kl_estimator",
    "draw": "oversample_tasks", "entropy": "entropy_coef", "gated": "measures_only_if_correct",
    "importance": "importance_sampling", "importance_cap": "importance_sampling_cap", "kl": "kl_coef",
    "lam": "gae_lambda", "malformed": "malformed_reward", "mean": "aggregation", "minibatches": "minibatches_per_step",
    "nll": "nll_coef", "normalise": "reduction", "old": "old_logprobs", "overlong": "overlong_penalty",
    "percentile": "length_percentile", "probe": "probe_dialogues",
    "reward.repeats": "repeat_penalty", "rollout.repeats": "rollouts_per_task", "rollouts": "rollouts_per_search",
    "runs": "rollouts_per_task", "samples": "rollouts_per_task", "share": "share_base",
    "tools.total": "max_total_calls", "tools.width": "concurrency", "update": "rl.train", "whiten": "normalize",
    "window": "rollouts_per_search",
}  # fmt: skip
"""Last parts of renamed keys, with the group where it matters, and a renamed group. Errors name the new key."""


def explain(error: ValidationError, settings_keys: Mapping[str, "SettingsKey"]) -> str:
    problems: dict[str, list[str]] = {}
    for detail in error.errors(include_url=False):
        where, problem = _problem(detail, settings_keys)
        problems.setdefault(where, []).append(problem)
    lines = [f"{where}{' or '.join(dict.fromkeys(texts))}" for where, texts in problems.items()]
    return "these settings can't be used:\n  " + "\n  ".join(lines)


def nearest_key(path: str, settings_keys: Mapping[str, object]) -> str | None:
    """Return the known key that is most similar to ``path``, by its full name or its last part."""
    group, dot, final_part = path.rpartition(".")
    in_group = ".".join(path.split(".")[-2:])
    new_names = [(SYNONYMS | RENAMED).get(name) for name in (in_group, final_part)]
    # The old name of a key in one recipe may be the name of a key in another.
    last_parts = {key.rpartition(".")[2] for key in settings_keys}
    final_part = next((name for name in new_names if name in last_parts), None) or final_part
    group = RENAMED.get(group, group)
    path = f"{group}{dot}{final_part}"
    same = [key for key in settings_keys if key.rpartition(".")[2] == final_part]
    if same:
        # In this order: the full name, keys of the same group, the same ending, a similar depth,
        # and keys of evaluation and engine last.
        return min(
            same,
            key=lambda key: (
                key != path,
                bool(group) and not key.startswith(f"{group}."),
                -key.count(".") * path.endswith(f".{key}"),
                abs(key.count(".") - path.count(".")),
                key.startswith(("evaluate.", "engine.")),
            ),
        )
    # Of keys with the same last part, the first one counts.
    leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(list(settings_keys))}
    leaf = nearest(path.rsplit(".", 1)[-1], leaves, cutoff=0.75)
    return nearest(path, settings_keys, cutoff=0.75) or (
        leaves[leaf] if leaf else nearest(path, settings_keys)
    )


def _problem(error: ErrorDetails, settings_keys: Mapping[str, "SettingsKey"]) -> tuple[str, str]:
    path, index = _split(error["loc"], settings_keys)
    if error["type"] == "extra_forbidden":
        near = nearest_key(path, settings_keys)
        return f"unknown key {path!r}", f"; did you mean {near!r}?" if near else ""
    if error["type"] == "missing":
        inner = [
            key for key, k in settings_keys.items() if key.startswith(f"{path}.") and k.is_required
        ]
        return " and ".join(inner or [path]), " must be given"
    if path not in settings_keys:
        return _group_problem(error, path, settings_keys), ""
    key = settings_keys[path]
    item = f", item {index}" if index else ""
    value = "" if key.quiet else f"={_display_value(error['input'])}"
    return f"{path}{item}{value}: ", _key_problem(error, key)


def _key_problem(error: ErrorDetails, key: "SettingsKey") -> str:
    problem = wrong(error)
    if error["type"] in OWN_CHECKS:
        return problem
    if error["type"] in ("tuple_type", "list_type"):
        return f"{problem}, such as {key.path}=[{_display_value(error['input'])}]"
    if error["type"] == "string_pattern_mismatch":
        return f"{problem}: {key.meaning}"
    choices = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    near = nearest(str(error["input"]), choices, cutoff=0.7)  # A6000 is not A100
    return f"{problem}; did you mean {near}?" if near else problem


def _group_problem(
    error: ErrorDetails, path: str, settings_keys: Mapping[str, "SettingsKey"]
) -> str:
    """Explain a failed check of several keys, with their full names, or a value for a group."""
    if error["type"] in OWN_CHECKS:
        return _in_full(wrong(error), path, settings_keys)
    inside = [key for key in settings_keys if key.startswith(f"{path}.")]
    if inside:
        examples = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
        return f"{path}={_display_value(error['input'])}: {path} is a group of keys: {examples}"
    return f"{path}: {wrong(error)}" if path else wrong(error)


def _in_full(text: str, group: str, settings_keys: Mapping[str, "SettingsKey"]) -> str:
    """Replace keys of a group in a message by their full names.

    Keys that may be plain words are replaced only before ``=``.
    """
    if not group:
        return text
    for key in settings_keys:
        inner = key.removeprefix(f"{group}.")
        if inner == key:
            continue
        boundary = r"(?![\w.])" if "_" in inner or "." in inner else r"(?==)"
        text = re.sub(rf"(?<![\w.]){re.escape(inner)}{boundary}", key, text)
    return text


def _split(location: tuple[int | str, ...], settings_keys: Mapping[str, object]) -> tuple[str, str]:
    """Split a location into a key and the place within its value; without a known key, return the full location."""
    # The longest prefix that is a key; the rest is a position within its value.
    for count in range(len(location), 0, -1):
        path = ".".join(map(str, location[:count]))
        if path in settings_keys:
            inside = [step for step in location[count:] if isinstance(step, int)]
            return path, ".".join(str(step + 1) for step in inside)
    return ".".join(map(str, location)), ""


def _display_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, dict | list) or value == "" else str(value)


OF_RUNS = ("recipe", "made")
"""Keys of a file that are not settings."""


def read_settings(path: Path, settings: type[Settings]) -> dict[str, Any]:
    """Read the values of a file by dotted key. A group with a value means its main key.

    Raises :class:`UserError` with the line for invalid YAML, a duplicate key or an unknown key.
    """
    tree, lines = _read(path)
    paths, flat = {key.path: None for key in keys(settings)}, dict[str, Any]()

    def read(values: Mapping[str, Any], prefix: str) -> None:
        for name, value in values.items():
            key = f"{prefix}{name}"
            is_group = any(path.startswith(f"{key}.") for path in paths)
            if key in paths:
                flat[key] = value
            elif isinstance(value, Mapping) and value and key not in OF_RUNS:
                # The file may nest groups or write dotted keys. In an unknown group, the error names the first key.
                read(value, f"{key}.")
            elif is_group and value not in (None, {}):  # an empty group sets nothing
                flat[key] = value
            elif not is_group and key not in OF_RUNS:
                near = nearest_key(key, paths)
                problem = f"{path}, line {lines[key]}: unknown key {key!r}"
                raise UserError(problem, f"did you mean {near!r}?" if near else RECIPE_KEYS)

    read(tree, "")
    return flat


LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Loader in C where PyYAML has it: the settings of a run take 3 ms instead of 50."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file. Raise :class:`UserError` if it can't be read."""
    return _read(path)[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a mapping, and the line of each dotted key. YAML itself takes the last of equal keys."""
    lines: dict[str, int] = {}

    def number(node: yaml.Node | None, prefix: str) -> None:
        for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
            key, line = f"{prefix}{name.value}", name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                raise ValueError(f"the key in line {line} is not a word")
            if key in lines:
                raise ValueError(
                    f"the key {key!r} is in line {lines[key]} and again in line {line}"
                )
            lines[key] = line
            number(value, f"{key}.")

    try:
        text = path.read_text(encoding="utf-8-sig")
        # The nodes have the line numbers, which the values do not.
        number(yaml.compose(text, Loader=LOADER), "")
        values = yaml.load(text, Loader=LOADER)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else str(error)
        problem = f"can't read settings from {path}: {reason}"
        raise UserError(problem, "give a YAML file of settings, or correct the file") from error
    if not isinstance(values or {}, dict):
        raise UserError(f"{path} has no settings", "add lines such as `iterations: 2`")
    return values or {}, lines


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        _put(tree, key, value)
    return tree


S = TypeVar("S", bound=Settings)
NEEDED = "(needed)"
RECIPE_KEYS = "`coterie config RECIPE` lists every key"


@dataclass(frozen=True, slots=True)
class SettingsKey:
    """Key of a recipe's settings, as shown by ``coterie config``."""

    path: str
    is_text: bool
    """True for text and literals, whose values are not parsed as YAML."""
    is_optional: bool
    default: str
    meaning: str
    source: str
    quiet: bool
    """True if errors omit its value."""
    is_main: bool
    """True if a value for the whole group sets this key."""

    @property
    def is_required(self) -> bool:
        return self.default == NEEDED


def resolve(
    settings: type[S],
    layers: Sequence[Mapping[str, Any]],
    overrides: Iterable[str] = (),
    *,
    where: str = RECIPE_KEYS,
) -> S:
    """Resolve settings from layers and overrides.

    Args:
        settings: Type of the settings.
        layers: Nested mappings; later ones override earlier ones.
        overrides: ``key=value`` arguments, which override all layers.
        where: Hint in errors on where keys are listed.

    Raises:
        UserError: A key is unknown (with the nearest key), an override has no ``=``, or values are invalid.
    """
    values = overlaid(*layers)
    by_path = {key.path: key for key in keys(settings)}
    mains = {key.path.rpartition(".")[0]: key.path for key in by_path.values() if key.is_main}
    for pair in overrides:
        path, equals, text = pair.partition("=")
        if not equals or not path:
            raise UserError(f"{pair!r} is not a setting", "write key=value, such as iterations=2")
        if re.fullmatch(r"[A-Za-z]:\\\S*", text):
            fix = f"in WSL write {path}=/mnt/{text[0].lower()}{text[2:].replace(chr(92), '/')}"
            raise UserError(
                f"{pair} is a path of Windows, and coterie runs on Linux and macOS", fix
            )
        # The name of a group sets its main key, such as `user_simulator=NAME`.
        path = mains.get(path, path)
        _check_known(path, by_path, where)
        _put(values, path, _value(by_path[path], text))
    try:
        return settings.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, by_path), where) from None


def keys(settings: type[Settings], prefix: str = "") -> Iterator[SettingsKey]:
    """Yield every key in order of declaration, with dotted names for nested groups."""
    for name, field in settings.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            yield from keys(annotation, f"{prefix}{name}.")
            continue
        # Of an optional type, the first part decides how a value is read.
        kinds = (
            get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
        )
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        value = None if field.is_required() else field.get_default()
        default = "none" if value is None else f"{value}"
        yield SettingsKey(
            f"{prefix}{name}",
            kinds[0] is str or get_origin(kinds[0]) is Literal,
            NoneType in kinds,
            NEEDED if field.is_required() else default,
            field.description or "",
            str(extra.get("source", "")),
            bool(extra.get("quiet")),
            name == settings.main,
        )


def overlaid(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; later ones override earlier ones."""
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            # A group replaces a plain value of an earlier layer.
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


def _check_known(path: str, settings_keys: Mapping[str, SettingsKey], where: str) -> None:
    if path in settings_keys:
        return
    inside = [key for key in settings_keys if key.startswith(f"{path}.")]
    if inside:
        raise UserError(f"{path} is a group of keys", f"give one of: {', '.join(inside)}")
    near = nearest_key(path, settings_keys)
    raise UserError(f"unknown key {path!r}", f"did you mean {near!r}?" if near else where)


def _value(key: SettingsKey, text: str) -> Any:
    """Parse the text of a value. Keys of text or literals take it unchanged."""
    # A lone surrogate would fail later, in a tokenizer or a file.
    encoded(text, f"the value of {key.path}")
    if key.is_optional and text in ("none", "null"):
        return None
    if key.is_text:
        # In quotes, `none` is a text and not the absence of a value.
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
