"""An environment's own faults: the item that meets one fails, with the reason, and no other."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.engines.protocol import EngineError
from coterie.errors import UserError


class EnvironmentFault(EngineError):
    """An environment met what it did not expect: the item that met it fails, and no other."""


@contextmanager
def faults_of(environment: object) -> Iterator[None]:
    """Turns every exception that an environment did not mean to raise into a :class:`EnvironmentFault`."""
    try:
        yield
    except (EngineError, UserError):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = "".join(traceback.format_exception_only(error)).strip()
        raise EnvironmentFault(
            f"{type(environment).__name__} failed with {what} ({place.filename}:{place.lineno})"
        ) from error
