"""Our server on a real socket, on the loop of the test."""

import contextlib
from collections.abc import AsyncIterator

from coterie.engines.serving.app import make_app
from coterie.engines.serving.policies import Policies
from tests.listening import listening


@contextlib.asynccontextmanager
async def served(policies: Policies, *, allow_loading: bool = False) -> AsyncIterator[str]:
    """The URL of a server that runs in the meantime."""
    async with listening(make_app(policies, allow_loading=allow_loading)) as url:
        yield url
