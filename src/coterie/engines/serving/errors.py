"""Errors as OpenAI's protocol has them: a status, and a body with a message and a type."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from coterie.engines.protocol import EngineError
from coterie.engines.serving.policies import Busy, Loading, Unknown
from coterie.engines.serving.responses import ErrorBody, ErrorResponse
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


class RequestRefused(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def answer(status: int, message: str, *, param: str | None = None) -> JSONResponse:
    """The reply to a request that failed."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = ErrorResponse(error=ErrorBody(message=message, type=kind, code=status, param=param))
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse(body.model_dump(), status, headers)


def handle_errors(app: FastAPI) -> None:
    """Answer every failure of a route in this form."""

    @app.exception_handler(RequestRefused)
    async def refused(_: Request, error: RequestRefused) -> Response:
        return answer(error.status, error.message, param=error.param)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        found = error.errors()[:SHOWN]
        names = [_name(one["loc"]) for one in found]
        said = [
            f"{n}: {one['msg']}" if n else one["msg"] for n, one in zip(names, found, strict=True)
        ]
        return answer(400, "; ".join(dict.fromkeys(said)), param=names[0] or None)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> Response:
        return answer(409, str(error))

    @app.exception_handler(Loading)
    async def loading(_: Request, error: Loading) -> Response:
        return answer(503, str(error))

    @app.exception_handler(Unknown)
    async def unknown(_: Request, error: Unknown) -> Response:
        return answer(404, str(error), param="model")

    @app.exception_handler(EngineError)
    async def failed(_: Request, error: EngineError) -> Response:
        return answer(500, str(error))

    @app.exception_handler(UserError)
    async def mistaken(_: Request, error: UserError) -> Response:
        return answer(400, f"{error.what} -> {error.todo}" if error.todo else error.what)

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return answer(500, f"the server failed: {error!r}")


def _name(place: tuple[int | str, ...]) -> str:
    """Of a parameter; its place begins with "body", and ends with kinds that it could be of."""
    deep = place[1:2] == ("messages",)
    return ".".join(str(part) for part in place[1 : 4 if deep else 2])
