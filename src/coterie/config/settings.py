"""Groups of settings: their base class, keys, and addresses of servers.

:func:`key` declares a key with its meaning and, if a paper fixes its value, the source. ``coterie config`` shows both.
"""

import hashlib
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.config.folders import expanded

if TYPE_CHECKING:
    import httpx2


def server_url(url: str) -> "httpx2.URL":
    """Parse the URL of a server. Raise ``ValueError`` unless it is an HTTP(S) URL."""
    import httpx2  # a twentieth of a second, for settings that most runs do not have

    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("must begin with http:// or https:// and a host")
    return parsed


def _address(url: str) -> str:
    server_url(url)
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_address)]
"""HTTP(S) address of a server, without a slash at its end."""

NOT_PATHS = ("", "hub", "sample", "synthetic", "easy", "expert")
"""Values of path settings that are names, also if there is a file of that name."""


def absolute_path(path: str | None) -> str | None:
    """Return the absolute path of an existing file or folder; other values, such as names, unchanged.

    Servers and ranks on a cluster have other working folders, and a run may be resumed from another one.
    """
    if path is None or path in NOT_PATHS or not expanded(path).exists():
        return path
    return str(expanded(path).absolute())


def _ascending(values: tuple[float, float]) -> tuple[float, float]:
    if values[0] >= values[1]:
        raise ValueError("must be [LOW,HIGH], with LOW below HIGH")
    return values


ScoreRange = Annotated[tuple[float, float], AfterValidator(_ascending)]
"""Lowest and highest score or reward."""

PathText = Annotated[str, AfterValidator(absolute_path)]
"""Path or name."""
OptionalPath = Annotated[str | None, AfterValidator(absolute_path)]

MOST_SEED = 2**32 - 1
"""Largest seed. Generators take 64 bits, and a run derives the seeds of its trainings."""


class Settings(BaseModel):
    """Frozen settings. Unknown keys and values of a wrong type are errors."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    main: ClassVar[str] = ""
    """Key that a value for the whole group sets (``user_simulator=NAME``)."""

    def fingerprint(self, keys: Collection[str] | None = None) -> str:
        """Hash the values of ``keys`` (by default of all), as a key for credit and finished stages."""
        # The keys are sorted, so that the hash does not depend on the order of the fields.
        text = json.dumps(
            self.model_dump(mode="json", include=None if keys is None else set(keys)),
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def key(
    default: Any = ..., meaning: str = "", *, source: str = "", quiet: bool = False, **limits: Any
) -> Any:
    """Declare a key.

    Args:
        default: Default value; required without one.
        meaning: Description for ``coterie config``.
        source: Source of the default, such as a table of a paper.
        quiet: Omit the value from errors, since it may contain a password.
        **limits: Constraints of pydantic (``ge``, ``gt``, ``le``, ``lt``, ``min_length``, ...).
    """
    extra: dict[str, Any] = {"source": source, "quiet": quiet}
    return Field(default, description=meaning, json_schema_extra=extra, **limits)
