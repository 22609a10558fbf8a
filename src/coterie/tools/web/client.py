"""Asks a tool server (``coterie serve tools``) of ours, or one that speaks as it does."""

import asyncio
from typing import Any, Self, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from coterie.errors import UserError
from coterie.tools.run import ToolError, ToolUnavailable

SHOWN = 300
"""Characters of an answer that an error quotes."""
CHECK = 10.0
"""Seconds for the server to say that it is there."""
Answer = TypeVar("Answer", bound=BaseModel)


class ToolClient:
    """A client of the server at ``url``.

    To be opened with ``async with``, which raises ``UserError`` if the server is not there. ``seconds`` is the time
    limit of a request.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        self._client = httpx2.AsyncClient(timeout=self._seconds)
        try:
            answer = await self._client.get(f"{self._url}/health", timeout=CHECK)
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            await self._client.aclose()
            raise UserError(
                f"there is no tool server at {self._url}: {error or type(error).__name__}",
                "start it with `coterie serve tools`, or correct the URL",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], answer: type[Answer]) -> Answer:
        """What the server answers. Raises ``ToolError`` if it refuses the request, ``ToolUnavailable`` if it fails."""
        try:
            async with asyncio.timeout(self._seconds):
                got = await self._client.post(f"{self._url}{path}", json=body)
        except (TimeoutError, httpx2.TimeoutException) as error:
            raise ToolUnavailable(
                f"{self._url}{path}: no answer within {self._seconds:g} seconds"
            ) from error
        except httpx2.RequestError as error:
            raise ToolUnavailable(f"{self._url}{path}: {error or type(error).__name__}") from error
        said = _message(got)
        if got.status_code in (400, 413, 422):
            raise ToolError(said)
        if not got.is_success:
            raise ToolUnavailable(f"{self._url}{path}: status {got.status_code}: {said}")
        try:
            return answer.model_validate_json(got.content)
        except ValidationError as error:
            raise ToolUnavailable(
                f"{self._url}{path}: the answer has another form: {got.text[:SHOWN]}"
            ) from error


def _message(got: httpx2.Response) -> str:
    try:
        return str(got.json()["error"]["message"])[:SHOWN]
    except (ValueError, TypeError, KeyError):
        return got.text[:SHOWN]
