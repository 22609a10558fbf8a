"""The base of every group of settings, and how one key is declared.

A key is declared with :func:`key`, which makes its meaning (and, where a paper fixes it, its source)
part of the type, so that ``coterie config`` is never stale.
"""

import hashlib
import json
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

MOST_SEED = 2**32 - 1
"""The largest seed: generators take 64 bits, and a run makes its trainings' seeds of its own."""


class Settings(BaseModel):
    """Frozen settings; an unknown key or a value of the wrong type is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    main: ClassVar[str] = ""
    """The key that is meant where a group itself is given a value (``user_simulator=NAME``); none by default."""

    def fingerprint(self) -> str:
        """Hash of all values; credit and finished stages are keyed by it."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def key(
    default: Any = ..., meaning: str = "", *, source: str = "", quiet: bool = False, **limits: Any
) -> Any:
    """Declare one key: its default, what it means, where its value comes from, and its limits.

    ``limits`` are pydantic's (``ge``, ``gt``, ``le``, ``lt``, ``min_length``, ...). The value of a
    ``quiet`` one is in no error: somebody may have given a password by mistake.
    """
    extra: dict[str, Any] = {"source": source, "quiet": quiet}
    return Field(default, description=meaning, json_schema_extra=extra, **limits)
