"""Describe validation errors in plain words."""

from pydantic_core import ErrorDetails

WORDS = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "extra_forbidden": "is not known here",
    "unexpected_keyword_argument": "is not known here",
    "invalid_key": "is not known here",
    "json_invalid": "is not JSON",
    "none_required": "must be null",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} items, and has {actual_length}",
    "too_long": "must have at most {max_length} items, and has {actual_length}",
}
"""Descriptions by type of validation error; braces are filled from its context."""
SOME_TEXT = r"\S"
"""Pattern of text that isn't blank."""
KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be an object with named values",
    "model": "must be an object with named values",
    "dataclass": "must be an object with named values",
}
"""Descriptions of wrong types by the first word of the type of validation error."""


def wrong(error: ErrorDetails) -> str:
    """Describe an error, such as ``must be a whole number``. Keep messages of coterie's own checks."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in WORDS:
        return WORDS[kind].format(**{name: _short(value) for name, value in context.items()})
    if kind in ("value_error", "assertion_error"):
        return str(context["error"])
    if kind in ("literal_error", "enum"):
        return f"must be {str(context['expected']).replace(chr(39), '')}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return f"must be one of {str(context.get('expected_tags', 'those known')).replace(chr(39), '')}"
    if kind == "string_pattern_mismatch" and context["pattern"] != SOME_TEXT:
        return "is not of the form that is needed"
    if kind in ("string_too_short", "string_pattern_mismatch"):
        return "must hold some text"
    return KINDS.get(kind.partition("_")[0], f"can't be read ({kind.replace('_', ' ')})")


def wrong_at(error: ErrorDetails, skip: int = 0) -> str:
    """Describe an error like :func:`wrong`, prefixed by the location without its first ``skip`` steps."""
    place = ".".join(map(str, error["loc"][skip:]))
    return f"{place}: {wrong(error)}" if place else wrong(error)


def _short(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
