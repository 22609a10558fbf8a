"""Replies to requests that failed, as OpenAI's protocol has them: a status, and a body with a message and a type."""

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.exceptions import HTTPException

from coterie.config.text import whole
from coterie.errors import UserError

TYPES = {
    400: "invalid_request_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    503: "service_unavailable_error",
}
SHOWN = 3
"""Mistakes of one request that are named."""


class RequestBody(BaseModel):
    """A body in which nothing is unknown, and all text is text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, values: Any) -> Any:
        if isinstance(values, bytes):
            raise ValueError("the body was not sent as JSON: say Content-Type: application/json")
        return whole(values)


class RequestRefused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


def answer(status: int, message: str, *, param: str | None = None) -> JSONResponse:
    """The reply to a request that failed."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "code": status, "param": param}}
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse(body, status, headers)


def answer_to(request: Request, error: Exception, server_error: str) -> JSONResponse:
    """The reply for a failure that any of our servers may have; ``server_error`` is said of all others."""
    match error:
        case RequestRefused():
            return answer(error.status, error.message, param=error.param)
        case RequestValidationError():
            return _invalid(error)
        case UserError():
            return answer(400, f"{error.what} -> {error.todo}" if error.todo else error.what)
        case HTTPException():
            said = f"{request.method} {request.url.path}: {error.detail}"
            return answer(error.status_code, said)
    return answer(500, server_error)


def _invalid(error: RequestValidationError) -> JSONResponse:
    """Of a body that is not as it should be: what is wrong with it, and where."""
    found = error.errors()[:SHOWN]
    names = [_name(one["loc"]) for one in found]
    said = [f"{n}: {one['msg']}" if n else one["msg"] for n, one in zip(names, found, strict=True)]
    return answer(400, "; ".join(dict.fromkeys(said)), param=names[0] or None)


def _name(place: tuple[int | str, ...]) -> str:
    """Of a parameter; its place begins with "body", and ends with kinds that it could be of."""
    deep = place[1:2] == ("messages",)
    return ".".join(str(part) for part in place[1 : 4 if deep else 2])
