"""Extension of griffe for the forms of docstrings and settings in this package."""

import ast
import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Forms(griffe.Extension):
    """Show references as code, and a key of settings with its default value and its meaning."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change an object that has been read."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
        call = obj.value if obj.is_attribute else None
        if isinstance(call, griffe.ExprCall) and str(call.function) == "key":
            default, *rest = call.arguments
            obj.value = default
            if rest and isinstance(rest[0], str):
                obj.docstring = griffe.Docstring(ast.literal_eval(rest[0]), parent=obj)
